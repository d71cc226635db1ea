//! Handing kernels to a stream.

use std::ffi::c_void;

use super::super::driver::{Shape, Stream};
use super::super::kernels::Kernels;
use crate::EngineError;

/// An argument of a kernel in memory.
#[derive(Clone, Copy)]
pub(crate) struct Word([u64; 8]);

impl Word {
    /// A value as it lies in memory.
    pub fn of<T: Copy>(value: &T) -> Self {
        assert!(size_of::<T>() <= size_of::<Self>(), "invariant: an argument is small");
        let mut word = Self([0; 8]);
        // SAFETY: it fits, and both are plain.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const *value).cast::<u8>(),
                word.0.as_mut_ptr().cast(),
                size_of::<T>(),
            )
        };
        word
    }
}

impl From<u64> for Word {
    fn from(value: u64) -> Self {
        Self::of(&value)
    }
}

impl From<i32> for Word {
    fn from(value: i32) -> Self {
        Self::of(&value)
    }
}

impl From<f32> for Word {
    fn from(value: f32) -> Self {
        Self::of(&value)
    }
}

pub(crate) fn wide_shape(values: usize) -> Shape {
    Shape {
        grid: (values.div_ceil(256).clamp(1, 132 * 32) as u32, 1, 1),
        block: (256, 1),
        shared: 0,
        cluster: 1,
    }
}

pub(crate) fn launch(
    kernels: &Kernels,
    stream: &Stream,
    name: &str,
    shape: Shape,
    args: &[Word],
) -> Result<(), EngineError> {
    let mut words = args.to_vec();
    let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| word.0.as_mut_ptr().cast()).collect();
    // SAFETY: the lowering gives each kernel its arguments in order; addresses are those of the program's memory.
    unsafe { kernels.function(name)?.launch(stream, shape, &mut pointers) }
}
