//! A compiled graph with its memory: runs the instructions, keeps the times, applies updates.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_model::{Graph, Shape};
use paceline_record::{Nanos, Phase, PhaseTimes};
use paceline_system::scheduler::{Stretch, Stretched};

use super::Cpu;
use super::action::{Action, Machine, Phase as Mode};
use super::compile::Step;
use super::element::{Bf16, Element};
use super::memory::{Memory, View};
use super::pool::Pool;
use super::update::{Moved, Update};
use crate::outline::{Outline, Places, Unit};
use crate::plan::Buffer;
use crate::profile::{UnitTime, layers};
use crate::random;
use crate::request::{BatchShape, check_below, check_len, check_range};
use crate::{
    Drawing, EngineError, Homes, HostUpdate, Layout, Measured, MemoryPlan, Numerics, Pass, Precision,
    Profiling, Program, Region, Samples, Slot, Spec, StepResult, Values,
};

/// A program of the CPU engine.
pub(super) struct CpuProgram {
    machine: Machine,
    forward: Vec<Step>,
    backward: Vec<Step>,
    units: Vec<Unit>,
    times: Vec<UnitTime>,
    input: Buffer,
    output: Buffer,
    places: Places,
    plan: MemoryPlan,
    spec: Spec,
    updates: i32,
    /// Whether an update has begun that [`Program::finish`] has not ended.
    updating: bool,
    batch: BatchShape,
    output_shape: Shape,
    result: StepResult,
    params: View,
    /// Gradients and running statistics of each shard.
    grads: Vec<View>,
    statistics: Vec<View>,
    state: Vec<View>,
    /// What the views point into; dropped last.
    _memory: Vec<Memory>,
}

/// Whoever is told which gradients are final, and the time that this took.
struct Listener<'a> {
    ready: &'a mut dyn FnMut(usize),
    time: Nanos,
    slots: usize,
    told: Instant,
}

/// How often whoever listens is told that nothing is new.
const PULSE: Duration = Duration::from_micros(500);

impl<'a> Listener<'a> {
    fn new(ready: &'a mut dyn FnMut(usize)) -> Self {
        // No number that it is told: the first call comes at once.
        Self { ready, time: Nanos(0), slots: usize::MAX, told: Instant::now() }
    }

    /// Tells what is final, if there is more of it, or after a while.
    fn tell(&mut self, slots: usize) {
        let now = Instant::now();
        if slots == self.slots && now.duration_since(self.told) < PULSE {
            return;
        }
        (self.ready)(slots);
        (self.slots, self.told) = (slots, Instant::now());
        self.time += Nanos(self.told.duration_since(now).as_nanos() as u64);
    }
}

fn nanos(since: Instant) -> Nanos {
    Nanos(since.elapsed().as_nanos() as u64)
}

/// Runs an instruction on activations in their format.
fn run(machine: &mut Machine, precision: Precision, action: &Action, mode: Mode) {
    match precision {
        Precision::Bf16 => machine.run::<Bf16>(action, mode),
        Precision::Fp32 | Precision::Tf32 => machine.run::<f32>(action, mode),
    }
}

