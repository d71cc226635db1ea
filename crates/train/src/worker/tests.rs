use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_engine::{
    Driving, EngineError, Homes, MemoryPlan, Pass, Program, Samples, Slot, Spec, StepResult, Values, Weave,
};
use paceline_model::Graph;
use paceline_record::Phase;
use paceline_record::log::RankLog;

use super::*;
use crate::job::tests::job;
use crate::{Every, Milestones};

/// An engine that computes nothing and says what it was asked.
struct Fake;

struct FakeProgram {
    plan: MemoryPlan,
    batch: usize,
    runs: u64,
    applied: u64,
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn describe(&self) -> String {
        "nothing".into()
    }

    fn plan(&self, _: &Graph, _: &Spec) -> Result<MemoryPlan, EngineError> {
        Ok(MemoryPlan { parameters: 4096, ..MemoryPlan::default() })
    }

    fn available_memory(&self) -> Option<u64> {
        None
    }

    fn compile_in(&self, graph: &Graph, spec: &Spec, _: &Homes) -> Result<Box<dyn Program>, EngineError> {
        Ok(Box::new(FakeProgram { plan: self.plan(graph, spec)?, batch: spec.batch, runs: 0, applied: 0 }))
    }
}

impl Program for FakeProgram {
    fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    fn slots(&self) -> &[Slot] {
        &[]
    }

    fn len(&self, values: Values) -> usize {
        if values == Values::Parameters { 1024 } else { 0 }
    }

    fn read(&mut self, _: Values, _: &mut [f32]) -> Result<(), EngineError> {
        Ok(())
    }

    fn write(&mut self, _: Values, _: &[f32]) -> Result<(), EngineError> {
        Ok(())
    }

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        assert_eq!(samples.images.len(), self.batch * 32 * 32 * 3);
        assert_eq!(samples.labels.len(), self.batch);
        Ok(())
    }

    fn forward_backward(&mut self, _: Pass, _: &mut dyn FnMut(usize)) -> Result<(), EngineError> {
        self.runs += 1;
        match self.runs {
            4 => Err(EngineError::Unsupported("the fourth step".into())),
            _ => Ok(()),
        }
    }

    fn resume_at(&mut self, _: u64) {}

    fn evaluate(&mut self, _: usize) -> Result<(), EngineError> {
        Ok(())
    }

    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError> {
        assert_eq!((learning_rate, range), (0.125, 0..1024));
        self.applied += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        assert!(self.applied == self.runs || self.applied + 1 == self.runs, "one update a step");
        let mut result = StepResult { loss: 1.0 / self.runs as f32, ..StepResult::default() };
        if self.applied < self.runs {
            (result.phases[Phase::Forward], result.phases[Phase::Backward]) = (Nanos(300), Nanos(600));
        } else {
            result.phases[Phase::Update] = Nanos(50);
        }
        Ok(result)
    }

    fn measured(&mut self) -> Measured {
        let conv = LayerTime {
            name: "conv1".into(),
            calls: self.runs,
            forward: Nanos(300 * self.runs),
            backward: Nanos(600 * self.runs),
            forward_flops: 10,
            backward_flops: 20,
        };
        Measured { peak_device: None, layers: vec![conv] }
    }
}

fn train_fake(job: &Job) -> Result<(), TrainError> {
    let header = RankHeader::new(Rank(0), 1);
    let mut log = RankWriter::create(&job.folder, &header)?;
    let exchange = Exchange::join(job, Rank(0), None)?;
    train(job, exchange, &Fake, &mut log).map(drop)
}

