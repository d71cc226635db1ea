//! Libraries found at run time: which are there, where, and whether they are new enough.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::object::{self, Object};
use crate::EngineError;

/// A library of a GPU, as the loader finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// Its usual name.
    pub name: &'static str,
    /// The beginning of its file name.
    pub file: &'static str,
    /// Where it was loaded from.
    pub path: Option<PathBuf>,
    /// Its version; `None` where it was not found or does not report one.
    pub version: Option<String>,
    /// The oldest version that works.
    pub needed: String,
    /// Whether this one is new enough.
    pub fits: bool,
    /// The loader's error, where the library exists and cannot be loaded.
    pub broken: Option<String>,
}

/// The libraries that the engine uses, and NCCL, which carries gradients between GPUs. All are loaded.
pub fn libraries() -> Vec<Library> {
    let look = |need: &Need, found: Found| Library {
        name: need.name,
        file: need.file,
        path: match found {
            Found::Nowhere | Found::Broken(_) => None,
            Found::Silent | Found::Version(_) => object::path_of(need.file),
        },
        version: found.version().map(|version| need.write(version)),
        needed: need.write(need.oldest),
        fits: found.version() >= Some(need.oldest),
        broken: if let Found::Broken(why) = found { Some(why) } else { None },
    };
    vec![
        look(&DRIVER, find_driver()),
        look(&NCCL, find_nccl()),
        look(&CUDNN, find_cudnn()),
        look(&CUBLAS, find_cublas()),
        look(&NVRTC, find_nvrtc()),
    ]
}

/// A version; not all libraries report a third number.
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

    /// As CUDA's driver encodes it: 13000 is 13.0.
    fn of_cuda(number: usize) -> Self {
        Self::new(number / 1000, number % 1000 / 10)
    }

    /// As cuDNN and NCCL encode it: 91400 is 9.14.0; up to cuDNN 8 and NCCL 2.8, 8907 was 8.9.7.
    fn of_decimals(number: usize) -> Self {
        let step = if number < 10_000 { 1000 } else { 10_000 };
        Self { patch: Some(number % 100), ..Self::new(number / step, number % step / 100) }
    }

    /// As cuBLAS encodes it: 130002 is 13.0.2; up to 11, 12103 was 11.11.3.
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

/// The result of the search for a library.
#[derive(Debug)]
enum Found {
    Nowhere,
    /// A file exists and cannot be loaded; with the loader's error.
    Broken(String),
    /// It exists and does not report its version.
    Silent,
    Version(Version),
}

impl Found {
    fn version(&self) -> Option<Version> {
        match self {
            Self::Version(version) => Some(*version),
            Self::Nowhere | Self::Broken(_) | Self::Silent => None,
        }
    }
}

/// A library and the oldest version of it that works.
struct Need {
    name: &'static str,
    file: &'static str,
    /// Its name in errors.
    whole: &'static str,
    /// What the version is of, where that is not the library.
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

