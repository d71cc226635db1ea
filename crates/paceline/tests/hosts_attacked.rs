//! Ten thousand bad connections to the first host of a training: it ends with the same bits, and they take little of its memory, few
//! of its descriptors and few lines of its log.

mod training;

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use paceline_comm::Deadline;
use paceline_comm::wire::{Secrecy, Secret, Terms, call};
use training::hosts::{LONG, LONG_STEPS, Launcher, RECIPE, SECRET, somewhere, undisturbed, wait_for};
use training::weights;

const CALLERS: usize = 10_000;
const THREADS: usize = 4;

/// Silent connections that each thread leaves standing.
const STANDING: usize = 50;

/// Once in the end, so that the training is all the callers meet.
const RARELY: &str = "--eval-every 16 --checkpoint-every 16";

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
fn peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn ten_thousand_bad_connections_change_no_bit_and_take_little() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let whole = undisturbed(folder, &format!("{LONG} {RARELY}"), LONG_STEPS);
    let meet = somewhere();
    let address = meet.rsplit('/').next().and_then(|at| at.parse().ok()).expect("an address");
    let job = format!("{RECIPE} {LONG} {RARELY} --workers 1 --hosts 2 --lease 30 {meet}");
    let mut first = Launcher::start(folder, &format!("{job} --out first"));
    wait_for(&folder.join("first/study.json"), "mobilenet");
    let second = Launcher::start(folder, &format!("{job} --out second"));
    wait_for(&folder.join("first/mobilenet_v2-w2/member-0.jsonl"), "\"step\":3,");

    let pid = first.id().as_raw_nonzero().get();
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
    let (status, said) = first.ended();
    assert_eq!(status, Some(0), "{said}");
    let lines = said.lines().filter(|line| line.contains("sent away") || line.contains("such lines")).count();
    assert!(lines > 0 && lines < 100, "{lines} lines: {said}");
    assert!(said.contains("more such lines"), "{said}");
    assert!(weights(&folder.join("first"), LONG_STEPS) == whole, "the weights differ");
}
