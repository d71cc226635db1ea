//! One test body over wires, hosts, sizes and faults.

use super::*;

const SIZES: [usize; 5] = [0, 1, 4097, 777_777, (1 << 20) + 3];

/// Makes wires between some hosts, one for each.
struct Kind {
    name: &'static str,
    make: fn(hosts: u32) -> Vec<Box<dyn Wire + Send>>,
}

fn tcp(hosts: u32, streams: usize, secrecy: Secrecy) -> Vec<Box<dyn Wire + Send>> {
    let mesh = mesh(hosts, streams, &terms(secrecy)).into_iter();
    mesh.map(|peers| -> Box<dyn Wire + Send> { Box::new(Tcp::new(peers, Sizes::default()).expect("a wire")) })
        .collect()
}

const KINDS: [Kind; 3] = [
    Kind { name: "plain", make: |hosts| tcp(hosts, 3, Secrecy::Plain) },
    Kind { name: "one plain stream", make: |hosts| tcp(hosts, 1, Secrecy::Plain) },
    Kind { name: "encrypted", make: |hosts| tcp(hosts, 3, Secrecy::Encrypted) },
];

/// One host. Its wire is dropped before the memory that the wire reads and writes.
struct Site {
    wire: Option<Box<dyn Wire + Send>>,
    post: Post,
    _outgoing: Vec<Vec<u8>>,
}

impl Site {
    /// A host that expects messages of these sizes from all others, and sends them such.
    fn new(own: Host, mut wire: Box<dyn Wire + Send>, sizes: &[usize]) -> Self {
        let mut post = Post::default();
        let mut outgoing = Vec::new();
        for peer in wire.peers().to_vec() {
            for (number, &len) in sizes.iter().enumerate() {
                post.expect(peer, tag(number), len);
                let bytes = content(own, peer, number, len);
                // SAFETY: the site keeps the bytes until its wire is dropped.
                unsafe { wire.send(peer, tag(number), bytes.as_ptr(), bytes.len()) };
                outgoing.push(bytes);
            }
        }
        Self { wire: Some(wire), post, _outgoing: outgoing }
    }

    fn turn(&mut self, wait: Duration) {
        if let Some(wire) = &mut self.wire {
            wire.progress(&mut self.post, silence().as_fd(), wait).expect("progress");
        }
    }

    /// Whether all messages from and to these hosts have been moved.
    fn is_done(&self, sizes: &[usize], peers: &[Host]) -> bool {
        let count = |of: &[(Host, Tag)]| of.iter().filter(|(peer, _)| peers.contains(peer)).count();
        let all = peers.len() * sizes.len();
        count(&self.post.arrived) == all && count(&self.post.sent) == all
    }

    /// All that came is what was sent.
    fn check(&self, own: Host) {
        for (from, tag) in &self.post.arrived {
            let bytes = &self.post.expected[&(*from, *tag)];
            let number = tag.0[1] as usize;
            assert!(
                *bytes == content(*from, own, number, bytes.len()),
                "message {number} of {} bytes",
                bytes.len()
            );
        }
    }
}

fn tag(number: usize) -> Tag {
    Tag([u32::MAX, number as u32, 7, 0, 0, 1])
}

/// Bytes that tell where they belong.
fn content(from: Host, to: Host, number: usize, len: usize) -> Vec<u8> {
    let mut state = u64::from(from.0) << 40 | u64::from(to.0) << 20 | number as u64;
    let draw = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(draw).collect()
}

fn sites(kind: &Kind, hosts: u32, sizes: &[usize]) -> Vec<Site> {
    println!("{} between {hosts}", kind.name);
    let wires = (kind.make)(hosts).into_iter();
    (0..hosts).zip(wires).map(|(own, wire)| Site::new(Host(own), wire, sizes)).collect()
}

/// Lets hosts take turns until all is as it should be.
fn drive(sites: &mut [Site], mut is_done: impl FnMut(&[Site]) -> bool) {
    let deadline = deadline();
    while !is_done(sites) {
        assert!(!deadline.has_passed(), "they hang");
        sites.iter_mut().for_each(|site| site.turn(Duration::ZERO));
    }
}

fn others(own: usize, hosts: u32) -> Vec<Host> {
    (0..hosts).map(Host).filter(|host| host.0 as usize != own).collect()
}

fn all_done(sites: &[Site], sizes: &[usize]) -> bool {
    let is_done = |(own, site): (usize, &Site)| site.is_done(sizes, &others(own, sites.len() as u32));
    sites.iter().enumerate().all(is_done)
}

#[test]
fn messages_of_all_sizes_arrive_between_all_hosts_and_each_once() {
    for kind in &KINDS {
        for hosts in [2, 3] {
            let mut sites = sites(kind, hosts, &SIZES);
            drive(&mut sites, |sites| all_done(sites, &SIZES));
            for (own, site) in sites.iter().enumerate() {
                site.check(Host(own as u32));
                assert_eq!(site.post.places, others(own, hosts).len() * SIZES.len());
                assert_eq!(site.post.lost, []);
            }
        }
    }
}

