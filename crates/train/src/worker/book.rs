//! The account of a rank's steps: where their time went, and when that is written down.

use paceline_engine::{Driving, Program, StepResult};
use paceline_model::Graph;
use paceline_record::log::RankWriter;
use paceline_record::{Nanos, Phase, RankEvent, Step, StepRecord};
use paceline_system::scheduler::Scheduler;

use crate::{TrainError, clock};

/// A rank's book: one open step, and those that are still to be written.
///
/// Where a device works behind the host's back, closed steps are written while it computes later ones, and the last one is
/// held until it has been [completed](Self::complete) with what the other ranks tell.
pub(crate) struct StepBook<'a> {
    log: &'a mut RankWriter,
    driving: Driving,
    /// Whether right guesses can be counted.
    judges_labels: bool,
    scheduler: Scheduler,
    record: StepRecord,
    in_ready: Nanos,
    ahead: Ahead,
    /// What happened after the open step.
    notes: Vec<RankEvent>,
    /// The last step and its notes, not yet completed.
    held: Vec<RankEvent>,
    /// Events to be written.
    complete: Vec<RankEvent>,
}

/// Time spent on the next batch while the device was at work.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    loading: Nanos,
    copying: Nanos,
}

impl<'a> StepBook<'a> {
    /// A book whose first step begins now.
    pub fn open(log: &'a mut RankWriter, graph: &Graph, driving: Driving) -> Self {
        Self {
            log,
            driving,
            judges_labels: graph.judges_labels(),
            scheduler: Scheduler::watch(),
            record: StepRecord::open(Step(0), clock::now()),
            in_ready: Nanos(0),
            ahead: Ahead::default(),
            notes: Vec::new(),
            held: Vec::new(),
            complete: Vec::new(),
        }
    }

    /// Begins a step where the one before ended.
    pub fn begin(&mut self, step: Step, learning_rate: f32) {
        self.record = StepRecord::open(step, self.record.end);
        self.record.learning_rate = Some(learning_rate);
        self.in_ready = Nanos(0);
    }

    /// The open step.
    pub fn record(&mut self) -> &mut StepRecord {
        &mut self.record
    }

    /// Time that this step's runs spent in the exchange's hands while they computed.
    pub fn in_ready(&self) -> Nanos {
        self.in_ready
    }

    /// Does something on the host and books its time to a phase of the open step.
    pub fn time<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let begin = clock::now();
        let result = work();
        self.record.book(phase, clock::now().since(begin));
        result
    }

    /// Loads the next batch while the device is at work, or hands it over.
    pub fn time_ahead<T>(&mut self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let begin = clock::now();
        let result = work();
        let taken = clock::now().since(begin);
        match phase {
            Phase::Load => self.ahead.loading += taken,
            _ => self.ahead.copying += taken,
        }
        result
    }

    /// Books one of the step's `passes`.
    pub fn add_pass(&mut self, result: &StepResult, batch: usize, passes: usize) {
        self.add_times(result);
        self.in_ready += result.in_ready;
        let record = &mut self.record;
        record.examples += batch as u64;
        record.loss = Some(record.loss.unwrap_or(0.0) + result.loss / passes as f32);
        record.correct = self.judges_labels.then_some(record.correct.unwrap_or(0) + result.correct as u64);
    }

    /// Waits for a program's updates, and books what they took.
    pub fn settle(&mut self, program: &mut dyn Program) -> Result<(), TrainError> {
        self.add_times(&program.finish()?);
        Ok(())
    }

    fn add_times(&mut self, result: &StepResult) {
        self.record.phases += result.phases;
        self.record.idle_host += result.idle;
    }

    /// Writes an event at once.
    pub fn tell(&mut self, event: &RankEvent) -> Result<(), TrainError> {
        Ok(self.log.append(event)?)
    }

    /// Notes something that happened after the open step.
    pub fn note(&mut self, event: RankEvent) {
        self.notes.push(event);
    }

    /// Lets the last closed step be completed with what other ranks tell of it; then it can be written.
    pub fn complete(&mut self, mut with: impl FnMut(&mut StepRecord)) {
        for event in &mut self.held {
            if let RankEvent::Step(record) = event {
                with(record);
            }
        }
        self.complete.append(&mut self.held);
    }

    /// Closes the open step now.
    pub fn close(&mut self) -> Result<(), TrainError> {
        self.record.end = clock::now();
        self.record.scheduling = Some(Box::new(self.scheduler.step()));
        self.book_exposed();
        let next = StepRecord::open(self.record.step, self.record.end);
        self.held.push(RankEvent::Step(std::mem::replace(&mut self.record, next)));
        self.held.append(&mut self.notes);
        match self.driving {
            Driving::Direct => {
                self.complete(|_| {});
                self.write()
            }
            Driving::Queued | Driving::Woven => Ok(()),
        }
    }

    /// Books what the device's work did not hide: handing over the next batch, which came last, loading it, and the time
    /// in which the device had nothing to do.
    fn book_exposed(&mut self) {
        let Ahead { loading, copying } = std::mem::take(&mut self.ahead);
        let record = &mut self.record;
        let mut spare = record.end.since(record.begin).since(record.phases.total());
        let mut book = |phase: Phase, time: Nanos| {
            let exposed = time.min(spare);
            spare = spare.since(exposed);
            record.phases[phase] += exposed;
            exposed
        };
        book(Phase::CopyIn, copying);
        book(Phase::Load, loading);
        record.idle_host = book(Phase::Idle, record.idle_host);
    }

    /// Writes all steps that are complete.
    pub fn write(&mut self) -> Result<(), TrainError> {
        Ok(self.complete.drain(..).try_for_each(|event| self.log.append(&event))?)
    }
}

impl Drop for StepBook<'_> {
    fn drop(&mut self) {
        self.complete.append(&mut self.held);
        // Something is left only where the run has failed, and that failure is the error to report.
        let _ = self.write();
    }
}
