//! Connections over loopback, good and bad.

mod callers;
mod cut;
mod damage;
mod exchange;
mod letters;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use paceline_record::Host;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::*;
use crate::Deadline;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Long enough for the slowest machine; what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

fn terms(secrecy: Secrecy) -> Terms {
    Terms::new(Secret::new(b"known to the tests alone").expect("it is long enough"), secrecy)
}

fn deadline() -> Deadline {
    Deadline::after(LIMIT)
}

/// Lines that a door told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn teller(&self) -> impl Fn(String) + Send + 'static {
        let told = self.0.clone();
        move |line| told.lock().expect("no test panicked").push(line)
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no test panicked").clone()
    }
}

/// A door that nobody is sent away from.
fn quiet_door(terms: &Terms) -> Door {
    Door::open(LOOPBACK, terms, |line| panic!("{line}")).expect("a door")
}

/// The next visitor, however long it takes.
fn await_visitor(door: &Door) -> Visitor {
    let deadline = deadline();
    loop {
        if let Some(visitor) = door.next() {
            return visitor;
        }
        assert!(!deadline.has_passed(), "nobody came");
        wait_readable(door, Duration::from_secs(1));
    }
}

fn wait_readable(source: &impl AsFd, wait: Duration) {
    let wait = call::timespec(wait);
    poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&wait)).expect("poll");
}

/// Both ends of one connection, the caller's first.
fn connect(door: &Door, terms: &Terms, greeting: &[u8]) -> (Stream, Visitor) {
    thread::scope(|scope| {
        let called = scope.spawn(|| call(door.address(), terms, greeting, deadline()).expect("a call"));
        let visitor = await_visitor(door);
        (called.join().expect("no panic"), visitor)
    })
}

/// Streams between each two of some hosts: what each host has to each other.
fn mesh(hosts: u32, streams: usize, terms: &Terms) -> Vec<Vec<(Host, Vec<Stream>)>> {
    let door = quiet_door(terms);
    let mut mesh: Vec<Vec<(Host, Vec<Stream>)>> = (0..hosts).map(|_| Vec::new()).collect();
    for a in 0..hosts {
        for b in a + 1..hosts {
            let pairs = (0..streams)
                .map(|_| connect(&door, terms, b""))
                .map(|(caller, visitor)| (caller, visitor.stream));
            let (here, there) = pairs.unzip();
            mesh[a as usize].push((Host(b), here));
            mesh[b as usize].push((Host(a), there));
        }
    }
    mesh
}

/// Something to wait for that never happens.
fn silence() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("an event")
}

/// Messages that are expected and those that came.
#[derive(Default)]
struct Post {
    expected: HashMap<(Host, Tag), Vec<u8>>,
    arrived: Vec<(Host, Tag)>,
    sent: Vec<(Host, Tag)>,
    lost: Vec<(Host, String)>,
    /// Times that a place was asked for.
    places: usize,
}

impl Post {
    fn expect(&mut self, from: Host, tag: Tag, len: usize) {
        self.expected.insert((from, tag), vec![0; len]);
    }
}

// SAFETY: the memory belongs to the map, and no test takes it out or changes its length while a wire is alive that may write it.
unsafe impl Inbox for Post {
    fn place(&mut self, peer: Host, tag: Tag, len: usize) -> Option<*mut u8> {
        self.places += 1;
        let place = self.expected.get_mut(&(peer, tag)).filter(|place| place.len() == len);
        place.map(|place| place.as_mut_ptr())
    }

    fn arrived(&mut self, peer: Host, tag: Tag, len: usize) {
        assert_eq!(self.expected[&(peer, tag)].len(), len);
        self.arrived.push((peer, tag));
    }

    fn sent(&mut self, peer: Host, tag: Tag) {
        self.sent.push((peer, tag));
    }

    fn lost(&mut self, peer: Host, why: &str) {
        self.lost.push((peer, why.into()));
    }
}
