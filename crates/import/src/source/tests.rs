use paceline_lab::{Held, html, terminal};

use super::*;
use crate::sample::sample;
use crate::write;

#[test]
fn numbers_in_names_count_as_numbers() {
    let mut names = ["rank-10.json", "rank-2.json", "rank-1.json", "a", "rank-"];
    names.sort_by_key(|name| natural(name));
    assert_eq!(names, ["a", "rank-", "rank-1.json", "rank-2.json", "rank-10.json"]);
}

#[test]
fn a_named_file_that_is_nothing_known_is_refused_and_one_in_a_folder_passed_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let notes = folder.path().join("notes.txt");
    fs::write(&notes, "buy milk").expect("a file");
    let told = Told::default();
    let named = import(&[notes], &told).expect_err("no trace").to_string();
    assert!(named.contains("notes.txt") && named.contains("PyTorch"), "{named}");
    let inside = import(&[folder.path().into()], &told).expect_err("no trace").to_string();
    assert!(inside.contains("no run is in it") && inside.contains("notes.txt"), "{inside}");
    import(&[folder.path().join("nowhere")], &told).expect_err("no such file");
}

/// A trace of a rank with two steps of 10 ms in which it computes for 6 ms.
fn trace(rank: u32, world: u32) -> String {
    let step = |n: u64| {
        let begin = 1_000_000 + 10_000 * n;
        format!(
            r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{n}","pid":1,"tid":1,"ts":{begin},"dur":10000}},
            {{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":{begin},"dur":6000,"args":{{"device":0,"stream":7}}}}"#
        )
    };
    format!(
        r#"{{"schemaVersion":1,"distributedInfo":{{"backend":"nccl","rank":{rank},"world_size":{world}}},"traceEvents":[{},{}]}}"#,
        step(0),
        step(1)
    )
}

#[test]
fn one_bad_file_of_a_folder_is_named_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).expect("a file");
    write("rank0.json", trace(0, 3).as_bytes());
    write("rank1.json", trace(1, 3).as_bytes());
    write("rank2.sqlite", b"SQLite format 3\0torn right after its head");
    write("notes.txt", b"buy milk");
    let runs = import(&[folder.path().into()], &Told::default()).expect("two ranks of three");
    let [(_, run)] = runs.as_slice() else { panic!("one run") };
    assert_eq!(run.case.workers, 2);
    for expected in ["rank2.sqlite", "notes.txt", "2 of 3 ranks"] {
        assert!(
            run.warnings.iter().any(|warning| warning.contains(expected)),
            "{expected}: {:?}",
            run.warnings
        );
    }
    // Named by itself it is an error, and so is a folder of which nothing is left.
    let alone =
        import(&[folder.path().join("rank2.sqlite")], &Told::default()).expect_err("torn").to_string();
    assert!(alone.contains("rank2.sqlite"), "{alone}");
    for name in ["rank0.json", "rank1.json"] {
        fs::remove_file(folder.path().join(name)).expect("it was written");
    }
    write("rank1.json", trace(1, 3).as_bytes());
    write("rank0.json", br#"{"schemaVersion":1,"deviceProperties":[],"traceEvents":[]}"#);
    let runs = import(&[folder.path().into()], &Told::default()).expect("one rank of three");
    assert!(runs[0].1.warnings.iter().any(|warning| warning.contains("rank0.json: it is empty")));
    let empty =
        import(&[folder.path().join("rank0.json")], &Told::default()).expect_err("no work").to_string();
    assert!(empty.contains("rank0.json: it is empty"), "{empty}");
    for name in ["rank0.json", "rank1.json"] {
        fs::remove_file(folder.path().join(name)).expect("it was written");
    }
    let nothing = import(&[folder.path().into()], &Told::default()).expect_err("nothing is left").to_string();
    assert!(nothing.contains("rank2.sqlite"), "{nothing}");
}

#[test]
fn a_study_is_not_read_back_as_runs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (traces, out) = (folder.path().to_path_buf(), folder.path().join("study"));
    fs::write(traces.join("rank0.json"), trace(0, 2)).expect("a file");
    fs::write(traces.join("rank1.json"), trace(1, 2)).expect("a file");
    let runs = import(std::slice::from_ref(&traces), &Told::default()).expect("two ranks");
    let (study, asked) = write::write(&runs, &[], &out, Held::Resume).expect("a study");
    study.write_tensorboard(&study.read_case(&asked, 0).expect("its logs")).expect("event files");
    let again = import(&[traces], &Told::default()).expect("the same two ranks");
    assert_eq!(again.len(), 1, "{:?}", again.iter().map(|(name, _)| name).collect::<Vec<_>>());
    let named = import(&[out], &Told::default()).expect_err("a study").to_string();
    assert!(named.contains("is already a study"), "{named}");
}