#[test]
fn every_step_leaves_a_record_that_begins_where_the_last_ended() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = Job { steps: 3, ..job(folder.path()) };
    train_fake(&job).expect("three steps");
    let log = RankLog::read(folder.path(), Rank(0)).expect("a whole log");
    assert_eq!(log.planned, Some(Bytes(4096)));
    assert!(log.peak_resident > Some(Bytes(0)));
    assert_eq!(log.steps.len(), 3);
    for (number, step) in log.steps.iter().enumerate() {
        assert_eq!(step.step, Step(number as u64));
        assert_eq!(step.examples, 4);
        assert_eq!(step.phases[Phase::Forward], Nanos(300));
        assert_eq!(step.phases[Phase::Backward], Nanos(600));
        assert_eq!(step.phases[Phase::Update], Nanos(50));
        assert_eq!(step.loss, Some(1.0 / (number + 1) as f32));
    }
    assert!(log.steps.windows(2).all(|pair| pair[0].end == pair[1].begin));
}

#[test]
fn a_profiled_job_leaves_its_layers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = Job { steps: 2, ..job(folder.path()) };
    train_fake(&job).expect("two steps");
    let text = fs::read(folder.path().join(LAYERS_FILE)).expect("the layers");
    let layers: Vec<LayerTime> = serde_json::from_slice(&text).expect("own output");
    assert_eq!(layers[0].name, "conv1");
    assert_eq!((layers[0].calls, layers[0].forward), (2, Nanos(600)));
}

#[test]
fn an_engine_s_error_ends_the_job_and_keeps_the_steps_before_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = train_fake(&job(folder.path())).expect_err("the fourth step");
    assert!(error.to_string().contains("fourth"), "{error}");
    let log = RankLog::read(folder.path(), Rank(0)).expect("a whole log");
    assert_eq!(log.steps.len(), 3);
}

/// A device far away: what it is told to do it does by itself, in two milliseconds, and it updates its weights too.
#[derive(Clone, Default)]
struct Distant {
    calls: Arc<Mutex<Vec<String>>>,
    /// The run that it cannot do.
    fails_in: Option<u64>,
}

struct DistantProgram {
    inner: FakeProgram,
    calls: Arc<Mutex<Vec<String>>>,
    fails_in: Option<u64>,
    running: bool,
    driving: Driving,
}

impl DistantProgram {
    fn note(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }
}

impl Engine for Distant {
    fn name(&self) -> &'static str {
        "distant"
    }

    fn describe(&self) -> String {
        "nothing, far away".into()
    }

    fn plan(&self, graph: &Graph, spec: &Spec) -> Result<MemoryPlan, EngineError> {
        Fake.plan(graph, spec)
    }

    fn available_memory(&self) -> Option<u64> {
        None
    }

    fn compile_in(&self, graph: &Graph, spec: &Spec, _: &Homes) -> Result<Box<dyn Program>, EngineError> {
        let inner = FakeProgram { plan: self.plan(graph, spec)?, batch: spec.batch, runs: 0, applied: 0 };
        Ok(Box::new(DistantProgram {
            inner,
            calls: self.calls.clone(),
            fails_in: self.fails_in,
            running: false,
            driving: Driving::Queued,
        }))
    }
}

impl Program for DistantProgram {
    fn plan(&self) -> &MemoryPlan {
        self.inner.plan()
    }

    fn slots(&self) -> &[Slot] {
        &[]
    }

    fn len(&self, values: Values) -> usize {
        self.inner.len(values)
    }

    fn read(&mut self, _: Values, _: &mut [f32]) -> Result<(), EngineError> {
        Ok(())
    }

    fn write(&mut self, _: Values, _: &[f32]) -> Result<(), EngineError> {
        Ok(())
    }

