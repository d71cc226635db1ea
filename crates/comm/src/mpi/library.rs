//! MPI libraries, found at run time.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use super::interface::{Abi, Interface};
use crate::CommError;

/// The environment variable that names a library.
pub const VARIABLE: &str = "PACELINE_MPI";

/// Whose launcher started this process: another one's library does not find the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI's mpirun, or PMIx.
    OpenMpi,
    /// Hydra, or another one that speaks PMI: MPICH, Intel, MVAPICH, Cray.
    Mpich,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::OpenMpi, Self::Mpich];

    /// Names of its libraries, the likeliest first.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::OpenMpi => &["libmpi.so.40", "libmpi_abi.so.1"],
            Self::Mpich => &["libmpich.so.12", "libmpi.so.12", "libmpi_abi.so.1"],
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH, or one with its interface",
        })
    }
}

/// The oldest version of the standard that will do, and of Open MPI, whose own binary interface was another one before.
const STANDARD: (u32, u32) = (3, 0);
const OPEN_MPI: u32 = 4;

/// Room for any version's text: the three interfaces ask for 256 to 8192 bytes.
const VERSION: usize = 16 << 10;

/// A library that can be loaded.
pub struct Library {
    opened: libloading::Library,
    abi: Abi,
    /// Its name and version, as it tells them itself.
    pub version: String,
    /// The version of the standard that it has.
    pub standard: (u32, u32),
    /// Where it was loaded from.
    pub path: Option<PathBuf>,
}

impl Library {
    /// The library that belongs to the launcher that started this process: the one that [`VARIABLE`] names, one beside that
    /// launcher, or one that the loader finds.
    ///
    /// # Errors
    /// [`NoMpi`](CommError::NoMpi) if there is none, or if it is too old.
    pub fn find(family: Family) -> Result<Self, CommError> {
        if let Some(named) = Self::named() {
            return named;
        }
        let folders = std::os::unix::process::parent_id();
        let beside = beside(&PathBuf::from(format!("/proc/{folders}/exe")));
        let near = beside.iter().flat_map(|folder| family.names().iter().map(|name| folder.join(name)));
        let near = near.filter(|path| path.exists()).map(|path| path.to_string_lossy().into_owned());
        let names = family.names().iter().map(|&name| name.to_owned());
        let mut refused = None;
        for name in near.chain(names) {
            match Self::open(&name) {
                Ok(Some(library)) => return Ok(library),
                Ok(None) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let names = family.names().join(", ");
        Err(refused.unwrap_or_else(|| missing(format!("no library of {family} was found ({names})"))))
    }

    /// All that the loader finds, and the one that [`VARIABLE`] names. They stay loaded: what a library leaves behind in a process may
    /// need it.
    pub fn all() -> Vec<Result<&'static Self, CommError>> {
        let mut names: Vec<&str> = Vec::new();
        for name in Family::ALL.into_iter().flat_map(Family::names) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        let opened = names.into_iter().filter_map(|name| Self::open(name).transpose());
        let mut found: Vec<Result<&'static Self, CommError>> = Vec::new();
        for opened in Self::named().into_iter().chain(opened) {
            let opened = opened.map(|library| &*Box::leak(Box::new(library)));
            let is_known = |other: &Result<&Self, CommError>| match (other, &opened) {
                (Ok(other), Ok(opened)) => other.path.is_some() && other.path == opened.path,
                _ => false,
            };
            if !found.iter().any(is_known) {
                found.push(opened);
            }
        }
        found
    }

    /// The one that [`VARIABLE`] names, if it names one.
    fn named() -> Option<Result<Self, CommError>> {
        let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty())?;
        let named = named.to_string_lossy();
        let absent = || missing(format!("{named}, which {VARIABLE} names, was not found"));
        Some(Self::open(&named).and_then(|opened| opened.ok_or_else(absent)))
    }

    /// Loads a library; `None` if there is no such file.
    fn open(name: &str) -> Result<Option<Self>, CommError> {
        // SAFETY: its initialisers run, which MPI allows at any time.
        let opened = match unsafe { Opened::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(opened) => libloading::Library::from(opened),
            Err(libloading::Error::DlOpen { source }) => {
                let why = source.to_string();
                let is_missing = why.contains(name) && why.ends_with("No such file or directory");
                return match is_missing {
                    true => Ok(None),
                    false => Err(missing(format!("{name} cannot be loaded ({why})"))),
                };
            }
            Err(error) => return Err(missing(format!("{name} cannot be loaded ({error})"))),
        };
        let Some((version, standard)) = ask(&opened) else {
            return Err(missing(format!("{name} is no MPI library")));
        };
        if let Some(why) = is_too_old(&version, standard) {
            return Err(missing(format!("{version} was found, and {why}")));
        }
        Ok(Some(Self { abi: Abi::of(&opened), opened, version, standard, path: path_of(name) }))
    }

