use std::ops::Range;
use std::thread;
use std::time::Instant;

use paceline_comm::{CommError, SegmentSize};
use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{Engine, Pass, Samples, Spec, lay_out};
use paceline_model::{Builder, Conv2d, Dense, Graph, ParamId, Shape, zoo};
use paceline_record::log::{RankLog, RankWriter};
use paceline_record::{RankHeader, Step};

use super::*;
use crate::Strategy;
use crate::job::tests::job;

const STEPS: u64 = 3;
const BATCH: usize = 6;
const RATE: f32 = 0.1;

/// A network without batch norm: there a joint batch is no more than its samples.
fn plain() -> Graph {
    let (mut b, x) = Builder::new("plain", Shape::new(6, 6, 3), 5).expect("a small map");
    let x = b.conv("conv", x, Conv2d::k(3, 3).out(20).same().bias()).expect("fits");
    let x = b.relu("relu", x);
    let x = b.conv("conv2", x, Conv2d::k(3, 3).out(30).stride(2).same().bias()).expect("fits");
    let x = b.global_avg_pool("mean", x);
    let x = b.dense("head", x, Dense::to(5)).expect("a vector");
    b.softmax_cross_entropy("loss", x).expect("logits")
}

/// Samples of a step: those of rank r are the r-th shard.
fn samples(graph: &Graph, step: u64, range: Range<usize>) -> (Vec<f32>, Vec<u32>) {
    let len = graph.input().len();
    let value =
        |i: usize| (((i as u64 + 7919 * step).wrapping_mul(2_654_435_761) >> 8) % 1999) as f32 / 1000.0 - 1.0;
    let images = (range.start * len..range.end * len).map(value).collect();
    let labels = range.map(|n| ((n as u64 * 3 + step) % graph.classes as u64) as u32).collect();
    (images, labels)
}

fn weights(graph: &Graph, program: &mut dyn Program) -> Vec<f32> {
    let read = |id: usize| program.to_vec(Values::Param(ParamId(id))).expect("a tensor");
    (0..graph.params.len()).filter(|&id| graph.params[id].kind.trainable()).flat_map(read).collect()
}

/// What the ranks have after some steps, and the records of their last.
fn run_world(graph: &Graph, job: &Job) -> Vec<(Vec<f32>, StepRecord)> {
    let engine = Cpu::new(CpuOptions { threads: 1, simd: None }).expect("a thread");
    let spec = Spec::new(BATCH);
    let trained = lay_out(graph).trained;
    let (own, common) = job.shared_values(trained);
    let segment = Segment::create(SegmentSize { world: job.workers, areas: job.shards(), own, common })
        .expect("memory");
    let descriptor = segment.descriptor();
    let rank_of_world = |rank: Rank| {
        let mut exchange = Exchange::join(job, rank, descriptor).expect("the segment");
        let spec = Spec { shards: exchange.shards().len(), ..spec };
        let mut program = engine.compile_in(graph, &spec, &exchange.homes(trained)).expect("it compiles");
        exchange.start(&mut *program, job).expect("all ranks start");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let header = RankHeader::new(rank, job.workers);
        let mut log = RankWriter::create(folder.path(), &header).expect("a log");
        let mut book = StepBook::open(&mut log, graph, Driving::Direct);
        for step in (0..STEPS).map(Step) {
            book.begin(step, 0.1);
            for turn in 0..exchange.shards().len() * job.accumulate {
                let pass = job.pass(step.0, &exchange.shards(), turn);
                let first = (exchange.shards().start as usize * job.accumulate + turn) * BATCH;
                let (images, labels) = samples(graph, step.0, first..first + BATCH);
                program.feed(Samples { images: &images, labels: &labels }).expect("a batch");
                let late = rank.0 + 1 == job.workers;
                let mut offer = |slots| {
                    // One rank lags behind the others in backward: they must not update what it still reads.
                    if late && slots > 0 {
                        thread::sleep(Duration::from_micros(300));
                    }
                    exchange.offer(pass, slots);
                };
                program.forward_backward(pass, &mut offer).expect("it runs");
                book.add_pass(&program.finish().expect("a result"), BATCH, 1);
            }
            exchange.finish(&mut *program, &mut book, RATE).expect("all take part");
            book.close().expect("a log");
        }
        drop(book);
        let last = RankLog::read(folder.path(), rank).expect("a whole log").steps.pop().expect("steps");
        // Parameters in common memory belong to all: nobody leaves before everybody has read them.
        let weights = weights(graph, &mut *program);
        exchange.peers().collective.barrier(Deadline::after(PATIENCE)).expect("all ranks end");
        (weights, last)
    };
    thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..job.workers).map(|rank| scope.spawn(move || rank_of_world(Rank(rank)))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank that ends well")).collect()
    })
}

