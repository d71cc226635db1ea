//! Products of the network with its weights: what they are, how each can be computed, and which way is the fastest here.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use paceline_model::{Border, Shape};

use super::backend;
use super::driver::{Event, Memory, Recording, Stream};
use super::gemm::{self, Gemm};
use super::kernels::{Kernels, cache_folder, digest, keep};
use super::unrolled::Unrolled;
use crate::outline::Window;
use crate::{EngineError, Layout, Precision};

/// A convolution, of which a dense layer is the smallest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Product {
    pub batch: usize,
    pub input: Shape,
    pub output: Shape,
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
    pub border: Border,
    pub groups: usize,
    pub layout: Layout,
    pub precision: Precision,
}

/// Which of its operands a product computes from the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Direction {
    /// The output.
    Forward,
    /// The input's gradient.
    Data,
    /// The weights' gradient.
    Filter,
}

impl Product {
    /// The name of one direction in the file of choices.
    fn key(&self, direction: Direction) -> String {
        let Border { top, bottom, left, right } = self.border;
        format!(
            "{direction:?}/{}/{}/n{}/{}x{}x{}-{}x{}x{}/k{}x{}/s{}x{}/b{top},{bottom},{left},{right}/g{}",
            self.precision,
            self.layout,
            self.batch,
            self.input.h,
            self.input.w,
            self.input.c,
            self.output.h,
            self.output.w,
            self.output.c,
            self.kernel.0,
            self.kernel.1,
            self.stride.0,
            self.stride.1,
            self.groups,
        )
    }

    pub fn window(&self) -> Window {
        let Self { kernel, stride, border, input, output, .. } = *self;
        Window { kernel, stride, border, input, output }
    }

    /// The plain product that is left where the window of each output is written out as a row.
    pub fn unrolled(&self) -> Self {
        let inputs = self.kernel.0 * self.kernel.1 * self.input.c;
        Self {
            input: Shape::new(self.output.h, self.output.w, inputs),
            kernel: (1, 1),
            stride: (1, 1),
            border: Border::default(),
            ..*self
        }
    }

    fn value_bytes(&self) -> usize {
        if self.precision == Precision::Bf16 { 2 } else { 4 }
    }

    /// Bytes of input, weights and output.
    fn operand_bytes(&self) -> [usize; 3] {
        let weights = self.kernel.0 * self.kernel.1 * self.input.c / self.groups * self.output.c;
        [self.batch * self.input.len(), weights, self.batch * self.output.len()]
            .map(|count| count * self.value_bytes())
    }
}

/// One way to compute a product in one direction.
#[derive(Debug)]
pub(super) enum Method {
    Backend(backend::Plan),
    Gemm(Arc<Gemm>, usize),
    Unrolled(Arc<Unrolled>, usize),
}

impl Method {
    fn workspace(&self) -> usize {
        match self {
            Self::Backend(plan) => plan.workspace,
            Self::Gemm(gemm, index) => gemm.workspace(*index),
            Self::Unrolled(unrolled, index) => unrolled.workspace(*index),
        }
    }

    /// Puts a run on a lane's stream: addresses of input, weights and output.
    pub fn run(&self, libraries: &Libraries, lane: &Lane, operands: [u64; 3]) -> Result<(), EngineError> {
        match self {
            Self::Backend(plan) => {
                libraries.cudnn.turn_to(&lane.stream)?;
                plan.run(&libraries.cudnn, operands, lane.workspace.0)
            }
            Self::Gemm(gemm, index) => {
                gemm.run((&libraries.cublas, &lane.stream), *index, operands, lane.workspace)
            }
            Self::Unrolled(unrolled, index) => unrolled.run(libraries, lane, *index, operands),
        }
    }
}

/// The libraries' states.
#[derive(Debug)]
pub(super) struct Libraries {
    pub cudnn: backend::Handle,
    pub cublas: gemm::Handle,
    pub kernels: Arc<Kernels>,
}

/// A stream with its workspace.
#[derive(Debug)]
pub(super) struct Lane {
    /// Address and bytes.
    pub workspace: (u64, usize),
    pub stream: Stream,
}

