//! A switch between hosts on one machine, where the kernel itself has no delay to offer: `switch DELAY_US RATE_MBIT DESCRIPTOR...`.
//!
//! Each descriptor is a TAP of one host, whose hardware address ends with its number, from 1. Frames come out late by the delay, and each host
//! receives at the rate. It ends when its standard input does. `hosts/lab.py` compiles and starts it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that wait for a host; what comes beyond them is dropped, as a switch does.
const BUFFER: usize = 1 << 20;

/// Longer than any frame.
const FRAME: usize = 1 << 14;

/// Shorter pauses than this are made up for by later ones.
const NAP: Duration = Duration::from_micros(100);

struct Port {
    tap: File,
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
}

impl Port {
    fn put(&self, due: Instant, frame: &[u8]) {
        let mut queue = self.queue.lock().expect("nobody panics");
        if queue.bytes + frame.len() <= BUFFER {
            queue.bytes += frame.len();
            queue.frames.push_back((due, frame.to_vec()));
            self.filled.notify_one();
        }
    }

    fn take(&self) -> (Instant, Vec<u8>) {
        let mut queue = self.queue.lock().expect("nobody panics");
        loop {
            if let Some((due, frame)) = queue.frames.pop_front() {
                queue.bytes -= frame.len();
                return (due, frame);
            }
            queue = self.filled.wait(queue).expect("nobody panics");
        }
    }
}

/// Carries what a host sends to those it is for.
fn receive(ports: &[Arc<Port>], from: usize, delay: Duration) {
    let mut frame = vec![0; FRAME];
    while let Ok(length) = (&ports[from].tap).read(&mut frame) {
        let due = Instant::now() + delay;
        // Any other address is for all.
        let only = (frame[..5] == [2, 0, 0, 0, 0]).then(|| usize::from(frame[5]) - 1);
        for (to, port) in ports.iter().enumerate() {
            if to != from && only.is_none_or(|only| only == to) {
                port.put(due, &frame[..length]);
            }
        }
    }
}

/// Gives a host what is for it, at its rate.
fn send(port: &Port, bytes_per_s: f64) {
    let mut free = Instant::now();
    loop {
        let (due, frame) = port.take();
        free = free.max(due) + Duration::from_secs_f64(frame.len() as f64 / bytes_per_s);
        let wait = free.saturating_duration_since(Instant::now());
        if wait > NAP {
            thread::sleep(wait);
        }
        // A host that is down receives nothing.
        let _ = (&port.tap).write(&frame);
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().expect("a number")).collect();
    let [delay, rate, taps @ ..] = &numbers[..] else {
        panic!("usage: switch DELAY_US RATE_MBIT DESCRIPTOR...")
    };
    let (delay, bytes_per_s) = (Duration::from_micros(*delay), *rate as f64 * 1e6 / 8.0);
    // SAFETY: whoever starts this hands the descriptors over, and each is named once.
    let open = |tap: &u64| unsafe { File::from_raw_fd(*tap as i32) };
    let port = |tap| Arc::new(Port { tap: open(tap), queue: Mutex::default(), filled: Condvar::new() });
    let ports: Vec<Arc<Port>> = taps.iter().map(port).collect();
    for from in 0..ports.len() {
        let (all, port) = (ports.clone(), ports[from].clone());
        thread::spawn(move || receive(&all, from, delay));
        thread::spawn(move || send(&port, bytes_per_s));
    }
    println!("ready");
    // The end of the input is the end of this.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
