//! Libraries found at run time: which are there, and whether they are new enough.

use cudarc::{cublaslt, cudnn, driver, nvrtc};

use crate::EngineError;

const HINT: &str = "; install it, or name its folder in LD_LIBRARY_PATH";

/// CUDA as the driver and NVRTC count it: 13000 is 13.0.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

fn driver_version() -> Option<i32> {
    // SAFETY: the library is opened by name, and asked for a number.
    unsafe {
        if !driver::sys::is_culib_present() {
            return None;
        }
        let mut version = 0;
        let _ = driver::sys::cuDriverGetVersion(&mut version);
        Some(version)
    }
}

fn nvrtc_version() -> Option<(i32, i32)> {
    // SAFETY: as above.
    unsafe {
        if !nvrtc::sys::is_culib_present() {
            return None;
        }
        let (mut major, mut minor) = (0, 0);
        let _ = nvrtc::sys::nvrtcVersion(&mut major, &mut minor);
        Some((major, minor))
    }
}

fn cudnn_version() -> Option<usize> {
    // SAFETY: as above.
    unsafe { cudnn::sys::is_culib_present().then(|| cudnn::sys::cudnnGetVersion()) }
}

fn cublas_version() -> Option<usize> {
    // SAFETY: as above.
    unsafe { cublaslt::sys::is_culib_present().then(|| cublaslt::sys::cublasLtGetVersion()) }
}

pub(super) fn cudnn_text(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

fn need(
    library: &'static str,
    found: Option<String>,
    needed: &'static str,
    enough: bool,
) -> Result<(), EngineError> {
    if enough { Ok(()) } else { Err(EngineError::Library { library, found, needed, hint: HINT }) }
}

const DRIVER: (&str, &str, i32) = ("the NVIDIA driver (libcuda)", "CUDA 13.0", 13_000);
const NVRTC: (&str, &str) = ("NVRTC (libnvrtc)", "13.0");
const CUDNN: (&str, &str, usize) = ("cuDNN (libcudnn)", "9.10", 91_000);
const CUBLAS: (&str, &str, usize) = ("cuBLASLt (libcublasLt)", "13.0", 130_000);

/// Refuses a machine without a driver, or with too old a one.
pub(super) fn need_driver() -> Result<(), EngineError> {
    let version = driver_version();
    let found = version.map(|version| format!("for CUDA {}", cuda_version(version)));
    need(DRIVER.0, found, DRIVER.1, version >= Some(DRIVER.2))
}

/// Refuses a machine without NVRTC; asked only when kernels must be compiled.
pub(super) fn need_nvrtc() -> Result<(), EngineError> {
    let version = nvrtc_version();
    let found = version.map(|(major, minor)| format!("{major}.{minor}"));
    need(NVRTC.0, found, NVRTC.1, version >= Some((13, 0)))
}

/// Refuses a machine without cuDNN and cuBLASLt; their versions.
pub(super) fn need_mathematics() -> Result<(usize, usize), EngineError> {
    let (cudnn, cublas) = (cudnn_version(), cublas_version());
    need(CUDNN.0, cudnn.map(cudnn_text), CUDNN.1, cudnn >= Some(CUDNN.2))?;
    need(CUBLAS.0, cublas.map(|version| version.to_string()), CUBLAS.1, cublas >= Some(CUBLAS.2))?;
    Ok((cudnn.unwrap_or(0), cublas.unwrap_or(0)))
}
