//! Products of the network with its weights: what they are, how each can be computed, and which algorithm is the fastest.

use std::sync::Arc;

use paceline_model::{Border, Shape};
use paceline_record::Nanos;

use super::backend;
use super::choices::Choices;
use super::driver::{Event, Memory, Recording, Stream};
use super::gemm::{self, Call, Gemm};
use super::kernels::Kernels;
use super::unrolled::Unrolled;
use crate::outline::Window;
use crate::{Algorithm, EngineError, Layout, Numerics, Precision, Way};

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

    /// The matrix product that remains when the window of each output is written out as a row.
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
                libraries.cudnn.set_stream(&lane.stream)?;
                plan.run(&libraries.cudnn, operands, lane.workspace.address)
            }
            Self::Gemm(gemm, index) => {
                let call = Call { stream: &lane.stream, operands, workspace: lane.workspace };
                gemm.run(&libraries.cublas, *index, call)
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
    pub workspace: Workspace,
    pub stream: Stream,
}

/// Device memory that runs of one stream share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workspace {
    pub address: u64,
    pub bytes: usize,
}

/// How the algorithm for a product is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tuning {
    /// By trying each once, and remembering the fastest on disk.
    #[default]
    Measured,
    /// The first that works: quicker to start, slower to run.
    First,
    /// The last that works, for tests of algorithms that are seldom the fastest.
    Last,
    /// As in a program with these numerics, so that the results are the same to the bit; an error where that is impossible.
    Recorded(Numerics),
}

/// The algorithms of one list for a product.
enum List {
    Gemm(Arc<Gemm>),
    Cudnn(backend::Candidates),
    Unrolled(Arc<Unrolled>),
}

impl List {
    fn len(&self) -> usize {
        match self {
            Self::Gemm(gemm) => gemm.len(),
            Self::Cudnn(candidates) => candidates.len(),
            Self::Unrolled(unrolled) => unrolled.len(),
        }
    }

    /// The library's name of one of them.
    fn name(&self, number: usize) -> String {
        match self {
            Self::Gemm(gemm) => gemm.name(number),
            Self::Cudnn(candidates) => candidates.name(number),
            Self::Unrolled(unrolled) => unrolled.name(number),
        }
    }

    /// Prepares one of them; an error where the library does not support the product after all.
    fn method(&self, libraries: &Libraries, number: usize) -> Result<Method, EngineError> {
        Ok(match self {
            Self::Gemm(gemm) => Method::Gemm(gemm.clone(), number),
            Self::Cudnn(candidates) => Method::Backend(candidates.plan(&libraries.cudnn, number)?),
            Self::Unrolled(unrolled) => Method::Unrolled(unrolled.clone(), number),
        })
    }
}

/// Finds methods: each algorithm is prepared and tried on noise.
pub(super) struct Tuner<'a> {
    pub libraries: &'a Libraries,
    pub lane: &'a Lane,
    pub choices: &'a mut Choices,
    pub tuning: &'a Tuning,
    /// Operands for trials, allocated when the first product must be measured.
    pub scratch: Option<Memory>,
    /// Fills memory with noise: address and bytes.
    pub fill: &'a dyn Fn(u64, usize) -> Result<(), EngineError>,
}

/// The fastest algorithm so far, and its time.
type Best = Option<(u64, Algorithm)>;

