//! `timeline.json`: every rank's time as Chrome trace events, for Perfetto and chrome://tracing.
//!
//! Each rank of each case is a process with a track of its steps and their phases, and tracks of its exchanges: one,
//! or more if exchanges overlap. Ranks of a case have one clock that starts at the first spawn. Every case starts at 0,
//! so that the same step of different cases is near the same place.
//!
//! A log says how long each phase of a step took, not when: phases are drawn in the order of the step loop. A log is
//! drawn as far as it can be read; a missing log is skipped.
//!
//! Viewers slow down with large files, so there is a [budget](MOST). Ranks share it evenly, and what one does not need, the
//! others get; the first steps of each case that fit are drawn. `otherData` says what was left out.

mod foreign;
mod pen;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use paceline_record::log::{LauncherReader, RankReader};
use paceline_record::{Exit, LauncherEvent, Nanos, Outcome, Rank, RankEvent, StepRecord};
use serde_json::{Value, json};

pub use self::foreign::write_trace;
use self::pen::{Pen, STEPS};
use crate::LabError;

/// Most events of a timeline.
pub const MOST: usize = 200_000;

/// Writes the timeline of cases, each with its name and its folder.
pub fn write(cases: &[(String, PathBuf)], out: &mut dyn Write) -> Result<(), LabError> {
    write_within(MOST, cases, out)
}

fn write_within(budget: usize, cases: &[(String, PathBuf)], out: &mut dyn Write) -> Result<(), LabError> {
    let logs = cases.iter().filter_map(|(name, folder)| CaseLog::read(name, folder));
    let logs: Vec<CaseLog<'_>> = logs.collect();
    let ranks = logs.iter().flat_map(|case| (0..case.world).map(move |rank| (case, Rank(rank))));
    let mut ranks: Vec<Track<'_>> = ranks.filter_map(|(case, rank)| Track::survey(case, rank)).collect();
    share_out(budget, &mut ranks);
    draw_all(&mut ranks, out).map_err(LabError::io("write", "timeline.json"))
}

/// A case as its launcher logged it.
struct CaseLog<'a> {
    name: &'a str,
    folder: &'a Path,
    world: u32,
    spawns: Vec<(Rank, Nanos)>,
    reaps: Vec<(Rank, Nanos, Exit)>,
    first_spawn: Nanos,
    last_reap: Option<Nanos>,
    /// How the case ended, unless it finished.
    unfinished: Option<String>,
}

impl<'a> CaseLog<'a> {
    /// Reads a launcher's log; `None` if it does not say when the case began.
    fn read(name: &'a str, folder: &'a Path) -> Option<Self> {
        let mut reader = LauncherReader::open(folder).ok()?;
        let (mut spawns, mut reaps) = (Vec::new(), Vec::new());
        let mut unfinished = Some("failed: the launcher ended before its workers did".into());
        while let Ok(Some(event)) = reader.next_event() {
            match event {
                LauncherEvent::Spawn { rank, at } => spawns.push((rank, at)),
                LauncherEvent::Reap { rank, at, exit } => reaps.push((rank, at, exit)),
                LauncherEvent::Over { outcome: Outcome::Done, .. } => unfinished = None,
                LauncherEvent::Over { outcome, reason } => {
                    let ended = if outcome == Outcome::Failed { "failed" } else { "interrupted" };
                    unfinished = Some(format!("{ended}: {}", reason.as_deref().unwrap_or("reason unknown")));
                }
                LauncherEvent::Member(_)
                | LauncherEvent::Roster(_)
                | LauncherEvent::Recovery(_)
                | LauncherEvent::Evaluated(_)
                | LauncherEvent::Saved { .. }
                | LauncherEvent::Scaled { .. } => {}
            }
        }
        Some(Self {
            name,
            folder,
            world: reader.header().case.workers,
            first_spawn: spawns.iter().map(|&(_, at)| at).min()?,
            last_reap: reaps.iter().map(|&(_, at, _)| at).max(),
            spawns,
            reaps,
            unfinished,
        })
    }
}

/// The steps of a rank's log, up to the first that cannot be read.
struct Steps {
    reader: RankReader,
    main: Option<Nanos>,
    last_end: Nanos,
}

impl Steps {
    fn open(folder: &Path, rank: Rank) -> Option<Self> {
        Some(Self { reader: RankReader::open(folder, rank).ok()?, main: None, last_end: Nanos(0) })
    }
}

impl Iterator for Steps {
    type Item = StepRecord;

