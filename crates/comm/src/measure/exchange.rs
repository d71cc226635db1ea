//! All-reduces between hosts, by the tasks and the porter of a training: each host has one worker with one shard, and each
//! step is an all-reduce.

use std::convert::Infallible;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use paceline_record::{Bytes, Host, Nanos, Rank};

use super::{AllReduceRow, Trial, bytes_of, count_wrong, fill, pattern, time_rounds, whole_values};
use crate::tasks::{
    Bell, Dealing, Done, Ended, Ground, GroundCargo, GroundSize, Member, Parts, Porter, Shape, ShardTask,
    Shards, SliceTask, Slices, Standing, Warden,
};
use crate::wire::Wire;
use crate::{CommError, Reduction, slice};

/// Values of a bucket at most. Each bucket is sent while others are added up.
const BUCKET: usize = 1 << 20;

/// Slices of a bucket that each host adds up.
const SLICES: u32 = 2;

/// How long a worker spins before it sleeps, where threads have cores of their own.
const SPIN: Nanos = Nanos(20_000);

/// How long the porter sleeps at most, and how often the worker is looked after.
const NAP: Duration = Duration::from_millis(20);
const TICK: Duration = Duration::from_millis(2);

/// One host's part of all-reduces of one size.
pub struct Exchange {
    ground: Ground,
    /// The bell by which the worker calls the porter.
    called: Bell,
    parts: Parts,
    /// Where each slice lies, bucket by bucket.
    ranges: Vec<Range<usize>>,
    trial: Trial,
}

impl Exchange {
    /// Takes the memory for one size, as one of so many hosts. The size is rounded down to whole values.
    ///
    /// # Errors
    /// If there is not enough memory.
    ///
    /// # Panics
    /// If the host is not one of them, or alone.
    pub fn new(size: Bytes, own: Host, hosts: u32, trial: Trial) -> Result<Self, CommError> {
        assert!(hosts > 1 && own.0 < hosts, "host {} is not one of {hosts}", own.0);
        let values = whole_values(size);
        let (buckets, slices) = (values.div_ceil(BUCKET).max(1) as u32, SLICES * hosts);
        let shape = Shape { seats: 1, shards: hosts, buckets, slices, hosts };
        let gradients = shape.shards;
        let size = GroundSize { shape, values, state: 0, statistics: 0, half: None, gradients };
        let mut ground = Ground::create(size)?;
        let called = Bell::create()?;
        ground.call_porter(Bell::attach(called.descriptor())?);
        let bucket = |number| slice(0..values, Rank(number), buckets);
        let ranges = (0..buckets)
            .flat_map(|number| (0..slices).map(move |part| slice(bucket(number), Rank(part), slices)))
            .collect();
        let parts = Parts::new((1..=hosts).collect(), own.0 as usize, slices);
        Ok(Self { ground, called, parts, ranges, trial })
    }

    fn hosts(&self) -> u32 {
        self.parts.all_shards()
    }

    /// This host's worker and its porter, which work at the same time. To be called once.
    pub fn start(&self) -> (Rounds<'_>, Carrier<'_>) {
        let board = self.ground.board();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = if cores >= 2 * self.hosts() as usize { SPIN } else { Nanos(0) };
        let member = Member::enter(&self.ground, board, 0, 0, Dealing::Static, spin);
        let mut warden = Warden::new(&self.ground, board, self.rounds());
        let nothing = Done { done: 0, all: 0, missing: None, given: &[], is_loss: false };
        // Before a porter raises flags, which this takes back.
        warden.deal(self.parts.clone(), nothing);
        warden.release(0);
        warden.publish(&[0], self.rounds(), true);
        (Rounds { exchange: self, member, warden }, Carrier { exchange: self })
    }

    /// The last of them is checked.
    fn rounds(&self) -> u64 {
        u64::from(self.trial.warm_up) + u64::from(self.trial.repeats.max(1)) + 1
    }

    fn range(&self, SliceTask { bucket, slice, .. }: SliceTask) -> Range<usize> {
        let slices = self.ground.size().shape.slices;
        self.ranges[(bucket * slices + slice) as usize].clone()
    }
}

/// A host's worker.
pub struct Rounds<'a> {
    exchange: &'a Exchange,
    member: Member<'a, Ground>,
    warden: Warden<'a, Ground>,
}

