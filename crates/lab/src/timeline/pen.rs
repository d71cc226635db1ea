//! A rank's time as events, one per line.

use std::fmt::{self, Write as _};

use paceline_record::{
    ArrivalRecord, BucketRecord, Host, Nanos, Phase, PorterEvent, Rank, StepRecord, Transfer,
};
use serde_json::Value;

/// The track of the steps; those of the exchanges follow.
pub(super) const STEPS: usize = 0;

/// Numbers between the tracks of two processes. Perfetto takes a thread's number for unique on its machine.
const TRACKS: usize = 10_000;

/// Phases of a step in the order of the step loop; the rest of the step comes last.
const ORDER: [Phase; 13] = [
    Phase::Load,
    Phase::CopyIn,
    Phase::Forward,
    Phase::Backward,
    Phase::Compute,
    Phase::CopyOut,
    Phase::Recovery,
    Phase::CommCpu,
    Phase::CommWait,
    Phase::Update,
    Phase::Idle,
    Phase::Eval,
    Phase::Checkpoint,
];

/// Begin and end.
type Stretch = (Nanos, Nanos);

/// Draws the events of one process.
#[derive(Default)]
pub(super) struct Pen {
    /// Drawn events that have not been written yet.
    pub text: String,
    /// Total number of events.
    pub events: usize,
    /// Whether events are drawn, or only counted, as by default.
    draws: bool,
    process: usize,
    origin: Nanos,
    /// The end of the last exchange on each of their tracks.
    exchanges: Vec<Nanos>,
    /// Hosts that bytes were moved to and from, in the order of their tracks.
    peers: Vec<Host>,
    /// Where the ranks of an exchange are counted, as the end of a sentence.
    pub ranks_are_of: &'static str,
}

impl Pen {
    /// A pen for a process whose clock begins at `origin`.
    pub(super) fn new(process: usize, origin: Nanos) -> Self {
        Self { draws: true, process, origin, ..Self::default() }
    }

    fn event(&mut self, fields: fmt::Arguments<'_>) {
        self.events += 1;
        if self.draws {
            writeln!(self.text, "{{\"pid\":{},{fields}}}", self.process).expect("invariant: strings grow");
        }
    }

    fn thread_number(&self, track: usize) -> usize {
        self.process * TRACKS + track
    }

    /// Something about the process.
    pub(super) fn process(&mut self, what: &str, args: Value) {
        self.event(format_args!("\"ph\":\"M\",\"name\":\"process_{what}\",\"args\":{args}"));
    }

    /// Names a track.
    pub(super) fn thread(&mut self, track: usize, name: &str) {
        let tid = self.thread_number(track);
        let name = Value::from(name);
        self.event(format_args!(
            "\"tid\":{tid},\"ph\":\"M\",\"name\":\"thread_name\",\"args\":{{\"name\":{name}}}"
        ));
    }

    /// An instant on the track of the steps.
    pub(super) fn instant(&mut self, name: &str, at: Nanos) {
        let (tid, at, name) = (self.thread_number(STEPS), Micros(at.since(self.origin)), Value::from(name));
        self.event(format_args!("\"tid\":{tid},\"ph\":\"i\",\"s\":\"t\",\"ts\":{at},\"name\":{name}"));
    }

    /// A phase outside the steps.
    pub(super) fn run_phase(&mut self, name: &str, stretch: Stretch) {
        self.slice(STEPS, stretch, format_args!("\"cat\":\"run\",\"name\":\"{name}\""));
    }

    /// A slice of a track; its name needs no escaping.
    fn slice(&mut self, track: usize, (begin, end): Stretch, named: fmt::Arguments<'_>) {
        let (tid, ts, dur) =
            (self.thread_number(track), Micros(begin.since(self.origin)), Micros(end.since(begin)));
        self.event(format_args!("\"tid\":{tid},\"ph\":\"X\",\"ts\":{ts},\"dur\":{dur},{named}"));
    }

    /// A step with its phases and its exchanges.
    pub(super) fn step(&mut self, rank: Option<Rank>, step: &StepRecord) {
        let (number, examples) = (step.step, step.examples);
        let loss = OrNull(step.loss);
        self.slice(
            STEPS,
            (step.begin, step.end),
            format_args!(
                "\"cat\":\"step\",\"name\":\"step {number}\",\"args\":{{\"examples\":{examples},\"loss\":{loss}}}"
            ),
        );
        let mut begin = step.begin;
        for phase in ORDER {
            let booked = step.phases[phase];
            // Phases timed on a device's clock may overlap those of the host and exceed the step.
            let end = Nanos(begin.0.saturating_add(booked.0)).min(step.end);
            if !booked.is_zero() {
                let cut = match end.since(begin) == booked {
                    true => String::new(),
                    false => format!(",\"args\":{{\"booked_us\":{}}}", Micros(booked)),
                };
                self.slice(STEPS, (begin, end), format_args!("\"cat\":\"phase\",\"name\":\"{phase}\"{cut}"));
            }
            begin = end;
        }
        if begin < step.end {
            let rest = if step.sampled { "other" } else { "not measured" };
            self.slice(STEPS, (begin, step.end), format_args!("\"cat\":\"phase\",\"name\":\"{rest}\""));
        }
        for (number, arrival) in step.arrivals.iter().enumerate() {
            self.arrival(number, arrival);
        }
        for (number, bucket) in step.buckets.iter().enumerate() {
            self.exchange(rank, number, bucket);
        }
    }

