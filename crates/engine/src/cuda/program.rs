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
use paceline_record::{Bytes, Nanos, Phase};

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
use crate::profile::{UnitTime, layers};
use crate::request::{BatchShape, check_below, check_len, check_range};
use crate::{
    BucketTime, Drawing, Driving, EngineError, Homes, HostUpdate, Layout, Measured, MemoryPlan, Numerics,
    Optimizer, Pass, Place, Precision, Profiling, Program, Region, Samples, Slot, Spec, StepResult, Values,
    Weave,
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
    /// The largest fraction of old running statistics that is kept.
    keep: f64,
    /// Learning rate and, for Adam, the root of its bias correction, of the update that follows.
    rate: f32,
    root: f32,
}

/// How a point of a stream is marked: once, or at each replay of what is recorded.
type Mark = fn(&Stream, &Event) -> Result<(), EngineError>;

/// The result of the loss, as its kernel writes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Score {
    loss: f32,
    correct: u32,
}

/// A run that can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Run {
    /// Forward and backward, and the update where it is part of the run.
    Training {
        target: Target,
        updates: bool,
    },
    Evaluation,
}

/// The shard whose gradients and statistics a run computes, and whether it adds to the gradients that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Target {
    shard: usize,
    adds: bool,
}

impl Run {
    /// Evaluation uses the statistics of the first shard.
    fn target(self) -> Target {
        match self {
            Self::Training { target, .. } => target,
            Self::Evaluation => Target { shard: 0, adds: false },
        }
    }
}

/// An instruction that has been put on a stream.
struct Put<'a> {
    /// Its number in its list.
    number: usize,
    /// The end of the last instruction on the side so far.
    side: Option<&'a Event>,
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
    score: Memory,
    _workspaces: Vec<Memory>,
}

/// Moments of a step.
struct Events {
    copied: Event,
    consumed: Event,
    /// The points of a run: called, input and weights ready, forward, backward, and what follows it.
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
    /// The ends of this run and of the previous one, alternating.
    over: [Event; 2],
    /// Updates outside of a run: begun, gradients copied in, done.
    applied: Vec<[Event; 3]>,
    /// Fork and join of each instruction on the side.
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

/// Values of a program, and a copy of them.
struct Guarded {
    address: u64,
    bytes: usize,
    copy: Memory,
}

/// A program of the CUDA engine. Fields are in the order in which they must be dropped: recordings and methods before the
/// streams and memory that they use.
pub(super) struct CudaProgram {
    recordings: HashMap<Run, Recording>,
    /// Backward as it runs where gradients go through the host.
    parts: Vec<Part>,
    woven: Option<Woven>,
    /// Whether the update, and the exchange if there is one, are part of runs.
    weaves: bool,
    /// What the last run changed, as it was before; empty where that is not remembered.
    guarded: Vec<Guarded>,
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
    /// Since the last [`Program::finish`]: updates on the host, and `ready` calls while the device had nothing to do.
    host_update: Duration,
    in_ready: Duration,
    result: StepResult,
    spec: Spec,
    batch: BatchShape,
    output: Map,
    contents: Contents,
    numerics: Numerics,
    peak: Peak,
    /// Dropped last: the thread's turn may end with it.
    device: Arc<Device>,
}

/// The most device memory that a program has held, the libraries' included. The driver only tells how much of the whole GPU
/// is free, so memory that others release meanwhile is missing from it: what this process allocated itself is the minimum.
struct Peak {
    free_before: u64,
    held_before: u64,
    bytes: u64,
}

impl Peak {
    /// Begins before a program allocates its memory.
    fn new(device: &Device) -> Result<Self, EngineError> {
        Ok(Self { free_before: device.memory()?.0, held_before: Memory::held(), bytes: 0 })
    }

    /// Takes what is held now into account.
    fn look(&mut self, device: &Device) -> Result<(), EngineError> {
        let held = Memory::held().saturating_sub(self.held_before);
        let used = self.free_before.saturating_sub(device.memory()?.0);
        self.bytes = self.bytes.max(held).max(used);
        Ok(())
    }
}

/// The lowered graph, without what was only needed to make the program.
struct Compiled {
    forward: Vec<Step>,
    evaluation: Vec<Step>,
    backward: Vec<Step>,
    units: Vec<Unit>,
    offsets: Vec<usize>,
    input: u64,
    output: u64,
    wide: usize,
    places: Places,
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

