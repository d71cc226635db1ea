use std::fmt::Write;

use paceline_lab::origin::LogPoint;

use super::*;
use crate::sample::file_of;

const HEADER: &str = "TensorFlow:  1.15
Model:       resnet50
Dataset:     imagenet (synthetic)
Mode:        training
SingleSess:  False
Batch size:  128 global
             64 per device
Num batches: 100
Num epochs:  0.01
Devices:     ['/gpu:0', '/gpu:1']
NUMA bind:   False
Data format: NCHW
Optimizer:   sgd
Variables:   replicated
AllReduce:   nccl
==========
Generating training model
Running warm up
Done warm up
Step\tImg/sec\ttotal_loss
";

/// Lines of a process whose steps take these seconds, every ten.
fn lines(batch: f64, times: &[f64]) -> String {
    let mut text = String::new();
    for shown in (1..=times.len()).filter(|&step| step == 1 || step % 10 == 0) {
        let mean = times[..shown].iter().sum::<f64>() / shown as f64;
        let _ = writeln!(
            text,
            "{shown}\timages/sec: {:.1} +/- 0.1 (jitter = 0.2)\t{:.3}",
            batch / mean,
            8.0 - shown as f64 / 100.0
        );
    }
    text
}

fn total(rate: f64) -> String {
    format!("{}\ntotal images/sec: {rate:.2}\n{}\n", "-".repeat(64), "-".repeat(64))
}

fn import_text(text: &str) -> Vec<Imported> {
    import(&[(file_of(text).path(), None)]).expect("a log")
}

fn told(run: &Imported) -> &[LogPoint] {
    &run.progress.as_ref().expect("a log that tells something").points
}

/// Steps, seconds and examples of all points together.
fn sums(run: &Imported) -> (u64, f64, f64) {
    let seconds = |point: &LogPoint| point.seconds.expect("a batch");
    let examples = |point: &LogPoint| point.examples_per_s.expect("a rate") * seconds(point);
    let points = told(run);
    (
        points.iter().map(|point| point.covers).sum(),
        points.iter().map(seconds).sum(),
        points.iter().map(examples).sum(),
    )
}

fn has(run: &Imported, words: &str) -> bool {
    run.warnings.iter().any(|warning| warning.contains(words))
}

#[test]
fn the_header_gives_the_case_and_each_device_is_a_worker() {
    let text = format!("{HEADER}{}{}", lines(128.0, &[0.5; 40]), total(256.0));
    assert!(recognise(text.as_bytes()) && recognise(HEADER.as_bytes()));
    let runs = import_text(&text);
    let [run] = runs.as_slice() else { panic!("one run") };
    let case = &run.case;
    assert_eq!((case.model.as_str(), case.workers, case.batch_per_worker), ("resnet50", 2, Some(64)));
    assert_eq!((case.layout.as_deref(), case.update.as_deref()), (Some("nchw"), Some("allreduce")));
    assert_eq!((case.precision.as_ref(), case.settings["data"].as_str()), (None, "imagenet (synthetic)"));
    let (steps, seconds, examples) = sums(run);
    assert!(steps == 40 && (seconds - 20.0).abs() < 1e-6 && (examples - 40.0 * 128.0).abs() < 1e-6);
    assert_eq!(told(run).last().expect("points").loss, Some(7.6));
    assert!(run.ranks.is_empty() && has(run, "warm-up") && !has(run, "total"), "{:?}", run.warnings);
}

#[test]
fn interval_rates_come_back_from_cumulative_means() {
    let times: Vec<f64> = (0..100).map(|step| if step < 50 { 0.25 } else { 0.5 }).collect();
    let header = HEADER.replace("128 global", "12800 global").replace("64 per", "6400 per");
    let runs = import_text(&format!("{header}{}", lines(12_800.0, &times)));
    let points = told(&runs[0]);
    assert_eq!(points.len(), 11);
    for (point, seconds) in points[1..].iter().zip([2.25, 2.5, 2.5, 2.5, 2.5, 5.0, 5.0, 5.0, 5.0, 5.0]) {
        let found = point.seconds.expect("a batch");
        assert!((found / seconds - 1.0).abs() < 1e-3, "{found} for {seconds}");
    }
}

