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

#[test]
fn names_are_understood_in_their_common_spellings() {
    for name in [
        "examples_per_s",
        "examples/sec",
        "examples_per_sec",
        "current_examples_per_sec",
        "images_per_sec",
        "images/sec",
        "train/samples_per_second",
        "perf/img/s",
    ] {
        assert_eq!(meaning_of(name), Some(Meaning::Examples), "{name}");
    }
    for name in ["global_step/sec", "steps_per_second", "it/s"] {
        assert_eq!(meaning_of(name), Some(Meaning::Steps), "{name}");
    }
    for name in [
        "loss",
        "train/loss",
        "total_loss",
        "Loss/train_loss",
        "losses/total_loss",
        "Loss/train",
        "train_loss_step",
        "epoch_loss",
        "total_loss_1",
    ] {
        assert_eq!(meaning_of(name), Some(Meaning::Loss), "{name}");
    }
    assert_eq!(meaning_of("phase/comm_wait_ms"), Some(Meaning::Phase(Phase::CommWait)));
    assert_eq!(meaning_of("step_ms"), Some(Meaning::StepTime { per_second: 1000 }));
    for name in
        ["val/loss", "eval_loss", "average_examples_per_sec", "lr", "phase/lunch_ms", "learning_rate/s", ""]
    {
        assert_eq!(meaning_of(name), None, "{name}");
    }
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
    assert_eq!(run.case.batch_per_worker, Some(64));
    let steps = &run.ranks[0].steps;
    assert_eq!(steps.len(), 20);
    assert!(steps.iter().all(|step| step.examples == 640 && step.loss.is_none()));
    assert_eq!(steps[3].step, Step(40));
    for (step, at) in steps.iter().zip(0..) {
        assert!((step.end.since(step.begin).seconds() - 640.0 / rate(at)).abs() < 1e-5, "{at}");
    }
    assert!(has(&run, "one point per 10 steps"));
}

#[test]
fn rates_without_usable_moments_keep_the_rates_and_invent_no_batch() {
    let rate = |at: u64| 40.0 + at as f64;
    let run = series(vec![("examples_per_sec", points(11, 1, |at| 1e9 + at as f64 * 1e-6, rate))]).into_run();
    assert_eq!(run.case.batch_per_worker, None);
    assert_eq!(run.nominal, Some(45.0));
    for (step, at) in run.ranks[0].steps.iter().zip(0..) {
        let found = step.examples as f64 / step.end.since(step.begin).seconds();
        assert!((found - rate(at)).abs() < 1e-4, "{found}");
    }
}

#[test]
fn steps_a_second_and_examples_a_second_give_the_batch() {
    let one = points(5, 100, |_| 0.0, |_| 2.0);
    let other = points(5, 100, |_| 0.0, |_| 256.0);
    let run = series(vec![("global_step/sec", one.clone()), ("examples/sec", other)]).into_run();
    assert_eq!(run.case.batch_per_worker, Some(128));
    assert!(run.ranks[0].steps.iter().all(|step| step.end.since(step.begin) == Nanos(50_000_000_000)));
    let run = series(vec![("global_step/sec", one)]).into_run();
    assert_eq!((run.case.batch_per_worker, run.ranks[0].steps[0].examples), (None, 0));
    assert_eq!(run.nominal, None, "a step is as long as the log says");
}

#[test]
fn a_loss_alone_gives_steps_by_the_clock_and_one_that_is_no_number_is_unknown() {
    let loss = |at: u64| if at == 2 { f64::NAN } else { 2.0 };
    let run = series(vec![("loss", points(4, 1, |at| 100.0 + at as f64, loss))]).into_run();
    let losses: Vec<_> = run.ranks[0].steps.iter().map(|step| step.loss).collect();
    assert_eq!(losses, [Some(2.0), None, Some(2.0)], "the first has no begin");
    assert!(run.ranks[0].steps.iter().all(|step| step.end.since(step.begin) == Nanos(1_000_000_000)));
    assert!(has(&run, "skipped 1 points without step times"));
}

#[test]
fn steps_done_again_after_a_restart_count_once() {
    let mut all = points(6, 1, |at| at as f64, |_| 10.0);
    all.extend(points(6, 1, |at| 20.0 + at as f64, |_| 20.0).split_off(3));
    let run = series(vec![("steps/sec", all)]).into_run();
    let steps: Vec<u64> = run.ranks[0].steps.iter().map(|step| step.step.0).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
    assert!(has(&run, "skipped 3 points of \"steps/sec\""));
}

#[test]
fn points_with_the_same_step_are_numbered() {
    let all = vec![Point { step: 0, wall_time: 5.0, value: 4.0 }; 3];
    let run = series(vec![("steps/sec", all)]).into_run();
    assert_eq!(run.ranks[0].steps.iter().map(|step| step.step.0).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_series_without_end_is_cut_with_a_warning() {
    let mut series = Series::default();
    for step in 0..MOST_POINTS as u64 + 5 {
        series.push("loss", Point { step, wall_time: 0.0, value: 0.0 });
    }
    series.close();
    assert_eq!((series.len(), series.by_name["loss"].len()), (MOST_POINTS, MOST_POINTS));
    assert!(series.warnings[0].starts_with("skipped 5 points"));
}

#[test]
fn a_log_of_other_things_has_no_steps() {
    let run = series(vec![("learning_rate", points(4, 1, |_| 0.0, |_| 0.1))]).into_run();
    assert!(run.ranks[0].steps.is_empty());
    assert!(has(&run, "no series"));
}
