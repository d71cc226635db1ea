//! A compiled graph on the device: memory, weights, recordings of whole steps, and the times of their parts.

mod interface;
pub(super) mod launch;
mod parts;
mod profile;
mod setup;
mod woven;

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_model::{Graph, ParamId, Shape as Map};
use paceline_record::{Bytes, LayerTime, Nanos, Phase};

use super::action::{Action, Arg, LAG, Step, Track};
use super::driver::{self, Device, Event, Memory, Pinned, Recording, Shape, Stream};
use super::kernels::Kernels;
use super::lower::{Lowered, Packing, Tensor};
use super::mirror::{Mirror, host_values};
use super::product::{Direction, Lane, Libraries, Method, Tuner};
use super::{Contents, backend, gemm, nvtx};
use crate::cpu::Pool;
use crate::outline::{Outline, Places, Unit};
use crate::plan::Buffer;
use crate::random::draw;
use crate::{
    BucketTime, Drawing, Driving, EngineError, Homes, Layout, Measured, MemoryPlan, Numerics, Optimizer,
    Pass, Place, Precision, Profiling, Program, Region, Samples, Slot, Spec, StepResult, Values, Weave,
};
use launch::{Word, launch, wide_shape};
use parts::Part;
use woven::Woven;

/// What changes from step to step, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    stream: u64,
    live: i32,
    passes: i32,
    /// The part of old running statistics that may stay at most.
    keep: f64,
    /// Of the update that follows.
    rate: f32,
    root: f32,
}

/// How a moment is marked: now, or at each replay of what is recorded.
type Mark = fn(&Stream, &Event) -> Result<(), EngineError>;

/// What the loss says, as its kernel writes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Judgement {
    loss: f32,
    correct: u32,
}

/// A run that can be recorded: which shard, whether it adds to its gradients, and whether the update is part of it;
/// evaluation has none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Run {
    Training { shard: usize, adds: bool, updates: bool },
    Judging,
}

#[derive(Clone, Copy, Default)]
struct UnitTime {
    calls: u64,
    forward: Nanos,
    backward: Nanos,
}

/// All memory of a program on the device.
struct Memories {
    params: Memory,
    grads: Vec<Memory>,
    moving: Vec<Memory>,
    state: Vec<Memory>,
    packed: Memory,
    raw: Memory,
    tensors: Memory,
    owners: Memory,
    /// Stretches of trained values that have no packed copies.
    stretches: Memory,
    arena: Memory,
    counters: Memory,
    labels: Memory,
    staged_images: Memory,
    staged_labels: Memory,
    control: Memory,
    judgement: Memory,
    _workspaces: Vec<Memory>,
}

/// Moments of a step.
struct Events {
    copied: Event,
    consumed: Event,
    /// A run's way through the stream: called, input and weights there, forward, backward, and what follows it.
    called: Event,
    prepared: Event,
    begin: Event,
    forward_end: Event,
    end: Event,
    exchanged: Event,
    updated: Event,
    fetched: Event,
    done: Event,
    copied_out: Event,
    /// The ends of this run and of the one before it, in turns.
    over: [Event; 2],
    /// Updates outside of a run: gradients on their way in, there, used.
    applied: Vec<[Event; 3]>,
    /// Forks and joins of the side, one pair an instruction.
    sides: Vec<(Event, Event)>,
}

/// What [`Program::finish`] has to ask the events for.
#[derive(Default)]
struct Pending {
    copied: bool,
    ran: bool,
    trained: bool,
    /// The update was part of the run.
    updated: bool,
    copied_out: bool,
    /// Updates outside of a run.
    applied: usize,
}

/// A program of the CUDA engine. Recordings and methods go before the streams and memory that they use.
pub(super) struct CudaProgram {
    recordings: HashMap<Run, Recording>,
    /// Backward as it runs where gradients go through the host.
    parts: Vec<Part>,
    woven: Option<Woven>,
    /// Whether the update, and the exchange if there is one, are part of runs.
    weaves: bool,
    methods: HashMap<(usize, Direction), Method>,
    libraries: Libraries,
    main: Lane,
    side: Lane,
    copying: Stream,
    copying_out: Stream,
    kernels: Arc<Kernels>,
    memory: Memories,
    events: Events,
    copiers: Pool,
    pinned_images: [Pinned; 2],
    pinned_labels: [Pinned; 2],
    pinned_out: Pinned,
    pinned_control: Pinned,
    mirror: Option<Mirror>,
    fed: usize,
    /// Runs so far.
    runs: usize,
    low: Compiled,
    times: Vec<UnitTime>,
    pending: Pending,
    packed: bool,
    /// Whether a run has been profiled before.
    loaded: bool,
    updates: i32,
    /// Time of updates on the host since the last look, and of telling gradients while the device had nothing to do.
    host_update: Duration,
    telling: Duration,
    result: StepResult,
    spec: Spec,
    classes: Option<usize>,
    input: Map,
    output: Map,
    lens: Vec<usize>,
    contents: Contents,
    numerics: Numerics,
    peak: Peak,
    /// Goes last: the thread's turn may end with it.
    device: Arc<Device>,
}

