//! A compiled graph on the device: memory, weights, recordings of whole steps, and the times of their parts.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use paceline_model::{Graph, ParamId, Shape as Map};

use super::action::{Action, Arg, LAG, Step, Track};
use super::driver::{self, Device, Event, Memory, Pinned, Recording, Shape, Stream};
use super::kernels::Kernels;
use super::lower::{Lowered, Packing, Picture, Unit};
use super::mirror::Mirror;
use super::product::{Choices, Direction, Lane, Libraries, Method, Workshop};
use super::{Contents, CudaOptions, backend, gemm};
use crate::cpu::draw;
use crate::{
    Drawing, EngineError, Homes, LayerTime, Layout, MemoryPlan, Moment, Optimizer, Pass, Place, Precision, Profiling,
    Program, Ready, Region, Samples, Slot, Spec, StepResult,
};

/// What changes from step to step, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    stream: u64,
    live: i32,
    passes: i32,
}

/// What the loss says, as its kernel writes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Judgement {
    loss: f32,
    correct: u32,
}

/// A run that can be recorded: which share, and whether it adds to its gradients; evaluation has neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Run {
    Training { share: usize, adds: bool },
    Judging,
}

#[derive(Clone, Copy, Default)]
struct UnitTime {
    calls: u64,
    forward_ns: u64,
    backward_ns: u64,
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
    copy_begin: Event,
    copied: Event,
    consumed: Event,
    begin: Event,
    forward_end: Event,
    end: Event,
    update_begin: Event,
    update_end: Event,
    /// Forks and joins of the side, one pair an instruction.
    sides: Vec<(Event, Event)>,
}

/// What [`Program::finish`] has to ask the events for.
#[derive(Default)]
struct Pending {
    copied: bool,
    ran: bool,
    trained: bool,
    updating: bool,
}

/// A program of the CUDA engine. Recordings and methods go before the streams and memory that they use.
pub(super) struct CudaProgram {
    recordings: HashMap<Run, Recording>,
    methods: HashMap<(usize, Direction), Method>,
    libraries: Libraries,
    main: Lane,
    side: Lane,
    copying: Stream,
    kernels: Arc<Kernels>,
    memory: Memories,
    events: Events,
    pinned_images: [Pinned; 2],
    pinned_labels: [Pinned; 2],
    pinned_out: Pinned,
    pinned_control: Pinned,
    mirror: Option<Mirror>,
    fed: usize,
    low: Compiled,
    times: Vec<UnitTime>,
    pending: Pending,
    packed: bool,
    /// Whether a run has been profiled before.
    loaded: bool,
    updates: i32,
    result: StepResult,
    spec: Spec,
    classes: Option<usize>,
    input: Map,
    output: Map,
    trainable: Vec<bool>,
    lens: Vec<usize>,
    contents: Contents,
    least_free: u64,
    free_before: u64,
    device: Arc<Device>,
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
    picture: Picture,
    slots: Vec<Slot>,
    ranges: Vec<Option<Range<usize>>>,
    trained: usize,
    moving: Vec<Option<Range<usize>>>,
    moving_len: usize,
    packing: Packing,
    plan: MemoryPlan,
}

