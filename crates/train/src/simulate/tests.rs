use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use paceline_engine::cpu::{Cpu, CpuOptions};
use paceline_engine::{Engine, Places, Values, lay_out};
use paceline_model::{Builder, Dense, Graph, Shape};
use paceline_record::log::{LauncherLog, RankLog, WorkerHeader};
use paceline_record::{LayerTime, Outcome};

use super::network::Window;
use super::*;
use crate::launcher::launch;
use crate::strategy::{Compress, ExchangeOptions};
use crate::{Engines, Strategy};

/// A job of four workers on a machine without jitter, and with what `text` plants.
fn job(text: &str) -> Job {
    Job {
        engine: ENGINE.into(),
        workers: 4,
        batch: 16,
        steps: 12,
        profile: false,
        simulation: format!("jitter=0,{text}").parse().expect("known keys"),
        ..crate::job::tests::job("".as_ref())
    }
}

struct Logs {
    result: Result<(), TrainError>,
    launcher: LauncherLog,
    ranks: Vec<RankLog>,
    folder: tempfile::TempDir,
}

impl Logs {
    fn steps(&self) -> impl Iterator<Item = &StepRecord> {
        self.ranks.iter().flat_map(|rank| &rank.steps)
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        let file = |rank| fs::read(self.folder.path().join(paceline_record::log::rank_file(rank)));
        self.ranks.iter().map(|log| file(Rank(log.header.who().number())).expect("a log")).collect()
    }
}

fn launch_in(folder: tempfile::TempDir, job: Job, interrupted: bool) -> Logs {
    let job = Job { folder: folder.path().into(), ..job };
    let surroundings = Surroundings {
        program: "/nowhere/paceline".into(),
        interrupted: &AtomicBool::new(interrupted),
        load: None,
        meeting: None,
        progress: &mut |_| {},
    };
    let prepared = job.prepare(&mut Engines::default()).expect("a job that can be simulated");
    let result = launch(&job, &prepared, surroundings);
    let read = |path: &Path| -> Vec<RankLog> {
        (0..job.workers).map(|rank| RankLog::read(path, Rank(rank)).expect("a whole log")).collect()
    };
    let launcher = LauncherLog::read(folder.path()).expect("a whole log");
    Logs { result, launcher, ranks: read(folder.path()), folder }
}

fn simulate(job: Job) -> Logs {
    let logs = launch_in(tempfile::tempdir().expect("a temporary folder"), job, false);
    logs.result.as_ref().expect("nothing fails");
    logs
}

/// Time by phase over all ranks, tiled as the analysis does; `comm_wait` in its two parts.
fn tile(logs: &Logs) -> BTreeMap<&'static str, i128> {
    let mut times = BTreeMap::new();
    let mut add = |name, time: Nanos| *times.entry(name).or_default() += i128::from(time.0);
    let (begin, end) =
        (logs.launcher.first_spawn.expect("a spawn"), logs.launcher.last_reap.expect("a reap"));
    for rank in &logs.ranks {
        let (first, last) = (&rank.steps[0], &rank.steps[rank.steps.len() - 1]);
        let main = rank.main.expect("it began");
        assert!(begin <= main && main <= first.begin && last.end <= end);
        add("launch", main.since(begin));
        add("init", first.begin.since(main));
        add("tail", end.since(last.end));
        for step in &rank.steps {
            add("other", step.end.since(step.begin).since(step.phases.total()));
            add("late", step.late_rank);
            add("transfer", step.phases[Phase::CommWait].since(step.late_rank));
            for (phase, time) in step.phases.iter().filter(|(phase, _)| *phase != Phase::CommWait) {
                add(phase.name(), time);
            }
        }
    }
    times
}

