//! Synthetic runs and studies for tests.

pub(crate) mod elastic;
pub(crate) mod hosts;

use std::collections::BTreeMap;

use paceline_record::log::{LauncherLog, RankLog, WorkerHeader};
use paceline_record::{
    Bytes, Case, EvalRecord, LauncherHeader, Nanos, Outcome, Phase, Rank, RankHeader, Step, StepRecord, Who,
};

use crate::run::Waited;
use crate::stats::random::SplitMix;
use crate::{CaseReport, Machine, Planned, Report, Run, SCHEMA, Study};

/// A millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// A synthetic run; times in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub model: &'static str,
    pub workers: u32,
    pub steps: u64,
    /// Forward and backward of a step, and by how much they vary.
    pub compute: f64,
    pub noise: f64,
    /// Steps at the beginning that take three times as long.
    pub slow_steps: u64,
    /// Exposed transfer, and waiting for rank 1 of all others.
    pub transfer: f64,
    pub late: f64,
    pub launch: f64,
    pub init: f64,
    pub tail: f64,
    /// An evaluation and a checkpoint after this many steps, and their length in milliseconds.
    pub eval: Option<(u64, f64)>,
    pub checkpoint: Option<(u64, f64)>,
    /// Samples of an epoch, and the accuracy that it reaches in training and in tests, from half of it on.
    pub epoch: Option<u64>,
    pub accuracy: Option<f64>,
    pub seed: u64,
}

impl Plan {
    /// A run of 100 ms steps without problems.
    pub(crate) fn calm(model: &'static str, workers: u32) -> Self {
        Self {
            model,
            workers,
            steps: 60,
            compute: 90.0,
            noise: 0.01,
            slow_steps: 2,
            transfer: if workers > 1 { 4.0 } else { 0.0 },
            late: if workers > 1 { 2.0 } else { 0.0 },
            launch: 5.0,
            init: 40.0,
            tail: 8.0,
            eval: None,
            checkpoint: None,
            epoch: None,
            accuracy: None,
            seed: 1,
        }
    }