/// The most device memory that a program has held, the libraries' included. The driver tells only what the whole GPU has
/// left: where others give memory back meanwhile, what this process took itself is the least.
struct Peak {
    free_before: u64,
    held_before: u64,
    bytes: u64,
}

impl Peak {
    /// Begins before a program takes its memory.
    fn new(device: &Device) -> Result<Self, EngineError> {
        Ok(Self { free_before: device.memory()?.0, held_before: Memory::held(), bytes: 0 })
    }

    /// Looks at what is held now.
    fn look(&mut self, device: &Device) -> Result<(), EngineError> {
        let held = Memory::held().saturating_sub(self.held_before);
        let used = self.free_before.saturating_sub(device.memory()?.0);
        self.bytes = self.bytes.max(held).max(used);
        Ok(())
    }
}

/// The lowered graph without what was only needed to make the program.
struct Compiled {
    forward: Vec<Step>,
    judging: Vec<Step>,
    backward: Vec<Step>,
    units: Vec<Unit>,
    offsets: Vec<usize>,
    input: u64,
    output: u64,
    wide: usize,
    slots: Vec<Slot>,
    ranges: Vec<Option<Range<usize>>>,
    trained: usize,
    moving: Vec<Option<Range<usize>>>,
    moving_len: usize,
    packing: Packing,
    stretches: usize,
    plan: MemoryPlan,
}

impl CudaProgram {
    fn nchw(&self) -> i32 {
        i32::from(self.spec.layout == Layout::Nchw)
    }

    fn precise(&self) -> usize {
        if self.spec.precision == Precision::Bf16 { 2 } else { 4 }
    }

    /// An argument's value, where a run works on a shard.
    fn word(&self, arg: &Arg, shard: usize, adds: bool) -> Word {
        let param = |memory: &Memory, id: &ParamId, ranges: &[Option<Range<usize>>]| {
            let range = ranges[id.0].as_ref().expect("invariant: the parameter has a place");
            Word::from(memory.address + 4 * range.start as u64)
        };
        match arg {
            Arg::At(buffer, skip) => {
                Word::from(self.memory.arena.address + (self.low.offsets[buffer.0] + skip) as u64)
            }
            Arg::Null => Word::from(0u64),
            Arg::Param(id) => param(&self.memory.params, id, &self.low.ranges),
            Arg::Grad(id) => param(&self.memory.grads[shard], id, &self.low.ranges),
            Arg::Moving(id) => param(&self.memory.moving[shard], id, &self.low.moving),
            Arg::Packed(id) => {
                let start = self.low.packing.starts[id.0].expect("invariant: kernels of products are packed");
                Word::from(self.memory.packed.address + (start * self.precise()) as u64)
            }
            Arg::Labels => Word::from(self.memory.labels.address),
            Arg::Control => Word::from(self.memory.control.address),
            Arg::Judgement => Word::from(self.memory.judgement.address),
            Arg::Counters(first) => Word::from(self.memory.counters.address + 4 * *first as u64),
            Arg::AddsGradients => Word::from(i32::from(adds)),
            Arg::Int(value) => Word::from(*value),
            Arg::Long(value) => Word::from(*value as u64),
            Arg::Float(value) => Word::from(*value),
            Arg::Double(value) => Word::from(value.to_bits()),
            Arg::Word(value) => Word::from(*value),
            Arg::Window(window) => Word::of(window),
        }
    }