const EVERYTHING: &str = "jitter=0.05,contention=0.1,warmup=3:2,slowdown=8:1.3,straggler=2:1.4,hiccup=0.2:3,spawn=1,\
    init_per_worker=2,load_contention=0.3,latency_us=30,bandwidth=3,comm_cpu=0.4,update_contention=0.2,eval=3:5,\
    checkpoint=4:7,other=0.25,tail_per_worker=1";

#[test]
fn phases_tile_every_step_whatever_is_planted() {
    for update in Strategy::ALL {
        let publishes = update.plan(Rank(0), 4).publish != Publish::Nothing;
        for (overlap, accumulate) in [(true, 1), (false, 1), (true, 3)] {
            let exchange = ExchangeOptions { overlap, bucket_bytes: 1 << 20, ..ExchangeOptions::default() };
            let logs = simulate(Job { update, accumulate, exchange, ..job(EVERYTHING) });
            assert_eq!(logs.launcher.over, Some((Outcome::Done, None)));
            for (number, rank) in logs.ranks.iter().enumerate() {
                let header = RankHeader::new(Rank(number as u32), 4);
                assert_eq!(rank.header, WorkerHeader::Rank(header));
                assert_eq!(rank.steps.len(), 12);
                assert!(rank.steps.windows(2).all(|pair| pair[0].end == pair[1].begin));
                assert!(rank.planned > Some(Bytes(1 << 20)) && rank.peak_resident == rank.planned);
            }
            for (number, step) in logs.steps().enumerate() {
                assert_eq!(step.step, Step(number as u64 % 12));
                assert_eq!(step.examples, 16 * accumulate as u64);
                assert_eq!(
                    step.end.since(step.begin),
                    step.phases.total() + Nanos(250_000),
                    "{update} {step:?}"
                );
                let sum = |of: fn(&paceline_record::BucketRecord) -> Nanos| -> Nanos {
                    step.buckets.iter().map(of).sum()
                };
                assert_eq!(step.late_rank, sum(|bucket| bucket.waited_late));
                assert_eq!(step.phases[Phase::CommCpu], sum(|bucket| bucket.cpu));
                let waited = sum(|bucket| bucket.waited_late) + sum(|bucket| bucket.waited_transfer);
                assert!(step.phases[Phase::CommWait] >= waited);
                assert!(step.phases[Phase::CommWait] == waited || publishes);
                assert!(
                    step.comm_busy >= step.phases[Phase::CommWait] && step.comm_busy <= step.phases.total()
                );
                assert_eq!(step.buckets.is_empty(), update == Strategy::Independent);
                for bucket in &step.buckets {
                    assert!(bucket.begun <= bucket.last_arrival && bucket.last_arrival <= bucket.ended);
                }
            }
        }
    }
}

#[test]
fn each_cause_shows_in_its_own_phases_and_in_no_other() {
    let calm = tile(&simulate(job("")));
    for (planted, expected) in [
        ("gflops=25", "backward forward"),
        ("layer=Conv1:9:11", "backward forward"),
        ("contention=0.2", "backward forward"),
        ("warmup=3:2", "backward forward"),
        ("slowdown=6:1.5", "backward forward"),
        ("straggler=1:1.5", "backward forward late"),
        ("hiccup=0.1:40", "forward late"),
        ("spawn=3", "init launch"),
        ("launch=3", "launch"),
        ("init=60", "init"),
        ("init_per_worker=5", "init"),
        ("load=2", "load"),
        ("load_contention=0.5", "load"),
        ("latency_us=50", "transfer"),
        ("bandwidth=5", "transfer"),
        ("update_gbs=1", "update"),
        ("update_contention=0.5", "update"),
        ("eval=4:30", "eval"),
        ("checkpoint=5:20", "checkpoint"),
        ("other=1", "other"),
        ("tail=9", "tail"),
        ("tail_per_worker=2", "tail"),
    ] {
        let times = tile(&simulate(job(planted)));
        let grown = |name: &&str| times[name] != calm.get(name).copied().unwrap_or(0);
        let changed: Vec<&str> = times.keys().copied().filter(grown).collect();
        assert_eq!(changed.join(" "), expected, "{planted}: {times:?} instead of {calm:?}");
        let more = |name: &&str| times[name] > calm.get(name).copied().unwrap_or(0);
        assert!(changed.iter().all(more), "{planted}: {times:?} instead of {calm:?}");
    }
}

