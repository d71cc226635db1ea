//! Plain Rust in place of vector registers.

use super::{Simd, Vector};
use crate::cpu::element::{Bf16, Element};

/// Plain Rust in place of a vector register.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 8]);

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
    const PAIR_ROWS: usize = 4;

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
    unsafe fn load_bf16(from: *const Bf16) -> Self {
        // SAFETY: the caller vouches for LANES values.
        Self(unsafe { from.cast::<[Bf16; 8]>().read_unaligned() }.map(Bf16::widen))
    }
    #[inline(always)]
    unsafe fn load_part_bf16(from: *const Bf16, count: usize) -> Self {
        let mut lanes = [0.0; 8];
        for (i, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: the caller vouches for `count` values.
            *lane = unsafe { *from.add(i) }.widen();
        }
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut Bf16) {
        // SAFETY: the caller vouches for LANES values.
        unsafe { to.cast::<[Bf16; 8]>().write_unaligned(self.0.map(Bf16::round)) }
    }
    #[inline(always)]
    unsafe fn store_part_bf16(self, to: *mut Bf16, count: usize) {
        for (i, &lane) in self.0.iter().enumerate().take(count) {
            // SAFETY: the caller vouches for `count` values.
            unsafe { *to.add(i) = Bf16::round(lane) };
        }
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self, high: Self, to: *mut Bf16) {
        let pair = |i: usize| [Bf16::round(low.0[i]), Bf16::round(high.0[i])];
        // SAFETY: the caller vouches for a pair for each lane.
        unsafe { to.cast::<[[Bf16; 2]; 8]>().write_unaligned(std::array::from_fn(pair)) }
    }
    #[inline(always)]
    unsafe fn store_exact_pairs(low: Self, high: Self, to: *mut Bf16) {
        // SAFETY: the caller vouches.
        unsafe { Self::store_pairs(low, high, to) }
    }
    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self, b: Self) -> Self {
        let low = |pair: f32| f32::from_bits(pair.to_bits() << 16);
        let high = |pair: f32| f32::from_bits(pair.to_bits() & 0xffff_0000);
        Self(std::array::from_fn(|i| {
            let (a, b) = (a.0[i], b.0[i]);
            self.0[i] + low(a) * low(b) + high(a) * high(b)
        }))
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
