//! Who else computes: two looks at the kernel's counters, and what lies between.

use std::collections::BTreeMap;
use std::process;

use paceline_system::cores::Ticks;
use paceline_system::tree::{Tree, clean};

use super::facts::{Activity, Busy};

/// Processes that fill less of a core are not worth naming.
const WORTH_NAMING: f64 = 0.05;

/// One look.
pub struct Look {
    load: Option<f64>,
    cores: Option<Ticks>,
    processes: BTreeMap<u32, (String, u64)>,
}

impl Look {
    /// Looks now, at these cores.
    pub fn take(tree: &Tree, allowed: &[usize]) -> Self {
        Self {
            load: tree.text("/proc/loadavg").and_then(|text| parse_load(&text)),
            cores: tree.text("/proc/stat").and_then(|text| Ticks::parse(&text, allowed)),
            processes: read_processes(tree),
        }
    }

    /// What happened from this look to a later one.
    pub fn until(&self, later: &Self) -> Activity {
        let mut activity = Activity { load: later.load.or(self.load), ..Activity::default() };
        let (Some(before), Some(after)) = (self.cores, later.cores) else { return activity };
        let Some(spent) = after.since(&before) else { return activity };
        (activity.busy, activity.stolen) = (Some(spent.busy), Some(spent.stolen));
        let all = after.all - before.all;
        let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, (name, ticks)) in &later.processes {
            if let Some((_, earlier)) = self.processes.get(id) {
                let sum = by_name.entry(name).or_default();
                *sum = sum.saturating_add(ticks.saturating_sub(*earlier));
            }
        }
        let fill = |(name, ticks): (&str, u64)| Busy {
            name: name.into(),
            cores: ticks as f64 / all as f64 * after.cores as f64,
        };
        let mut busiest: Vec<Busy> = by_name.into_iter().map(fill).collect();
        busiest.retain(|process| process.cores >= WORTH_NAMING);
        busiest.sort_by(|one, other| other.cores.total_cmp(&one.cores));
        busiest.truncate(3);
        activity.busiest = Some(busiest);
        activity
    }
}

fn parse_load(text: &str) -> Option<f64> {
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    (load.is_finite() && load >= 0.0).then_some(load)
}

/// Names and processor time of all processes but this one.
fn read_processes(tree: &Tree) -> BTreeMap<u32, (String, u64)> {
    let ids = tree.names("/proc").unwrap_or_default();
    let ids = ids.iter().filter_map(|name| name.parse().ok()).filter(|&id: &u32| id != process::id());
    ids.filter_map(|id| Some((id, parse_process(&tree.text(format!("/proc/{id}/stat"))?)?))).collect()
}

/// Name and time of a line `7 (a name) S ...`; the name may hold anything, brackets included.
fn parse_process(line: &str) -> Option<(String, u64)> {
    let (name, rest) = line.split_once('(')?.1.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((clean(name)?, ticks()?.checked_add(ticks()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(stat: &str, processes: &[(u32, &str, u64)]) -> Look {
        let processes = processes.iter().map(|&(id, name, ticks)| (id, (name.to_owned(), ticks)));
        Look { load: Some(0.5), cores: Ticks::parse(stat, &[0, 2]), processes: processes.collect() }
    }

    #[test]
    fn fractions_are_those_of_the_allowed_cores_between_two_looks() {
        let before =
            look("cpu 9 9\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\n", &[]);
        let after = look("cpu0 110 5 5 920 0 0 0 10\ncpu1 99 0 0 0 0 0 0 0\ncpu2 0 0 0 50 0 0 0 0\n", &[]);
        let activity = before.until(&after);
        assert_eq!((activity.busy, activity.stolen, activity.load), (Some(0.2), Some(0.1), Some(0.5)));
        assert_eq!(activity.busiest, Some(vec![]));
    }

    #[test]
    fn the_busiest_processes_are_summed_by_name() {
        let idle = |ticks: u64| format!("cpu0 0 0 0 {ticks} 0 0 0 0\ncpu2 0 0 0 {ticks} 0 0 0 0\n");
        let before = look(&idle(0), &[(4, "rustc", 5), (5, "rustc", 100), (6, "idle", 7), (8, "old", 9)]);
        let after = look(&idle(50), &[(4, "rustc", 10), (5, "rustc", 120), (6, "idle", 8), (7, "new", 50)]);
        let busiest = before.until(&after).busiest;
        assert_eq!(busiest, Some(vec![Busy { name: "rustc".into(), cores: 0.5 }]));
    }

    #[test]
    fn a_clock_that_stands_still_tells_nothing() {
        let stat = "cpu0 1 1 1 1 1 1 1 1\n";
        assert_eq!(look(stat, &[]).until(&look(stat, &[])).busy, None);
    }

    #[test]
    fn lines_that_make_no_sense_are_unknown() {
        for bad in ["", "nan", "-1", "inf 2"] {
            assert_eq!(parse_load(bad), None, "{bad}");
        }
        for bad in ["", "7 (", "7 (x) S 1 2", "7 )x( S"] {
            assert_eq!(parse_process(bad), None, "{bad}");
        }
        let odd = "7 (a) (b\u{1b}) S 1 1 1 0 -1 4 1 0 0 0 30 12 0 0";
        assert_eq!(parse_process(odd), Some(("a) (b".into(), 42)));
    }
}
