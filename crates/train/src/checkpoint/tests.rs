use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use paceline_engine::Precision;
use proptest::prelude::*;

use super::*;
use crate::OptimizerKind;

fn tensor(name: &str, values: &[f32]) -> Tensor {
    Tensor { name: name.to_owned(), shape: vec![values.len()], values: values.to_vec() }
}

/// A checkpoint after so many steps, whose values follow from them.
fn checkpoint(steps: u64) -> Checkpoint {
    let at = steps as f32;
    let job = crate::job::tests::job("".as_ref());
    Checkpoint {
        numerics: Numerics::new(&job, numerics::here("cpu", job.precision).unwrap_or_default()),
        fingerprint: job.data.clone(),
        job,
        position: Position {
            steps,
            history: vec![EvalRecord {
                at: paceline_record::Nanos(17),
                steps,
                examples: 10_000,
                loss: Some(0.1 + 0.2),
                correct: Some(9_001),
            }],
            recuts: vec![Recut { steps: 2, from: 1, to: 2 }],
        },
        weights: vec![tensor("a/kernel", &[at, -0.0, 1e-40]), tensor("b/bias", &[at + 0.5])],
        optimizer: vec![tensor("momentum/a/kernel", &[0.1, at, 0.3])],
        shards: vec![tensor("shard-0/bn/moving_mean", &[at]), tensor("shard-1/bn/moving_mean", &[2.0])],
    }
}

fn keep(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("tests keep something")
}

