//! One test body over wires, hosts, sizes and faults.

use super::*;

const SIZES: [usize; 5] = [0, 1, 4097, 777_777, (1 << 20) + 3];

/// Makes wires between some hosts, one for each.
struct Kind {
    name: &'static str,
    make: fn(hosts: u32) -> Vec<Box<dyn Wire>>,
}

fn tcp(hosts: u32, streams: usize, secrecy: Secrecy) -> Vec<Box<dyn Wire>> {
    let mesh = mesh(hosts, streams, &terms(secrecy)).into_iter();
    mesh.map(|peers| -> Box<dyn Wire> { Box::new(Tcp::new(peers, Sizes::default()).expect("a wire")) })
        .collect()
}

const KINDS: [Kind; 3] = [
    Kind { name: "plain", make: |hosts| tcp(hosts, 3, Secrecy::Plain) },
    Kind { name: "one plain stream", make: |hosts| tcp(hosts, 1, Secrecy::Plain) },
    Kind { name: "encrypted", make: |hosts| tcp(hosts, 3, Secrecy::Encrypted) },
];

fn tag(from: u32, number: usize) -> Tag {
    Tag([from, number as u32, 7, 0, u32::MAX, 1])
}

/// Bytes that tell where they belong.
fn content(from: u32, to: u32, number: usize, len: usize) -> Vec<u8> {
    let mut state = u64::from(from) << 40 | u64::from(to) << 20 | number as u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// All hosts send messages of these sizes to all others at once.
fn exchange(wires: Vec<Box<dyn Wire>>, sizes: &[usize]) {
    let hosts = wires.len() as u32;
    // A host that is done keeps its wire until all are, since a closed connection is a loss to those that still need it.
    let done: Vec<Box<dyn Wire>> = thread::scope(|scope| {
        let run = |own: u32, mut wire: Box<dyn Wire>| {
            scope.spawn(move || {
                let mut post = Post::default();
                let peers = wire.peers().to_vec();
                let mut outgoing = Vec::new();
                for &peer in &peers {
                    for (number, &len) in sizes.iter().enumerate() {
                        post.expect(peer, tag(peer.0, number), len);
                        outgoing.push((peer, tag(own, number), content(own, peer.0, number, len)));
                    }
                }
                for (peer, tag, bytes) in &outgoing {
                    // SAFETY: the bytes outlive the wire's use of them: they are dropped after all are sent.
                    unsafe { wire.send(*peer, *tag, bytes.as_ptr(), bytes.len()) };
                }
                let all = peers.len() * sizes.len();
                let (silence, deadline) = (silence(), deadline());
                while post.arrived.len() < all || post.sent.len() < all {
                    wire.progress(&mut post, silence.as_fd(), Duration::from_secs(1)).expect("progress");
                    assert!(!deadline.has_passed(), "host {own} has {} of {all}", post.arrived.len());
                    assert_eq!(post.lost, []);
                }
                assert_eq!(post.places, all);
                for ((from, Tag([_, number, ..])), bytes) in &post.expected {
                    let right = content(from.0, own, *number as usize, bytes.len());
                    assert!(*bytes == right, "message {number} of {} bytes", bytes.len());
                }
                wire
            })
        };
        let threads: Vec<_> = (0..hosts).zip(wires).map(|(own, wire)| run(own, wire)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    drop(done);
}

#[test]
fn messages_of_all_sizes_arrive_between_all_hosts() {
    for kind in &KINDS {
        for hosts in [2, 3] {
            println!("{} between {hosts}", kind.name);
            exchange((kind.make)(hosts), &SIZES);
        }
    }
}

#[test]
fn a_large_message_arrives() {
    exchange(tcp(2, 3, Secrecy::Plain), &[94_000_000, 94_000_001]);
}
