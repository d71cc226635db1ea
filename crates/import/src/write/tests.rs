use paceline_lab::numbers::waterfall::Cause;
use paceline_lab::origin::Format;
use paceline_lab::{Kind as Finding, Report, markdown, terminal};
use paceline_record::Phase;

use super::*;
use crate::ranks::{Told, join};
use crate::split::tests::Draft;
use crate::trace::{Clock, Kind, Trace};

const US: u64 = 1000;

/// A rank of a device that computes 600 of each 1000 us, of which it launches every kernel late; rank 1 comes 50 us later
/// to each of its collectives.
fn rank(number: u32, steps: u64) -> Trace {
    let mut draft = Draft::default();
    let (host, stream) = (draft.thread(), draft.stream());
    for step in 0..steps {
        let at = |begin: u64, end: u64| ((step * 1000 + begin) * US, (step * 1000 + end) * US);
        let late = 50 * u64::from(number);
        draft.step(step, at(0, 1000));
        draft.launched((host, stream), Kind::Compute, at(90, 95), at(100, 500 + late));
        draft.launched((host, stream), Kind::Collective, at(90, 95), at(500 + late, 600));
        let name = draft.0.names.enter("all_reduce");
        let slice = draft.0.slices.len() - 1;
        draft.0.collectives.push(crate::trace::Collective {
            slice,
            operation: name,
            group: None,
            sequence: None,
        });
        draft.launched((host, stream), Kind::Compute, at(790, 795), at(800, 1000));
    }
    (draft.0.rank, draft.0.clock) = (Some(Rank(number)), Clock::Epoch);
    draft.0.host = Some("host".into());
    draft.0.devices = vec!["Abacus GPU".into()];
    draft.trace()
}

fn run(ranks: u32, steps: u64, batch: Option<u64>) -> Imported {
    let told = Told { model: "resnet50".into(), batch };
    let traces = (0..ranks).map(|number| Trace { world: Some(ranks), ..rank(number, steps) }).collect();
    join(traces, &told).expect("ranks of one run")
}

fn import(runs: &[(String, Imported)], out: &Path) -> Report {
    let (folder, study) = write(runs, &["import".into()], out, Held::Resume).expect("a new folder");
    let (opened, read) = StudyFolder::open(folder.path()).expect("it holds a study");
    assert_eq!(read, study);
    opened.analyse(&read)
}

#[test]
fn a_written_run_is_reported_as_our_own_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = import(&[("traces".into(), run(2, 40, None))], &folder.path().join("study"));
    let case = &report.cases[0];
    assert_eq!(
        (case.status, case.steps, case.case.workers),
        (paceline_lab::Status::Done, 40, 2),
        "{:?}",
        case.reason
    );
    assert_eq!((case.init_s, case.total_s), (None, None), "a window says nothing of the whole run");
    assert_eq!(case.images_per_s, None, "nobody said how many images there were");
    let near = |got: f64, expected: f64| (got - expected).abs() < 1e-9;
    let phases = case.phases_s.as_ref().expect("a finished case");
    assert!(near(phases.values().sum(), 2.0 * 0.040));
    assert!(near(phases[&Phase::Compute], 40.0 * (600e-6 + 650e-6)), "{phases:?}");
    assert!(near(phases[&Phase::CommWait], 40.0 * (100e-6 + 50e-6)));
    assert!(near(phases[&Phase::Idle], 40.0 * 2.0 * 300e-6));
    let wait = case.comm_wait_split_s.expect("collectives");
    assert!(near(wait.late_rank, 40.0 * 50e-6) && near(wait.transfer, 40.0 * 100e-6), "{wait:?}");
    assert_eq!(case.straggler.map(|late| (late.who.number(), late.fraction)), Some((1, 1.0)));
    let idle = case.idle_split_s.expect("an idle device");
    assert!(near(idle.host_late, 40.0 * 2.0 * 20e-6) && near(idle.queued + idle.unknown, 0.0), "{idle:?}");
    assert!(near(idle.nothing_queued, 40.0 * 2.0 * 280e-6), "the host is seen in its calls alone: {idle:?}");
    for page in [markdown::render(&report), paceline_lab::csv::render(&report)] {
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }
    let kinds: Vec<Finding> = report.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Finding::Idle, Finding::Communication], "{:?}", report.findings);
    let idle = &report.findings[0];
    assert!(idle.text.contains("30 % of their time") && idle.text.contains("93 % of it nothing was queued"));
    assert!(near(idle.lost_s.expect("time"), 40.0 * 2.0 * 300e-6));
}

