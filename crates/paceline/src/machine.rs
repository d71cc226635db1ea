//! What the machine is, for the record.

use std::thread;

use paceline_lab::Machine;
use paceline_system::tree::{Tree, clean, field};
use paceline_system::{cores, memory};

/// Cores that this process may run on. A control group may grant less of their time: see [`granted`].
pub fn cores() -> usize {
    cores::allowed().map_or_else(granted, |allowed| allowed.len())
}

/// Cores' worth of time that this process gets, at least one: so many threads can compute all the time.
pub fn granted() -> usize {
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