    fn resume_at(&mut self, _: u64) {}

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        self.note("feed");
        self.inner.feed(samples)
    }

    fn forward_backward(&mut self, pass: Pass, _: &mut dyn FnMut(usize)) -> Result<(), EngineError> {
        self.note(format!("run {:?}", pass.update));
        self.running = true;
        self.inner.runs += 1;
        if self.fails_in == Some(self.inner.runs) {
            return Err(EngineError::Exchange("nobody answers".into()));
        }
        Ok(())
    }

    fn evaluate(&mut self, _: usize) -> Result<(), EngineError> {
        self.note("evaluate");
        Ok(())
    }

    fn apply(&mut self, _: f32, _: Range<usize>) -> Result<(), EngineError> {
        panic!("the update is part of the run");
    }

    fn weave(&mut self, weave: Option<Weave>) -> Result<(), EngineError> {
        assert!(weave.is_none(), "nobody to exchange with");
        self.driving = Driving::Woven;
        Ok(())
    }

    fn driving(&self) -> Driving {
        self.driving
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        self.note("finish");
        if !std::mem::take(&mut self.running) {
            return Ok(StepResult::default());
        }
        std::thread::sleep(Duration::from_millis(2));
        let mut result = StepResult { loss: 1.0, idle: Nanos(u64::MAX / 2), ..StepResult::default() };
        for (phase, time) in [
            (Phase::CopyIn, 100_000),
            (Phase::Forward, 700_000),
            (Phase::Backward, 900_000),
            (Phase::Update, 300_000),
        ] {
            result.phases[phase] = Nanos(time);
        }
        Ok(result)
    }

    fn measured(&mut self) -> Measured {
        Measured::default()
    }
}

fn train_far_away(job: &Job) -> (Vec<String>, RankLog) {
    let engine = Distant::default();
    let mut log = RankWriter::create(&job.folder, &RankHeader::new(Rank(0), 1)).expect("a log");
    let exchange = Exchange::join(job, Rank(0), None).expect("a world of one");
    train(job, exchange, &engine, &mut log).expect("a training");
    let calls = engine.calls.lock().unwrap().clone();
    (calls, RankLog::read(&job.folder, Rank(0)).expect("a whole log"))
}

#[test]
fn a_device_that_runs_behind_is_fed_ahead_and_updates_by_itself() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (calls, log) = train_far_away(&Job { steps: 3, profile: false, ..job(folder.path()) });
    let run = "run Some(0.125)";
    assert_eq!(calls, ["feed", run, "feed", "finish", run, "feed", "finish", run, "finish"]);
    assert_eq!(log.steps.len(), 3);
}

#[test]
fn what_a_device_hides_is_booked_once_and_idleness_fills_no_more_than_the_rest() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_, log) = train_far_away(&Job { steps: 4, profile: false, ..job(folder.path()) });
    for step in &log.steps {
        let wall = step.end.since(step.begin);
        assert_eq!(step.phases.total(), wall, "idleness without end fills what is left, and no more");
        assert_eq!(step.phases[Phase::Update], Nanos(300_000));
        assert_eq!(step.phases[Phase::Idle], step.idle_host);
        assert_eq!(step.examples, 4);
    }
    assert!(log.steps.windows(2).all(|pair| pair[0].end == pair[1].begin));
}

#[test]
fn a_batch_is_not_handed_over_ahead_of_a_test() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A step is 4 of 50 000 samples: every one completes so small a part of an epoch.
    let milestones = Milestones { eval: Some(Every(4.0 / 50_000.0)), ..Milestones::default() };
    let (calls, log) = train_far_away(&Job { steps: 2, profile: false, milestones, ..job(folder.path()) });
    let steps: Vec<&[String]> = calls.split(|call| call == "evaluate").collect();
    assert_eq!(steps[0], ["feed", "run Some(0.125)", "finish", "feed"], "the last is the first test's");
    assert!(
        steps[1..].iter().all(|between| between.last().is_none_or(|call| call == "feed" || call == "finish"))
    );
    assert_eq!(calls.iter().filter(|call| call.starts_with("run")).count(), 2);
    assert_eq!(log.evaluations.len(), 2);
}

#[test]
fn a_run_that_fails_far_away_leaves_the_steps_before_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let job = Job { steps: 5, profile: false, ..job(folder.path()) };
    let engine = Distant { fails_in: Some(3), ..Distant::default() };
    let mut log = RankWriter::create(&job.folder, &RankHeader::new(Rank(0), 1)).expect("a log");
    let exchange = Exchange::join(&job, Rank(0), None).expect("a world of one");
    train(&job, exchange, &engine, &mut log).expect_err("the third run");
    let log = RankLog::read(&job.folder, Rank(0)).expect("a whole log");
    assert_eq!(log.steps.len(), 2);
}
