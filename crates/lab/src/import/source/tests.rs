use super::*;
use crate::import::sample::sample;

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
    assert!(inside.contains("no file in it") && inside.contains("notes.txt"), "{inside}");
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
    let nothing = import(&[folder.path().into()], &Told::default()).expect_err("nothing is left").to_string();
    assert!(nothing.contains("rank2.sqlite"), "{nothing}");
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
fn workers_are_inferred_from_the_name_of_a_folder_and_said_to_be() {
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
    let all = |run: &Imported| -> u64 {
        run.ranks.iter().flat_map(|rank| &rank.steps).map(|step| step.examples).sum()
    };
    let own = import_rates(&[("workers_1", 100.0), ("workers_4", 95.0)]);
    assert_eq!((own[1].case.workers, own[1].ranks.len()), (4, 4));
    assert_eq!(all(&own[1]), 4 * all(&own[0]), "each does as much as one");
    assert!(own[1].warnings.iter().any(|warning| warning.contains("the name says 4 workers")));
    let global = import_rates(&[("workers_1", 100.0), ("workers_4", 380.0)]);
    assert_eq!(all(&global[1]), all(&global[0]), "they share what one does");
    assert!(global[1].warnings.iter().any(|warning| warning.contains("that of all")));
}

#[test]
fn the_sample_of_two_workers_is_shown_as_two() {
    let Some(samples) = sample("tensorboard") else { return };
    let runs = import(&[samples], &Told::default()).expect("event files");
    let workers: Vec<u32> = runs.iter().map(|(_, run)| run.case.workers).collect();
    assert_eq!(workers, [1, 2]);
}