/// One worker on the joint batch of all.
fn run_alone(graph: &Graph, samples_a_step: usize) -> Vec<f32> {
    let engine = Cpu::new(CpuOptions { threads: 1, simd: None }).expect("a thread");
    let mut program = engine.compile(graph, &Spec::new(samples_a_step)).expect("it compiles");
    let everything = 0..program.len(Values::Parameters);
    for step in 0..STEPS {
        let (images, labels) = samples(graph, step, 0..samples_a_step);
        program.feed(Samples { images: &images, labels: &labels }).expect("a batch");
        program.forward_backward(Pass::ONLY, &mut |_| {}).expect("it runs");
        program.apply(RATE, everything.clone()).expect("the range");
    }
    weights(graph, &mut *program)
}

fn job_of(update: Strategy, workers: u32) -> Job {
    let mut job = Job { update, workers, ..job("case".as_ref()) };
    // Small enough that there are several buckets.
    job.exchange.first_bucket_bytes = 64;
    job.exchange.bucket_bytes = 4096;
    job
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let difference: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let size: f64 = b.iter().map(|b| f64::from(*b).powi(2)).sum();
    (difference / size).sqrt()
}

const EXCHANGING: [Strategy; 4] =
    [Strategy::AllReduce, Strategy::Sharded, Strategy::Replicated, Strategy::PsCpu];

#[test]
fn every_strategy_gives_the_weights_of_one_worker_on_the_joint_batch() {
    let graph = plain();
    for workers in [2, 3] {
        let joint = run_alone(&graph, workers as usize * BATCH);
        let mut bits: Option<Vec<f32>> = None;
        for update in EXCHANGING {
            for overlap in [true, false] {
                let mut job = job_of(update, workers);
                job.exchange.overlap = overlap;
                let ranks = run_world(&graph, &job);
                for (weights, _) in &ranks {
                    assert!(distance(weights, &joint) < 1e-6, "{update}: {}", distance(weights, &joint));
                    // All add in the order of the ranks, so all agree to the bit.
                    let same = bits.get_or_insert_with(|| weights.clone());
                    assert!(weights == same, "{update}, overlap {overlap}, {workers} workers");
                }
            }
        }
    }
}

/// With batch norm, and shards that do not go round evenly: what one worker does with all of them is what any number does.
#[test]
fn the_same_shards_give_the_same_bits_on_any_number_of_workers() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 5).expect("a small network");
    let mut bits: Option<Vec<f32>> = None;
    for update in EXCHANGING {
        for workers in [1, 2, 3, 4, 6] {
            for overlap in [true, false] {
                let mut job = Job { shards: Some(6), ..job_of(update, workers) };
                job.exchange.overlap = overlap;
                for (weights, _) in run_world(&graph, &job) {
                    let same = bits.get_or_insert_with(|| weights.clone());
                    assert!(weights == *same, "{update} on {workers} workers, overlap {overlap}");
                }
            }
        }
    }
    let fewer = Job { shards: Some(5), ..job_of(Strategy::AllReduce, 2) };
    assert!(run_world(&graph, &fewer)[0].0 != bits.expect("weights"), "other shards are another batch");
}

/// A mean over equal shards of a batch is the mean of the shards' means, and so for its gradient: averaging the gradients
/// of N workers, or concatenating their predictions under one mean loss, is the same sum in another order.
#[test]
fn averaging_gradients_is_the_same_sum_as_concatenating_predictions() {
    let graph = plain();
    let job = job_of(Strategy::AllReduce, 4);
    let averaged = run_world(&graph, &job);
    let concatenated = run_alone(&graph, 4 * BATCH);
    assert!(distance(&averaged[0].0, &concatenated) < 1e-6);
    assert!(distance(&averaged[0].0, &run_alone(&graph, BATCH)) > 1e-3, "fewer samples are another sum");
}

