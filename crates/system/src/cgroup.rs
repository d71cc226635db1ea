//! What control groups grant, in either of their versions.

use std::path::{Component, Path, PathBuf};

use paceline_record::{Bytes, Nanos};
use serde::Serialize;

use crate::tree::Tree;

/// A limit that may not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit<T> {
    /// There is none.
    Unlimited,
    /// This much.
    At(T),
}

/// Memory that a control group grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// In all.
    pub limit: Bytes,
    /// What is left of it.
    pub left: Bytes,
}

const MOUNT: &str = "/sys/fs/cgroup";

/// From here on, a limit of the first version means none.
const NO_LIMIT: u64 = 1 << 60;

/// The groups around this process that a controller rules.
struct Groups {
    version: Version,
    /// The innermost first.
    folders: Vec<PathBuf>,
}

#[derive(Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Groups {
    fn find(tree: &Tree, controller: &str) -> Option<Self> {
        let text = tree.text("/proc/self/cgroup")?;
        let mut lines = text.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?, parts.next()?))
        });
        let first = lines.clone().find(|(names, _)| names.split(',').any(|name| name == controller));
        let (version, path, mounts) = match first {
            // The folder has the name of all its controllers, or there is a link of the one's name.
            Some((names, path)) => (Version::One, path, [controller, names]),
            None => (Version::Two, lines.find(|(names, _)| names.is_empty())?.1, ["unified", ""]),
        };
        let mount = mounts.map(|name| Path::new(MOUNT).join(name)).into_iter().find(|path| tree.has(path))?;
        // Inside a container the path may be the host's: then only the mount itself is there.
        let normal: PathBuf =
            Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
        let folders = normal.ancestors().map(|path| mount.join(path)).filter(|path| tree.has(path)).collect();
        Some(Self { version, folders })
    }

    /// The tightest of the groups' limits; `None` where one of them cannot be read.
    fn tightest<T: PartialOrd>(&self, read: impl Fn(&Path) -> Option<Limit<T>>) -> Option<Limit<T>> {
        let mut tightest = Limit::Unlimited;
        for folder in &self.folders {
            tightest = match (tightest, read(folder)?) {
                (limit, Limit::Unlimited) | (Limit::Unlimited, limit) => limit,
                (Limit::At(one), Limit::At(other)) => Limit::At(if other < one { other } else { one }),
            };
        }
        Some(tightest)
    }
}

/// Cores' worth of time that this process may take.
pub fn quota(tree: &Tree) -> Option<Limit<f64>> {
    let groups = Groups::find(tree, "cpu")?;
    groups.tightest(|folder| groups.quota_of(tree, folder))
}

impl Groups {
    /// Cores' worth of time that one group grants; `None` where that cannot be read.
    fn quota_of(&self, tree: &Tree, folder: &Path) -> Option<Limit<f64>> {
        let (quota, period) = match self.version {
            Version::One => {
                let quota = folder.join("cpu.cfs_quota_us");
                if !tree.has(&quota) {
                    return Some(Limit::Unlimited);
                }
                (tree.line(quota)?, tree.line(folder.join("cpu.cfs_period_us"))?)
            }
            Version::Two => {
                let path = folder.join("cpu.max");
                if !tree.has(&path) {
                    return Some(Limit::Unlimited);
                }
                let line = tree.line(path)?;
                let (quota, period) = line.split_once(' ')?;
                (quota.into(), period.into())
            }
        };
        if quota == "max" || quota == "-1" {
            return Some(Limit::Unlimited);
        }
        let (quota, period): (u32, u32) = (quota.parse().ok()?, period.parse().ok()?);
        (quota > 0 && period > 0).then(|| Limit::At(f64::from(quota) / f64::from(period)))
    }
}

/// Memory that this process may take, by the group that has the least left.
pub fn memory(tree: &Tree) -> Option<Limit<Grant>> {
    let groups = Groups::find(tree, "memory")?;
    let (limit, used, cached) = match groups.version {
        Version::One => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
        Version::Two => ("memory.max", "memory.current", "inactive_file "),
    };
    let tightest = groups.tightest(|folder| {
        if !tree.has(folder.join(limit)) {
            return Some(Limit::Unlimited);
        }
        let text = tree.line(folder.join(limit))?;
        let limit = if text == "max" { NO_LIMIT } else { text.parse().ok()? };
        if limit >= NO_LIMIT {
            return Some(Limit::Unlimited);
        }
        // Files read long ago count as used, but give way when memory is asked for.
        let stale = count(tree, folder, "memory.stat", cached).unwrap_or(0);
        let used = tree.number(folder.join(used))?.saturating_sub(stale);
        let left = limit.saturating_sub(used);
        Some(Limit::At((left, limit)))
    })?;
    Some(match tightest {
        Limit::Unlimited => Limit::Unlimited,
        Limit::At((left, limit)) => Limit::At(Grant { limit: Bytes(limit), left: Bytes(left) }),
    })
}

/// Times that the quota of a group stopped its processes.
pub fn throttled(tree: &Tree) -> Option<u64> {
    let groups = Groups::find(tree, "cpu")?;
    let counts = groups.folders.iter().filter_map(|folder| count(tree, folder, "cpu.stat", "nr_throttled "));
    counts.reduce(u64::saturating_add)
}

/// Files that tell for how long a quota has stopped this process: those of the groups around it that have one.
pub(crate) fn throttling_files(tree: &Tree) -> Vec<PathBuf> {
    let Some(groups) = Groups::find(tree, "cpu") else {
        return Vec::new();
    };
    let limited = |folder: &&PathBuf| matches!(groups.quota_of(tree, folder), Some(Limit::At(_)));
    groups.folders.iter().filter(limited).map(|folder| folder.join("cpu.stat")).collect()
}

