use clap::{Args, Command, FromArgMatches};

use super::*;

fn options(arguments: &str) -> Options {
    let command = Options::augment_args(Command::new("bench"));
    let words = ["bench"].into_iter().chain(arguments.split_whitespace());
    let mut matches = command.try_get_matches_from(words).expect("good options");
    Options::from_arg_matches_mut(&mut matches).expect("good options")
}

fn planned(arguments: &str) -> Vec<PlannedJob> {
    plan(&options(arguments)).expect("a plan")
}

fn folders(arguments: &str) -> Vec<String> {
    planned(arguments).into_iter().map(|run| run.planned.folder).collect()
}

#[test]
fn lists_make_their_product_and_a_name_says_what_differs() {
    assert_eq!(folders("resnet50 --workers 1,2"), ["resnet50-w1", "resnet50-w2"]);
    assert_eq!(
        folders("resnet50 --workers 2 --layout nhwc,nchw --batch 8,16 --update sharded"),
        [
            "resnet50-sharded-in-nhwc-b8-w2",
            "resnet50-sharded-in-nhwc-b16-w2",
            "resnet50-sharded-in-nchw-b8-w2",
            "resnet50-sharded-in-nchw-b16-w2"
        ]
    );
    assert_eq!(folders("vgg_19 --workers 1 --overlap yes,no --seed 1,2").len(), 4);
    assert_eq!(folders("vgg_19 --workers 1,1,1"), ["vgg_19-w1"], "the same case counts once");
}

#[test]
fn every_option_that_names_a_value_takes_a_list() {
    for list in [
        "--workers 1,2",
        "--update allreduce,sharded",
        "--scaling weak,strong",
        "--batch 2,4",
        "--global-batch 8,16",
        "--steps 3,4",
        "--examples 3,4",
        "--threads 1,2",
        "--input 32x32,64x64",
        "--classes 10,20",
        "--data synthetic:cifar10,synthetic:imagenet",
        "--engine cpu,simulated",
        "--layout nhwc,nchw",
        "--precision fp32,bf16",
        "--compress none,bf16",
        "--bucket-mb 1,25",
        "--overlap yes,no",
        "--accumulate 1,2",
        "--pin yes,no",
        "--seed 1,2",
        "--lr 0.1,0.2",
        "--optimizer sgd,adam",
        "--lr-rule none,linear",
        "--schedule constant,cosine",
        "--warmup-epochs 0,1",
        "--momentum 0.5,0.9",
        "--weight-decay 0,0.1",
        "--label-smoothing 0,0.1",
        "--bn-momentum 0.9,0.99",
        "--augment none,standard",
    ] {
        let workers = if list.starts_with("--workers") { "" } else { "--workers 1" };
        let names = folders(&format!("mobilenet_v2 {workers} {list}"));
        assert!(names.len() == 2 && names[0] != names[1], "{list}: {names:?}");
    }
    assert_eq!(folders("mobilenet_v2 vgg_19 --workers 1,2 --layout nhwc,nchw --batch 1,2,3").len(), 24);
    plan(&options("--repeat 10000")).expect_err("too many");
}

#[test]
fn strong_scaling_shares_the_batch_out_and_refuses_what_does_not_divide() {
    let runs = planned("resnet50 --workers 1,2,4 --global-batch 64");
    let batches: Vec<usize> = runs.iter().map(|run| run.job.batch).collect();
    assert_eq!(batches, [64, 32, 16]);
    let case = &runs[2].planned.case;
    assert_eq!((case.scaling.as_deref(), case.global_batch), (Some("strong"), Some(64)));
    assert_eq!(planned("resnet50 --workers 1,3 --scaling strong")[1].job.batch, 64);
    let error = plan(&options("resnet50 --workers 3 --global-batch 64")).expect_err("64 / 3");
    assert!(error.to_string().contains("--global-batch 66"), "{error}");
}

#[test]
fn examples_are_divided_among_the_workers_in_whole_steps() {
    let steps = |arguments| planned(arguments).iter().map(|run| run.job.steps).collect::<Vec<_>>();
    assert_eq!(steps("resnet50 --workers 1,2,4 --batch 10 --examples 400"), [40, 20, 10]);
    assert_eq!(steps("resnet50 --workers 1,4 --global-batch 40 --examples 400"), [10, 10]);
    assert_eq!(steps("resnet50 --workers 2 --batch 10 --accumulate 2 --examples 90"), [3]);
    let runs = planned("resnet50 --workers 1,2 --examples 6400");
    assert!(runs[0].planned.case.same_but_workers(&runs[1].planned.case), "they make one group");
}

#[test]
fn repeats_come_in_an_order_drawn_from_the_seed() {
    let order = |arguments| -> Vec<(usize, u32)> {
        planned(arguments).iter().map(|run| (run.planned.place, run.planned.repeat)).collect()
    };
    let drawn = order("resnet50 --workers 1,2,4 --repeat 4 --seed 7");
    assert_eq!(drawn, order("resnet50 --workers 1,2,4 --repeat 4 --seed 7"));
    assert_ne!(drawn, order("resnet50 --workers 1,2,4 --repeat 4 --seed 8"));
    let mut sorted = drawn.clone();
    sorted.sort_unstable();
    assert_ne!(drawn, sorted);
    sorted.dedup();
    assert_eq!(sorted.len(), 12, "each repeat of each case once");
    let names: BTreeSet<String> = folders("resnet50 --workers 1,2 --repeat 3").into_iter().collect();
    assert_eq!(names.len(), 6);
}

#[test]
fn names_stay_short_and_differ_however_much_is_listed() {
    let all = "mobilenet_v2 --workers 1 --steps 3,4 --threads 1,2 --input 32x32,64x64 --classes 10,20 \
        --data synthetic:cifar10,synthetic:imagenet --layout nhwc,nchw --bucket-mb 1,25 --overlap yes,no \
        --accumulate 1,2 --pin yes,no --seed 1,2 --lr 0.1,0.2";
    let names: Vec<String> = folders(all);
    let different: BTreeSet<&String> = names.iter().collect();
    assert_eq!(different.len(), names.len());
    assert!(names.iter().all(|name| name.len() < 200 && !name.contains([':', '/'])));
}

#[test]
fn an_optimizer_brings_its_usual_rate_and_lr_wins_over_it() {
    let rates = |arguments: &str| -> Vec<f32> {
        planned(arguments).iter().map(|run| run.job.learning.schedule.base).collect()
    };
    assert_eq!(rates("vgg_19 --workers 1 --optimizer sgd,adam,nesterov"), [0.01, 0.001, 0.01]);
    assert_eq!(rates("vgg_19 --workers 1 --optimizer sgd,adam --lr 0.5"), [0.5, 0.5]);
    plan(&options("vgg_19 --workers 1 --optimizer adam --momentum 0.5")).expect_err("adam has none");
    plan(&options("vgg_19 --workers 1 --optimizer sgd,adam --momentum 0.5")).expect("sgd has one");
}
