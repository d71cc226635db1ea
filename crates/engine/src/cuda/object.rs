//! Shared objects that are opened by name while the program runs.

use std::ffi::{CStr, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A shared object. It stays loaded until the process ends.
pub(super) struct Object(NonNull<c_void>);

impl Object {
    /// Finds it as the loader does; `None` where it is not, or cannot be loaded.
    pub fn open(name: &CStr) -> Option<Self> {
        // SAFETY: the name ends with a zero. What the object does when it is loaded is its own affair.
        NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }).map(Self)
    }

    /// The address of a function in it.
    ///
    /// # Safety
    /// `F` must be a pointer to a function with the types that the object gives it.
    pub unsafe fn symbol<F: Copy>(&self, name: &CStr) -> Option<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "invariant: a function is named by its address");
        // SAFETY: the object is loaded, the name ends with a zero.
        let address = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })?;
        // SAFETY: of the same size, and the caller vouches for the type.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// Where a library that this process has loaded lies; `file` is how its name begins, as `libcudnn.so`.
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
    fn an_object_is_opened_by_name_and_says_where_it_lies() {
        let libc = Object::open(c"libc.so.6").expect("every process has it");
        // SAFETY: so it is declared.
        let ask = unsafe { libc.symbol::<unsafe extern "C" fn() -> i32>(c"getpid") }.expect("it is there");
        // SAFETY: it takes nothing.
        assert_eq!(unsafe { ask() } as u32, std::process::id());
        // SAFETY: never called.
        assert!(unsafe { libc.symbol::<unsafe extern "C" fn()>(c"paceline_has_no_such") }.is_none());
        assert!(path_of("libc.so").is_some_and(|path| path.ends_with("libc.so.6")));
    }

    #[test]
    fn an_object_that_nobody_has_is_not_found() {
        assert!(Object::open(c"libpaceline-has-no-such.so.1").is_none());
        assert_eq!(path_of("libpaceline-has-no-such.so"), None);
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