#[test]
fn what_grows_with_the_workers_is_absent_with_one() {
    let alone = |text: &str| tile(&simulate(Job { workers: 1, ..job(text) }));
    let grows = "contention=0.2,straggler=0:2,spawn=3,init_per_worker=5,load_contention=0.5,latency_us=50,bandwidth=1,\
        comm_cpu=0.5,update_contention=0.5,tail_per_worker=2";
    assert_eq!(alone(grows), alone(""));
}

#[test]
fn on_a_calm_machine_four_workers_lose_next_to_nothing() {
    let total = |workers| {
        let logs = simulate(Job { workers, ..job("") });
        logs.launcher.last_reap.expect("a reap").0 as f64
    };
    let (one, four) = (total(1), total(4));
    assert!(one < four && four < 1.001 * one, "{one} and {four} ns");
}

#[test]
fn the_others_wait_for_a_straggler_as_long_as_it_is_late() {
    let logs = simulate(job("straggler=2:3"));
    let compute = |step: &StepRecord| step.phases[Phase::Forward] + step.phases[Phase::Backward];
    for number in 0..12 {
        let late = &logs.ranks[2].steps[number];
        assert_eq!(late.late_rank, Nanos(0));
        for rank in [0, 1, 3] {
            let step = &logs.ranks[rank].steps[number];
            assert_eq!(step.late_rank, compute(late).since(compute(step)));
            assert!(step.buckets.iter().all(|bucket| bucket.last_rank == Rank(2)));
            assert_eq!(step.end, late.end);
        }
    }
}

#[test]
fn behind_a_busy_network_nobody_is_late() {
    // The exchange of the first bucket outlasts backward by far: that one rank takes longer changes nothing.
    let logs = simulate(job("bandwidth=0.01,straggler=2:1.05"));
    assert!(logs.steps().all(|step| step.late_rank == Nanos(0)));
    assert!(logs.steps().all(|step| step.phases[Phase::CommWait] > step.phases[Phase::Backward]));
}

/// Two dense layers of 4096 and 1024 gradients, in the order of backward, and no bias.
fn tiny() -> Graph {
    let dense = |out| Dense { bias: false, ..Dense::to(out) };
    let (mut b, x) = Builder::new("tiny", Shape::new(1, 1, 16), 64).expect("a vector");
    let x = b.dense("first", x, dense(64)).expect("a vector");
    let x = b.dense("second", x, dense(64)).expect("a vector");
    b.softmax_cross_entropy("loss", x).expect("logits")
}

/// Backward of the second layer takes 2 ms and of the first 1 ms; a link carries a byte a nanosecond, a message takes 1 us.
const TINY: &str =
    "layer=loss:0:0,layer=second:1:2,layer=first:1:1,bandwidth=1,latency_us=1,load=0,update_gbs=1";

fn tiny_job(text: &str) -> Job {
    let exchange = ExchangeOptions { bucket_bytes: 4, first_bucket_bytes: 4, ..ExchangeOptions::default() };
    Job { exchange, ..job(&format!("{TINY},{text}")) }
}

/// A step of the tiny network from 0 on.
fn tiny_step(job: &Job) -> Vec<StepRecord> {
    let world = World { job, workload: Workload::of(job, &tiny()).expect("its layers") };
    let begins: Vec<_> = (0..job.workers).map(|rank| (Rank(rank), Nanos(0))).collect();
    let parts: Vec<Part> = begins.into_iter().map(|(rank, at)| world.part(rank, at)).collect();
    world.step(Step(0), &parts)
}

