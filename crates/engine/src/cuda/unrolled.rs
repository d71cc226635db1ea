//! A convolution as a plain matrix product, with the window of each output written out as a row. cuDNN's engines with full
//! fp32 precision are slow on small maps, and the rows of small maps fit into the workspace.

use super::action::Window;
use super::driver::Shape;
use super::gemm::{Call, Gemm};
use super::product::{Direction, Lane, Libraries, Product, Workspace};
use super::program::launch::{Word, launch, wide_shape};
use crate::{EngineError, Layout, Precision};

/// Values that a thread of the kernels moves at a time.
const VECTOR: usize = 4;

/// A convolution with its rows.
#[derive(Debug)]
pub(super) struct Unrolled {
    gemm: Gemm,
    window: Window,
    direction: Direction,
    /// Values of the input, and of all rows.
    inputs: usize,
    values: usize,
}

impl Unrolled {
    /// The algorithms for it; `None` where a product cannot be computed this way, or its rows need more than `limit` bytes.
    pub fn find(
        libraries: &Libraries,
        product: &Product,
        direction: Direction,
        limit: usize,
    ) -> Result<Option<Self>, EngineError> {
        let Product { batch, input, output, kernel, groups, layout, precision, .. } = *product;
        let taps = kernel.0 * kernel.1;
        let values = batch * output.pixels() * taps * input.c;
        let fits = layout == Layout::Nhwc && precision != Precision::Bf16 && groups == 1;
        if !fits || taps == 1 || !input.c.is_multiple_of(VECTOR) || 4 * values > limit {
            return Ok(None);
        }
        let window = Window::new(&product.window(), batch, layout);
        let gemm = Gemm::find(&libraries.cublas, &product.unrolled(), direction)?;
        Ok(Some(Self { gemm, window, direction, inputs: batch * input.len(), values }))
    }

    pub fn len(&self) -> usize {
        self.gemm.len()
    }

    pub fn name(&self, index: usize) -> String {
        self.gemm.name(index)
    }

    /// Bytes of the rows.
    fn bytes(&self) -> usize {
        (4 * self.values).next_multiple_of(256)
    }

    /// Bytes of workspace that an algorithm needs.
    pub fn workspace(&self, index: usize) -> usize {
        self.bytes() + self.gemm.workspace(index)
    }

    /// Puts a run on a lane's stream: addresses of input, weights and output.
    pub fn run(
        &self,
        libraries: &Libraries,
        lane: &Lane,
        index: usize,
        [x, weights, y]: [u64; 3],
    ) -> Result<(), EngineError> {
        let rows = lane.workspace.address;
        let put = |name: &str, shape: Shape, from: u64, to: u64| {
            let args = [Word::of(&self.window), Word::from(from), Word::from(to)];
            launch(&libraries.kernels, &lane.stream, name, shape, &args)
        };
        if self.direction != Direction::Data {
            put("unroll", wide_shape(self.values / VECTOR), x, rows)?;
        }
        let workspace =
            Workspace { address: rows + self.bytes() as u64, bytes: lane.workspace.bytes - self.bytes() };
        let call = Call { stream: &lane.stream, operands: [rows, weights, y], workspace };
        self.gemm.run(&libraries.cublas, index, call)?;
        if self.direction == Direction::Data {
            put("roll", wide_shape(self.inputs / VECTOR), rows, x)?;
        }
        Ok(())
    }
}
