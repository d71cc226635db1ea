//! Readers of everything that comes from a wire on bytes that are damaged, torn or hostile: they refuse, or give what was sent.
//! They never panic, never write beside a message's place, and never take memory for what was only announced.
//!
//! `PACELINE_FUZZ_MINUTES=10 cargo test -p paceline-comm --lib fuzz_ -- --nocapture` goes on for ten minutes each;
//! `PACELINE_FUZZ_SEED` is where the random numbers begin.

use std::env;
use std::io::{IoSlice, Write};
use std::time::Instant;

use super::*;
use crate::wire::chunk::{HEAD, Head};
use crate::wire::handshake::Handshake;
use crate::wire::letters::Incoming;
use crate::wire::tcp::incoming::{Reader, Unfinished};

/// Cases of each reader where no minutes are asked for.
const CASES: u64 = 3000;

/// The chunks of these tests are small, so that a few bytes are many chunks.
const CHUNK: usize = 64;

/// Bytes around a message's place that nobody may write.
const FENCE: usize = 256;

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4) as u64,
            1 => u64::MAX - self.below(4) as u64,
            2 => (self.below(8) * CHUNK) as u64,
            _ => self.bits() >> self.below(64),
        }
    }
}

/// Runs a case until there were enough.
fn fuzz(name: &str, mut case: impl FnMut(&mut Draw)) {
    let number = |name: &str| {
        env::var(name)
            .ok()
            .map(|text| text.parse::<f64>().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
    };
    let (minutes, seed) =
        (number("PACELINE_FUZZ_MINUTES"), number("PACELINE_FUZZ_SEED").map_or(1, |seed| seed as u64));
    let begin = Instant::now();
    let mut cases = 0;
    while minutes.map_or(cases < CASES, |minutes| begin.elapsed().as_secs_f64() < 60.0 * minutes) {
        // A case that fails is found again by its own seed.
        let mut draw = Draw(seed + cases);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| case(&mut draw)))
            .unwrap_or_else(|_| panic!("{name} fails with PACELINE_FUZZ_SEED={}", seed + cases));
        cases += 1;
    }
    println!("{name}: {cases} cases in {:.0} s from seed {seed}, no finding", begin.elapsed().as_secs_f64());
}

/// Some damage; whether there is any.
fn damage(bytes: &mut Vec<u8>, draw: &mut Draw) -> bool {
    let whole = bytes.clone();
    for _ in 0..draw.below(4) {
        let at = draw.below(bytes.len() + 1);
        let until = (at + 1 + draw.below(80)).min(bytes.len());
        match draw.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << draw.below(8),
            1 if at < bytes.len() => bytes[at] = draw.bits() as u8,
            2 => bytes.truncate(at),
            3 if at < until => drop(bytes.drain(at..until)),
            4 if at < until => {
                let part = bytes[at..until].to_vec();
                let into = draw.below(bytes.len() + 1);
                bytes.splice(into..into, part);
            }
            5 => drop(bytes.splice(at..at, draw.bits().to_le_bytes())),
            _ => {}
        }
    }
    *bytes != whole
}

/// Places for messages between fences.
struct Fenced {
    places: Vec<(Tag, Vec<u8>)>,
    arrived: Vec<Tag>,
}

const WALL: u8 = 0xee;

impl Fenced {
    fn new(lens: &[usize]) -> Self {
        let place = |(i, len): (usize, &usize)| (Tag([i as u32; 6]), vec![WALL; len + 2 * FENCE]);
        Self { places: lens.iter().enumerate().map(place).collect(), arrived: Vec::new() }
    }

    fn check(&self) {
        for (tag, bytes) in &self.places {
            let fences = bytes[..FENCE].iter().chain(&bytes[bytes.len() - FENCE..]);
            assert!(fences.copied().all(|byte| byte == WALL), "bytes beside {tag:?} were written");
        }
    }
}

