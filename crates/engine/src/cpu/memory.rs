//! Memory of a program: large zeroed mappings on huge pages, and raw views into them.

use memmap2::{Advice, MmapMut};

use super::element::Element;
use crate::{EngineError, Place, Region};

/// A mapping of 32-bit floats, zero at first.
pub(crate) struct Memory {
    map: MmapMut,
}

impl Memory {
    /// Maps `len` values; pages are taken when first touched.
    pub fn new(len: usize) -> Result<Self, EngineError> {
        let refused = |source| EngineError::Refused { what: "memory", source };
        let map = MmapMut::map_anon((len * 4).max(4096)).map_err(refused)?;
        // Huge pages are optional: without them the program is slower.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { map })
    }

    /// The whole mapping.
    pub fn view(&mut self) -> View {
        View { start: self.map.as_mut_ptr().cast(), len: self.map.len() / 4 }
    }
}

/// A run of values inside a [`Memory`]. Views are handed to many threads; the memory plan and the drivers make sure
/// that no two of them write the same value at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<E = f32> {
    start: *mut E,
    len: usize,
}

// SAFETY: a view is an address and a length; whoever reads or writes through it does so in an unsafe block of its own.
unsafe impl<E> Send for View<E> {}
// SAFETY: as above.
unsafe impl<E> Sync for View<E> {}

impl View {
    /// The first `len` values of a region whose safety a caller of the engine has vouched for.
    pub fn of_region(region: Region, len: usize) -> Result<Self, EngineError> {
        if region.place != Place::Host {
            return Err(EngineError::Unsupported("the CPU engine needs memory on the host".into()));
        }
        if region.len < len {
            return Err(EngineError::WrongLength { what: "memory provided", expected: len, got: region.len });
        }
        Ok(Self { start: region.address as *mut f32, len })
    }

    /// Values that the caller borrows for as long as the view is used.
    pub fn of_slice(values: &mut [f32]) -> Self {
        Self { start: values.as_mut_ptr(), len: values.len() }
    }

    /// The same memory as values of another format, which is no wider.
    pub fn of<E: Element>(self) -> View<E> {
        View { start: self.start.cast(), len: self.len * (size_of::<f32>() / size_of::<E>()) }
    }
}

impl<E: Element> View<E> {
    /// A part of the view.
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset + len <= self.len, "invariant: part of a view");
        Self {
            // SAFETY: inside the same mapping, as asserted.
            start: unsafe { self.start.add(offset) },
            len,
        }
    }

    /// Address of the first value.
    pub fn ptr(self) -> *mut E {
        self.start
    }

    pub fn len(self) -> usize {
        self.len
    }

    /// The values, to read.
    ///
    /// # Safety
    /// Nobody may write to them meanwhile.
    pub unsafe fn read<'a>(self) -> &'a [E] {
        // SAFETY: the view lies inside a live mapping; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The values, to write.
    ///
    /// # Safety
    /// Nobody else may read or write them meanwhile.
    pub unsafe fn write<'a>(self) -> &'a mut [E] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}
