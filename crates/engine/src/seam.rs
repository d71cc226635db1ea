//! The seam between the step loop and whatever computes: object-safe traits, concrete payloads.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use paceline_model::{Graph, ParamId};
use paceline_record::{Bytes, LayerTime, Nanos, PhaseTimes};
use serde::{Deserialize, Serialize};

use crate::{BucketTime, EngineError, HostUpdate, MemoryPlan, Numerics, Weave};

/// Order of the dimensions of activations in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channels last: the fast one here.
    #[default]
    Nhwc,
    /// Channels first.
    Nchw,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nhwc => "nhwc",
            Self::Nchw => "nchw",
        })
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nhwc" => Ok(Self::Nhwc),
            "nchw" => Ok(Self::Nchw),
            _ => Err(format!("unknown layout '{text}'; use nhwc or nchw")),
        }
    }
}

/// Number format of the arithmetic; master weights and statistics are always fp32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats throughout.
    #[default]
    Fp32,
    /// Products on a GPU's tensor cores with 10-bit mantissas.
    Tf32,
    /// Activations and products in bfloat16.
    Bf16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fp32" => Ok(Self::Fp32),
            "tf32" => Ok(Self::Tf32),
            "bf16" => Ok(Self::Bf16),
            _ => Err(format!("unknown precision '{text}'; use fp32, tf32 or bf16")),
        }
    }
}

/// The update rule, less the learning rate, which changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent in PyTorch's form: g += decay * p; v = momentum * v + g; p -= lr * v.
    Sgd {
        /// Fraction of the old velocity that is kept; 0 needs no state.
        momentum: f32,
        /// Whether the step looks ahead: p -= lr * (g + momentum * v).
        nesterov: bool,
        /// L2 penalty added to the gradient.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba 2015) in PyTorch's form.
    Adam {
        /// Decay of the mean of gradients.
        beta1: f32,
        /// Decay of the mean of squares.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
        /// L2 penalty added to the gradient.
        weight_decay: f32,
    },
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 }
    }
}

impl Optimizer {
    /// Values of state kept for each trained value.
    pub fn state_per_value(self) -> usize {
        match self {
            Self::Sgd { momentum, .. } => usize::from(momentum != 0.0),
            Self::Adam { .. } => 2,
        }
    }
}

/// Whether each layer is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profiling {
    /// Only the phases.
    #[default]
    Phases,
    /// Each layer too, forward and backward.
    Layers,
}

/// What a graph is compiled for.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Samples a step.
    pub batch: usize,
    /// Order of dimensions.
    pub layout: Layout,
    /// Number format.
    pub precision: Precision,
    /// Update rule: decides how much state is planned.
    pub optimizer: Optimizer,
    /// Seed of the initial weights and of dropout.
    pub seed: u64,
    /// Part of each label that is spread over all classes in training (Szegedy et al. 2016).
    pub label_smoothing: f32,
    /// Shards of a step that the program runs one after another, each with gradients and running statistics of its own.
    pub shards: usize,
    /// Whether each layer is timed.
    pub profiling: Profiling,
}

impl Spec {
    /// NHWC, fp32, SGD with momentum 0.9, seed 0, one shard.
    pub fn new(batch: usize) -> Self {
        Self {
            batch,
            layout: Layout::Nhwc,
            precision: Precision::Fp32,
            optimizer: Optimizer::default(),
            seed: 0,
            label_smoothing: 0.0,
            shards: 1,
            profiling: Profiling::Phases,
        }
    }
}

/// Memory that somebody else provides for a program's values: a segment that worker processes share, say.
#[derive(Clone, Debug, Default)]
pub struct Homes {
    pub(crate) parameters: Option<(Region, Drawing)>,
    pub(crate) gradients: Vec<Region>,
}

/// Whether a program draws the initial weights of memory that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawing {
    /// It does.
    Draw,
    /// Another program with the same memory does.
    Leave,
}

impl Homes {
    /// Names the memory: of the parameters, and of each shard's gradients. What is `None` or left out the program provides
    /// itself.
    ///
    /// # Safety
    /// The regions must stay valid as long as the programs that are compiled with them or [bound](Program::bind) to them,
    /// aligned to 64 bytes, and nobody may use them while a call of such a program that reads or writes those values is under
    /// way.
    pub unsafe fn new(parameters: Option<(Region, Drawing)>, gradients: Vec<Region>) -> Self {
        Self { parameters, gradients }
    }
}