// SAFETY: the places stay where they are, and are looked at when the reader is gone.
unsafe impl Inbox for Fenced {
    fn place(&mut self, _: Host, tag: Tag, len: usize) -> Option<*mut u8> {
        let place =
            self.places.iter_mut().find(|(own, place)| *own == tag && place.len() == len + 2 * FENCE)?;
        Some(place.1[FENCE..].as_mut_ptr())
    }

    fn arrived(&mut self, _: Host, tag: Tag, _: usize) {
        self.arrived.push(tag);
    }

    fn sent(&mut self, _: Host, _: Tag) {}

    fn lost(&mut self, _: Host, _: &str) {}
}

/// Gives bytes to a reader in pieces; what it said at last.
fn read(mut bytes: &[u8], inbox: &mut Fenced, draw: &mut Draw) -> Result<bool, String> {
    let (mut reader, mut unfinished) = (Reader::new(), Unfinished::new(Host(1), CHUNK));
    while !bytes.is_empty() {
        let [payload, head] = reader.room();
        let count = (payload.len() + head.len()).min(bytes.len()).min(1 + draw.below(200));
        let (now, later) = bytes.split_at(count);
        let first = payload.len().min(count);
        payload[..first].copy_from_slice(&now[..first]);
        head[..count - first].copy_from_slice(&now[first..]);
        reader.advance(count, &mut unfinished, inbox)?;
        bytes = later;
    }
    Ok(reader.is_between() && unfinished.is_empty())
}

/// The chunks of a message, each with its head.
fn chunks(tag: Tag, content: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let parts: Vec<&[u8]> = if content.is_empty() { vec![&[]] } else { content.chunks(CHUNK).collect() };
    let chunk = |(i, part): (usize, &&[u8])| {
        let (offset, len) = ((i * CHUNK) as u64, part.len() as u32);
        let head =
            Head { tag, total: content.len() as u64, offset, len, sum: Some(crc_fast::crc32_iscsi(part)) };
        (head, part.to_vec())
    };
    parts.iter().enumerate().map(chunk).collect()
}

fn joined(chunks: &[(Head, Vec<u8>)]) -> Vec<u8> {
    chunks.iter().flat_map(|(head, bytes)| [&head.to_bytes()[..], bytes].concat()).collect()
}

#[test]
fn fuzz_chunks() {
    fuzz("fuzz_chunks", |draw| {
        let lens = [draw.below(400), draw.below(200), 0];
        let contents = lens.map(|len| (0..len).map(|_| draw.bits() as u8).collect::<Vec<u8>>());
        let mut inbox = Fenced::new(&lens);
        let mut sent: Vec<(Head, Vec<u8>)> = contents
            .iter()
            .zip(&inbox.places)
            .flat_map(|(content, (tag, _))| chunks(*tag, content))
            .collect();
        // Chunks come in any order.
        for i in (1..sent.len()).rev() {
            sent.swap(i, draw.below(i + 1));
        }
        // Whoever knows the protocol lies behind right sums.
        let is_lying = draw.below(2) == 0;
        if is_lying {
            let at = draw.below(sent.len());
            let head = &mut sent[at].0;
            match draw.below(6) {
                0 => head.total = draw.number(),
                1 => head.offset = draw.number(),
                2 => head.len = draw.number() as u32,
                3 => head.tag.0[draw.below(6)] = draw.number() as u32,
                4 => head.sum = (draw.below(4) > 0).then(|| draw.number() as u32),
                _ => sent.push(sent[at].clone()),
            }
        }
        let mut bytes = joined(&sent);
        let is_damaged = draw.below(2) == 0 && damage(&mut bytes, draw);
        let outcome = read(&bytes, &mut inbox, draw);
        inbox.check();
        if !is_lying && !is_damaged {
            assert_eq!((outcome, inbox.arrived.len()), (Ok(true), 3));
        }
        // A lie about the message of a chunk may be as good as the truth; damage never is.
        if !is_lying {
            for tag in &inbox.arrived {
                let place = &inbox.places[tag.0[0] as usize].1;
                assert_eq!(place[FENCE..place.len() - FENCE], contents[tag.0[0] as usize]);
            }
        }
    });
}

