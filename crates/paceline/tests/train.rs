//! `paceline train` and `paceline eval`: the same weights on any number of workers, across checkpoints, and after a kill.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

mod training;

use serde_json::Value;
use training::{EACH, paceline, pictures, refuse, report, run, weights};

/// Weights after some steps do not depend on who ran which shard, by which strategy.
fn same_weights_on_any_number_of_workers(model: &str, steps: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let train = |update: &str, workers: u32| {
        let out = format!("{update}-{workers}");
        run(
            folder.path(),
            &format!(
                "train {model} --data cifar10:pictures --steps {steps} --global-batch 8 --shards 4 --lr 0.02 --threads 1 \
                 --checkpoint-every 0 --eval-every 0 --update {update} --workers {workers} --out {out}"
            ),
        );
        weights(&folder.path().join(out), steps)
    };
    let one = train("allreduce", 1);
    for update in ["allreduce", "sharded", "ps-cpu"] {
        for workers in [2, 3, 4] {
            assert!(train(update, workers) == one, "{update} on {workers} workers");
        }
    }
}

#[test]
fn mobilenet_v2_has_the_same_weights_on_any_number_of_workers() {
    // 60 samples, 8 a step: into the third epoch.
    same_weights_on_any_number_of_workers("mobilenet_v2", 20);
}

#[test]
fn resnet50_has_the_same_weights_on_any_number_of_workers() {
    // Its steps are slow. What depends on workers shows in the first one, and momentum keeps it.
    same_weights_on_any_number_of_workers("resnet50", 4);
}

const RECIPE: &str = "mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 4 --lr 0.05 --schedule cosine \
                      --warmup-epochs 1 --weight-decay 0.001 --label-smoothing 0.1 --threads 1";

#[test]
fn a_run_that_changes_its_workers_at_a_checkpoint_ends_with_the_same_weights() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), &format!("train {RECIPE} --epochs 3 --workers 1 --out whole"));
    // 60 samples, 8 a step: 3 epochs are 22.5 steps.
    let whole = weights(&folder.path().join("whole"), 23);
    for (update, first, second) in [("allreduce", 2, 3), ("sharded", 4, 1), ("ps-cpu", 3, 4)] {
        let out = format!("cut-{update}");
        run(
            folder.path(),
            &format!("train {RECIPE} --epochs 3 --update {update} --workers {first} --out {out}"),
        );
        // Go on from the end of the first epoch, step 8, as if the rest had never been.
        run(folder.path(), &format!("train --resume {out}/checkpoints/step-00000008 --workers {second}"));
        let out = folder.path().join(out);
        assert!(weights(&out, 23) == whole, "{update}, {first} and then {second} workers");
        let report = report(&out);
        let cases = report["cases"].as_array().expect("cases");
        assert_eq!(cases.len(), 2, "both runs are reported");
        assert_eq!(cases[1]["steps"], 15);
    }
}