impl CudaProgram {
    pub fn new(
        (device, kernels): (Arc<Device>, Arc<Kernels>),
        (graph, spec): (&Graph, &Spec),
        homes: &Homes,
        lowered: Lowered,
        (options, choices): (CudaOptions, &mut Choices),
    ) -> Result<Self, EngineError> {
        device.enter()?;
        let free_before = device.memory()?.0;
        let values = |len: usize| Memory::new(4 * len);
        let several = |count: usize, len: usize| (0..count).map(|_| values(len)).collect::<Result<Vec<_>, _>>();
        let bytes = super::lower::value_bytes(spec.precision);
        let images = spec.batch * graph.input().len();
        let workspaces = [Memory::new(lowered.workspace)?, Memory::new(lowered.workspace)?];
        let lane = |workspace: &Memory| -> Result<Lane, EngineError> {
            Ok(Lane { workspace: (workspace.address, workspace.bytes), stream: Stream::new()? })
        };
        let (main, side) = (lane(&workspaces[0])?, lane(&workspaces[1])?);
        let libraries = Libraries { cudnn: backend::Handle::new()?, cublas: gemm::Handle::new()? };
        let mut methods = HashMap::new();
        {
            let fill = |address: u64, bytes_in_all: usize| {
                let args = [Word::from(address), Word::from((bytes_in_all / bytes) as u64)];
                launch(&kernels, &main.stream, "noise", wide_shape(bytes_in_all / bytes), &args)
            };
            let mut workshop = Workshop {
                libraries: &libraries,
                lane: &main,
                choices,
                tuning: options.tuning,
                scratch: None,
                fill: &fill,
            };
            let steps = lowered.forward.iter().chain(&lowered.backward);
            for step in steps {
                if let Action::Product { product, direction, .. } = step.action
                    && !methods.contains_key(&(product, direction))
                {
                    let method = workshop.method(&lowered.products[product], direction)?;
                    methods.insert((product, direction), method);
                }
            }
            workshop.choices.save();
        }
        let memory = Memories {
            params: values(lowered.trained)?,
            grads: several(spec.shares, lowered.trained)?,
            moving: several(spec.shares, lowered.moving_len)?,
            state: several(spec.optimizer.state_per_value(), lowered.trained)?,
            packed: Memory::new(lowered.packing.len * bytes)?,
            raw: Memory::new(lowered.packing.len * bytes)?,
            tensors: Memory::upload(&lowered.packing.tensors)?,
            arena: Memory::new(lowered.arena)?,
            counters: values(lowered.counters)?,
            labels: values(spec.batch)?,
            staged_images: values(images)?,
            staged_labels: values(spec.batch)?,
            control: Memory::new(size_of::<Control>())?,
            judgement: Memory::new(size_of::<Judgement>())?,
            _workspaces: workspaces.into(),
        };
        let sides = lowered.backward.iter().filter(|step| step.track == Track::Side).count();
        let event = Event::new;
        let events = Events {
            copy_begin: event()?,
            copied: event()?,
            consumed: event()?,
            begin: event()?,
            forward_end: event()?,
            end: event()?,
            update_begin: event()?,
            update_end: event()?,
            sides: (0..sides).map(|_| Ok((event()?, event()?))).collect::<Result<_, EngineError>>()?,
        };
        let mut ranges = vec![None; graph.params.len()];
        for slot in &lowered.slots {
            ranges[slot.param.0] = Some(slot.range.clone());
        }
        let at = |buffer: super::action::Buffer| memory.arena.address + lowered.offsets[buffer.0] as u64;
        let low = Compiled {
            input: at(lowered.input),
            output: at(lowered.output),
            forward: lowered.forward,
            judging: lowered.judging,
            backward: lowered.backward,
            offsets: lowered.offsets,
            picture: lowered.picture,
            slots: lowered.slots,
            ranges,
            trained: lowered.trained,
            moving: lowered.moving,
            moving_len: lowered.moving_len,
            packing: lowered.packing,
            plan: lowered.plan,
            units: lowered.units,
        };
        let mut program = Self {
            recordings: HashMap::new(),
            methods,
            libraries,
            main,
            side,
            copying: Stream::new()?,
            kernels,
            memory,
            events,
            pinned_images: [Pinned::new(4 * images)?, Pinned::new(4 * images)?],
            pinned_labels: [Pinned::new(4 * spec.batch)?, Pinned::new(4 * spec.batch)?],
            pinned_out: Pinned::new(size_of::<Judgement>())?,
            pinned_control: Pinned::new(size_of::<Control>())?,
            mirror: Mirror::new(homes, low.trained, spec.shares)?,
            fed: 0,
            times: vec![UnitTime::default(); low.units.len()],
            low,
            pending: Pending::default(),
            packed: false,
            loaded: false,
            updates: 0,
            result: StepResult::default(),
            spec: *spec,
            classes: graph.judges_labels().then_some(graph.classes),
            input: graph.input(),
            output: graph.node(graph.output()).shape,
            trainable: graph.params.iter().map(|param| param.kind.trainable()).collect(),
            lens: graph.params.iter().map(|param| param.len()).collect(),
            contents: options.contents,
            least_free: free_before,
            free_before,
            device,
        };
        let leave = homes.parameters.is_some_and(|(_, drawing)| drawing == Drawing::Leave);
        program.draw(graph, leave)?;
        Ok(program)
    }

