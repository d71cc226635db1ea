//! What the machine is, for the record.

use std::fs;
use std::thread;

use paceline_lab::Machine;
use paceline_record::Bytes;

/// Cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What can be found out about the machine; `engine` describes itself.
pub fn describe(engine: String) -> Machine {
    let read = |path| fs::read_to_string(path).ok();
    Machine {
        cpu: read("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
        cores: Some(cores() as u32),
        memory: read("/proc/meminfo").and_then(|text| parse_memory(&text)),
        kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().into()),
        engine: Some(engine),
    }
}

/// What stands after the colon in the first line of that name.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().into())
}

fn parse_memory(text: &str) -> Option<Bytes> {
    let kibibytes: u64 = field(text, "MemTotal")?.strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kibibytes * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name_and_missing_ones_are_unknown() {
        let text = "processor\t: 0\nmodel name\t: Abacus 9000\nMemTotal:       2048 kB\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Abacus 9000"));
        assert_eq!(parse_memory(text), Some(Bytes(2 << 20)));
        assert_eq!(field(text, "flags"), None);
    }
}
