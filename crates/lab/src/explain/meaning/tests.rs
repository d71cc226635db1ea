use super::*;

fn guess(name: &str) -> Option<Meaning> {
    read(name, None).meaning
}

#[test]
fn headings_that_people_write_are_understood() {
    for (name, meaning) in [
        ("Init time (s)", InitTime),
        ("Training time (secs)", TrainTime),
        ("Time to train - TF32 (minutes)", TrainTime),
        ("Total time (s)", TotalTime),
        ("hours", TotalTime),
        ("TimeMs", TotalTime),
        ("Execution Time (ms)", TotalTime),
        ("Average time per epoch (secs)", EpochTime),
        ("time sec/epoch", EpochTime),
        ("ms/step", StepTime),
        ("s/it", StepTime),
        ("exchange ms per step", CommTime),
        ("update ms per step", PartTime),
        ("allreduce time", CommTime),
        ("communication share", CommShare),
        ("computation/communication", CommRatio),
        ("tensor.numpy() time", PartTime),
        ("Examples/s", Rate),
        ("images per second", Rate),
        ("Images processed per sec", Rate),
        ("images_per_s", Rate),
        ("Throughput - TF32 (tok/s)", Rate),
        ("throughput per GPU", RatePerWorker),
        ("total images/sec", RateGlobal),
        ("Speedup Ratio", Speedup),
        ("speed up vs 1 GPU", Speedup),
        ("Strong Scaling - FP32", Speedup),
        ("scaling efficiency", Efficiency),
        ("Top-1 accuracy", Accuracy),
        ("Maximum memory", Memory),
        ("Batch size / GPU", Batch),
        ("epochs", Epochs),
    ] {
        assert_eq!(guess(name), Some(meaning), "{name}");
    }
    for other in
        ["colour", "GPU util", "GPU power", "ideal speed-up", "learning rate", "GB/s", "TFLOPS", "top1 error"]
    {
        assert_eq!(guess(other), None, "{other}");
    }
}

#[test]
fn a_qualifier_is_what_a_heading_says_beyond_its_measure() {
    let qualifier = |name: &str| read(name, None).qualifier.into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(qualifier("Throughput - TF32 (img/s)"), "tf32");
    assert_eq!(qualifier("**Mixed Precision Strong Scaling**"), "mixed");
    assert_eq!(qualifier("Strong Scaling - AMP"), "mixed");
    assert_eq!(qualifier("speed up vs 1 GPU"), "");
    assert_eq!(qualifier("images/sec (batch 64)"), "64 batch");
    assert_eq!(qualifier("PyTorch time"), "pytorch");
}

#[test]
fn a_heading_counts_workers_only_if_it_says_nothing_else() {
    for name in [
        "GPUs",
        "# of GPUs",
        "num_gpus",
        "gpu_num",
        "Number of workers",
        "world size",
        "Processes",
        "CPU cores",
        "Threads / Ranks",
        "Number of processes (p)",
        "Number of physical cores",
        "cpus-per-task (or threads)",
        "nr_threads",
        "GPUs (V100)",
        "#threads",
    ] {
        assert_eq!(counted(name), Some(Counts::Devices), "{name}");
    }
    assert_eq!(counted("GPUs per node"), Some(Counts::OnEach));
    assert_eq!(counted("gpus/node"), Some(Counts::OnEach));
    assert_eq!(counted("node_num"), Some(Counts::Nodes));
    for name in [
        "GPU memory",
        "CUDA_VISIBLE_DEVICES",
        "GPU type",
        "batch per GPU",
        "GPU hours",
        "N",
        "Model",
        "rank",
        "Matrix size",
    ] {
        assert_eq!(counted(name), None, "{name}");
    }
}

#[test]
fn a_meaning_is_found_by_its_name() {
    for meaning in [Workers, InitTime, RatePerWorker, CommShare, Ignore] {
        assert_eq!(meaning.name().parse(), Ok(meaning));
    }
    assert_eq!(RatePerWorker.name(), "rate-per-worker");
    assert!("speed".parse::<Meaning>().expect_err("unknown meaning").contains("`rate-per-worker`"));
}