    /// An error where the library is missing or too old.
    fn check(&self, found: Found) -> Result<(), EngineError> {
        let (found, hint) = match found {
            Found::Version(version) if version >= self.oldest => return Ok(()),
            Found::Version(version) => {
                let of = if self.of.is_empty() { "" } else { "for " };
                (Some(format!("{of}{}", self.write(version))), "; install a newer one")
            }
            Found::Silent => (Some("of unknown version".to_owned()), "; reinstall it"),
            Found::Broken(why) => (Some(format!("that cannot be loaded ({why})")), "; reinstall it"),
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

/// Looks for a library under these names, and asks it for its version.
fn find(names: impl IntoIterator<Item = CString>, ask: impl FnOnce(&Object) -> Option<Version>) -> Found {
    match Object::open_first(names) {
        Ok(Some(object)) => ask(&object).map_or(Found::Silent, Found::Version),
        Ok(None) => Found::Nowhere,
        Err(why) => Found::Broken(why),
    }
}

/// The names that cudarc tries, in its order, so that the library found is the one that cudarc uses. cudarc itself is not
/// asked for the version, because it panics where a function is missing.
fn names_of(libraries: &[&str]) -> impl Iterator<Item = CString> {
    let names = libraries.iter().flat_map(|library| cudarc::get_lib_name_candidates(library));
    names.filter_map(|name| CString::new(name).ok())
}

fn find_driver() -> Found {
    find(names_of(&["cuda", "nvcuda"]), |driver| {
        ask_number(driver, c"cuDriverGetVersion").map(Version::of_cuda)
    })
}

fn find_nvrtc() -> Found {
    find(names_of(&["nvrtc"]), |nvrtc| {
        type Ask = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: this is how NVRTC declares it; it writes two numbers.
        let status = unsafe { nvrtc.symbol::<Ask>(c"nvrtcVersion")?(&mut major, &mut minor) };
        (status == 0).then(|| Version::new(major as usize, minor as usize))
    })
}

fn find_cudnn() -> Found {
    find(names_of(&["cudnn"]), |cudnn| read_number(cudnn, c"cudnnGetVersion").map(Version::of_decimals))
}

fn find_cublas() -> Found {
    find(names_of(&["cublasLt"]), |cublas| read_number(cublas, c"cublasLtGetVersion").map(Version::of_cublas))
}

fn find_nccl() -> Found {
    let names = [c"libnccl.so.2", c"libnccl.so"].map(CStr::to_owned);
    find(names, |nccl| ask_number(nccl, c"ncclGetVersion").map(Version::of_decimals))
}

/// The version that a function of the driver or of NCCL writes.
fn ask_number(object: &Object, function: &CStr) -> Option<usize> {
    type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
    let mut number = 0;
    // SAFETY: this is how both declare it; it writes one number.
    let status = unsafe { object.symbol::<Ask>(function)?(&mut number) };
    (status == 0).then_some(number as usize)
}

/// The version that a function of cuDNN or cuBLASLt returns.
fn read_number(object: &Object, function: &CStr) -> Option<usize> {
    // SAFETY: this is how both declare it.
    unsafe { Some(object.symbol::<unsafe extern "C" fn() -> usize>(function)?()) }
}

/// An error where the driver is missing or too old.
pub(super) fn need_driver() -> Result<(), EngineError> {
    DRIVER.check(find_driver())
}

/// An error where NVRTC is missing or too old; only needed to compile kernels.
pub(super) fn need_nvrtc() -> Result<(), EngineError> {
    NVRTC.check(find_nvrtc())
}

/// The versions of cuDNN and cuBLASLt by name; an error where one is missing or too old.
pub(super) fn need_mathematics() -> Result<BTreeMap<String, String>, EngineError> {
    [(CUDNN, find_cudnn()), (CUBLAS, find_cublas())]
        .into_iter()
        .map(|(need, found)| {
            let version = found.version();
            need.check(found)?;
            Ok((need.name.to_owned(), version.expect("invariant: it was checked").to_string()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(need: &Need, found: Found) -> String {
        need.check(found).expect_err("it is refused").to_string()
    }

    #[test]
    fn versions_are_decoded_as_each_library_encodes_them() {
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
    fn a_missing_or_old_library_is_reported_with_both_versions() {
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
        let broken = Found::Broken("/lib/libcudnn.so.9: file too short".into());
        assert!(refusal(&CUDNN, broken).starts_with(
            "cuDNN (libcudnn) that cannot be loaded (/lib/libcudnn.so.9: file too short) was found; 9.10 or"
        ));
    }

    #[test]
    fn a_library_without_a_version_function_is_found_without_a_version() {
        let libc = || [c"libpaceline-has-no-such.so".to_owned(), c"libc.so.6".to_owned()];
        assert!(matches!(
            find(libc(), |libc| ask_number(libc, c"cuDriverGetVersion").map(Version::of_cuda)),
            Found::Silent
        ));
        assert!(matches!(
            find(libc(), |libc| read_number(libc, c"cudnnGetVersion").map(Version::of_decimals)),
            Found::Silent
        ));
        assert!(matches!(find(libc().into_iter().take(1), |_| None), Found::Nowhere));
        let text = CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("a path");
        assert!(matches!(find([text], |_| None), Found::Broken(_)));
    }

    #[test]
    fn the_driver_is_looked_for_where_cudarc_does() {
        let names: Vec<_> = names_of(&["cuda", "nvcuda"]).collect();
        assert_eq!(names[0], c"libcuda.so".to_owned());
        assert!(names.contains(&c"libcuda.so.1".to_owned()) && names.contains(&c"libnvcuda.so".to_owned()));
    }

    #[test]
    fn the_oldest_supported_version_and_later_ones_are_accepted() {
        for number in [91_000, 91_001, 91_400, 100_000] {
            assert!(CUDNN.check(Found::Version(Version::of_decimals(number))).is_ok(), "{number}");
        }
        assert!(CUDNN.check(Found::Version(Version::of_decimals(90_902))).is_err());
        assert!(DRIVER.check(Found::Version(Version::of_cuda(13_000))).is_ok());
        assert!(NCCL.check(Found::Version(Version::of_decimals(22_700))).is_ok());
    }

    #[test]
    fn the_list_agrees_with_the_engine_s_own_checks() {
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
