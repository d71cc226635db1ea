//! One rank's part in an update strategy: hands gradients over while backward runs, and updates with what comes back.

mod woven;

pub(crate) use woven::POSTED;

use std::ops::Range;
use std::time::Duration;

use paceline_comm::{
    Area, Collective, Deadline, Finished, Half, Operation, Reduction, Segment, Ticket, slice,
};
use paceline_engine::{Drawing, EngineError, Homes, Place, Program, Ready, Region};
use paceline_record::{BucketRecord, Bytes, Nanos, Phase, Rank, StepRecord};

use crate::buckets::{self, Bucket};
use crate::strategy::{Compress, Strategy};
use crate::worker::book_times;
use crate::{Job, TrainError, clock, device};

/// How long a rank waits for the others before it gives up: a dead one is noticed long before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The exchange of one rank with all others. In a world of one, and where nothing is exchanged, it only updates.
pub(crate) struct Exchange {
    rank: Rank,
    strategy: Strategy,
    overlap: bool,
    compress: Compress,
    /// Whether devices exchange by themselves.
    on_device: bool,
    /// Whether exchange and update are part of the program's runs.
    woven: bool,
    /// Shards of each step that this rank runs, of those that all ranks run.
    shards: Range<u32>,
    all_shards: u32,
    /// The other ranks; `None` in a world of one that runs each step whole.
    peers: Option<Peers>,
    buckets: Vec<Bucket>,
    /// Values of the parameter region.
    len: usize,
    /// Slots that have become ready in this step.
    ready: usize,
    /// Buckets handed over, in order.
    begun: Vec<Ticket>,
    /// What became of them, and of the barriers between.
    finished: Vec<Finished>,
    /// Steps whose arrivals have been posted.
    posted: u64,
    /// An error inside a call of backward, to be told afterwards.
    failed: Option<TrainError>,
}

struct Peers {
    collective: Box<dyn Collective>,
    segment: Segment,
    rank: Rank,
    world: u32,
}

impl Exchange {
    /// Joins the world that the launcher made.
    pub fn join(job: &Job, rank: Rank, segment: Option<i32>) -> Result<Self, TrainError> {
        let peers = match segment {
            None => None,
            Some(descriptor) => {
                let segment = Segment::attach(descriptor)?;
                let collective = Box::new(segment.join(rank)?);
                Some(Peers { collective, segment, rank, world: job.workers })
            }
        };
        Ok(Self {
            rank,
            strategy: job.update,
            overlap: job.exchange.overlap,
            compress: job.exchange.compress,
            on_device: job.exchanges_on_device(),
            woven: false,
            shards: job.shards_of(rank),
            all_shards: job.shards(),
            peers,
            buckets: Vec::new(),
            len: 0,
            ready: 0,
            begun: Vec::new(),
            finished: Vec::new(),
            posted: 0,
            failed: None,
        })
    }

    /// Whose part it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The shards of each step that this rank runs.
    pub fn shards(&self) -> Range<u32> {
        self.shards.clone()
    }

    /// Where the program's values must lie. `trained` is their number.
    pub fn homes(&self, trained: usize) -> Homes {
        let through_here = !self.on_device && self.strategy != Strategy::Independent;
        let Some(peers) = self.peers.as_ref().filter(|_| through_here) else {
            return Homes::default();
        };
        let region = |area: Area| Region { place: Place::Host, address: area.address() as u64, len: trained };
        let gradients = self.shards().map(|shard| region(peers.segment.area(shard))).collect();
        let first = self.rank == Rank(0);
        let parameters = match self.strategy {
            Strategy::Sharded => {
                Some((region(peers.collective.common()), if first { Drawing::Draw } else { Drawing::Leave }))
            }
            Strategy::PsCpu if first => Some((region(peers.collective.common()), Drawing::Draw)),
            _ => None,
        };
        // SAFETY: the segment outlives the program, which the worker drops first. Own values are used by the program
        // alone but between `begin` and `finish`, when it does not touch them. A common value is written by one rank, and
        // only once all ranks have handed over the bucket of its gradient: from then on no program reads it in this step
        // (`Ready` says so). The barrier at the end of `finish` keeps the next step from reading before all is written.
        unsafe { Homes::new(parameters, gradients) }
    }

    /// Waits until all ranks are ready to train.
    pub fn start(&mut self, program: &mut dyn Program, options: &Job) -> Result<(), TrainError> {
        self.len = program.parameters().len;
        self.buckets = buckets::cut(program.slots(), self.len, &options.exchange);
        self.begun.reserve(self.buckets.len());
        self.finished.reserve(self.buckets.len() + 2);
        let weave = match self.on_device {
            true => Some(device::weave(options, self.rank, self.name_group()?, &self.buckets)?),
            false => None,
        };
        if self.on_device || !self.exchanges() {
            self.woven = program.weave(weave)?;
        }
        if self.on_device && !self.woven {
            let why = "this engine cannot exchange on its device".to_owned();
            return Err(EngineError::Unsupported(why).into());
        }
        self.wait_for_all()
    }

