//! The readers, each with all that is done with what it reads.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use paceline_import::ranks::{self, Told};
use paceline_import::trace::{Kind, Trace};
use paceline_import::{
    ImportError, Imported, chrome, events, horovod, kineto, metric_log, nvidia_smi, profile, source, sqlite,
    tf_cnn, write, xplane,
};
use paceline_lab::explain::series::Context;
use paceline_lab::explain::{self, ExplainError};
use paceline_lab::{Held, csv, html, markdown, terminal};

use crate::mutation::Form;

/// Of so many runs one is written and reported.
const EVERY: u64 = 16;

thread_local! {
    static WRITES: Cell<u64> = const { Cell::new(0) };
}

/// A reader of one kind of file.
pub struct Reader {
    /// Folder of its files.
    pub corpus: &'static str,
    /// What its files are.
    pub form: Form,
    /// Reads a file, checks what holds of everything that is read, and says how it went: `error ...` where it refused.
    pub read: fn(&Path) -> String,
}

pub const KINETO: Reader = Reader { corpus: "kineto", form: Form::Text, read: |path| traces(kineto(path)) };
pub const KINETO_PACKED: Reader =
    Reader { corpus: "kineto", form: Form::Packed, read: |path| traces(kineto(path)) };
pub const RANKS: Reader = Reader { corpus: "kineto", form: Form::Text, read: with_a_partner };
pub const NVPROF: Reader =
    Reader { corpus: "nvprof", form: Form::Sqlite, read: |path| traces(database(path)) };
pub const NSYS: Reader = Reader { corpus: "nsys", form: Form::Sqlite, read: |path| traces(database(path)) };
pub const HOROVOD: Reader =
    Reader { corpus: "horovod", form: Form::Text, read: |path| traces(horovod::read(path)) };
pub const EVENTS: Reader = Reader {
    corpus: "events",
    form: Form::Records,
    read: |path| runs(told(path, events::import(&[(path, None)]).map(|run| vec![run]))),
};
pub const TF_CNN: Reader = Reader {
    corpus: "tf_cnn",
    form: Form::Text,
    read: |path| runs(told(path, tf_cnn::import(&[(path, None)]))),
};
pub const METRIC_LOG: Reader = Reader {
    corpus: "metric_log",
    form: Form::Text,
    read: |path| runs(told(path, metric_log::import(path).map(|run| vec![run]))),
};
pub const NVIDIA_SMI: Reader = Reader { corpus: "nvidia_smi", form: Form::Text, read: monitor };
pub const TABLE: Reader = Reader { corpus: "table", form: Form::Text, read: table };
pub const XPLANE: Reader =
    Reader { corpus: "xplane", form: Form::Messages, read: |path| traces(xplane::read(path)) };
pub const CHROME: Reader = Reader { corpus: "chrome", form: Form::Text, read: timeline };

/// All of them.
pub const ALL: [Reader; 13] = [
    KINETO,
    KINETO_PACKED,
    RANKS,
    NVPROF,
    NSYS,
    HOROVOD,
    EVENTS,
    TF_CNN,
    METRIC_LOG,
    NVIDIA_SMI,
    TABLE,
    XPLANE,
    CHROME,
];

/// What an outcome comes to, without numbers: two files with the same say nothing new.
pub fn fingerprint(outcome: &str, path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let path = path.to_string_lossy();
    outcome
        .replace(path.as_ref(), "")
        .chars()
        .filter(|letter| !letter.is_ascii_digit())
        .for_each(|letter| letter.hash(&mut hasher));
    hasher.finish()
}

/// A count in coarse steps.
fn coarse(count: usize) -> String {
    "+".repeat(count.checked_ilog2().map_or(0, |log| log as usize + 1))
}

fn kineto(path: &Path) -> Result<Vec<Trace>, ImportError> {
    kineto::read(path).map(|trace| vec![trace])
}

