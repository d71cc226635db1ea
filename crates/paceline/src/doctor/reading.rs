//! Facts that stand in the kernel's files.

use std::path::Path;

use paceline_engine::Precision;
use paceline_engine::cpu::Simd;
use paceline_record::Bytes;
use paceline_system::cgroup::{self, Limit};
use paceline_system::memory::Machine;
use paceline_system::tree::{Tree, clean, field, parse_list};
use rustix::fs::statvfs;

use super::facts::{Cache, Memory, Processor, Space, Speed, System};

const CPUS: &str = "/sys/devices/system/cpu";

/// The processor; its instructions are those that the engine finds, wherever the tree lies.
pub fn read_processor(tree: &Tree) -> Processor {
    let online = tree.list(format!("{CPUS}/online"));
    let status = tree.text("/proc/self/status");
    let allowed = status.and_then(|text| parse_list(field(&text, "Cpus_allowed_list")?));
    let info = tree.text("/proc/cpuinfo");
    Processor {
        name: info.and_then(|text| clean(field(&text, "model name").or_else(|| field(&text, "Model"))?)),
        siblings: online.as_deref().and_then(|online| read_siblings(tree, online)),
        nodes: tree.list("/sys/devices/system/node/online").map(|nodes| nodes.len()),
        quota: cgroup::quota(tree),
        instructions: Some(instructions()),
        caches: allowed.as_deref().and_then(|allowed| read_caches(tree, *allowed.first()?)),
        online,
        allowed,
    }
}

/// What the engine computes with in each precision, and all that it could be told to use.
fn instructions() -> String {
    let found: Vec<String> =
        Simd::ALL.into_iter().filter(|simd| simd.available()).map(|simd| simd.to_string()).collect();
    let missing = Simd::ALL.into_iter().filter_map(|simd| Some(format!("; no {simd}: {}", simd.obstacle()?)));
    let [fp32, bf16] = [Precision::Fp32, Precision::Bf16].map(Simd::best);
    format!("{fp32} in fp32, {bf16} in bf16 (of {}){}", found.join(", "), missing.collect::<String>())
}

/// Threads by core; `None` unless every thread says where it belongs.
fn read_siblings(tree: &Tree, online: &[usize]) -> Option<Vec<Vec<usize>>> {
    let mut cores = Vec::new();
    for thread in online {
        let core = tree.list(format!("{CPUS}/cpu{thread}/topology/thread_siblings_list"))?;
        if !core.contains(thread) {
            return None;
        }
        cores.push(core);
    }
    cores.sort();
    cores.dedup();
    Some(cores)
}

fn read_caches(tree: &Tree, thread: usize) -> Option<Vec<Cache>> {
    let folder = format!("{CPUS}/cpu{thread}/cache");
    let read = |index: &String| {
        let file = |name| tree.line(format!("{folder}/{index}/{name}"));
        let suffix = match file("type")?.as_str() {
            "Data" => "d",
            "Unified" => "",
            _ => return None,
        };
        let level: u8 = file("level")?.parse().ok()?;
        let shared_by = tree.list(format!("{folder}/{index}/shared_cpu_list")).map(|threads| threads.len());
        Some(Cache { name: format!("L{level}{suffix}"), size: parse_size(&file("size")?)?, shared_by })
    };
    let caches: Vec<Cache> = tree.names(&folder)?.iter().filter_map(read).collect();
    (!caches.is_empty()).then_some(caches)
}

/// Reads `32K`.
fn parse_size(text: &str) -> Option<Bytes> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit: u64 = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).map(Bytes)
}

/// Memory, but for what went to swap while we watched.
pub fn read_memory(tree: &Tree) -> Memory {
    let Machine { total, available, swap_used } = Machine::read(tree);
    let huge = tree.line("/sys/kernel/mm/transparent_hugepage/enabled");
    Memory {
        total,
        available,
        container: cgroup::memory(tree),
        largest_file: read_limit(tree, "Max file size").map(|limit| match limit {
            Limit::At(bytes) => Limit::At(Bytes(bytes)),
            Limit::Unlimited => Limit::Unlimited,
        }),
        shm: measure_space(&tree.at("/dev/shm")),
        huge_pages: huge.and_then(|line| clean(line.split_once('[')?.1.split_once(']')?.0)),
        swap_used,
        swapped_pages: None,
    }
}

