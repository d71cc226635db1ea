use std::fmt::Write;

use paceline_lab::origin::LogPoint;

use super::*;
use crate::sample::file_of;

const AVERAGE: &str = "average_examples_per_sec";

/// A log of the hook with a batch of 128, a point every 100 steps, and these seconds a step in each interval.
fn write(times: &[f64]) -> String {
    let (mut text, mut now, mut steps) = (String::new(), 0.0, 0.0);
    for (time, step) in times.iter().zip((101..).step_by(100)) {
        now += 100.0 * time;
        steps += 100.0;
        let clock = format!(
            "2018-10-04T{:02}:{:02}:{:09.6}Z",
            9 + now as u64 / 3600,
            now as u64 / 60 % 60,
            now % 60.0
        );
        for (name, value) in [(AVERAGE, 128.0 * steps / now), (CURRENT, 128.0 / time), ("loss", 2.5)] {
            let _ = writeln!(
                text,
                r#"{{"name": "{name}", "value": {value}, "unit": null, "global_step": {step}, "timestamp": "{clock}", "extras": []}}"#
            );
        }
    }
    text
}

fn without(text: &str, name: &str) -> String {
    text.lines().filter(|line| !line.contains(name)).map(|line| format!("{line}\n")).collect()
}

fn import_text(text: &str) -> Imported {
    import(file_of(text).path()).expect("a log")
}

fn told(run: &Imported) -> &[LogPoint] {
    &run.progress.as_ref().expect("a log that tells something").points
}

fn has(run: &Imported, words: &str) -> bool {
    run.warnings.iter().any(|warning| warning.contains(words))
}

#[test]
fn rates_and_moments_give_steps_and_the_batch() {
    let text = write(&[0.5, 0.25, 0.5, 0.5, 0.4]);
    assert!(recognise(text.as_bytes()));
    let run = import_text(&text);
    assert_eq!(run.case.batch_per_worker, Some(128));
    let points = told(&run);
    assert_eq!(points.len(), 5);
    for (point, seconds) in points.iter().zip([50.0, 25.0, 50.0, 50.0, 40.0]) {
        assert!((point.seconds.expect("by the clock") - seconds).abs() < 1e-3);
        assert_eq!((point.covers, point.loss), (100, Some(2.5)));
    }
    assert!(has(&run, "the hook's clock starts after the first step"));
    assert!(!has(&run, "average"), "{:?}", run.warnings);
}

#[test]
fn averages_alone_give_the_rates_between_them() {
    let times = [0.5, 0.25, 0.5, 0.5, 0.4];
    let run = import_text(&without(&write(&times), CURRENT));
    for (point, time) in told(&run).iter().zip(times) {
        let rate = point.examples_per_s.expect("a rate");
        assert!((rate * time / 128.0 - 1.0).abs() < 1e-4, "{rate}");
    }
    assert!(has(&run, "are computed from them"));
}

#[test]
fn moments_are_read_on_the_civil_calendar() {
    assert_eq!(seconds_since_1970("1970-01-01T00:00:00.000000Z"), Some(0.0));
    assert_eq!(seconds_since_1970("2000-02-29T12:30:00Z"), Some(951_827_400.0));
    assert_eq!(seconds_since_1970("2018-10-04T09:12:31.5Z"), Some(1_538_644_351.5));
    for text in [
        "",
        "2018-13-04T09:12:31Z",
        "2018-10-04",
        "x-y-zTa:b:c",
        "2018-10-04T09:12:99Z",
        "99999-01-01T00:00:00Z",
    ] {
        assert_eq!(seconds_since_1970(text), None, "{text}");
    }
}

#[test]
fn numbers_that_json_does_not_know_and_torn_lines_cost_only_themselves() {
    let mut text = write(&[0.5; 4]).replacen("\"value\": 2.5", "\"value\": NaN", 1);
    text.push_str("{\"name\": \"current_exam");
    let run = import_text(&text);
    assert_eq!((told(&run).len(), told(&run)[0].loss), (4, None));
    assert!(has(&run, "1 lines cannot be read") && has(&run, "1 lines have no value"));
}

#[test]
fn what_is_no_log_is_one_clear_error() {
    for text in ["", "hello\n", "{}\n", "[1]", "{\"name\": 5}"] {
        let error = import(file_of(text).path()).expect_err("no log").to_string();
        assert!(error.ends_with("no line has a name, a value and a step"), "{error}");
        assert!(!recognise(text.as_bytes()));
    }
}
