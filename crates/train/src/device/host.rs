//! A program on the host that exchanges as one on a GPU does, through whatever library answers to NCCL's name. It lets tests run groups
//! of several hosts without a GPU: all but CUDA itself is what GPUs use.
//!
//! A "stream" is the address of a count here, to which such a library adds 1 when an operation is done.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use paceline_engine::{
    BucketTime, Driving, Engine, EngineError, Exchanged, Homes, HostUpdate, Measured, MemoryPlan, Numerics,
    Pass, Place, Program, Region, Samples, Slot, Spec, StepResult, Values, Weave, lay_out,
};
use paceline_model::Graph;

/// The environment variable that asks for it.
const VARIABLE: &str = "PACELINE_GROUPS_ON_HOST";

/// How often others are looked after while it waits.
const LOOK: Duration = Duration::from_micros(200);

/// Whether workers on the host exchange in this way.
pub(crate) fn is_asked() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// A value at an address that is aligned for programs.
#[derive(Clone)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "it is used by its address")] [f32; 16]);

/// A program with gradients of its own, and the exchange that follows its runs.
pub(crate) struct OnHost {
    /// Ends before the memory that it uses.
    program: Box<dyn Program>,
    gradients: Vec<Line>,
    /// Never freed: operations that were given up may still be counted.
    done: &'static AtomicU64,
    put: u64,
    weave: Option<Weave>,
    /// The learning rate of the update that follows the exchange under way.
    update: Option<f32>,
    result: StepResult,
    guards: bool,
    /// What the last run changed, as it was before.
    guarded: Vec<(Values, Vec<f32>)>,
}

impl OnHost {
    pub fn compile(engine: &dyn Engine, graph: &Graph, spec: &Spec) -> Result<Self, EngineError> {
        let trained = lay_out(graph).trained;
        let mut gradients = vec![Line([0.0; 16]); trained.div_ceil(16)];
        // SAFETY: the memory stays where it is until the program is gone, and only runs of the program and the exchange after
        // them use it.
        let homes = unsafe {
            let region = Region::new(Place::Host, gradients.as_mut_ptr() as u64, trained);
            Homes::new(None, vec![region])
        };
        Ok(Self {
            program: engine.compile_in(graph, spec, &homes)?,
            gradients,
            done: Box::leak(Box::default()),
            put: 0,
            weave: None,
            update: None,
            result: StepResult::default(),
            guards: false,
            guarded: Vec::new(),
        })
    }

    fn changed(&self) -> Vec<Values> {
        let all = [Values::Parameters, Values::State(0), Values::State(1), Values::Statistics(0)];
        all.into_iter().filter(|&values| self.program.len(values) > 0).collect()
    }

    /// Puts the exchange of all buckets, and waits for it.
    fn exchange(&mut self) -> Result<(), EngineError> {
        let Some(weave) = &mut self.weave else { return Ok(()) };
        let len = self.program.len(Values::Parameters);
        // SAFETY: as where it was made.
        let all = unsafe { Region::new(Place::Host, self.gradients.as_mut_ptr() as u64, len) };
        let stream = std::ptr::from_ref(self.done) as u64;
        for (number, bucket) in weave.buckets.iter().enumerate() {
            let exchanged = Exchanged { own: all.part(bucket.range.clone()), gathered: None };
            weave.link.put_gradients(number, exchanged, stream)?;
            self.put += 1;
        }
        let begun = Instant::now();
        while self.done.load(Ordering::Acquire) < self.put {
            std::thread::sleep(LOOK);
            weave.link.watch(begun.elapsed())?;
        }
        Ok(())
    }
}

impl Program for OnHost {
    fn plan(&self) -> &MemoryPlan {
        self.program.plan()
    }

    fn slots(&self) -> &[Slot] {
        self.program.slots()
    }

    fn numerics(&self) -> Numerics {
        self.program.numerics()
    }

    fn len(&self, values: Values) -> usize {
        self.program.len(values)
    }

    fn read(&mut self, values: Values, into: &mut [f32]) -> Result<(), EngineError> {
        self.program.read(values, into)
    }

    fn write(&mut self, values: Values, from: &[f32]) -> Result<(), EngineError> {
        self.program.write(values, from)
    }

    fn host_update(&self) -> Result<HostUpdate, EngineError> {
        self.program.host_update()
    }

    fn resume_at(&mut self, updates: u64) {
        self.program.resume_at(updates);
    }

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        self.program.feed(samples)
    }

    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(usize)) -> Result<(), EngineError> {
        if self.guards && pass.index == 0 {
            self.guarded.clear();
            for values in self.changed() {
                let copy = self.program.to_vec(values)?;
                self.guarded.push((values, copy));
            }
        }
        self.update = pass.update;
        self.program.forward_backward(Pass { update: None, ..pass }, ready)?;
        self.result = self.program.finish()?;
        Ok(())
    }

    fn evaluate(&mut self, live: usize) -> Result<(), EngineError> {
        self.program.evaluate(live)?;
        self.result = self.program.finish()?;
        Ok(())
    }

    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError> {
        self.program.apply(learning_rate, range)
    }

    fn driving(&self) -> Driving {
        Driving::Woven
    }

    fn weave(&mut self, weave: Option<Weave>) -> Result<(), EngineError> {
        self.weave = weave;
        self.put = 0;
        self.done = Box::leak(Box::default());
        Ok(())
    }

    fn guard(&mut self) -> Result<(), EngineError> {
        self.guards = true;
        Ok(())
    }

    fn undo(&mut self) -> Result<(), EngineError> {
        self.update = None;
        for (values, copy) in &self.guarded {
            self.program.write(*values, copy)?;
        }
        Ok(())
    }

    fn bucket_times(&mut self) -> Result<Vec<BucketTime>, EngineError> {
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        if let Some(rate) = self.update.take() {
            self.exchange()?;
            self.program.apply(rate, 0..self.program.len(Values::Parameters))?;
            let updated = self.program.finish()?;
            self.result.phases += updated.phases;
        }
        Ok(std::mem::take(&mut self.result))
    }

    fn measured(&mut self) -> Measured {
        self.program.measured()
    }
}