impl CpuProgram {
    pub fn new(engine: &Cpu, graph: &Graph, spec: &Spec, homes: &Homes) -> Result<Self, EngineError> {
        let compiled = engine.lower(graph, spec)?;
        let mut memory = Vec::new();
        let mut take = |len: usize, home: Option<Region>| -> Result<View, EngineError> {
            if let Some(region) = home {
                return View::of_region(region, len);
            }
            let mut part = Memory::new(len)?;
            let view = part.view().part(0, len);
            memory.push(part);
            Ok(view)
        };
        let Outline { units, places, .. } = compiled.outline;
        let (trained, statistics_len) = (places.trained, places.statistics_len);
        let params = take(trained, homes.parameters.map(|(region, _)| region))?;
        let grads = (0..spec.shards)
            .map(|shard| take(trained, homes.gradients.get(shard).copied()))
            .collect::<Result<Vec<_>, _>>()?;
        let statistics =
            (0..spec.shards).map(|_| take(statistics_len, None)).collect::<Result<Vec<_>, _>>()?;
        let arena = take(compiled.arena.len, None)?;
        let state = (0..spec.optimizer.state_per_value())
            .map(|_| take(trained, None))
            .collect::<Result<Vec<_>, _>>()?;
        let nothing = params.part(0, 0);
        let machine = Machine {
            pool: Arc::new(Pool::new(engine.threads, engine.placement)?),
            simd: compiled.simd,
            counts: compiled.counts,
            buffers: compiled.arena.ranges.iter().map(|range| arena.part(range.start, range.len())).collect(),
            params: vec![nothing; graph.params.len()],
            grads: vec![nothing; graph.params.len()],
            labels: vec![0; spec.batch],
            live: spec.batch,
            score: Default::default(),
            pass: Pass::ONLY,
        };
        let output = graph.output();
        let mut program = Self {
            machine,
            times: vec![UnitTime::default(); units.len()],
            forward: compiled.forward,
            backward: compiled.backward,
            units,
            input: compiled.arena.input,
            output: compiled.arena.output,
            places,
            plan: compiled.plan,
            spec: *spec,
            updates: 0,
            updating: false,
            batch: BatchShape::new(graph, spec),
            output_shape: graph.node(output).shape,
            result: StepResult::default(),
            params,
            grads,
            statistics,
            state,
            _memory: memory,
        };
        program.show_parameters();
        program.select(0);
        program.draw(graph, homes.parameters.map_or(Drawing::Draw, |(_, drawing)| drawing));
        let (first, others) = program.statistics.split_first().expect("invariant: at least one shard");
        for other in others {
            // SAFETY: no instruction is running, and shards have memory of their own.
            unsafe { other.write().copy_from_slice(first.read()) };
        }
        Ok(program)
    }

    /// Points the instructions to the parameters.
    fn show_parameters(&mut self) {
        for Slot { param, range } in &self.places.slots {
            self.machine.params[param.0] = self.params.part(range.start, range.len());
        }
    }

    /// Selects a shard's gradients and running statistics.
    fn select(&mut self, shard: usize) {
        let (grads, statistics) = (self.grads[shard], self.statistics[shard]);
        for Slot { param, range } in &self.places.slots {
            self.machine.grads[param.0] = grads.part(range.start, range.len());
        }
        for (view, range) in self.machine.params.iter_mut().zip(&self.places.statistics) {
            if let Some(range) = range {
                *view = statistics.part(range.start, range.len());
            }
        }
    }

    /// Draws the initial weights, as far as they are this program's to draw, and the initial statistics.
    fn draw(&self, graph: &Graph, trained: Drawing) {
        self.machine.pool.each(graph.params.len(), |index, _| {
            let param = &graph.params[index];
            if trained == Drawing::Leave && param.kind.trainable() {
                return;
            }
            // SAFETY: each tensor is one task's.
            let values = unsafe { self.machine.params[index].write() };
            random::draw_values(param, random::stream(self.spec.seed, index), 0, values);
        });
    }

    fn run_forward(&mut self, mode: Mode, mut after: impl FnMut()) {
        self.machine.pool.lap();
        let stretch = Stretch::begin();
        for step in &self.forward {
            match self.spec.profiling {
                Profiling::Phases => run(&mut self.machine, self.spec.precision, &step.action, mode),
                Profiling::Layers => {
                    let start = Instant::now();
                    run(&mut self.machine, self.spec.precision, &step.action, mode);
                    self.times[step.unit].forward += nanos(start);
                }
            }
            after();
        }
        self.result.phases[Phase::Backward] = Nanos(0);
        self.result.in_ready = Nanos(0);
        self.result.off_core = PhaseTimes::default();
        self.book(Phase::Forward, stretch, Nanos(0));
    }

    /// Books a stretch in which all threads took part, and which spent some time in `ready` calls.
    fn book(&mut self, phase: Phase, stretch: Stretch, in_ready: Nanos) {
        let Stretched { wall, off_core } = stretch.end();
        let off_core = off_core.max(self.machine.pool.lap()).min(wall);
        let part = |time: Nanos| {
            Nanos((u128::from(off_core.0) * u128::from(time.0) / u128::from(wall.0.max(1))) as u64)
        };
        let off_in_ready = part(in_ready);
        self.result.phases[phase] = wall.since(in_ready);
        self.result.off_core[phase] += off_core.since(off_in_ready);
        self.result.off_core[Phase::CommWait] += off_in_ready;
    }