#[test]
fn lines_that_rounding_blurs_are_taken_together_and_the_whole_stays_exact() {
    let runs = import_text(&format!("{HEADER}{}", lines(1.0, &[0.5; 1000])));
    assert!(told(&runs[0]).len() < 10 && has(&runs[0], "lines are merged"));
    let (steps, seconds, _) = sums(&runs[0]);
    assert!(steps == 1000 && (seconds - 1000.0 * 128.0 * 0.5).abs() < 1e-3, "{seconds}");
}

#[test]
fn under_horovod_a_process_is_a_worker_with_or_without_tags() {
    let header = HEADER
        .replace("['/gpu:0', '/gpu:1']", "['horovod/gpu:0', 'horovod/gpu:1']")
        .replace("replicated", "horovod");
    let (one, two) = (lines(64.0, &[0.5; 20]), lines(64.0, &[0.25; 20]));
    let tag = |rank, text: &str| {
        text.lines().map(|line| format!("[1,{rank}]<stdout>:{line}\n")).collect::<String>()
    };
    let tagged = format!("{}{}{}{}", tag(1, &header), tag(0, &header), tag(1, &two), tag(0, &one));
    assert!(recognise(tagged.as_bytes()));
    let woven: String = one.lines().zip(two.lines()).map(|(one, two)| format!("{one}\n{two}\n")).collect();
    for (text, named) in [(tagged, true), (format!("{header}{header}{woven}"), false)] {
        let runs = import_text(&text);
        assert_eq!((runs.len(), runs[0].case.workers), (1, 2));
        assert_eq!(runs[0].case.update.as_deref(), Some("allreduce"));
        let rate = told(&runs[0])[0].examples_per_s.expect("a rate");
        assert!((rate - (128.0 + 256.0)).abs() < 1e-6, "{rate}");
        assert_eq!(has(&runs[0], "without naming them"), !named);
    }
    let alone = import_text(&format!("{header}{one}{}", total(300.0)));
    assert_eq!(alone[0].case.workers, 2);
    assert!(has(&alone[0], "lines of 1 of 2 processes"));
    assert!(has(&alone[0], "total is 300.00 images/s by the clock, but its lines give 256.00"));
}

#[test]
fn several_runs_in_one_log_are_separate() {
    let one = format!("{HEADER}{}{}", lines(128.0, &[0.5; 10]), total(256.0));
    let runs = import_text(&format!("{one}{}", one.replace("resnet50", "vgg19")));
    let models: Vec<&str> = runs.iter().map(|run| run.case.model.as_str()).collect();
    assert_eq!(models, ["resnet50", "vgg19"]);
}

#[test]
fn a_log_without_header_keeps_its_rates() {
    let text =
        "I0101 10:00:00.000000 139 benchmark_cnn.py:2093] 10\timages/sec: 53.0 +/- 0.0 (jitter = 0.1)\tnan\n";
    assert!(recognise(text.as_bytes()));
    let runs = import_text(text);
    let point = told(&runs[0])[0];
    assert_eq!((point.step, point.covers, point.seconds, point.loss), (10, 10, None, None));
    assert!((point.examples_per_s.expect("a rate") - 53.0).abs() < 1e-9);
    assert_eq!(runs[0].case.batch_per_worker, None);
}

#[test]
fn what_is_no_log_is_one_clear_error() {
    for text in ["", "hello\nworld\n", HEADER, "10\timages/sec: -3.0 +/- 0\n", "total images/sec: 50.0\n"] {
        let error = import(&[(file_of(text).path(), None)]).expect_err("no log").to_string();
        assert!(error.ends_with("no line has images/sec"), "{error}");
    }
    let page = "Model: resnet50\nDataset: imagenet\nBatch size: 64 per device\nOptimizer: sgd\n\n| GPUs | rate |\n|---|---|\n";
    assert!(!recognise(page.as_bytes()), "a page that names these has no rates of the benchmark");
    assert!(!recognise(b"") && !recognise(b"Model: x\n") && !recognise(b"# gpu pwr\n"));
}