    /// The first track of exchanges that is free, which it is not until then.
    fn exchange_track(&mut self, begun: Nanos, ended: Nanos) -> usize {
        let free = self.exchanges.iter().position(|&busy_until| busy_until <= begun);
        let place = free.unwrap_or(self.exchanges.len());
        let track = STEPS + 1 + place;
        if free.is_none() {
            self.exchanges.push(ended);
            let more = if place == 0 { String::new() } else { format!(" {}", place + 1) };
            self.thread(track, &format!("exchange{more}"));
        }
        self.exchanges[place] = ended;
        track
    }

    /// An exchange of a rank that knows nothing of the others.
    fn arrival(&mut self, number: usize, arrival: &ArrivalRecord) {
        let ended = arrival.ended.max(arrival.begun);
        let track = self.exchange_track(arrival.begun, ended);
        let (bytes, cpu) = (arrival.bytes.0, Micros(arrival.cpu));
        self.slice(
            track,
            (arrival.begun, ended),
            format_args!(
                "\"cat\":\"exchange\",\"name\":\"bucket {number}\",\"args\":{{\"bytes\":{bytes},\"cpu_us\":{cpu}}}"
            ),
        );
    }

    /// An exchange, on the first track that is free, and in it the time until the last rank arrived.
    fn exchange(&mut self, rank: Option<Rank>, number: usize, bucket: &BucketRecord) {
        let ended = bucket.ended.max(bucket.begun);
        let track = self.exchange_track(bucket.begun, ended);
        let BucketRecord { last_rank, .. } = *bucket;
        let (bytes, moved) = (bucket.bytes.0, bucket.moved.0);
        let [late, transfer, cpu] = [bucket.waited_late, bucket.waited_transfer, bucket.cpu].map(Micros);
        self.slice(
            track,
            (bucket.begun, ended),
            format_args!(
                "\"cat\":\"exchange\",\"name\":\"bucket {number}\",\"args\":{{\"bytes\":{bytes},\"moved\":{moved},\
                 \"waited_late_us\":{late},\"waited_transfer_us\":{transfer},\"cpu_us\":{cpu},\"last_rank\":{last_rank}}}"
            ),
        );
        let arrival = bucket.last_arrival.min(ended);
        if Some(last_rank) != rank && bucket.begun < arrival {
            let of = self.ranks_are_of;
            let named = format_args!("\"cat\":\"late\",\"name\":\"waiting for rank {last_rank}{of}\"");
            self.slice(track, (bucket.begun, arrival), named);
        }
    }

    /// What a porter moved, on the track of the other host, and hosts that it found or lost.
    pub(super) fn moved(&mut self, event: &PorterEvent) {
        let Transfer { peer, step, begin, end, sent, received, .. } = match event {
            PorterEvent::Moved(moved) => *moved,
            PorterEvent::Connected { peer, at, .. } => {
                return self.instant(&format!("host {peer} connected"), *at);
            }
            PorterEvent::Lost { peer, at } => return self.instant(&format!("host {peer} lost"), *at),
            PorterEvent::Worked { .. } | PorterEvent::Dropped { .. } => return,
        };
        let known = self.peers.iter().position(|&known| known == peer);
        let place = known.unwrap_or(self.peers.len());
        let track = STEPS + 1 + place;
        if known.is_none() {
            self.peers.push(peer);
            self.thread(track, &format!("host {peer}"));
        }
        let name = step.map_or_else(|| "bytes".into(), |step| format!("step {step}"));
        let (sent, received) = (sent.0, received.0);
        self.slice(
            track,
            (begin, end.max(begin)),
            format_args!(
                "\"cat\":\"transfer\",\"name\":\"{name}\",\"args\":{{\"sent\":{sent},\"received\":{received}}}"
            ),
        );
    }
}

/// Nanoseconds as microseconds with all digits.
struct Micros(Nanos);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nanos(nanos) = self.0;
        write!(f, "{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

/// A number that may be unknown.
struct OrNull(Option<f32>);

impl fmt::Display for OrNull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.filter(|number| number.is_finite()) {
            Some(number) => number.fmt(f),
            None => f.write_str("null"),
        }
    }
}
