//! Real traces, where they are present.

use std::path::PathBuf;

use paceline_lab::origin::{Common, LateStep};
use paceline_lab::{Held, Kind as Finding, Report, terminal};
use paceline_record::Phase;

use super::*;
use crate::sample;
use crate::{kineto, write};

fn samples() -> Option<PathBuf> {
    sample::sample("kineto")
}

/// Traces of PyTorch's profiler, made a run.
fn sample(names: &[&str]) -> Option<Imported> {
    let folder = samples()?;
    let read = |name: &&str| kineto::read(&folder.join(name)).expect("a sound trace");
    let told = Told { model: "sample".into(), batch: None };
    Some(join(names.iter().map(read).collect(), &told).expect("traces of one run"))
}

fn report(run: Imported) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = [("sample".into(), run)];
    let (folder, study) = write::write(&runs, &[], folder.path(), Held::Resume).expect("a new folder");
    folder.analyse(&study)
}

#[test]
fn the_rank_that_slept_for_80_ms_is_found() {
    let Some(run) = sample(&["ddp_2ranks/rank1.json.gz", "ddp_2ranks/rank0.json.gz"]) else { return };
    let traced = run.traced.as_ref().expect("traces");
    assert_eq!(
        (traced.alignment.common, traced.alignment.offsets.as_slice()),
        (Common::Host, [0, 0].as_slice())
    );
    let LateStep { step, rank, waited, .. } = traced.late[0];
    assert_eq!((step, rank), (Step(3), Rank(1)));
    assert!((0.072..0.088).contains(&waited.seconds()), "once, not twice: {waited:?}");
    assert!(traced.late[1].waited.seconds() < 0.02, "{:?}", traced.late);
    let waiting = &run.ranks[0].steps[1];
    assert!((0.072..0.088).contains(&waiting.late_rank.seconds()), "{:?}", waiting.late_rank);
    assert!(waiting.phases[Phase::CommWait] >= waiting.late_rank);
    let report = report(run);
    let found = report.findings.iter().find(|found| found.kind == Finding::Stragglers);
    assert!(
        found.is_some_and(|found| found.text.contains("of it for rank 1, which spends 0.08 s more than")),
        "{:?}",
        report.findings
    );
}

#[test]
fn steps_of_real_devices_are_told_whole() {
    for names in [
        ["alexnet_single_gpu.json.gz"].as_slice(),
        &["nccl_args_rank0of2.json.gz"],
        &["ns_resolution.json.gz"],
        &["sampled_rank-0.json.gz", "sampled_rank-1.json.gz"],
    ] {
        let Some(run) = sample(names) else { return };
        for step in run.ranks.iter().flat_map(|rank| &rank.steps) {
            assert_eq!(step.phases.total(), step.end.since(step.begin), "{names:?}");
            let told = step.idle_host + step.idle_queued + step.idle_empty;
            assert!(told <= step.phases[Phase::Idle], "{names:?}");
            assert!(step.phases[Phase::CommWait] <= step.comm_busy, "{names:?}");
        }
        let page = terminal::render_report(&report(run), terminal::Screen::PLAIN);
        // Names of kernels may hold such letters; numbers may not.
        let odd = |word: &&str| word.parse::<f64>().is_ok_and(|number| !number.is_finite());
        assert_eq!(page.split_whitespace().find(odd), None, "{page}");
    }
}