#[test]
fn an_all_reduce_takes_the_latency_and_the_bytes_of_a_ring() {
    for step in tiny_step(&tiny_job("")) {
        let [second, first] = &step.buckets[..] else { panic!("two buckets, not {:?}", step.buckets) };
        // Six messages of a quarter: 6 * (1 us + 4096 ns) and 6 * (1 us + 1024 ns).
        assert_eq!((second.bytes, second.moved), (Bytes(16_384), Bytes(24_576)));
        assert_eq!((second.begun, second.ended), (Nanos(4_000_000), Nanos(4_030_576)));
        assert_eq!((first.begun, first.ended), (Nanos(5_000_000), Nanos(5_012_144)));
        assert_eq!((first.waited_late, first.waited_transfer), (Nanos(0), Nanos(12_144)));
        assert_eq!(step.phases[Phase::CommWait], Nanos(12_144));
        assert_eq!(step.comm_busy, Nanos(30_576 + 12_144));
        assert_eq!(step.end, Nanos(5_012_144 + 4 * 5120));
    }
}

#[test]
fn every_strategy_pays_for_its_messages() {
    let transfer = |update, compress| {
        let mut job = tiny_job("");
        (job.update, job.exchange.compress) = (update, compress);
        tiny_step(&job).iter().map(|step| step.buckets[0].ended.0 - 4_000_000).max()
    };
    let plain = |update| transfer(update, Compress::None);
    assert_eq!(plain(Strategy::Sharded), Some(6 * (1000 + 4096)));
    assert_eq!(plain(Strategy::Replicated), Some(3 * (1000 + 16_384)));
    assert_eq!(plain(Strategy::PsCpu), Some(4 * (1000 + 16_384)));
    assert_eq!(transfer(Strategy::AllReduce, Compress::Bf16), Some(6 * (1000 + 2048)));
}

#[test]
fn slices_are_updated_by_all_and_a_server_s_parameters_by_itself() {
    let steps = |update| tiny_step(&Job { update, ..tiny_job("") });
    let update = |step: &StepRecord| step.phases[Phase::Update];
    assert!(steps(Strategy::AllReduce).iter().all(|step| update(step) == Nanos(20_480)));
    assert!(steps(Strategy::Sharded).iter().all(|step| update(step) == Nanos(5120)));
    let steps = steps(Strategy::PsCpu);
    let fetch = Nanos(4 * (1000 + 20_480));
    assert_eq!((update(&steps[0]), steps[0].phases[Phase::CopyIn]), (Nanos(20_480), Nanos(0)));
    for step in &steps[1..] {
        assert_eq!((update(step), step.phases[Phase::CopyIn]), (Nanos(0), fetch));
        assert_eq!((step.late_rank, step.end), (Nanos(0), steps[0].end));
        assert_eq!(step.buckets[0].moved, Bytes(16_384));
    }
    assert_eq!(steps[0].buckets[0].moved, Bytes(4 * 16_384));
}

#[test]
fn overlap_hides_what_fits_behind_backward() {
    let waits = |overlap| {
        let mut job = tiny_job("");
        job.exchange.overlap = overlap;
        tiny_step(&job).iter().map(|step| step.phases[Phase::CommWait].0).collect::<Vec<_>>()
    };
    assert_eq!(waits(true), [12_144; 4]);
    assert_eq!(waits(false), [30_576 + 12_144; 4]);
}

#[test]
fn work_for_the_exchange_delays_backward_and_is_booked_as_such() {
    for step in tiny_step(&tiny_job("comm_cpu=0.25")) {
        let [second, first] = &step.buckets[..] else { panic!("two buckets, not {:?}", step.buckets) };
        assert_eq!((second.cpu, first.cpu), (Nanos(7644), Nanos(3036)));
        assert_eq!(first.begun, Nanos(5_000_000 + 7644));
        assert_eq!(step.phases[Phase::Backward], Nanos(3_000_000));
        assert_eq!(step.phases[Phase::CommCpu], Nanos(7644 + 3036));
        assert_eq!(step.phases[Phase::CommWait], Nanos(12_144 - 3036));
    }
    // A rank that gives all its time to an exchange computes nothing meanwhile.
    for step in tiny_step(&tiny_job("comm_cpu=1")) {
        assert_eq!(step.phases[Phase::CommCpu], Nanos(30_576 + 12_144));
        assert_eq!(step.phases[Phase::CommWait], Nanos(0));
    }
}