/// A metric.log of a worker at this rate.
fn metric_log(rate: f64) -> String {
    let line = |step: u32| {
        let second = f64::from(step) * 64.0 / rate;
        format!(
            r#"{{"name": "current_examples_per_sec", "value": {rate}, "unit": null, "global_step": {step}, "timestamp": "2018-10-04T09:{:02}:{:09.6}Z", "extras": []}}"#,
            (second / 60.0) as u32,
            second % 60.0
        )
    };
    (1..40).map(|step| line(10 * step) + "\n").collect()
}

#[test]
fn workers_are_inferred_from_the_name_of_a_folder_with_a_note() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let import_rates = |rates: &[(&str, f64)]| {
        for (name, rate) in rates {
            let place = folder.path().join(name);
            fs::create_dir_all(&place).expect("a folder");
            fs::write(place.join("metric.log"), metric_log(*rate)).expect("a file");
        }
        let mut runs = import(&[folder.path().into()], &Told::default()).expect("logs");
        fs::remove_dir_all(folder.path()).expect("it was made");
        runs.sort_by_key(|(_, run)| run.case.workers);
        runs.into_iter().map(|(_, run)| run).collect::<Vec<_>>()
    };
    let rate = |run: &Imported| named::rate(run).expect("rates");
    let own = import_rates(&[("workers_1", 100.0), ("workers_4", 95.0)]);
    assert_eq!((own[1].case.workers, own[1].case.batch_per_worker), (4, Some(64)));
    assert!((rate(&own[1]) - 4.0 * 95.0).abs() < 1e-6, "each does as much as one");
    assert!(own[1].warnings.iter().any(|warning| warning.contains("only the name says there are 4 workers")));
    let global = import_rates(&[("workers_1", 100.0), ("workers_4", 380.0)]);
    assert!((rate(&global[1]) - 380.0).abs() < 1e-6, "they share what one does");
    assert_eq!(global[1].case.batch_per_worker, Some(16));
    assert!(global[1].warnings.iter().any(|warning| warning.contains("as that of all")));
}

#[test]
fn the_sample_of_two_workers_is_shown_as_two() {
    let Some(samples) = sample("tensorboard") else { return };
    let runs = import(&[samples], &Told::default()).expect("event files");
    let workers: Vec<u32> = runs.iter().map(|(_, run)| run.case.workers).collect();
    assert_eq!(workers, [1, 2]);
    let timed = |run: &Imported| run.progress.as_ref().expect("rates").is_timed();
    assert!(!runs.iter().any(|(_, run)| timed(run)), "their moments do not agree with their rates");
}

/// Where rates come without moments there are no times, until a batch is told.
#[test]
fn rates_alone_are_compared_and_have_no_seconds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, rates) in [("workers_1", [30.0, 100.0]), ("workers_2", [25.0, 90.0])] {
        // The first of forty points are slower.
        let line = |step: usize| {
            let rate = rates[usize::from(step > 8)];
            format!(
                r#"{{"name": "current_examples_per_sec", "value": {rate}, "global_step": {step}, "timestamp": null}}"#
            )
        };
        let text: String = (1..=40).map(|step| line(step) + "\n").collect();
        fs::create_dir(folder.path().join(name)).expect("a folder");
        fs::write(folder.path().join(name).join("metric.log"), text).expect("a file");
    }
    let study = |batch: Option<u64>| {
        let runs = import(&[folder.path().into()], &Told { model: "lenet".into(), batch }).expect("logs");
        let out = tempfile::tempdir().expect("a temporary folder");
        let (folder, study) = write::write(&runs, &[], out.path(), Held::Resume).expect("a study");
        folder.analyse(&study)
    };
    let (rates, told) = (study(None), study(Some(32)));
    for (report, known) in [(&rates, false), (&told, true)] {
        let two = report.cases.iter().find(|case| case.case.workers == 2).expect("two workers");
        assert!((two.images_per_s.expect("rates").mean - 180.0).abs() < 1.0, "{:?}", two.images_per_s);
        assert!((two.speedup_speed.expect("compared") - 1.8).abs() < 0.01);
        assert_eq!((two.train_s.is_some(), two.step_times.is_some()), (known, known));
        assert_eq!((two.speedup_time.is_some(), two.dispersion.is_some()), (known, known));
        assert_eq!((&two.phases_s, &two.ranks, &two.cost), (&None, &None, &None), "a log does not tell");
        assert_eq!(two.steady.expect("points").from_step, 8, "the first points are slower");
        let text = terminal::render_report(report, terminal::Screen::PLAIN);
        assert_eq!(text.contains("only rates are known"), !known, "{text}");
        assert!(text.contains("1.80x") && !text.contains("Phases"), "{text}");
        assert!(text.contains("None: what most of the time was spent on is not known."), "{text}");
        for page in [paceline_lab::html::render(report), paceline_lab::markdown::render(report)] {
            assert!(page.contains("1.80") && !page.contains("NaN"), "{page}");
        }
    }
    let two = told.cases.iter().find(|case| case.case.workers == 2).expect("two workers");
    let expected = 32.0 * (8.0 / 25.0 + 32.0 / 90.0);
    assert!((two.train_s.expect("told") - expected).abs() < 1e-6, "{:?}", two.train_s);
    assert_eq!(two.case.batch_per_worker, Some(32));
}

