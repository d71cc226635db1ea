use super::*;
use crate::Run;
use crate::fixture::{Plan, report_on, study};

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9)
}

#[test]
fn one_worker_is_as_fast_as_itself() {
    let report = report_on(&[Plan::calm("resnet50", 1)]);
    let one = &report.cases[0];
    for ratio in
        [one.speedup_speed, one.speedup_time, one.speedup_total, one.efficiency_speed, one.efficiency_time]
    {
        assert_eq!(ratio, Some(1.0));
    }
    assert!(report.explained[0].waterfalls.is_empty(), "one case alone has nothing to explain");
}

#[test]
fn without_a_finished_one_worker_case_there_is_no_speedup() {
    let plans = [Plan::calm("resnet50", 2), Plan::calm("vgg_19", 1), Plan::calm("resnet50", 1)];
    let mut runs: Vec<Run> = plans.iter().map(Plan::run).collect();
    runs[2].launcher.over = Some((paceline_record::Outcome::Failed, None));
    let cases: Vec<Case> = plans.iter().map(Plan::case).collect();
    let report = Report::new(&study(&cases), runs.into_iter().map(|run| CaseReport::of(&[run])).collect());
    assert_eq!(report.cases[0].speedup_speed, None);
    assert_eq!(report.cases[0].efficiency_time, None);
    assert!(report.explained[0].waterfalls.is_empty());
    assert_eq!(report.explained.len(), 2);
}

#[test]
fn the_measures_reconcile_and_the_waterfall_sums_to_the_whole() {
    let long = Plan { steps: 200, init: 3000.0, ..Plan::calm("resnet50", 1) };
    let many = Plan { steps: 50, late: 30.0, compute: 120.0, ..Plan::calm("resnet50", 4) };
    let report = report_on(&[long, many]);
    let explained = &report.explained[0];
    for speedup in &explained.speedups {
        let parts = speedup.steady_fraction.zip(speedup.steady_fraction_one).zip(speedup.time);
        let ((many, one), time) = parts.expect("all times are known");
        assert!(near(time, speedup.speed * many / one));
    }
    let fall = &explained.waterfalls[0];
    let sum: f64 = fall.parts.iter().map(|part| part.seconds).sum();
    assert!(near(sum, fall.to_s - fall.from_s), "{sum} is not {}", fall.to_s - fall.from_s);
    let case = &report.cases[1];
    assert!(near(fall.to_s, 4.0 * case.total_s.expect("done") / case.examples.expect("done") as f64));
    for part in fall.parts.iter().filter(|part| part.lo.is_some()) {
        assert!(part.lo <= Some(part.seconds) && Some(part.seconds) <= part.hi, "{part:?}");
    }
}

#[test]
fn groups_differ_only_in_workers_and_under_strong_scaling_in_shares() {
    let mut one = Plan::calm("resnet50", 1).run();
    let mut two = Plan::calm("resnet50", 2).run();
    for (run, batch) in [(&mut one, 128), (&mut two, 64)] {
        let case = &mut run.launcher.header.case;
        case.scaling = Some("strong".into());
        case.global_batch = Some(128);
        case.batch_per_worker = Some(batch);
    }
    let mut other = Plan::calm("resnet50", 2).run();
    other.launcher.header.case.settings.insert("compress".into(), "bf16".into());
    let cases: Vec<CaseReport> = [one, two, other].into_iter().map(|run| CaseReport::of(&[run])).collect();
    let asked: Vec<Case> = cases.iter().map(|case| case.case.clone()).collect();
    let report = Report::new(&study(&asked), cases);
    assert_eq!(report.explained.len(), 2);
    assert_eq!(report.explained[0].cases, [0, 1]);
    assert_eq!(report.explained[0].key.batch, Some(128));
    assert!(report.explained[1].key.label().contains("compress bf16"), "{}", report.explained[1].key.label());
}

#[test]
fn the_json_has_every_field_of_the_contract() {
    let report = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]);
    let json = serde_json::to_value(&report).expect("a report is plain data");
    let key = json["explained"][0]["key"].as_object().expect("an object");
    for field in "model engine layout precision update scaling batch threads".split_whitespace() {
        assert!(key.contains_key(field), "{field} is missing");
    }
    let case = json["cases"][0].as_object().expect("an object");
    for field in "status reason model engine layout precision update scaling workers \
        batch_per_worker threads input classes examples steps init_s train_s total_s \
        images_per_s speedup_speed speedup_time speedup_total efficiency_speed \
        efficiency_time phases_s comm_wait_split_s comm_busy_s overlap peak_memory_bytes \
        steady loss_first loss_last repeats"
        .split_whitespace()
    {
        assert!(case.contains_key(field), "{field} is missing");
    }
    assert_eq!(case["status"], "done");
    assert_eq!(json["explained"][0]["waterfalls"][0]["shares"][0]["cause"], "start_up");
}

#[test]
fn evaluation_and_checkpoints_are_a_cause_of_their_own_and_no_part_of_a_step() {
    let calm = |workers| Plan { steps: 66, ..Plan::calm("resnet50", workers) };
    let plain = report_on(&[calm(1), calm(4)]);
    // 9 evaluations and 6 checkpoints, some before the steady state begins.
    let due = |workers| Plan { eval: Some((7, 500.0)), checkpoint: Some((11, 30.0)), ..calm(workers) };
    let paused = report_on(&[due(1), Plan { eval: Some((1, 500.0)), ..due(4) }]);
    for ((plain, paused), pause) in plain.cases.iter().zip(&paused.cases).zip([4.68, 33.18]) {
        let of = |case: &CaseReport| (case.images_per_s, case.steady, case.step_times.clone());
        assert_eq!(of(paused), of(plain), "steps are what they were");
        let of = |case: &CaseReport| (case.dispersion, case.communication_fraction, case.computation_s);
        assert_eq!(of(paused), of(plain));
        let (Some(fixed), Some(before)) = (paused.fixed, plain.fixed) else { panic!("a rate") };
        assert!(near(fixed.seconds, before.seconds) && fixed.enough_steps == before.enough_steps);
        assert_eq!(plain.paused_s, Some(0.0));
        assert!(near(paused.paused_s.expect("done"), pause), "{:?}", paused.paused_s);
        let train_s = |case: &CaseReport| case.train_s.expect("done");
        assert!(near(train_s(paused), train_s(plain) + pause), "but the training takes longer");
    }
    let explained = &paused.explained[0];
    for speedup in &explained.speedups {
        let parts = speedup.steady_fraction.zip(speedup.steady_fraction_one).zip(speedup.time);
        let ((many, one), time) = parts.expect("all times are known");
        assert!(near(time, speedup.speed * many / one));
    }
    let (before, fall) = (&plain.explained[0].waterfalls[0], &explained.waterfalls[0]);
    let sum: f64 = fall.parts.iter().map(|part| part.seconds).sum();
    assert!(near(sum, fall.to_s - fall.from_s), "{sum} is not {}", fall.to_s - fall.from_s);
    for (part, before) in fall.parts.iter().zip(&before.parts) {
        let examples = 66.0 * 64.0;
        let expected = match part.cause {
            waterfall::Cause::Evaluation => (33.18 - 4.68) / examples,
            _ => before.seconds,
        };
        assert!((part.seconds - expected).abs() < 1e-9, "{part:?} is not {expected}");
    }
}