/// One of the passes of a shard whose gradients are added up before they are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// The shard whose gradients and running statistics it works on; below [`Spec::shards`].
    pub shard: usize,
    /// Its number, from 0. The first replaces what the gradients held, the others add to it.
    pub index: usize,
    /// How many there are. Gradients become those of the mean loss over all passes.
    pub count: usize,
    /// Selects the masks of dropout: passes with the same number draw the same.
    pub stream: u64,
    /// Passes of the shard before this one, where running statistics are to be the mean of all that they have seen until
    /// their momentum takes over. `None`: the momentum from the first pass on, as Keras and PyTorch have it, so that the
    /// values they start from show for long.
    pub seen: Option<u64>,
    /// The learning rate of an update that follows as part of the run; for programs that [weave](Program::weave). What their
    /// gradients hold afterwards is of no use.
    pub update: Option<f32>,
}

impl Pass {
    /// The only one of the only shard.
    pub const ONLY: Self = Self { shard: 0, index: 0, count: 1, stream: 0, seen: None, update: None };

    /// The part of old running statistics that stays, where a layer's momentum is `momentum`.
    pub fn keep(self, momentum: f64) -> f64 {
        self.seen.map_or(momentum, |seen| momentum.min(seen as f64 / (seen + 1) as f64))
    }

    /// Whether it completes its shard's gradients.
    pub fn is_last(self) -> bool {
        self.index + 1 == self.count
    }
}

/// A batch on the host: images as `[sample][row][column][channel]`, whatever the engine's layout, and their labels.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// The images.
    pub images: &'a [f32],
    /// One label a sample, below the number of classes.
    pub labels: &'a [u32],
}

/// Which memory an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host's.
    Host,
    /// The GPU with this number.
    Device(usize),
}

/// A run of 32-bit floats in somebody's memory: what a program works in, and what a collective between devices is handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub(crate) place: Place,
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl Region {
    /// Names `len` values at an address.
    ///
    /// # Safety
    /// The values must exist, and must go on existing for as long as anybody uses the region or a copy of it.
    pub unsafe fn new(place: Place, address: u64, len: usize) -> Self {
        Self { place, address, len }
    }

    /// Whose memory it is.
    pub fn place(self) -> Place {
        self.place
    }

    /// Address of the first value there.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Number of values.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Some of its values.
    pub fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "invariant: a part lies inside");
        Self { address: self.address + 4 * range.start as u64, len: range.len(), ..self }
    }
}

/// Values that a program holds, wherever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// All trained values, laid out as [`Program::slots`] says.
    Parameters,
    /// The gradients of a shard, laid out in the same way. An update uses those of the first shard.
    Gradients(usize),
    /// The running statistics of a shard. Evaluation uses those of the first shard.
    Statistics(usize),
    /// One of the [values that the update rule keeps](Optimizer::state_per_value) of each trained value, laid out in the same way.
    State(usize),
    /// One tensor of the graph in its canonical order; a running statistic is that of the first shard.
    Param(ParamId),
    /// The last gradient of one trained tensor in the first shard, in canonical order.
    Gradient(ParamId),
    /// The network's output for the batch, as `[sample][row][column][channel]`. It can be read only.
    Output,
}

/// Where one trained tensor lies in the parameter, gradient and state regions, in values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The parameter.
    pub param: ParamId,
    /// Its place.
    pub range: Range<usize>,
}

/// What was computed since the last [`Program::finish`], and how long that took on the clock of whoever computed it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepResult {
    /// Mean loss over the batch.
    pub loss: f32,
    /// Samples whose largest output was their label; 0 for an autoencoder.
    pub correct: usize,
    /// Time by phase. Forward and backward exclude what the `ready` calls took; copies count only as far as they were waited for;
    /// `comm_wait` is waiting for an exchange that is part of the run.
    pub phases: PhaseTimes,
    /// Part of each phase in which the calling thread, or one that it waited for, was not on a core although it did not sleep.
    /// `comm_wait` has that of the `ready` calls. None for work of a device.
    pub off_core: PhaseTimes,
    /// Time in the `ready` calls that a device's work did not hide.
    pub in_ready: Nanos,
    /// Time between the run before and this one in which a device had nothing to do.
    pub idle: Nanos,
}

/// How a program's calls relate to its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driving {
    /// A call returns when its work is done.
    Direct,
    /// Calls return before their work is done, so the next batch is best handed over before [`Program::finish`].
    Queued,
    /// As `Queued`, and the exchange and the update are part of each run that names a learning rate ([`Pass::update`]).
    Woven,
}

/// What a program measured over its whole life.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The most bytes of a device that this process held, as its driver reports it; `None` on the host.
    pub peak_device: Option<Bytes>,
    /// Time of each layer since compilation; empty unless [`Profiling::Layers`] was asked for.
    pub layers: Vec<LayerTime>,
}

/// Something that can compile graphs: a CPU, a GPU.
pub trait Engine: Send {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// What it found to run on, in words.
    fn describe(&self) -> String;

