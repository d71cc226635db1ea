//! What the machine is, for the record.

use std::thread;

use paceline_lab::Machine;
use paceline_system::memory;
use paceline_system::tree::{Tree, clean, field};

/// Cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The machine's name.
pub fn host() -> Option<String> {
    Tree::new("/").line("/proc/sys/kernel/hostname")
}

/// What can be found out about the machine; `engine` describes itself.
pub fn describe(engine: String) -> Machine {
    let tree = Tree::new("/");
    Machine {
        cpu: tree.text("/proc/cpuinfo").and_then(|text| clean(field(&text, "model name")?)),
        cores: Some(cores() as u32),
        memory: memory::Machine::read(&tree).total,
        kernel: tree.line("/proc/sys/kernel/osrelease"),
        engine: Some(engine),
    }
}
