//! `--compress`: gradients that travel in 16 bits give the same bits on any number of workers and hosts, whoever was lost.

mod training;

use std::path::Path;

use training::{pictures, report, run, weights};

const RECIPE: &str = "train mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 4 --lr 0.05 --threads 1 --pin no \
                      --steps 6 --eval-every 0";

fn sent(run: &Path) -> f64 {
    let report = report(run);
    let hosts = report["cases"][0]["hosts"].as_array().expect("a table of hosts");
    hosts.iter().map(|host| host["sent_bytes"].as_f64().expect("what it sent")).sum()
}

fn check(format: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let train = |name: &str, options: &str| {
        run(folder, &format!("{RECIPE} {options} --out {name}"));
        weights(&folder.join(name), 6)
    };
    let whole = train("whole", &format!("--workers 1 --compress {format}"));
    let wide = train("wide", "--hosts 2 --local --workers 1");
    assert!(whole != wide, "it changes bits");
    for (number, options) in [
        "--workers 3",
        "--workers 2 --elastic --restarts 9 --faults kill=1@2",
        "--hosts 2 --local --workers 1",
        "--hosts 3 --local --workers 1 --elastic",
        "--hosts 2 --local --elastic 1:2 --workers 2 --restarts 9 --faults kill=1@3",
    ]
    .into_iter()
    .enumerate()
    {
        let compressed = train(&format!("run-{number}"), &format!("{options} --compress {format}"));
        assert!(compressed == whole, "{options}: the weights differ");
    }
    // Gradients and their means are nearly all that is sent.
    let fraction = sent(&folder.join("run-2")) / sent(&folder.join("wide"));
    assert!((0.5..0.55).contains(&fraction), "{fraction}");
}

#[test]
fn gradients_in_bf16_give_the_same_bits_on_any_number_of_hosts() {
    check("bf16");
}

#[test]
fn gradients_in_fp16_give_the_same_bits_on_any_number_of_hosts() {
    check("fp16");
}