#[test]
fn details_of_traces_are_kept_in_the_study_and_in_every_report_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = run(2, 40, None);
    run.warnings.push("one thing was <guessed>".into());
    let kept = run.origin();
    let report = import(&[("traces".into(), run)], folder.path());
    assert_eq!(report.cases[0].origin.as_ref(), Some(&kept), "read as it was written");
    let forms = [
        terminal::render_report(&report, terminal::Screen::PLAIN),
        markdown::render(&report),
        paceline_lab::html::render(&report),
    ];
    // Rank 1 comes 50 us late to each collective, which then moves bytes for 50 us.
    for form in &forms {
        for expected in [
            "share a clock",
            "the other waited 0.1 ms for rank 1",
            "kernel",
            "all_reduce",
            "2.000",
            "4.000",
            "ms per step, by rank",
        ] {
            assert!(form.contains(expected), "{expected} in {form}");
        }
    }
    let flat = forms[0].split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("rank 0 0.60 0.10 0.30 rank 1 0.65 0.05 0.30"), "{}", forms[0]);
    assert!(forms[2].contains("<td>0.07</td>"), "exchange, though no work for it is known");
    assert!(forms[2].contains("Phases of each worker") && forms[2].contains("as far as its source shows it"));
    assert!(forms[0].contains("note: one thing was <guessed>") && forms[2].contains("&lt;guessed&gt;"));
    let case = serde_json::to_value(&report.cases[0]).expect("JSON");
    assert_eq!(case["origin"]["traced"]["collectives"][0]["waited"], 40 * 50 * US);
}

#[test]
fn a_damaged_account_of_the_source_costs_itself_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = [("traces".into(), run(2, 4, None))];
    import(&runs, folder.path());
    let (opened, study) = StudyFolder::open(folder.path()).expect("a study");
    for (damage, why) in [
        ("{\"version\":", "EOF"),
        (
            "{\"version\":9,\"format\":null,\"phases\":[],\"notes\":[],\"traced\":null,\"devices\":[]}",
            "import again",
        ),
    ] {
        fs::write(folder.path().join("traces").join(ORIGIN_FILE), damage).expect("a file");
        let case = opened.analyse(&study).cases.remove(0);
        assert_eq!((case.steps, case.origin), (4, None));
        let reason = case.reason.expect("it is said");
        assert!(reason.contains("skipped") && reason.contains(why), "{reason}");
    }
}

#[test]
fn a_phase_that_the_source_does_not_show_is_unknown_and_not_zero() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut log = run(1, 40, Some(8));
    // A log of rates: steps have lengths and examples, and that is all.
    log.traced = None;
    log.tells.clear();
    for step in &mut log.ranks[0].steps {
        step.phases = Default::default();
        (step.comm_busy, step.late_rank) = (Nanos(0), Nanos(0));
        step.buckets.clear();
    }
    let report = import(&[("log".into(), log)], folder.path());
    let case = serde_json::to_value(&report.cases[0]).expect("JSON");
    for phase in ["forward", "comm_wait", "update", "idle", "launch"] {
        assert!(
            case["phases_s"][phase].is_null() && case["ranks"][0]["phases_s"][phase].is_null(),
            "{phase}"
        );
    }
    assert!(case["phases_s"]["other"].is_number() && case["comm_busy_s"].is_null());
    assert_eq!(report.findings, [], "nobody said what the time went to");
    let page = terminal::render_report(&report, terminal::Screen::PLAIN);
    assert!(page.contains("case      workers  other\nresnet50        1  1.000\n"), "{page}");
}