    /// Which binary interface it has.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// Begins MPI, with places for so many messages that are under way. To be called once in a process, by the thread that makes all
    /// calls.
    pub(super) fn begin(self, places: usize) -> Result<Box<dyn Interface>, CommError> {
        self.abi.begin(self.opened, places)
    }
}

fn missing(why: String) -> CommError {
    CommError::NoMpi { why }
}

/// Why a library will not do.
fn is_too_old(version: &str, standard: (u32, u32)) -> Option<String> {
    if standard < STANDARD {
        let (major, minor) = STANDARD;
        return Some(format!("MPI {major}.{minor} or later is needed"));
    }
    let number = version.strip_prefix("Open MPI v")?.split('.').next()?.parse::<u32>().ok()?;
    (number < OPEN_MPI).then(|| format!("Open MPI {OPEN_MPI} or later is needed"))
}

/// A library's name with its version in one line, and the version of the standard.
fn ask(opened: &libloading::Library) -> Option<(String, (u32, u32))> {
    type Name = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut text, mut len): (Vec<u8>, c_int) = (vec![0; VERSION], 0);
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: so the standard declares both, which may be called at any time; there is room for the longest text.
    let codes = unsafe {
        let name = opened.get::<Name>("MPI_Get_library_version").ok()?;
        let version = opened.get::<Version>("MPI_Get_version").ok()?;
        (name(text.as_mut_ptr().cast(), &mut len), version(&mut major, &mut minor))
    };
    let text = text.get(..usize::try_from(len).ok()?)?;
    (codes == (0, 0)).then(|| (shorten(&String::from_utf8_lossy(text)), (major as u32, minor as u32)))
}

/// The name and the version out of what libraries tell of themselves, which may be pages.
fn shorten(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim_end_matches('\0');
    let line = line.split(", package").next().unwrap_or_default();
    let line = line.split(" for Linux").next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "Version:").collect();
    words.join(" ")
}

/// Folders of libraries beside a program.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Ok(program) = program.canonicalize() else { return Vec::new() };
    let Some(root) = program.parent().and_then(Path::parent) else { return Vec::new() };
    ["lib", "lib64"].map(|name| root.join(name)).into_iter().filter(|folder| folder.is_dir()).collect()
}

/// Where a library that was opened by this name was loaded from.
fn path_of(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).canonicalize().ok();
    }
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let is_it = |path: &&Path| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name));
    paths.find(is_it).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_in_a_few_words() {
        for (told, expected) in [
            (
                "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022",
                "Open MPI v4.1.4",
            ),
            ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022\n", "MPICH 4.0.2"),
            ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n\0", "Intel(R) MPI Library 2021.18.1"),
        ] {
            assert_eq!(shorten(told), expected);
        }
    }

    #[test]
    fn old_libraries_are_refused_in_words() {
        assert_eq!(is_too_old("Open MPI v4.1.4", (3, 1)), None);
        assert_eq!(is_too_old("MPICH 3.1", (3, 0)), None);
        let why = is_too_old("Open MPI v1.10.7", (3, 0)).expect("it is too old");
        assert!(why.contains("Open MPI 4"), "{why}");
        let why = is_too_old("MPICH2 1.4", (2, 2)).expect("it is too old");
        assert!(why.contains("MPI 3.0"), "{why}");
    }

    #[test]
    fn what_is_no_library_of_mpi_is_refused_and_what_is_not_there_is_not_found() {
        assert!(matches!(Library::open("libpaceline-has-no-such.so"), Ok(None)));
        let refusal = |name: &str| match Library::open(name) {
            Err(CommError::NoMpi { why }) => why,
            _ => panic!("{name} is no library of MPI"),
        };
        assert!(refusal("libc.so.6").contains("no MPI library"));
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(refusal(text).contains("cannot be loaded"));
    }

    #[test]
    fn libraries_beside_a_program_come_first() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["bin", "lib"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let program = folder.path().join("bin/mpirun");
        std::fs::write(&program, "").expect("a file");
        assert_eq!(beside(&program), [folder.path().canonicalize().expect("it is there").join("lib")]);
        assert_eq!(beside(&folder.path().join("bin/none")), [] as [PathBuf; 0]);
    }
}