#[test]
fn a_given_batch_turns_a_log_of_losses_into_rates() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = |step: u32| {
        format!(
            r#"{{"name": "loss", "value": 2.0, "global_step": {}, "timestamp": "2018-10-04T09:00:{step:02}Z"}}"#,
            10 * step
        )
    };
    let text: String = (1..30).map(|step| line(step) + "\n").collect();
    let log = folder.path().join("metric.log");
    fs::write(&log, text).expect("a file");
    let examples = |batch: Option<u64>| {
        let runs = import(std::slice::from_ref(&log), &Told { model: "lenet".into(), batch }).expect("a log");
        let run = &runs[0].1;
        let unknown = run.warnings.iter().any(|warning| warning.contains("give --batch to get rates"));
        (run.progress.as_ref().expect("times").points[5].examples_per_s, unknown)
    };
    assert_eq!((examples(None), examples(Some(32))), ((None, true), (Some(320.0), false)));
}

#[test]
fn traces_of_one_worker_and_of_two_are_compared() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (world, name) in [(2, "a"), (1, "b")] {
        fs::create_dir(folder.path().join(name)).expect("a folder");
        for rank in 0..world {
            let text = trace(rank, world);
            // One worker alone knows nothing of a backend.
            let alone = text.replace(r#""backend":"nccl","rank":0,"world_size":1"#, r#""rank":0"#);
            fs::write(folder.path().join(format!("{name}/{rank}")), alone).expect("a file");
        }
    }
    // Named one by one, or the folder that holds them: rank 0 is there twice, so they are two runs.
    let told = Told { model: "lenet".into(), batch: Some(8) };
    let together = import(&[folder.path().into()], &told).expect("two runs");
    let runs = import(&["a", "b"].map(|name| folder.path().join(name)), &told).expect("two runs");
    for runs in [&together, &runs] {
        let names: Vec<_> = runs.iter().map(|(name, run)| (name.as_str(), run.case.workers)).collect();
        assert_eq!(names, [("b", 1), ("a", 2)], "the fewest first");
    }
    let (study_folder, study) =
        write::write(&runs, &[], &folder.path().join("study"), Held::Resume).expect("a study");
    let report = study_folder.analyse(&study);
    assert!((report.cases[1].speedup_speed.expect("compared") - 2.0).abs() < 1e-9);
    let page = paceline_lab::html::render(&report);
    assert!(
        page.contains("by images/s") && !page.contains("d=\"\""),
        "no line for a whole run that is not known"
    );
}

#[cfg(unix)]
#[test]
fn links_that_lead_in_circles_and_pipes_do_no_harm() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let inside = folder.path().join("run");
    fs::create_dir(&inside).expect("a folder");
    fs::write(inside.join("rank0.json"), trace(0, 1)).expect("a file");
    std::os::unix::fs::symlink(&inside, inside.join("again")).expect("a link");
    let made = std::process::Command::new("mkfifo").arg(inside.join("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe that nobody writes to");
    let named = inside.join("rank0.json");
    for paths in [vec![inside.clone()], vec![inside, named]] {
        let runs = import(&paths, &Told::default()).expect("one trace");
        assert_eq!((runs.len(), runs[0].1.ranks.len()), (1, 1), "each file once");
    }
}

