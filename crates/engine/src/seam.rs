//! The seam between the step loop and whatever computes: object-safe traits, concrete payloads.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use paceline_model::{Graph, ParamId};
use serde::{Deserialize, Serialize};

use crate::{BucketTime, EngineError, MemoryPlan, Numerics, Weave};

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
    /// The regions must stay valid as long as the program, aligned to 64 bytes, and nobody may use them while a call of
    /// the program that reads or writes those values is under way.
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

/// A run of 32-bit floats somewhere: what a collective is handed. It stays valid as long as its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Whose memory.
    pub place: Place,
    /// Address there.
    pub address: u64,
    /// Values.
    pub len: usize,
}

impl Region {
    /// Some of its values.
    pub fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "invariant: a part lies inside");
        Self { address: self.address + 4 * range.start as u64, len: range.len(), ..self }
    }
}

/// When something a program announced is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Already.
    Now,
    /// When the device event with this handle has passed.
    Event(u64),
}

/// Gradients that have become ready: a range of the gradient region, final from `when` on. From then on the program does
/// not read that parameter again before the next run, so that whoever shares its memory may update it.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The parameter.
    pub param: ParamId,
    /// Where its gradient lies in [`Program::gradients`], in values. Ranges come in rising order.
    pub range: Range<usize>,
    /// From when on it may be read.
    pub when: Moment,
}

/// Where one trained tensor lies in the parameter, gradient and state regions, in values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The parameter.
    pub param: ParamId,
    /// Its place.
    pub range: Range<usize>,
}

/// What a step gave, and how long its parts took on the clock of whoever computed it, in nanoseconds. Times are those of
/// what was done since the last [`Program::finish`]; parts do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepResult {
    /// Mean loss over the batch.
    pub loss: f32,
    /// Samples whose largest output was their label; 0 for an autoencoder.
    pub correct: usize,
    /// Copying in, as far as it was waited for: the batch, and what other workers made.
    pub copy_in_ns: u64,
    /// Forward.
    pub forward_ns: u64,
    /// Backward, less the time spent in the `ready` calls.
    pub backward_ns: u64,
    /// Copying gradients out, as far as backward did not hide it.
    pub copy_out_ns: u64,
    /// Time spent inside the `ready` calls, as far as a device's work did not hide it.
    pub ready_ns: u64,
    /// Waiting for an exchange that is part of the run.
    pub exchange_ns: u64,
    /// Applying updates.
    pub update_ns: u64,
    /// Between the run before and this one a device had nothing to do.
    pub idle_ns: u64,
}

/// Time of one layer since profiling began.
#[derive(Clone, Debug)]
pub struct LayerTime {
    /// The layer, or the layers that run as one.
    pub name: String,
    /// Calls counted.
    pub calls: u64,
    /// Forward, all calls.
    pub forward_ns: u64,
    /// Backward, all calls.
    pub backward_ns: u64,
    /// Floating-point operations of forward, per call.
    pub forward_flops: u64,
    /// Floating-point operations of backward, per call.
    pub backward_flops: u64,
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

    /// Values that a program's parameter region has, and so its gradient region: what [`Homes`] must hold.
    fn trained_values(&self, graph: &Graph, spec: &Spec) -> Result<usize, EngineError> {
        Ok((self.plan(graph, spec)?.gradients / 4) as usize / spec.shards)
    }
}

/// A compiled graph with its weights. Calls may return before the work is done; [`Program::finish`] waits.
pub trait Program: Send {
    /// The memory it holds.
    fn plan(&self) -> &MemoryPlan;

    /// Where each trained tensor lies, in the order in which backward makes gradients ready.
    fn slots(&self) -> &[Slot];

    /// How it computes, as far as the bits of its results depend on it.
    fn numerics(&self) -> Numerics {
        Numerics::default()
    }

    /// The trained values.
    fn parameters(&mut self) -> Region;

    /// Their gradients, in the first shard: what an update is made from.
    fn gradients(&mut self) -> Region;

    /// The running statistics of a shard. Evaluation and [`Program::read_param`] take the first shard's.
    fn statistics(&mut self, shard: usize) -> Region;

    /// State of the update rule, laid out as the parameters are: one region for each value kept of a parameter.
    fn state(&mut self) -> Vec<Region>;

    /// Goes on as if so many updates had been applied.
    fn resume_at(&mut self, updates: u64);

    /// Hands over a batch for the next run.
    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError>;

    /// Runs forward and backward in training mode; in the last pass of a shard, calls `ready` for each gradient, in order,
    /// while backward goes on.
    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(Ready)) -> Result<(), EngineError>;

    /// Runs forward in evaluation mode: running statistics, no dropout, labels as they are. Loss and right answers are those
    /// of the first `live` samples; the others fill up a batch.
    fn evaluate(&mut self, live: usize) -> Result<(), EngineError>;

    /// Applies the update rule to a range of the parameters.
    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError>;

    /// Makes the update, and the exchange before it, part of each run that names a learning rate ([`Pass::update`]).
    /// `false` where this program leaves both to its caller.
    fn weave(&mut self, weave: Option<Weave>) -> Result<bool, EngineError> {
        let _ = weave;
        Ok(false)
    }

    /// When each bucket of the last run was exchanged, where that was part of it.
    fn bucket_times(&mut self) -> Result<Vec<BucketTime>, EngineError> {
        Ok(Vec::new())
    }

    /// Whether calls return before their work is done, so that the next batch is best handed over before [`Program::finish`].
    fn runs_behind(&self) -> bool {
        false
    }

    /// Waits until all is done; what the last run gave and took.
    fn finish(&mut self) -> Result<StepResult, EngineError>;

    /// Copies a parameter out, in the graph's canonical order.
    fn read_param(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError>;

    /// Sets a parameter, in the graph's canonical order.
    fn write_param(&mut self, param: ParamId, from: &[f32]) -> Result<(), EngineError>;

    /// Copies the last gradient of a trained parameter out, in the graph's canonical order.
    fn read_gradient(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError>;

    /// Copies the network's output for the batch out, as `[sample][row][column][channel]`.
    fn read_output(&mut self, into: &mut [f32]) -> Result<(), EngineError>;

    /// Copies the values of one of its regions out, wherever they lie.
    fn read_region(&mut self, region: Region, into: &mut [f32]) -> Result<(), EngineError> {
        if into.len() != region.len {
            return Err(EngineError::WrongLength { what: "region", expected: region.len, got: into.len() });
        }
        // SAFETY: the region is the program's own, on the host, and no call of the program is under way.
        into.copy_from_slice(unsafe { std::slice::from_raw_parts(region.address as *const f32, region.len) });
        Ok(())
    }

    /// Sets the values of one of its regions, wherever they lie.
    fn write_region(&mut self, region: Region, from: &[f32]) -> Result<(), EngineError> {
        if from.len() != region.len {
            return Err(EngineError::WrongLength { what: "region", expected: region.len, got: from.len() });
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(region.address as *mut f32, region.len) }
            .copy_from_slice(from);
        Ok(())
    }

    /// The most bytes of a device that this process held, as its driver reports it; `None` on the host.
    fn peak_device(&mut self) -> Option<u64> {
        None
    }

    /// Time of each layer since compilation; empty unless it was asked for.
    fn layer_times(&self) -> Vec<LayerTime>;
}