fn root() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn names(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

fn bits(tensors: &[Tensor]) -> Vec<(&str, &[usize], Vec<u32>)> {
    tensors
        .iter()
        .map(|tensor| (&*tensor.name, &*tensor.shape, tensor.values.iter().map(|v| v.to_bits()).collect()))
        .collect()
}

#[test]
fn what_was_written_is_read_bit_for_bit() {
    let root = root();
    let odd =
        [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-45];
    let written = Checkpoint {
        weights: vec![
            tensor("a", &odd),
            tensor("empty", &[]),
            Tensor { shape: vec![2, 1, 3], ..tensor("kernel", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) },
            Tensor { shape: vec![], ..tensor("scalar", &[7.0]) },
        ],
        ..checkpoint(390)
    };
    let Written { path, bytes } = written.write(root.path(), keep(1)).expect("room");
    assert_eq!(path, root.path().join("step-00000390"));
    assert_eq!(names(&path), ["checkpoint.json", "state.safetensors", "weights.safetensors"]);
    let on_disk = names(&path).into_iter().map(|name| fs::metadata(path.join(name)).expect("a file").len());
    assert_eq!(bytes, on_disk.sum::<u64>());
    for from in [&path, root.path()] {
        let read = Checkpoint::read(from).expect("a whole checkpoint");
        assert_eq!(bits(&read.weights), bits(&written.weights));
        assert_eq!(bits(&read.optimizer), bits(&written.optimizer));
        assert_eq!(bits(&read.shards), bits(&written.shards));
        assert_eq!((&read.position, &read.job), (&written.position, &written.job));
        assert_eq!((&read.numerics, &read.fingerprint), (&written.numerics, &written.fingerprint));
    }
}

#[test]
fn the_same_weights_give_the_same_bytes_in_any_order() {
    let Checkpoint { job, mut weights, .. } = checkpoint(7);
    let network = job.network();
    let bytes = weights_file(&network, &weights);
    weights.reverse();
    assert_eq!(weights_file(&network, &weights), bytes);
    weights[0].values[0] += 1.0;
    assert_ne!(weights_file(&network, &weights), bytes);
}

#[test]
fn weights_are_read_from_a_file_alone_from_a_checkpoint_and_from_a_run() {
    let run = root();
    let written = checkpoint(7);
    let Written { path, .. } = written.write(&run.path().join(FOLDER), keep(1)).expect("room");
    let alone = run.path().join("alone.safetensors");
    fs::copy(path.join(WEIGHTS_FILE), &alone).expect("a copy");
    for from in [&alone, &path, &path.join(WEIGHTS_FILE), run.path(), &run.path().join(FOLDER)] {
        let read = read_weights(from).expect("whole weights");
        let network = Some(written.job.network());
        assert_eq!(read, Weights { tensors: written.weights.clone(), network }, "{from:?}");
    }
    fs::write(&alone, tensors::pack(None, vec![("x".to_owned(), &tensor("x", &[1.0]))])).expect("room");
    assert_eq!(read_weights(&alone).expect("a foreign file").network, None);
}

#[test]
fn weights_find_their_places_in_the_graph_and_those_of_another_network_are_refused() {
    let graph = paceline_model::zoo::build("mobilenet_v2", Some((32, 32)), 10).expect("a network");
    let fill = |graph: &Graph| -> Vec<Tensor> {
        let made = graph.params.iter().enumerate().map(|(i, param)| Tensor {
            name: param.name.clone(),
            shape: param.dims.clone(),
            values: vec![i as f32; param.len()],
        });
        made.rev().collect()
    };
    let path = Path::new("weights.safetensors");
    let values = arrange(fill(&graph), &graph, path).expect("its own weights");
    assert!(values.iter().enumerate().all(|(i, values)| values.iter().all(|&value| value == i as f32)));
    let other = paceline_model::zoo::build("mobilenet_v2", Some((32, 32)), 100).expect("a network");
    let error = arrange(fill(&other), &graph, path).expect_err("other classes").to_string();
    assert!(
        error.contains("weights.safetensors does not fit mobilenet_v2 at 32x32 with 10 classes"),
        "{error}"
    );
    assert!(error.contains("[1280, 100], not [1280, 10]"), "{error}");
    let mut many = fill(&graph);
    many.push(tensor("fc/extra", &[1.0]));
    let error = arrange(many, &graph, path).expect_err("one too many").to_string();
    assert!(error.contains("fc/extra"), "{error}");
    let error = arrange(Vec::new(), &graph, path).expect_err("nothing").to_string();
    assert!(error.contains("is missing"), "{error}");
}

#[test]
fn the_last_few_are_kept_and_what_a_killed_writer_left_is_swept() {
    let root = root();
    for leftover in [".step-00000001.new", ".step-00000000.old"] {
        fs::create_dir(root.path().join(leftover)).expect("a folder");
        fs::write(root.path().join(leftover).join(WEIGHTS_FILE), "half").expect("room");
    }
    assert_eq!(Checkpoint::newest(root.path()).expect("readable"), None, "hidden ones do not count");
    for steps in [1, 2, 10, 100_000_000] {
        checkpoint(steps).write(root.path(), keep(2)).expect("room");
    }
    assert_eq!(names(root.path()), ["step-00000010", "step-100000000"]);
    let newest = Checkpoint::newest(root.path()).expect("readable");
    assert_eq!(newest, Some(root.path().join("step-100000000")), "by number, not by name");
}

#[test]
fn a_step_that_was_saved_before_is_replaced() {
    let root = root();
    checkpoint(5).write(root.path(), keep(1)).expect("room");
    let again = Checkpoint { weights: vec![tensor("other", &[9.0])], ..checkpoint(5) };
    again.write(root.path(), keep(1)).expect("room");
    assert_eq!(Checkpoint::read(root.path()).expect("whole"), again);
    assert_eq!(names(root.path()), ["step-00000005"]);
}

#[test]
fn going_back_moves_later_checkpoints_out_of_the_way_and_never_deletes_the_one_just_written() {
    let root = root();
    for steps in [10, 20, 30] {
        checkpoint(steps).write(root.path(), keep(9)).expect("room");
    }
    checkpoint(15).write(root.path(), keep(1)).expect("room");
    assert_eq!(names(root.path()), ["step-00000015", "step-00000020", "step-00000030"]);
    Checkpoint::abandon_later(root.path(), 15).expect("renamed");
    assert_eq!(Checkpoint::read(root.path()).expect("whole"), checkpoint(15));
    checkpoint(20).write(root.path(), keep(9)).expect("room");
    Checkpoint::abandon_later(root.path(), 15).expect("renamed again");
    assert_eq!(names(root.path()), ["step-00000015", "step-00000020.abandoned", "step-00000030.abandoned"]);
}

#[test]
fn another_job_is_told_what_differs() {
    let written = checkpoint(5);
    let path = Path::new("run/checkpoints/step-00000005");
    written.check_job(path, &written.job, OnNumerics::Keep).expect("the same job");
    let mut job = Job { steps: 900, workers: 1, threads: 7, seed: 8, ..written.job.clone() };
    job.learning.set_optimizer(OptimizerKind::Adam);
    job.exchange.compress = crate::Compress::Bf16;
    job.data = "synthetic:imagenet".into();
    let error = written.check_job(path, &job, OnNumerics::Keep).expect_err("another job").to_string();
    for difference in [
        "--seed 7, not --seed 8; --compress none, not --compress bf16; --optimizer sgd, not --optimizer adam",
        "--data synthetic:cifar10, not --data synthetic:imagenet",
        "step-00000005",
        "without --resume",
    ] {
        assert!(error.contains(difference), "{error}");
    }
}

#[test]
fn a_job_resumes_on_any_number_of_workers_with_its_own_batch_and_shards() {
    let mut written = checkpoint(5);
    written.job.workers = 3;
    let path = Path::new("run/checkpoints/step-00000005");
    let mut job = written.resume(path, OnNumerics::Keep).expect("its own numerics");
    job.workers = 2;
    job.settle(8).expect("a job that can run");
    assert_eq!((job.shards(), job.global_batch(), job.threads), (3, 12, 4));
    assert_eq!(job.milestones.resumed_at, Some(5));
    written.check_job(path, &job, OnNumerics::Keep).expect("the same training");
}

#[test]
fn numerics_that_this_machine_lacks_are_refused_unless_new_ones_will_do() {
    let path = Path::new("run/checkpoints/step-00000005");
    let mut alien = checkpoint(5);
    alien.numerics.engine.instruction_set = Some("sve2".into());
    let error = alien.resume(path, OnNumerics::Keep).expect_err("no such processor").to_string();
    let here = Simd::best(Precision::Fp32).to_string();
    assert!(error.contains("sve2") && error.contains(&here) && error.contains("--new-numerics"), "{error}");
    let mut other = checkpoint(5);
    other.numerics.sum_order = SumOrder::Other("ring-7".into());
    let error = other.check_job(path, &other.job, OnNumerics::Keep).expect_err("no such order").to_string();
    assert!(error.contains("ring-7") && error.contains("binary-tree-1"), "{error}");
    for checkpoint in [alien, other] {
        let mut job = checkpoint.resume(path, OnNumerics::Renew).expect("this machine's own");
        job.settle(1).expect("a job that can run");
        assert_eq!(job.numerics, numerics::here("cpu", job.precision));
    }
    let on_a_gpu = Job { engine: "cuda".into(), ..checkpoint(5).job };
    let error =
        checkpoint(5).check_job(path, &on_a_gpu, OnNumerics::Keep).expect_err("another engine").to_string();
    assert!(error.contains("the engine") && error.contains("--new-numerics"), "{error}");
    checkpoint(5).check_job(path, &on_a_gpu, OnNumerics::Renew).expect("new numerics");
    alien_in_bf16(path);
    let mut plain = checkpoint(5);
    plain.numerics.engine.instruction_set = Some("portable".into());
    let job = plain.resume(path, OnNumerics::Keep).expect("every machine has it");
    assert_eq!(job.numerics, Some(plain.numerics.engine.clone()));
    let other = Job { numerics: checkpoint(5).job.numerics.take(), ..job.clone() };
    plain.check_job(path, &other, OnNumerics::Keep).expect("nothing else was asked for");
    let asked = paceline_engine::Numerics { instruction_set: Some("avx2".into()), ..Default::default() };
    let other = Job { numerics: Some(asked), ..job };
    let error = plain.check_job(path, &other, OnNumerics::Keep).expect_err("another set").to_string();
    assert!(error.contains("--instructions avx2") && error.contains("portable"), "{error}");
    plain.check_job(path, &other, OnNumerics::Renew).expect("other bits will do");
}

/// What this machine has is told for the precision of the training.
fn alien_in_bf16(path: &Path) {
    let mut alien = checkpoint(5);
    (alien.job.precision, alien.numerics.engine.instruction_set) = (Precision::Bf16, Some("sve2".into()));
    let error = alien.resume(path, OnNumerics::Keep).expect_err("no such processor").to_string();
    assert!(error.contains(&format!("has {};", Simd::best(Precision::Bf16))), "{error}");
}

#[test]
fn data_is_found_where_the_folder_that_holds_it_and_the_run_was_moved() {
    let root = root();
    let home = root.path().join("home");
    fs::create_dir_all(home.join("pictures")).expect("a folder");
    let mut written = checkpoint(5);
    written.job.data = format!("images:{}", home.join("pictures").display());
    written.write(&home.join("run/checkpoints"), keep(1)).expect("room");
    let moved = root.path().join("moved");
    fs::rename(&home, &moved).expect("another name");
    let read = Checkpoint::read(&moved.join("run")).expect("a whole checkpoint");
    let moved = moved.canonicalize().expect("it is there");
    assert_eq!(read.job.data, format!("images:{}", moved.join("pictures").display()));
    // The run moved by itself: the data is where it was.
    fs::create_dir_all(home.join("pictures")).expect("a folder");
    fs::rename(moved.join("run"), root.path().join("run")).expect("another place");
    let read = Checkpoint::read(&root.path().join("run")).expect("a whole checkpoint");
    assert_eq!(read.job.data, written.job.data);
}

#[test]
fn a_damaged_newest_is_an_error_that_names_the_next_good_one() {
    let root = root();
    for steps in [1, 2, 3, 4] {
        checkpoint(steps).write(root.path(), keep(9)).expect("room");
    }
    let spoil = |steps: u64, file: &str| {
        let path = root.path().join(format!("step-{steps:08}")).join(file);
        fs::write(&path, b"").expect("room");
        path
    };
    let spoilt = [spoil(4, MANIFEST_FILE), spoil(3, WEIGHTS_FILE)];
    for (from, named) in
        [(root.path().to_owned(), &spoilt[0]), (root.path().join("step-00000003"), &spoilt[1])]
    {
        for error in [Checkpoint::read(&from).map(drop), read_weights(&from).map(drop)] {
            let error = error.expect_err("damaged").to_string();
            assert!(error.starts_with(&format!("{} is damaged: ", named.display())), "{error}");
            let good = root.path().join("step-00000002");
            assert!(error.ends_with(&format!("--resume {}", good.display())), "{error}");
        }
    }
    spoil(2, STATE_FILE);
    fs::remove_file(root.path().join("step-00000001").join(STATE_FILE)).expect("it was there");
    let error = Checkpoint::read(root.path()).expect_err("nothing good is left").to_string();
    assert!(error.contains("no good checkpoint beside it"), "{error}");
    let error = Checkpoint::read(&root.path().join("step-00000001")).expect_err("a file is gone").to_string();
    assert!(error.contains("state.safetensors is damaged: it is missing"), "{error}");
}

#[test]
fn no_checkpoint_at_all_is_said_and_nothing_is_started_from_scratch() {
    let root = root();
    for path in [root.path().to_owned(), root.path().join("nowhere"), root.path().join("step-00000009")] {
        let error = Checkpoint::read(&path).expect_err("there is none").to_string();
        assert!(error.contains(&format!("no checkpoint in {}", path.display())), "{error}");
        assert!(read_weights(&path).is_err());
    }
}

#[test]
fn files_of_other_programs_and_versions_are_named_for_what_they_are() {
    let root = root();
    let Written { path, .. } = checkpoint(5).write(root.path(), keep(1)).expect("room");
    let manifest = path.join(MANIFEST_FILE);
    let text = fs::read_to_string(&manifest).expect("JSON");
    for (from, to, why) in [
        ("paceline-checkpoint", "tensorflow", "its format is 'tensorflow'"),
        ("\"version\": 2", "\"version\": 1", "it has version 1, and this program reads version 2"),
    ] {
        fs::write(&manifest, text.replacen(from, to, 1)).expect("room");
        let error = Checkpoint::read(root.path()).expect_err(why).to_string();
        assert!(error.contains(why) && error.contains("checkpoint.json"), "{error}");
    }
    let alone = root.path().join("alone.safetensors");
    let label = |label: &str| {
        let metadata = HashMap::from([("paceline".to_owned(), label.to_owned())]);
        let bytes = safetensors::serialize([("x", &tensor("x", &[1.0]))], Some(metadata)).expect("plain");
        fs::write(&alone, bytes).expect("room");
        read_weights(&alone).expect_err("a foreign label").to_string()
    };
    assert!(label("{}").contains("its label cannot be read"));
    let newer =
        r#"{"format":"paceline-weights","version":9,"model":"m","input":[1,1],"classes":1,"order":""}"#;
    assert!(label(newer).contains("version 9"));
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::F16, vec![1], &[0, 0]).expect("two bytes");
    fs::write(&alone, safetensors::serialize([("x", &view)], None).expect("plain")).expect("room");
    let error = read_weights(&alone).expect_err("half precision").to_string();
    assert!(error.contains("x is F16, and only F32 is read"), "{error}");
}