    /// An argument's value in a run.
    fn word(&self, arg: &Arg, Target { shard, adds }: Target) -> Word {
        let param = |memory: &Memory, id: &ParamId, ranges: &[Option<Range<usize>>]| {
            let range = ranges[id.0].as_ref().expect("invariant: the parameter has a place");
            Word::from(memory.address + 4 * range.start as u64)
        };
        match arg {
            Arg::At(buffer, skip) => {
                Word::from(self.memory.arena.address + (self.low.offsets[buffer.0] + skip) as u64)
            }
            Arg::Null => Word::from(0u64),
            Arg::Param(id) => param(&self.memory.params, id, &self.low.places.ranges),
            Arg::Grad(id) => param(&self.memory.grads[shard], id, &self.low.places.ranges),
            Arg::Moving(id) => param(&self.memory.moving[shard], id, &self.low.places.statistics),
            Arg::Packed(id) => {
                let start = self.low.packing.starts[id.0].expect("invariant: kernels of products are packed");
                Word::from(self.memory.packed.address + (start * self.precise()) as u64)
            }
            Arg::Labels => Word::from(self.memory.labels.address),
            Arg::Control => Word::from(self.memory.control.address),
            Arg::Score => Word::from(self.memory.score.address),
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
    fn act(&self, step: &Step, lane: &Lane, target: Target) -> Result<(), EngineError> {
        let _layer = nvtx::range(&self.low.units[step.unit].name);
        match &step.action {
            Action::Kernel { name, shape, args } => {
                let words: Vec<Word> = args.iter().map(|arg| self.word(arg, target)).collect();
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

    /// Puts instructions on their streams, and joins the side at the end. `after` is called for each instruction.
    fn put(
        &self,
        steps: &[Step],
        target: Target,
        mut after: impl FnMut(Put) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut sides = self.events.sides.iter();
        let mut open: Vec<(usize, &Event)> = Vec::new();
        let mut last = None;
        for (number, step) in steps.iter().enumerate() {
            let late = open.partition_point(|(time, _)| time + LAG < step.time);
            if late > 0 {
                self.main.stream.wait_for(open[late - 1].1)?;
                open.drain(..late);
            }
            match step.track {
                Track::Main => self.act(step, &self.main, target)?,
                Track::Side => {
                    let (fork, join) = sides.next().expect("invariant: events for every instruction");
                    self.main.stream.mark(fork)?;
                    self.side.stream.wait_for(fork)?;
                    self.act(step, &self.side, target)?;
                    self.side.stream.mark(join)?;
                    open.push((step.time, join));
                    last = Some(join);
                }
            }
            after(Put { number, side: last })?;
        }
        match open.last() {
            Some((_, last)) => self.main.stream.wait_for(last),
            None => Ok(()),
        }
    }

    /// Gradients in canonical order, of some of the packed tensors.
    fn unpack(&self, stream: &Stream, tensors: Range<usize>, target: Target) -> Result<(), EngineError> {
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
            Word::from(self.memory.grads[target.shard].address),
            Word::from(self.nchw()),
            Word::from(i32::from(target.adds)),
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

    /// Puts a whole run on the stream. The first time it runs as it is, since that loads machine code, and is then recorded;
    /// later runs replay the recording.
    fn run(&mut self, run: Run) -> Result<(), EngineError> {
        let _step = nvtx::range(if run == Run::Evaluation { "evaluation" } else { "step" });
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
        let target = run.target();
        mark(stream, &events.begin)?;
        let Run::Training { updates, .. } = run else {
            self.put(&self.low.evaluation, target, |_| Ok(()))?;
            mark(stream, &events.forward_end)?;
            return mark(stream, &events.end);
        };
        self.put(&self.low.forward, target, |_| Ok(()))?;
        mark(stream, &events.forward_end)?;
        let backward = nvtx::range("backward");
        // Where only the update needs them, gradients are used in the libraries' order.
        let sgd = matches!(self.spec.optimizer, Optimizer::Sgd { .. });
        let direct = updates && woven.is_none() && !target.adds && sgd && self.spec.shards == 1;
        let mut overlapped = woven.as_deref_mut().filter(|woven| updates && woven.overlap);
        self.put(&self.low.backward, target, |put| match overlapped.as_deref_mut() {
            Some(woven) => self.exchange_ready(woven, put, target, mark),
            None => Ok(()),
        })?;
        if overlapped.is_none() && !direct {
            self.unpack(stream, 0..self.low.packing.tensors.len(), target)?;
        }
        drop(backward);
        mark(stream, &events.end)?;
        match (updates, direct) {
            (true, true) => self.put_direct_update(mark),
            (true, false) => self.put_update(woven, mark),
            (false, _) => Ok(()),
        }
    }

    /// Prepares the input, the weights and the numbers of a run.
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
        let (pixels, channels) = (self.batch.input.pixels(), self.batch.input.c);
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
        // The previous run has copied it: its results were waited for, or are now.
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
        self.main.stream.copy_out(out, self.memory.score.address, size_of::<Score>())?;
        self.runs += 1;
        self.pending.ran = true;
        self.main.stream.mark(&self.events.over[self.runs % 2])
    }

    /// Waits for everything that runs.
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
