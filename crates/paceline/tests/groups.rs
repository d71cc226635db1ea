//! Groups of devices on several hosts, as NCCL makes them, without a GPU: the hosts are launchers on this machine, their workers' devices
//! are its memory, and `groups/nccl.rs` stands in for NCCL. Everything between the step loop and that library is what GPUs use.

mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use training::hosts::{SECRET, case_folder, newest, numbers_add_up, somewhere, wait_for};
use training::{paceline, pictures, report};

/// 60 samples, 8 a step: 3 epochs are 22.5 steps, with a test and a checkpoint after each.
const RECIPE: &str =
    "train mobilenet_v2 --data cifar10:pictures --global-batch 8 --lr 0.05 --epochs 3 --threads 1 --pin no";
const STEPS: u64 = 23;

/// Long beside whatever a busy machine does to a host.
const PATIENT: &str = "--lease 30 --host-wait 120";

/// The folder with the library that stands in for NCCL.
fn library() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/groups/nccl.rs");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        command.args([
            "--edition",
            "2024",
            "--crate-type",
            "cdylib",
            "-C",
            "panic=abort",
            "-O",
            source,
            "-o",
        ]);
        let built = command.arg(folder.path().join("libnccl.so.2")).output().expect("a compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        folder
    });
    folder.path()
}

/// A host of a training; it is killed if it has not ended.
struct Host(Option<Child>);

impl Host {
    /// Starts one, with variables of its own.
    fn start(folder: &Path, arguments: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = paceline(folder, arguments);
        command
            .env("PACELINE_SECRET", SECRET)
            .env("PACELINE_GROUPS_ON_HOST", "1")
            .env("LD_LIBRARY_PATH", library())
            .env("STAND_IN_LOG", folder.join("joins"))
            .envs(variables.iter().copied());
        Self(Some(command.spawn().expect("the program starts")))
    }

    fn kill(&self) {
        let child = self.0.as_ref().expect("it has not ended");
        kill_process(Pid::from_child(child), Signal::KILL).expect("a process of our own");
    }

    /// How it ended, and what it said.
    fn ended(mut self) -> (Option<i32>, String) {
        let output = self.0.take().expect("it has not ended").wait_with_output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn ends_well(self) {
        let (status, said) = self.ended();
        assert_eq!(status, Some(0), "{said}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The tensors of a file, without running statistics.
fn tensors(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + len]).expect("a header");
    let values = |tensor: &Value| {
        let at = |place: usize| tensor["data_offsets"][place].as_u64().expect("an offset") as usize;
        bytes[8 + len + at(0)..8 + len + at(1)].to_vec()
    };
    let is_trained = |name: &str| {
        !["__metadata__", "moving", "running", "statistics"].iter().any(|word| name.contains(word))
    };
    header
        .iter()
        .filter(|(name, _)| is_trained(name))
        .map(|(name, tensor)| (name.clone(), values(tensor)))
        .collect()
}

/// What a training came to: its weights, and its optimizer's memory.
fn trained(run: &Path) -> [BTreeMap<String, Vec<u8>>; 2] {
    let state = run.join(format!("checkpoints/step-{STEPS:08}/state.safetensors"));
    let trained = [tensors(&run.join("weights.safetensors")), tensors(&state)];
    assert!(trained.iter().all(|tensors| tensors.len() > 50), "there is something to compare");
    trained
}

/// The same training through the hosts' memory: with two ranks a sum has one order.
fn undisturbed(folder: &Path) -> [BTreeMap<String, Vec<u8>>; 2] {
    pictures(folder);
    let output = paceline(folder, &format!("{RECIPE} --hosts 2 --local --workers 1 --out whole")).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    trained(&folder.join("whole"))
}

/// Who joined which group: names, ranks and processes, in order.
fn joins(folder: &Path) -> Vec<(String, u32, u32)> {
    let text = fs::read_to_string(folder.join("joins")).expect("somebody joined");
    let of = |line: &str| -> Option<(String, u32, u32)> {
        let mut words = line.split(' ');
        let (name, rank, _, process) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some((name.to_owned(), rank.parse().ok()?, process.parse().ok()?))
    };
    text.lines().map(|line| of(line).expect("a join")).collect()
}

/// Nobody joined a group twice, and whoever joins a new one never joins an older one again. Gives how many groups there were.
fn groups(folder: &Path) -> usize {
    let mut order: Vec<String> = Vec::new();
    let mut seats = BTreeSet::new();
    let mut last: BTreeMap<u32, usize> = BTreeMap::new();
    for (name, rank, process) in joins(folder) {
        let place = order.iter().position(|known| *known == name).unwrap_or_else(|| {
            order.push(name.clone());
            order.len() - 1
        });
        assert!(seats.insert((name, rank)), "a rank of a group is taken once");
        let before = last.insert(process, place);
        assert!(before.is_none_or(|before| before < place), "an old group was joined again");
    }
    order.len()
}

fn members_of(host: &Path) -> PathBuf {
    host.join("mobilenet_v2-w2/launcher.jsonl")
}

/// Two hosts, of which the second one's first member is struck at a point, the so many-th time that it comes there.
fn struck(folder: &Path, options: &str, strike: &str) -> [Host; 2] {
    let job = format!("{RECIPE} {PATIENT} --workers 1 --hosts 2 {options} {}", somewhere());
    let first = Host::start(folder, &format!("{job} --out host-0"), &[]);
    wait_for(&members_of(&folder.join("host-0")), "\"host\":{\"host\":0,");
    let second = Host::start(folder, &format!("{job} --out host-1"), &[("PACELINE_STRIKE", strike)]);
    [first, second]
}

#[test]
fn hosts_exchange_through_one_group_and_come_to_the_weights_of_the_wire() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder);
    let job = format!("{RECIPE} {PATIENT} --workers 1 --hosts 2 --local --out hosts");
    Host::start(folder, &job, &[]).ends_well();
    assert!(trained(&folder.join("hosts")) == whole, "the weights differ");
    assert_eq!((groups(folder), joins(folder).len()), (1, 2));
    let case = &report(&folder.join("hosts"))["cases"][0];
    assert_eq!((&case["status"], &case["steps"]), (&"done".into(), &STEPS.into()), "{case}");
    assert!(case["loss_first"].as_f64() > Some(0.0), "all logs together tell of the whole step: {case}");
    numbers_add_up(case);
}