    /// Whether gradients are exchanged here before the update.
    pub fn exchanges(&self) -> bool {
        self.peers.is_some() && self.strategy != Strategy::Independent && !self.woven
    }

    /// Whether exchange and update are part of the program's runs.
    pub fn is_woven(&self) -> bool {
        self.woven
    }

    /// Takes note of a gradient that has become ready; called during backward.
    pub fn gradient_ready(&mut self, _ready: Ready) {
        self.ready += 1;
        if !self.exchanges() || !self.overlap || self.failed.is_some() {
            return;
        }
        if let Err(error) = self.hand_over() {
            self.failed = Some(error);
        }
    }

    /// Begins the exchange of every bucket that is complete, and does what can be done for those under way.
    fn hand_over(&mut self) -> Result<(), TrainError> {
        let next = self.begun.len();
        if let Some(bucket) = self.buckets.get(next)
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
        let half = match self.compress {
            Compress::None => None,
            Compress::Fp16 => Some(Half::Fp16),
            Compress::Bf16 => Some(Half::Bf16),
        };
        match (self.strategy, half) {
            (Strategy::AllReduce, None) => Operation::AllReduce { range, reduction },
            (Strategy::AllReduce, Some(half)) => {
                Operation::AllReduceHalf { range, reduction, half, halves: self.len }
            }
            (Strategy::Sharded, _) => Operation::ReduceScatter { range, reduction },
            (Strategy::Replicated, _) => Operation::ReplicatedSum { range, reduction },
            // The server reads where the gradients lie: that they are there is all it must know.
            (Strategy::PsCpu | Strategy::PsGpu, _) => Operation::Barrier,
            (Strategy::Independent, _) => unreachable!("invariant: nothing is exchanged"),
        }
    }

    /// Waits for what was handed over, and updates the parameters at a learning rate. `ready_time` is what [`Self::gradient_ready`] took
    /// in all, as the engine measured it.
    pub fn finish(
        &mut self,
        program: &mut dyn Program,
        record: &mut StepRecord,
        (learning_rate, ready_time): (f32, Nanos),
    ) -> Result<(), TrainError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.woven {
            return Ok(());
        }
        if !self.exchanges() {
            self.ready = 0;
            return Ok(program.apply(learning_rate, 0..self.len)?);
        }
        let before = clock::now();
        let (mut updating, mut copying) = (Nanos(0), Nanos(0));
        while self.begun.len() < self.buckets.len() {
            self.hand_over()?;
        }
        let server = self.rank == Rank(0);
        for (index, ticket) in std::mem::take(&mut self.begun).into_iter().enumerate() {
            let mut finished = self.peers().collective.finish(ticket)?;
            let range = self.buckets[index].range.clone();
            if self.strategy.has_server() && server {
                let cpu = clock::thread_cpu();
                self.peers().average(&range);
                finished.cpu += clock::thread_cpu().since(cpu);
                finished.moved = Bytes(4 * range.len() as u64 * u64::from(self.all_shards + 1));
                finished.ended = clock::now();
            }
            self.finished.push(finished);
            let update = match self.strategy {
                Strategy::Sharded => {
                    let Peers { rank, world, .. } = *self.peers();
                    Some(slice(range, rank, world))
                }
                Strategy::PsCpu | Strategy::PsGpu if !server => None,
                _ => Some(range),
            };
            if let Some(range) = update {
                let start = clock::now();
                program.apply(learning_rate, range)?;
                updating += clock::now().since(start);
            }
        }
        if self.strategy == Strategy::PsGpu && server {
            let start = clock::now();
            book_times(record, &program.finish()?);
            updating += clock::now().since(start);
            let parameters = program.parameters();
            let common = self.peers().collective.common();
            // SAFETY: the others read it between barriers only.
            let into = unsafe { common.write(0..parameters.len) };
            let start = clock::now();
            program.read_region(parameters, into)?;
            copying = clock::now().since(start);
            record.book(Phase::CopyOut, copying);
        }
        if self.strategy.shares_parameters() {
            let finished = self.peers().collective.barrier(Deadline::after(PATIENCE))?;
            self.finished.push(finished);
        }
        if self.strategy.has_server() {
            let start = clock::now();
            self.peers().fetch(program)?;
            let fetching = clock::now().since(start);
            record.book(Phase::CopyIn, fetching);
            copying += fetching;
            // Nobody may update while somebody still fetches.
            let finished = self.peers().collective.barrier(Deadline::after(PATIENCE))?;
            self.finished.push(finished);
        }
        let exchange = ready_time + clock::now().since(before).since(updating).since(copying);
        self.book(record, exchange);
        Ok(())
    }

    /// Books the exchange's time: processor time of this rank for it, and the rest as waiting.
    fn book(&mut self, record: &mut StepRecord, exchange: Nanos) {
        let cpu = self.finished.iter().map(|f| f.cpu).sum::<Nanos>().min(exchange);
        record.book(Phase::CommCpu, cpu);
        record.book(Phase::CommWait, exchange.since(cpu));
        // At the barriers behind the buckets ranks wait for each other's updates: nobody is late with a gradient there.
        let buckets = self.finished.iter().take(self.buckets.len());
        let late = buckets.map(|f| f.waited.late_rank).sum::<Nanos>();
        record.late_rank = late.min(exchange.since(cpu));
        record.comm_busy = busy(&self.finished);
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
        self.ready = 0;
    }
}

