//! How fast a wire is between two processes over loopback, both sending at once.
//!
//! ```text
//! cargo run --release -p paceline-comm --example wire_speed -- [mb=94] [parts=8] [rounds=20] [streams=4]
//!     [chunk=262144] [buffer=BYTES] [encrypt]
//! ```
//!
//! Each round, both send `mb` megabytes as `parts` messages and wait for the other's. The figures are bytes in one direction
//! over the time of a round: the best, the median, and the processor time of one side.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use paceline_comm::Deadline;
use paceline_comm::wire::{Door, Inbox, Secrecy, Secret, Sizes, Stream, Tag, Tcp, Terms, Wire, call};
use paceline_record::Host;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};

struct Options {
    bytes: usize,
    parts: usize,
    rounds: usize,
    streams: usize,
    sizes: Sizes,
    secrecy: Secrecy,
}

fn options(words: &[String]) -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        bytes: 94_000_000,
        parts: 8,
        rounds: 20,
        streams: 4,
        sizes: Sizes::default(),
        secrecy: Secrecy::Plain,
    };
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        let value: usize = value.parse().map_err(|error| format!("{word}: {error}"))?;
        match name {
            "mb" => options.bytes = value * 1_000_000,
            "parts" => options.parts = value.max(1),
            "rounds" => options.rounds = value.max(1),
            "streams" => options.streams = value.max(1),
            "chunk" => options.sizes.chunk = value,
            "buffer" => options.sizes.buffer = Some(value),
            "encrypt" => options.secrecy = Secrecy::Encrypted,
            _ => return Err(format!("no option {word}").into()),
        }
    }
    Ok(options)
}

/// One memory for all messages that come, and a count.
struct Counter {
    into: Vec<u8>,
    part: usize,
    arrived: usize,
    sent: usize,
    lost: Option<String>,
}

// SAFETY: the memory stays where it is as long as the wire lives, and nobody looks at it.
unsafe impl Inbox for Counter {
    fn place(&mut self, _: Host, tag: Tag, len: usize) -> Option<*mut u8> {
        let begin = tag.0[1] as usize * self.part;
        self.into.get_mut(begin..begin + len).map(|place| place.as_mut_ptr())
    }

    fn arrived(&mut self, _: Host, _: Tag, _: usize) {
        self.arrived += 1;
    }

    fn sent(&mut self, _: Host, _: Tag) {
        self.sent += 1;
    }

    fn lost(&mut self, _: Host, why: &str) {
        self.lost = Some(why.into());
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn exchange(streams: Vec<Stream>, options: &Options) -> Result<Vec<Duration>, Box<dyn Error>> {
    let part = options.bytes.div_ceil(options.parts);
    let lens: Vec<usize> =
        (0..options.parts).map(|i| part.min(options.bytes.saturating_sub(i * part))).collect();
    let from = vec![1_u8; options.bytes];
    let mut counter = Counter { into: vec![1; options.bytes], part, arrived: 0, sent: 0, lost: None };
    let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
    let mut wire = Tcp::new(vec![(Host(1), streams)], options.sizes)?;
    let mut times = Vec::new();
    for round in 0..=options.rounds {
        let begin = Instant::now();
        for (i, len) in lens.iter().enumerate() {
            // SAFETY: the bytes are dropped after the wire.
            unsafe {
                wire.send(
                    Host(1),
                    Tag([round as u32, i as u32, 0, 0, 0, 0]),
                    from.as_ptr().wrapping_add(i * part),
                    *len,
                )
            };
        }
        let all = (round + 1) * options.parts;
        while counter.arrived < all || counter.sent < all {
            wire.progress(&mut counter, bell.as_fd(), Duration::from_secs(10))?;
            // Whoever is done goes away.
            if let Some(why) = counter.lost.take_if(|_| counter.arrived < all || counter.sent < all) {
                return Err(why.into());
            }
        }
        times.push(begin.elapsed());
    }
    // The first round touches the memory.
    times.remove(0);
    Ok(times)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let options = options(&words)?;
    if let Ok(address) = env::var("WIRE_SPEED_DOOR") {
        let address: SocketAddr = address.parse()?;
        let secret = Secret::from_hex(&env::var("WIRE_SPEED_SECRET")?).ok_or("no secret")?;
        let terms = Terms::new(secret, options.secrecy);
        let deadline = Deadline::after(Duration::from_secs(10));
        let streams: Result<Vec<_>, _> =
            (0..options.streams).map(|_| call(address, &terms, b"", deadline)).collect();
        exchange(streams?, &options)?;
        return Ok(());
    }
    let terms = Terms::new(Secret::random()?, options.secrecy);
    let door = Door::open("127.0.0.1:0".parse()?, &terms, |line| eprintln!("{line}"))?;
    let mut other = Command::new(env::current_exe()?)
        .args(&words)
        .env("WIRE_SPEED_DOOR", door.address().to_string())
        .env("WIRE_SPEED_SECRET", terms.secret.to_hex())
        .spawn()?;
    let mut streams = Vec::new();
    while streams.len() < options.streams {
        match door.next() {
            Some(visitor) => streams.push(visitor.stream),
            None => drop(poll(&mut [PollFd::new(&door, PollFlags::IN)], None)?),
        }
    }
    let before = processor_time();
    let mut times = exchange(streams, &options)?;
    let used = (processor_time() - before).as_secs_f64() / (options.rounds + 1) as f64;
    if !other.wait()?.success() {
        return Err("the other process failed".into());
    }
    times.sort();
    let speed = |time: Duration| options.bytes as f64 / time.as_secs_f64() / 1e9;
    let (best, median) = (times[0], times[times.len() / 2]);
    println!(
        "{} MB in {} messages, {} {} streams, chunks of {}: best {:.1} ms ({:.2} GB/s), median {:.1} ms ({:.2} GB/s), \
         processor {:.1} ms",
        options.bytes / 1_000_000,
        options.parts,
        options.streams,
        options.secrecy,
        options.sizes.chunk,
        best.as_secs_f64() * 1e3,
        speed(best),
        median.as_secs_f64() * 1e3,
        speed(median),
        used * 1e3,
    );
    Ok(())
}