    /// Draws the initial weights on the host, as the CPU engine does, and copies them in.
    fn draw(&mut self, graph: &Graph, leave_trained: bool) -> Result<(), EngineError> {
        const PIECE: usize = 1 << 16;
        let mut params = vec![0.0f32; self.low.trained];
        let mut moving = vec![0.0f32; self.low.moving_len];
        let mut pieces = Vec::new();
        let mut rest: &mut [f32] = &mut params;
        let mut reached = 0;
        for slot in &self.low.slots {
            let (_, from) = rest.split_at_mut(slot.range.start - reached);
            let (values, after) = from.split_at_mut(slot.range.len());
            let number = slot.param.0;
            for (piece, values) in values.chunks_mut(PIECE).enumerate() {
                pieces.push((number, piece * PIECE, values));
            }
            (rest, reached) = (after, slot.range.end);
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let seed = self.spec.seed;
        let mut dealt: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        for (index, piece) in pieces.into_iter().enumerate() {
            dealt[index % threads].push(piece);
        }
        std::thread::scope(|scope| {
            for pieces in dealt {
                scope.spawn(move || {
                    for (number, first, values) in pieces {
                        draw(&graph.params[number], (seed, number), first, values);
                    }
                });
            }
        });
        for (index, range) in self.low.moving.iter().enumerate() {
            if let Some(range) = range {
                draw(&graph.params[index], (seed, index), 0, &mut moving[range.clone()]);
            }
        }
        for share in &self.memory.moving {
            driver::write(share.address, &moving)?;
        }
        match (&mut self.mirror, leave_trained) {
            (Some(mirror), false) => mirror.parameters_mut().copy_from_slice(&params),
            (Some(_), true) => {}
            (None, _) => driver::write(self.memory.params.address, &params)?,
        }
        Ok(())
    }

    fn nchw(&self) -> i32 {
        i32::from(self.spec.layout == Layout::Nchw)
    }

    fn precise(&self) -> usize {
        if self.spec.precision == Precision::Bf16 { 2 } else { 4 }
    }

    /// An argument's value, where a run works on a share.
    fn word(&self, arg: &Arg, share: usize, adds: bool) -> Word {
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
            Arg::Grad(id) => param(&self.memory.grads[share], id, &self.low.ranges),
            Arg::Moving(id) => param(&self.memory.moving[share], id, &self.low.moving),
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
    fn act(&self, action: &Action, lane: &Lane, (share, adds): (usize, bool)) -> Result<(), EngineError> {
        match action {
            Action::Kernel { name, shape, args } => {
                let words: Vec<Word> = args.iter().map(|arg| self.word(arg, share, adds)).collect();
                launch(&self.kernels, &lane.stream, name, *shape, &words)
            }
            Action::Product { product, direction, x, kernel, y } => {
                let at = |buffer: &super::action::Buffer| {
                    self.memory.arena.address + self.low.offsets[buffer.0] as u64
                };
                let start = self.low.packing.starts[kernel.0].expect("invariant: kernels of products are packed");
                let copies = if *direction == Direction::Filter { &self.memory.raw } else { &self.memory.packed };
                let weights = copies.address + (start * self.precise()) as u64;
                let method = &self.methods[&(*product, *direction)];
                method.run(&self.libraries, lane, [at(x), weights, at(y)])
            }
        }
    }

    /// Puts instructions on the lanes; the side is joined again at the end.
    fn put(&self, steps: &[Step], selected: (usize, bool)) -> Result<(), EngineError> {
        let mut sides = self.events.sides.iter();
        let mut open: Vec<(usize, &Event)> = Vec::new();
        for step in steps {
            let late = open.partition_point(|(time, _)| time + LAG < step.time);
            if late > 0 {
                self.main.stream.wait_for(open[late - 1].1)?;
                open.drain(..late);
            }
            match step.track {
                Track::Main => self.act(&step.action, &self.main, selected)?,
                Track::Side => {
                    let (fork, join) = sides.next().expect("invariant: events for every instruction");
                    self.main.stream.mark(fork)?;
                    self.side.stream.wait_for(fork)?;
                    self.act(&step.action, &self.side, selected)?;
                    self.side.stream.mark(join)?;
                    open.push((step.time, join));
                }
            }
        }
        match open.last() {
            Some((_, last)) => self.main.stream.wait_for(last),
            None => Ok(()),
        }
    }

    /// Gradients in canonical order.
    fn unpack(&self, (share, adds): (usize, bool)) -> Result<(), EngineError> {
        let count = self.low.packing.tensors.len();
        if count == 0 {
            return Ok(());
        }
        let args = [
            Word::from(self.memory.tensors.address),
            Word::from(count as i32),
            Word::from(self.memory.raw.address),
            Word::from(self.memory.grads[share].address),
            Word::from(self.nchw()),
            Word::from(i32::from(adds)),
        ];
        self.tiles("unpack_gradients", &args)
    }

    /// The libraries' copies of the weights, where they are behind.
    fn pack(&mut self) -> Result<(), EngineError> {
        let count = self.low.packing.tensors.len();
        if !self.packed && count > 0 {
            let args = [
                Word::from(self.memory.tensors.address),
                Word::from(count as i32),
                Word::from(self.memory.params.address),
                Word::from(self.memory.packed.address),
                Word::from(self.nchw()),
            ];
            self.tiles("pack_weights", &args)?;
        }
        self.packed = true;
        Ok(())
    }

    fn tiles(&self, name: &str, args: &[Word]) -> Result<(), EngineError> {
        let shape = Shape { grid: (self.low.packing.tiles as u32, 1, 1), block: (32, 8), shared: 0, cluster: 1 };
        launch(&self.kernels, &self.main.stream, name, shape, args)
    }

    /// Puts a whole run on the stream: from a recording, made at its second turn, since the first loads machine code.
    fn run(&mut self, run: Run) -> Result<(), EngineError> {
        if self.spec.profiling == Profiling::Layers {
            return self.run_profiled(run);
        }
        if let Some(recording) = self.recordings.get(&run) {
            return self.main.stream.replay(recording);
        }
        self.put_run(run, Stream::mark)?;
        self.main.stream.wait()?;
        let recording = self.main.stream.record(|| self.put_run(run, Stream::mark_recorded))?;
        self.recordings.insert(run, recording);
        self.least_free = self.least_free.min(self.device.memory()?.0);
        Ok(())
    }

    fn put_run(
        &self,
        run: Run,
        mark: impl Fn(&Stream, &Event) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let stream = &self.main.stream;
        mark(stream, &self.events.begin)?;
        match run {
            Run::Training { share, adds } => {
                self.put(&self.low.forward, (share, adds))?;
                mark(stream, &self.events.forward_end)?;
                self.put(&self.low.backward, (share, adds))?;
                self.unpack((share, adds))?;
            }
            Run::Judging => {
                self.put(&self.low.judging, (0, false))?;
                mark(stream, &self.events.forward_end)?;
            }
        }
        mark(stream, &self.events.end)
    }

    /// One instruction after the other, each between two events.
    fn run_profiled(&mut self, run: Run) -> Result<(), EngineError> {
        let stream = &self.main.stream;
        let (selected, lists): (_, [&[Step]; 2]) = match run {
            Run::Training { share, adds } => ((share, adds), [&self.low.forward, &self.low.backward]),
            Run::Judging => ((0, false), [&self.low.judging, &[]]),
        };
        stream.mark(&self.events.begin)?;
        let mut marks = vec![Event::new()?];
        stream.mark(&marks[0])?;
        for (index, steps) in lists.into_iter().enumerate() {
            for step in steps {
                self.act(&step.action, &self.main, selected)?;
                let mark = Event::new()?;
                stream.mark(&mark)?;
                marks.push(mark);
            }
            if index == 0 {
                stream.mark(&self.events.forward_end)?;
            }
        }
        if matches!(run, Run::Training { .. }) {
            self.unpack(selected)?;
        }
        stream.mark(&self.events.end)?;
        stream.wait()?;
        // The first run loads machine code.
        if !std::mem::replace(&mut self.loaded, true) {
            self.least_free = self.least_free.min(self.device.memory()?.0);
            return Ok(());
        }
        let mut pairs = marks.windows(2);
        for (index, steps) in lists.into_iter().enumerate() {
            for step in steps {
                let pair = pairs.next().expect("invariant: an event after each instruction");
                let time = pair[1].since(&pair[0])?;
                let unit = &mut self.times[step.unit];
                *(if index == 0 { &mut unit.forward_ns } else { &mut unit.backward_ns }) += time;
            }
        }
        self.times.iter_mut().for_each(|time| time.calls += 1);
        Ok(())
    }

    /// Readies the input, the weights and the numbers of a run.
    fn begin(&mut self, control: Control) -> Result<(), EngineError> {
        self.device.enter()?;
        let stream = &self.main.stream;
        if let Some(mirror) = &mut self.mirror {
            driver::write(self.memory.params.address, mirror.parameters_mut())?;
            self.packed = false;
        }
        if self.pending.copied {
            stream.wait_for(&self.events.copied)?;
        }
        let Picture { map, fold } = self.low.picture;
        let (top, left) = fold.unwrap_or_default();
        let numbers = [
            self.spec.batch,
            self.input.h,
            self.input.w,
            self.input.c,
            map.h,
            map.w,
            map.c,
            self.nchw() as usize,
            usize::from(fold.is_some()),
            top,
            left,
        ];
        let mut args = vec![Word::from(self.memory.staged_images.address), Word::from(self.low.input)];
        args.extend(numbers.map(|number| Word::from(number as i32)));
        if self.contents == Contents::Poisoned {
            self.memory.arena.fill(stream, 0xFF)?;
        }
        let count = self.spec.batch * map.len();
        launch(&self.kernels, stream, "prepare", wide_shape(count), &args)?;
        stream.copy_on(self.memory.labels.address, self.memory.staged_labels.address, 4 * self.spec.batch)?;
        stream.mark(&self.events.consumed)?;
        // The last run's copy of it has ended: its results were waited for, or are now.
        if self.pending.ran {
            self.events.end.wait()?;
        }
        self.pinned_control.values::<Control>(1)[0] = control;
        stream.copy_in(self.memory.control.address, self.pinned_control.address(), size_of::<Control>())?;
        self.pack()
    }

    fn end(&mut self) -> Result<(), EngineError> {
        let out = self.pinned_out.address();
        self.main.stream.copy_out(out, self.memory.judgement.address, size_of::<Judgement>())?;
        self.pending.ran = true;
        Ok(())
    }

    /// Waits for all that is under way.
    fn settle(&mut self) -> Result<(), EngineError> {
        self.device.enter()?;
        self.main.stream.wait()
    }

    fn place(&self, address: u64, len: usize) -> Region {
        Region { place: Place::Device(self.device.number), address, len }
    }

    /// Where a parameter lies, running statistics in the first share.
    fn home(&self, param: ParamId) -> u64 {
        let (memory, range) = match (&self.low.ranges[param.0], &self.low.moving[param.0]) {
            (Some(range), _) => (&self.memory.params, range),
            (None, Some(range)) => (&self.memory.moving[0], range),
            (None, None) => unreachable!("invariant: a parameter has a place"),
        };
        memory.address + 4 * range.start as u64
    }
}

/// An argument of a kernel in memory.
#[derive(Clone, Copy)]
pub(super) struct Word([u64; 8]);

impl Word {
    /// A value as it lies in memory.
    fn of<T: Copy>(value: &T) -> Self {
        assert!(size_of::<T>() <= size_of::<Self>(), "invariant: an argument is small");
        let mut word = Self([0; 8]);
        // SAFETY: it fits, and both are plain.
        unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), word.0.as_mut_ptr().cast(), size_of::<T>()) };
        word
    }
}

