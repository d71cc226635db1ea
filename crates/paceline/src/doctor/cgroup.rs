//! What control groups grant, in either of their versions.

use std::path::{Component, Path, PathBuf};

use paceline_record::Bytes;

use super::facts::{Grant, Limit};
use super::tree::Tree;

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
    groups.tightest(|folder| {
        let (quota, period) = match groups.version {
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
    })
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

/// What stands after a name in a group's file of counters.
fn count(tree: &Tree, folder: &Path, file: &str, name: &str) -> Option<u64> {
    tree.text(folder.join(file))?.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