fn database(path: &Path) -> Result<Vec<Trace>, ImportError> {
    let read = sqlite::read(path);
    let left = std::fs::read_dir(path.parent().expect("a folder")).expect("a folder").count();
    assert_eq!(left, 1, "reading leaves nothing behind");
    read
}

/// What is done with traces: each on a screen, and all as a run.
fn traces(read: Result<Vec<Trace>, ImportError>) -> String {
    let traces = match read {
        Ok(traces) => traces,
        Err(error) => return format!("error {error}"),
    };
    let mut said = String::new();
    for trace in &traces {
        check(trace);
        let profile = profile::summarise(trace, &profile::Cut::default());
        profile.iter().for_each(|profile| drop(profile::render(profile)));
        said += &format!(
            "{} {} {} {} {:?} {:?};",
            coarse(trace.slices.len()),
            coarse(trace.collectives.len()),
            coarse(trace.steps.len()),
            coarse(trace.tracks.len()),
            profile.map(|profile| profile.dominant),
            trace.warnings
        );
    }
    said + &runs(ranks::join(traces, &Told::default()).map(|run| vec![run]))
}

/// The same as one rank of two.
fn with_a_partner(path: &Path) -> String {
    let partner = crate::corpus().join("kineto/gloo_rank0.json");
    let read =
        || -> Result<Vec<Trace>, ImportError> { Ok(vec![kineto::read(&partner)?, kineto::read(path)?]) };
    match read().map(|traces| ranks::join(traces, &Told::default())) {
        Err(error) | Ok(Err(error)) => format!("error {error}"),
        Ok(Ok(run)) => runs(Ok(vec![run])),
    }
}

/// What holds of every trace, whatever it was read from.
fn check(trace: &Trace) {
    assert!(trace.slices.is_sorted_by_key(|slice| slice.begin));
    let whole = |slice: &paceline_import::trace::Slice| {
        slice.begin <= slice.end && (slice.track as usize) < trace.tracks.len()
    };
    assert!(trace.slices.iter().all(whole));
    assert!(trace.collectives.iter().all(|one| trace.slices[one.slice].kind == Kind::Collective));
    assert!(trace.steps.iter().all(|step| step.begin <= step.end));
}

/// What was read; every second time that it is written, as a user has it who tells the batch.
fn told(path: &Path, read: Result<Vec<Imported>, ImportError>) -> Result<Vec<Imported>, ImportError> {
    let batch = Told { batch: Some(7), ..Told::default() };
    match source::import(&[path.into()], &batch) {
        Ok(runs) if !(WRITES.get() / EVERY).is_multiple_of(2) => {
            Ok(runs.into_iter().map(|(_, run)| run).collect())
        }
        _ => read,
    }
}

