//! SIMD chosen at run time: each kernel is written once over [`Vector`] and compiled for AVX-512, AVX2 and plain Rust.

mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::str::FromStr;

use super::element::{Bf16, Element};
use super::kernels::transpose::turn;
use crate::{EngineError, Precision};
use plain::Plain;

/// An instruction set that this build has kernels for. The first two are for [`Precision::Bf16`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simd {
    /// AVX-512 with bf16 conversions, and products on matrix tiles (TDPBF16PS).
    Amx,
    /// AVX-512 with bf16 conversions and products of pairs (VDPBF16PS).
    Avx512Bf16,
    /// 16 lanes, 32 registers.
    Avx512,
    /// 8 lanes, 16 registers, with fused multiply-add.
    Avx2,
    /// Plain Rust, left to the compiler.
    Portable,
}

impl Simd {
    /// All of them, the best first.
    pub const ALL: [Self; 5] = [Self::Amx, Self::Avx512Bf16, Self::Avx512, Self::Avx2, Self::Portable];

    /// The best that this machine can run in fp32.
    pub fn detect() -> Self {
        Self::best(Precision::Fp32)
    }

    /// The best that this machine can run in a precision.
    pub fn best(precision: Precision) -> Self {
        let fits = |simd: &Self| simd.computes(precision) && simd.available();
        Self::ALL.into_iter().find(fits).unwrap_or(Self::Portable)
    }

    /// The instruction set that is asked for, or the best if none is; an error if this machine lacks it.
    pub(crate) fn choose(asked: Option<Self>, precision: Precision) -> Result<Self, EngineError> {
        match asked {
            Some(simd) if !simd.computes(precision) => Err(EngineError::Unsupported(format!(
                "the instruction set {simd} computes in bf16, not {precision}; use --precision bf16 or another of --instructions"
            ))),
            Some(simd) => match simd.obstacle() {
                Some(why) => Err(EngineError::Unsupported(format!(
                    "this machine cannot run {simd}: {why}; the best that it can run is {}",
                    Self::best(precision)
                ))),
                None => Ok(simd),
            },
            None => Ok(Self::best(precision)),
        }
    }

    /// Whether it has kernels for a precision.
    pub fn computes(self, precision: Precision) -> bool {
        match self {
            Self::Amx | Self::Avx512Bf16 => precision == Precision::Bf16,
            Self::Avx512 | Self::Avx2 | Self::Portable => true,
        }
    }

    /// Whether this machine can run it.
    pub fn available(self) -> bool {
        self.obstacle().is_none()
    }

    /// Why this machine cannot run it. A flag of the processor is not believed: in some virtual machines what the flags promise is an illegal
    /// instruction.
    pub fn obstacle(self) -> Option<Obstacle> {
        #[cfg(target_arch = "x86_64")]
        return x86::obstacle(self);
        #[cfg(not(target_arch = "x86_64"))]
        return (self != Self::Portable).then_some(Obstacle::Processor);
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
                Self::Amx | Self::Avx512Bf16 => x86::run_avx512_bf16(kernel),
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
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 => 16,
            Self::Avx2 | Self::Portable => 8,
        }
    }

    /// Rows of the largest tile whose accumulators fit the registers.
    pub(crate) const fn rows(self) -> usize {
        match self {
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 => 14,
            Self::Avx2 => 6,
            Self::Portable => 4,
        }
    }

    /// Rows of the largest tile that reads each row through a pointer of its own. Measured on Zen 4 with AVX-512:
    /// 115 GFLOP/s with 7 pointers, 110 with 8, 75 with 13, where they no longer fit the general registers.
    pub(crate) const fn pointers(self) -> usize {
        match self {
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 => 7,
            Self::Avx2 => 6,
            Self::Portable => 4,
        }
    }
}

