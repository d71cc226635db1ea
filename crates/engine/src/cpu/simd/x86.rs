//! AVX-512 and AVX2 registers.

// The safety of every block in this module is the safety of the trait's methods: the caller vouches for the
// instruction set and for the pointers.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use std::sync::OnceLock;

use super::{Kernel, Obstacle, Simd, Vector};
use crate::cpu::element::Bf16;
use crate::cpu::{amx, trial};

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,bmi2")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<Wide<false>>() }
}

#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma,bmi2")]
pub(super) unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<Wide<true>>() }
}

/// Why this machine cannot run an instruction set. Each is tried once, in a process of its own.
pub(super) fn obstacle(simd: Simd) -> Option<Obstacle> {
    static FOUND: [OnceLock<Option<Obstacle>>; Simd::ALL.len()] =
        [const { OnceLock::new() }; Simd::ALL.len()];
    *FOUND[simd as usize].get_or_init(|| match simd {
        Simd::Amx => obstacle(Simd::Avx512Bf16).or_else(amx::obstacle),
        Simd::Avx512Bf16 => obstacle(Simd::Avx512).or_else(|| {
            if !is_x86_feature_detected!("avx512bf16") {
                return Some(Obstacle::Processor);
            }
            attempt(simd)
        }),
        Simd::Avx512 => {
            let has_flags = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("bmi2");
            // Where nothing can be tried, these flags are believed: without them all is slow.
            if has_flags {
                attempt(simd).filter(|&why| why != Obstacle::Untried)
            } else {
                Some(Obstacle::Processor)
            }
        }
        Simd::Avx2 => {
            let has_flags = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if has_flags {
                attempt(simd).filter(|&why| why != Obstacle::Untried)
            } else {
                Some(Obstacle::Processor)
            }
        }
        Simd::Portable => None,
    })
}

/// Tries an instruction set whose flags the processor has.
fn attempt(simd: Simd) -> Option<Obstacle> {
    // SAFETY: the attempt allocates nothing and takes no lock, and its process may die of it.
    match unsafe { trial::passes(|| simd.run(Attempt)) } {
        Some(true) => None,
        Some(false) => Some(Obstacle::Failed),
        None => Some(Obstacle::Untried),
    }
}

/// Sums of pairs, conversions and parts of vectors, of values that are exact.
struct Attempt;

impl Kernel for Attempt {
    type Output = bool;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> bool {
        let (mut pairs, mut single, mut sums) = ([Bf16(0); 32], [Bf16(0); 16], [0.0f32; 16]);
        unsafe {
            V::store_pairs(V::splat(3.0), V::splat(-0.5), pairs.as_mut_ptr());
            V::splat(1.5).store_bf16(single.as_mut_ptr());
            let raw = V::load(pairs.as_ptr().cast());
            V::splat(1.0).dot_pairs(raw, raw).store(sums.as_mut_ptr());
            V::load_part(sums.as_ptr(), 3).add(V::splat(1.0)).store_part(sums.as_mut_ptr(), 4);
        }
        let lanes = V::LANES;
        sums[..4] == [11.25, 11.25, 11.25, 1.0]
            && sums[4..lanes].iter().all(|&sum| sum == 10.25)
            && single[..lanes].iter().all(|&value| value == Bf16(0x3fc0))
            && pairs[0] == Bf16(0x4040)
    }
}

/// The bits of bf16 values, rounded to nearest even, in the lower halves of the lanes.
#[inline(always)]
unsafe fn rounded512(value: __m512) -> __m512i {
    unsafe {
        let bits = _mm512_castps_si512(value);
        let upper = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        let sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        let broken = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
        let quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
        _mm512_mask_blend_epi32(broken, _mm512_srli_epi32::<16>(sum), quiet)
    }
}

/// The same for 8 lanes.
#[inline(always)]
unsafe fn rounded256(value: __m256) -> __m256i {
    unsafe {
        let bits = _mm256_castps_si256(value);
        let upper = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        let broken = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        _mm256_blendv_epi8(_mm256_srli_epi32::<16>(sum), quiet, broken)
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    unsafe { kernel.run::<Half>() }
}

/// An AVX-512 register; with `BF16`, bf16 values are rounded and multiplied by instructions of their own.
#[derive(Clone, Copy)]
pub(super) struct Wide<const BF16: bool>(__m512);

impl<const BF16: bool> Wide<BF16> {
    #[inline(always)]
    unsafe fn rounded(self) -> __m256i {
        unsafe {
            if BF16 {
                std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(self.0))
            } else {
                _mm512_cvtepi32_epi16(rounded512(self.0))
            }
        }
    }

    #[inline(always)]
    unsafe fn widened(values: __m256i) -> Self {
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(values))) })
    }
}

