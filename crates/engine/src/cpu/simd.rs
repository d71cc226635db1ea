//! SIMD chosen at run time: each kernel is written once over [`Vector`] and compiled for AVX-512, AVX2 and plain Rust.

use std::fmt;
use std::str::FromStr;

use crate::EngineError;

/// An instruction set that this build has kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// 16 lanes, 32 registers.
    Avx512,
    /// 8 lanes, 16 registers, with fused multiply-add.
    Avx2,
    /// Plain Rust, left to the compiler.
    Portable,
}

impl Simd {
    /// The best that this machine can run.
    pub fn detect() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|simd| simd.available()).unwrap_or(Self::Portable)
    }

    /// The instruction set that is asked for, or the best if none is; an error if this machine lacks it.
    pub(crate) fn choose(asked: Option<Self>) -> Result<Self, EngineError> {
        let best = Self::detect();
        match asked {
            Some(simd) if !simd.available() => Err(EngineError::Unsupported(format!(
                "this machine's processor has no {simd}; the best that it has is {best}"
            ))),
            asked => Ok(asked.unwrap_or(best)),
        }
    }

    /// Whether this machine can run it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                std::is_x86_feature_detected!("avx512f")
                    && std::is_x86_feature_detected!("avx512vl")
                    && std::is_x86_feature_detected!("avx512dq")
                    && std::is_x86_feature_detected!("avx512bw")
                    && std::is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// Runs a kernel with this instruction set.
    ///
    /// # Safety
    /// The instruction set must be available, and what the kernel asks of its pointers must hold.
    #[inline]
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller vouches for both.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => x86::run_avx512(kernel),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => x86::run_avx2(kernel),
                _ => kernel.run::<Plain>(),
            }
        }
    }

    /// Lanes of one vector.
    pub(crate) const fn lanes(self) -> usize {
        match self {
            Self::Avx512 => 16,
            Self::Avx2 | Self::Portable => 8,
        }
    }

    /// Rows of the largest tile whose accumulators fit the registers.
    pub(crate) const fn rows(self) -> usize {
        match self {
            Self::Avx512 => 14,
            Self::Avx2 => 6,
            Self::Portable => 4,
        }
    }

    /// Rows of the largest tile that reads each row through a pointer of its own. Measured on Zen 4 with AVX-512:
    /// 115 GFLOP/s with 7 pointers, 110 with 8, 75 with 13, where they no longer fit the general registers.
    pub(crate) const fn pointers(self) -> usize {
        match self {
            Self::Avx512 => 7,
            Self::Avx2 => 6,
            Self::Portable => 4,
        }
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        })
    }
}

impl FromStr for Simd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "avx512" => Ok(Self::Avx512),
            "avx2" => Ok(Self::Avx2),
            "portable" => Ok(Self::Portable),
            _ => Err(format!("unknown instruction set '{text}'; use avx512, avx2 or portable")),
        }
    }
}

/// A computation written once for every instruction set. `run`, and every function and closure that it calls, must be
/// `#[inline(always)]`, so that all of it is compiled inside the function that enables the instruction set.
pub(crate) trait Kernel {
    type Output;

    /// # Safety
    /// The vector's instruction set must be available; each kernel says what its pointers must satisfy.
    unsafe fn run<V: Vector>(self) -> Self::Output;
}

/// Calls `visit(offset, lanes)` for each vector of `len` values, the last one possibly short.
#[inline(always)]
pub(crate) fn each_vector<V: Vector>(len: usize, mut visit: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at + V::LANES <= len {
        visit(at, V::LANES);
        at += V::LANES;
    }
    if at < len {
        visit(at, len - at);
    }
}

/// Puts this thread's streamed stores before all stores that follow: whoever sees one of those sees them.
pub(crate) fn settle_streams() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it, and it touches nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// A vector of 32-bit floats.
///
/// # Safety of all methods
/// The vector's instruction set must be available, and pointers must be valid for `LANES` floats.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Vector: Copy {
    const LANES: usize;
    /// [`Simd::rows`].
    const ROWS: usize;
    /// [`Simd::pointers`].
    const POINTERS: usize;

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Stores all lanes past the caches where that saves reading what was there, at an aligned address. Such stores come after
    /// others until [`settle_streams`].
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32) {
        // SAFETY: as the caller vouches.
        unsafe { self.store(to) }
    }
    /// The first `count` lanes, the rest zero.
    unsafe fn load_part(from: *const f32, count: usize) -> Self;
    /// Stores the first `count` lanes only.
    unsafe fn store_part(self, to: *mut f32, count: usize);
    /// All lanes, or the first `count`.
    #[inline(always)]
    unsafe fn load_lanes(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller vouches for `count` floats.
        unsafe { if count == Self::LANES { Self::load(from) } else { Self::load_part(from, count) } }
    }
    /// Stores all lanes, or the first `count`.
    #[inline(always)]
    unsafe fn store_lanes(self, to: *mut f32, count: usize) {
        // SAFETY: the caller vouches for `count` floats.
        unsafe { if count == Self::LANES { self.store(to) } else { self.store_part(to, count) } }
    }
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    unsafe fn sqrt(self) -> Self;
    /// The larger one; `other` where either is NaN.
    unsafe fn max(self, other: Self) -> Self;
    /// The smaller one; `other` where either is NaN.
    unsafe fn min(self, other: Self) -> Self;
    /// self * a + b, rounded once where the hardware can.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// `self` in the lanes where low < probe < high, else 0.
    unsafe fn keep_between(self, probe: Self, low: Self, high: Self) -> Self;
    /// `yes` in the lanes where self > other or self is NaN, else `no`.
    unsafe fn choose_greater(self, other: Self, yes: Self, no: Self) -> Self;
}

