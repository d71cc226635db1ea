//! The exchange between simulated ranks: one bucket at a time on the network, while backward goes on.

use paceline_record::{BucketRecord, Bytes, Nanos, Phase, Rank, StepRecord};

use super::scaled;
use crate::{Plan, Reduce, Simulation};

/// A bucket of gradients, and what its exchange costs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parcel {
    pub bytes: Bytes,
    /// When backward has finished it, in nanoseconds from the start of backward at full speed.
    pub ready: f64,
    pub transfer: Nanos,
    /// What crosses the link of the busiest rank.
    pub moved: Bytes,
}

/// Messages that follow each other on a link of the busiest rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Messages {
    count: f64,
    /// Bytes of each message.
    bytes: f64,
}

impl Messages {
    /// The messages of an exchange of so many bytes.
    pub fn new(plan: Plan, bytes: f64) -> Self {
        let world = f64::from(plan.world);
        let (count, bytes) = match plan.reduce {
            // A ring: slices go round once to be added up, and once to be published.
            Reduce::ToAll | Reduce::Scatter => (2.0 * (world - 1.0), bytes / world),
            Reduce::ByEach => (world - 1.0, bytes),
            // One message from every rank, through the server's link.
            Reduce::AtServer => (world, bytes),
            Reduce::Nothing => (0.0, 0.0),
        };
        Self { count, bytes }
    }

    /// Bytes of all of them.
    pub fn total(self) -> Bytes {
        Bytes((self.count * self.bytes).round() as u64)
    }

    /// How long they take, one after the other.
    pub fn time(self, simulation: &Simulation) -> Nanos {
        // 10^9 bytes per second are a byte per nanosecond.
        scaled(self.count, simulation.latency.0 as f64 + self.bytes / simulation.bandwidth)
    }
}

/// An exchange on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub last_arrival: Nanos,
    pub last_rank: Rank,
    pub start: Nanos,
    pub end: Nanos,
}

/// A rank's progress through backward and the exchange beside it.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// The rank's current time.
    pub at: Nanos,
    /// How much slower than full speed it computes.
    pub factor: f64,
    /// Backward done so far, without the time given to the exchange.
    done: Nanos,
    arrived: Vec<Nanos>,
    /// Processor time that it gave to each exchange.
    cpu: Vec<Nanos>,
    /// Exchanges that ended before now.
    past: usize,
}

/// The rules of an exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Whether buckets are sent while backward runs.
    pub overlap: bool,
    /// Part of an exchange's time that a rank computes for it.
    pub fraction: f64,
    /// Backward of a pass at full speed, in nanoseconds.
    pub backward: f64,
}

impl Lane {
    /// A rank at the start of its backward.
    pub fn new(at: Nanos, factor: f64) -> Self {
        Self { at, factor, done: Nanos(0), arrived: Vec::new(), cpu: Vec::new(), past: 0 }
    }

    /// Computes until so much of backward is done. While an exchange is under way, it takes a fraction of the time.
    fn advance(&mut self, work: Nanos, windows: &[Window], fraction: f64) {
        let mut left = work.since(self.done);
        self.done = self.done.max(work);
        for (window, cpu) in windows.iter().zip(&mut self.cpu).skip(self.past) {
            let before = window.start.since(self.at).min(left);
            self.at += before;
            left = left.since(before);
            if left.is_zero() {
                return;
            }
            let room = window.end.since(self.at);
            let own = room.since(scaled(fraction, room.0 as f64));
            if left < own {
                let wall = scaled(1.0 / (1.0 - fraction), left.0 as f64).min(room);
                *cpu += wall.since(left);
                self.at += wall.max(left);
                return;
            }
            *cpu += room.since(own);
            self.at += room;
            left = left.since(own);
            self.past += 1;
        }
        self.at += left;
    }

    /// Waits for the exchanges of a step and books them; backward is booked elsewhere.
    pub fn settle(&mut self, parcels: &[Parcel], windows: &[Window], fraction: f64, record: &mut StepRecord) {
        let run = last_run(windows);
        let mut busy_until = Nanos(0);
        for (index, (parcel, window)) in parcels.iter().zip(windows).enumerate() {
            let blocked = window.end.since(self.at);
            let moving = window.end.since(window.start.max(self.at));
            let cpu = scaled(fraction, moving.0 as f64);
            let late = blocked.min(run.since(self.at));
            self.at = self.at.max(window.end);
            self.cpu[index] += cpu;
            // Time that this rank computes for the exchange is not waiting.
            let (late, transfer) = if window.start < run {
                (late.since(cpu), Nanos(0))
            } else {
                (late, blocked.since(late).since(cpu))
            };
            let begun = self.arrived[index];
            record.comm_busy += window.end.since(begun.max(busy_until));
            busy_until = window.end;
            record.late_rank += late;
            record.book(Phase::CommWait, late + transfer);
            record.book(Phase::CommCpu, self.cpu[index]);
            record.buckets.push(BucketRecord {
                bytes: parcel.bytes,
                begun,
                last_arrival: window.last_arrival,
                last_rank: window.last_rank,
                ended: window.end,
                waited_late: late,
                waited_transfer: transfer,
                cpu: self.cpu[index],
                moved: parcel.moved,
            });
        }
    }
}

/// The start of the last unbroken run of exchanges: an arrival that found the network idle. Until that moment a rank waits for the
/// late rank, even while bytes move: it would wait as long if they moved in no time. After it the rank waits for the network.
fn last_run(windows: &[Window]) -> Nanos {
    let begins = windows.iter().rev().find(|window| window.start == window.last_arrival);
    begins.map_or(Nanos(0), |window| window.start)
}

/// Runs all ranks to the end of their backward, and the buckets over the network: each starts when its last rank has arrived
/// and the bucket before it has ended.
pub(super) fn exchange(lanes: &mut [Lane], parcels: &[Parcel], rules: Rules) -> Vec<Window> {
    let mut windows: Vec<Window> = Vec::with_capacity(parcels.len());
    for lane in &mut *lanes {
        lane.cpu = vec![Nanos(0); parcels.len()];
        lane.arrived.reserve(parcels.len());
    }
    for parcel in parcels {
        let (mut last_arrival, mut last_rank) = (Nanos(0), Rank(0));
        for (rank, lane) in (0..).map(Rank).zip(&mut *lanes) {
            let ready = if rules.overlap { parcel.ready } else { rules.backward };
            // Without overlap only the first call computes, because it completes backward.
            lane.advance(scaled(ready, lane.factor), &windows, rules.fraction);
            let arrival = lane.at;
            lane.arrived.push(arrival);
            if arrival > last_arrival {
                (last_arrival, last_rank) = (arrival, rank);
            }
        }
        let start = windows.last().map_or(last_arrival, |before| before.end.max(last_arrival));
        windows.push(Window { last_arrival, last_rank, start, end: start + parcel.transfer });
    }
    for lane in lanes {
        lane.advance(scaled(rules.backward, lane.factor), &windows, rules.fraction);
    }
    windows
}
