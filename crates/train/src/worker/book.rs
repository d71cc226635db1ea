//! The account of a rank's steps: where their time went, and when that is written down.

use paceline_engine::{Driving, Program, StepResult};
use paceline_model::Graph;
use paceline_record::log::RankWriter;
use paceline_record::{Nanos, Phase, PhaseTimes, RankEvent, Step, StepRecord};
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
    /// Part of the open step's computation in which it was not on a core.
    off_core: PhaseTimes,
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
            off_core: PhaseTimes::default(),
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
        self.off_core = PhaseTimes::default();
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
        self.add_off_core(result.off_core);
    }

    /// Notes for how long the step's computation was not on a core.
    pub fn add_off_core(&mut self, off_core: PhaseTimes) {
        self.off_core += off_core;
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
        self.book_exposed();
        let mut scheduling = self.scheduler.step();
        if self.driving == Driving::Direct {
            scheduling.off_core = Some(split_off_core(&self.record, self.off_core, scheduling.queued));
        }
        self.record.scheduling = Some(Box::new(scheduling));
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

/// Phases in which nobody measures how long a thread is off its core: it sleeps there, and is back late if the core is taken, or
/// the time is that between two phases.
const UNMEASURED: [Phase; 7] = [
    Phase::CommWait,
    Phase::Other,
    Phase::Load,
    Phase::Eval,
    Phase::Checkpoint,
    Phase::Recovery,
    Phase::Update,
];

/// How much of each phase of a step its thread was not on a core: in computation as `measured`; of what it `queued` for a core in
/// all, the rest was in the other phases.
fn split_off_core(record: &StepRecord, measured: PhaseTimes, queued: Option<Nanos>) -> PhaseTimes {
    let room = |phase: Phase| match phase {
        // Until the last rank arrived, being on a core would not have helped.
        Phase::CommWait => record.phases[phase].since(record.late_rank),
        Phase::Other => record.end.since(record.begin).since(record.phases.total()),
        _ => record.phases[phase],
    };
    let mut split = PhaseTimes::default();
    for (phase, time) in measured.iter() {
        split[phase] = time.min(room(phase));
    }
    let mut rest = queued.unwrap_or_default().since(split.total());
    for phase in UNMEASURED {
        let more = rest.min(room(phase).since(split[phase]));
        split[phase] += more;
        rest = rest.since(more);
    }
    split
}

impl Drop for StepBook<'_> {
    fn drop(&mut self) {
        self.complete.append(&mut self.held);
        // Something is left only where the run has failed, and that failure is the error to report.
        let _ = self.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_off_the_core_is_part_of_its_phase_and_the_rest_of_the_queueing_was_in_the_others() {
        let mut record = StepRecord::open(Step(0), Nanos(0));
        for (phase, time) in [(Phase::Forward, 100), (Phase::CommWait, 50), (Phase::Load, 10)] {
            record.book(phase, Nanos(time));
        }
        record.late_rank = Nanos(30);
        record.end = Nanos(163);
        let mut measured = PhaseTimes::default();
        (measured[Phase::Forward], measured[Phase::CommWait]) = (Nanos(40), Nanos(5));
        let split = split_off_core(&record, measured, Some(Nanos(70)));
        let told: Vec<(Phase, Nanos)> = split.iter().collect();
        assert_eq!(
            told,
            [
                (Phase::Load, Nanos(7)),
                (Phase::Forward, Nanos(40)),
                (Phase::CommWait, Nanos(20)),
                (Phase::Other, Nanos(3))
            ],
            "20 of the waiting were not for a late rank, 3 lay between phases; what is left goes to loading"
        );
        let unknown = split_off_core(&record, measured, None);
        assert_eq!(unknown.total(), Nanos(45));
        measured[Phase::Forward] = Nanos(1000);
        assert_eq!(
            split_off_core(&record, measured, None)[Phase::Forward],
            Nanos(100),
            "never more than it took"
        );
    }
}
