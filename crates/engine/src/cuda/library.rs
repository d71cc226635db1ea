//! Libraries found at run time: which are there, where, and whether they are new enough.

use std::ffi::c_int;
use std::fmt;
use std::path::PathBuf;

use cudarc::{cublaslt, cudnn, driver, nvrtc};
use serde::Serialize;

use super::object::{self, Object};
use crate::EngineError;

/// A library of a GPU, as the loader finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// What people call it.
    pub name: &'static str,
    /// How its file's name begins.
    pub file: &'static str,
    /// Where it was loaded from.
    pub path: Option<PathBuf>,
    /// Its version; `None` where it was not found or does not tell.
    pub version: Option<String>,
    /// The oldest version that will do.
    pub needed: String,
    /// Whether this one will do.
    pub fits: bool,
}

/// The libraries that the engine uses, and NCCL, which carries gradients between GPUs. All are loaded.
pub fn libraries() -> Vec<Library> {
    let look = |need: &Need, found: Found| Library {
        name: need.name,
        file: need.file,
        path: if found == Found::Nowhere { None } else { object::path_of(need.file) },
        version: found.version().map(|version| need.write(version)),
        needed: need.write(need.oldest),
        fits: found.version() >= Some(need.oldest),
    };
    vec![
        look(&DRIVER, find_driver()),
        look(&NCCL, find_nccl()),
        look(&CUDNN, find_cudnn()),
        look(&CUBLAS, find_cublas()),
        look(&NVRTC, find_nvrtc()),
    ]
}

/// A version: not all libraries tell a third number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: usize,
    minor: usize,
    patch: Option<usize>,
}

impl Version {
    const fn new(major: usize, minor: usize) -> Self {
        Self { major, minor, patch: None }
    }

    /// CUDA as its driver counts: 13000 is 13.0.
    fn of_cuda(number: usize) -> Self {
        Self::new(number / 1000, number % 1000 / 10)
    }

    /// As cuDNN and NCCL count: 91400 is 9.14.0; up to cuDNN 8 and NCCL 2.8, 8907 was 8.9.7.
    fn of_decimals(number: usize) -> Self {
        let step = if number < 10_000 { 1000 } else { 10_000 };
        Self { patch: Some(number % 100), ..Self::new(number / step, number % step / 100) }
    }

    /// As cuBLAS counts: 130002 is 13.0.2; up to 11, 12103 was 11.11.3.
    fn of_cublas(number: usize) -> Self {
        if number >= 100_000 {
            return Self::of_decimals(number);
        }
        let major = (number / 1000).min(11);
        Self { patch: Some(number % 100), ..Self::new(major, (number - 1000 * major) / 100) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(f, ".{patch}"))
    }
}

/// What became of the search for a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nowhere,
    /// It is there, and fails to tell its version.
    Silent,
    Version(Version),
}

impl Found {
    /// From the answer of a library that is there.
    fn told(success: bool, version: Version) -> Self {
        if success { Self::Version(version) } else { Self::Silent }
    }

    fn version(self) -> Option<Version> {
        match self {
            Self::Version(version) => Some(version),
            Self::Nowhere | Self::Silent => None,
        }
    }
}

/// A library and the oldest version of it that will do.
struct Need {
    name: &'static str,
    file: &'static str,
    /// The name for an error.
    whole: &'static str,
    /// What the version is one of, where that is not the library.
    of: &'static str,
    oldest: Version,
}

