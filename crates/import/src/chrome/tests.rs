use std::fs;
use std::path::PathBuf;

use paceline_lab::origin::Format;

use super::super::ranks::Told;
use super::super::source;
use super::*;

/// A file in a folder of its own.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn read_text(text: &str) -> Result<Timeline, ImportError> {
    read(&file(text).1)
}

fn pretty(text: &str) -> String {
    serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap()
}

const EVENTS: &str = r#"[
{"ph":"M","name":"process_name","pid":1,"args":{"name":"Renderer"}},
{"ph":"M","name":"thread_name","pid":1,"tid":7,"args":{"name":"main"}},
{"ph":"M","name":"process_labels","pid":1,"args":{"labels":"tab"}},
{"ph":"X","name":"frame","pid":1,"tid":7,"ts":0,"dur":100.5,"cat":"gfx"},
{"ph":"B","name":"paint","pid":1,"tid":7,"ts":10.25,"cat":"gfx"},
{"ph":"B","name":"text","pid":1,"tid":7,"ts":20,"cat":"gfx"},
{"ph":"E","pid":1,"tid":7,"ts":30},
{"ph":"E","pid":1,"tid":7,"ts":50.25},
{"ph":"X","name":"frame","pid":1,"tid":7,"ts":160,"dur":40},
{"ph":"X","name":"io","pid":"disk","tid":"a","ts":-20,"dur":60},
{"ph":"i","name":"click","pid":1,"tid":7,"ts":5,"s":"t"},
{"ph":"C","name":"memory","pid":1,"ts":5,"args":{"bytes":7}}]"#;

#[test]
fn time_is_given_to_the_innermost_slice_and_adds_up_to_busy_threads() {
    let timeline = read_text(EVENTS).unwrap();
    assert_eq!((timeline.span, timeline.processes, timeline.others), (Nanos(220_000), 2, 2));
    let threads: Vec<_> = timeline
        .threads
        .iter()
        .map(|one| (one.process.as_str(), one.thread.as_str(), one.slices, one.busy))
        .collect();
    assert_eq!(threads, [("Renderer (1)", "main (7)", 4, Nanos(140_500)), ("disk", "a", 1, Nanos(60_000))]);
    let names: Vec<_> =
        timeline.names.iter().map(|one| (one.name.as_str(), one.count, one.total.0, one.own.0)).collect();
    let expected = [
        ("frame", 2, 140_500, 100_500),
        ("io", 1, 60_000, 60_000),
        ("paint", 1, 40_000, 30_000),
        ("text", 1, 10_000, 10_000),
    ];
    assert_eq!(names, expected);
    assert!(timeline.warnings.is_empty(), "{:?}", timeline.warnings);
    let text = timeline.render();
    let first = "Chrome trace, 220.0 us: 2 processes, 2 threads, 5 slices\n";
    assert!(text.starts_with(first) && text.contains("\nsteps, computation, exchange"), "{text}");
}

#[test]
fn the_layout_and_the_form_do_not_matter() {
    let object = format!(r#"{{"metadata":{{"a":[1]}},"traceEvents":{EVENTS},"displayTimeUnit":"ns"}}"#);
    let plain = read_text(EVENTS).unwrap().render();
    for text in [pretty(EVENTS), object.clone(), pretty(&object), EVENTS.trim_end_matches(']').into()] {
        assert!(recognise(text.as_bytes()), "{text}");
        let shown = read_text(&text).unwrap().render();
        assert!(shown.starts_with(plain.trim_end()), "{shown}");
    }
}

#[test]
fn slices_that_overlap_or_have_no_end_are_borne() {
    let timeline = read_text(
        r#"[{"ph":"X","name":"a","pid":1,"tid":1,"ts":0,"dur":10},{"ph":"X","name":"b","pid":1,"tid":1,"ts":5,"dur":10},
        {"ph":"E","pid":1,"tid":2,"ts":1},{"ph":"B","name":"c","pid":1,"tid":1,"ts":3},{"ph":"X","name":"d","pid":1,"ts":"x"}, {}]"#,
    )
    .unwrap();
    let own: Vec<_> = timeline.names.iter().map(|one| (one.name.as_str(), one.own)).collect();
    assert_eq!(own, [("b", Nanos(10_000)), ("a", Nanos(5_000))]);
    assert_eq!(timeline.threads[0].busy, Nanos(15_000));
    assert_eq!(
        timeline.warnings,
        [
            "1 event has no valid time: skipped",
            "1 event has no begin: skipped",
            "1 event has no end: skipped"
        ]
    );
}

#[test]
fn traces_of_known_writers_are_theirs_in_any_layout() {
    let kineto = r#"{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2}]}"#;
    let horovod = r#"[{"name":"process_name","ph":"M","pid":1,"args":{"name":"grad"}},
        {"ph":"B","name":"NEGOTIATE_ALLREDUCE","ts":10,"pid":1},{"ph":"X","name":"0","ts":11,"pid":1,"dur":0},
        {"ph":"E","ts":20,"pid":1},{"ph":"B","name":"ALLREDUCE","ts":21,"pid":1},{"ph":"E","ts":30,"pid":1}]"#;
    for (text, format) in [(kineto, Format::Kineto), (horovod, Format::Horovod), (EVENTS, Format::Chrome)] {
        for text in [text.to_owned(), pretty(text)] {
            assert_eq!(source::recognise(&file(&text).1).unwrap(), Some(format), "{text}");
        }
    }
    let slices = |text: &str| super::super::horovod::read(&file(text).1).unwrap()[0].slices.clone();
    assert_eq!(slices(horovod), slices(&pretty(horovod)));
}

#[test]
fn kernels_of_an_operating_system_are_none_of_pytorch() {
    let text =
        r#"{"traceEvents":[{"ph":"X","cat":"kernel","name":"sys_read","pid":1,"tid":1,"ts":1,"dur":2}]}"#;
    assert_eq!(source::recognise(&file(text).1).unwrap(), Some(Format::Chrome));
}

#[test]
fn it_is_no_run_and_in_a_folder_it_is_passed_over() {
    let (folder, path) = file(EVENTS);
    let error = source::import(std::slice::from_ref(&path), &Told::default()).unwrap_err().to_string();
    assert!(error.contains("steps are not looked for") && !error.contains('\n'), "{error}");
    let kineto = r#"{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2}]}"#;
    fs::write(folder.path().join("rank0.json"), kineto).unwrap();
    let runs = source::import(&[folder.path().into()], &Told::default()).unwrap();
    assert_eq!(runs.len(), 1);
    assert!(
        runs[0].1.warnings.iter().any(|warning| warning.contains("steps are not looked for")),
        "{:?}",
        runs[0].1.warnings
    );
}

#[test]
fn a_file_torn_anywhere_gives_one_error_or_a_note() {
    let whole = read_text(EVENTS).unwrap();
    for length in 0..EVENTS.len() {
        match read_text(&EVENTS[..length]) {
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            Ok(timeline) => {
                assert!(timeline.threads.len() <= whole.threads.len());
                assert!(timeline.warnings.iter().any(|warning| warning.contains("ends before")), "{length}");
            }
        }
    }
    let none = r#"{"traceEvents":[{"ph":"i","name":"a","pid":1,"tid":1,"ts":1}]}"#;
    assert!(read_text(none).unwrap_err().to_string().contains("no event of a thread has a duration"));
}