/// Plain Rust in place of a vector register.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; 8]);

impl Plain {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Vector for Plain {
    const LANES: usize = 8;
    const ROWS: usize = Simd::Portable.rows();
    const POINTERS: usize = Simd::Portable.pointers();

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 8])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches for LANES floats.
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller vouches for LANES floats.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; 8];
        // SAFETY: the caller vouches for `count` floats.
        unsafe { std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count) };
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, count: usize) {
        // SAFETY: the caller vouches for `count` floats.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), to, count) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }
    #[inline(always)]
    unsafe fn keep_between(self, probe: Self, low: Self, high: Self) -> Self {
        Self(std::array::from_fn(|i| {
            if probe.0[i] > low.0[i] && probe.0[i] < high.0[i] { self.0[i] } else { 0.0 }
        }))
    }
    #[inline(always)]
    unsafe fn choose_greater(self, other: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| {
            if self.0[i] > other.0[i] || self.0[i].is_nan() { yes.0[i] } else { no.0[i] }
        }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    // The safety of every block in this module is the safety of the trait's methods: the caller vouches for the
    // instruction set and for the pointers.
    #![allow(clippy::undocumented_unsafe_blocks)]

    use std::arch::x86_64::*;

    use super::{Kernel, Simd, Vector};

    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,bmi2")]
    pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        unsafe { kernel.run::<Wide>() }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        unsafe { kernel.run::<Half>() }
    }

    /// An AVX-512 register.
    #[derive(Clone, Copy)]
    pub(super) struct Wide(__m512);

    #[inline(always)]
    fn mask16(count: usize) -> __mmask16 {
        ((1u32 << count) - 1) as __mmask16
    }

    impl Vector for Wide {
        const LANES: usize = 16;
        const ROWS: usize = Simd::Avx512.rows();
        const POINTERS: usize = Simd::Avx512.pointers();

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut f32) {
            unsafe {
                if to.addr().is_multiple_of(64) { _mm512_stream_ps(to, self.0) } else { self.store(to) }
            }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> Self {
            Self(unsafe { _mm512_maskz_loadu_ps(mask16(count), from) })
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, count: usize) {
            unsafe { _mm512_mask_storeu_ps(to, mask16(count), self.0) }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            Self(unsafe { _mm512_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            Self(unsafe { _mm512_sqrt_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn min(self, other: Self) -> Self {
            Self(unsafe { _mm512_min_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            Self(unsafe { _mm512_fmadd_ps(self.0, a.0, b.0) })
        }
        #[inline(always)]
        unsafe fn keep_between(self, probe: Self, low: Self, high: Self) -> Self {
            unsafe {
                let above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(probe.0, low.0);
                let both = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(above, probe.0, high.0);
                Self(_mm512_maskz_mov_ps(both, self.0))
            }
        }
        #[inline(always)]
        unsafe fn choose_greater(self, other: Self, yes: Self, no: Self) -> Self {
            unsafe {
                let greater = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0);
                let broken = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                Self(_mm512_mask_blend_ps(greater | broken, no.0, yes.0))
            }
        }
    }

    /// An AVX2 register.
    #[derive(Clone, Copy)]
    pub(super) struct Half(__m256);

    impl Vector for Half {
        const LANES: usize = 8;
        const ROWS: usize = Simd::Avx2.rows();
        const POINTERS: usize = Simd::Avx2.pointers();

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Self(unsafe { _mm256_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn stream(self, to: *mut f32) {
            unsafe {
                if to.addr().is_multiple_of(32) { _mm256_stream_ps(to, self.0) } else { self.store(to) }
            }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> Self {
            let mut lanes = [0.0f32; 8];
            unsafe {
                std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
                Self(_mm256_loadu_ps(lanes.as_ptr()))
            }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, count: usize) {
            let mut lanes = [0.0f32; 8];
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), self.0);
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
            }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn div(self, other: Self) -> Self {
            Self(unsafe { _mm256_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn sqrt(self) -> Self {
            Self(unsafe { _mm256_sqrt_ps(self.0) })
        }
        #[inline(always)]
        unsafe fn max(self, other: Self) -> Self {
            Self(unsafe { _mm256_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn min(self, other: Self) -> Self {
            Self(unsafe { _mm256_min_ps(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn mul_add(self, a: Self, b: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(self.0, a.0, b.0) })
        }
        #[inline(always)]
        unsafe fn keep_between(self, probe: Self, low: Self, high: Self) -> Self {
            unsafe {
                let above = _mm256_cmp_ps::<_CMP_GT_OQ>(probe.0, low.0);
                let below = _mm256_cmp_ps::<_CMP_LT_OQ>(probe.0, high.0);
                Self(_mm256_and_ps(self.0, _mm256_and_ps(above, below)))
            }
        }
        #[inline(always)]
        unsafe fn choose_greater(self, other: Self, yes: Self, no: Self) -> Self {
            unsafe {
                let greater = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0);
                let broken = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
                Self(_mm256_blendv_ps(no.0, yes.0, _mm256_or_ps(greater, broken)))
            }
        }
    }
}
