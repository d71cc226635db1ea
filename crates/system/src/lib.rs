//! What the system tells: clocks, memory, control groups, what the scheduler did to a thread, and what else runs.
//!
//! What it does not tell is `None`. Whatever stands in files is read through a [`Tree`](tree::Tree), so that tests can
//! make up a machine.

pub mod cgroup;
pub mod clock;
pub mod cores;
pub mod load;
pub mod memory;
pub mod scheduler;
pub mod tree;
