//! The inner loops. Everything here is unsafe inside and called through the safe drivers beside this folder.

pub(super) mod tile;
pub(super) mod transpose;