#[inline(always)]
fn mask16(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

impl<const BF16: bool> Vector for Wide<BF16> {
    const LANES: usize = 16;
    const ROWS: usize = Simd::Avx512.rows();
    const POINTERS: usize = Simd::Avx512.pointers();
    const PAIR_ROWS: usize = 8;

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
        unsafe { if to.addr().is_multiple_of(64) { _mm512_stream_ps(to, self.0) } else { self.store(to) } }
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
    unsafe fn load_bf16(from: *const Bf16) -> Self {
        unsafe { Self::widened(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_part_bf16(from: *const Bf16, count: usize) -> Self {
        unsafe { Self::widened(_mm256_maskz_loadu_epi16(mask16(count), from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut Bf16) {
        unsafe { _mm256_storeu_si256(to.cast(), self.rounded()) }
    }
    #[inline(always)]
    unsafe fn store_part_bf16(self, to: *mut Bf16, count: usize) {
        unsafe { _mm256_mask_storeu_epi16(to.cast(), mask16(count), self.rounded()) }
    }
    #[inline(always)]
    unsafe fn store_both_bf16(self, next: Self, to: *mut Bf16) {
        unsafe {
            let both = if BF16 {
                std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(next.0, self.0))
            } else {
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(self.rounded()), next.rounded())
            };
            _mm512_storeu_si512(to.cast(), both);
        }
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self, high: Self, to: *mut Bf16) {
        unsafe {
            let pairs = if BF16 {
                // The halves of the register, value by value in turns.
                const TURNS: [u16; 32] = {
                    let mut order = [0; 32];
                    let mut i = 0;
                    while i < 32 {
                        order[i] = (i / 2 + i % 2 * 16) as u16;
                        i += 1;
                    }
                    order
                };
                let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high.0, low.0));
                _mm512_permutexvar_epi16(_mm512_loadu_si512(TURNS.as_ptr().cast()), both)
            } else {
                _mm512_or_si512(rounded512(low.0), _mm512_slli_epi32::<16>(rounded512(high.0)))
            };
            _mm512_storeu_si512(to.cast(), pairs);
        }
    }
    #[inline(always)]
    unsafe fn store_exact_pairs(low: Self, high: Self, to: *mut Bf16) {
        unsafe {
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low.0));
            _mm512_storeu_si512(to.cast(), _mm512_or_si512(low, _mm512_castps_si512(high.0)));
        }
    }
    #[inline(always)]
    unsafe fn turn_pairs(from: *const Bf16, to: *mut Bf16, stride: usize) {
        unsafe {
            // Four pairs of rows i, i + 4, i + 8 and i + 12 make a register: loads put them there, and what is left are blocks of 4 by 4.
            for j in (0..16).step_by(4) {
                let rows: [__m512i; 4] = std::array::from_fn(|i| {
                    let four = |row: usize| _mm_loadu_si128(from.add(2 * (16 * row + j)).cast());
                    let all = _mm512_castsi128_si512(four(i));
                    let all = _mm512_inserti32x4::<1>(all, four(i + 4));
                    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(all, four(i + 8)), four(i + 12))
                });
                let low = [0, 2].map(|i| _mm512_unpacklo_epi32(rows[i], rows[i + 1]));
                let high = [0, 2].map(|i| _mm512_unpackhi_epi32(rows[i], rows[i + 1]));
                let turned = [
                    _mm512_unpacklo_epi64(low[0], low[1]),
                    _mm512_unpackhi_epi64(low[0], low[1]),
                    _mm512_unpacklo_epi64(high[0], high[1]),
                    _mm512_unpackhi_epi64(high[0], high[1]),
                ];
                for (i, row) in turned.into_iter().enumerate() {
                    _mm512_storeu_si512(to.add((j + i) * stride).cast(), row);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self, b: Self) -> Self {
        unsafe {
            if BF16 {
                let pairs = |bits: __m512| std::mem::transmute::<__m512, __m512bh>(bits);
                return Self(_mm512_dpbf16_ps(self.0, pairs(a.0), pairs(b.0)));
            }
            let low = |pair: __m512| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_castps_si512(pair)));
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let high = |pair: __m512| _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pair), upper));
            Self(_mm512_fmadd_ps(high(a.0), high(b.0), _mm512_fmadd_ps(low(a.0), low(b.0), self.0)))
        }
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
    const PAIR_ROWS: usize = 4;

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
        unsafe { if to.addr().is_multiple_of(32) { _mm256_stream_ps(to, self.0) } else { self.store(to) } }
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
    unsafe fn load_bf16(from: *const Bf16) -> Self {
        unsafe {
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)))
        }
    }
    #[inline(always)]
    unsafe fn load_part_bf16(from: *const Bf16, count: usize) -> Self {
        let mut lanes = [Bf16(0); 8];
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
            Self::load_bf16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut Bf16) {
        unsafe {
            let words = rounded256(self.0);
            let halves = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(words, words));
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(halves));
        }
    }
    #[inline(always)]
    unsafe fn store_part_bf16(self, to: *mut Bf16, count: usize) {
        let mut lanes = [Bf16(0); 8];
        unsafe {
            self.store_bf16(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
    #[inline(always)]
    unsafe fn store_pairs(low: Self, high: Self, to: *mut Bf16) {
        unsafe {
            let pairs = _mm256_or_si256(rounded256(low.0), _mm256_slli_epi32::<16>(rounded256(high.0)));
            _mm256_storeu_si256(to.cast(), pairs);
        }
    }
    #[inline(always)]
    unsafe fn store_exact_pairs(low: Self, high: Self, to: *mut Bf16) {
        unsafe {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(low.0));
            _mm256_storeu_si256(to.cast(), _mm256_or_si256(low, _mm256_castps_si256(high.0)));
        }
    }
    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self, b: Self) -> Self {
        unsafe {
            let low = |pair: __m256| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(pair)));
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let high = |pair: __m256| _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pair), upper));
            Self(_mm256_fmadd_ps(high(a.0), high(b.0), _mm256_fmadd_ps(low(a.0), low(b.0), self.0)))
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