    /// Copies between the layout and the host's `[sample][row][column][channel]`.
    fn convert(&self, shape: Shape, mut visit: impl FnMut(usize, usize)) {
        let (pixels, channels) = (shape.pixels(), shape.c);
        for sample in 0..self.spec.batch {
            let first = sample * shape.len();
            for pixel in 0..pixels {
                for channel in 0..channels {
                    visit(first + pixel * channels + channel, first + channel * pixels + pixel);
                }
            }
        }
    }

    /// Whether the layout of a map is the host's.
    fn plain(&self, shape: Shape) -> bool {
        self.spec.layout == Layout::Nhwc || shape.pixels() == 1
    }

    /// Copies a batch into the network's input.
    fn write_input<E: Element>(&self, images: &[f32]) {
        // SAFETY: no instruction is running.
        let input = unsafe { self.machine.at::<E>(self.input).write() };
        if self.plain(self.batch.input) {
            input.iter_mut().zip(images).for_each(|(own, &value)| *own = E::round(value));
        } else {
            self.convert(self.batch.input, |host, own| input[own] = E::round(images[host]));
        }
    }

    /// Copies the network's output.
    fn read_output<E: Element>(&self, into: &mut [f32]) {
        // SAFETY: no instruction is running.
        let own = unsafe { self.machine.at::<E>(self.output).read() };
        if self.plain(self.output_shape) {
            into.iter_mut().zip(own).for_each(|(value, own)| *value = own.widen());
        } else {
            self.convert(self.output_shape, |host, at| into[host] = own[at].widen());
        }
    }

    /// Where values lie; the output has a format of its own.
    fn view(&self, values: Values) -> Result<View, EngineError> {
        let found = match values {
            Values::Parameters => Some(self.params),
            Values::Gradients(shard) => self.grads.get(shard).copied(),
            Values::Statistics(shard) => self.statistics.get(shard).copied(),
            Values::State(number) => self.state.get(number).copied(),
            Values::Param(param) => self.machine.params.get(param.0).copied(),
            Values::Gradient(param) => {
                let trained = self.places.ranges.get(param.0).is_some_and(Option::is_some);
                trained.then(|| self.machine.grads[param.0])
            }
            Values::Output => None,
        };
        found.ok_or_else(|| EngineError::Unsupported(format!("this program has no {values:?}")))
    }
}

impl Program for CpuProgram {
    fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    fn slots(&self) -> &[Slot] {
        &self.places.slots
    }

    fn numerics(&self) -> Numerics {
        Numerics { instruction_set: Some(self.machine.simd.to_string()), ..Numerics::default() }
    }

    fn len(&self, values: Values) -> usize {
        if values == Values::Output {
            return self.machine.counts[self.output.0];
        }
        self.view(values).map_or(0, View::len)
    }

    fn read(&mut self, values: Values, into: &mut [f32]) -> Result<(), EngineError> {
        if values == Values::Output {
            check_len("values to read", self.len(values), into.len())?;
            match self.spec.precision {
                Precision::Bf16 => self.read_output::<Bf16>(into),
                Precision::Fp32 | Precision::Tf32 => self.read_output::<f32>(into),
            }
            return Ok(());
        }
        let view = self.view(values)?;
        check_len("values to read", view.len(), into.len())?;
        // SAFETY: no instruction is running.
        into.copy_from_slice(unsafe { view.read() });
        Ok(())
    }

    fn write(&mut self, values: Values, from: &[f32]) -> Result<(), EngineError> {
        if values == Values::Output {
            return Err(EngineError::Unsupported("the output of a network cannot be written".into()));
        }
        let view = self.view(values)?;
        check_len("values to write", view.len(), from.len())?;
        // SAFETY: no instruction is running.
        unsafe { view.write() }.copy_from_slice(from);
        Ok(())
    }