/// How the way to compute a product is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// By trying each once, and remembering the fastest on disk.
    #[default]
    Measured,
    /// The first that works: quicker to start, slower to run.
    First,
    /// The last that works, for tests of what measuring seldom chooses.
    Last,
}

/// A choice as it is remembered: the way, and the number in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    way: Way,
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Gemm,
    Cudnn,
    Unrolled,
}

/// Their names in the file of choices.
const WAYS: [(&str, Way); 3] = [("gemm", Way::Gemm), ("cudnn", Way::Cudnn), ("unrolled", Way::Unrolled)];

/// Counts up when the numbers of a list come to name other ways.
const LISTS: u32 = 3;

/// Choices made before, on this GPU with these libraries.
#[derive(Debug, Default)]
pub(super) struct Choices {
    known: HashMap<String, Choice>,
    path: Option<PathBuf>,
    changed: bool,
}

impl Choices {
    /// Those of the disk. `machine` names the GPU and the versions.
    pub fn load(machine: &str) -> Self {
        let name = format!("choices-{:016x}.txt", digest(&format!("{machine} {LISTS}")));
        let path = cache_folder().map(|folder| folder.join(name));
        let text = path.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let known = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                let (key, named, index) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
                let (_, way) = WAYS.into_iter().find(|(name, _)| *name == named)?;
                Some((key.to_owned(), Choice { way, index }))
            })
            .collect();
        Self { known, path, changed: false }
    }

    /// Remembers what was found since.
    pub fn save(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| std::mem::take(&mut self.changed)) else { return };
        let mut lines: Vec<_> = self.known.iter().collect();
        lines.sort_by_key(|(key, _)| key.as_str());
        let mut text = String::new();
        for (key, choice) in lines {
            let (name, _) =
                WAYS.into_iter().find(|(_, way)| *way == choice.way).expect("invariant: all are there");
            writeln!(text, "{key} {name} {}", choice.index).expect("invariant: a string takes all");
        }
        keep(path, text.as_bytes());
    }
}

/// A way that was chosen before and is there no more.
fn gone(index: usize, count: usize) -> EngineError {
    EngineError::Unsupported(format!("number {} of {count} in the space that there is", index + 1))
}

/// Finds methods: each way is readied and tried on noise.
pub(super) struct Workshop<'a> {
    pub libraries: &'a Libraries,
    pub lane: &'a Lane,
    pub choices: &'a mut Choices,
    pub tuning: Tuning,
    /// Operands to try on: taken when the first product must be measured.
    pub scratch: Option<Memory>,
    /// Fills memory with noise: address and bytes.
    pub fill: &'a dyn Fn(u64, usize) -> Result<(), EngineError>,
}