#[test]
fn every_lie_about_a_chunk_is_found() {
    let content: Vec<u8> = (0..150).collect();
    let tag = Tag([0; 6]);
    type Lie = fn(&mut [(Head, Vec<u8>)]);
    let lies: [(Lie, &str); 9] = [
        (|sent| sent[0].0.tag.0[3] = 1, "it sent a message that nobody waits for"),
        (|sent| sent[0].0.total = 151, "it sent a message that nobody waits for"),
        (
            |sent| sent[0].0.total = u64::MAX,
            "it sent a message of 18446744073709551615 bytes beside 0 others",
        ),
        (|sent| sent[1].0.total = 149, "it sent a message of 149 bytes that began with 150"),
        (|sent| sent[1].0.offset = 63, "it sent 64 bytes at 63 of a message of 150"),
        (|sent| sent[1].0.offset = 192, "it sent 64 bytes at 192 of a message of 150"),
        (|sent| sent[2].0.len = 23, "it sent 23 bytes at 128 of a message of 150"),
        (|sent| sent[1] = sent[0].clone(), "it sent bytes 0 of a message twice"),
        (|sent| sent[1].0.sum = sent[1].0.sum.map(|sum| sum ^ 1), "a chunk was damaged on the way"),
    ];
    for (lie, why) in lies {
        let mut sent = chunks(tag, &content);
        lie(&mut sent);
        let mut inbox = Fenced::new(&[content.len()]);
        let said = read(&joined(&sent), &mut inbox, &mut Draw(1)).expect_err(why);
        assert!(said.starts_with(why), "{said}");
        assert_eq!(inbox.arrived, []);
        inbox.check();
    }
    let said = read(&[7; HEAD], &mut Fenced::new(&[]), &mut Draw(1));
    assert_eq!(said, Err("it sent something that is no chunk".into()));
}

#[test]
fn fuzz_letters() {
    fuzz("fuzz_letters", |draw| {
        let letters: Vec<Vec<u8>> = (0..3).map(|_| vec![draw.bits() as u8; draw.below(100)]).collect();
        let mut bytes = Vec::new();
        for letter in &letters {
            let length = if draw.below(8) == 0 { draw.number() as u32 } else { letter.len() as u32 };
            bytes.extend([length.to_le_bytes(), crc_fast::crc32_iscsi(letter).to_le_bytes()].concat());
            bytes.extend(letter);
        }
        damage(&mut bytes, draw);
        let (mut incoming, mut came) = (Incoming::default(), Vec::new());
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + draw.below(50)));
            if incoming.take(now, &mut came).is_err() {
                break;
            }
            assert!(incoming.held() <= 2 * bytes.len() + 64, "memory for what was only announced");
            rest = later;
        }
    });
}

