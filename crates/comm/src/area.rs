//! Runs of values in memory that several processes share.

use std::ops::Range;

/// A run of 32-bit floats, at an address that is a multiple of 64 bytes. It stays valid as long as the
/// [`Segment`](crate::Segment) or [collective](crate::Collective) that handed it out.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    start: *mut f32,
    len: usize,
}

// SAFETY: an area is an address and a length; whoever reads or writes through it does so in an unsafe block of its own.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    pub(crate) fn new(start: *mut f32, len: usize) -> Self {
        Self { start, len }
    }

    /// Address of the first value.
    pub fn address(self) -> *mut f32 {
        self.start
    }

    /// Number of values.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of a run of its values.
    ///
    /// # Panics
    /// If the area does not hold all of them.
    pub(crate) fn part(self, range: &Range<usize>) -> *mut f32 {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "invariant: values {range:?} lie in an area of {}",
            self.len
        );
        self.start.wrapping_add(range.start)
    }

    /// A run of values to read.
    ///
    /// # Safety
    /// The memory must still be there, and nobody, in whatever process, may write to these values meanwhile.
    ///
    /// # Panics
    /// If the area does not hold all of them.
    pub unsafe fn read<'a>(self, range: Range<usize>) -> &'a [f32] {
        // SAFETY: they lie in the area; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.part(&range), range.len()) }
    }

    /// A run of values to write.
    ///
    /// # Safety
    /// The memory must still be there, and nobody else, in whatever process, may read or write these values meanwhile.
    ///
    /// # Panics
    /// If the area does not hold all of them.
    pub unsafe fn write<'a>(self, range: Range<usize>) -> &'a mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.part(&range), range.len()) }
    }
}