/// Time that a quota has stopped a group's processes, from its file of counters.
pub(crate) fn parse_throttled(stat: &str) -> Option<Nanos> {
    // The second version counts microseconds, the first nanoseconds.
    let (time, unit) = match find_count(stat, "throttled_usec ") {
        Some(time) => (time, 1000),
        None => (find_count(stat, "throttled_time ")?, 1),
    };
    time.checked_mul(unit).map(Nanos)
}

/// What stands after a name in a group's file of counters.
fn count(tree: &Tree, folder: &Path, file: &str, name: &str) -> Option<u64> {
    find_count(&tree.text(folder.join(file))?, name)
}

fn find_count(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::Made;

    /// A pod of the second version: its memory is limited by the group around it, its processors by its own.
    const POD: &[(&str, &str)] = &[
        ("proc/self/cgroup", "0::/kubepods/pod7\n"),
        ("sys/fs/cgroup/kubepods/pod7/cpu.max", "250000 100000\n"),
        ("sys/fs/cgroup/kubepods/pod7/cpu.stat", "usage_usec 1\nnr_throttled 5\nthrottled_usec 70\n"),
        ("sys/fs/cgroup/kubepods/pod7/memory.max", "max\n"),
        ("sys/fs/cgroup/kubepods/pod7/memory.current", "1\n"),
        ("sys/fs/cgroup/kubepods/cpu.max", "max 100000\n"),
        ("sys/fs/cgroup/kubepods/memory.max", "1000000\n"),
        ("sys/fs/cgroup/kubepods/memory.current", "400000\n"),
        ("sys/fs/cgroup/kubepods/memory.stat", "anon 300000\ninactive_file 100000\n"),
    ];

    fn grant(limit: u64, left: u64) -> Option<Limit<Grant>> {
        Some(Limit::At(Grant { limit: Bytes(limit), left: Bytes(left) }))
    }

    #[test]
    fn the_tightest_of_nested_groups_counts() {
        let made = Made::new(POD);
        assert_eq!(quota(&made.tree), Some(Limit::At(2.5)));
        assert_eq!(memory(&made.tree), grant(1_000_000, 700_000));
        made.plant("sys/fs/cgroup/kubepods/pod7/memory.max", "500\n");
        assert_eq!(memory(&made.tree), grant(500, 499));
        // A group of its own with a wider limit, of which less is left.
        made.plant("sys/fs/cgroup/kubepods/memory.current", "1099999\n");
        assert_eq!(memory(&made.tree), grant(1_000_000, 100_000 - 99_999));
    }

    #[test]
    fn groups_of_the_first_version_are_read_too() {
        // As in a container that sees the host's path, but only its own group.
        let made = Made::new(&[
            ("proc/self/cgroup", "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_periods 3\nnr_throttled 2\nthrottled_time 99\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n"),
        ]);
        assert_eq!(quota(&made.tree), Some(Limit::At(1.5)));
        assert_eq!(throttled(&made.tree), Some(2));
        assert_eq!(memory(&made.tree), Some(Limit::Unlimited));
        made.plant("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n");
        made.plant("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 3\n");
        assert_eq!(memory(&made.tree), grant(1000, 998));
        made.plant("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        assert_eq!(quota(&made.tree), Some(Limit::Unlimited));
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_unknown_and_not_absent() {
        let made = Made::new(POD);
        for odd in ["", "lots", "0 100000", "100000", "100000 0", "-5 100000", "99999999999999999999 1"] {
            made.plant("sys/fs/cgroup/kubepods/cpu.max", odd);
            assert_eq!(quota(&made.tree), None, "{odd:?}");
        }
        made.plant("sys/fs/cgroup/kubepods/memory.max", "-1\n");
        assert_eq!(memory(&made.tree), None);
    }

    #[test]
    fn torn_files_and_folders_in_their_place_are_unknown() {
        let hostile: &[&[u8]] =
            &[b"", b"\n", b"\xff\xfe\x00", b"-1", b"99999999999999999999999", b"0::/../../etc\n"];
        for (path, text) in POD {
            let made = Made::new(POD);
            for odd in hostile {
                made.plant(path, odd);
                let _ = (quota(&made.tree), memory(&made.tree), throttled(&made.tree));
                let _ = throttling_files(&made.tree);
            }
            made.plant(path, &text[..text.len() / 2]);
            let _ = (quota(&made.tree), memory(&made.tree), throttled(&made.tree));
            made.obstruct(path);
            let _ = (quota(&made.tree), memory(&made.tree), throttled(&made.tree));
        }
        let made = Made::new(POD);
        made.obstruct("sys/fs/cgroup/kubepods/memory.max");
        assert_eq!(memory(&made.tree), None);
    }

    #[test]
    fn without_groups_nothing_is_known() {
        let made = Made::new(&[]);
        assert_eq!((quota(&made.tree), memory(&made.tree), throttled(&made.tree)), (None, None, None));
    }

    #[test]
    fn only_groups_with_a_quota_can_throttle() {
        let made = Made::new(POD);
        let pod = PathBuf::from("/sys/fs/cgroup/kubepods/pod7/cpu.stat");
        assert_eq!(throttling_files(&made.tree), [pod]);
        assert_eq!(parse_throttled("nr_throttled 5\nthrottled_usec 70\n"), Some(Nanos(70_000)));
        assert_eq!(parse_throttled("nr_throttled 5\nthrottled_time 70\n"), Some(Nanos(70)));
        for odd in ["", "throttled_usec", "throttled_usec -1", "throttled_usec 18446744073709551615"] {
            assert_eq!(parse_throttled(odd), None, "{odd}");
        }
    }
}
