//! Names of kernels and calls as their authors wrote them.

use std::fmt;

use cpp_demangle::{BorrowedSymbol, DemangleOptions, ParseOptions};

/// A longer mangled name stays as it is: nobody reads it, and its expansion could be endless.
const LONGEST_MANGLED: usize = 16 << 10;

/// A name that expands beyond this is kept mangled.
const LONGEST_DEMANGLED: usize = 64 << 10;

/// A C++ name as its author wrote it, without parameters; any other name as it is.
pub fn demangle(name: &str) -> String {
    if !name.starts_with("_Z") || name.len() > LONGEST_MANGLED {
        return name.into();
    }
    let plain = || {
        let parse = ParseOptions::default().recursion_limit(96);
        let (symbol, tail) = BorrowedSymbol::with_tail_and_options(name.as_bytes(), &parse).ok()?;
        let options = DemangleOptions::default().no_params().no_return_type().recursion_limit(96);
        let mut text = Bounded(String::new());
        // Compilers append what C++ does not know, as `.cold` or `.clone.0`.
        (tail.is_empty() || tail[0] == b'.').then_some(())?;
        symbol.structured_demangle(&mut text, &options).ok()?;
        Some(text.0)
    };
    plain().unwrap_or_else(|| name.into())
}

/// Text that refuses to grow without end: a short mangled name can refer to itself over and over.
struct Bounded(String);

impl cpp_demangle::DemangleWrite for Bounded {
    fn write_string(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// A call's name without the version of its interface: `cudaLaunchKernel_v7000` is `cudaLaunchKernel`.
pub fn without_version(name: &str) -> &str {
    let short = name
        .rsplit_once("_v")
        .filter(|(_, version)| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()));
    let short = short.map_or(name, |(short, _)| short);
    short.strip_suffix("_ptsz").or(short.strip_suffix("_ptds")).unwrap_or(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_are_read_and_others_kept() {
        assert_eq!(demangle("_Z5saxpyPdS_S_di"), "saxpy");
        assert_eq!(demangle("_ZN5Eigen8internal3runIfLi4EEEvT_"), "Eigen::internal::run<float, 4>");
        assert_eq!(demangle("_Z5saxpyPdS_S_di.cold"), "saxpy");
        for plain in ["volta_sgemm_128x64_nn", "_Z", "_Znonsense!", ""] {
            assert_eq!(demangle(plain), plain);
        }
    }

    #[test]
    fn a_name_that_doubles_itself_without_end_is_kept_mangled() {
        // Each argument is a pair of the one before: 2^40 letters when written out.
        let mut bomb = String::from("_Z1fI1aE1b");
        let mut id = String::from("S_");
        for level in 0..40_u32 {
            bomb.push_str(&format!("1pI{id}{id}E"));
            id = format!("S{}_", char::from_digit(level % 36, 36).unwrap().to_ascii_uppercase());
        }
        assert!(demangle(&bomb).len() <= LONGEST_DEMANGLED);
        let deep = format!("_Z1f{}i", "P".repeat(10_000));
        assert_eq!(demangle(&deep), deep);
    }

    #[test]
    fn calls_lose_their_version_only() {
        for (full, short) in [
            ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
            ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cudaMemcpy_vast", "cudaMemcpy_vast"),
            ("cuInit", "cuInit"),
        ] {
            assert_eq!(without_version(full), short);
        }
    }
}
