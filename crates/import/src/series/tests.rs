use super::*;

/// Points every `every` steps from `every` on, with moments and values by place.
fn points(count: u64, every: u64, wall_time: impl Fn(u64) -> f64, value: impl Fn(u64) -> f64) -> Vec<Point> {
    let point = |at| Point { step: (at + 1) * every, wall_time: wall_time(at), value: value(at) };
    (0..count).map(point).collect()
}

fn series(of: Vec<(&str, Vec<Point>)>) -> Series {
    let mut series = Series::default();
    for (name, points) in of {
        points.into_iter().for_each(|point| series.push(name, point));
    }
    series.close();
    series
}

fn has(run: &Imported, words: &str) -> bool {
    run.warnings.iter().any(|warning| warning.contains(words))
}

fn told(run: &Imported) -> &[LogPoint] {
    &run.progress.as_ref().expect("a log that tells something").points
}

#[test]
fn moments_that_agree_with_rates_give_the_batch() {
    let rate = |at: u64| if at.is_multiple_of(2) { 320.0 } else { 160.0 };
    let mut now = 1e9;
    let walls: Vec<f64> = (0..20)
        .map(|at| {
            now += 640.0 / rate(at);
            now
        })
        .collect();
    let run = series(vec![("images/sec", points(20, 10, |at| walls[at as usize], rate))]).into_run();
    assert_eq!((run.case.batch_per_worker, told(&run).len()), (Some(64), 20));
    for (point, at) in told(&run).iter().zip(0..) {
        assert_eq!((point.step, point.covers, point.loss), (10 * (at + 1), 10, None));
        assert!((point.seconds.expect("by the clock") - 640.0 / rate(at)).abs() < 1e-5, "{at}");
        assert_eq!(point.examples_per_s, Some(rate(at)));
    }
    assert!(has(&run, "one point per 10 steps"));
}

#[test]
fn rates_without_usable_moments_stay_rates() {
    let rate = |at: u64| 40.0 + at as f64;
    let run = series(vec![("examples_per_sec", points(11, 1, |at| 1e9 + at as f64 * 1e-6, rate))]).into_run();
    assert_eq!(
        (run.case.batch_per_worker, run.ranks.len()),
        (None, 0),
        "neither a batch nor a rank is made up"
    );
    for (point, at) in told(&run).iter().zip(0..) {
        assert_eq!((point.examples_per_s, point.seconds), (Some(rate(at)), None));
    }
}

#[test]
fn steps_a_second_and_examples_a_second_give_the_batch() {
    let one = points(5, 100, |_| 0.0, |_| 2.0);
    let other = points(5, 100, |_| 0.0, |_| 256.0);
    let run = series(vec![("global_step/sec", one.clone()), ("examples/sec", other)]).into_run();
    assert_eq!(run.case.batch_per_worker, Some(128));
    assert!(told(&run).iter().all(|point| point.seconds == Some(50.0)));
    let run = series(vec![("global_step/sec", one)]).into_run();
    assert_eq!((run.case.batch_per_worker, told(&run)[0].examples_per_s), (None, None));
    assert_eq!(told(&run)[0].seconds, Some(50.0), "a step is as long as the log says");
}

#[test]
fn a_rate_that_some_points_lack_is_unknown() {
    let steps = points(6, 1, |_| 0.0, |_| 2.0);
    let rates = points(3, 2, |_| 0.0, |_| 64.0);
    let run = series(vec![("steps/sec", steps), ("images/sec", rates)]).into_run();
    assert!(told(&run).iter().all(|point| point.examples_per_s.is_none() && point.seconds == Some(0.5)));
    assert!(has(&run, "some points have no rate"));
}

#[test]
fn a_loss_alone_gives_steps_by_the_clock_and_one_that_is_no_number_is_unknown() {
    let loss = |at: u64| if at == 2 { f64::NAN } else { 2.0 };
    let run = series(vec![("loss", points(4, 1, |at| 100.0 + at as f64, loss))]).into_run();
    let losses: Vec<_> = told(&run).iter().map(|point| point.loss).collect();
    assert_eq!(losses, [Some(2.0), None, Some(2.0)], "the first has no begin");
    assert!(told(&run).iter().all(|point| point.seconds == Some(1.0)));
    assert!(has(&run, "skipped 1 points without step times"));
}

#[test]
fn steps_done_again_after_a_restart_count_once() {
    let mut all = points(6, 1, |at| at as f64, |_| 10.0);
    all.extend(points(6, 1, |at| 20.0 + at as f64, |_| 20.0).split_off(3));
    let run = series(vec![("steps/sec", all)]).into_run();
    assert_eq!(told(&run).iter().map(|point| point.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(has(&run, "skipped 3 points of \"steps/sec\""));
}

#[test]
fn points_with_the_same_step_are_numbered() {
    let all = vec![Point { step: 0, wall_time: 5.0, value: 4.0 }; 3];
    let run = series(vec![("steps/sec", all)]).into_run();
    assert_eq!(told(&run).iter().map(|point| point.step).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_long_log_is_merged_and_keeps_its_rate_and_its_length() {
    let point = |step: u64| LogPoint {
        step,
        covers: 1,
        examples_per_s: Some(if step.is_multiple_of(2) { 100.0 } else { 50.0 }),
        seconds: Some(if step.is_multiple_of(2) { 1.0 } else { 2.0 }),
        loss: None,
    };
    let Progress { points } = bound((1..=2 * KEPT as u64).map(point).collect());
    assert_eq!(points.len(), KEPT);
    let first = points[0];
    assert_eq!((first.step, first.covers, first.seconds), (2, 2, Some(3.0)));
    assert!((first.examples_per_s.expect("a rate") - 200.0 / 3.0).abs() < 1e-9);
}

#[test]
fn a_series_without_end_is_cut_with_a_warning() {
    let mut series = Series::default();
    for step in 0..MOST_POINTS as u64 + 5 {
        series.push("loss", Point { step, wall_time: 0.0, value: 0.0 });
    }
    series.close();
    assert_eq!(series.by_name["loss"].len(), MOST_POINTS);
    assert!(series.warnings[0].starts_with("skipped 5 points"));
}

#[test]
fn a_log_of_other_things_says_which() {
    let names: Vec<String> = (0..20).map(|at| format!("layer{at}/{}", "x".repeat(100))).collect();
    let all = names.iter().map(|name| (name.as_str(), points(4, 1, |_| 0.0, |_| 0.1))).collect();
    let run = series(all).into_run();
    assert!(run.progress.is_none());
    assert!(has(&run, "none of its 20 series is a rate") && has(&run, "layer0/"), "{:?}", run.warnings);
    assert!(run.warnings.iter().all(|warning| warning.len() < 500));
    assert!(has(&series(Vec::new()).into_run(), "it has no series of numbers"));
}
