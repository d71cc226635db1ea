//! Plain matrix products through cuBLASLt: dense layers and 1x1 convolutions.

use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::sys;

use super::driver::Stream;
use super::product::{Direction, Product, Workspace};
use crate::{EngineError, Layout, Precision};

fn check(status: sys::cublasStatus_t, call: &str) -> Result<(), EngineError> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(EngineError::Device { call: call.to_owned(), answer: format!("{status:?}") })
}

/// cuBLASLt's state.
#[derive(Debug)]
pub(super) struct Handle(sys::cublasLtHandle_t);

// SAFETY: cuBLASLt's handle may be used from any thread.
unsafe impl Send for Handle {}

impl Handle {
    pub fn new() -> Result<Self, EngineError> {
        let mut handle = ptr::null_mut();
        // SAFETY: a place for the handle.
        check(unsafe { sys::cublasLtCreate(&mut handle) }, "cublasLtCreate")?;
        Ok(Self(handle))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        let _ = unsafe { sys::cublasLtDestroy(self.0) };
    }
}

/// Whether a product is a plain matrix product: pixels are rows, channels columns.
pub(super) fn fits(product: &Product) -> bool {
    let Product { input, output, border, .. } = product;
    let plain = product.kernel == (1, 1)
        && product.stride == (1, 1)
        && product.groups == 1
        && [border.top, border.bottom, border.left, border.right] == [0; 4];
    plain && input.pixels() == output.pixels() && (product.layout == Layout::Nhwc || input.pixels() == 1)
}

/// A product with its descriptions, and the algorithms that cuBLASLt recommends for it.
#[derive(Debug)]
pub(super) struct Gemm {
    operation: sys::cublasLtMatmulDesc_t,
    /// Of both factors and the result.
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algorithms: Vec<sys::cublasLtMatmulHeuristicResult_t>,
    direction: Direction,
}

// SAFETY: descriptions are only read once they are made.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

/// The stream, operands and workspace of a run.
pub(super) struct Call<'a> {
    pub stream: &'a Stream,
    /// Addresses of input, weights and output.
    pub operands: [u64; 3],
    pub workspace: Workspace,
}

/// The most algorithms that are considered.
const MOST: usize = 8;

/// Bytes of workspace that an algorithm may use. The same for every program, so that all get the same list.
pub(super) const WORKSPACE: usize = 32 << 20;