    /// Puts one instruction on a lane.
    fn act(&self, step: &Step, lane: &Lane, (shard, adds): (usize, bool)) -> Result<(), EngineError> {
        let _layer = nvtx::range(&self.low.units[step.unit].name);
        match &step.action {
            Action::Kernel { name, shape, args } => {
                let words: Vec<Word> = args.iter().map(|arg| self.word(arg, shard, adds)).collect();
                launch(&self.kernels, &lane.stream, name, *shape, &words)
            }
            Action::Product { product, direction, x, kernel, y } => {
                let at = |buffer: &Buffer| self.memory.arena.address + self.low.offsets[buffer.0] as u64;
                let start =
                    self.low.packing.starts[kernel.0].expect("invariant: kernels of products are packed");
                let copies =
                    if *direction == Direction::Filter { &self.memory.raw } else { &self.memory.packed };
                let weights = copies.address + (start * self.precise()) as u64;
                let method = &self.methods[&(*product, *direction)];
                method.run(&self.libraries, lane, [at(x), weights, at(y)])
            }
        }
    }

    /// Puts instructions on the lanes; the side is joined again at the end. `after` is told each instruction's number, and
    /// the last that the side has to do so far.
    fn put(
        &self,
        steps: &[Step],
        selected: (usize, bool),
        mut after: impl FnMut(usize, Option<&Event>) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut sides = self.events.sides.iter();
        let mut open: Vec<(usize, &Event)> = Vec::new();
        let mut last = None;
        for (index, step) in steps.iter().enumerate() {
            let late = open.partition_point(|(time, _)| time + LAG < step.time);
            if late > 0 {
                self.main.stream.wait_for(open[late - 1].1)?;
                open.drain(..late);
            }
            match step.track {
                Track::Main => self.act(step, &self.main, selected)?,
                Track::Side => {
                    let (fork, join) = sides.next().expect("invariant: events for every instruction");
                    self.main.stream.mark(fork)?;
                    self.side.stream.wait_for(fork)?;
                    self.act(step, &self.side, selected)?;
                    self.side.stream.mark(join)?;
                    open.push((step.time, join));
                    last = Some(join);
                }
            }
            after(index, last)?;
        }
        match open.last() {
            Some((_, last)) => self.main.stream.wait_for(last),
            None => Ok(()),
        }
    }

    /// Gradients in canonical order, of some of the packed tensors.
    fn unpack(
        &self,
        stream: &Stream,
        tensors: Range<usize>,
        (shard, adds): (usize, bool),
    ) -> Result<(), EngineError> {
        let packing = &self.low.packing;
        let Some(first) = packing.tensors[tensors.clone()].first() else { return Ok(()) };
        let end = packing
            .tensors
            .get(tensors.end)
            .map_or(packing.owners.len(), |tensor| tensor.first_tile as usize);
        let args = [
            Word::from(self.memory.tensors.address),
            Word::from(self.memory.owners.address),
            Word::from(self.memory.raw.address),
            Word::from(self.memory.grads[shard].address),
            Word::from(self.nchw()),
            Word::from(i32::from(adds)),
            Word::from(first.first_tile),
        ];
        self.tiles(stream, "unpack_gradients", end - first.first_tile as usize, &args)
    }

    /// The libraries' copies of the weights.
    fn pack(&self) -> Result<(), EngineError> {
        let count = self.low.packing.owners.len();
        if count == 0 {
            return Ok(());
        }
        let args = [
            Word::from(self.memory.tensors.address),
            Word::from(self.memory.owners.address),
            Word::from(self.memory.params.address),
            Word::from(self.memory.packed.address),
            Word::from(self.nchw()),
        ];
        self.tiles(&self.main.stream, "pack_weights", count, &args)
    }

    fn tiles(&self, stream: &Stream, name: &str, count: usize, args: &[Word]) -> Result<(), EngineError> {
        let shape = Shape { grid: (count as u32, 1, 1), block: (32, 8), shared: 0, cluster: 1 };
        launch(&self.kernels, stream, name, shape, args)
    }

    /// Puts a whole run on the stream: from a recording, made at its second turn, since the first loads machine code.
    fn run(&mut self, run: Run) -> Result<(), EngineError> {
        let _step = nvtx::range(if run == Run::Judging { "evaluation" } else { "step" });
        if self.spec.profiling == Profiling::Layers {
            return self.run_profiled(run);
        }
        if let Some(recording) = self.recordings.get(&run) {
            return self.main.stream.replay(recording);
        }
        let mut woven = self.woven.take();
        let recorded = self.run_and_record(run, woven.as_mut());
        self.woven = woven;
        self.recordings.insert(run, recorded?);
        self.peak.look(&self.device)
    }

