//! Values that are added side by side, by one instruction where the machine has it.

/// A few values. Every function and what calls it is inlined, so that a loop over vectors is compiled with the
/// instructions of the function around it.
pub(crate) trait Vector: Copy {
    /// Values.
    const LEN: usize;

    /// # Safety
    /// `from` must be valid to read [`Self::LEN`] values, aligned as one; the vector's instructions must be available, here
    /// and below.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// `into` must be valid to write [`Self::LEN`] values, aligned as one.
    unsafe fn store(self, into: *mut f32);

    /// # Safety
    /// The instructions must be available.
    unsafe fn plus(self, other: Self) -> Self;

    /// # Safety
    /// The instructions must be available.
    unsafe fn times(self, other: Self) -> Self;

    /// The same value, as often as there is room.
    ///
    /// # Safety
    /// The instructions must be available.
    unsafe fn fill(value: f32) -> Self;
}

impl Vector for f32 {
    const LEN: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches.
        unsafe { *from }
    }

    #[inline(always)]
    unsafe fn store(self, into: *mut f32) {
        // SAFETY: the caller vouches.
        unsafe { *into = self }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        self + other
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        self * other
    }

    #[inline(always)]
    unsafe fn fill(value: f32) -> Self {
        value
    }
}

/// Plain Rust, which the compiler makes a vector of where the target has them.
impl Vector for [f32; 4] {
    const LEN: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller vouches; an array is aligned as its values.
        unsafe { *from.cast() }
    }

    #[inline(always)]
    unsafe fn store(self, into: *mut f32) {
        // SAFETY: as above.
        unsafe { *into.cast() = self }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        let [a, b, c, d] = self;
        let [e, f, g, h] = other;
        [a + e, b + f, c + g, d + h]
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        let [a, b, c, d] = self;
        let [e, f, g, h] = other;
        [a * e, b * f, c * g, d * h]
    }

    #[inline(always)]
    unsafe fn fill(value: f32) -> Self {
        [value; 4]
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Vector;

    macro_rules! vector {
        ($vector:ty, $len:literal, $load:ident, $store:ident, $add:ident, $mul:ident, $set:ident) => {
            impl Vector for $vector {
                const LEN: usize = $len;

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller vouches.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(self, into: *mut f32) {
                    // SAFETY: the caller vouches.
                    unsafe { $store(into, self) }
                }

                #[inline(always)]
                unsafe fn plus(self, other: Self) -> Self {
                    // SAFETY: the caller vouches.
                    unsafe { $add(self, other) }
                }

                #[inline(always)]
                unsafe fn times(self, other: Self) -> Self {
                    // SAFETY: the caller vouches.
                    unsafe { $mul(self, other) }
                }

                #[inline(always)]
                unsafe fn fill(value: f32) -> Self {
                    // SAFETY: the caller vouches.
                    unsafe { $set(value) }
                }
            }
        };
    }

    vector!(__m512, 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_mul_ps, _mm512_set1_ps);
    vector!(__m256, 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_mul_ps, _mm256_set1_ps);
}