impl Gemm {
    /// Columns first, as cuBLAS sees it: x is C x rows, weights C x K, y K x rows.
    pub fn find(handle: &Handle, product: &Product, direction: Direction) -> Result<Self, EngineError> {
        let data = match product.precision {
            Precision::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Precision::Fp32 | Precision::Tf32 => sys::cudaDataType_t::CUDA_R_32F,
        };
        let compute = match product.precision {
            Precision::Tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            Precision::Fp32 | Precision::Bf16 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let rows = (product.batch * product.input.pixels()) as u64;
        let (inputs, outputs) = (product.input.c as u64, product.output.c as u64);
        let (x, w, y) = ((inputs, rows), (inputs, outputs), (outputs, rows));
        let (a, b, d, turned) = match direction {
            Direction::Forward => (w, x, y, (1i32, 0i32)),
            Direction::Data => (w, y, x, (0, 0)),
            Direction::Filter => (x, y, w, (0, 1)),
        };
        // SAFETY: places for handles and attributes of the sizes that the interface names.
        unsafe {
            let mut gemm = Self {
                operation: ptr::null_mut(),
                layouts: [ptr::null_mut(); 3],
                algorithms: Vec::new(),
                direction,
            };
            let scale = sys::cudaDataType_t::CUDA_R_32F;
            check(
                sys::cublasLtMatmulDescCreate(&mut gemm.operation, compute, scale),
                "cublasLtMatmulDescCreate",
            )?;
            use sys::cublasLtMatmulDescAttributes_t as Attribute;
            for (attribute, value) in [
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, turned.0),
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, turned.1),
            ] {
                let at = (&raw const value).cast();
                let set = sys::cublasLtMatmulDescSetAttribute(gemm.operation, attribute, at, 4);
                check(set, "cublasLtMatmulDescSetAttribute")?;
            }
            for (layout, (rows, columns)) in gemm.layouts.iter_mut().zip([a, b, d]) {
                let made = sys::cublasLtMatrixLayoutCreate(layout, data, rows, columns, rows as i64);
                check(made, "cublasLtMatrixLayoutCreate")?;
            }
            let mut preference = ptr::null_mut();
            check(sys::cublasLtMatmulPreferenceCreate(&mut preference), "cublasLtMatmulPreferenceCreate")?;
            let limit = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let bytes = WORKSPACE;
            let at = (&raw const bytes).cast();
            let set = sys::cublasLtMatmulPreferenceSetAttribute(preference, limit, at, size_of::<usize>());
            let mut found = [std::mem::zeroed::<sys::cublasLtMatmulHeuristicResult_t>(); MOST];
            let mut count = 0;
            let [a, b, d] = gemm.layouts;
            let asked = sys::cublasLtMatmulAlgoGetHeuristic(
                handle.0,
                gemm.operation,
                a,
                b,
                d,
                d,
                preference,
                MOST as i32,
                found.as_mut_ptr(),
                &mut count,
            );
            let _ = sys::cublasLtMatmulPreferenceDestroy(preference);
            check(set, "cublasLtMatmulPreferenceSetAttribute")?;
            if check(asked, "cublasLtMatmulAlgoGetHeuristic").is_ok() {
                gemm.algorithms.extend_from_slice(&found[..count as usize]);
            }
            Ok(gemm)
        }
    }

    pub fn len(&self) -> usize {
        self.algorithms.len()
    }

    /// cuBLASLt's number of an algorithm, and its settings. The description itself is opaque, and need not be the same from
    /// process to process.
    pub fn name(&self, index: usize) -> String {
        use sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
        let Some(found) = self.algorithms.get(index) else { return String::new() };
        let attributes = [
            (Attribute::CUBLASLT_ALGO_CONFIG_ID, "algo", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID, "_tile", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_STAGES_ID, "_stages", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, "_splitk", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, "_reduction", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, "_swizzling", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, "_option", 4),
            (Attribute::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, "_inner", 2),
            (Attribute::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, "_cluster", 2),
        ];
        let setting = |(attribute, name, bytes): (Attribute, &str, usize)| {
            let (mut value, mut written) = (0u32, 0);
            let at = (&raw mut value).cast();
            // SAFETY: the algorithm is cuBLASLt's own; a number of so many bytes is written, which has room.
            let status = unsafe {
                sys::cublasLtMatmulAlgoConfigGetAttribute(&found.algo, attribute, at, bytes, &mut written)
            };
            // An attribute that this version does not know is left out.
            check(status, "cublasLtMatmulAlgoConfigGetAttribute").ok().map(|()| format!("{name}{value}"))
        };
        attributes.into_iter().filter_map(setting).collect()
    }

    /// Bytes of workspace that an algorithm needs.
    pub fn workspace(&self, index: usize) -> usize {
        self.algorithms.get(index).map_or(0, |algorithm| algorithm.workspaceSize)
    }

    /// Puts a run on a stream.
    pub fn run(&self, handle: &Handle, index: usize, call: Call<'_>) -> Result<(), EngineError> {
        let [x, w, y] = call.operands;
        let (a, b, d) = match self.direction {
            Direction::Forward => (w, x, y),
            Direction::Data => (w, y, x),
            Direction::Filter => (x, y, w),
        };
        let algorithm = self.algorithms.get(index).ok_or_else(|| EngineError::Device {
            call: "choosing an algorithm of cuBLASLt".into(),
            answer: format!("it has {} for this, not {}", self.algorithms.len(), index + 1),
        })?;
        let (one, zero) = (1.0f32, 0.0f32);
        // SAFETY: the addresses are those of buffers of the product's sizes, as the lowering ensures.
        let status = unsafe {
            sys::cublasLtMatmul(
                handle.0,
                self.operation,
                (&raw const one).cast(),
                a as *const c_void,
                self.layouts[0],
                b as *const c_void,
                self.layouts[1],
                (&raw const zero).cast(),
                d as *const c_void,
                self.layouts[2],
                d as *mut c_void,
                self.layouts[2],
                &algorithm.algo,
                call.workspace.address as *mut c_void,
                call.workspace.bytes,
                call.stream.0.cast(),
            )
        };
        check(status, "a matrix product")
    }
}

impl Drop for Gemm {
    fn drop(&mut self) {
        // SAFETY: nobody uses them any more; null was never made.
        unsafe {
            for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
                let _ = sys::cublasLtMatrixLayoutDestroy(layout);
            }
            if !self.operation.is_null() {
                let _ = sys::cublasLtMatmulDescDestroy(self.operation);
            }
        }
    }
}