#[test]
fn advice_is_in_terms_of_the_program_that_ran() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = |format: Option<Format>, name: &str| {
        let mut run = run(2, 40, None);
        (run.format, run.case.update) = (format, Some("allreduce".into()));
        import(&[(name.into(), run)], &folder.path().join(name)).findings
    };
    for (format, word) in [
        (Some(Format::Kineto), "no_sync"),
        (Some(Format::Horovod), "HOROVOD_CYCLE_TIME"),
        (Some(Format::Sqlite), "NVTX"),
        (None, "16-bit"),
    ] {
        let findings = found(format, word);
        let advice: String = findings.iter().map(|found| found.advice.as_str()).collect();
        assert!(advice.contains(word) && !advice.contains("--"), "{format:?}: {advice}");
    }
}

#[test]
fn with_a_batch_there_are_rates_and_speed_ups() {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = [("one".into(), run(1, 40, Some(8))), ("two".into(), run(2, 40, Some(8)))];
    let report = import(&runs, folder.path());
    let rate = |place: usize| report.cases[place].images_per_s.expect("examples are known").mean;
    assert!((rate(0) - 8000.0).abs() < 1e-6 && (rate(1) - 16_000.0).abs() < 1e-6);
    assert!(report.cases[1].speedup_speed.is_some_and(|speedup| (speedup - 2.0).abs() < 1e-9));
    assert_eq!(report.explained[0].waterfalls.len(), 1);
    assert!(!terminal::render_report(&report, terminal::Screen::PLAIN).contains("NaN"));
}

#[test]
fn a_folder_that_holds_something_else_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("thesis.tex"), "dear").expect("a file");
    let runs = [("one".into(), run(1, 3, None))];
    let refused = write(&runs, &[], folder.path(), Held::Replace);
    assert!(matches!(refused, Err(LabError::NotAStudy { .. })));
    assert!(folder.path().join("thesis.tex").exists());
}

#[test]
fn another_study_is_replaced_only_where_that_was_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = ([("one".into(), run(1, 3, None))], [("two".into(), run(1, 4, None))]);
    import(&first, folder.path());
    import(&first, folder.path());
    let refused = write(&second, &[], folder.path(), Held::Resume);
    assert!(matches!(refused, Err(LabError::Exists { .. })));
    write(&second, &[], folder.path(), Held::Replace).expect("asked for");
    assert!(!folder.path().join("one").exists() && folder.path().join("two").exists());
    assert!(!folder.path().join(".draft-case").exists());
}

#[test]
fn runs_of_one_name_and_odd_names_have_folders_of_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let names = ["a/../b.json", "a/../b.json", "", "tensorboard", "study.json"];
    let runs: Vec<(String, Imported)> = names.iter().map(|&name| (name.into(), run(1, 3, None))).collect();
    let (_, study) = write(&runs, &[], folder.path(), Held::Resume).expect("a new folder");
    let folders: Vec<&str> = study.cases.iter().map(|planned| planned.folder.as_str()).collect();
    assert_eq!(folders, ["a----b-json", "a----b-json-2", "run", "tensorboard-2", "study-json"]);
}

#[test]
fn ranks_that_do_not_fit_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("study");
    let mut uneven = run(2, 4, None);
    uneven.ranks[1].steps.pop();
    let refused =
        write(&[("odd".into(), uneven)], &[], &out, Held::Resume).expect_err("three and four steps");
    assert!(refused.to_string().contains("rank 1 has 3 steps, rank 0 has 4"), "{refused}");
    assert!(!out.exists());
}

