//! The packed copies of kernels that the libraries read.

use super::*;

/// A kernel tensor, as the CUDA kernels that pack it read it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub canonical: i64,
    pub packed: i64,
    pub taps: i32,
    pub inputs: i32,
    pub wide: i32,
    pub outputs: i32,
    pub first_tile: i32,
    pub tiles_across: i32,
}

/// The packed copies of all kernel tensors.
#[derive(Default)]
pub(crate) struct Packing {
    pub tensors: Vec<Tensor>,
    /// The number of the tensor of each tile.
    pub owners: Vec<i32>,
    /// Values of all copies.
    pub len: usize,
    /// Where each parameter's copy starts.
    pub starts: Vec<Option<usize>>,
}

/// Rows of a tile, as in the CUDA kernels; a tile is 32 wide.
const TILE_ROWS: usize = 64;

impl Lowering<'_> {
    /// Lays out the packed copies of the kernel tensors that products use.
    pub(super) fn pack(&self) -> Packing {
        let mut packing = Packing { starts: vec![None; self.graph.params.len()], ..Packing::default() };
        for (unit, kept) in self.outline.units.iter().zip(&self.kept) {
            let (Kind::Product(layer), Kept::Product(number, _)) = (&unit.kind, kept) else { continue };
            let product = &self.products[*number];
            let kernel = layer.kernel;
            let range =
                self.outline.places.ranges[kernel.0].as_ref().expect("invariant: kernels are trained");
            let taps = product.kernel.0 * product.kernel.1;
            let (wide, outputs) = (product.input.c / product.groups, product.output.c);
            let inputs = range.len() / taps / outputs;
            let (across, down) = (outputs.div_ceil(32), (taps * inputs).div_ceil(TILE_ROWS));
            let number = packing.tensors.len() as i32;
            packing.tensors.push(Tensor {
                canonical: range.start as i64,
                packed: packing.len as i64,
                taps: taps as i32,
                inputs: inputs as i32,
                wide: wide as i32,
                outputs: outputs as i32,
                first_tile: packing.owners.len() as i32,
                tiles_across: across as i32,
            });
            packing.starts[kernel.0] = Some(packing.len);
            packing.owners.extend(std::iter::repeat_n(number, across * down));
            packing.len += (taps * wide * outputs).next_multiple_of(128);
        }
        packing
    }
}