const DRIVER: Need = Need {
    name: "CUDA driver",
    file: "libcuda.so",
    whole: "the NVIDIA driver (libcuda)",
    of: "CUDA ",
    oldest: Version::new(13, 0),
};
const CUDNN: Need = Need {
    name: "cuDNN",
    file: "libcudnn.so",
    whole: "cuDNN (libcudnn)",
    of: "",
    oldest: Version::new(9, 10),
};
const CUBLAS: Need = Need {
    name: "cuBLASLt",
    file: "libcublasLt.so",
    whole: "cuBLASLt (libcublasLt)",
    of: "",
    oldest: Version::new(13, 0),
};
const NVRTC: Need = Need {
    name: "NVRTC",
    file: "libnvrtc.so",
    whole: "NVRTC (libnvrtc)",
    of: "",
    oldest: Version::new(13, 0),
};
const NCCL: Need =
    Need { name: "NCCL", file: "libnccl.so", whole: "NCCL (libnccl)", of: "", oldest: Version::new(2, 27) };

impl Need {
    fn write(&self, version: Version) -> String {
        format!("{}{version}", self.of)
    }

    /// Refuses a library that is missing or too old.
    fn check(&self, found: Found) -> Result<(), EngineError> {
        let (found, hint) = match found {
            Found::Version(version) if version >= self.oldest => return Ok(()),
            Found::Version(version) => {
                let of = if self.of.is_empty() { "" } else { "for " };
                (Some(format!("{of}{}", self.write(version))), "; install a newer one")
            }
            Found::Silent => (Some("of unknown version".to_owned()), "; install it anew"),
            Found::Nowhere => (None, "; install it"),
        };
        Err(EngineError::Library {
            library: self.whole,
            found,
            needed: self.write(self.oldest),
            hint: format!("{hint}, or name its folder in LD_LIBRARY_PATH"),
        })
    }
}

fn find_driver() -> Found {
    // SAFETY: the library is opened by name, and asked for a number.
    unsafe {
        if !driver::sys::is_culib_present() {
            return Found::Nowhere;
        }
        let mut number = 0;
        let status = driver::sys::cuDriverGetVersion(&mut number);
        Found::told(status == driver::sys::CUresult::CUDA_SUCCESS, Version::of_cuda(number as usize))
    }
}

fn find_nvrtc() -> Found {
    // SAFETY: as above.
    unsafe {
        if !nvrtc::sys::is_culib_present() {
            return Found::Nowhere;
        }
        let (mut major, mut minor) = (0, 0);
        let status = nvrtc::sys::nvrtcVersion(&mut major, &mut minor);
        let version = Version::new(major as usize, minor as usize);
        Found::told(status == nvrtc::sys::nvrtcResult::NVRTC_SUCCESS, version)
    }
}

fn cudnn_number() -> Option<usize> {
    // SAFETY: as above.
    unsafe { cudnn::sys::is_culib_present().then(|| cudnn::sys::cudnnGetVersion()) }
}

fn find_cudnn() -> Found {
    cudnn_number().map_or(Found::Nowhere, |number| Found::Version(Version::of_decimals(number)))
}

fn cublas_number() -> Option<usize> {
    // SAFETY: as above.
    unsafe { cublaslt::sys::is_culib_present().then(|| cublaslt::sys::cublasLtGetVersion()) }
}

fn find_cublas() -> Found {
    cublas_number().map_or(Found::Nowhere, |number| Found::Version(Version::of_cublas(number)))
}

fn find_nccl() -> Found {
    let Some(nccl) = [c"libnccl.so.2", c"libnccl.so"].into_iter().find_map(Object::open) else {
        return Found::Nowhere;
    };
    type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut number = 0;
    // SAFETY: so NCCL declares it; it writes one number.
    let status = unsafe { nccl.symbol::<Ask>(c"ncclGetVersion").map(|ask| ask(&mut number)) };
    Found::told(status == Some(0), Version::of_decimals(number as usize))
}

/// Refuses a machine without a driver, or with too old a one.
pub(super) fn need_driver() -> Result<(), EngineError> {
    DRIVER.check(find_driver())
}

/// Refuses a machine without NVRTC; asked only when kernels must be compiled.
pub(super) fn need_nvrtc() -> Result<(), EngineError> {
    NVRTC.check(find_nvrtc())
}