#[test]
fn two_workers_on_each_of_two_hosts_are_four_ranks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let job = format!("{RECIPE} {PATIENT} --workers 2 --hosts 2 --local --out hosts");
    Host::start(folder, &job, &[]).ends_well();
    let ranks: BTreeSet<u32> = joins(folder).into_iter().map(|(_, rank, _)| rank).collect();
    assert_eq!((groups(folder), ranks), (1, BTreeSet::from([0, 1, 2, 3])));
    assert_eq!(newest(&folder.join("hosts")), STEPS);
}

#[test]
fn a_member_lost_at_any_point_is_replaced_in_a_new_group_and_no_step_is_lost() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = undisturbed(folder.path());
    // While the others join, while they wait for it in an exchange, and between two steps.
    for strike in ["kill@before-group:1:0", "kill@in-shard:4:0", "kill@after-flag:7:0"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path();
        pictures(folder);
        let [first, second] = struck(folder, "--elastic", strike);
        first.ends_well();
        second.ends_well();
        assert!(trained(&folder.join("host-0")) == whole, "{strike}: the weights differ");
        assert_eq!(groups(folder), 2, "{strike}");
    }
}

#[test]
fn a_lost_worker_ends_a_run_that_needs_it_with_a_checkpoint_of_the_last_step() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    // The second test and checkpoint are after step 15.
    let [first, second] = struck(folder, "", "kill@in-shard:11:0");
    let (status, said) = first.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("worker 0 was lost") && said.contains("--resume"), "{said}");
    assert_eq!(newest(&folder.join("host-0")), 10, "{said}");
    let (status, said) = second.ended();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("worker 0 was lost"), "{said}");
    assert_eq!(groups(folder), 1);
}

#[test]
fn a_lost_host_is_waited_for_and_whoever_replaces_it_gets_the_state_of_a_survivor() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder);
    let job = format!("{RECIPE} {PATIENT} --workers 1 --hosts 2 --elastic {}", somewhere());
    let first = Host::start(folder, &format!("{job} --out host-0"), &[]);
    wait_for(&members_of(&folder.join("host-0")), "\"host\":{\"host\":0,");
    let second = Host::start(folder, &format!("{job} --out host-1"), &[]);
    wait_for(&folder.join("host-0/mobilenet_v2-w2/member-0.jsonl"), "\"step\":4,");
    second.kill();
    drop(second);
    Host::start(folder, &format!("{job} --out host-2"), &[]).ends_well();
    first.ends_well();
    assert!(trained(&folder.join("host-0")) == whole, "the weights differ");
    assert_eq!(groups(folder), 2);
    assert!(case_folder(&folder.join("host-0")).join("host-2").exists(), "its log was carried");
}

#[test]
fn where_all_ranks_are_lost_at_once_the_training_goes_back_to_its_last_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder);
    // The first test and checkpoint are after step 8; both workers are killed in the eleventh step.
    let job = format!("{RECIPE} {PATIENT} --workers 1 --hosts 2 --elastic --local --out hosts");
    Host::start(folder, &job, &[("PACELINE_STRIKE", "kill@in-shard:11:0")]).ends_well();
    assert!(trained(&folder.join("hosts")) == whole, "the weights differ");
    assert!(groups(folder) >= 2);
}
