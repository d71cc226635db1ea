//! Ten thousand bad callers at a door, while a wire goes on. A program of its own: it counts the descriptors of its process.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use paceline_comm::Deadline;
use paceline_comm::wire::{
    Door, Inbox, Secrecy, Secret, Sizes, Stream, Tag, Tcp, Terms, Visitor, Wire, call,
};
use paceline_record::Host;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

const CALLERS: usize = 10_000;

const LIMIT: Duration = Duration::from_secs(300);

fn terms(secret: &[u8]) -> Terms {
    Terms::new(Secret::new(secret).expect("it is long enough"), Secrecy::Plain)
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("a list of descriptors").count()
}

fn await_visitor(door: &Door) -> Visitor {
    let deadline = Deadline::after(LIMIT);
    loop {
        if let Some(visitor) = door.next() {
            return visitor;
        }
        assert!(!deadline.has_passed(), "nobody came");
        let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(door, PollFlags::IN)], Some(&second)).expect("poll");
    }
}

/// Both ends of a connection.
fn connect(door: &Door, terms: &Terms) -> (Stream, Stream) {
    thread::scope(|scope| {
        let called =
            scope.spawn(|| call(door.address(), terms, b"good", Deadline::after(LIMIT)).expect("a call"));
        let visitor = await_visitor(door);
        assert_eq!(visitor.greeting, b"good", "nobody but good callers is let in");
        (called.join().expect("no panic"), visitor.stream)
    })
}

/// A message that goes to and fro.
struct Ball {
    memory: Vec<u8>,
    came: usize,
}

// SAFETY: the memory stays where it is as long as the wires live. Both wires are moved by one thread, and a message is sent from
// it after it has arrived there, never while another comes.
unsafe impl Inbox for Ball {
    fn place(&mut self, _: Host, _: Tag, len: usize) -> Option<*mut u8> {
        (len == self.memory.len()).then_some(self.memory.as_mut_ptr())
    }

    fn arrived(&mut self, _: Host, _: Tag, _: usize) {
        self.came += 1;
    }

    fn sent(&mut self, _: Host, _: Tag) {}

    fn lost(&mut self, _: Host, why: &str) {
        panic!("the wire broke: {why}");
    }
}

/// A wire between two hosts that are both here, and how many messages it carries until it is stopped.
fn play(streams: (Stream, Stream), is_over: &AtomicBool) -> usize {
    let make = |host, stream| Tcp::new(vec![(Host(host), vec![stream])], Sizes::default()).expect("a wire");
    let ball = || Ball { memory: vec![7; 300_000], came: 0 };
    let (mut here, mut there) = (ball(), ball());
    let (mut wire, mut other) = (make(1, streams.0), make(0, streams.1));
    let silence = eventfd(0, EventfdFlags::CLOEXEC).expect("an event");
    let mut turns = 0;
    while !is_over.load(Ordering::Relaxed) {
        // SAFETY: the memory is dropped after the wires, and nothing writes it before this has arrived.
        unsafe { wire.send(Host(1), Tag([turns as u32; 6]), here.memory.as_ptr(), here.memory.len()) };
        let deadline = Deadline::after(LIMIT);
        turns += 1;
        while there.came < turns {
            wire.progress(&mut here, silence.as_fd(), Duration::ZERO).expect("progress");
            other.progress(&mut there, silence.as_fd(), Duration::from_millis(1)).expect("progress");
            assert!(!deadline.has_passed(), "the wire stands still");
        }
    }
    turns
}

/// One of several kinds of bad callers.
fn be_bad(number: usize, address: SocketAddr, silent: &mut Vec<TcpStream>) {
    let mut socket = TcpStream::connect(address).expect("a connection");
    // The door may close the connection first.
    let _ = match number % 5 {
        0 => Ok(()),
        1 => socket.write_all(b"GET / HTTP/1.1\r\n\r\n"),
        2 => socket.write_all(b"paceline\x01\0\0\0\0\0\0\0\x30\0half of a message"),
        3 => socket.write_all(&[&b"paceline\x01\0\0\0\0\0\0\0\x30\0"[..], &[7; 48]].concat()),
        _ => {
            // Open and silent for a while.
            silent.push(socket);
            if silent.len() > 200 {
                silent.clear();
            }
            return;
        }
    };
}

#[test]
fn ten_thousand_bad_callers_disturb_nobody_and_leave_nothing() {
    let before = descriptors();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let told = lines.clone();
    let good = terms(b"known to good callers alone");
    let door = Door::open("127.0.0.1:0".parse().expect("an address"), &good, move |line| {
        told.lock().expect("no panic").push(line);
    })
    .expect("a door");
    let address = door.address();
    let streams = connect(&door, &good);
    let is_over = AtomicBool::new(false);
    let carried = thread::scope(|scope| {
        let player = scope.spawn(|| play(streams, &is_over));
        let caller = scope.spawn(|| {
            let mut silent = Vec::new();
            for number in 0..CALLERS {
                be_bad(number, address, &mut silent);
                // A good one among them is let in all the same.
                if number % 1000 == 999 {
                    connect(&door, &good);
                    let bad =
                        call(address, &terms(b"known to bad callers alone"), b"bad", Deadline::after(LIMIT));
                    assert!(bad.is_err());
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        caller.join().expect("no panic");
        player.join().expect("no panic")
    });
    assert!(carried > 0);
    assert!(door.next().is_none(), "nobody bad was let in");
    drop(door);
    assert_eq!(descriptors(), before);
    let lines = lines.lock().expect("no panic");
    println!(
        "{carried} messages meanwhile; the door said {} lines, the last: {}",
        lines.len(),
        lines[lines.len() - 1]
    );
    assert!(lines.len() < CALLERS / 50, "{} lines", lines.len());
}