    /// The memory that a program would take, without taking it; an error where the machine has less left.
    fn plan(&self, graph: &Graph, spec: &Spec) -> Result<MemoryPlan, EngineError>;

    /// Plans memory, takes it, and draws the initial weights.
    fn compile(&self, graph: &Graph, spec: &Spec) -> Result<Box<dyn Program>, EngineError> {
        self.compile_in(graph, spec, &Homes::default())
    }

    /// The same, with memory for parameters or gradients that the caller provides.
    fn compile_in(&self, graph: &Graph, spec: &Spec, homes: &Homes) -> Result<Box<dyn Program>, EngineError>;

    /// Bytes of memory that programs could still take; `None` where nobody can tell.
    fn available_memory(&self) -> Option<u64>;
}

/// A compiled graph with its weights. Calls may return before the work is done ([`Program::driving`]); [`Program::finish`] waits.
pub trait Program: Send {
    /// The memory it holds.
    fn plan(&self) -> &MemoryPlan;

    /// Where each trained tensor lies, in the order in which backward makes gradients ready.
    fn slots(&self) -> &[Slot];

    /// How it computes, as far as the bits of its results depend on it.
    fn numerics(&self) -> Numerics {
        Numerics::default()
    }

    /// How many values there are of a kind; 0 where there are none.
    fn len(&self, values: Values) -> usize;

    /// Copies values out.
    fn read(&mut self, values: Values, into: &mut [f32]) -> Result<(), EngineError>;

    /// Sets values.
    fn write(&mut self, values: Values, from: &[f32]) -> Result<(), EngineError>;

    /// Copies values out into new memory.
    fn to_vec(&mut self, values: Values) -> Result<Vec<f32>, EngineError> {
        let mut copy = vec![0.0; self.len(values)];
        self.read(values, &mut copy)?;
        Ok(copy)
    }

    /// From now on the parameters, and the gradients of the first shards, are in this memory. Nothing is drawn or copied there.
    /// What `homes` leaves out stays where it is. Refused by a program on a device that was compiled without memory on the
    /// host for the same values.
    fn bind(&mut self, homes: &Homes) -> Result<(), EngineError> {
        let _ = homes;
        Err(EngineError::Unsupported("the memory of this program's values is its own".into()))
    }

    /// The update rule by itself, with the arithmetic of [`Program::apply`] on the host. On the CPU it computes on the
    /// program's threads.
    fn host_update(&self) -> Result<HostUpdate, EngineError> {
        Err(EngineError::Unsupported("this program's update rule cannot run on the host".into()))
    }

    /// Goes on as if so many updates had been applied.
    fn resume_at(&mut self, updates: u64);

    /// Hands over a batch for the next run.
    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError>;

    /// Runs forward and backward in training mode. From time to time, on the CPU at least every few instructions, it calls `ready` with
    /// the number of [slots](Self::slots) whose gradients are final: 0 in forward and in all passes of a shard but the last.
    /// The number never falls within a run. The program does not read those parameters again before the next run, so that
    /// whoever shares their memory may update them.
    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(usize)) -> Result<(), EngineError>;

    /// Runs forward in evaluation mode: running statistics, no dropout, labels as they are. Loss and right answers are those
    /// of the first `live` samples; the others fill up a batch.
    fn evaluate(&mut self, live: usize) -> Result<(), EngineError>;

    /// Applies the update rule to a range of the parameters.
    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError>;

    /// How this program is driven from now on.
    fn driving(&self) -> Driving {
        Driving::Direct
    }

    /// Asks for the exchange and the update to become part of each run that names a learning rate ([`Pass::update`]);
    /// [`Program::driving`] tells whether they have.
    fn weave(&mut self, weave: Option<Weave>) -> Result<(), EngineError> {
        let _ = weave;
        Ok(())
    }

    /// From now on each run that updates first remembers what it changes: parameters, what the update rule keeps, and running
    /// statistics. For programs that weave.
    fn guard(&mut self) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("this program does not remember what its runs change".into()))
    }

    /// Goes back to where the last run began, whose exchange has failed: what that left is of no use.
    fn undo(&mut self) -> Result<(), EngineError> {
        Err(EngineError::Unsupported("this program does not remember what its runs change".into()))
    }

    /// When each bucket of the last run was exchanged, where that was part of it.
    fn bucket_times(&mut self) -> Result<Vec<BucketTime>, EngineError> {
        Ok(Vec::new())
    }

    /// Waits until all is done; what the last run gave and took.
    fn finish(&mut self) -> Result<StepResult, EngineError>;

    /// What it measured over its whole life.
    fn measured(&mut self) -> Measured;
}
