//! `--engine cpu --precision bf16`: the same weights whoever computes, checkpoints that go on, other numerics refused.

mod training;

use serde_json::Value;
use training::{pictures, refuse, report, run, weights};

const RECIPE: &str = "mobilenet_v2 --data cifar10:pictures --lr 0.02 --threads 1 --eval-every 0 --precision bf16 --instructions portable";

#[test]
fn a_training_in_bf16_gives_the_same_weights_on_any_workers_and_strategy_and_after_a_resume() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    pictures(at);
    let shards = format!("train {RECIPE} --global-batch 8 --shards 2 --steps 4");
    run(at, &format!("{shards} --workers 1 --out one"));
    let whole = weights(&at.join("one"), 4);
    run(at, &format!("{shards} --workers 2 --update sharded --out two"));
    assert!(weights(&at.join("two"), 4) == whole, "two workers");
    run(at, &format!("{shards} --elastic 1:2 --workers 2 --out elastic"));
    assert!(weights(&at.join("elastic"), 4) == whole, "members of an elastic run");
    run(at, &format!("train {RECIPE} --global-batch 8 --shards 2 --steps 2 --workers 1 --out half"));
    run(at, "train --resume half --steps 4");
    assert!(weights(&at.join("half"), 4) == whole, "resumed");

    run(at, &format!("{} --workers 1 --out fp32", shards.replace("bf16", "fp32")));
    assert!(weights(&at.join("fp32"), 4) != whole, "fp32 is another training");
    let case: &Value = &report(&at.join("one"))["cases"][0];
    assert_eq!(case["precision"], "bf16");

    // Its checkpoint is tested as the training was: in the same precision, on the same instruction set.
    let recipe = RECIPE.replace("--eval-every 0", "--epochs 1 --global-batch 8 --layout nchw");
    run(at, &format!("train {recipe} --workers 1 --out tested"));
    let case: &Value = &report(&at.join("tested"))["cases"][0];
    let in_training = case["learning"]["test"]["loss"].as_f64().expect("a loss");
    let eval = |more: &str| -> Value {
        let output = run(at, &format!("eval tested --batch 8 --json {more}"));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let loss = |tested: &Value| tested["loss"].as_f64().expect("a loss");
    let tested = eval("");
    assert_eq!(tested["precision"], "bf16");
    assert!((loss(&tested) - in_training).abs() < 1e-6 * in_training, "{tested}, in training {in_training}");
    let tested = eval("--precision fp32");
    assert!((loss(&tested) - in_training).abs() > 1e-6 * in_training, "{tested}, in training {in_training}");

    let words = refuse(at, "train --resume half --steps 6 --instructions avx2");
    assert!(words.contains("--instructions avx2") && words.contains("portable"), "{words}");
    run(at, "train --resume half --steps 6 --instructions portable");

    let words = refuse(at, "train --resume half --steps 8 --precision fp32");
    assert!(words.contains("precision") && words.contains("bf16") && words.contains("fp32"), "{words}");
    let words = refuse(at, "train --resume fp32 --steps 6 --precision bf16");
    assert!(words.contains("precision") && words.contains("bf16") && words.contains("fp32"), "{words}");
}
