//! The inner loops: unsafe code, called through the safe drivers in the folder above.

pub(super) mod tile;
pub(super) mod transpose;
