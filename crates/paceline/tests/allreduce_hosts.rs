//! `paceline allreduce --hosts`: the table of nccl-tests for hosts, which are processes on this machine that talk over loopback.

mod training;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr};

use training::hosts::somewhere;
use training::{paceline, pictures, refuse, run};

/// Long enough to meet a host on its way.
const LONG: &str =
    "8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M,8M";

/// A host, started; it is killed if it has not ended.
struct Launcher {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

/// What a host has printed, and its exit status.
struct Ended {
    code: Option<i32>,
    out: String,
    said: String,
}

impl Launcher {
    fn start(folder: &Path, arguments: &str) -> Self {
        let mut command = paceline(folder, arguments);
        let mut child =
            command.env("PACELINE_SECRET", "a secret of many bytes").spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        Self { child, stderr }
    }

    /// Waits until it has said something.
    fn says(&mut self, text: &str) {
        let mut said = String::new();
        while !said.contains(text) {
            let read = self.stderr.read_line(&mut said).expect("text");
            assert!(read > 0, "it never said '{text}': {said}");
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("a process of our own");
    }

    fn end(mut self) -> Ended {
        let (mut out, mut said) = (String::new(), String::new());
        self.stderr.read_to_string(&mut said).expect("text");
        self.child.stdout.take().expect("it is piped").read_to_string(&mut out).expect("text");
        let code = self.child.wait().expect("it ends").code();
        Ended { code, out, said }
    }

    /// What it says when it fails.
    fn fails(self) -> String {
        let Ended { code, said, .. } = self.end();
        assert_eq!(code, Some(1), "{said}");
        said
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // This fails only where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Size and wrong values of each row of a table.
fn rows(table: &str) -> Vec<(u64, u64)> {
    let numbers =
        |line: &str| line.split_whitespace().map(|cell| cell.parse().ok()).collect::<Vec<Option<f64>>>();
    let lines = table.lines().map(numbers).filter(|cells| cells.len() == 7);
    let rows = lines.filter_map(|cells| Some((cells[0]? as u64, cells[6]? as u64)));
    rows.collect()
}

#[test]
fn hosts_of_one_machine_exchange_and_get_every_value_right() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for hosts in [2, 3] {
        for more in ["", " --encrypt"] {
            let output = run(folder.path(), &format!("allreduce --hosts {hosts} --local --sizes 4,1M{more}"));
            let table = String::from_utf8(output.stdout).expect("text");
            assert_eq!(rows(&table), [(4, 0), (1 << 20, 0)], "{table}");
            assert!(table.contains(&format!("between {hosts} hosts, all on this machine")), "{table}");
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn hosts_that_meet_somewhere_measure_the_first_ones_sizes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = somewhere();
    let first = Launcher::start(folder.path(), &format!("allreduce --hosts 3 {place} --sizes 4K,64K"));
    let others =
        [0, 1].map(|_| Launcher::start(folder.path(), &format!("allreduce --hosts 3 {place} --sizes 8")));
    // Whoever comes first is the first, and any of them may be.
    let ended: Vec<Ended> = [first].into_iter().chain(others).map(Launcher::end).collect();
    assert!(ended.iter().all(|host| host.code == Some(0)), "{}", ended[0].said);
    let tables: Vec<_> = ended.iter().filter(|host| !rows(&host.out).is_empty()).collect();
    assert_eq!(tables.len(), 1);
    assert!(rows(&tables[0].out).iter().all(|&(_, wrong)| wrong == 0), "{}", tables[0].out);
    let others = ended.iter().filter(|host| host.out.contains("took part"));
    assert_eq!(others.count(), 2);
}

#[test]
fn a_lost_host_is_named_on_every_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let command = format!("allreduce --hosts 3 {} --sizes {LONG}", somewhere());
    let mut first = Launcher::start(folder.path(), &format!("{command} --host-wait 61"));
    first.says("waits for 2 other hosts");
    let second = Launcher::start(folder.path(), &command);
    first.says("is there");
    let mut third = Launcher::start(folder.path(), &command);
    first.says("is there");
    third.kill();
    for said in [first.fails(), second.fails()] {
        assert!(said.contains("host 2 (") && said.contains("was lost: "), "{said}");
    }
}

#[test]
fn nobody_outlives_the_first_host() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let command = format!("allreduce --hosts 2 {} --sizes {LONG}", somewhere());
    let mut first = Launcher::start(folder.path(), &command);
    first.says("waits for 1 other host");
    let second = Launcher::start(folder.path(), &command);
    first.says("is there");
    first.kill();
    let said = second.fails();
    assert!(said.contains("the first host (") && said.contains("cannot be reached"), "{said}");
}

#[test]
fn hosts_that_do_not_come_are_missed_on_all_that_did() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let command = format!("allreduce --hosts 3 {} --host-wait 3", somewhere());
    let mut first = Launcher::start(folder.path(), &command);
    first.says("waits for 2 other hosts");
    let second = Launcher::start(folder.path(), &command);
    for said in [first.fails(), second.fails()] {
        assert!(said.contains("2 of 3 hosts were there after 3 s"), "{said}");
    }
}

#[test]
fn a_training_and_a_measurement_send_each_others_hosts_away() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    let training = "train mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 4 --threads 1 --pin no \
                    --epochs 1 --workers 1 --hosts 2 --host-wait 60";
    let place = somewhere();
    let mut first = Launcher::start(folder, &format!("allreduce --hosts 2 {place} --sizes 4"));
    first.says("waits for 1 other host");
    let said = Launcher::start(folder, &format!("{training} {place} --out other")).fails();
    assert!(said.contains("it measures all-reduces, and runs no training"), "{said}");
    let said = Launcher::start(folder, &format!("allreduce --hosts 3 {place}")).fails();
    assert!(said.contains("--hosts is 3 there, and 2 on the first host"), "{said}");

    let place = somewhere();
    let _training = Launcher::start(folder, &format!("{training} {place} --out run"));
    let address = place.rsplit('/').next().expect("an address");
    while std::net::TcpStream::connect(address).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let said = Launcher::start(folder, &format!("allreduce --hosts 2 {place}")).fails();
    assert!(said.contains("it runs a training, and measures no all-reduces"), "{said}");
}

#[test]
fn what_does_not_go_with_hosts_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (arguments, expected) in [
        ("--hosts 2 --local --workers 2", "one worker on each"),
        ("--hosts 2 --local --pin yes", "leave --pin or --hosts out"),
        ("--hosts 1:2 --local", "say one number"),
        ("--hosts 1 --local", "use --hosts 2"),
        ("--hosts 2", "give --rendezvous"),
        ("--local", "use it with --hosts N"),
    ] {
        let said = refuse(folder.path(), &format!("allreduce {arguments}"));
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}