impl Rounds<'_> {
    /// Does all of them; `None` if it is to stop before their end.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn reduce(self, stop: &AtomicBool) -> Result<Option<AllReduceRow>, CommError> {
        let Self { exchange, member, mut warden } = self;
        thread::scope(|scope| {
            let worker = Worker { exchange, member, next: 0 };
            let worker = thread::Builder::new().name("worker".into()).spawn_scoped(scope, || worker.run());
            let worker = worker.map_err(CommError::system("start a thread"))?;
            while !worker.is_finished() {
                if stop.load(Ordering::Relaxed) {
                    // Whoever is not in the newest roster leaves, whatever it waits for.
                    warden.publish(&[], exchange.rounds(), true);
                    break;
                }
                warden.tend();
                thread::sleep(TICK);
            }
            Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }
}

/// A host's porter.
pub struct Carrier<'a> {
    exchange: &'a Exchange,
}

impl Carrier<'_> {
    /// Carries what hosts need of each other, until it is to stop or a host is lost: then tells which, and why.
    ///
    /// # Errors
    /// If the system refuses what every connection needs.
    pub fn carry(self, wire: &mut dyn Wire, stop: &AtomicBool) -> Result<Option<(Host, String)>, CommError> {
        let Exchange { ground, called, parts, ranges, .. } = self.exchange;
        let board = ground.board();
        let stand = |host| Standing {
            host: Host(host),
            done: Some(0),
            missing: board.missing(ground, 0),
            untested: Vec::new(),
        };
        let cargo = GroundCargo::new(ground, ranges.clone());
        let hosts = (0..self.exchange.hosts()).map(stand).collect();
        let mut porter = Porter::new(ground, board, cargo, parts.clone(), hosts);
        while !stop.load(Ordering::Relaxed) {
            called.silence().map_err(CommError::system("hear the worker"))?;
            porter.post(wire);
            wire.progress(&mut porter, called.as_fd(), NAP)?;
            porter.take_accounts();
            if let Some(lost) = porter.take_lost().pop() {
                return Ok(Some(lost));
            }
        }
        Ok(None)
    }
}

/// Its shards are there: zeros, and other numbers in the round that is checked.
impl Shards for &Exchange {
    type Error = Infallible;

    fn run(&mut self, task: ShardTask, _: &mut dyn FnMut(usize)) -> Result<(), Infallible> {
        if task.step + 1 == self.rounds() {
            // SAFETY: whoever needed these of the last round has added them up, and nobody reads them before their flags are
            // raised, after this.
            let values = unsafe { self.ground.gradients(task.shard).write(0..self.ground.size().values) };
            fill(values, |i| pattern(i) + task.shard as usize);
        }
        Ok(())
    }
}

impl Slices for &Exchange {
    fn run(&mut self, task: SliceTask, parts: &Parts) {
        if parts.is_owner(task.slice) {
            let range = self.range(task);
            // SAFETY: nodes are all there, and nobody writes them before the others have this mean; all others have that of the
            // last round, or nodes of this one would not have come.
            unsafe { self.ground.mean_of_parts(parts, &range, self.ground.means().write(range.clone())) };
        }
    }

    /// A single shard is a node as it is.
    fn add_part(&mut self, _: SliceTask, _: &Parts) {}
}

/// The thread that does a host's tasks.
struct Worker<'a> {
    exchange: &'a Exchange,
    member: Member<'a, Ground>,
    next: u64,
}

/// It was asked to stop.
struct Stopped;

