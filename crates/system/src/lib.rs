//! What the system tells: clocks, memory, control groups, and what the scheduler did to a thread.
//!
//! What it does not tell is `None`. Whatever stands in files is read through a [`Tree`](tree::Tree), so that tests can
//! make up a machine.

pub mod cgroup;
pub mod clock;
pub mod cores;
pub mod memory;
pub mod scheduler;
pub mod tree;
