use paceline_record::{Nanos, Phase};

use super::{Case, Program};
use crate::fixture::{Plan, learning_plans, study};
use crate::{CaseReport, Kind, Report};

#[test]
fn repeats_are_advised_only_where_they_can_help() {
    let repeats = |program: Program| {
        let advice = [1, 3].map(|repeats| {
            [
                program.slowdown(repeats),
                program.uncertain(repeats),
                program.compared(repeats),
                program.unsteady(),
            ]
        });
        advice.concat().into_iter().filter(|advice| advice.contains("--repeat")).count()
    };
    use Program::{Bench, Followed, Horovod, PyTorch, Simulated, TensorFlow, Train, Unknown};
    let others = [Train, Simulated, PyTorch, Horovod, TensorFlow, Unknown].map(repeats);
    assert_eq!((repeats(Bench), repeats(Followed), others), (3, 2, [0; 6]));
    assert!(!Bench.uncertain(1).contains("repeat"), "steps of one run vary in each repeat");
}

#[test]
fn what_made_a_study_decides_what_it_is_advised() {
    let advised = |command: &str, engine: &str| {
        let mut case = CaseReport::of(&[Plan::calm("resnet50", 2).run()]);
        case.case.engine = Some(engine.into());
        Program::of(&case, &[command.into()])
    };
    assert_eq!(advised("bench", "cpu"), Program::Bench);
    assert_eq!(advised("train", "cuda"), Program::Train);
    assert_eq!(advised("bench", "simulated"), Program::Simulated);
    assert_eq!(advised("bench", "pytorch"), Program::PyTorch);
    assert_eq!(advised("run", "pytorch"), Program::Followed);
    assert_eq!(advised("train.py", "my-framework"), Program::Unknown);
}

#[test]
fn every_option_that_the_sources_name_is_among_the_advice_that_is_checked() {
    let all = super::every_advice("bench").into_iter().collect::<String>();
    let sources = [
        include_str!("../advice.rs"),
        include_str!("../accuracy.rs"),
        include_str!("../recovery.rs"),
        include_str!("../off_core.rs"),
        include_str!("../stragglers.rs"),
        include_str!("../../finding.rs"),
    ];
    let mut seen = 0;
    for source in sources.map(|source| source.split("#[cfg(test)]").next().expect("a first part")) {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<String>();
        for word in code.split("--").skip(1) {
            let name: String = word.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            let named = !name.is_empty() && !name.ends_with('-');
            assert!(!named || all.contains(&format!("--{name}")), "no advice of the list names --{name}");
            seen += usize::from(named);
        }
    }
    assert!(seen > 20, "only {seen} options were found in the sources");
}

#[test]
fn where_the_batch_of_all_is_fixed_that_one_is_to_be_changed() {
    let advice = super::every_advice("bench");
    assert!(
        advice.iter().any(|advice| advice.contains("a larger --global-batch or --accumulate")),
        "{advice:?}"
    );
}

#[test]
fn an_elastic_run_is_not_told_to_use_options_that_mean_nothing_to_it() {
    let mut case = Plan::calm("resnet50", 2).case();
    case.update = Some("allreduce".into());
    case.settings.extend([("compress".into(), "none".into()), ("overlap".into(), "yes".into())]);
    let advice = |case: &Case| [Program::Bench.communication(case), Program::Bench.update(case)];
    let misfit = |advice: &str| ["--update", "--compress"].iter().any(|option| advice.contains(option));
    assert!(advice(&case).into_iter().all(misfit));
    case.settings.insert("elastic".into(), "1..2".into());
    assert!(!advice(&case).into_iter().any(misfit));
}

#[test]
fn hosts_are_not_told_to_use_an_update_that_they_have_or_refuse() {
    let mut case = Plan::calm("resnet50", 2).case();
    case.settings.extend([("compress".into(), "none".into()), ("hosts".into(), "2".into())]);
    for update in ["allreduce", "sharded"] {
        case.update = Some(update.into());
        for advice in [
            Program::Bench.communication(&case),
            Program::Bench.update(&case),
            Program::Bench.computation(&case),
        ] {
            assert!(!advice.contains("--update"), "{advice}");
        }
    }
}

/// A run of two workers in which half the time of each step belongs to no phase.
fn unaccounted(engine: &str) -> Report {
    let mut run = Plan { late: 20.0, ..learning_plans()[1].clone() }.run();
    run.launcher.header.case.engine = Some(engine.into());
    for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
        step.phases[Phase::Backward] = Nanos(0);
    }
    let case = CaseReport::of(&[run]);
    Report::new(&study(std::slice::from_ref(&case.case)), vec![case])
}

#[test]
fn unmeasured_time_is_a_bug_in_our_runs_but_not_in_an_adapters() {
    for (engine, what, advice) in
        [("pytorch", "between measured phases", "log.phase"), ("cpu", "outside every phase", "this is a bug")]
    {
        let report = unaccounted(engine);
        let found = report.findings.iter().find(|finding| finding.kind == Kind::Other).expect("half of it");
        assert!(found.text.contains(what) && found.advice.contains(advice), "{found:?}");
    }
}

#[test]
fn one_test_cannot_be_made_less_often() {
    let advice = |every: u64| {
        let plan = Plan { eval: Some((every, 2000.0)), ..learning_plans()[1].clone() };
        let case = CaseReport::of(&[plan.run()]);
        let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
        let mut findings = report.findings.into_iter();
        findings.find(|finding| finding.kind == Kind::Evaluation).expect("tests take long").advice
    };
    let steps = learning_plans()[1].steps;
    assert_eq!(advice(steps), "a longer run spends less of its time on its one test");
    assert_eq!(advice(steps / 4), "evaluate and save less often");
}