impl Worker<'_> {
    fn run(mut self) -> Option<AllReduceRow> {
        match self.member.join(0).0 {
            Ended::Done => self.measure().ok(),
            Ended::Left => None,
        }
    }

    fn measure(&mut self) -> Result<AllReduceRow, Stopped> {
        let exchange = self.exchange;
        for _ in 0..exchange.trial.warm_up {
            self.round()?;
        }
        let times = time_rounds(exchange.trial, || self.round())?;
        self.round()?;
        let hosts = exchange.hosts() as usize;
        // SAFETY: the last round is done, and nothing else will be written.
        let means = unsafe { exchange.ground.means().read(0..exchange.ground.size().values) };
        let scale = Reduction::Mean.scale(hosts as u32);
        let wrong = count_wrong(means, |i| (hosts * pattern(i) + hosts * (hosts - 1) / 2) as f32 * scale);
        Ok(AllReduceRow::new(bytes_of(means.len()), times, hosts, wrong))
    }

    fn round(&mut self) -> Result<(), Stopped> {
        let (mut shards, mut slices) = (self.exchange, self.exchange);
        let Ok(ended) = self.member.step(self.next, &mut shards, &mut slices, &|| false);
        self.next += 1;
        match ended {
            Ended::Done => Ok(()),
            Ended::Left => Err(Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;
    use crate::wire::{Door, Secrecy, Secret, Sizes, Stream, Tcp, Terms, call};

    /// The two ends of a connection.
    fn pair(terms: &Terms, door: &Door) -> [Stream; 2] {
        let called = call(door.address(), terms, b"", Deadline::after(Duration::from_secs(10)));
        let called = called.expect("somebody is there");
        loop {
            if let Some(visitor) = door.next() {
                return [called, visitor.stream];
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Wires between so many hosts.
    fn wires(hosts: u32) -> Vec<Tcp> {
        let terms = Terms::new(Secret::random().expect("random numbers"), Secrecy::Plain);
        let door = Door::open(([127, 0, 0, 1], 0).into(), &terms, |_| ()).expect("a door");
        let mut peers: Vec<Vec<(Host, Vec<Stream>)>> = (0..hosts).map(|_| Vec::new()).collect();
        for one in 0..hosts {
            for other in 0..one {
                let [left, right] = pair(&terms, &door);
                peers[one as usize].push((Host(other), vec![left]));
                peers[other as usize].push((Host(one), vec![right]));
            }
        }
        peers.into_iter().map(|peers| Tcp::new(peers, Sizes::default()).expect("wires")).collect()
    }

    const TRIAL: Trial = Trial { warm_up: 1, repeats: 2, limit: Duration::from_secs(30) };

    fn exchanges(bytes: u64, hosts: u32) -> Vec<Exchange> {
        let new = |own| Exchange::new(Bytes(bytes), Host(own), hosts, TRIAL).expect("memory");
        (0..hosts).map(new).collect()
    }

    #[test]
    fn hosts_get_right_sums_of_any_size() {
        for (hosts, bytes) in [(2, 4), (2, 4 << 10), (3, 68), (3, 9 << 20), (4, 3 << 20)] {
            let exchanges = exchanges(bytes, hosts);
            let stop = &AtomicBool::new(false);
            let rows: Vec<_> = thread::scope(|scope| {
                let mut rows = Vec::new();
                for (exchange, mut wire) in exchanges.iter().zip(wires(hosts)) {
                    let (rounds, carrier) = exchange.start();
                    scope.spawn(move || carrier.carry(&mut wire, stop).expect("a system that works"));
                    rows.push(scope.spawn(move || rounds.reduce(stop)));
                }
                let rows = rows.into_iter().map(|row| row.join().expect("no panic").expect("threads"));
                let rows = rows.collect();
                stop.store(true, Ordering::Relaxed);
                rows
            });
            for row in rows {
                let row: AllReduceRow = row.expect("all rounds");
                assert_eq!((row.bytes, row.wrong), (Bytes(bytes), 0), "{hosts} hosts");
                assert!(row.fastest <= row.time && row.busbw > 0.0);
            }
        }
    }

    #[test]
    fn whoever_is_stopped_ends_though_others_are_missing() {
        let (exchange, stop) = (exchanges(64, 2).remove(0), &AtomicBool::new(false));
        let exchange = &exchange;
        let mut wires = wires(2);
        thread::scope(|scope| {
            let (rounds, carrier) = exchange.start();
            let reduced = scope.spawn(|| rounds.reduce(stop));
            let (mut own, other) = (wires.remove(0), wires.remove(0));
            let carried = scope.spawn(move || carrier.carry(&mut own, stop));
            drop(other);
            let lost = carried.join().expect("no panic").expect("a system that works");
            assert_eq!(lost.map(|(host, _)| host), Some(Host(1)));
            assert!(!reduced.is_finished());
            stop.store(true, Ordering::Relaxed);
            assert!(reduced.join().expect("no panic").expect("threads").is_none());
        });
    }
}
