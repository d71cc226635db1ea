//! One rank's part in an update strategy: hands gradients over while backward runs, and updates with what comes back.

mod between;
mod server;
mod woven;

pub(crate) use woven::{POSTED, book_buckets};

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_comm::{Area, Collective, Deadline, Finished, Operation, Reduction, Segment, Ticket};
use paceline_engine::{Drawing, Driving, EngineError, Homes, Pass, Place, Program, Region, Values};
use paceline_record::{BucketRecord, Bytes, Nanos, Phase, Rank, StepRecord};

use crate::buckets::{self, Bucket};
use crate::strategy::{Compress, Parameters, Plan, Publish, Reduce};
use crate::worker::book::StepBook;
use crate::{Job, TrainError, clock, device};

/// How long a rank waits for the others before it gives up: a dead one is noticed long before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Where gradients are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nowhere: this rank only updates.
    Nowhere,
    /// Here, through memory that all ranks share.
    Host,
    /// Between devices, as part of their runs.
    Device,
}

/// The exchange of one rank with all others. In a world of one, and where nothing is exchanged, it only updates.
pub(crate) struct Exchange {
    plan: Plan,
    way: Way,
    overlap: bool,
    compress: Compress,
    /// Shards of each step that this rank runs, of those that all ranks run.
    shards: Range<u32>,
    all_shards: u32,
    /// The other ranks; `None` in a world of one that runs each step whole.
    peers: Option<Peers>,
    buckets: Vec<Bucket>,
    /// Values of the parameter region.
    len: usize,
    /// Slots whose gradients are final in this step.
    ready: usize,
    /// Buckets handed over, in order.
    begun: Vec<Ticket>,
    /// The outcome of these, and of the barriers between.
    finished: Vec<Finished>,
    /// When this step's backward stopped for the exchange.
    stops: Vec<Stop>,
    /// Steps whose arrivals have been posted.
    posted: u64,
    /// An error inside a call of backward, to be returned afterwards.
    failed: Option<TrainError>,
    /// Set when this process is asked to stop.
    asked: Arc<AtomicBool>,
    /// The steps after which a world of one stops.
    stops_after: Option<u64>,
}

/// A stretch of time in which a rank did something for the exchange, or waited, and computed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stop {
    begin: Nanos,
    end: Nanos,
}

struct Peers {
    collective: Box<dyn Collective>,
    segment: Segment,
}

impl Exchange {
    /// Joins the world that the launcher made.
    pub fn join(job: &Job, rank: Rank, segment: Option<i32>) -> Result<Self, TrainError> {
        let peers = match segment {
            None => None,
            Some(descriptor) => {
                let segment = Segment::attach(descriptor)?;
                let collective = Box::new(segment.join(rank)?);
                Some(Peers { collective, segment })
            }
        };
        let plan = job.update.plan(rank, job.workers);
        let way = match &peers {
            _ if job.exchanges_on_device() => Way::Device,
            Some(_) if plan.exchanges() => Way::Host,
            _ => Way::Nowhere,
        };
        Ok(Self {
            plan,
            way,
            overlap: job.exchange.overlap,
            compress: job.exchange.compress,
            shards: job.shards_of(rank),
            all_shards: job.shards(),
            peers,
            buckets: Vec::new(),
            len: 0,
            ready: 0,
            begun: Vec::new(),
            stops: Vec::new(),
            finished: Vec::new(),
            posted: 0,
            failed: None,
            asked: Arc::default(),
            stops_after: None,
        })
    }

    /// Whose part it is.
    pub fn rank(&self) -> Rank {
        self.plan.rank
    }

    /// The shards of each step that this rank runs.
    pub fn shards(&self) -> Range<u32> {
        self.shards.clone()
    }

    /// The memory that the program's values must use. `trained` is their number.
    pub fn homes(&self, trained: usize) -> Homes {
        let Some(peers) = self.peers.as_ref().filter(|_| self.way == Way::Host) else {
            return Homes::default();
        };
        // SAFETY: the segment outlives the program, which the worker drops first.
        let region = |area: Area| unsafe { Region::new(Place::Host, area.address() as u64, trained) };
        let gradients = self.shards().map(|shard| region(peers.segment.area(shard))).collect();
        let common = |drawing| Some((region(peers.collective.common()), drawing));
        let parameters = match self.plan.parameters {
            Parameters::Common if self.rank() == Rank(0) => common(Drawing::Draw),
            Parameters::Common => common(Drawing::Leave),
            Parameters::AtHostServer if self.plan.is_server() => common(Drawing::Draw),
            Parameters::AtHostServer | Parameters::AtDeviceServer | Parameters::Own => None,
        };
        // SAFETY: own values are used by the program alone except between `begin` and `finish`, when it does not touch them.
        // A common value is written by one rank, and only once all ranks have handed over the bucket of its gradient: from
        // then on no program reads it in this step (`Program::forward_backward` says so). The barrier at the end of `finish`
        // keeps the next step from reading before all is written.
        unsafe { Homes::new(parameters, gradients) }
    }