#[test]
fn passes_added_up_before_the_exchange_are_a_larger_batch() {
    let graph = plain();
    let joint = run_alone(&graph, 6 * BATCH);
    for update in EXCHANGING {
        let job = Job { accumulate: 3, ..job_of(update, 2) };
        for (weights, _) in run_world(&graph, &job) {
            assert!(distance(&weights, &joint) < 1e-6, "{update}: {}", distance(&weights, &joint));
        }
    }
}

#[test]
fn with_batch_norm_each_worker_sees_its_own_statistics_and_all_share_the_weights() {
    let graph = zoo::small_cnn(Shape::new(8, 8, 3), 5).expect("a small network");
    let ranks = run_world(&graph, &job_of(Strategy::AllReduce, 2));
    assert!(ranks[0].0 == ranks[1].0);
    // By hand: the mean of the gradients that two programs find on their own shards, as DDP has it.
    let engine = Cpu::new(CpuOptions { threads: 1, simd: None }).expect("a thread");
    let mut programs: Vec<_> =
        (0..2).map(|_| engine.compile(&graph, &Spec::new(BATCH)).expect("it compiles")).collect();
    for step in 0..STEPS {
        for (rank, program) in programs.iter_mut().enumerate() {
            let (images, labels) = samples(&graph, step, rank * BATCH..(rank + 1) * BATCH);
            program.feed(Samples { images: &images, labels: &labels }).expect("a batch");
            program.forward_backward(Pass::ONLY, &mut |_| {}).expect("it runs");
        }
        let gradients = Values::Gradients(0);
        let [a, b] = [0, 1].map(|rank: usize| programs[rank].to_vec(gradients).expect("gradients"));
        let mean: Vec<f32> = a.iter().zip(&b).map(|(a, b)| (a + b) * 0.5).collect();
        for program in &mut programs {
            program.write(gradients, &mean).expect("gradients");
            program.apply(0.1, 0..mean.len()).expect("the range");
            program.finish().expect("a result");
        }
    }
    assert!(ranks[0].0 == weights(&graph, &mut *programs[0]), "to the bit");
}

#[test]
fn independent_workers_go_their_own_ways() {
    let graph = plain();
    let ranks = run_world(&graph, &job_of(Strategy::Independent, 2));
    assert!(ranks[0].0 != ranks[1].0);
    assert!(ranks.iter().all(|(_, record)| record.buckets.is_empty() && record.comm_busy == Nanos(0)));
    assert!(distance(&ranks[0].0, &run_alone(&graph, BATCH)) < 1e-12);
}

#[test]
fn gradients_in_16_bits_cost_no_more_than_their_digits() {
    let graph = plain();
    let joint = run_alone(&graph, 3 * BATCH);
    for (compress, tolerance) in [(Compress::Fp16, 2e-5), (Compress::Bf16, 2e-4)] {
        let mut job = job_of(Strategy::AllReduce, 3);
        job.exchange.compress = compress;
        let ranks = run_world(&graph, &job);
        for (weights, record) in &ranks {
            assert!(weights == &ranks[0].0, "{compress}: all ranks round alike");
            let off = distance(weights, &joint);
            assert!(off < tolerance, "{compress}: {off}");
            let (moved, bytes): (u64, u64) =
                record.buckets.iter().fold((0, 0), |sum, b| (sum.0 + b.moved.0, sum.1 + b.bytes.0));
            assert!(
                moved < 2 * bytes,
                "less than the 2 bytes a byte of an all-reduce in 32 bits: {moved} of {bytes}"
            );
        }
        assert!(distance(&ranks[0].0, &joint) > 1e-9, "{compress}: rounding shows");
    }
}

#[test]
fn each_bucket_tells_who_came_last_and_when() {
    let graph = plain();
    let ranks = run_world(&graph, &job_of(Strategy::AllReduce, 3));
    let first = &ranks[0].1;
    assert!(first.buckets.len() > 2);
    for (_, record) in &ranks {
        assert_eq!(record.buckets.len(), first.buckets.len());
        let bytes: u64 = record.buckets.iter().map(|bucket| bucket.bytes.0).sum();
        assert!(bytes as usize >= 4 * ranks[0].0.len());
        for (bucket, same) in record.buckets.iter().zip(&first.buckets) {
            assert_eq!((bucket.last_rank, bucket.last_arrival), (same.last_rank, same.last_arrival));
            assert!(bucket.begun <= bucket.last_arrival && bucket.last_arrival <= bucket.ended);
        }
        assert!(record.comm_busy > Nanos(0) && record.late_rank <= record.phases[Phase::CommWait]);
    }
}