#[test]
fn every_optimizer_resumes_bit_for_bit_and_none_becomes_another() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    for optimizer in ["sgd --momentum 0.8", "sgd --momentum 0", "nesterov", "adam"] {
        let name = optimizer.replace(' ', "-");
        let recipe = format!(
            "mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 2 --threads 1 --lr 0.002 \
             --eval-every 0 --checkpoint-every 0 --weight-decay 0.001 --optimizer {optimizer}"
        );
        run(folder.path(), &format!("train {recipe} --steps 7 --workers 2 --out whole-{name}"));
        run(folder.path(), &format!("train {recipe} --steps 4 --workers 1 --out cut-{name}"));
        run(folder.path(), &format!("train --resume cut-{name} --steps 7 --workers 2"));
        let [whole, cut] =
            ["whole", "cut"].map(|run| weights(&folder.path().join(format!("{run}-{name}")), 7));
        assert!(whole == cut, "{optimizer}");
    }
    let final_weights = |name: &str| weights(&folder.path().join(name), 7).0;
    assert!(final_weights("whole-nesterov") != final_weights("whole-adam"), "they are different rules");
    for (arguments, expected) in [
        ("train --resume cut-adam --steps 9 --optimizer sgd", "--optimizer adam, not --optimizer sgd"),
        ("train --resume cut-nesterov --steps 9 --momentum 0.5", "--momentum 0.9, not --momentum 0.5"),
        ("train mobilenet_v2 --optimizer nesterov --momentum 0", "--momentum"),
        ("train mobilenet_v2 --optimizer lion", "nesterov"),
    ] {
        let said = refuse(folder.path(), arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}

#[test]
fn a_kill_at_any_moment_leaves_a_good_checkpoint_to_go_on_from_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let recipe = "mobilenet_v2 --data cifar10:pictures --global-batch 4 --shards 2 --threads 1 --checkpoint-every 0.06 \
                  --eval-every 0 --keep 2";
    let mut command = format!("train {recipe} --steps 100000 --workers 2 --out cut");
    for kill in 0..100 {
        let before = newest_step(&folder.path().join("cut"));
        let mut child = paceline(folder.path(), &command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // A checkpoint a step: once the first is there, most of the time goes to writing the next.
        while newest_step(&folder.path().join("cut")) == before {
            let ended = child.try_wait().expect("a process of ours");
            assert!(
                ended.is_none(),
                "kill {kill}: it resumes from a good checkpoint, but ended with {ended:?}"
            );
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(kill * 7919 % 40_000));
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        command = format!("train --resume cut --workers {}", 1 + kill % 2);
    }
    let steps = newest_step(&folder.path().join("cut")).expect("a checkpoint") + 2;
    run(folder.path(), &format!("train --resume cut --steps {steps}"));
    run(folder.path(), &format!("train {recipe} --steps {steps} --checkpoint-every 0 --out whole"));
    let [whole, cut] = ["whole", "cut"].map(|run| weights(&folder.path().join(run), steps));
    assert!(whole == cut, "after {steps} steps");
}

/// The step of the newest checkpoint.
fn newest_step(run: &Path) -> Option<u64> {
    let names = fs::read_dir(run.join("checkpoints")).ok()?.flatten();
    let step = |name: &str| name.strip_prefix("step-")?.parse().ok();
    names.filter_map(|entry| step(entry.file_name().to_str()?)).max()
}

#[test]
fn a_test_says_the_same_in_the_run_and_afterwards() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(
        folder.path(),
        "train mobilenet_v2 --data cifar10:pictures --epochs 2 --batch 6 --workers 2 --out run",
    );
    let log = fs::read_to_string(folder.path().join("run/mobilenet_v2-w2/rank-0.jsonl")).expect("a log");
    let evaluations: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter_map(|event| event.get("evaluated").cloned())
        .collect();
    assert_eq!(evaluations.len(), 2, "one after each epoch");
    for path in ["run", "run/checkpoints/step-00000010"] {
        let output = run(folder.path(), &format!("eval {path} --json --batch 5"));
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(said["examples"], EACH);
        assert_eq!(said["correct"], evaluations[1]["correct"]);
        let [loss, run_loss] = [&said["loss"], &evaluations[1]["loss"]].map(|v| v.as_f64().expect("a loss"));
        assert!((loss - run_loss).abs() < 1e-5, "{loss} and {run_loss}");
    }
    let said = refuse(folder.path(), "eval run/weights.safetensors");
    assert!(said.contains("--data"), "a bare file does not know its data: {said}");
    run(folder.path(), "eval run/weights.safetensors --data cifar10:pictures");
}

#[test]
fn an_autoencoder_is_judged_by_its_pictures() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(
        folder.path(),
        "train image_compression --data cifar10:pictures --steps 6 --batch 4 --eval-every 0 --out run",
    );
    let output = run(folder.path(), "eval run --json --picture sheet.png");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&said["correct"], &said["accuracy"]), (&Value::Null, &Value::Null));
    assert!(said["psnr_db"].as_f64().is_some_and(|psnr| (2.0..60.0).contains(&psnr)), "{said}");
    let picture = fs::File::open(folder.path().join("sheet.png")).expect("a picture");
    let reader = png::Decoder::new(std::io::BufReader::new(picture)).read_info().expect("a PNG");
    // Eight and then four columns of pairs of 32x32.
    assert_eq!((reader.info().width, reader.info().height), (8 * 36 + 4, 2 * 70 + 4));
}

#[test]
fn every_sample_is_used_once_an_epoch_whoever_gets_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    let recipe = "train mobilenet_v2 --data cifar10:pictures --epochs 2 --global-batch 21 --lr 0.01 --threads 1 \
                  --eval-every 0 --checkpoint-every 0 --log-samples --shards 3 --workers 2 --out run";
    run(folder.path(), recipe);
    let mut counts = vec![[0; 5 * EACH]; 3];
    for rank in 0..2 {
        let path = folder.path().join(format!("run/mobilenet_v2-w2/samples-{rank}.txt"));
        for line in fs::read_to_string(path).expect("a list of samples").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let epoch: usize = words[0].parse().expect("an epoch");
            for index in &words[3..] {
                counts[epoch][index.parse::<usize>().expect("an index")] += 1;
            }
        }
    }
    // 120 samples are 5.7 steps of 21: the sixth takes six from the third epoch.
    assert!(counts[..2].iter().flatten().all(|&count| count == 1), "{counts:?}");
    assert_eq!(counts[2].iter().sum::<u32>(), 6);
}