impl From<u64> for Word {
    fn from(value: u64) -> Self {
        Self::of(&value)
    }
}

impl From<i32> for Word {
    fn from(value: i32) -> Self {
        Self::of(&value)
    }
}

impl From<f32> for Word {
    fn from(value: f32) -> Self {
        Self::of(&value)
    }
}

fn wide_shape(values: usize) -> Shape {
    Shape { grid: (values.div_ceil(256).clamp(1, 132 * 32) as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 }
}

fn launch(kernels: &Kernels, stream: &Stream, name: &str, shape: Shape, args: &[Word]) -> Result<(), EngineError> {
    let mut words = args.to_vec();
    let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| word.0.as_mut_ptr().cast()).collect();
    // SAFETY: the lowering gives each kernel its arguments in order; addresses are those of the program's memory.
    unsafe { kernels.function(name)?.launch(stream, shape, &mut pointers) }
}

fn check(what: &'static str, expected: usize, got: usize) -> Result<(), EngineError> {
    if expected == got { Ok(()) } else { Err(EngineError::WrongLength { what, expected, got }) }
}

fn check_below(what: &'static str, limit: usize, got: usize) -> Result<(), EngineError> {
    if got < limit {
        return Ok(());
    }
    Err(EngineError::Unsupported(format!("{what} {got} is beyond {limit}")))
}