#[test]
fn a_hostile_file_is_refused_without_a_panic_and_without_taking_memory() {
    let root = root();
    let path = root.path().join("hostile.safetensors");
    let header = |length: u64, text: &str| [&length.to_le_bytes(), text.as_bytes()].concat();
    let whole = |text: &str| header(text.len() as u64, text);
    // Eight tensors of 2^61 - 1 bytes and one more: their end and the header's length wrap around to the file's length.
    let size = (1_u64 << 61) - 1;
    let mut tensors: Vec<_> = (0..8).map(|i| (i * size, (i + 1) * size)).collect();
    tensors.push((8 * size, u64::MAX));
    let wrapped: Vec<_> = tensors
        .iter()
        .map(|(from, to)| {
            format!(r#""{from}":{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
        })
        .collect();
    for bytes in [
        vec![],
        vec![1, 2, 3],
        header(u64::MAX, "{}"),
        header(u64::MAX - 7, "{}"),
        header(99_999_999, "{}"),
        header(1 << 40, "{}"),
        whole("{"),
        whole("[]"),
        whole(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#),
        whole(r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#),
        whole(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#),
        whole(&format!("{{{}}}", wrapped.join(","))),
        whole(&format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000))),
    ] {
        fs::write(&path, &bytes).expect("room");
        let error = read_weights(&path).expect_err("hostile").to_string();
        assert!(
            error.contains("hostile.safetensors is damaged: it is not a whole safetensors file"),
            "{error}"
        );
    }
    fs::File::create(&path).and_then(|file| file.set_len(1 << 42)).expect("a file of holes");
    let error = read_weights(&path).expect_err("too long").to_string();
    assert!(error.contains("more than any network has"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_truncation_and_every_flipped_bit_is_found(
        file in prop::sample::select(vec![WEIGHTS_FILE, STATE_FILE, MANIFEST_FILE]),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
        cut in any::<bool>(),
    ) {
        let root = root();
        let Written { path, .. } = checkpoint(5).write(root.path(), keep(1)).expect("room");
        let path = path.join(file);
        let mut bytes = fs::read(&path).expect("it was written");
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << bit;
        }
        fs::write(&path, bytes).expect("room");
        let error = Checkpoint::read(root.path()).expect_err("it is not what was written").to_string();
        prop_assert!(error.contains(file), "{}", error);
    }
}

/// Set for a process that writes checkpoints into the folder it names.
const WRITER: &str = "PACELINE_TEST_CHECKPOINT_ROOT";

/// Does nothing as a test of its own: it is what [`start_writer`] runs in another process.
#[test]
fn write_until_killed() {
    let Some(root) = std::env::var_os(WRITER).map(PathBuf::from) else { return };
    let first = Checkpoint::read(&root).expect("a good checkpoint to go on from").position.steps;
    let deadline = Instant::now() + Duration::from_secs(60);
    for steps in (first + 1..).take_while(|_| Instant::now() < deadline) {
        large(steps).write(&root, keep(2)).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A checkpoint of 400 kB, so that a writer is mostly inside its files.
fn large(steps: u64) -> Checkpoint {
    Checkpoint { weights: vec![tensor("kernel", &vec![steps as f32; 100_000])], ..checkpoint(steps) }
}

fn start_writer(root: &Path, command: &mut Command) -> Child {
    command
        .args(["--exact", "checkpoint::tests::write_until_killed", "--nocapture"])
        .env(WRITER, root)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tests are programs")
}

#[test]
fn a_writer_killed_at_any_moment_leaves_a_good_newest_checkpoint() {
    let root = root();
    let this = std::env::current_exe().expect("tests are programs");
    large(0).write(root.path(), keep(2)).expect("room");
    let mut seed: u64 = 42;
    let (mut steps, mut interrupted) = (0, 0);
    for _ in 0..100 {
        let mut writer = start_writer(root.path(), &mut Command::new(&this));
        // At first it must get somewhere: then it is killed at a moment nobody chose.
        let patience = Instant::now() + Duration::from_secs(20);
        while disk::list(root.path()).expect("readable").last().is_none_or(|&(newest, _)| newest == steps) {
            assert!(Instant::now() < patience, "the writer writes nothing");
            thread::sleep(Duration::from_millis(1));
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_micros(seed >> 50));
        writer.kill().expect("it runs");
        writer.wait().expect("it was killed");
        interrupted += usize::from(names(root.path()).iter().any(|name| name.starts_with('.')));
        let newest = Checkpoint::read(root.path()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(newest, large(newest.position.steps));
        assert!(newest.position.steps > steps, "the newest never goes back");
        steps = newest.position.steps;
    }
    assert!(interrupted >= 5, "only {interrupted} of 100 were killed inside a checkpoint");
}

#[test]
fn a_write_that_fails_is_an_error_and_the_checkpoints_before_it_stay() {
    let root = root();
    checkpoint(1).write(root.path(), keep(2)).expect("room");
    checkpoint(2).write(root.path(), keep(2)).expect("room");
    let this = std::env::current_exe().expect("tests are programs");
    // A file may be 50 kB long: the system then refuses in the middle of one, as a full disk does.
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" XFSZ; ulimit -f 100; exec "$@""#, "sh"]).arg(this);
    let writer = start_writer(root.path(), &mut command).wait_with_output().expect("it ends by itself");
    let said = String::from_utf8_lossy(&writer.stderr).into_owned();
    assert!(!writer.status.success(), "{said}");
    assert!(said.contains("cannot write ") && said.contains("weights.safetensors: File too large"), "{said}");
    assert_eq!(names(root.path()), ["step-00000001", "step-00000002"], "no draft is left");
    assert_eq!(Checkpoint::read(root.path()).expect("whole"), checkpoint(2));
}