#[test]
fn a_training_that_was_ended_after_its_last_step_gets_its_weights_when_it_is_resumed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), "train mobilenet_v2 --data cifar10:pictures --epochs 1 --batch 8 --out run");
    let path = folder.path().join("run/weights.safetensors");
    let weights = fs::read(&path).expect("weights");
    fs::remove_file(&path).expect("it is there");
    run(folder.path(), "train --resume run");
    assert_eq!(fs::read(&path).expect("weights"), weights);
    run(folder.path(), "train --resume run --out elsewhere");
    assert_eq!(fs::read(folder.path().join("elsewhere/weights.safetensors")).expect("weights"), weights);
    assert!(refuse(folder.path(), "train --resume run").contains("nothing is left to do"));
}

#[test]
fn a_checkpoint_that_cannot_be_resumed_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), "train mobilenet_v2 --data cifar10:pictures --epochs 1 --batch 8 --out run");
    let weights_before = fs::read(folder.path().join("run/weights.safetensors")).expect("weights");
    for (arguments, expected) in [
        ("train --resume run", "nothing is left to do"),
        ("train --resume run --epochs 2 --seed 5", "--seed 0, not --seed 5"),
        ("train resnet50 --resume run --epochs 2", "resnet50"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume pictures", "pictures"),
        ("train mobilenet_v2 --data cifar10:pictures --out run", "--resume run"),
        ("train --resume run --epochs 2 --workers 9", "use at most 8"),
        ("train", "MODEL"),
        ("train mobilenet_v2 --batch 8 --global-batch 16", "cannot be used with"),
        ("train mobilenet_v2 --steps 8 --epochs 2", "cannot be used with"),
        ("train mobilenet_v2 --epochs 0", "above 0"),
        ("train mobilenet_v2 --data cifar10:pictures --classes 5 --out run --fresh", "10 classes"),
    ] {
        let said = refuse(folder.path(), arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }
    let path = folder.path().join("run/checkpoints/step-00000008/state.safetensors");
    let mut bytes = fs::read(&path).expect("a state");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).expect("a damaged state");
    let said = refuse(folder.path(), "train --resume run --epochs 2");
    assert!(said.contains("state.safetensors"), "{said}");
    let kept = fs::read(folder.path().join("run/weights.safetensors")).expect("weights");
    assert!(kept == weights_before, "what was refused has changed nothing");
}

#[test]
fn data_may_move_but_not_change_where_a_training_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), "train mobilenet_v2 --data cifar10:pictures --epochs 1 --batch 8 --out run");
    let elsewhere = tempfile::tempdir().expect("another folder");
    let path = folder.path().display();
    run(elsewhere.path(), &format!("train --resume {path}/run --steps 9"));
    run(elsewhere.path(), &format!("eval {path}/run --json"));
    fs::rename(folder.path().join("pictures"), folder.path().join("moved")).expect("another name");
    run(folder.path(), "train --resume run --steps 10 --data cifar10:moved");
    for entry in fs::read_dir(folder.path().join("moved")).expect("the data").flatten() {
        let bytes = fs::read(entry.path()).expect("a file");
        fs::write(entry.path(), &bytes[..3073 * (EACH - 1)]).expect("a shorter file");
    }
    let said = refuse(folder.path(), "train --resume run --steps 11");
    assert!(said.contains("60 + 12 samples") && said.contains("55 + 11 samples"), "{said}");
}

#[test]
fn a_folder_with_data_and_run_moves_as_a_whole_and_options_keep_their_values() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let home = folder.path().join("home");
    pictures(&home);
    run(
        &home,
        "train mobilenet_v2 --data cifar10:pictures --epochs 1 --batch 8 --lr 0.03 --schedule cosine --accumulate 2 \
         --workers 2 --threads 1 --out run",
    );
    fs::rename(&home, folder.path().join("moved")).expect("another name");
    run(folder.path(), "train --resume moved/run --epochs 2 --workers 1");
    let report = report(&folder.path().join("moved/run"));
    let [first, second] = [0, 1].map(|place| report["cases"][place].clone());
    for setting in ["lr", "schedule", "accumulate"] {
        assert_eq!(first["settings"][setting], second["settings"][setting], "{setting}");
    }
    assert_eq!((&first["threads"], &second["threads"]), (&1.into(), &1.into()));
    assert_eq!((&second["workers"], &second["global_batch"]), (&1.into(), &16.into()));
}

