//! Batches on their way from the loader to the program.

use paceline_engine::Program;
use paceline_record::{Nanos, Phase, Rank, StepRecord};

use crate::data::{Loader, Loading};
use crate::{Job, TrainError, clock};

/// Hands batches to a program; ahead of its next run, where it computes behind the host's back.
pub(super) struct Feeding {
    loader: Loader,
    /// Batches that are still to come.
    left: u64,
    /// Whether the next batch is there already.
    ahead: bool,
    /// What it took to load and to hand it over while the device was at work.
    loaded: Nanos,
    handed_over: Nanos,
}

impl Feeding {
    pub fn open(job: &Job, rank: Rank, first: u64) -> Result<Self, TrainError> {
        let turns = job.shards_of(rank).len() * job.accumulate;
        let left = (job.steps - first.min(job.steps)) * turns as u64;
        let loader = Loader::open(loading(job, rank, first)?)?;
        Ok(Self { loader, left, ahead: false, loaded: Nanos(0), handed_over: Nanos(0) })
    }

    /// Sees to it that the next batch is there.
    pub fn feed(&mut self, program: &mut dyn Program, record: &mut StepRecord) -> Result<(), TrainError> {
        if std::mem::take(&mut self.ahead) {
            return Ok(());
        }
        self.left -= 1;
        let batch = clock::timed(record, Phase::Load, || self.loader.next_batch())?;
        let start = clock::now();
        program.feed(batch)?;
        // A program that computes as it is told books its copy by itself.
        if program.runs_behind() {
            record.book(Phase::CopyIn, clock::now().since(start));
        }
        Ok(())
    }

    /// Hands over the batch after this one.
    pub fn feed_ahead(&mut self, program: &mut dyn Program) -> Result<(), TrainError> {
        if self.left == 0 {
            return Ok(());
        }
        (self.left, self.ahead) = (self.left - 1, true);
        let start = clock::now();
        let batch = self.loader.next_batch()?;
        let loaded = clock::now();
        program.feed(batch)?;
        self.loaded += loaded.since(start);
        self.handed_over += clock::now().since(loaded);
        Ok(())
    }

    /// Books what the device's work did not hide of a step: handing over, which came last, loading, and the time in which
    /// the device had nothing to do.
    pub fn book_ahead(&mut self, record: &mut StepRecord) {
        let mut spare = record.end.since(record.begin).since(record.phases.total());
        let mut book = |phase: Phase, time: Nanos| {
            let exposed = time.min(spare);
            spare = spare.since(exposed);
            record.phases[phase] += exposed;
            exposed
        };
        book(Phase::CopyIn, std::mem::take(&mut self.handed_over));
        book(Phase::Load, std::mem::take(&mut self.loaded));
        record.idle_host = book(Phase::Idle, record.idle_host);
    }

    /// What the loader's threads computed on this worker's own cores was taken from forward and backward: it is loading.
    pub fn book_threads(&mut self, record: &mut StepRecord, job: &Job, program: &dyn Program) {
        let cpu = self.loader.cpu();
        if job.pin && !program.runs_behind() {
            book_loader(record, cpu, job);
        }
    }
}

fn book_loader(record: &mut StepRecord, cpu: Nanos, job: &Job) {
    let (forward, backward) = (record.phases[Phase::Forward], record.phases[Phase::Backward]);
    let both = forward + backward;
    let taken = Nanos(cpu.0 / job.threads as u64).min(both);
    let of_forward = Nanos((u128::from(taken.0) * u128::from(forward.0) / u128::from(both.0.max(1))) as u64);
    record.phases[Phase::Forward] = forward.since(of_forward);
    record.phases[Phase::Backward] = backward.since(taken.since(of_forward));
    record.book(Phase::Load, taken);
}

/// What a rank's loader hands out from a step on.
fn loading(job: &Job, rank: Rank, from_step: u64) -> Result<Loading, TrainError> {
    Ok(Loading {
        data: job.data.parse()?,
        input: job.input,
        classes: job.classes,
        seed: job.seed,
        batch: job.batch,
        passes: job.accumulate,
        shards: job.shards_of(rank),
        all_shards: job.shards(),
        from_step,
        augment: job.augment,
        threads: job.threads,
        log: job.log_samples.then(|| job.folder.join(format!("samples-{rank}.txt"))),
    })
}
