use super::*;

/// A small job whose logs go to `folder`.
pub(crate) fn job(folder: &std::path::Path) -> Job {
    Job {
        layout: Layout::Nchw,
        scaling: Scaling::Weak { batch: 4 },
        batch: 4,
        length: Length::Steps(5),
        steps: 5,
        seed: 7,
        learning: Learning::at(0.125),
        profile: true,
        folder: folder.into(),
        ..Job::new("mobilenet_v2")
    }
}

#[test]
fn an_assignment_survives_its_journey() {
    let assignment = Assignment {
        job: job("case".as_ref()),
        rank: Rank(0),
        launcher: 4711,
        segment: Some(5),
        membership: None,
    };
    let arrived: Assignment = serde_json::from_str(&assignment.to_json()).expect("own output");
    assert_eq!(arrived, assignment);
}

#[test]
fn the_fraction_that_running_statistics_keep_can_be_set() {
    let mut job = job("case".as_ref());
    job.learning.bn_momentum = Some(0.5);
    let graph = job.graph().expect("a network");
    let kept = graph.nodes.iter().filter_map(|node| match node.op {
        paceline_model::Op::BatchNorm(norm) => Some(norm.momentum),
        _ => None,
    });
    assert!(kept.clone().count() > 50 && kept.clone().all(|kept| kept == 0.5));
    assert_eq!(job.case().settings["bn-momentum"], "0.5");
}

#[test]
fn running_statistics_follow_within_ten_steps_by_default_and_a_training_that_had_the_network_s_own_keeps_it()
{
    let kept = |job: &Job| {
        let graph = job.graph().expect("a network");
        graph.nodes.iter().find_map(|node| match node.op {
            paceline_model::Op::BatchNorm(norm) => Some(norm.momentum as f32),
            _ => None,
        })
    };
    let mut job = Job::training("mobilenet_v2");
    assert_eq!(kept(&job), Some(0.9));
    assert_eq!(job.case().settings["bn-momentum"], "0.9");
    // As a checkpoint from before this default says.
    job.learning.bn_momentum = None;
    assert_eq!(kept(&job), Some(0.999));
}

#[test]
fn what_follows_from_the_workers_does_not_set_cases_apart() {
    let mut one = Job { length: Length::Epochs(2.0), ..job("case".as_ref()) };
    one.learning.warmup_epochs = 1.0;
    let mut two = Job { workers: 2, steps: 3, ..one.clone() };
    one.learning.schedule.warmup_steps = 100;
    two.learning.schedule.warmup_steps = 50;
    assert!(one.case().same_but_workers(&two.case()));
    two.learning.warmup_epochs = 2.0;
    assert!(!one.case().same_but_workers(&two.case()));
}

#[test]
fn shards_that_leave_workers_idle_or_that_nobody_adds_up_are_refused() {
    let few = Job { workers: 3, shards: Some(2), ..job("case".as_ref()) };
    assert!(few.check().expect_err("one has nothing to do").to_string().contains("--shards 3"));
    let lonely = Job { workers: 2, shards: Some(4), update: Strategy::Independent, ..job("case".as_ref()) };
    assert!(lonely.check().expect_err("nothing is added").to_string().contains("--shards"));
}

#[test]
fn data_of_another_depth_is_refused() {
    let grey = Job { data: "synthetic:32x32x1".into(), ..job("case".as_ref()) };
    let message = grey.graph().expect_err("one channel").to_string();
    assert!(message.contains("3 channels"), "{message}");
}

#[test]
fn an_engine_that_is_not_there_is_named() {
    let error = open_engine("abacus", 1, None).err().expect("no such engine");
    assert!(error.to_string().contains("'abacus'"), "{error}");
}

#[test]
fn a_pass_is_the_same_whoever_runs_its_shard() {
    let job = Job { workers: 2, shards: Some(5), accumulate: 3, ..job("case".as_ref()) };
    for rank in [Rank(0), Rank(1)] {
        let shards = job.shards_of(rank);
        for turn in 0..shards.len() * 3 {
            let pass = job.pass(4, &shards, turn);
            let anywhere = job.pass_of(4, shards.start + (turn / 3) as u32, turn % 3);
            assert_eq!(Pass { shard: pass.shard, ..anywhere }, pass);
            assert_eq!((pass.shard, anywhere.shard), (turn / 3, 0));
        }
    }
}

#[test]
fn an_elastic_job_has_as_many_shards_as_it_may_have_workers_and_says_what_it_is_asked_for() {
    let elastic = Elastic::new("2:4".parse().expect("bounds"));
    let plain = Job { workers: 2, elastic: Some(elastic), profile: false, ..job("case".as_ref()) };
    assert_eq!(plain.shards(), 4);
    plain.check().expect("a job that can be run");
    assert_eq!(
        (plain.case().settings["elastic"].as_str(), plain.case().settings["deal"].as_str()),
        ("2:4", "static")
    );
    assert!(!plain.case().settings.contains_key("faults"));
    let faulty = Job { faults: "kill=1@3".parse().expect("a fault"), ..plain.clone() };
    assert_eq!(faulty.case().settings["faults"], "kill=1@3");
    let json = serde_json::to_string(&faulty).expect("plain data");
    assert_eq!(serde_json::from_str::<Job>(&json).expect("own output"), faulty);
    let message = Job { workers: 1, ..plain.clone() }.check().expect_err("too few").to_string();
    assert!(message.contains("--elastic 2:4 does not allow 1 workers"), "{message}");
    let message = Job { shards: Some(3), ..plain.clone() }.check().expect_err("too few").to_string();
    assert!(message.contains("--shards 4"), "{message}");
    let lonely = Job { update: Strategy::Independent, ..plain };
    assert!(lonely.check().expect_err("nothing in common").to_string().contains("--elastic"));
}