#[test]
fn the_advice_on_an_idle_device_is_by_its_cause() {
    let found = |launch: Option<fn(u64) -> u64>, busy: bool| {
        let mut draft = Draft::default();
        let (host, stream) = (draft.thread(), draft.stream());
        for step in 0..4 {
            let time = ((step * 1000 + 600) * US, (step * 1000 + 1000) * US);
            draft.step(step, (step * 1000 * US, (step * 1000 + 1000) * US));
            match launch {
                Some(at) => {
                    draft.launched((host, stream), Kind::Compute, (at(step) * US, (at(step) + 1) * US), time)
                }
                None => _ = draft.slice(stream, Kind::Compute, "gemm", time),
            }
        }
        if busy {
            draft.slice(host, Kind::Operator, "aten::add", (0, 4000 * US));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let run = join(vec![draft.trace()], &Told::default()).expect("one rank");
        let findings = import(&[("run".into(), run)], folder.path()).findings;
        let idle = findings.into_iter().find(|finding| finding.kind == Finding::Idle).expect("60 % idle");
        (idle.text, idle.advice)
    };
    let (text, advice) = found(Some(|_| 0), false);
    assert!(
        text.contains("queued work did not begin") && advice.contains("events between streams"),
        "{text}"
    );
    let (text, advice) = found(Some(|step| step * 1000 + 598), true);
    assert!(text.contains("100 % of it the host was late") && advice.contains("CUDA graphs"), "{text}");
    let (text, advice) = found(Some(|step| step * 1000 + 598), false);
    assert!(text.contains("100 % of it nothing was queued") && advice.contains("loader workers"), "{text}");
    let (text, advice) = found(None, false);
    assert!(text.contains("100 % of it the trace does not show why") && advice.contains("launch"), "{text}");
}

#[test]
fn a_rank_whose_trace_begins_later_is_not_said_to_start_up() {
    let traced = |begin: u64| {
        let mut draft = Draft::default();
        let stream = draft.stream();
        draft.slice(stream, Kind::Compute, "gemm", (begin * US, 1000 * US));
        (draft.0.clock, draft.0.host) = (Clock::Epoch, Some("host".into()));
        draft.trace()
    };
    let run = join(vec![traced(0), traced(600)], &Told::default()).expect("two ranks");
    let folder = tempfile::tempdir().expect("a folder");
    let report = import(&[("run".into(), run)], &folder.path().join("study"));
    let texts: Vec<&str> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
    assert!(!texts.iter().any(|text| text.contains("starting up")), "{texts:?}");
    let cost = report.cases[0].cost.as_ref().expect("steps");
    let of = |cause: Cause| cost.parts.iter().find(|part| part.cause == cause).map(|part| part.seconds);
    assert!(of(Cause::Other).is_some_and(|seconds| (seconds - 300e-6).abs() < 1e-9), "{:?}", cost.parts);
}

#[test]
fn copies_of_results_are_no_input_and_a_run_need_not_train_on_images() {
    let found = |kind: Kind| {
        let mut draft = Draft::default();
        let stream = draft.stream();
        for step in 0..30 {
            let at = |from, to| ((step * 1000 + from) * US, (step * 1000 + to) * US);
            draft.step(step, at(0, 1000));
            draft.slice(stream, Kind::Compute, "gemm", at(0, 700));
            draft.slice(stream, kind, "copy", at(700, 1000));
        }
        let run = join(vec![draft.trace()], &Told::default()).expect("one rank");
        let folder = tempfile::tempdir().expect("a folder");
        let findings = import(&[("run".into(), run)], &folder.path().join("study")).findings;
        let input = findings.into_iter().find(|finding| finding.kind == Finding::Input).expect("30 %");
        (input.text, input.advice)
    };
    let (text, advice) = found(Kind::CopyIn);
    assert!(
        text.contains("30 %") && text.contains("waiting for input") && !advice.contains("images"),
        "{advice}"
    );
    let (text, _) = found(Kind::CopyOut);
    assert!(text.contains("30 %") && text.contains("copying results out"), "{text}");
}
