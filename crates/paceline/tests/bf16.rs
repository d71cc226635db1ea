//! `--engine cpu --precision bf16`: the same weights whoever computes, checkpoints that go on, other numerics refused.

mod training;

use std::fs;

use serde_json::Value;
use sha2::{Digest, Sha256};
use training::{pictures, refuse, report, run, weights};

const RECIPE: &str =
    "mobilenet_v2 --data cifar10:pictures --lr 0.02 --threads 1 --eval-every 0 --precision bf16";

#[test]
fn the_best_instruction_set_gives_the_same_weights_by_every_strategy_and_on_two_hosts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    pictures(at);
    let train = |out: &str, more: &str| {
        run(at, &format!("train {RECIPE} --global-batch 8 --shards 2 --steps 3 {more} --out {out}"));
        weights(&at.join(out), 3)
    };
    let whole = train("one", "--workers 1");
    for update in ["allreduce", "sharded", "replicated", "ps-cpu"] {
        assert!(train(update, &format!("--workers 2 --update {update}")) == whole, "{update}");
    }
    assert!(train("hosts", "--workers 1 --hosts 2 --local --pin no") == whole, "two hosts");
    let whole = train("passes", "--workers 1 --accumulate 2");
    assert!(train("both", "--workers 2 --accumulate 2") == whole, "two workers of two passes each");
}

#[test]
fn a_training_in_bf16_gives_the_same_weights_on_any_workers_and_strategy_and_after_a_resume() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = folder.path();
    pictures(at);
    let recipe = format!("{RECIPE} --instructions portable");
    let shards = format!("train {recipe} --global-batch 8 --shards 2 --steps 4");
    run(at, &format!("{shards} --workers 1 --out one"));
    let whole = weights(&at.join("one"), 4);
    run(at, &format!("{shards} --workers 2 --update sharded --out two"));
    assert!(weights(&at.join("two"), 4) == whole, "two workers");
    run(at, &format!("{shards} --elastic 1:2 --workers 2 --out elastic"));
    assert!(weights(&at.join("elastic"), 4) == whole, "members of an elastic run");
    run(at, &format!("train {recipe} --global-batch 8 --shards 2 --steps 2 --workers 1 --out half"));
    run(at, "train --resume half --steps 4");
    assert!(weights(&at.join("half"), 4) == whole, "resumed");

    run(at, &format!("{} --workers 1 --out fp32", shards.replace("bf16", "fp32")));
    assert!(weights(&at.join("fp32"), 4) != whole, "fp32 is another training");
    let case: &Value = &report(&at.join("one"))["cases"][0];
    assert_eq!(case["precision"], "bf16");

    // Its checkpoint is tested as the training was: in the same precision, on the same instruction set.
    let recipe = recipe.replace("--eval-every 0", "--epochs 1 --global-batch 8 --layout nchw");
    run(at, &format!("train {recipe} --workers 1 --out tested"));
    let case: &Value = &report(&at.join("tested"))["cases"][0];
    let in_training = case["learning"]["test"]["loss"].as_f64().expect("a loss");
    let eval = |more: &str| -> (Value, String) {
        let output = run(at, &format!("eval tested --batch 8 --json {more}"));
        let said = String::from_utf8(output.stderr).expect("text");
        (serde_json::from_slice(&output.stdout).expect("JSON"), said)
    };
    let loss = |tested: &Value| tested["loss"].as_f64().expect("a loss");
    let other = "the training was computed with";
    let (tested, said) = eval("");
    assert_eq!((&tested["precision"], &tested["instructions"]), (&"bf16".into(), &"portable".into()));
    assert!(!said.contains(other), "{said}");
    assert!((loss(&tested) - in_training).abs() < 1e-6 * in_training, "{tested}, in training {in_training}");
    let (tested, said) = eval("--precision fp32");
    assert!((loss(&tested) - in_training).abs() > 1e-6 * in_training, "{tested}, in training {in_training}");
    assert_eq!(said.contains(other), tested["instructions"] != "portable", "{said}");

    // Where a machine lacks the training's instruction set, its best one computes, and is named.
    let manifest = at.join("tested/checkpoints/step-00000008/checkpoint.json");
    let text = fs::read_to_string(&manifest).expect("a manifest");
    let text = text.replace("\"portable\"", "\"avx4096\"");
    // The manifest's own checksum is that of the file without it.
    let seal: Value = serde_json::from_str(&text).expect("JSON");
    let unsealed = text.replace(seal["sha256"].as_str().expect("a checksum"), "");
    let sum: String = Sha256::digest(&unsealed).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&manifest, unsealed.replace("\"sha256\": \"\"", &format!("\"sha256\": \"{sum}\"")))
        .expect("room");
    let (tested, said) = eval("");
    let here = tested["instructions"].as_str().expect("a name");
    assert!(said.contains(here) && said.contains(&format!("{other} avx4096")), "{said}");

    let words = refuse(at, "train --resume half --steps 6 --instructions avx2");
    assert!(words.contains("--instructions avx2") && words.contains("portable"), "{words}");
    run(at, "train --resume half --steps 6 --instructions portable");

    let words = refuse(at, "train --resume half --steps 8 --precision fp32");
    assert!(words.contains("precision") && words.contains("bf16") && words.contains("fp32"), "{words}");
    let words = refuse(at, "train --resume fp32 --steps 6 --precision bf16");
    assert!(words.contains("precision") && words.contains("bf16") && words.contains("fp32"), "{words}");
}