impl Tuner<'_> {
    /// A way to compute a product, and the algorithm behind it.
    pub fn method(
        &mut self,
        product: &Product,
        direction: Direction,
    ) -> Result<(Method, Algorithm), EngineError> {
        let key = product.key(direction);
        if let Tuning::Recorded(numerics) = self.tuning {
            let algorithm = numerics.algorithm(&key)?;
            return Ok((self.prepare(product, direction, algorithm)?, algorithm.clone()));
        }
        if *self.tuning != Tuning::Last
            && let Some(known) = self.choices.get(&key)
            && let Ok(method) = self.prepare(product, direction, &known)
        {
            return Ok((method, known));
        }
        let mut best: Best = None;
        for way in [Way::Gemm, Way::Cudnn, Way::Unrolled] {
            // A plain matrix product needs no convolution.
            let plain = product.input.pixels() == 1 && product.kernel == (1, 1);
            if way == Way::Cudnn && plain && best.is_some() {
                continue;
            }
            let Some(list) = self.list(product, direction, way)? else { continue };
            for number in 0..list.len() {
                let candidate = Algorithm { product: key.clone(), way, number, name: String::new() };
                self.try_out(product, &list, candidate, &mut best);
            }
        }
        let Some((_, algorithm)) = best else {
            return Err(EngineError::Unsupported(format!("neither cuDNN nor cuBLASLt computes {key}")));
        };
        if *self.tuning == Tuning::Measured {
            self.choices.remember(&algorithm);
        }
        Ok((self.prepare(product, direction, &algorithm)?, algorithm))
    }

    /// The algorithms of a list; `None` where the list is not for products like this one.
    fn list(&self, product: &Product, direction: Direction, way: Way) -> Result<Option<List>, EngineError> {
        let (cudnn, cublas) = (&self.libraries.cudnn, &self.libraries.cublas);
        Ok(match way {
            Way::Gemm if !gemm::fits(product) => None,
            Way::Gemm => Some(List::Gemm(Arc::new(Gemm::find(cublas, product, direction)?))),
            Way::Cudnn => Some(List::Cudnn(backend::Candidates::find(cudnn, product, direction)?)),
            Way::Unrolled => Unrolled::find(self.libraries, product, direction, self.lane.workspace.bytes)?
                .map(|unrolled| List::Unrolled(Arc::new(unrolled))),
        })
    }

    /// Times an algorithm, and keeps it if it is the best so far. One that fails is skipped.
    fn try_out(&mut self, product: &Product, list: &List, candidate: Algorithm, best: &mut Best) {
        let Ok(method) = list.method(self.libraries, candidate.number) else { return };
        if method.workspace() > self.lane.workspace.bytes || (best.is_some() && *self.tuning == Tuning::First)
        {
            return;
        }
        let least = best.as_ref().map_or(u64::MAX, |(time, _)| *time);
        if let Ok(time) = self.time(product, &method, least)
            && (time < least || *self.tuning == Tuning::Last)
        {
            *best = Some((time, Algorithm { name: list.name(candidate.number), ..candidate }));
        }
    }

    /// Prepares a known algorithm; an error where the libraries offer another one, or none, in its place.
    fn prepare(
        &self,
        product: &Product,
        direction: Direction,
        algorithm: &Algorithm,
    ) -> Result<Method, EngineError> {
        let &Algorithm { way, number, ref name, .. } = algorithm;
        let gone = |why: String| {
            EngineError::Unsupported(format!(
                "{} is to be computed by number {number} of {way:?}, {name}: {why}",
                algorithm.product
            ))
        };
        let list = self.list(product, direction, way)?.filter(|list| number < list.len());
        let Some(list) = list else { return Err(gone("the library offers fewer".into())) };
        let offered = list.name(number);
        if offered != *name {
            return Err(gone(format!("the library offers {offered} in its place")));
        }
        let method = match list {
            List::Cudnn(candidates) => Method::Backend(candidates.into_plan(&self.libraries.cudnn, number)?),
            list => list.method(self.libraries, number)?,
        };
        if method.workspace() > self.lane.workspace.bytes {
            return Err(gone("it needs more memory than there is".into()));
        }
        Ok(method)
    }

    /// Nanoseconds of a recorded run on the device. An estimate where that is far more than `least`.
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
        let Nanos(rough) = end.since(&begin)?;
        // The time that the host takes to launch it hides little.
        if rough > least.saturating_mul(2).saturating_add(200_000) {
            return Ok(rough);
        }
        let recording: Recording =
            stream.record(|| (0..RUNS).try_for_each(|_| method.run(self.libraries, self.lane, operands)))?;
        if *self.tuning == Tuning::First {
            return Ok(0);
        }
        let mut least = u64::MAX;
        stream.replay(&recording)?;
        for _ in 0..3 {
            stream.mark(&begin)?;
            stream.replay(&recording)?;
            stream.mark(&end)?;
            end.wait()?;
            least = least.min(end.since(&begin)?.0);
        }
        Ok(least / RUNS)
    }
}