#[test]
fn the_server_s_work_is_in_its_buckets_and_waiting_for_it_is_nobody_s_lateness() {
    let ranks = run_world(&plain(), &job_of(Strategy::PsCpu, 3));
    for (rank, (_, record)) in ranks.iter().enumerate() {
        let late: Nanos = record.buckets.iter().map(|bucket| bucket.waited_late).sum();
        assert!(record.late_rank <= late, "only gradients can be late");
        for bucket in &record.buckets {
            let moved = if rank == 0 { 4 * bucket.bytes.0 } else { 0 };
            assert_eq!(bucket.moved.0, moved, "it reads three ranks' gradients and writes one mean");
        }
    }
}

/// A collective that burns processor time for every operation.
struct Costly(Box<dyn Collective>);

const COST: Duration = Duration::from_millis(40);

impl Collective for Costly {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn world(&self) -> u32 {
        self.0.world()
    }
    fn own(&self) -> Area {
        self.0.own()
    }
    fn common(&self) -> Area {
        self.0.common()
    }
    fn values(&mut self, range: Range<usize>) -> Result<&mut [f32], CommError> {
        self.0.values(range)
    }
    fn begin(&mut self, operation: Operation, by: Deadline) -> Result<Ticket, CommError> {
        self.0.begin(operation, by)
    }
    fn progress(&mut self) -> Result<(), CommError> {
        self.0.progress()
    }
    fn finish(&mut self, ticket: Ticket) -> Result<Finished, CommError> {
        let before = clock::thread_cpu();
        while clock::thread_cpu().since(before).0 < COST.as_nanos() as u64 {
            std::hint::spin_loop();
        }
        let mut finished = self.0.finish(ticket)?;
        finished.cpu += clock::thread_cpu().since(before);
        Ok(finished)
    }
}

#[test]
fn a_costly_reduction_is_booked_as_comm_cpu_and_nowhere_else() {
    let graph = plain();
    let job = job_of(Strategy::AllReduce, 1);
    let engine = Cpu::new(CpuOptions { threads: 1, simd: None }).expect("a thread");
    let trained = lay_out(&graph).trained;
    let segment =
        Segment::create(SegmentSize { world: 1, areas: 1, own: trained, common: 0 }).expect("memory");
    let mut exchange = Exchange::join(&job, Rank(0), segment.descriptor()).expect("the segment");
    let peers = exchange.peers.take().expect("a segment makes peers");
    exchange.peers = Some(Peers { collective: Box::new(Costly(peers.collective)), ..peers });
    let mut program =
        engine.compile_in(&graph, &Spec::new(BATCH), &exchange.homes(trained)).expect("it compiles");
    exchange.start(&mut *program, &job).expect("alone");
    let (images, labels) = samples(&graph, 0, 0..BATCH);
    program.feed(Samples { images: &images, labels: &labels }).expect("a batch");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut log = RankWriter::create(folder.path(), &RankHeader::new(Rank(0), 1)).expect("a log");
    let mut book = StepBook::open(&mut log, &graph, Driving::Direct);
    program.forward_backward(Pass::ONLY, &mut |slots| exchange.offer(Pass::ONLY, slots)).expect("it runs");
    let result = program.finish().expect("a result");
    book.add_pass(&result, BATCH, 1);
    let wall = Instant::now();
    exchange.finish(&mut *program, &mut book, RATE).expect("alone");
    let record = book.record();
    let planted = COST.as_nanos() as u64 * record.buckets.len() as u64;
    assert!(record.phases[Phase::CommCpu].0 >= planted);
    let exchange_time = record.phases[Phase::CommCpu] + record.phases[Phase::CommWait];
    assert!(exchange_time.0 <= wall.elapsed().as_nanos() as u64 + result.in_ready.0, "time is booked once");
    let backward = result.phases[Phase::Backward];
    assert!(backward.0 < planted, "backward of a tiny network takes no {planted} ns");
    assert_eq!(record.phases[Phase::Backward], backward, "the exchange books nothing to backward");
}