/// Refuses a machine without cuDNN and cuBLASLt; the numbers of their versions.
pub(super) fn need_mathematics() -> Result<(usize, usize), EngineError> {
    CUDNN.check(find_cudnn())?;
    CUBLAS.check(find_cublas())?;
    Ok((cudnn_number().unwrap_or(0), cublas_number().unwrap_or(0)))
}

/// The versions behind these numbers, in words.
pub(super) fn describe((cudnn, cublas): (usize, usize)) -> String {
    format!("cuDNN {} and cuBLASLt {}", Version::of_decimals(cudnn), Version::of_cublas(cublas))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(need: &Need, found: Found) -> String {
        need.check(found).expect_err("it is refused").to_string()
    }

    #[test]
    fn versions_are_read_as_each_library_counts() {
        let cases = [
            (Version::of_cuda(12_040), "12.4"),
            (Version::of_cuda(13_000), "13.0"),
            (Version::of_decimals(91_400), "9.14.0"),
            (Version::of_decimals(8_907), "8.9.7"),
            (Version::of_decimals(22_803), "2.28.3"),
            (Version::of_decimals(2_804), "2.8.4"),
            (Version::of_cublas(130_002), "13.0.2"),
            (Version::of_cublas(120_405), "12.4.5"),
            (Version::of_cublas(12_103), "11.11.3"),
            (Version::of_cublas(10_202), "10.2.2"),
        ];
        for (version, text) in cases {
            assert_eq!(version.to_string(), text);
        }
    }

    #[test]
    fn what_is_missing_or_too_old_is_named_with_both_versions() {
        assert_eq!(
            refusal(&DRIVER, Found::Version(Version::of_cuda(12_080))),
            "the NVIDIA driver (libcuda) for CUDA 12.8 was found; CUDA 13.0 or later is needed; install a newer one, or name \
             its folder in LD_LIBRARY_PATH"
        );
        assert_eq!(
            refusal(&CUDNN, Found::Version(Version::of_decimals(8_907))),
            "cuDNN (libcudnn) 8.9.7 was found; 9.10 or later is needed; install a newer one, or name its folder in \
             LD_LIBRARY_PATH"
        );
        assert_eq!(
            refusal(&NVRTC, Found::Nowhere),
            "NVRTC (libnvrtc) was not found; 13.0 or later is needed; install it, or name its folder in LD_LIBRARY_PATH"
        );
        assert!(
            refusal(&NCCL, Found::Version(Version::of_decimals(22_605)))
                .contains("2.26.5 was found; 2.27 or")
        );
        assert!(refusal(&CUBLAS, Found::Silent).contains("of unknown version was found; 13.0 or later"));
    }

    #[test]
    fn the_oldest_version_that_will_do_and_later_ones_are_taken() {
        for number in [91_000, 91_001, 91_400, 100_000] {
            assert!(CUDNN.check(Found::Version(Version::of_decimals(number))).is_ok(), "{number}");
        }
        assert!(CUDNN.check(Found::Version(Version::of_decimals(90_902))).is_err());
        assert!(DRIVER.check(Found::Version(Version::of_cuda(13_000))).is_ok());
        assert!(NCCL.check(Found::Version(Version::of_decimals(22_700))).is_ok());
    }

    #[test]
    fn the_list_says_what_the_engine_says() {
        let list = libraries();
        let names: Vec<_> = list.iter().map(|library| library.name).collect();
        assert_eq!(names, ["CUDA driver", "NCCL", "cuDNN", "cuBLASLt", "NVRTC"]);
        for library in &list {
            assert!(!library.fits || library.version.is_some() && library.path.is_some(), "{library:?}");
        }
        assert_eq!(list[0].fits, need_driver().is_ok());
        assert_eq!(list[2].fits && list[3].fits, need_mathematics().is_ok());
        assert_eq!(list[4].fits, need_nvrtc().is_ok());
    }
}