/// What a rank of a job of tf_cnn_benchmarks writes: its header to standard error, its lines to standard output.
fn job_files(rank: u32) -> (String, String) {
    let devices: Vec<String> = (0..60).map(|device| format!("'horovod/gpu:{device}'")).collect();
    let log = "I0502 12:00:00.000000 140037 tf_logging.py:115] ";
    let header = [
        "Model:       resnet50".to_owned(),
        "Dataset:     imagenet (synthetic)".into(),
        "Batch size:  3840 global".into(),
        "             64 per device".into(),
        format!("Devices:     [{}]", devices.join(", ")),
        "Variables:   horovod".into(),
    ];
    let header = header.iter().map(|line| format!("{log}{line}\n")).collect();
    let rate = 100.0 + f64::from(rank);
    let lines =
        (1..=10).map(|at| format!("{}\timages/sec: {rate:.1} +/- 0.1 (jitter = 0.2)\t7.5\n", 10 * at));
    (header, lines.collect())
}

#[test]
fn the_files_of_all_ranks_of_a_job_are_one_run() {
    let sum: f64 = (0..60).map(|rank| 100.0 + f64::from(rank)).sum();
    // As mpirun names them today and as it did, with what it printed itself beside them.
    for names in [("1/rank.00/stderr", "1/rank.00/stdout"), ("err.1.00", "out.1.00")] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path().join("np60");
        let mut all = String::new();
        for rank in 0..60 {
            let (header, lines) = job_files(rank);
            all += &format!("{header}{lines}");
            for (name, text) in [(names.0, header), (names.1, lines)] {
                let path = root.join(name.replace("00", &format!("{rank:02}")));
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
        }
        fs::write(root.join("job.log"), all).expect("a file");
        let runs = import(&[folder.path().into()], &Told::default()).expect("a job");
        let [(name, run)] = runs.as_slice() else { panic!("{} runs", runs.len()) };
        assert_eq!((name.as_str(), run.case.workers, run.case.batch_per_worker), ("np60", 60, Some(64)));
        let rate = named::rate(run).expect("rates");
        assert!((rate / sum - 1.0).abs() < 1e-6, "{rate} for {sum}");
        assert!(run.warnings.len() < 8, "{:?}", run.warnings);
        assert!(run.warnings.iter().any(|warning| warning.contains("job.log repeats lines of the ranks")));
    }
}

#[test]
fn logs_that_are_only_numbered_are_runs_of_their_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, rank) in [("run1.log", 1), ("run2.log", 2), ("tf.1.15", 3)] {
        let (header, lines) = job_files(rank);
        fs::write(folder.path().join(name), header + &lines).expect("a file");
    }
    assert_eq!(import(&[folder.path().into()], &Told::default()).expect("logs").len(), 3);
    // Two jobs of two ranks each.
    for (name, rank) in
        [("a/rank.0/stdout", 0), ("a/rank.1/stdout", 1), ("b/rank.0/stdout", 0), ("b/rank.1/stdout", 1)]
    {
        let path = folder.path().join("jobs").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let (header, lines) = job_files(rank);
        fs::write(path, header + &lines).expect("a file");
    }
    let runs = import(&[folder.path().join("jobs")], &Told::default()).expect("logs");
    assert_eq!(runs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_file_that_is_not_read_is_named_in_one_short_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes, expected) in [
        (
            "pretty.json",
            format!("{{\n  \"{}\": 1\n}}", "x".repeat(60_000)).into_bytes(),
            "JSON that is no trace",
        ),
        ("x.ncu-rep", b"NVR\0\x40\0\0\0".to_vec(), "Nsight Compute"),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("a file");
        let said = import(&[path], &Told::default()).expect_err("not read").to_string();
        let why = said.split_once(name).expect("its name").1;
        assert!(why.contains(expected) && why.len() < 250, "{said}");
    }
}

#[test]
fn an_event_file_of_other_things_is_refused_with_what_it_holds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let line = r#"{"name": "accuracy", "value": 0.5, "global_step": 1, "timestamp": null}"#;
    let path = folder.path().join("metric.log");
    fs::write(&path, format!("{line}\n")).expect("a file");
    let said = import(&[path], &Told::default()).expect_err("no speed").to_string();
    assert!(said.contains("it says nothing about speed") && said.contains("accuracy"), "{said}");
    assert!(!said.contains("paceline explain"), "{said}");
}

#[test]
fn traces_of_a_folder_that_form_no_run_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, begin) in [("a.json", "1700000000000000"), ("b.json", "1700009000000000")] {
        let text = format!(
            r#"{{"schemaVersion":1,"traceEvents":[{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{begin},"dur":2}}]}}"#
        );
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let said = import(&[folder.path().into()], &Told::default()).expect_err("no run").to_string();
    assert!(
        said.contains("a.json, b.json (these traces do not form one run: they were not recorded"),
        "{said}"
    );
}

