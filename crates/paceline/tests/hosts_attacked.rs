//! Ten thousand bad connections to the first host of a training: it ends with the same bits, and they take little of its memory, few
//! of its descriptors and few lines of its log.

mod training;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::Deadline;
use paceline_comm::wire::{Secrecy, Secret, Terms, call};
use training::{paceline, pictures, run, weights};

const CALLERS: usize = 10_000;
const THREADS: usize = 4;

/// Silent connections that each thread leaves standing.
const STANDING: usize = 50;

const SECRET: &str = "a secret of many bytes";

const RECIPE: &str = "train mobilenet_v2 --data cifar10:pictures --global-batch 8 --shards 4 --lr 0.05 --threads 1 --pin no --epochs 16 --eval-every 16 --checkpoint-every 16";
const STEPS: u64 = 120;

const PATIENCE: Duration = Duration::from_secs(120);

/// A host, started; it is killed if it has not ended.
struct Launcher(Child);

impl Launcher {
    fn start(folder: &Path, arguments: &str) -> Self {
        Self(paceline(folder, arguments).env("PACELINE_SECRET", SECRET).spawn().expect("the program starts"))
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a process of our own").is_some()
    }

    fn ends_well(mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert!(self.0.wait().expect("it ends").success(), "{said}");
        said
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of several kinds of bad callers. Whatever the door does with it is right.
fn be_bad(number: usize, address: SocketAddr, standing: &mut Vec<TcpStream>) {
    let terms =
        |secret: &str| Terms::new(Secret::new(secret.as_bytes()).expect("it is long enough"), Secrecy::Plain);
    let by = Deadline::after(Duration::from_secs(60));
    let head = |version: u8| [&b"paceline"[..], &[version], b"\0\0\0\0\0\0\0\x30\0"].concat();
    let words: Vec<u8> = match number % 8 {
        0 => Vec::new(),
        1 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        2 => [head(1), b"half of a message".to_vec()].concat(),
        3 => [head(1), vec![7; 48]].concat(),
        4 => [head(9), vec![7; 48]].concat(),
        5 => {
            let _ = call(address, &terms("a wrong secret, also long"), b"{}", by);
            return;
        }
        6 if number.is_multiple_of(5) => {
            // It knows the secret, and says what nobody says.
            let _ = call(address, &terms(SECRET), b"\xff\0 garbage", by);
            return;
        }
        _ => {
            if standing.len() == STANDING {
                standing.remove(0);
            }
            standing.extend(TcpStream::connect(address));
            return;
        }
    };
    let _ = TcpStream::connect(address).and_then(|mut socket| socket.write_all(&words));
}

/// The most memory that a process has held, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

fn wait_for(path: &Path, text: &str) {
    let begin = Instant::now();
    while !fs::read_to_string(path).is_ok_and(|found| found.contains(text)) {
        assert!(begin.elapsed() < PATIENCE, "{text} is not in {}", path.display());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ten_thousand_bad_connections_change_no_bit_and_take_little() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    pictures(folder);
    run(folder, &format!("{RECIPE} --workers 1 --out whole"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let job = format!("{RECIPE} --workers 1 --hosts 2 --lease 30 --rendezvous tcp://{address}");
    let mut first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    let second = Launcher::start(folder, &format!("{job} --out second"));
    wait_for(&folder.join("first/mobilenet_v2-w2/member-0.jsonl"), "\"step\":3,");

    let pid = first.0.id();
    let (before, open) = (peak(pid), descriptors(pid));
    let attack = |thread: usize| {
        let mut standing = Vec::new();
        for number in (thread..CALLERS).step_by(THREADS) {
            be_bad(number / THREADS, address, &mut standing);
        }
    };
    let most_open = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || attack(thread))).collect();
        let mut most_open = open;
        while threads.iter().any(|thread| !thread.is_finished()) {
            most_open = most_open.max(descriptors(pid));
            thread::sleep(Duration::from_millis(2));
        }
        most_open
    });
    assert!(!first.has_ended(), "all of them came while the training ran");
    let grown = peak(pid) - before;
    assert!(most_open < open + 200, "{most_open} descriptors, {open} before");
    assert!(grown < 64 << 20, "{grown} bytes more");

    second.ends_well();
    let said = first.ends_well();
    let lines = said.lines().filter(|line| line.contains("sent away") || line.contains("such lines")).count();
    assert!(lines > 0 && lines < 100, "{lines} lines: {said}");
    assert!(said.contains("more such lines"), "{said}");
    let (attacked, whole) = (folder.join("first"), folder.join("whole"));
    assert!(weights(&attacked, STEPS) == weights(&whole, STEPS), "the weights differ");
}