#[test]
fn hosts_that_wait_in_threads_of_their_own_exchange_large_messages() {
    const LARGE: [usize; 2] = [94_000_000, 94_000_001];
    let sites = sites(&KINDS[0], 2, &LARGE);
    // A host that is done keeps its wire until all are, since a closed connection is a loss to those that still need it.
    let run = |own: usize, mut site: Site| {
        let deadline = deadline();
        while !site.is_done(&LARGE, &others(own, 2)) {
            assert!(!deadline.has_passed(), "host {own} hangs");
            site.turn(Duration::from_secs(60));
        }
        site.check(Host(own as u32));
        site
    };
    let done: Vec<Site> = thread::scope(|scope| {
        let threads = sites.into_iter().enumerate().map(|(own, site)| scope.spawn(move || run(own, site)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(done.iter().all(|site| site.post.lost.is_empty()));
}

const LONG: [usize; 3] = [3 << 20, (9 << 20) + 1, 5 << 20];

#[test]
fn a_peer_that_goes_away_in_the_middle_of_messages_is_lost_and_the_others_go_on() {
    for kind in &KINDS {
        for hosts in [2, 3] {
            let mut sites = sites(kind, hosts, &LONG);
            let gone = hosts as usize - 1;
            drive(&mut sites, |sites| sites[0].post.places > 0);
            assert!(!sites[0].is_done(&LONG, &[Host(gone as u32)]));
            sites[gone].wire = None;
            drive(&mut sites, |sites| sites[..gone].iter().all(|site| !site.post.lost.is_empty()));
            drive(&mut sites, |sites| all_but(sites, gone));
            for (own, site) in sites[..gone].iter().enumerate() {
                site.check(Host(own as u32));
                let lost: Vec<Host> = site.post.lost.iter().map(|(host, _)| *host).collect();
                assert_eq!(lost, [Host(gone as u32)], "it is lost once, and nobody else");
            }
        }
    }
}

#[test]
fn what_was_sent_before_a_wire_is_dropped_arrives() {
    for kind in &KINDS {
        let mut sites = sites(kind, 2, &LONG);
        let deadline = deadline();
        for round in 0.. {
            if sites[1].is_done(&LONG, &[Host(0)]) {
                break;
            }
            assert!(!deadline.has_passed(), "they hang");
            // The other is slow, so that the end is there before it has read everything.
            sites[1].turn(Duration::ZERO);
            if round % 20 == 0 {
                sites[0].turn(Duration::ZERO);
            }
        }
        sites[1].wire = None;
        drive(&mut sites, |sites| !sites[0].post.lost.is_empty());
        assert!(sites[0].is_done(&LONG, &[Host(1)]));
        assert_eq!(sites[0].post.lost, [(Host(1), "it closed its connections".into())]);
        sites[0].check(Host(0));
    }
}

/// Whether the hosts but one are done with each other.
fn all_but(sites: &[Site], without: usize) -> bool {
    let is_done = |(own, site): (usize, &Site)| {
        let peers = others(own, sites.len() as u32).into_iter().filter(|host| host.0 as usize != without);
        own == without || site.is_done(&LONG, &peers.collect::<Vec<_>>())
    };
    sites.iter().enumerate().all(is_done)
}

#[test]
fn a_peer_that_stops_for_a_while_is_not_lost_and_the_others_go_on() {
    for kind in &KINDS {
        for hosts in [2, 3] {
            let mut sites = sites(kind, hosts, &LONG);
            let last = hosts as usize - 1;
            drive(&mut sites[..last], |running| {
                let done = |(own, site): (usize, &Site)| site.is_done(&LONG, &others(own, last as u32));
                running.iter().enumerate().all(done)
            });
            for _ in 0..100 {
                sites[..last].iter_mut().for_each(|site| site.turn(Duration::from_millis(1)));
            }
            assert!(sites.iter().all(|site| site.post.lost.is_empty()));
            assert!(!sites[0].is_done(&LONG, &[Host(last as u32)]));
            drive(&mut sites, |sites| all_done(sites, &LONG));
            sites.iter().enumerate().for_each(|(own, site)| site.check(Host(own as u32)));
        }
    }
}

#[test]
fn a_slow_peer_gets_everything() {
    for kind in &KINDS {
        let mut sites = sites(kind, 3, &LONG);
        let deadline = deadline();
        for round in 0.. {
            if all_done(&sites, &LONG) {
                break;
            }
            assert!(!deadline.has_passed(), "they hang");
            let taking_part = if round % 20 == 0 { 3 } else { 2 };
            sites[..taking_part].iter_mut().for_each(|site| site.turn(Duration::ZERO));
        }
        sites.iter().enumerate().for_each(|(own, site)| site.check(Host(own as u32)));
        assert!(sites.iter().all(|site| site.post.lost.is_empty()));
    }
}

#[test]
fn a_wire_that_has_nothing_to_do_returns_when_the_bell_rings() {
    let mut sites = sites(&KINDS[0], 2, &[]);
    let bell = eventfd(1, EventfdFlags::CLOEXEC).expect("an event");
    let Site { wire, post, .. } = &mut sites[0];
    let wire = wire.as_mut().expect("it is there");
    wire.progress(post, bell.as_fd(), Duration::MAX).expect("progress");
}

#[test]
fn messages_for_a_lost_or_unknown_host_come_to_nothing() {
    let mut sites = sites(&KINDS[0], 2, &[]);
    sites[1].wire = None;
    drive(&mut sites, |sites| !sites[0].post.lost.is_empty());
    let Site { wire, post, .. } = &mut sites[0];
    let wire = wire.as_mut().expect("it is there");
    for host in [Host(1), Host(7)] {
        // SAFETY: no byte is read of an empty message.
        unsafe { wire.send(host, tag(0), std::ptr::null(), 0) };
    }
    wire.progress(post, silence().as_fd(), Duration::ZERO).expect("progress");
    assert_eq!(post.sent, []);
    assert_eq!(post.lost, [(Host(1), "it closed its connections".into())]);
    assert_eq!(wire.peers(), [Host(1)]);
}