#[test]
fn a_checkpoint_of_another_version_or_another_processor_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), "train mobilenet_v2 --data cifar10:pictures --steps 1 --batch 4 --out run");
    let path = folder.path().join("run/checkpoints/step-00000001/checkpoint.json");
    let text = fs::read_to_string(&path).expect("a manifest");
    let manifest: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&manifest["version"], &manifest["job"]["model"]), (&2.into(), &"mobilenet_v2".into()));
    assert_eq!(manifest["optimizer"]["state"], serde_json::json!(["momentum"]));
    assert_eq!(manifest["numerics"]["layout"], "nhwc");
    assert!(manifest["numerics"]["engine"]["instruction_set"].is_string(), "{manifest}");
    fs::write(&path, text.replacen("\"version\": 2", "\"version\": 1", 1)).expect("room");
    let said = refuse(folder.path(), "train --resume run --steps 2");
    assert!(said.contains("it has version 1, and this program reads version 2"), "{said}");
    fs::write(&path, &text).expect("room");
    for arguments in
        ["train --resume run --steps 2 --layout nchw", "train --resume run --steps 2 --precision bf16"]
    {
        let said = refuse(folder.path(), arguments);
        assert!(said.contains("cannot resume"), "{said}");
    }
    let said = refuse(folder.path(), "train mobilenet_v2 --new-numerics");
    assert!(said.contains("--resume"), "{said}");
    run(folder.path(), "train --resume run --steps 2 --new-numerics");
}

#[test]
fn a_training_takes_one_value_of_each_option() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (arguments, expected) in [
        ("train mobilenet_v2 --lr 0.1,0.2", "--lr has 2 values"),
        ("train mobilenet_v2 --workers 1,2", "--workers has 2 values"),
        ("train mobilenet_v2 --batch 8,16", "--batch has 2 values"),
        ("train mobilenet_v2 --optimizer adam --momentum 0.5", "--momentum is for sgd and nesterov"),
    ] {
        let said = refuse(folder.path(), arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}

#[test]
fn weights_are_not_judged_by_other_classes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(folder.path(), "train mobilenet_v2 --data cifar10:pictures --steps 1 --batch 4 --out run");
    for class in ["cat", "dog"] {
        fs::create_dir_all(folder.path().join("images").join(class)).expect("a folder");
        let out = folder.path().join("images").join(class).join("x.png");
        let mut encoder = png::Encoder::new(fs::File::create(out).expect("a file"), 8, 8);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().and_then(|mut png| png.write_image_data(&[7; 192])).expect("a picture");
    }
    let said = refuse(folder.path(), "eval run --data images:images");
    assert!(said.contains("2 classes"), "{said}");
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("images/dog/y.png")).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe");
    let said =
        refuse(folder.path(), "train mobilenet_v2 --data images:images --input 32x32 --steps 1 --out pipe");
    assert!(said.contains("y.png") && said.contains("not a file"), "{said}");
}

#[test]
fn bad_data_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = pictures(folder.path());
    let refuse = |expected: &str| {
        let said = refuse(folder.path(), "train mobilenet_v2 --data cifar10:pictures --epochs 1 --out run");
        assert!(said.contains(expected), "{said}");
        assert!(!folder.path().join("run").exists());
    };
    let path = data.join("data_batch_3.bin");
    let good = fs::read(&path).expect("a file");
    fs::write(&path, &good[..good.len() - 100]).expect("a shorter file");
    refuse("data_batch_3.bin");
    let mut bad = good.clone();
    bad[3073] = 77;
    fs::write(&path, &bad).expect("a wrong label");
    refuse("77");
    fs::remove_file(&path).expect("one file less");
    refuse("data_batch_3.bin");
}

#[test]
fn a_study_by_epochs_tells_accuracy_and_time_for_each_number_of_workers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    pictures(folder.path());
    run(
        folder.path(),
        "bench mobilenet_v2 --data cifar10:pictures --epochs 2 --workers 1,2 --batch 6 --lr-rule none,linear \
         --warmup-epochs 1 --lr-batch 6 --threads 1 --out study",
    );
    let report = report(&folder.path().join("study"));
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 4);
    for case in cases {
        assert_eq!(case["status"], "done");
        let workers = case["workers"].as_u64().expect("a number");
        assert_eq!(case["steps"], 20 / workers);
    }
}