impl Workshop<'_> {
    pub fn method(&mut self, product: &Product, direction: Direction) -> Result<Method, EngineError> {
        let key = product.key(direction);
        if let Some(&choice) = self.choices.known.get(&key)
            && self.tuning != Tuning::Last
            && let Ok(method) = self.ready(product, direction, choice)
        {
            return Ok(method);
        }
        let mut best: Option<(u64, Choice)> = None;
        if gemm::fits(product) {
            let found = Arc::new(Gemm::find(&self.libraries.cublas, product, direction)?);
            for index in 0..found.len() {
                let method = Method::Gemm(found.clone(), index);
                self.try_out(product, &method, Choice { way: Way::Gemm, index }, &mut best);
            }
        }
        let convolves = product.input.pixels() > 1 || product.kernel != (1, 1) || best.is_none();
        if convolves {
            let found = backend::Candidates::find(&self.libraries.cudnn, product, direction)?;
            for index in 0..found.len() {
                if let Ok(plan) = found.plan(&self.libraries.cudnn, index) {
                    let choice = Choice { way: Way::Cudnn, index };
                    self.try_out(product, &Method::Backend(plan), choice, &mut best);
                }
            }
        }
        if let Some(found) = Unrolled::find(self.libraries, product, direction, self.lane.workspace.1)? {
            let found = Arc::new(found);
            for index in 0..found.len() {
                let method = Method::Unrolled(found.clone(), index);
                self.try_out(product, &method, Choice { way: Way::Unrolled, index }, &mut best);
            }
        }
        let Some((_, choice)) = best else {
            return Err(EngineError::Unsupported(format!("neither cuDNN nor cuBLASLt computes {key}")));
        };
        if self.tuning == Tuning::Measured {
            self.choices.known.insert(key, choice);
            self.choices.changed = true;
        }
        self.ready(product, direction, choice)
    }

    /// Takes a way for the best where it is; one that fails is none.
    fn try_out(
        &mut self,
        product: &Product,
        method: &Method,
        choice: Choice,
        best: &mut Option<(u64, Choice)>,
    ) {
        if method.workspace() > self.lane.workspace.1 || (best.is_some() && self.tuning == Tuning::First) {
            return;
        }
        let least = best.map_or(u64::MAX, |(time, _)| time);
        if let Ok(time) = self.time(product, method, least)
            && (time < least || self.tuning == Tuning::Last)
        {
            *best = Some((time, choice));
        }
    }

    fn ready(&self, product: &Product, direction: Direction, choice: Choice) -> Result<Method, EngineError> {
        let limit = self.lane.workspace.1;
        let Choice { way, index } = choice;
        let (method, count) = match way {
            Way::Gemm => {
                let found = Gemm::find(&self.libraries.cublas, product, direction)?;
                let count = found.len();
                (Method::Gemm(Arc::new(found), index), count)
            }
            Way::Cudnn => {
                let found = backend::Candidates::find(&self.libraries.cudnn, product, direction)?;
                let count = found.len();
                (Method::Backend(found.into_plan(&self.libraries.cudnn, index)?), count)
            }
            Way::Unrolled => {
                let Some(found) = Unrolled::find(self.libraries, product, direction, limit)? else {
                    return Err(gone(index, 0));
                };
                let count = found.len();
                (Method::Unrolled(Arc::new(found), index), count)
            }
        };
        if index >= count || method.workspace() > limit {
            return Err(gone(index, count));
        }
        Ok(method)
    }

    /// Nanoseconds of a run, as the device does it when it is recorded; not exact where they are far more than the least.
    fn time(&mut self, product: &Product, method: &Method, least: u64) -> Result<u64, EngineError> {
        const RUNS: u64 = 4;
        let sizes = product.operand_bytes().map(|bytes| bytes.next_multiple_of(256));
        let needed = sizes.iter().sum();
        if self.scratch.as_ref().is_none_or(|scratch| scratch.bytes < needed) {
            self.scratch = None;
            let memory = Memory::new(needed)?;
            (self.fill)(memory.address, needed)?;
            self.scratch = Some(memory);
        }
        let start = self.scratch.as_ref().expect("invariant: just taken").address;
        let operands = [start, start + sizes[0] as u64, start + (sizes[0] + sizes[1]) as u64];
        let stream = &self.lane.stream;
        // The first run loads machine code, which cannot be recorded.
        method.run(self.libraries, self.lane, operands)?;
        stream.wait()?;
        let (begin, end) = (Event::new()?, Event::new()?);
        stream.mark(&begin)?;
        method.run(self.libraries, self.lane, operands)?;
        stream.mark(&end)?;
        end.wait()?;
        let rough = end.since(&begin)?;
        // What the host takes to hand it over hides little.
        if rough > least.saturating_mul(2).saturating_add(200_000) {
            return Ok(rough);
        }
        let recording: Recording =
            stream.record(|| (0..RUNS).try_for_each(|_| method.run(self.libraries, self.lane, operands)))?;
        if self.tuning == Tuning::First {
            return Ok(0);
        }
        let mut least = u64::MAX;
        stream.replay(&recording)?;
        for _ in 0..3 {
            stream.mark(&begin)?;
            stream.replay(&recording)?;
            stream.mark(&end)?;
            end.wait()?;
            least = least.min(end.since(&begin)?);
        }
        Ok(least / RUNS)
    }
}
