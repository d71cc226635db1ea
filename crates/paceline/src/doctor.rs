//! `paceline doctor`: what this machine offers, and what would spoil a measurement on it.

mod activity;
mod clusters;
mod examine;
mod facts;
mod folders;
mod probe;
mod reading;
mod render;

use std::env;
use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use paceline_engine::cuda::{Library, libraries};
use paceline_engine::{Engine, EngineError, Spec};
use paceline_model::zoo;
use paceline_record::Bytes;
use paceline_system::cgroup;
use paceline_system::tree::Tree;
use paceline_train::open_engine;

use crate::colour;
use crate::outcome::print;
use activity::Look;
use facts::{Accelerators, Count, Facts, Need, Probe};
use folders::Folders;
use render::Ink;

/// Time between two looks at who else computes.
const WATCH: Duration = Duration::from_millis(500);

/// Options of `paceline doctor`.
#[derive(Args)]
pub struct Options {
    /// Print JSON: the same checks, and the facts behind them
    #[arg(long)]
    json: bool,
}

/// Examines this machine and prints what was found. That something was found is no failure.
pub fn run(options: &Options) -> Result<()> {
    let facts = gather(&Tree::new("/"), Path::new("."));
    let checks = examine::examine(&facts);
    if options.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&render::to_json(&checks, &facts))?));
    }
    let ink = if colour::wanted(stdout().is_terminal()) { Ink::Coloured } else { Ink::Plain };
    print(&render::render(&checks, ink))
}

/// Finds out all there is to know; `folder` is where a study would go.
fn gather(tree: &Tree, folder: &Path) -> Facts {
    let mut facts = read(tree, folder);
    watch(tree, &mut facts);
    if let Ok(engine) = open_engine("cpu", 1, None) {
        facts.needs = plan(&*engine);
    }
    facts.accelerators.libraries = Some(find_libraries(tree));
    let cuda = open_engine("cuda", 1, None).map(|engine| engine.describe());
    facts.accelerators.engine = Some(cuda.map_err(|error| error.to_string()));
    facts.clusters = clusters::find(env::var_os("PATH").as_deref());
    facts
}

/// What stands in files.
fn read(tree: &Tree, folder: &Path) -> Facts {
    let processor = reading::read_processor(tree);
    Facts {
        speed: reading::read_speed(tree, processor.allowed.as_deref().unwrap_or_default()),
        processor,
        memory: reading::read_memory(tree),
        system: reading::read_system(tree, folder),
        accelerators: Accelerators { gpus: reading::read_gpus(tree), libraries: None, engine: None },
        ..Facts::default()
    }
}

/// The libraries of a GPU. Where one that is there could not be loaded, nothing but its folder tells its path.
fn find_libraries(tree: &Tree) -> Vec<Library> {
    let folders = Folders::find(tree, env::var_os("LD_LIBRARY_PATH").as_deref());
    let mut libraries = libraries();
    for library in libraries.iter_mut().filter(|library| library.broken.is_some()) {
        library.path = folders.search(library.file);
    }
    libraries
}

/// What only time tells: first who else computes while we do not, then how the cores fare when all of them do.
fn watch(tree: &Tree, facts: &mut Facts) {
    let allowed = facts.processor.allowed.clone().unwrap_or_default();
    let counters =
        || (reading::count_heat(tree, &allowed), cgroup::throttled(tree), reading::count_swapped(tree));
    let before = counters();
    let look = Look::take(tree, &allowed);
    sleep(WATCH);
    facts.activity = look.until(&Look::take(tree, &allowed));
    // No more threads than the quota grants, or the probe itself would be what is stopped.
    let cores = allowed.iter().copied().take(facts.processor.usable().unwrap_or(0));
    facts.probe = Probe {
        clock: reading::read_clock(tree),
        reading: Some(probe::time_readings()),
        spins: probe::spin(tree, &cores.collect::<Vec<_>>()),
    };
    let after = counters();
    facts.speed.heat = count(before.0, after.0);
    facts.speed.throttled = count(before.1, after.1);
    facts.memory.swapped_pages = count(before.2, after.2);
}

fn count(before: Option<u64>, after: Option<u64>) -> Option<Count> {
    let (before, after) = before.zip(after)?;
    Some(Count { total: after, now: after.saturating_sub(before) })
}

/// Memory that a worker of the default study needs, network by network.
fn plan(engine: &dyn Engine) -> Option<Vec<Need>> {
    let plan = |model: &str| {
        let graph = zoo::build(model, Some((32, 32)), 10).ok()?;
        let (worker, shared) = match engine.plan(&graph, &Spec::new(64)) {
            Ok(plan) => (Bytes(plan.total()), Some(Bytes(plan.gradients))),
            // Even one worker does not fit; how much it lacks is known.
            Err(EngineError::TooLarge { needed_mb, .. }) => {
                (Bytes(needed_mb.saturating_mul(1_000_000)), None)
            }
            Err(_) => return None,
        };
        Some(Need { model: model.into(), worker, shared })
    };
    ["mobilenet_v2", "resnet50"].into_iter().map(plan).collect()
}