    fn run_and_record(&self, run: Run, mut woven: Option<&mut Woven>) -> Result<Recording, EngineError> {
        self.put_run(run, woven.as_deref_mut(), Stream::mark)?;
        self.await_stream(woven.as_deref_mut())?;
        self.main.stream.record(|| self.put_run(run, woven, Stream::mark_recorded))
    }

    fn put_run(&self, run: Run, mut woven: Option<&mut Woven>, mark: Mark) -> Result<(), EngineError> {
        let (stream, events) = (&self.main.stream, &self.events);
        let nothing = |_: usize, _: Option<&Event>| Ok(());
        mark(stream, &events.begin)?;
        let Run::Training { shard, adds, updates } = run else {
            self.put(&self.low.judging, (0, false), nothing)?;
            mark(stream, &events.forward_end)?;
            return mark(stream, &events.end);
        };
        let selected = (shard, adds);
        self.put(&self.low.forward, selected, nothing)?;
        mark(stream, &events.forward_end)?;
        let backward = nvtx::range("backward");
        // Where nobody else needs them and nothing is added to them, gradients are used as they are.
        let sgd = matches!(self.spec.optimizer, Optimizer::Sgd { .. });
        let direct = updates && woven.is_none() && !adds && sgd && self.spec.shards == 1;
        let mut overlapped = woven.as_deref_mut().filter(|woven| updates && woven.overlap);
        self.put(&self.low.backward, selected, |index, side| match overlapped.as_deref_mut() {
            Some(woven) => self.exchange_ready(woven, index, (side, selected), mark),
            None => Ok(()),
        })?;
        if overlapped.is_none() && !direct {
            self.unpack(stream, 0..self.low.packing.tensors.len(), selected)?;
        }
        drop(backward);
        mark(stream, &events.end)?;
        match (updates, direct) {
            (true, true) => self.put_direct_update(mark),
            (true, false) => self.put_update(woven, mark),
            (false, _) => Ok(()),
        }
    }

    /// Readies the input, the weights and the numbers of a run.
    fn begin(&mut self, control: Control) -> Result<(), EngineError> {
        self.device.enter()?;
        let stream = &self.main.stream;
        stream.mark(&self.events.called)?;
        if let Some(parameters) = self.mirror.as_ref().and_then(Mirror::parameters) {
            let (from, bytes) = (parameters.address as *const c_void, 4 * parameters.len);
            stream.copy_in(self.memory.params.address, from, bytes)?;
            self.packed = false;
        }
        if self.pending.copied {
            stream.wait_for(&self.events.copied)?;
        }
        let (pixels, channels) = (self.input.pixels(), self.input.c);
        let args = [
            Word::from(self.memory.staged_images.address),
            Word::from(self.low.input),
            Word::from(self.spec.batch as u64),
            Word::from(pixels as i32),
            Word::from(channels as i32),
            Word::from(self.low.wide as i32),
            Word::from(self.nchw()),
        ];
        if self.contents == Contents::Poisoned {
            self.memory.arena.fill(stream, 0xFF)?;
        }
        let count = self.spec.batch * pixels * self.low.wide;
        launch(&self.kernels, stream, "prepare", wide_shape(count), &args)?;
        stream.copy_on(self.memory.labels.address, self.memory.staged_labels.address, 4 * self.spec.batch)?;
        stream.mark(&self.events.consumed)?;
        // The last run's copy of it has ended: its results were waited for, or are now.
        if self.pending.ran {
            self.events.end.wait()?;
        }
        self.pinned_control.values::<Control>(1)[0] = control;
        stream.copy_in(self.memory.control.address, self.pinned_control.address(), size_of::<Control>())?;
        stream.mark(&self.events.prepared)?;
        if !self.packed {
            self.pack()?;
        }
        self.packed = true;
        Ok(())
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let out = self.pinned_out.address();
        self.main.stream.copy_out(out, self.memory.judgement.address, size_of::<Judgement>())?;
        self.runs += 1;
        self.pending.ran = true;
        self.main.stream.mark(&self.events.over[self.runs % 2])
    }

    /// Waits for all that is under way.
    fn settle(&mut self) -> Result<(), EngineError> {
        self.device.enter()?;
        let mut woven = self.woven.take();
        let settled = self.await_stream(woven.as_mut());
        self.woven = woven;
        settled
    }

    fn place(&self, address: u64, len: usize) -> Region {
        Region { place: Place::Device(self.device.number), address, len }
    }
}
