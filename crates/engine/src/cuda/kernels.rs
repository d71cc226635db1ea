//! The engine's own kernels: compiled once by NVRTC for this GPU, then cached on disk.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::Mutex;
use std::{fs, ptr};

use cudarc::nvrtc::sys;

use super::driver::{Device, Function, Module};
use super::library;
use crate::{EngineError, Precision};

const SOURCE: &str = include_str!("kernels.cu");

/// The cache folder; `None` where the user has no home folder.
pub(super) fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("paceline").join("cuda"))
}

/// Writes a file of the cache atomically. A failure only costs time.
pub(super) fn keep(path: &std::path::Path, bytes: &[u8]) {
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&draft, bytes));
    if written.and_then(|()| fs::rename(&draft, path)).is_err() {
        let _ = fs::remove_file(&draft);
    }
}

/// FNV-1a.
pub(super) fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// All kernels for one type of activations.
#[derive(Debug)]
pub(super) struct Kernels {
    module: Module,
    found: Mutex<HashMap<String, Function>>,
}

impl Kernels {
    /// Loads them from the cache, or compiles them.
    pub fn load(device: &Device, precision: Precision) -> Result<Self, EngineError> {
        let (major, minor) = device.capability;
        let mut options = vec![format!("--gpu-architecture=sm_{major}{minor}"), "--std=c++17".to_owned()];
        if precision == Precision::Bf16 {
            options.push("-DBF16".to_owned());
        }
        let name = format!("{:016x}.cubin", digest(&format!("{options:?}{SOURCE}")));
        let path = cache_folder().map(|folder| folder.join(name));
        let kept = path.as_ref().and_then(|path| fs::read(path).ok());
        let module = match kept.map(|image| Module::load(&image)) {
            Some(Ok(module)) => module,
            _ => {
                let image = compile(&options)?;
                if let Some(path) = path {
                    keep(&path, &image);
                }
                Module::load(&image)?
            }
        };
        Ok(Self { module, found: Mutex::default() })
    }

    pub fn function(&self, name: &str) -> Result<Function, EngineError> {
        let mut found = self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(&function) = found.get(name) {
            return Ok(function);
        }
        let function = self.module.function(name)?;
        found.insert(name.to_owned(), function);
        Ok(function)
    }
}

fn compile(options: &[String]) -> Result<Vec<u8>, EngineError> {
    library::need_nvrtc()?;
    let text = |text: &str| CString::new(text).expect("invariant: sources and options hold no zeros");
    let (source, name) = (text(SOURCE), text("paceline.cu"));
    let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: all strings end with a zero and outlive the calls; buffers have the lengths that NVRTC names.
    unsafe {
        let mut program = ptr::null_mut();
        let made = sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            0,
            ptr::null(),
            ptr::null(),
        );
        check(made, "nvrtcCreateProgram")?;
        let compiled = sys::nvrtcCompileProgram(program, pointers.len() as c_int, pointers.as_ptr());
        let result = if compiled == sys::nvrtcResult::NVRTC_SUCCESS {
            let mut len = 0;
            check(sys::nvrtcGetCUBINSize(program, &mut len), "nvrtcGetCUBINSize").and_then(|()| {
                let mut image = vec![0u8; len];
                check(sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()), "nvrtcGetCUBIN")?;
                Ok(image)
            })
        } else {
            let mut len = 0;
            let _ = sys::nvrtcGetProgramLogSize(program, &mut len);
            let mut log = vec![0u8; len.max(1)];
            let _ = sys::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            Err(EngineError::Device {
                call: "compiling the kernels".into(),
                answer: String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned(),
            })
        };
        let _ = sys::nvrtcDestroyProgram(&mut program);
        result
    }
}

fn check(status: sys::nvrtcResult, call: &str) -> Result<(), EngineError> {
    if status == sys::nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: NVRTC hands out a static string.
    let answer = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(status)) }.to_string_lossy().into_owned();
    Err(EngineError::Device { call: call.to_owned(), answer })
}
