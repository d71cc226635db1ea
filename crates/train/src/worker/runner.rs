//! A program and its batches: runs the passes of a step.

use std::ops::Range;
use std::path::{Path, PathBuf};

use paceline_engine::{Driving, Pass, Program, StepResult};
use paceline_record::{Nanos, Phase, Rank, Step};

use super::book::StepBook;
use crate::data::{self, Loader, Loading, Sequence};
use crate::{Job, TrainError};

/// A step to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stage {
    pub step: Step,
    pub learning_rate: f32,
    /// Whether the network is tested or saved after it.
    pub then_pauses: bool,
}

/// One pass of one shard of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub pass: Pass,
    /// Whether the next batch that the program needs is not the loader's.
    then_pauses: bool,
}

/// Which passes of a step a rank runs.
pub(crate) struct Deal<'a> {
    job: &'a Job,
    shards: Range<u32>,
    driving: Driving,
}

impl<'a> Deal<'a> {
    pub fn new(job: &'a Job, rank: Rank, driving: Driving) -> Self {
        Self { job, shards: job.shards_of(rank), driving }
    }

    /// The passes of a step, shard after shard. The update is part of the last one, where a program weaves.
    pub fn turns(&self, stage: Stage) -> impl Iterator<Item = Turn> {
        let count = self.shards.len() * self.job.accumulate;
        (0..count).map(move |turn| {
            let last = turn + 1 == count;
            let update = Some(stage.learning_rate).filter(|_| last && self.driving == Driving::Woven);
            Turn {
                pass: Pass { update, ..self.job.pass(stage.step.0, &self.shards, turn) },
                then_pauses: last && stage.then_pauses,
            }
        })
    }
}

/// A program, driven as it needs to be, and the loader of its batches.
pub(crate) struct Runner {
    program: Box<dyn Program>,
    loader: Loader,
    /// What this rank runs, how many batches of it have been asked for, and how many there are.
    sequence: Sequence,
    asked: u64,
    batches: u64,
    /// The turns after those; kept so that a step allocates nothing.
    upcoming: Vec<data::Turn>,
    /// Whether the program has the next batch already.
    fed_ahead: bool,
    batch: usize,
    /// Passes of a step.
    passes: usize,
    /// This worker's threads, where they and the loader's have cores of their own together.
    shared_threads: Option<usize>,
}

impl Runner {
    /// Opens the data, from the step `first` on.
    pub fn open(job: &Job, rank: Rank, first: u64, program: Box<dyn Program>) -> Result<Self, TrainError> {
        let sequence = Sequence { shards: job.shards_of(rank), passes: job.accumulate, from_step: first };
        let passes = sequence.shards.len() * job.accumulate;
        let loader = Loader::open(job.loading(rank.0)?)?;
        let mut runner = Self {
            batches: job.steps.saturating_sub(first) * passes as u64,
            asked: 0,
            upcoming: Vec::with_capacity(passes.max(loader.depth())),
            sequence,
            loader,
            program,
            fed_ahead: false,
            batch: job.batch,
            passes,
            shared_threads: job.pin.then_some(job.threads),
        };
        // All shards of a step, so that those of made pictures are made now.
        runner.look_ahead(runner.upcoming.capacity());
        runner.loader.expect(&runner.upcoming);
        Ok(runner)
    }

    /// Gives up what computes.
    pub fn into_program(self) -> Box<dyn Program> {
        self.program
    }

    /// What computes.
    pub fn program(&mut self) -> &mut dyn Program {
        &mut *self.program
    }

    /// Loads a batch, runs forward and backward, and books what that took. `ready` is told how many slots' gradients are final.
    pub fn run(
        &mut self,
        turn: &Turn,
        book: &mut StepBook<'_>,
        ready: &mut dyn FnMut(usize),
    ) -> Result<(), TrainError> {
        self.feed(book)?;
        self.program.forward_backward(turn.pass, ready)?;
        if self.program.driving() != Driving::Direct {
            // The device's work hides this.
            if !turn.then_pauses {
                self.feed_ahead(book)?;
            }
            book.write()?;
        }
        let mut result = self.program.finish()?;
        if let (Driving::Direct, Some(threads)) = (self.program.driving(), self.shared_threads) {
            move_loading(&mut result, Nanos(self.loader.cpu().0 / threads as u64));
        }
        book.add_pass(&result, self.batch, self.passes);
        Ok(())
    }

