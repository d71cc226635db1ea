//! Packing into tiles.

use super::super::element::Bf16;
use super::super::simd::Vector;
use super::{DEPTH, SIDE};

/// Copies values, of which there may be few: a call for each stretch would take longer than the copy.
///
/// # Safety
/// Both must be valid for so many values, and may not overlap.
#[inline(always)]
pub(super) unsafe fn copy_values(from: *const Bf16, to: *mut Bf16, len: usize) {
    // SAFETY: the caller vouches; the last stretch ends with the last value.
    unsafe {
        match len {
            32.. => copy_stretches::<32>(from, to, len),
            16.. => copy_stretches::<16>(from, to, len),
            8.. => copy_stretches::<8>(from, to, len),
            4.. => copy_stretches::<4>(from, to, len),
            _ => (0..len).for_each(|i| *to.add(i) = *from.add(i)),
        }
    }
}

/// Copies stretches of `SIZE` values, the last of which may overlap the one before it.
///
/// # Safety
/// As [`copy_values`], with at least `SIZE` values.
#[inline(always)]
unsafe fn copy_stretches<const SIZE: usize>(from: *const Bf16, to: *mut Bf16, len: usize) {
    // SAFETY: the caller vouches.
    unsafe {
        for at in (0..len - SIZE).step_by(SIZE) {
            to.add(at)
                .cast::<[Bf16; SIZE]>()
                .write_unaligned(from.add(at).cast::<[Bf16; SIZE]>().read_unaligned());
        }
        let at = len - SIZE;
        to.add(at)
            .cast::<[Bf16; SIZE]>()
            .write_unaligned(from.add(at).cast::<[Bf16; SIZE]>().read_unaligned());
    }
}

/// A tile of pairs before it is turned: rows of pairs become columns.
#[repr(align(64))]
pub(super) struct Unturned(pub [Bf16; SIDE * DEPTH]);

impl Unturned {
    pub const ZERO: Self = Self([Bf16(0); SIDE * DEPTH]);

    /// Writes row i, pair j to row j, pair i; `stride` values from one row of `to` to the next.
    ///
    /// # Safety
    /// The vector's instruction set must be available, and `to` valid for [`SIDE`] rows of a whole row each.
    #[inline(always)]
    pub unsafe fn turn_into<V: Vector>(&self, to: *mut Bf16, stride: usize) {
        // SAFETY: the caller vouches; the tile has as many rows as a row has pairs.
        unsafe { V::turn_pairs(self.0.as_ptr(), to, stride) };
    }
}
