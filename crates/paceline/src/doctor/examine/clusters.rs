//! What connects hosts, and what starts them.

use super::super::clusters::{ENDPOINTS, INTERFACES};
use super::super::facts::{Clusters, Etcd, Facts, MpiLibrary, Program};
use super::{Check, Finding, Section, judge};

/// The first etcd that has all that hosts ask for.
const OLDEST_ETCD: (u32, u32) = (3, 4);

/// A check for each binary interface, in their order.
const MPI: [&str; 3] =
    ["MPI, Open MPI's interface", "MPI, MPICH's interface", "MPI, the standard's interface"];

pub fn clusters(facts: &Facts) -> Vec<Check> {
    let it = &facts.clusters;
    let mut checks: Vec<Check> = INTERFACES
        .into_iter()
        .zip(MPI)
        .map(|(interface, what)| {
            judge(Section::Clusters, what, it.mpi.as_ref(), |all| {
                let here = all.iter().filter(|library| library.interface == interface);
                let here: Vec<String> = here.map(write_library).collect();
                Finding::ok(if here.is_empty() { "not found".into() } else { here.join("; ") })
            })
        })
        .collect();
    checks.push(judge(Section::Clusters, "--wire mpi", it.mpi.as_ref(), |all| judge_wire(it, all)));
    checks.extend(["mpirun", "srun"].map(|name| {
        judge(Section::Clusters, name, it.programs.as_ref(), |all| {
            let found = all.iter().find(|program| program.name == name);
            Finding::ok(found.map_or_else(|| "not found".into(), write_program))
        })
    }));
    checks.push(judge(Section::Clusters, "etcd", it.etcd.as_ref(), judge_etcd));
    checks
}

fn judge_etcd(etcd: &Etcd) -> Finding {
    let (version, place) = match etcd {
        Etcd::Unnamed => return Finding::ok(format!("not looked for: {ENDPOINTS} names none")),
        Etcd::Refused(why) => return Finding::note("cannot be used", format!("{why}.")),
        Etcd::There { version, place } => (version, place),
    };
    let value = format!("{} at {place}", version.escape_debug());
    let lack = match read_version(version) {
        Some(found) if found >= OLDEST_ETCD => return Finding::ok(value),
        Some(_) => "It is too old",
        None => "Its version cannot be read",
    };
    let (major, minor) = OLDEST_ETCD;
    Finding::note(value, format!("{lack}: --rendezvous etcd:// needs etcd {major}.{minor} or later."))
}

/// The first two numbers of a version.
fn read_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let minor = rest.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn judge_wire(it: &Clusters, usable: &[MpiLibrary]) -> Finding {
    match (it.refused.first(), usable.is_empty()) {
        (Some(why), true) => Finding::note("cannot be used here", format!("{why}.")),
        (Some(why), false) => Finding::note("can be used, with some of what is there", format!("{why}.")),
        (None, true) => Finding::ok("cannot be used here: there is no MPI library"),
        (None, false) => Finding::ok("can be used, by hosts that mpirun or srun starts"),
    }
}

fn write_library(library: &MpiLibrary) -> String {
    match &library.path {
        Some(path) => format!("{} at {}", library.version, path.to_string_lossy().escape_debug()),
        None => library.version.clone(),
    }
}

fn write_program(program: &Program) -> String {
    let version = program.version.as_deref().unwrap_or("of unknown version");
    format!("{} at {}", version.escape_debug(), program.path.to_string_lossy().escape_debug())
}