#[test]
fn devices_that_are_not_listed_follow_from_batches_and_are_never_guessed_from_the_total() {
    let unlisted = HEADER.replace("Devices:     ['/gpu:0', '/gpu:1']\n", "");
    let run = &import_text(&format!("{unlisted}{}{}", lines(128.0, &[0.5; 40]), total(256.0)))[0];
    assert_eq!((run.case.workers, run.case.batch_per_worker), (2, Some(64)));
    // A total that is 58.2 times the rate of the lines may be that of 59, 60 or 64 processes.
    let bare = format!("Model:       resnet50\nStep\tImg/sec\n{}", lines(64.0, &[0.5; 40]));
    let run = &import_text(&format!("{bare}{}", total(60.0 * 128.0 * 0.97)))[0];
    assert_eq!(run.case.workers, 1);
    assert!(has(run, "the log does not say how many"), "{:?}", run.warnings);
    assert!(!has(&import_text(&format!("{bare}{}", total(128.0)))[0], "how many"));
}

/// What loggers and launchers put before the lines of rank 3.
const PREFIXES: [&str; 6] = [
    "I0502 12:00:00.000000 140037 tf_logging.py:115] ",
    "[1,3]<stdout>:",
    "[3]<stderr>:",
    "Wed May  2 12:00:00 2018[1,3]<stderr>:I0502 12:00:00.000000 140 tf_logging.py:115] ",
    "2018-05-02 12:00:00,123 INFO: ",
    "INFO:tensorflow:",
];

/// A header of 60 devices under Horovod.
fn horovod_header() -> String {
    let devices: Vec<String> = (0..60).map(|device| format!("'horovod/gpu:{device}'")).collect();
    HEADER
        .replace("'/gpu:0', '/gpu:1'", &devices.join(", "))
        .replace("128 global", "3840 global")
        .replace("replicated", "horovod")
}

#[test]
fn a_header_is_read_behind_what_a_logger_puts_before_it() {
    let plain = format!("{}{}{}", horovod_header(), lines(64.0, &[0.5; 40]), total(60.0 * 128.0 * 0.97));
    for prefix in PREFIXES {
        let text: String = plain.lines().map(|line| format!("{prefix}{line}\n")).collect();
        assert!(recognise(text.as_bytes()), "{prefix}");
        let case = &import_text(&text)[0].case;
        assert_eq!(
            (case.model.as_str(), case.workers, case.batch_per_worker),
            ("resnet50", 60, Some(64)),
            "{prefix}"
        );
        assert_eq!(case.settings["data"], "imagenet (synthetic)", "{prefix}");
    }
    assert!(!Header::default().read("the Model: resnet50 is loaded"), "a sentence is no header");
    assert!(!Header::default().read("we use 64 per device"));
}

#[test]
fn a_packed_log_is_read_as_it_is() {
    let text = format!("{HEADER}{}", lines(128.0, &[0.5; 40]));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, text.as_bytes()).expect("memory");
    let packed = import(&[(file_of(packed.finish().expect("memory")).path(), None)]).expect("a log");
    assert_eq!(packed[0].progress, import_text(&text)[0].progress);
}

/// Lines are taken together until their time is known, more and more of them as a run goes on.
#[test]
fn steps_that_all_take_the_same_time_are_flat_however_many_a_line_stands_for() {
    let runs = import_text(&format!("{HEADER}{}", lines(128.0, &[4.2; 1000])));
    let covers: Vec<u64> = told(&runs[0]).iter().map(|point| point.covers).collect();
    assert!(covers.iter().max() > covers.iter().min() && covers.iter().sum::<u64>() == 1000, "{covers:?}");
    let named: Vec<_> = runs.into_iter().map(|run| ("run".to_owned(), run)).collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (folder, study) =
        crate::write::write(&named, &[], folder.path(), paceline_lab::Held::Resume).expect("a study");
    let report = folder.analyse(&study);
    let case = &report.cases[0];
    let steady = case.steady.expect("steps");
    assert!(steady.slowdown.is_none() && steady.points == Some(covers.len() as u64), "{steady:?}");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!((case.steps, case.dispersion), (1000, None), "means do not tell how single steps differ");
    assert_eq!((&case.phases_s, &case.ranks), (&None, &None), "a log does not tell");
    let seconds = case.train_s.expect("a batch") / case.steps as f64;
    assert!((seconds / 4.2 - 1.0).abs() < 0.01, "seconds a step, not a line: {seconds}");
}