    fn feed(&mut self, book: &mut StepBook<'_>) -> Result<(), TrainError> {
        if std::mem::take(&mut self.fed_ahead) {
            return Ok(());
        }
        let turn = self.next_turn();
        let batch = book.time(Phase::Load, || self.loader.batch(turn, &self.upcoming))?;
        match self.program.driving() {
            // It books its copy by itself.
            Driving::Direct => self.program.feed(batch)?,
            Driving::Queued | Driving::Woven => book.time(Phase::CopyIn, || self.program.feed(batch))?,
        }
        book.time(Phase::Load, || self.loader.log(turn))
    }

    fn feed_ahead(&mut self, book: &mut StepBook<'_>) -> Result<(), TrainError> {
        if self.asked == self.batches {
            return Ok(());
        }
        self.fed_ahead = true;
        let turn = self.next_turn();
        let batch = book.time_ahead(Phase::Load, || self.loader.batch(turn, &self.upcoming))?;
        book.time_ahead(Phase::CopyIn, || self.program.feed(batch))?;
        book.time_ahead(Phase::Load, || self.loader.log(turn))
    }

    /// The turn whose batch is due, and those after it.
    fn next_turn(&mut self) -> data::Turn {
        let turn = self.sequence.turn(self.asked);
        self.asked += 1;
        self.look_ahead(self.loader.depth());
        turn
    }

    fn look_ahead(&mut self, depth: usize) {
        let numbers = self.asked..self.batches.min(self.asked + depth as u64);
        self.upcoming.clear();
        self.upcoming.extend(numbers.map(|number| self.sequence.turn(number)));
    }
}

/// The loader's threads computed on this worker's own cores: that time was taken from forward and backward, and is loading.
///
/// While they had the core, this thread had not; that is not lost to others.
pub(crate) fn move_loading(result: &mut StepResult, loading: Nanos) {
    let phases = &mut result.phases;
    let (forward, backward) = (phases[Phase::Forward], phases[Phase::Backward]);
    let both = forward + backward;
    let taken = loading.min(both);
    let of_forward = Nanos((u128::from(taken.0) * u128::from(forward.0) / u128::from(both.0.max(1))) as u64);
    phases[Phase::Forward] = forward.since(of_forward);
    phases[Phase::Backward] = backward.since(taken.since(of_forward));
    phases[Phase::Load] += taken;
    for (phase, own) in [(Phase::Forward, of_forward), (Phase::Backward, taken.since(of_forward))] {
        result.off_core[phase] = result.off_core[phase].since(own);
    }
}

impl Job {
    /// How a worker loads its batches; it notes its samples in the file `samples-NAME.txt` where that is asked for.
    pub(crate) fn loading(&self, name: u32) -> Result<Loading, TrainError> {
        Ok(Loading {
            data: self.data.parse()?,
            input: self.input,
            classes: self.classes,
            seed: self.seed,
            batch: self.batch,
            passes: self.accumulate,
            all_shards: self.shards(),
            augment: self.augment,
            threads: self.threads,
            log: self.log_samples.then(|| samples_file(&self.folder, name)),
        })
    }
}

/// Where a worker notes which samples it used.
pub(crate) fn samples_file(folder: &Path, name: u32) -> PathBuf {
    folder.join(format!("samples-{name}.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_on_the_worker_s_cores_is_taken_from_forward_and_backward_and_nothing_is_lost() {
        let mut result = StepResult::default();
        let phases = &mut result.phases;
        (phases[Phase::Forward], phases[Phase::Backward], phases[Phase::Update]) =
            (Nanos(100), Nanos(300), Nanos(7));
        result.off_core[Phase::Backward] = Nanos(35);
        let mut some = result;
        move_loading(&mut some, Nanos(40));
        assert_eq!((some.phases[Phase::Forward], some.phases[Phase::Backward]), (Nanos(90), Nanos(270)));
        assert_eq!((some.phases[Phase::Load], some.phases.total()), (Nanos(40), Nanos(407)));
        assert_eq!(some.off_core.total(), Nanos(5), "the loader had the core for 30 of them");
        let mut all = result;
        move_loading(&mut all, Nanos(1000));
        assert_eq!((all.phases[Phase::Load], all.phases.total()), (Nanos(400), Nanos(407)));
        let mut none = StepResult::default();
        move_loading(&mut none, Nanos(5));
        assert_eq!(none, StepResult::default());
    }
}