    /// Waits until all ranks are ready to train.
    pub fn start(&mut self, program: &mut dyn Program, job: &Job) -> Result<(), TrainError> {
        self.len = program.len(Values::Parameters);
        self.buckets = buckets::cut(program.slots(), self.len, &job.exchange);
        self.begun.reserve(self.buckets.len());
        // Backward stops once for each slot at most, and the end of the step at each update.
        self.stops.reserve(program.slots().len() + self.buckets.len() + 2);
        self.finished.reserve(self.buckets.len() + 2);
        match self.way {
            Way::Host => {}
            Way::Nowhere => program.weave(None)?,
            Way::Device => {
                let group = self.name_group()?;
                program.weave(Some(device::weave(self.plan, group, &self.buckets, &job.exchange)?))?;
                if program.driving() != Driving::Woven {
                    let why = "this engine cannot exchange on its device".to_owned();
                    return Err(EngineError::Unsupported(why).into());
                }
            }
        }
        self.wait_for_all()
    }

    /// Takes note during a run that the gradients of so many slots are final in a pass. A bucket is handed over when the
    /// last of this rank's shards has completed it. Nothing is done where no slot has become final.
    pub fn offer(&mut self, pass: Pass, slots: usize) {
        if self.way != Way::Host || pass.shard + 1 < self.shards.len() || slots == self.ready {
            return;
        }
        self.ready = slots;
        if self.overlap && self.failed.is_none() {
            let begin = clock::now();
            self.failed = self.hand_over().err();
            self.stops.push(Stop { begin, end: clock::now() });
        }
    }

    /// Begins the exchange of every bucket that is complete, and does what can be done for those under way.
    fn hand_over(&mut self) -> Result<(), TrainError> {
        while let Some(bucket) = self.buckets.get(self.begun.len())
            && self.ready > bucket.last_slot
        {
            let operation = self.operation(bucket);
            let ticket = self.peers().collective.begin(operation, Deadline::after(PATIENCE))?;
            self.begun.push(ticket);
        }
        Ok(self.peers().collective.progress()?)
    }

    fn peers(&mut self) -> &mut Peers {
        self.peers.as_mut().expect("invariant: there is somebody to exchange with")
    }

    fn operation(&self, bucket: &Bucket) -> Operation {
        let range = bucket.range.clone();
        let reduction = Reduction::Mean;
        match (self.plan.reduce, self.compress.half()) {
            (Reduce::ToAll, None) => Operation::AllReduce { range, reduction },
            (Reduce::ToAll, Some(half)) => {
                Operation::AllReduceHalf { range, reduction, half, halves: self.len }
            }
            (Reduce::Scatter, _) => Operation::ReduceScatter { range, reduction },
            (Reduce::ByEach, _) => Operation::ReplicatedSum { range, reduction },
            (Reduce::AtServer, _) => Operation::Reduce { range, reduction, root: Plan::SERVER },
            (Reduce::Nothing, _) => unreachable!("invariant: nothing is exchanged"),
        }
    }

