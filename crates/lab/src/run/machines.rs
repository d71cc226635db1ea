//! The machines of a run whose ranks are numbered over all of them, each with a launcher and a clock of its own.
//!
//! The launcher of rank 0's machine writes `launcher.jsonl`, that of another `launcher-<r>.jsonl`, r being the first rank there.
//! Clocks are set by exchanges that ranks have in common, or, without any, by the dates that the launchers noted.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paceline_record::log::{LauncherLog, RankLog, RankReader, launcher_file};
use paceline_record::{ClockReading, Host, Nanos, Outcome, Rank, Started, Who};

use super::arrivals;
use crate::LabError;
use crate::hosts::clock::Clock;

/// How well machines agree on the date, where nothing better is known: a second.
const DATED: Nanos = Nanos(1_000_000_000);

/// The launcher of another machine than that of rank 0.
pub(super) struct Machine {
    /// Its first rank.
    first: Rank,
    launcher: LauncherLog,
}

/// The launchers of the other machines of a run.
pub(super) fn read(folder: &Path) -> Result<Vec<Machine>, LabError> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let rank = |name: std::ffi::OsString| -> Option<u32> {
        name.to_str()?.strip_prefix("launcher-")?.strip_suffix(".jsonl")?.parse().ok()
    };
    let mut ranks: Vec<Rank> = names.filter_map(rank).map(Rank).collect();
    ranks.sort_unstable();
    let machine = |first: Rank| {
        Ok(Machine { first, launcher: LauncherLog::read_file(&folder.join(launcher_file(first)))? })
    };
    ranks.into_iter().filter(|rank| rank.0 > 0).map(machine).collect()
}

/// The clocks of ranks that are not on the first rank's machine.
pub(super) fn clocks(
    ranks: &[RankLog],
    launcher: &LauncherLog,
    machines: &[Machine],
) -> Result<BTreeMap<Who, Clock>, String> {
    let Some(first) = ranks.first() else { return Ok(BTreeMap::new()) };
    let mut by_name: BTreeMap<Option<&str>, Clock> = BTreeMap::new();
    let mut clocks = BTreeMap::new();
    for rank in ranks.iter().filter(|rank| arrivals::machine(rank) != arrivals::machine(first)) {
        let name = arrivals::machine(rank);
        let clock = match by_name.get(&name) {
            Some(clock) => clock.clone(),
            None => {
                let here = |it: &&Machine| {
                    let of = |rank: &&RankLog| rank.header.who() == Who::Rank(it.first);
                    ranks.iter().find(of).is_some_and(|rank| arrivals::machine(rank) == name)
                };
                let started = machines.iter().find(here).and_then(|it| it.launcher.header.started);
                let dated = || dated(launcher.header.started?, started?);
                arrivals::set_clock(first, rank).or_else(dated).ok_or_else(|| {
                    format!(
                        "{} ran on another machine than rank 0, and nothing tells how their clocks compare: \
                         no exchange that both logged, and no launcher's log of both machines",
                        rank.header.who()
                    )
                })?
            }
        };
        by_name.insert(name, clock.clone());
        clocks.insert(rank.header.who(), clock);
    }
    Ok(clocks)
}

/// A clock by one date on both machines.
fn dated(first: Started, other: Started) -> Option<Clock> {
    let at = i128::from(first.at.0) + i128::from(other.unix.0) - i128::from(first.unix.0);
    let at = u64::try_from(at).ok().map(Nanos)?;
    let offset = i64::try_from(i128::from(other.at.0) - i128::from(at.0)).ok()?;
    Clock::new([ClockReading { host: Host(1), at, offset, within: DATED }]).ok()
}

/// Puts a rank's log on the first machine's clock; `None` if a moment cannot be told.
pub(super) fn set(log: &mut RankLog, clock: &Clock) -> Option<()> {
    for moment in [&mut log.main, &mut log.done].into_iter().flatten() {
        *moment = clock.moment(*moment)?;
    }
    for test in &mut log.evaluations {
        test.at = clock.moment(test.at)?;
    }
    log.steps.iter_mut().try_for_each(|step| clock.step(step))
}

/// Makes the launchers of all machines one: the run lasts from the first spawn to the last reap on any, and is done if it is on all.
pub(super) fn join(
    launcher: &mut LauncherLog,
    machines: Vec<Machine>,
    clocks: &BTreeMap<Who, Clock>,
) -> Option<()> {
    let same = Clock::default();
    for machine in machines {
        let clock = clocks.get(&Who::Rank(machine.first)).unwrap_or(&same);
        let LauncherLog { first_spawn, last_reap, over, .. } = machine.launcher;
        if let Some(spawn) = first_spawn {
            let spawn = clock.moment(spawn)?;
            launcher.first_spawn = Some(launcher.first_spawn.map_or(spawn, |first| first.min(spawn)));
        }
        if let Some(reap) = last_reap {
            launcher.last_reap = launcher.last_reap.max(Some(clock.moment(reap)?));
        }
        let is_done = |over: &Option<(Outcome, _)>| matches!(over, Some((Outcome::Done, _)));
        if is_done(&launcher.over) && !is_done(&over) {
            launcher.over = over;
        }
    }
    Some(())
}

/// Makes room for moments that clocks of several machines put a little before the first spawn or behind the last reap.
pub(super) fn widen(launcher: &mut LauncherLog, ranks: &[RankLog]) {
    let begins = ranks.iter().filter_map(|rank| rank.main);
    launcher.first_spawn = launcher.first_spawn.into_iter().chain(begins).min();
    let ends = ranks.iter().filter_map(|rank| rank.steps.last()).map(|step| step.end);
    launcher.last_reap = launcher.last_reap.into_iter().chain(ends).max();
}

/// The clocks of the ranks of a run, as far as they differ from the first rank's, for those who read the logs themselves.
pub(crate) fn clocks_of(folder: &Path, workers: u32) -> BTreeMap<Who, Clock> {
    let name = |rank: u32| RankReader::open(folder, Rank(rank)).ok()?.header().host.clone();
    let names: Vec<Option<String>> = (0..workers).map(name).collect();
    if names.windows(2).all(|pair| pair[0] == pair[1]) {
        return BTreeMap::new();
    }
    let read = || {
        let ranks: Vec<RankLog> =
            (0..workers).map(|rank| RankLog::read(folder, Rank(rank))).collect::<Result<_, _>>().ok()?;
        let (launcher, machines) = (LauncherLog::read(folder).ok()?, read(folder).ok()?);
        clocks(&ranks, &launcher, &machines).ok()
    };
    read().unwrap_or_default()
}