#[test]
fn a_table_and_a_pipe_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let table = folder.path().join("table.csv");
    fs::write(&table, "workers,rate\n1,2\n").expect("a file");
    let refuse = |path: &Path| import(&[path.into()], &Told::default()).expect_err("no run").to_string();
    assert!(refuse(&table).contains("`paceline explain` reads tables"), "{}", refuse(&table));
    let device = refuse(Path::new("/dev/null"));
    assert!(device.contains("not a regular file"), "{device}");
}

#[test]
fn events_after_other_members_are_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.json");
    for (category, format) in [("cpu_op", Format::Kineto), ("x", Format::Chrome)] {
        for length in [HEAD - 40, HEAD, 3 * HEAD + 7] {
            let text = format!(
                r#"{{"otherData":"{}","traceEvents":[{{"ph":"X","cat":"{category}","name":"a","pid":1,"tid":1,"ts":1,"dur":2}}]}}"#,
                "x".repeat(length)
            );
            fs::write(&path, text).expect("a file");
            assert_eq!(recognise(&path).expect("a file"), Some(format), "{length}");
        }
    }
    fs::write(&path, format!(r#"{{"otherData":"{}"}}"#, "x".repeat(3 * HEAD))).expect("a file");
    assert_eq!(recognise(&path).expect("a file"), None);
}

#[test]
fn the_name_of_a_folder_says_how_many_ranks_a_timeline_without_arrivals_has() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let exchanges = (0..3).map(|step: u32| {
        let at = 1000 * step;
        format!(r#"{{"ph":"B","name":"ALLREDUCE","ts":{at},"pid":1}},{{"ph":"E","ts":{},"pid":1}}"#, at + 100)
    });
    let text = format!("[{}]", exchanges.collect::<Vec<_>>().join(","));
    for (name, ranks) in [("job", "1 of an unknown number"), ("workers_4", "1 of 4")] {
        let path = folder.path().join(name);
        fs::create_dir(&path).expect("a folder");
        fs::write(path.join("t.json"), &text).expect("a file");
        let runs = import(&[path], &Told::default()).expect("a run");
        assert_eq!(runs[0].1.case.settings["ranks"], ranks);
        let (written, study) =
            write::write(&runs, &[], &folder.path().join("study"), Held::Replace).expect("room");
        let report = written.analyse(&study);
        let text = terminal::render_report(&report, terminal::Screen::PLAIN);
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words.contains("Results case workers"), name != "job", "{text}");
        let page = html::render(&report);
        let json = serde_json::to_value(&report).expect("a report is JSON");
        if name == "job" {
            assert!(!text.contains("1 worker") && !page.contains("1 worker"), "{text}\n{page}");
            assert!(page.contains("1 of an unknown number of workers"), "{page}");
        } else {
            assert!(page.contains("1 of 4 workers") && words.contains("1 of 4"), "{text}\n{page}");
        }
        assert!(json["cases"][0]["workers"].is_null());
    }
}

#[test]
fn a_folder_without_a_run_is_refused_in_one_line_that_says_what_its_files_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refuse = || {
        let said = import(&[folder.path().into()], &Told::default()).expect_err("no run").to_string();
        assert!(!said.contains("paceline explain") && !said.contains('\n'), "{said}");
        said
    };
    assert!(refuse().contains("no file is in it"));
    let trace = r#"{"traceEvents":[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]}"#;
    for name in ["a.json", "b.json"] {
        fs::write(folder.path().join(name), trace).expect("a file");
    }
    assert!(
        refuse().contains(
            "a.json, b.json (a Chrome trace of a program that is not known: steps are not looked for"
        ),
        "{}",
        refuse()
    );
    let empty = r#"{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"user_annotation","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]}"#;
    fs::write(folder.path().join("c.json"), empty).expect("a file");
    fs::write(folder.path().join("d.csv"), "workers,rate\n1,2\n").expect("a file");
    for kind in ["c.json (there is a trace without kernels", "d.csv (text;", "a.json, b.json (a Chrome"] {
        assert!(refuse().contains(kind), "{kind}: {}", refuse());
    }
    fs::create_dir(folder.path().join("deep")).expect("a folder");
    fs::write(folder.path().join("deep/d.csv"), "").expect("a file");
    assert!(refuse().contains("deep/d.csv (empty); d.csv (text;"), "{}", refuse());
}