#[test]
fn an_exchange_waits_for_the_network_and_for_its_last_rank() {
    let parcel = |ready, transfer| network::Parcel {
        bytes: Bytes(4),
        ready,
        transfer: Nanos(transfer),
        moved: Bytes(4),
    };
    let parcels = [parcel(10.0, 50), parcel(20.0, 5), parcel(90.0, 5)];
    let mut lanes = [Lane::new(Nanos(0), 1.0), Lane::new(Nanos(3), 1.0)];
    let rules = Rules { overlap: true, fraction: 0.0, backward: 100.0 };
    let windows = network::exchange(&mut lanes, &parcels, rules);
    let window = |last_arrival, start, end| Window {
        last_arrival: Nanos(last_arrival),
        last_rank: Rank(1),
        start: Nanos(start),
        end: Nanos(end),
    };
    assert_eq!(windows, [window(13, 13, 63), window(23, 63, 68), window(93, 93, 98)]);
    assert_eq!((lanes[0].at, lanes[1].at), (Nanos(100), Nanos(103)));
}

#[test]
fn independent_ranks_never_wait() {
    let logs = simulate(Job { update: Strategy::Independent, ..job("straggler=1:4,hiccup=0.3:9") });
    assert!(logs.steps().all(|step| step.phases[Phase::CommWait] == Nanos(0) && step.comm_busy == Nanos(0)));
    let end = |rank: usize| logs.ranks[rank].steps[11].end;
    assert!(end(0) < end(1) && end(0) != end(2));
}