/// What is done with runs: they are written, and read and reported in every form.
fn runs(read: Result<Vec<Imported>, ImportError>) -> String {
    let runs = match read {
        Ok(runs) => runs,
        Err(error) => return format!("error {error}"),
    };
    let mut said = String::new();
    for run in &runs {
        for step in run.ranks.iter().flat_map(|rank| &rank.steps) {
            assert!(step.begin <= step.end);
            assert!(step.phases.total() <= step.end.since(step.begin), "{step:?}");
            assert!(step.late_rank <= step.phases.total(), "{step:?}");
        }
        let points = run.progress.iter().flat_map(|progress| &progress.points);
        let positive = |value: Option<f64>| value.is_none_or(|value| value > 0.0 && value.is_finite());
        for point in points.clone() {
            assert!(
                point.covers > 0 && (point.seconds.is_some() || point.examples_per_s.is_some()),
                "{point:?}"
            );
            assert!(positive(point.seconds) && positive(point.examples_per_s), "{point:?}");
        }
        let steps = run.ranks.iter().map(|rank| rank.steps.len()).sum::<usize>() + points.count();
        said += &format!("{} {} {:?};", coarse(run.ranks.len()), coarse(steps), run.warnings);
    }
    // Writing takes longer than all else: it is for one file of some.
    if !WRITES.replace(WRITES.get() + 1).is_multiple_of(EVERY) {
        return said;
    }
    let small = |run: &Imported| run.ranks.iter().map(|rank| rank.steps.len()).sum::<usize>() < 2000;
    let named: Vec<(String, Imported)> =
        runs.into_iter().filter(small).map(|run| ("run".into(), run)).collect();
    if named.is_empty() {
        return said;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    match write::write(&named, &[], folder.path(), Held::Resume) {
        Ok((folder, study)) => {
            let report = folder.analyse(&study);
            terminal::render_report(&report, terminal::Screen::PLAIN);
            let pages = [markdown::render(&report), html::render(&report), csv::render(&report)];
            assert!(pages.iter().all(|page| !page.is_empty()));
            let reasons: Vec<_> = report.cases.iter().map(|case| (case.status, &case.reason)).collect();
            said += &format!("{reasons:?} {}", coarse(report.findings.len()));
        }
        Err(error) => said += &format!("not written: {error}"),
    }
    said
}

fn timeline(path: &Path) -> String {
    let timeline = match chrome::read(path) {
        Ok(timeline) => timeline,
        Err(error) => return format!("error {error}"),
    };
    let busy = timeline.threads.iter().fold(0, |sum: u128, thread| sum + u128::from(thread.busy.0));
    let own = timeline.names.iter().fold(0, |sum: u128, name| sum + u128::from(name.own.0));
    assert_eq!(busy, own, "own times add up");
    assert!(timeline.threads.iter().all(|thread| thread.busy <= timeline.span));
    assert!(!timeline.render().contains('\u{1b}'));
    let counts = [timeline.threads.len(), timeline.names.len(), timeline.others as usize];
    format!("{:?} {:?}", counts.map(coarse), timeline.warnings)
}

fn monitor(path: &Path) -> String {
    match nvidia_smi::read(path) {
        Err(error) => format!("error {error}"),
        Ok(monitor) => {
            monitor.render();
            for device in &monitor.devices {
                let shares = [device.utilisation, device.utilisation_p95, device.low];
                assert!(shares.into_iter().flatten().all(|share| (0.0..=1.0).contains(&share)), "{device:?}");
            }
            monitor.attach(&mut Imported::default());
            let known: Vec<_> = monitor
                .devices
                .iter()
                .map(|one| (one.utilisation.is_some(), one.peak_memory.is_some()))
                .collect();
            format!("{} {:?} {:?}", coarse(monitor.devices.len()), known.first(), monitor.warnings)
        }
    }
}

fn table(path: &Path) -> String {
    let bytes = std::fs::read(path).expect("it was written");
    let text = String::from_utf8_lossy(&bytes);
    // What is no table may be something else that is known.
    let _ = source::import(&[PathBuf::from(path)], &Told::default());
    let told = explain::Options {
        context: Context { steps: Some(500), ..Context::default() },
        ..explain::Options::default()
    };
    [explain::Options::default(), told].iter().map(|options| explained(&text, options)).collect()
}

fn explained(text: &str, options: &explain::Options) -> String {
    let found = match explain::explain_text(text, options) {
        Ok(found) => found,
        Err(ExplainError::NotUnderstood(_)) => return "error not understood".into(),
        Err(error) => return format!("error {error}"),
    };
    let page = explain::render(&found);
    assert!(!page.contains('\u{1b}'), "{page}");
    serde_json::to_string(&found).expect("plain data");
    let slips = found.series.iter().flat_map(|series| &series.audit.slips);
    let audits: Vec<_> = slips.map(|slip| slip.check).collect();
    let kind = |series: &explain::SeriesExplanation| {
        (series.work, series.reconciliation.is_some(), series.laws.len(), series.clock_law.is_some())
    };
    let kinds: Vec<_> = found.series.iter().map(kind).collect();
    format!("{} {audits:?} {kinds:?} {:?}", coarse(found.series.len()), found.warnings)
}