    fn bind(&mut self, homes: &Homes) -> Result<(), EngineError> {
        let trained = self.places.trained;
        check_below("number of shards with gradients", self.grads.len() + 1, homes.gradients.len())?;
        let parameters = homes.parameters.map(|(region, _)| View::of_region(region, trained)).transpose()?;
        homes.gradients.iter().try_for_each(|region| View::of_region(*region, trained).map(drop))?;
        self.params = parameters.unwrap_or(self.params);
        for (view, region) in self.grads.iter_mut().zip(&homes.gradients) {
            *view = View::of_region(*region, trained)?;
        }
        self.show_parameters();
        self.select(0);
        Ok(())
    }

    fn host_update(&self) -> Result<HostUpdate, EngineError> {
        Ok(HostUpdate::on(self.machine.pool.clone(), self.spec.optimizer, self.machine.simd))
    }

    fn resume_at(&mut self, updates: u64) {
        self.updates = updates as i32;
    }

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        let start = Instant::now();
        self.batch.check(samples)?;
        self.machine.labels.copy_from_slice(samples.labels);
        match self.spec.precision {
            Precision::Bf16 => self.write_input::<Bf16>(samples.images),
            Precision::Fp32 | Precision::Tf32 => self.write_input::<f32>(samples.images),
        }
        self.result.phases[Phase::CopyIn] = nanos(start);
        Ok(())
    }

    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(usize)) -> Result<(), EngineError> {
        check_below("shard", self.grads.len(), pass.shard)?;
        self.select(pass.shard);
        self.machine.pass = pass;
        let mut listener = Listener::new(ready);
        self.run_forward(Mode::Training, || listener.tell(0));
        let in_forward = listener.time;
        let stretch = Stretch::begin();
        let mut complete = 0;
        let mut steps = self.backward.iter().peekable();
        while let Some(step) = steps.next() {
            match self.spec.profiling {
                Profiling::Phases => {
                    run(&mut self.machine, self.spec.precision, &step.action, Mode::Training);
                }
                Profiling::Layers => {
                    let start = Instant::now();
                    run(&mut self.machine, self.spec.precision, &step.action, Mode::Training);
                    self.times[step.unit].backward += nanos(start);
                }
            }
            let slots = &self.units[step.unit].slots;
            if pass.is_last() && !slots.is_empty() && steps.peek().is_none_or(|next| next.unit != step.unit) {
                complete = slots.end;
            }
            listener.tell(complete);
        }
        if self.spec.profiling == Profiling::Layers {
            self.times.iter_mut().for_each(|time| time.calls += 1);
        }
        self.select(0);
        let in_ready = listener.time;
        let forward = self.result.phases[Phase::Forward];
        self.result.phases[Phase::Forward] = forward.since(in_forward);
        self.book(Phase::Backward, stretch, in_ready.since(in_forward));
        self.result.in_ready = in_ready;
        Ok(())
    }

    fn evaluate(&mut self, live: usize) -> Result<(), EngineError> {
        check_below("number of samples that count", self.spec.batch + 1, live)?;
        self.machine.live = live;
        self.run_forward(Mode::Evaluation, || {});
        Ok(())
    }

    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError> {
        let stretch = Stretch::begin();
        check_range(&range, self.params.len())?;
        if !self.updating {
            self.updates += 1;
            self.updating = true;
        }
        let cut = |view: View| Moved::in_place(view.part(range.start, range.len()));
        Update {
            optimizer: self.spec.optimizer,
            learning_rate,
            count: self.updates,
            params: cut(self.params),
            grads: self.grads[0].part(range.start, range.len()),
            first: self.state.first().copied().map(cut),
            second: self.state.get(1).copied().map(cut),
        }
        .run(&self.machine.pool, self.machine.simd);
        // Helpers are not asked: an update has many parts, and each is short.
        let Stretched { wall, off_core } = stretch.end();
        self.result.phases[Phase::Update] += wall;
        self.result.off_core[Phase::Update] += off_core;
        Ok(())
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        self.result.loss = self.machine.score.loss;
        self.result.correct = self.machine.score.correct;
        self.updating = false;
        let result = self.result;
        self.result = StepResult { loss: result.loss, correct: result.correct, ..StepResult::default() };
        Ok(result)
    }

    fn measured(&mut self) -> Measured {
        if self.spec.profiling == Profiling::Phases {
            return Measured::default();
        }
        Measured { peak_device: None, layers: layers(&self.units, &self.times) }
    }
}