#[test]
fn the_buckets_are_those_of_the_real_exchange() {
    let job = Job { workers: 2, ..job("") };
    let graph = job.graph().expect("a known network");
    let cpu = Cpu::new(CpuOptions { threads: 1, simd: None }).expect("a thread");
    let program = cpu.compile(&graph, &job.spec()).expect("it compiles");
    let Places { slots, trained, .. } = lay_out(&graph);
    assert_eq!(trained, program.len(Values::Parameters));
    assert_eq!(slots, program.slots());
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_gives_others() {
    let bytes = |seed| simulate(Job { seed, ..job("jitter=0.01,hiccup=0.1:3") }).bytes();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
}

#[test]
fn jitter_has_mean_one_and_its_deviation_and_planting_more_does_not_move_it() {
    let (job, other) = (job("jitter=0.1"), job("jitter=0.1,hiccup=0.5:1"));
    let paces = |job, steps| {
        let world = World { job, workload: Workload::new(job).expect("a known network") };
        (0..steps).map(|step| world.pace(1, Step(step))).collect::<Vec<Pace>>()
    };
    let factors: Vec<f64> = paces(&job, 20_000).iter().map(|pace| pace.factor).collect();
    let mean = factors.iter().sum::<f64>() / factors.len() as f64;
    let variance = factors.iter().map(|factor| (factor - mean).powi(2)).sum::<f64>() / factors.len() as f64;
    assert!((mean - 1.0).abs() < 0.004, "{mean}");
    assert!((variance.sqrt() - 0.1).abs() < 0.003, "{variance}");
    let paces = paces(&other, 2000);
    assert!(paces.iter().zip(&factors).all(|(pace, factor)| pace.factor == *factor));
    let lost = paces.iter().filter(|pace| pace.lost == Nanos(1_000_000)).count();
    assert!((900..1100).contains(&lost), "{lost} of 2000");
}

#[test]
fn a_rank_that_dies_ends_the_run_and_is_named() {
    let fail = |job| launch_in(tempfile::tempdir().expect("a temporary folder"), job, false);
    let logs = fail(job("fail=2:5"));
    let message = logs.result.as_ref().expect_err("rank 2 dies").to_string();
    assert!(message.starts_with("rank 2 ended in step 5 with exit code 1; its log is "), "{message}");
    assert!(message.contains("the simulation ends this rank"), "{message}");
    assert_eq!(logs.launcher.over, Some((Outcome::Failed, Some(message))));
    assert!(logs.ranks.iter().all(|rank| rank.steps.len() == 5 && rank.peak_resident.is_none()));

    let logs = fail(Job { update: Strategy::Independent, ..job("fail=2:5,straggler=2:2") });
    assert_eq!(logs.launcher.outcome(), Outcome::Failed);
    let steps: Vec<usize> = logs.ranks.iter().map(|rank| rank.steps.len()).collect();
    assert_eq!(steps, [10, 10, 5, 10], "the others go on until they are killed");
    let reaped = logs.launcher.last_reap.expect("a reap");
    assert!(logs.steps().all(|step| step.end <= reaped));

    let unharmed = simulate(job("fail=4:5"));
    assert_eq!(unharmed.launcher.outcome(), Outcome::Done, "there is no rank 4");
    assert_eq!(simulate(job("fail=2:12")).launcher.outcome(), Outcome::Done, "there is no step 12");
}

#[test]
fn an_interruption_ends_all_ranks() {
    let logs = launch_in(tempfile::tempdir().expect("a temporary folder"), job(""), true);
    assert!(matches!(logs.result, Err(TrainError::Interrupted)));
    assert_eq!(logs.launcher.outcome(), Outcome::Interrupted);
    assert!(logs.steps().next().is_none() && logs.launcher.last_reap.is_some());
}

#[test]
fn a_profile_holds_what_was_booked() {
    let logs = simulate(Job { profile: true, ..job("warmup=3:2") });
    let text = fs::read(logs.folder.path().join(worker::LAYERS_FILE)).expect("the layers");
    let layers: Vec<LayerTime> = serde_json::from_slice(&text).expect("own output");
    let forward = layers.iter().map(|layer| layer.forward.0 as f64).sum::<f64>();
    let booked = logs.ranks[0].steps.iter().map(|step| step.phases[Phase::Forward].0 as f64).sum::<f64>();
    assert!((forward / booked - 1.0).abs() < 1e-6, "{forward} of {booked}");
    assert!(layers.iter().all(|layer| layer.calls == 12));
}

#[test]
fn the_loss_falls_alike_on_all_ranks() {
    let logs = simulate(job("jitter=0.1"));
    let losses = |rank: usize| logs.ranks[rank].steps.iter().map(|step| step.loss).collect::<Vec<_>>();
    assert!(losses(0).windows(2).all(|pair| pair[1] < pair[0]));
    assert_eq!(losses(0), losses(3));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let refuse = |job: &Job| job.check().expect_err("it cannot be").to_string();
    assert!(refuse(&job("layer=nonesuch:1:1")).contains("has no layer 'nonesuch'"));
    let slow = Job { steps: 1_000_000_000, ..job("gflops=0.000001") };
    assert!(refuse(&slow).contains("centuries"));
    let absurd = "update_gbs=1e-9,update_contention=1e9,bandwidth=1e-9,latency_us=1e9,load_contention=1e9";
    assert!(refuse(&Job { update: Strategy::PsCpu, workers: 1024, ..job(absurd) }).contains("centuries"));
    assert!(refuse(&Job { model: "nonesuch".into(), ..job("") }).contains("nonesuch"));
    job("").check().expect("a calm machine");
    assert!(
        job("")
            .prepare(&mut Engines::default())
            .expect("words")
            .engine
            .starts_with("simulated: gflops=50,jitter=0,")
    );
}
