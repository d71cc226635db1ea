//! Shared objects opened by name at run time.

use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::{Error, Library};

/// A shared object. It stays loaded until the process ends.
pub(super) struct Object(ManuallyDrop<Library>);

impl Object {
    /// Finds it as the loader does: `None` where there is none, the loader's error where it cannot be loaded.
    pub fn open(name: &CStr) -> Result<Option<Self>, String> {
        let name = name.to_string_lossy();
        // SAFETY: the library's initialisation is trusted, as with any library of the system.
        match unsafe { Library::new(&*name) } {
            Ok(library) => Ok(Some(Self(ManuallyDrop::new(library)))),
            Err(Error::DlOpen { source }) => {
                // Where a dependency is missing, the error names the dependency.
                let why = source.to_string();
                let is_missing = why.contains(&*name) && why.ends_with("No such file or directory");
                if is_missing { Ok(None) } else { Err(why) }
            }
            Err(other) => Err(other.to_string()),
        }
    }

    /// The first of these that can be loaded; where none can, the error of the first that exists.
    pub fn open_first(names: impl IntoIterator<Item = CString>) -> Result<Option<Self>, String> {
        let mut broken = None;
        for name in names {
            match Self::open(&name) {
                Ok(Some(object)) => return Ok(Some(object)),
                Ok(None) => {}
                Err(why) => broken = broken.or(Some(why)),
            }
        }
        broken.map_or(Ok(None), Err)
    }

    /// The address of a function in it.
    ///
    /// # Safety
    /// `F` must be a pointer to a function with the types that the object gives it.
    pub unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "invariant: a function is named by its address");
        // SAFETY: the caller vouches for the type.
        unsafe { self.0.get::<F>(name.to_bytes_with_nul()) }.ok().map(|symbol| *symbol)
    }
}

/// The path of a library that this process has loaded; `file` is the beginning of its file name, like `libcudnn.so`.
pub(super) fn path_of(file: &str) -> Option<PathBuf> {
    find_mapped(&fs::read_to_string("/proc/self/maps").ok()?, file)
}

/// The first file of a list of mappings whose name is `file`, with or without a version behind it.
fn find_mapped(maps: &str, file: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let fits = |path: &&Path| {
        let rest = path.file_name().and_then(|name| name.to_str()?.strip_prefix(file));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    paths.into_iter().find(fits).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_opened_by_name_and_its_path_is_known() {
        let libc = Object::open(c"libc.so.6").expect("it can be loaded").expect("every process has it");
        // SAFETY: this is how libc declares it.
        let ask = unsafe { libc.symbol::<unsafe extern "C" fn() -> i32>(c"getpid") }.expect("it is there");
        // SAFETY: it takes nothing.
        assert_eq!(unsafe { ask() } as u32, std::process::id());
        // SAFETY: never called.
        assert!(unsafe { libc.symbol::<unsafe extern "C" fn()>(c"paceline_has_no_such") }.is_none());
        assert!(path_of("libc.so").is_some_and(|path| path.ends_with("libc.so.6")));
    }

    #[test]
    fn an_object_that_does_not_exist_is_not_found() {
        assert!(matches!(Object::open(c"libpaceline-has-no-such.so.1"), Ok(None)));
        assert_eq!(path_of("libpaceline-has-no-such.so"), None);
    }

    #[test]
    fn the_first_that_can_be_loaded_is_taken_and_one_that_cannot_is_told_from_none() {
        let none = c"libpaceline-has-no-such.so.1";
        let broken = CString::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("a path");
        let open = |names: &[&CStr]| Object::open_first(names.iter().map(|&name| name.to_owned()));
        assert!(matches!(open(&[none, &broken, c"libc.so.6"]), Ok(Some(_))));
        assert!(matches!(open(&[none, none]), Ok(None)));
        let why = open(&[none, &broken, none]).map(drop).expect_err("it is text");
        assert!(why.contains("Cargo.toml"), "{why}");
    }

    #[test]
    fn the_path_of_a_mapping_is_told_from_its_neighbours() {
        let maps = "\
55d0-55d1 r-xp 00000000 08:01 12                         /opt/my runs/paceline
7f00-7f01 r-xp 00000000 00:00 0
7f01-7f02 r-xp 00000000 08:01 13                         /opt/my libs/libcudnn_ops.so.9
7f02-7f03 r-xp 00000000 08:01 14                         /opt/my libs/libcudnn.so.9
7ffd-7ffe r-xp 00000000 00:00 0                          [vdso]
";
        assert_eq!(find_mapped(maps, "libcudnn.so"), Some("/opt/my libs/libcudnn.so.9".into()));
        assert_eq!(find_mapped(maps, "libnccl.so"), None);
    }
}