    fn next(&mut self) -> Option<StepRecord> {
        loop {
            match self.reader.next_event() {
                Ok(Some(RankEvent::Step(step))) => {
                    let forward = self.last_end <= step.begin && step.begin <= step.end;
                    self.last_end = step.end;
                    return forward.then_some(step);
                }
                Ok(Some(RankEvent::Main { at, .. })) => self.main = Some(at),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// A rank of a case, and how much of it is drawn.
struct Track<'a> {
    case: &'a CaseLog<'a>,
    rank: Rank,
    main: Option<Nanos>,
    /// Begin of the first step and end of the last.
    training: Option<(Nanos, Nanos)>,
    steps: u64,
    kept: u64,
    /// Events of the steps, of everything else, and the limit for both.
    step_events: usize,
    frame_events: usize,
    allowance: usize,
}

impl<'a> Track<'a> {
    /// Reads a rank's log to its end, keeping only totals; `None` without a log.
    fn survey(case: &'a CaseLog<'a>, rank: Rank) -> Option<Self> {
        let mut log = Steps::open(case.folder, rank)?;
        let mut track = Self {
            case,
            rank,
            main: None,
            training: None,
            steps: 0,
            kept: 0,
            step_events: 0,
            frame_events: 0,
            allowance: 0,
        };
        let mut pen = Pen::counting();
        for step in log.by_ref() {
            pen.step(rank, &step);
            let first = track.training.map_or(step.begin, |(first, _)| first);
            track.training = Some((first, step.end));
            track.steps += 1;
        }
        track.main = log.main;
        track.step_events = pen.events;
        track.frame(&mut pen, 0);
        track.frame_events = pen.events - track.step_events;
        Some(track)
    }

    fn need(&self) -> usize {
        self.step_events + self.frame_events
    }

    /// About how many steps it may draw.
    fn fits(&self) -> u64 {
        if self.allowance == self.need() {
            return u64::MAX;
        }
        let events = self.allowance.saturating_sub(self.frame_events) as u64;
        self.steps * events / self.step_events.max(1) as u64
    }

    /// All but the steps.
    fn frame(&self, pen: &mut Pen, place: usize) {
        let Self { case, rank, .. } = self;
        pen.process("name", json!({ "name": format!("{} rank {rank}", case.name) }));
        pen.process("sort_index", json!({ "sort_index": place }));
        if let Some(why) = &case.unfinished {
            pen.process("labels", json!({ "labels": why }));
        }
        pen.thread(STEPS, "steps");
        for (_, at) in case.spawns.iter().filter(|(spawned, _)| spawned == rank) {
            pen.instant("spawn", *at);
        }
        for (_, at, exit) in case.reaps.iter().filter(|(reaped, ..)| reaped == rank) {
            pen.instant(&format!("end: {exit}"), *at);
        }
        let Some(main) = self.main else { return };
        pen.run_phase("launch", (case.first_spawn, main));
        if let Some(begun) = self.training.map(|(begin, _)| begin).or(case.last_reap) {
            pen.run_phase("init", (main, begun));
        }
        if let (Some((_, end)), Some(last_reap)) = (self.training, case.last_reap) {
            pen.run_phase("tail", (end, last_reap));
        }
    }

    /// Draws what fits, no more than `most` steps.
    fn draw(&mut self, place: usize, most: u64, out: &mut Sheet<'_>) -> io::Result<()> {
        let mut pen = Pen::new(place + 1, self.case.first_spawn);
        self.frame(&mut pen, place);
        if pen.events > self.allowance {
            return Ok(());
        }
        out.put(&mut pen)?;
        let steps = Steps::open(self.case.folder, self.rank).into_iter().flatten();
        for step in steps.take(usize::try_from(most).unwrap_or(usize::MAX)) {
            pen.step(self.rank, &step);
            if pen.events > self.allowance {
                break;
            }
            out.put(&mut pen)?;
            self.kept += 1;
        }
        Ok(())
    }

    fn left_out(&self) -> Option<Value> {
        let Self { case, rank, kept, steps, .. } = self;
        let note = json!({ "case": case.name, "rank": rank, "steps_kept": kept, "steps_total": steps });
        (kept < steps).then_some(note)
    }
}

/// Divides the events among the ranks: evenly, but to none more than it needs.
fn share_out(budget: usize, ranks: &mut [Track<'_>]) {
    let mut modest_first: Vec<&mut Track<'_>> = ranks.iter_mut().collect();
    modest_first.sort_by_key(|rank| rank.need());
    let (mut left, mut waiting) = (budget, modest_first.len());
    for rank in modest_first {
        rank.allowance = rank.need().min(left / waiting);
        left -= rank.allowance;
        waiting -= 1;
    }
}

/// The file, and whether it has an event yet.
struct Sheet<'a> {
    out: &'a mut dyn Write,
    begun: bool,
}

impl Sheet<'_> {
    /// Writes what a pen has drawn.
    fn put(&mut self, pen: &mut Pen) -> io::Result<()> {
        for line in pen.text.lines() {
            let comma = if std::mem::replace(&mut self.begun, true) { ",\n" } else { "\n" };
            self.out.write_all(comma.as_bytes())?;
            self.out.write_all(line.as_bytes())?;
        }
        pen.text.clear();
        Ok(())
    }
}

fn draw_all(ranks: &mut [Track<'_>], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(br#"{"displayTimeUnit":"ms","traceEvents":["#)?;
    let mut sheet = Sheet { out, begun: false };
    for place in 0..ranks.len() {
        // Ranks of a case end at the same step, even if some have fewer events per step.
        let case = ranks[place].case;
        let peers = ranks.iter().filter(|rank| std::ptr::eq(rank.case, case));
        let most = peers.map(Track::fits).min().unwrap_or(0);
        ranks[place].draw(place, most, &mut sheet)?;
    }
    let about = json!({
        "clock": "microseconds since the first spawn of the case; every case begins at 0",
        "phases": "lengths are measured; the order within a step is that of the step loop, by convention",
        "steps_kept": ranks.iter().map(|rank| rank.kept).sum::<u64>(),
        "steps_total": ranks.iter().map(|rank| rank.steps).sum::<u64>(),
        "left_out": ranks.iter().filter_map(Track::left_out).collect::<Vec<_>>(),
    });
    write!(out, "\n],\"otherData\":{about}}}\n")?;
    out.flush()
}

#[cfg(test)]
mod tests;