/// The soft limit of that name.
fn read_limit(tree: &Tree, name: &str) -> Option<Limit<u64>> {
    let text = tree.text("/proc/self/limits")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(Limit::Unlimited),
        number => number.parse().ok().map(Limit::At),
    }
}

fn measure_space(path: &Path) -> Option<Space> {
    let stat = statvfs(path).ok()?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(stat.f_frsize));
    Some(Space { size: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
}

/// Kernel, surroundings, files; `folder` is where a study would go.
pub fn read_system(tree: &Tree, folder: &Path) -> System {
    System {
        kernel: tree.line("/proc/sys/kernel/osrelease"),
        virtual_machine: find_hypervisor(tree),
        container: find_container(tree),
        disk: measure_space(folder),
        open_files: read_limit(tree, "Max open files"),
    }
}

fn find_hypervisor(tree: &Tree) -> Option<bool> {
    if tree.has("/sys/hypervisor/type") {
        return Some(true);
    }
    let info = tree.text("/proc/cpuinfo")?;
    Some(field(&info, "flags")?.split_whitespace().any(|flag| flag == "hypervisor"))
}

fn find_container(tree: &Tree) -> Option<bool> {
    if ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"].iter().any(|path| tree.has(path)) {
        return Some(true);
    }
    let groups = tree.text("/proc/self/cgroup")?;
    Some(["docker", "kubepods", "containerd", "lxc", "libpod"].iter().any(|name| groups.contains(name)))
}

/// The cores' speed, but for counters that are watched.
pub fn read_speed(tree: &Tree, allowed: &[usize]) -> Speed {
    let governors =
        allowed.iter().filter_map(|cpu| tree.line(format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor")));
    let mut governors: Vec<String> = governors.collect();
    governors.sort();
    governors.dedup();
    let highest =
        allowed.iter().filter_map(|cpu| tree.number(format!("{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq")));
    Speed {
        governors: (!governors.is_empty()).then_some(governors),
        boost: find_boost(tree),
        highest_khz: highest.max(),
        heat: None,
        throttled: None,
    }
}

fn find_boost(tree: &Tree) -> Option<bool> {
    let switch = |path: &str, on| {
        tree.number(format!("{CPUS}/{path}")).filter(|&value| value < 2).map(|value| value == on)
    };
    switch("intel_pstate/no_turbo", 0).or_else(|| switch("cpufreq/boost", 1))
}

/// The frequency at which a core runs just now.
pub fn read_frequency(tree: &Tree, core: usize) -> Option<u64> {
    tree.number(format!("{CPUS}/cpu{core}/cpufreq/scaling_cur_freq")).filter(|&khz| khz > 0)
}

/// Times that heat slowed one of these cores.
pub fn count_heat(tree: &Tree, allowed: &[usize]) -> Option<u64> {
    let read = |cpu: &usize| tree.number(format!("{CPUS}/cpu{cpu}/thermal_throttle/core_throttle_count"));
    allowed.iter().filter_map(read).reduce(u64::saturating_add)
}

/// Pages that went to and from swap.
pub fn count_swapped(tree: &Tree) -> Option<u64> {
    let text = tree.text("/proc/vmstat")?;
    let count = |name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    count("pswpin ")?.checked_add(count("pswpout ")?)
}

/// The kernel's clock source.
pub fn read_clock(tree: &Tree) -> Option<String> {
    tree.line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
}

/// Names of the GPUs that NVIDIA's driver shows; `None` where not even `/proc` is there.
pub fn read_gpus(tree: &Tree) -> Option<Vec<String>> {
    let folder = "/proc/driver/nvidia/gpus";
    let unnamed = || "NVIDIA GPU".to_owned();
    if let Some(gpus) = tree.names(folder) {
        let name = |gpu: &String| clean(field(&tree.text(format!("{folder}/{gpu}/information"))?, "Model")?);
        return Some(gpus.iter().map(|gpu| name(gpu).unwrap_or_else(unnamed)).collect());
    }
    // A container may have the devices without the driver's folder.
    let devices = tree.names("/dev").unwrap_or_default();
    let is_gpu = |name: &&String| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let count = devices.iter().filter(is_gpu).count();
    tree.has("/proc").then(|| vec![unnamed(); count])
}

#[cfg(test)]
mod tests;
