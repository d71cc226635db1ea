//! The number formats in which activations and their gradients are stored. All arithmetic is in fp32.

use super::simd::Vector;

/// A value of an activation or of its gradient.
pub(crate) trait Element: Copy + Default + Send + Sync + 'static {
    /// The value in fp32; exact.
    fn widen(self) -> f32;

    /// The nearest value, ties to even; NaN stays NaN.
    fn round(value: f32) -> Self;

    /// The first `count` values, the other lanes zero.
    ///
    /// # Safety
    /// The vector's instruction set must be available and `count` values valid.
    unsafe fn load_lanes<V: Vector>(from: *const Self, count: usize) -> V;

    /// Stores the first `count` lanes.
    ///
    /// # Safety
    /// As [`Element::load_lanes`].
    unsafe fn store_lanes<V: Vector>(value: V, to: *mut Self, count: usize);

    /// Adds to a stored value.
    #[inline(always)]
    fn add(&mut self, value: f32) {
        *self = Self::round(self.widen() + value);
    }
}

impl Element for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        value
    }

    #[inline(always)]
    unsafe fn load_lanes<V: Vector>(from: *const Self, count: usize) -> V {
        // SAFETY: the caller vouches for `count` values.
        unsafe { if count == V::LANES { V::load(from) } else { V::load_part(from, count) } }
    }

    #[inline(always)]
    unsafe fn store_lanes<V: Vector>(value: V, to: *mut Self, count: usize) {
        // SAFETY: the caller vouches for `count` values.
        unsafe { if count == V::LANES { value.store(to) } else { value.store_part(to, count) } }
    }
}

/// A bfloat16: the upper half of an fp32's bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Bf16(pub u16);

impl Element for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn round(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            // The quiet bit keeps a NaN whose payload is cut off from becoming an infinity.
            return Self((bits >> 16) as u16 | 0x40);
        }
        Self(((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }

    #[inline(always)]
    unsafe fn load_lanes<V: Vector>(from: *const Self, count: usize) -> V {
        // SAFETY: the caller vouches for `count` values.
        unsafe { if count == V::LANES { V::load_bf16(from) } else { V::load_part_bf16(from, count) } }
    }

    #[inline(always)]
    unsafe fn store_lanes<V: Vector>(value: V, to: *mut Self, count: usize) {
        // SAFETY: the caller vouches for `count` values.
        unsafe { if count == V::LANES { value.store_bf16(to) } else { value.store_part_bf16(to, count) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{Kernel, Simd};

    /// Stores values as bf16 and reads them back, all lanes and a part of them, alone and in pairs.
    struct There<'a>(&'a [f32]);

    impl Kernel for There<'_> {
        type Output = Vec<[Bf16; 3]>;

        #[inline(always)]
        unsafe fn run<V: Vector>(self) -> Self::Output {
            let mut all = Vec::new();
            for &value in self.0 {
                let mut whole = [Bf16(1); 16];
                let mut part = [Bf16(1); 16];
                let mut pairs = [Bf16(1); 32];
                // SAFETY: the arrays have room for the widest vector.
                unsafe {
                    let vector = V::splat(value);
                    vector.store_bf16(whole.as_mut_ptr());
                    vector.store_part_bf16(part.as_mut_ptr(), 3);
                    V::store_pairs(V::splat(2.0), vector, pairs.as_mut_ptr());
                    let mut back = [0.0f32; 16];
                    V::load_bf16(whole.as_ptr()).store(back.as_mut_ptr());
                    assert_eq!(back[0].to_bits(), whole[0].widen().to_bits());
                    V::load_part_bf16(whole.as_ptr(), 2).store(back.as_mut_ptr());
                    assert_eq!((back[1].to_bits(), back[2]), (whole[1].widen().to_bits(), 0.0));
                }
                assert!(whole[..V::LANES].iter().all(|&stored| stored == whole[0]));
                assert_eq!(part[3], Bf16(1), "only a part is stored");
                assert_eq!((pairs[0], pairs[2 * V::LANES - 2]), (Bf16(0x4000), Bf16(0x4000)));
                assert_eq!(pairs[1], pairs[2 * V::LANES - 1]);
                all.push([whole[0], part[2], pairs[1]]);
            }
            all
        }
    }

    #[test]
    fn every_instruction_set_rounds_to_nearest_even_and_keeps_nan_and_infinity() {
        let mut values: Vec<f32> = [
            0.0,
            -0.0,
            1.0,
            -3.0e38,
            f32::MAX,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1.003_906_2,
            1.011_718_8,
            f32::MIN_POSITIVE,
        ]
        .to_vec();
        let mut state = 7u32;
        for _ in 0..4000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(state);
            if value.is_normal() {
                values.push(value);
            }
        }
        let broken = [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)];
        for simd in Simd::ALL.into_iter().filter(|simd| simd.available()) {
            // SAFETY: the instruction set is available.
            let (stored, nans) = unsafe { (simd.run(There(&values)), simd.run(There(&broken))) };
            for (value, stored) in values.iter().zip(stored) {
                let nearest = Bf16::round(*value);
                assert_eq!(stored, [nearest; 3], "{simd}: {value:e}");
                let step = f32::from_bits(nearest.widen().to_bits() ^ 0x1_0000) - nearest.widen();
                let off = (nearest.widen() - value).abs();
                assert!(nearest.widen().is_infinite() || off <= step.abs(), "{value:e} became {nearest:?}");
            }
            assert!(nans.iter().flatten().all(|stored| stored.widen().is_nan()), "{simd}: {nans:?}");
        }
        let denormals: Vec<f32> =
            [1u32, 0x8000, 0x1_8000, 0x7f_0000, 0x807f_8000].map(f32::from_bits).to_vec();
        for simd in Simd::ALL.into_iter().filter(|simd| simd.available()) {
            // SAFETY: the instruction set is available.
            let stored = unsafe { simd.run(There(&denormals)) };
            for (value, stored) in denormals.iter().zip(stored) {
                let expected = match simd {
                    Simd::Amx | Simd::Avx512Bf16 => Bf16((value.to_bits() >> 16 & 0x8000) as u16),
                    Simd::Avx512 | Simd::Avx2 | Simd::Portable => Bf16::round(*value),
                };
                assert_eq!(stored, [expected; 3], "{simd}: {value:e}");
            }
        }
        assert_eq!(Bf16::round(1.003_906_2), Bf16(0x3f80), "a tie goes to the even neighbour");
        assert_eq!(Bf16::round(1.011_718_8), Bf16(0x3f82), "a tie goes to the even neighbour");
    }
}