/// What ranks tell each other between steps, when no gradient is under way: their gradients' memory carries it.
impl Exchange {
    /// The running statistics of all shards, in their order; of this rank's alone, where ranks go their own ways.
    pub fn statistics(&mut self, program: &mut dyn Program) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut own = Vec::new();
        for shard in 0..self.shards.len() {
            let region = program.statistics(shard);
            let mut values = vec![0.0; region.len];
            program.read_region(region, &mut values)?;
            own.push(values);
        }
        let independent = self.strategy == Strategy::Independent;
        let Some(peers) = self.peers.as_mut().filter(|_| !independent) else {
            return Ok(own);
        };
        for (shard, values) in self.shards.clone().zip(&own) {
            // SAFETY: neither the program nor an operation uses these values now.
            unsafe { peers.segment.area(shard).write(0..values.len()) }.copy_from_slice(values);
        }
        let len = own[0].len();
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        // SAFETY: all ranks have written theirs, and none writes again before the next barrier.
        let read = |shard| unsafe { peers.segment.area(shard).read(0..len) }.to_vec();
        let all = (0..self.all_shards).map(read).collect();
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        Ok(all)
    }

    /// Rows of a few numbers, one a shard: those of this rank's shards become those of all.
    pub fn gather_rows<const N: usize>(&mut self, own: &[[f32; N]]) -> Result<Vec<[f32; N]>, TrainError> {
        let Some(peers) = &mut self.peers else {
            return Ok(own.to_vec());
        };
        for (shard, row) in self.shards.clone().zip(own) {
            // SAFETY: no operation is under way.
            unsafe { peers.segment.area(shard).write(0..N) }.copy_from_slice(row);
        }
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        let read = |shard| {
            let mut row = [0.0; N];
            // SAFETY: all ranks have written theirs, and none writes again before the next barrier.
            row.copy_from_slice(unsafe { peers.segment.area(shard).read(0..N) });
            row
        };
        let all = (0..self.all_shards).map(read).collect();
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        Ok(all)
    }

    /// Completes the state of the update rule on every rank, where each keeps up its own part only.
    pub fn complete_state(&mut self, program: &mut dyn Program) -> Result<(), TrainError> {
        if self.strategy != Strategy::Sharded {
            return Ok(());
        }
        let Some(peers) = &mut self.peers else {
            return Ok(());
        };
        for region in program.state() {
            let mut state = vec![0.0; region.len];
            program.read_region(region, &mut state)?;
            peers.collective.values(0..state.len())?.copy_from_slice(&state);
            for bucket in &self.buckets {
                let operation = Operation::AllGather { range: bucket.range.clone() };
                let ticket = peers.collective.begin(operation, Deadline::after(PATIENCE))?;
                peers.collective.finish(ticket)?;
            }
            program.write_region(region, peers.collective.values(0..region.len)?)?;
        }
        Ok(())
    }

    /// Waits until all ranks have come here.
    pub fn wait_for_all(&mut self) -> Result<(), TrainError> {
        if let Some(peers) = &mut self.peers {
            peers.collective.barrier(Deadline::after(PATIENCE))?;
        }
        Ok(())
    }

    /// Whether this rank's program holds parameters of its own, or is the first of those that share them.
    pub fn writes_parameters(&self) -> bool {
        self.on_device || self.strategy != Strategy::Sharded || self.rank == Rank(0)
    }
}

impl Peers {
    /// The server's part: its own gradients become the mean of all shards', added in the order of the shards.
    fn average(&mut self, range: &Range<usize>) {
        const BLOCK: usize = 4096;
        let areas = self.segment.size().areas;
        let scale = 1.0 / areas as f32;
        let mut sum = [0.0f32; BLOCK];
        for start in range.clone().step_by(BLOCK) {
            let block = start..(start + BLOCK).min(range.end);
            let sum = &mut sum[..block.len()];
            // SAFETY: all ranks have arrived and touch these values no more until the barrier that follows.
            sum.copy_from_slice(unsafe { self.segment.area(0).read(block.clone()) });
            for area in (1..areas).map(|shard| self.segment.area(shard)) {
                // SAFETY: as above.
                let values = unsafe { area.read(block.clone()) };
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            // SAFETY: these are this rank's own.
            let own = unsafe { self.collective.own().write(block.clone()) };
            own.iter_mut().zip(sum).for_each(|(own, sum)| *own = *sum * scale);
        }
    }

    /// A worker's part: the server's parameters become its own. The server has them already.
    fn fetch(&mut self, program: &mut dyn Program) -> Result<(), TrainError> {
        if self.rank == Rank(0) {
            return Ok(());
        }
        let parameters = program.parameters();
        // SAFETY: the server updates between barriers only.
        let from = unsafe { self.collective.common().read(0..parameters.len) };
        Ok(program.write_region(parameters, from)?)
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

#[cfg(test)]
mod tests;
