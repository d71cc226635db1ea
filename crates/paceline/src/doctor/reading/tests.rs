use std::fs;
use std::path::Path;

use paceline_system::cgroup::Grant;
use tempfile::TempDir;

use super::*;
use crate::doctor::activity::Look;
use crate::doctor::examine::examine;
use crate::doctor::folders::Folders;
use crate::doctor::read;

/// Files of a machine of two cores with two hardware threads each, in a container of the second version.
const MACHINE: &[(&str, &str)] = &[
    ("proc/cpuinfo", "processor\t: 0\nmodel\t\t: 17\nmodel name\t: Abacus 9000\nflags\t\t: fpu hypervisor\n"),
    ("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 1000 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n"),
    ("proc/self/status", "Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t1-3\n"),
    (
        "proc/self/limits",
        "Limit  Soft Limit  Hard Limit  Units\nMax file size  unlimited  unlimited  bytes\nMax open files  1024  4096  files\n",
    ),
    ("proc/self/cgroup", "0::/kubepods/pod7\n"),
    ("proc/sys/kernel/osrelease", "6.1.0\n"),
    ("proc/loadavg", "0.50 0.40 0.30 1/100 7\n"),
    ("proc/stat", "cpu0 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1\n"),
    ("proc/vmstat", "pgpgin 1\npswpin 3\npswpout 4\n"),
    ("proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA H200\nIRQ: 1\n"),
    ("proc/7/stat", "7 (rustc) S 1 1 1 0 -1 4 1 0 0 0 30 12 0 0\n"),
    ("sys/fs/cgroup/kubepods/pod7/cpu.max", "250000 100000\n"),
    ("sys/fs/cgroup/kubepods/pod7/cpu.stat", "usage_usec 1\nnr_throttled 5\n"),
    ("sys/fs/cgroup/kubepods/pod7/memory.max", "max\n"),
    ("sys/fs/cgroup/kubepods/pod7/memory.current", "1\n"),
    ("sys/fs/cgroup/kubepods/cpu.max", "max 100000\n"),
    ("sys/fs/cgroup/kubepods/memory.max", "1000000\n"),
    ("sys/fs/cgroup/kubepods/memory.current", "400000\n"),
    ("sys/fs/cgroup/kubepods/memory.stat", "anon 300000\ninactive_file 100000\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/node/online", "0-1\n"),
    ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n"),
    ("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,3\n"),
    ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0,2\n"),
    ("sys/devices/system/cpu/cpu3/topology/thread_siblings_list", "1,3\n"),
    ("sys/devices/system/cpu/cpu1/cache/index0/level", "1\n"),
    ("sys/devices/system/cpu/cpu1/cache/index0/type", "Data\n"),
    ("sys/devices/system/cpu/cpu1/cache/index0/size", "32K\n"),
    ("sys/devices/system/cpu/cpu1/cache/index0/shared_cpu_list", "1,3\n"),
    ("sys/devices/system/cpu/cpu1/cache/index1/level", "1\n"),
    ("sys/devices/system/cpu/cpu1/cache/index1/type", "Instruction\n"),
    ("sys/devices/system/cpu/cpu1/cache/index1/size", "32K\n"),
    ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),
    ("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "1200000\n"),
    ("sys/devices/system/cpu/cpu1/cpufreq/cpuinfo_max_freq", "3500000\n"),
    ("sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "2\n"),
    ("sys/devices/system/cpu/cpu3/thermal_throttle/core_throttle_count", "3\n"),
    ("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
];

fn plant(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn machine() -> (TempDir, Tree) {
    let root = tempfile::tempdir().expect("a temporary folder");
    MACHINE.iter().for_each(|(path, text)| plant(root.path(), path, text));
    let tree = Tree::new(root.path());
    (root, tree)
}

#[test]
fn a_processor_is_read_with_its_cores_and_what_is_left_of_them() {
    let (_root, tree) = machine();
    let it = read_processor(&tree);
    assert_eq!(it.name.as_deref(), Some("Abacus 9000"));
    assert_eq!(it.allowed, Some(vec![1, 2, 3]));
    assert_eq!(it.siblings, Some(vec![vec![0, 2], vec![1, 3]]));
    assert_eq!((it.nodes, it.quota), (Some(2), Some(Limit::At(2.5))));
    assert_eq!((it.usable(), it.one_each(), it.workers()), (Some(2), Some(vec![1, 2]), Some(2)));
    let cache = Cache { name: "L1d".into(), size: Bytes(32 << 10), shared_by: Some(2) };
    assert_eq!(it.caches, Some(vec![cache]));
}

#[test]
fn memory_is_limited_by_the_tightest_group() {
    let (_root, tree) = machine();
    let it = read_memory(&tree);
    assert_eq!((it.total, it.available), (Some(Bytes(2_048_000)), Some(Bytes(1_024_000))));
    assert_eq!(it.container, Some(Limit::At(Grant { limit: Bytes(1_000_000), left: Bytes(700_000) })));
    assert_eq!(it.left(), Some(Bytes(700_000)));
    assert_eq!((it.swap_used, it.largest_file), (Some(Bytes(40 << 10)), Some(Limit::Unlimited)));
    assert_eq!(it.huge_pages.as_deref(), Some("madvise"));
    assert_eq!(it.shm, None);
}

#[test]
fn speed_and_system_are_read() {
    let (root, tree) = machine();
    let speed = read_speed(&tree, &[1, 2, 3]);
    assert_eq!(speed.governors, Some(vec!["powersave".into()]));
    assert_eq!((speed.boost, speed.highest_khz), (Some(true), Some(3_500_000)));
    assert_eq!(read_frequency(&tree, 1), Some(1_200_000));
    assert_eq!((count_heat(&tree, &[1, 2, 3]), count_heat(&tree, &[2])), (Some(5), None));
    assert_eq!((count_swapped(&tree), cgroup::throttled(&tree)), (Some(7), Some(5)));
    let system = read_system(&tree, root.path());
    assert_eq!((system.virtual_machine, system.container), (Some(true), Some(true)));
    assert_eq!((system.kernel.as_deref(), system.open_files), (Some("6.1.0"), Some(Limit::At(1024))));
    assert!(system.disk.is_some());
    assert_eq!(read_gpus(&tree), Some(vec!["NVIDIA H200".into()]));
    assert_eq!(read_clock(&tree).as_deref(), Some("tsc"));
}

#[test]
fn an_empty_tree_gives_no_facts_but_what_the_program_knows() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let facts = read(&Tree::new(root.path()), &root.path().join("missing"));
    let known: Vec<_> = examine(&facts).into_iter().filter(|check| check.value != "unknown").collect();
    let names: Vec<_> = known.iter().map(|check| check.what).collect();
    assert_eq!(names, ["instructions"]);
}

#[test]
fn odd_contents_never_cause_a_panic_and_never_reach_the_terminal() {
    let hostile: &[&[u8]] = &[
        b"",
        b"\n\n",
        b"\xff\xfe\x00\x80",
        b"-1",
        b"18446744073709551615",
        b"99999999999999999999999999",
        b"0-99999999999999",
        b"0-65535",
        b"nan inf -0",
        b": : :\n::::\n(((\n)))\n[[]][",
        b"MemTotal: 18446744073709551615 kB\nMemAvailable: 18446744073709551615 kB\nSwapTotal: 1 kB\nSwapFree: 9 kB",
        b"Cpus_allowed_list:\t65535\nmodel name\t: \x1b]0;owned\x07\x1b[31m",
        b"0::/../../../etc\n1:cpu:/\n2:memory:../..\n",
        b"cpu1 18446744073709551615 18446744073709551615 1 1 1 1 1 1",
        b"18446744073709551615G",
    ];
    let (root, tree) = machine();
    for (path, text) in MACHINE {
        for odd in hostile {
            plant(root.path(), path, odd);
            let mut facts = read(&tree, root.path());
            let allowed = facts.processor.allowed.clone().unwrap_or_default();
            let look = Look::take(&tree, &allowed);
            facts.activity = look.until(&Look::take(&tree, &allowed));
            let _ = (count_heat(&tree, &allowed), count_swapped(&tree), cgroup::throttled(&tree));
            let _ = Folders::find(&tree, None).search("libcuda.so");
            for check in examine(&facts) {
                assert!(!check.value.contains(char::is_control), "{path}: {}", check.value);
            }
        }
        // A folder where a file should be.
        fs::remove_file(root.path().join(path)).expect("a file");
        fs::create_dir(root.path().join(path)).expect("a folder");
        examine(&read(&tree, root.path()));
        fs::remove_dir(root.path().join(path)).expect("a folder");
        plant(root.path(), path, text);
    }
}

#[test]
fn devices_without_the_drivers_folder_are_counted() {
    let root = tempfile::tempdir().expect("a temporary folder");
    for name in ["proc/stat", "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia"] {
        plant(root.path(), name, "");
    }
    assert_eq!(read_gpus(&Tree::new(root.path())), Some(vec!["NVIDIA GPU".into(); 2]));
}