    /// Its case.
    pub(crate) fn case(&self) -> Case {
        Case {
            model: self.model.into(),
            engine: Some("cpu".into()),
            layout: Some("nhwc".into()),
            precision: Some("fp32".into()),
            update: Some("allreduce".into()),
            scaling: Some("weak".into()),
            workers: self.workers,
            batch_per_worker: Some(64),
            threads: Some(1),
            input: Some("32x32".into()),
            classes: Some(10),
            global_batch: None,
            epoch_examples: self.epoch,
            settings: [("compress", "none"), ("data", "synthetic:cifar10"), ("overlap", "yes")]
                .into_iter()
                .chain(self.accuracy.map(|_| ("lr", "0.1")))
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }

    /// The logs of the run.
    pub(crate) fn run(&self) -> Run {
        let mut draw = SplitMix(self.seed);
        let mut noise = || 1.0 + self.noise * (2.0 * (draw.bits() as f64 / u64::MAX as f64) - 1.0);
        let scale: Vec<f64> =
            (0..self.steps).map(|step| noise() * if step < self.slow_steps { 3.0 } else { 1.0 }).collect();
        let ranks: Vec<RankLog> = (0..self.workers).map(|rank| self.rank(rank, &scale)).collect();
        let last = ranks.iter().filter_map(|rank| rank.steps.last()).map(|step| step.end).max();
        let last = last.unwrap_or_default();
        let launcher = LauncherLog {
            header: LauncherHeader::new(self.case()),
            first_spawn: Some(Nanos(0)),
            last_reap: Some(last + ms(self.tail)),
            membership: Vec::new(),
            over: Some((Outcome::Done, None)),
        };
        let waited_for = if self.workers > 1 {
            [(Who::Rank(Rank(1)), Waited { time: Nanos(MS), steps: 1 })].into()
        } else {
            BTreeMap::new()
        };
        Run::new(launcher, ranks, waited_for)
    }

    fn rank(&self, rank: u32, scale: &[f64]) -> RankLog {
        let mut begin = ms(self.launch + self.init);
        let step = |(number, &scale): (usize, &f64)| {
            let mut step = StepRecord::open(Step(number as u64), begin);
            let late = if rank == 1 { 0.0 } else { self.late };
            let compute = self.compute * scale + self.late - late;
            step.book(Phase::CopyIn, ms(0.2));
            step.book(Phase::Forward, ms(compute * 0.3));
            step.book(Phase::Backward, ms(compute * 0.7));
            step.book(Phase::CommWait, ms(self.transfer / 2.0 + late));
            step.book(Phase::CommCpu, ms(self.transfer / 2.0));
            step.book(Phase::Update, ms(4.0));
            step.late_rank = ms(late);
            for (phase, due) in [(Phase::Eval, self.eval), (Phase::Checkpoint, self.checkpoint)] {
                if let Some((every, time)) = due
                    && (number as u64 + 1).is_multiple_of(every)
                {
                    step.book(phase, ms(time));
                }
            }
            step.comm_busy = ms(4.0 * self.transfer + late);
            step.overlapped = Some(ms(3.0 * self.transfer));
            step.end = begin + step.phases.total() + ms(0.05);
            step.examples = 64;
            step.loss = Some(2.3 * 0.98f32.powi(number as i32));
            // In training all of it after two thirds of the steps.
            let learned = (0.5 + 0.75 * (number + 1) as f64 / self.steps as f64).min(1.0);
            step.correct = self.accuracy.map(|fraction| (64.0 * fraction * learned).round() as u64);
            begin = step.end;
            step
        };
        let steps: Vec<StepRecord> = scale.iter().enumerate().map(step).collect();
        RankLog {
            header: WorkerHeader::Rank(RankHeader::new(Rank(rank), self.workers)),
            main: Some(ms(self.launch)),
            planned: Some(Bytes(100_000_000)),
            evaluations: if rank == 0 { self.evaluations(&steps) } else { Vec::new() },
            recoveries: Vec::new(),
            faults: Vec::new(),
            notes: Vec::new(),
            done: None,
            steps,
            peak_resident: Some(Bytes(110_000_000)),
            shared: Some(Bytes(9_000_000)),
            peak_device: None,
        }
    }

    /// Tests of 10,000 samples, from half of the accuracy up to all of it.
    fn evaluations(&self, steps: &[StepRecord]) -> Vec<EvalRecord> {
        let (Some((every, _)), Some(accuracy)) = (self.eval, self.accuracy) else { return Vec::new() };
        let last = (self.steps / every) as f64;
        let test = |number: u64| EvalRecord {
            at: steps[(number * every) as usize - 1].end,
            steps: number * every,
            examples: 10_000,
            loss: Some(2.0 / number as f32),
            correct: Some((10_000.0 * accuracy * (0.5 + 0.5 * number as f64 / last)).round() as u64),
        };
        (1..=self.steps / every).map(test).collect()
    }
}

fn ms(time: f64) -> Nanos {
    Nanos((time * MS as f64).round() as u64)
}

/// A study of these cases.
pub(crate) fn study(cases: &[Case]) -> Study {
    let planned = |(place, case): (usize, &Case)| Planned {
        folder: format!("{}-w{}", case.model, case.workers),
        place,
        repeat: 1,
        case: case.clone(),
        steps: 60,
    };
    Study {
        schema: SCHEMA,
        program: "0.1.0".into(),
        command: vec!["bench".into(), "--workers".into(), "1,2,4".into()],
        date: Some("2026-11-16T08:33:34Z".into()),
        host: Some("abacus".into()),
        machine: Machine {
            cpu: Some("Abacus 9000".into()),
            cores: Some(4),
            memory: Some(Bytes(16_000_000_000)),
            kernel: Some("6.1.0".into()),
            engine: Some("cpu: beads".into()),
        },
        cases: cases.iter().enumerate().map(planned).collect(),
    }
}

/// The report on runs.
pub(crate) fn report_on(plans: &[Plan]) -> Report {
    let cases: Vec<Case> = plans.iter().map(Plan::case).collect();
    let reports = plans.iter().map(|plan| CaseReport::of(&[plan.run()]));
    Report::new(&study(&cases), reports.collect())
}

/// A report with a bit of everything: two networks on 1, 2 and 4 workers, and one failed case.
pub(crate) fn report() -> Report {
    let mut plans = Vec::new();
    for model in ["mobilenet_v2", "resnet50"] {
        for workers in [1, 2, 4] {
            let calm = Plan::calm(model, workers);
            plans.push(if workers == 4 { Plan { late: 20.0, transfer: 10.0, ..calm } } else { calm });
        }
    }
    plans.push(Plan::calm("vgg_19", 1));
    let cases: Vec<Case> = plans.iter().map(Plan::case).collect();
    let mut runs: Vec<Run> = plans.iter().map(Plan::run).collect();
    if let Some(failed) = runs.last_mut() {
        failed.launcher.over = Some((Outcome::Failed, Some("rank 0 died in step 3\nof a cold".into())));
    }
    Report::new(&study(&cases), runs.into_iter().map(|run| CaseReport::of(&[run])).collect())
}

/// Three epochs of 2,560 samples on 1, 2 and 4 workers, tested after each; four workers learn less.
pub(crate) fn learning_plans() -> [Plan; 3] {
    [(1, 0.67), (2, 0.665), (4, 0.58)].map(|(workers, accuracy)| Plan {
        steps: u64::from(120 / workers),
        eval: Some((u64::from(40 / workers), 200.0)),
        checkpoint: Some((u64::from(60 / workers), 30.0)),
        epoch: Some(2560),
        accuracy: Some(accuracy),
        ..Plan::calm("resnet50", workers)
    })
}