/// Why a machine cannot run an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The processor does not have it.
    Processor,
    /// The kernel does not let this process use it, as in some containers.
    Kernel,
    /// It was tried, and was illegal or computed something else.
    Failed,
    /// It could not be tried.
    Untried,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Processor => "the processor lacks it",
            Self::Kernel => "the kernel does not let this process use it",
            Self::Failed => "it failed when it was tried",
            Self::Untried => "it could not be tried, because the system gave no process for that",
        })
    }
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        })
    }
}

impl FromStr for Simd {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |simd: &Self| simd.to_string() == text;
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            format!("unknown instruction set '{text}'; use amx, avx512_bf16, avx512, avx2 or portable")
        })
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

/// Asks for the cache lines of `len` values from `at` on. They need not exist.
#[inline(always)]
pub(crate) fn prefetch<E>(at: *const E, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for line in (0..len * size_of::<E>()).step_by(64) {
            // SAFETY: a prefetch reads nothing, and faults nowhere.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(line)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
}

/// Asks for the cache lines of `len` values from `at` on, which are to be written soon.
#[inline(always)]
pub(crate) fn prefetch_to_write<E>(at: *mut E, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..len * size_of::<E>()).step_by(64) {
        // SAFETY: a prefetch changes nothing, and faults nowhere; processors that lack this one do nothing.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) at.cast::<u8>().wrapping_add(line), options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len);
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
    /// Rows of two vectors whose sums fit the registers beside pairs that are taken apart.
    const PAIR_ROWS: usize;

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
    unsafe fn load_bf16(from: *const Bf16) -> Self;
    unsafe fn load_part_bf16(from: *const Bf16, count: usize) -> Self;
    /// Rounds all lanes to the nearest, ties to even. NaN and infinity stay what they are.
    unsafe fn store_bf16(self, to: *mut Bf16);
    unsafe fn store_part_bf16(self, to: *mut Bf16, count: usize);
    /// Rounds all lanes of two vectors in the same way and stores them behind each other: whole lines of the caches where it can.
    #[inline(always)]
    unsafe fn store_both_bf16(self, next: Self, to: *mut Bf16) {
        // SAFETY: as the caller vouches, for twice the lanes.
        unsafe {
            self.store_bf16(to);
            next.store_bf16(to.add(Self::LANES));
        }
    }
    /// Stores a pair for each lane, rounded: first the value of `low`, then that of `high`.
    unsafe fn store_pairs(low: Self, high: Self, to: *mut Bf16);
    /// The same for values that are those of bf16 already.
    unsafe fn store_exact_pairs(low: Self, high: Self, to: *mut Bf16);
    /// Writes row i, pair j of 16 rows of 16 pairs, which follow each other, to row j, pair i; `stride` values from one row of `to` to the
    /// next.
    #[inline(always)]
    unsafe fn turn_pairs(from: *const Bf16, to: *mut Bf16, stride: usize) {
        for i in (0..16).step_by(4) {
            for j in (0..16).step_by(4) {
                // SAFETY: blocks of 4 by 4 pairs lie inside both, as the caller vouches.
                unsafe {
                    turn(
                        from.add(2 * (16 * i + j)).cast(),
                        16,
                        to.add(j * stride + 2 * i).cast(),
                        stride / 2,
                    );
                }
            }
        }
    }
    /// self + a.low * b.low + a.high * b.high, where each lane of `a` and `b` has the bits of a pair.
    unsafe fn dot_pairs(self, a: Self, b: Self) -> Self;
    /// All lanes, or the first `count`.
    #[inline(always)]
    unsafe fn load_lanes<E: Element>(from: *const E, count: usize) -> Self {
        // SAFETY: the caller vouches for `count` values.
        unsafe { E::load_lanes(from, count) }
    }
    /// Stores all lanes, or the first `count`.
    #[inline(always)]
    unsafe fn store_lanes<E: Element>(self, to: *mut E, count: usize) {
        // SAFETY: the caller vouches for `count` values.
        unsafe { E::store_lanes(self, to, count) }
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