#[test]
fn fuzz_handshake() {
    let terms = terms(Secrecy::Plain);
    fuzz("fuzz_handshake", |draw| {
        let greeting = vec![7; draw.below(50)];
        let (mut caller, mut door) = (Handshake::caller(&terms, &greeting), Handshake::door(&terms));
        // The bytes on their way to each, and whether any were damaged.
        let mut is_damaged = false;
        let mut pass = |from: &mut Handshake, to: &mut Handshake, draw: &mut Draw| {
            let mut bytes = std::mem::take(from.out());
            if !bytes.is_empty() && draw.below(4) == 0 {
                is_damaged |= damage(&mut bytes, draw);
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() && to.wants() > 0 {
                let (now, later) = rest.split_at(rest.len().min(to.wants()).min(1 + draw.below(60)));
                to.take(now).ok()?;
                rest = later;
            }
            // What is behind the handshake is not the handshake's.
            (rest.is_empty() || to.wants() == 0).then_some(is_damaged)
        };
        let mut is_well = true;
        for _ in 0..2 {
            is_well = is_well && pass(&mut caller, &mut door, draw).is_some();
            is_well = is_well && pass(&mut door, &mut caller, draw).is_some();
        }
        let (called, met) = (caller.finish(), door.finish());
        if let Some(met) = met {
            assert_eq!(met.greeting, greeting, "nothing but the caller's greeting is believed");
        } else {
            assert!(is_damaged);
        }
        assert!(called.is_some() || is_damaged);
    });
}

#[test]
fn garbage_and_damage_on_a_stream_lose_its_peer_alone() {
    let content = vec![7; 200_000];
    let whole = Head {
        tag: Tag([0; 6]),
        total: 200_000,
        offset: 0,
        len: 200_000,
        sum: Some(crc_fast::crc32_iscsi(&content)),
    };
    let wrong_sum = [&Head { sum: whole.sum.map(|sum| sum ^ 1), ..whole }.to_bytes()[..], &content].concat();
    let mut cut_off = [&whole.to_bytes()[..], &content].concat();
    cut_off.truncate(100_000);
    for (bytes, why) in [
        (vec![0xaa; 5000], "it sent something that is no chunk"),
        (wrong_sum, "a chunk was damaged on the way"),
        (cut_off, "it closed a connection within a message"),
    ] {
        for secrecy in [Secrecy::Plain, Secrecy::Encrypted] {
            let lost = lose(secrecy, |mut stream, turn| {
                let mut sent = 0;
                while sent < bytes.len() {
                    sent += stream.write(&[IoSlice::new(&bytes[sent..])]).unwrap_or(0);
                    turn();
                }
                while !stream.flush().unwrap_or(true) {
                    turn();
                }
            });
            assert_eq!(lost, why, "{secrecy}");
        }
    }
    // Bytes that do not even pass the cipher.
    let lost = lose(Secrecy::Encrypted, |stream, turn| {
        let mut raw = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned().expect("a socket"));
        raw.write_all(&[0x10; 5000]).expect("a write");
        turn();
        drop(stream);
    });
    assert_eq!(lost, "a record was changed on the way");
}

/// Why a host loses another that does this to one of its streams, while it goes on with a third.
fn lose(secrecy: Secrecy, harm: impl FnOnce(Stream, &mut dyn FnMut())) -> String {
    let mut mesh = mesh(3, 2, &terms(secrecy)).into_iter();
    let mut wire = Tcp::new(mesh.next().expect("host 0"), Sizes::default()).expect("a wire");
    let mut hostile = mesh.next().expect("host 1").swap_remove(0).1;
    let mut other = Tcp::new(mesh.next().expect("host 2"), Sizes::default()).expect("a wire");
    let (mut post, mut other_post) = (Post::default(), Post::default());
    post.expect(Host(1), Tag([0; 6]), 200_000);
    post.expect(Host(2), Tag([2; 6]), 1 << 20);
    let content = vec![9; 1 << 20];
    let silence = silence();
    let stream = hostile.swap_remove(0);
    harm(stream, &mut || wire.progress(&mut post, silence.as_fd(), Duration::ZERO).expect("progress"));
    // SAFETY: the bytes are dropped after the wire.
    unsafe { other.send(Host(0), Tag([2; 6]), content.as_ptr(), content.len()) };
    let deadline = deadline();
    while post.arrived.is_empty() || post.lost.is_empty() {
        assert!(!deadline.has_passed(), "they hang");
        wire.progress(&mut post, silence.as_fd(), Duration::ZERO).expect("progress");
        other.progress(&mut other_post, silence.as_fd(), Duration::ZERO).expect("progress");
    }
    drop((wire, other));
    assert_eq!(post.arrived, [(Host(2), Tag([2; 6]))]);
    assert!(post.expected[&(Host(2), Tag([2; 6]))] == content);
    let [(Host(1), why)] = &post.lost[..] else { panic!("{:?}", post.lost) };
    why.clone()
}