    /// Ends the exchange of a step, and updates the parameters.
    pub fn finish(
        &mut self,
        program: &mut dyn Program,
        book: &mut StepBook<'_>,
        learning_rate: f32,
    ) -> Result<(), TrainError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        match self.way {
            Way::Host => self.finish_here(program, book, learning_rate)?,
            Way::Device => self.book_device(program, book.record())?,
            // Its runs have updated already.
            Way::Nowhere if program.driving() == Driving::Woven => {}
            Way::Nowhere => {
                program.apply(learning_rate, 0..self.len)?;
                book.settle(program)?;
            }
        }
        book.complete(|record| self.compare_arrivals(record));
        Ok(())
    }

    fn finish_here(
        &mut self,
        program: &mut dyn Program,
        book: &mut StepBook<'_>,
        learning_rate: f32,
    ) -> Result<(), TrainError> {
        let mut watch = Watch::start();
        self.ready = usize::MAX;
        self.hand_over()?;
        let mut begun = std::mem::take(&mut self.begun);
        for (index, ticket) in begun.drain(..).enumerate() {
            let finished = self.peers().collective.finish(ticket)?;
            self.finished.push(finished);
            let updated = self.plan.updated(self.buckets[index].range.clone());
            if !updated.is_empty() {
                self.stops.push(watch.since_last());
                watch.leave_out(|| program.apply(learning_rate, updated))?;
            }
        }
        self.begun = begun;
        match self.plan.publish {
            Publish::Nothing => {}
            Publish::Slices => self.meet()?,
            Publish::FromServer => self.publish(program, book, &mut watch)?,
        }
        self.stops.push(watch.since_last());
        self.book(book, watch.elapsed());
        book.settle(program)
    }

    /// A barrier that counts as part of the exchange.
    fn meet(&mut self) -> Result<(), TrainError> {
        let finished = self.peers().collective.barrier(Deadline::after(PATIENCE))?;
        self.finished.push(finished);
        Ok(())
    }

    /// Books the exchange's time, some of it spent after backward: processor time of this rank, and the rest as waiting.
    fn book(&mut self, book: &mut StepBook<'_>, after_backward: Nanos) {
        let exchange = book.in_ready() + after_backward;
        let record = book.record();
        let cpu = self.finished.iter().map(|f| f.cpu).sum::<Nanos>().min(exchange);
        record.book(Phase::CommCpu, cpu);
        record.book(Phase::CommWait, exchange.since(cpu));
        // At the barriers behind the buckets ranks wait for each other's updates: nobody is late with a gradient there.
        let buckets = self.finished.iter().take(self.buckets.len());
        let late = buckets.map(|f| f.waited.late_rank).sum::<Nanos>();
        record.late_rank = late.min(exchange.since(cpu));
        record.comm_busy = busy(&self.finished);
        record.overlapped = Some(record.comm_busy.since(stopped(&self.finished, &self.stops)));
        for (finished, bucket) in self.finished.iter().zip(&self.buckets) {
            record.buckets.push(BucketRecord {
                bytes: Bytes(4 * bucket.range.len() as u64),
                begun: finished.begun,
                last_arrival: finished.last_arrival,
                last_rank: finished.last_rank,
                ended: finished.ended,
                waited_late: finished.waited.late_rank,
                waited_transfer: finished.waited.transfer,
                cpu: finished.cpu,
                moved: finished.moved,
            });
        }
        self.finished.clear();
        self.stops.clear();
        self.ready = 0;
    }

    /// Waits until all ranks have come here.
    pub fn wait_for_all(&mut self) -> Result<(), TrainError> {
        if let Some(peers) = &mut self.peers {
            peers.collective.barrier(Deadline::after(PATIENCE))?;
        }
        Ok(())
    }

    /// Ends this rank's part: completes its last step, once all ranks are done where they exchange between devices.
    pub fn leave(&mut self, book: &mut StepBook<'_>) -> Result<(), TrainError> {
        if self.way == Way::Device {
            self.wait_for_all()?;
        }
        book.complete(|record| self.compare_last_arrivals(record));
        book.write()
    }
}

/// A clock that other work can be left out of.
struct Watch {
    begun: Nanos,
    left_out: Nanos,
    /// End of the last work that was left out.
    last: Nanos,
}

impl Watch {
    fn start() -> Self {
        let begun = clock::now();
        Self { begun, left_out: Nanos(0), last: begun }
    }

    fn leave_out<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = clock::now();
        let result = work();
        self.last = clock::now();
        self.left_out += self.last.since(begin);
        result
    }

    /// The time since something was left out.
    fn since_last(&self) -> Stop {
        Stop { begin: self.last, end: clock::now() }
    }

    fn elapsed(&self) -> Nanos {
        clock::now().since(self.begun).since(self.left_out)
    }
}

/// Time in which at least one of these was under way.
fn busy(finished: &[Finished]) -> Nanos {
    let mut total = Nanos(0);
    let mut reached = Nanos(0);
    for one in finished {
        total += one.ended.since(one.begun.max(reached));
        reached = reached.max(one.ended);
    }
    total
}

/// Part of the time in which at least one of these was under way that lies in one of the stops; both are in order of time.
fn stopped(finished: &[Finished], stops: &[Stop]) -> Nanos {
    let mut total = Nanos(0);
    let mut reached = Nanos(0);
    for one in finished {
        let begin = one.begun.max(reached);
        for stop in stops {
            total += stop.end.min(one.ended).since(stop.begin.max(begin));
        }
        reached = reached.max(one.ended);
    }
    total
}

#[cfg(test)]
mod tests;