impl Program for CudaProgram {
    fn plan(&self) -> &MemoryPlan {
        &self.low.plan
    }

    fn slots(&self) -> &[Slot] {
        &self.low.slots
    }

    fn parameters(&mut self) -> Region {
        match &mut self.mirror {
            Some(mirror) => mirror.parameters(),
            None => self.place(self.memory.params.address, self.low.trained),
        }
    }

    fn gradients(&mut self) -> Region {
        match &self.mirror {
            Some(mirror) => mirror.gradients(0),
            None => self.place(self.memory.grads[0].address, self.low.trained),
        }
    }

    fn statistics(&mut self, share: usize) -> Region {
        self.place(self.memory.moving[share].address, self.low.moving_len)
    }

    fn state(&mut self) -> Vec<Region> {
        self.memory.state.iter().map(|memory| self.place(memory.address, self.low.trained)).collect()
    }

    fn resume_at(&mut self, updates: u64) {
        self.updates = updates as i32;
    }

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        check("images", self.spec.batch * self.input.len(), samples.images.len())?;
        check("labels", self.spec.batch, samples.labels.len())?;
        if let Some(classes) = self.classes {
            for (sample, &label) in samples.labels.iter().enumerate() {
                if label as usize >= classes {
                    return Err(EngineError::BadLabel { sample, label, classes });
                }
            }
        }
        self.device.enter()?;
        // A pinned buffer was last copied from two batches ago; a copy waits for the one before it, so this is the last.
        if self.pending.copied {
            self.events.copied.wait()?;
        }
        let slot = self.fed % 2;
        self.fed += 1;
        self.pinned_images[slot].values(samples.images.len()).copy_from_slice(samples.images);
        self.pinned_labels[slot].values(samples.labels.len()).copy_from_slice(samples.labels);
        let stream = &self.copying;
        if self.fed > 1 {
            stream.wait_for(&self.events.consumed)?;
        }
        stream.mark(&self.events.copy_begin)?;
        let images = self.pinned_images[slot].address();
        stream.copy_in(self.memory.staged_images.address, images, size_of_val(samples.images))?;
        let labels = self.pinned_labels[slot].address();
        stream.copy_in(self.memory.staged_labels.address, labels, size_of_val(samples.labels))?;
        stream.mark(&self.events.copied)?;
        self.pending.copied = true;
        Ok(())
    }

    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(Ready)) -> Result<(), EngineError> {
        check_below("share", self.memory.grads.len(), pass.share)?;
        self.begin(Control { stream: pass.stream, live: self.spec.batch as i32, passes: pass.count as i32 })?;
        self.run(Run::Training { share: pass.share, adds: pass.index > 0 })?;
        self.end()?;
        self.pending.trained = true;
        if !pass.is_last() {
            return Ok(());
        }
        let mut when = Moment::Event(self.events.end.0 as u64);
        if let Some(mirror) = &mut self.mirror {
            self.main.stream.wait()?;
            driver::read(mirror.gradients_mut(pass.share), self.memory.grads[pass.share].address)?;
            when = Moment::Now;
        }
        for slot in &self.low.slots {
            ready(Ready { param: slot.param, range: slot.range.clone(), when });
        }
        Ok(())
    }

    fn evaluate(&mut self, live: usize) -> Result<(), EngineError> {
        check_below("count of samples to judge", self.spec.batch + 1, live)?;
        self.begin(Control { stream: 0, live: live as i32, passes: 1 })?;
        self.run(Run::Judging)?;
        self.end()?;
        self.pending.trained = false;
        Ok(())
    }

    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError> {
        if range.start > range.end || range.end > self.low.trained {
            return Err(EngineError::WrongLength {
                what: "range of parameters",
                expected: self.low.trained,
                got: range.end,
            });
        }
        self.device.enter()?;
        if !self.pending.updating {
            self.updates += 1;
            self.pending.updating = true;
            self.main.stream.mark(&self.events.update_begin)?;
        }
        let skip = 4 * range.start as u64;
        if let Some(mirror) = &mut self.mirror {
            driver::write(self.memory.grads[0].address + skip, &mirror.gradients_mut(0)[range.clone()])?;
        }
        let at = |memory: &Memory| Word::from(memory.address + skip);
        let count = Word::from(range.len() as u64);
        let mut args = vec![at(&self.memory.params), at(&self.memory.grads[0])];
        let name = match self.spec.optimizer {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                args.extend([self.memory.state.first().map_or(Word::from(0u64), at), count]);
                args.extend([learning_rate, momentum, weight_decay].map(Word::from));
                args.push(Word::from(i32::from(nesterov)));
                "sgd"
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                args.extend(self.memory.state.iter().map(at));
                let root = (1.0 - beta2.powi(self.updates)).sqrt();
                let rate = learning_rate / (1.0 - beta1.powi(self.updates));
                args.push(count);
                args.extend([rate, root, beta1, beta2, epsilon, weight_decay].map(Word::from));
                "adam"
            }
        };
        launch(&self.kernels, &self.main.stream, name, wide_shape(range.len()), &args)?;
        self.packed = false;
        if let Some(mirror) = &mut self.mirror {
            self.main.stream.wait()?;
            driver::read(&mut mirror.parameters_mut()[range], self.memory.params.address + skip)?;
        }
        self.main.stream.mark(&self.events.update_end)
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        self.settle()?;
        if std::mem::take(&mut self.pending.ran) {
            let judgement = self.pinned_out.values::<Judgement>(1)[0];
            self.result.loss = judgement.loss;
            self.result.correct = judgement.correct as usize;
            self.result.forward_ns = self.events.forward_end.since(&self.events.begin)?;
            self.result.backward_ns = match self.pending.trained {
                true => self.events.end.since(&self.events.forward_end)?,
                false => 0,
            };
            if self.pending.copied {
                self.events.copied.wait()?;
                self.result.copy_in_ns = self.events.copied.since(&self.events.copy_begin)?;
            }
        }
        let mut result = self.result;
        if std::mem::take(&mut self.pending.updating) {
            result.update_ns = self.events.update_end.since(&self.events.update_begin)?;
        }
        Ok(result)
    }

    fn read_param(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError> {
        check("parameter", self.lens[param.0], into.len())?;
        self.settle()?;
        if let (Some(mirror), Some(range)) = (&mut self.mirror, &self.low.ranges[param.0]) {
            into.copy_from_slice(&mirror.parameters_mut()[range.clone()]);
            return Ok(());
        }
        driver::read(into, self.home(param))
    }

    fn write_param(&mut self, param: ParamId, from: &[f32]) -> Result<(), EngineError> {
        check("parameter", self.lens[param.0], from.len())?;
        self.settle()?;
        self.packed = false;
        if let (Some(mirror), Some(range)) = (&mut self.mirror, &self.low.ranges[param.0]) {
            mirror.parameters_mut()[range.clone()].copy_from_slice(from);
            return Ok(());
        }
        driver::write(self.home(param), from)
    }

    fn read_gradient(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError> {
        let Some(range) = self.low.ranges[param.0].clone().filter(|_| self.trainable[param.0]) else {
            return Err(EngineError::Unsupported(format!(
                "parameter {} is a running statistic and has no gradient",
                param.0
            )));
        };
        check("gradient", range.len(), into.len())?;
        self.settle()?;
        driver::read(into, self.memory.grads[0].address + 4 * range.start as u64)
    }

    fn read_output(&mut self, into: &mut [f32]) -> Result<(), EngineError> {
        check("output", self.spec.batch * self.output.len(), into.len())?;
        self.settle()?;
        let revealed = Memory::new(size_of_val(into))?;
        let args = [
            Word::from(self.low.output),
            Word::from(revealed.address),
            Word::from(self.spec.batch as u64),
            Word::from(self.output.pixels() as i32),
            Word::from(self.output.c as i32),
            Word::from(self.nchw()),
        ];
        launch(&self.kernels, &self.main.stream, "reveal", wide_shape(into.len()), &args)?;
        self.main.stream.wait()?;
        driver::read(into, revealed.address)
    }

    fn read_region(&mut self, region: Region, into: &mut [f32]) -> Result<(), EngineError> {
        check("region", region.len, into.len())?;
        self.settle()?;
        match region.place {
            Place::Device(_) => driver::read(into, region.address),
            Place::Host => {
                self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.read(region, into))
            }
        }
    }

    fn write_region(&mut self, region: Region, from: &[f32]) -> Result<(), EngineError> {
        check("region", region.len, from.len())?;
        self.settle()?;
        self.packed = false;
        match region.place {
            Place::Device(_) => driver::write(region.address, from),
            Place::Host => self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.write(region, from)),
        }
    }

    fn peak_device(&mut self) -> Option<u64> {
        Some(self.free_before.saturating_sub(self.least_free))
    }

    fn layer_times(&self) -> Vec<LayerTime> {
        if self.spec.profiling == Profiling::Phases {
            return Vec::new();
        }
        self.low
            .units
            .iter()
            .zip(&self.times)
            .map(|(unit, time)| LayerTime {
                name: unit.name.clone(),
                calls: time.calls,
                forward_ns: time.forward_ns,
                backward_ns: time.backward_ns,
                forward_flops: unit.forward_flops,
                backward_flops: unit.backward_flops,
            })
            .collect()
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        // Nothing may be under way when the memory goes.
        let _ = self.device.enter();
        let _ = self.copying.wait();
        let _ = self.main.stream.wait();
    }
}
