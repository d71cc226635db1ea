//! `timeline.json`: every rank's time as Chrome trace events, for Perfetto and chrome://tracing.
//!
//! Each rank of each case is a process with a track of its steps and their phases, and tracks of its exchanges: one,
//! or more if exchanges overlap. Where workers come and go, each member is a process, and what happened to it, as well as each
//! roster that it is in, is an instant on its track. Ranks of a case have one clock that starts at the first spawn; where there are
//! several hosts it is that of the first, and each host has one more process: its porter, with a track for each host that it moves
//! bytes to and from. Every case starts at 0, so that the same step of different cases is near the same place.
//!
//! A log says how long each phase of a step took, not when: phases are drawn in the order of the step loop. A log is
//! drawn as far as it can be read; a missing log is skipped.
//!
//! Viewers slow down with large files, so there is a [budget](MOST). Ranks share it evenly, and what one does not need, the
//! others get; the first steps of each case that fit are drawn. `otherData` says what was left out.

mod pen;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use paceline_record::log::{LauncherLog, LauncherReader, MemberReader, PorterReader, RankReader};
use paceline_record::{
    Exit, Generation, Host, LauncherEvent, Member, MemberChange, MemberEvent, Nanos, Outcome, PorterEvent,
    Rank, RankEvent, Roster, StepRecord, Who,
};
use serde_json::{Value, json};

use self::pen::{Pen, STEPS};
use crate::case::LAUNCHER_GONE;
use crate::hosts::clock::Clock;
use crate::hosts::{self, Station, Told};
use crate::{LabError, words};

/// Most events of a timeline.
pub const MOST: usize = 200_000;

/// Writes the timeline of cases, each with its name and its folder.
pub fn write(cases: &[(String, PathBuf)], out: &mut dyn Write) -> Result<(), LabError> {
    write_within(MOST, cases, out)
}

fn write_within(budget: usize, cases: &[(String, PathBuf)], out: &mut dyn Write) -> Result<(), LabError> {
    let logs: Vec<CaseLog<'_>> = cases.iter().flat_map(|(name, folder)| read_hosts(name, folder)).collect();
    let tracks = logs.iter().flat_map(|case| {
        let workers = case.workers.iter().map(|&who| Actor::Worker(who));
        let porter = case.host.map(|_| Actor::Porter);
        workers.chain(porter).filter_map(move |actor| Track::survey(case, actor))
    });
    let mut ranks: Vec<Track<'_>> = tracks.collect();
    share_out(budget, &mut ranks);
    draw_all(&mut ranks, out).map_err(LabError::io("write", "timeline.json"))
}

/// The logs of a case: one, or one of each host that can be read.
fn read_hosts<'a>(name: &'a str, folder: &Path) -> Vec<CaseLog<'a>> {
    let told = LauncherLog::read(folder).ok().and_then(|launcher| Told::by(&launcher));
    let Some(told) = told else {
        let alone = Station { folder: folder.into(), clock: Clock::default() };
        return CaseLog::read(name, None, alone).into_iter().collect();
    };
    let stations = told.stations(folder).into_iter();
    let readable = stations.filter_map(|(host, station)| Some((host, station.ok()?)));
    let mut logs: Vec<CaseLog<'_>> =
        readable.filter_map(|(host, station)| CaseLog::read(name, Some(host), station)).collect();
    let first = logs.iter().map(|log| log.first_spawn).min().unwrap_or_default();
    logs.iter_mut().for_each(|log| log.first_spawn = first);
    logs
}

/// A case as its launcher logged it, or one of its launchers.
struct CaseLog<'a> {
    name: &'a str,
    /// The host, of several.
    host: Option<Host>,
    station: Station,
    workers: Vec<Who>,
    /// Who was which rank, where workers come and go.
    places: BTreeMap<(Generation, Member), Rank>,
    /// The clocks of ranks on other machines than the first.
    clocks: BTreeMap<Who, Clock>,
    /// What happened to whom, and when.
    marks: Vec<(Who, Nanos, String)>,
    spawns: Vec<(Who, Nanos)>,
    reaps: Vec<(Who, Nanos)>,
    first_spawn: Nanos,
    last_reap: Option<Nanos>,
    /// How the case ended, unless it finished.
    unfinished: Option<String>,
}

impl<'a> CaseLog<'a> {
    /// Reads a launcher's log; `None` if it does not say when the case began.
    fn read(name: &'a str, host: Option<Host>, station: Station) -> Option<Self> {
        let mut reader = LauncherReader::open(&station.folder).ok()?;
        let world = reader.header().case.workers;
        let mut case = Self {
            name,
            host,
            station,
            workers: (0..world).map(|rank| Who::Rank(Rank(rank))).collect(),
            places: BTreeMap::new(),
            clocks: BTreeMap::new(),
            marks: Vec::new(),
            spawns: Vec::new(),
            reaps: Vec::new(),
            first_spawn: Nanos(0),
            last_reap: None,
            unfinished: Some(format!("failed: {LAUNCHER_GONE}")),
        };
        while let Ok(Some(mut event)) = reader.next_event() {
            hosts::set_event(&case.station.clock, &mut event)?;
            match event {
                LauncherEvent::Spawn { rank, at } => case.spawned(Who::Rank(rank), at),
                LauncherEvent::Reap { rank, at, exit } => case.reaped(Who::Rank(rank), at, exit),
                LauncherEvent::Over { outcome: Outcome::Done, .. } => case.unfinished = None,
                LauncherEvent::Over { outcome, reason } => {
                    let ended = if outcome == Outcome::Failed { "failed" } else { "interrupted" };
                    let reason = reason.as_deref().unwrap_or("reason unknown");
                    case.unfinished = Some(format!("{ended}: {reason}"));
                }
                LauncherEvent::Member(event) => case.changed(event),
                LauncherEvent::Roster(roster) => case.decided(&roster),
                _ => {}
            }
        }
        let members: BTreeSet<Who> =
            case.spawns.iter().map(|&(who, _)| who).filter(|who| matches!(who, Who::Member(_))).collect();
        if !members.is_empty() {
            case.workers = members.into_iter().collect();
        }
        if host.is_none() {
            case.clocks = crate::run::clocks_of(&case.station.folder, world);
        }
        case.first_spawn = case.spawns.iter().map(|&(_, at)| at).min()?;
        case.last_reap = case.reaps.iter().map(|&(_, at)| at).max();
        Some(case)
    }

    fn spawned(&mut self, who: Who, at: Nanos) {
        self.marks.push((who, at, "spawn".into()));
        self.spawns.push((who, at));
    }

    fn reaped(&mut self, who: Who, at: Nanos, exit: Exit) {
        self.marks.push((who, at, format!("end: {exit}")));
        self.reaps.push((who, at));
    }

    fn changed(&mut self, MemberEvent { member, at, change }: MemberEvent) {
        let who = Who::Member(member);
        let mark = match change {
            MemberChange::Spawned => return self.spawned(who, at),
            MemberChange::Ended(exit) => return self.reaped(who, at, exit),
            MemberChange::Joined => "joined",
            MemberChange::Left => "left",
            MemberChange::Stalled { .. } => "stalled",
            MemberChange::Expelled(_) => "expelled",
            MemberChange::Other(_) => return,
        };
        self.marks.push((who, at, mark.into()));
    }

    fn decided(&mut self, roster: &Roster) {
        let name = format!("roster {} of {}", roster.generation, words::workers(roster.members.len() as u64));
        for (rank, &member) in (0..).map(Rank).zip(&roster.members) {
            self.places.insert((roster.generation, member), rank);
            self.marks.push((Who::Member(member), roster.at, name.clone()));
        }
    }

    /// What a worker logged, on one clock.
    fn events(&self, who: Who) -> Option<impl Iterator<Item = RankEvent> + use<'_>> {
        let clock = self.clocks.get(&who).unwrap_or(&self.station.clock);
        read_worker(&self.station.folder, clock, who)
    }

    /// The rank that a worker had in a step, if it is known.
    fn rank_of(&self, who: Who, step: &StepRecord) -> Option<Rank> {
        match who {
            Who::Rank(rank) => Some(rank),
            Who::Member(member) => self.places.get(&(step.generation, member)).copied(),
        }
    }

    /// From when to when a worker's time is drawn. A member's own times count, because members come and go.
    fn span_of(&self, who: Who) -> (Nanos, Option<Nanos>) {
        let of = |all: &[(Who, Nanos)]| all.iter().find(|(whose, _)| *whose == who).map(|&(_, at)| at);
        match who {
            Who::Rank(_) => (self.first_spawn, self.last_reap),
            Who::Member(_) => (of(&self.spawns).unwrap_or(self.first_spawn), of(&self.reaps)),
        }
    }
}

/// What a worker logged, on the first host's clock, up to the first event that cannot be read.
fn read_worker<'a>(
    folder: &Path,
    clock: &'a Clock,
    who: Who,
) -> Option<impl Iterator<Item = RankEvent> + use<'a>> {
    let mut next_event: Box<dyn FnMut() -> Option<RankEvent>> = match who {
        Who::Rank(rank) => {
            let mut log = RankReader::open(folder, rank).ok()?;
            Box::new(move || log.next_event().ok()?)
        }
        Who::Member(member) => {
            let mut log = MemberReader::open(folder, member).ok()?;
            Box::new(move || log.next_event().ok()?)
        }
    };
    let mut last_end = Nanos(0);
    Some(std::iter::from_fn(move || {
        let mut event = next_event()?;
        match &mut event {
            RankEvent::Step(step) => {
                clock.step(step)?;
                (last_end <= step.begin && step.begin <= step.end).then_some(())?;
                last_end = step.end;
            }
            RankEvent::Main { at, .. } => *at = clock.moment(*at)?,
            _ => {}
        }
        Some(event)
    }))
}

/// What a porter logged, on the first host's clock, up to the first event that cannot be read; `None` where there is no log.
fn read_porter(Station { folder, clock }: &Station) -> Option<impl Iterator<Item = PorterEvent>> {
    let mut log = PorterReader::open(folder).ok()??;
    Some(std::iter::from_fn(move || {
        let mut event = log.next_event().ok()??;
        match &mut event {
            PorterEvent::Moved(moved) => {
                (moved.begin, moved.end) = (clock.moment(moved.begin)?, clock.moment(moved.end)?);
            }
            PorterEvent::Connected { at, .. } | PorterEvent::Lost { at, .. } => *at = clock.moment(*at)?,
            PorterEvent::Worked { .. } | PorterEvent::Dropped { .. } => {}
        }
        Some(event)
    }))
}

/// Whose time a process of the timeline shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Actor {
    Worker(Who),
    Porter,
}

/// A rank or a porter of a case, and how much of it is drawn.
struct Track<'a> {
    case: &'a CaseLog<'a>,
    actor: Actor,
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
    fn survey(case: &'a CaseLog<'a>, actor: Actor) -> Option<Self> {
        let mut track = Self {
            case,
            actor,
            main: None,
            training: None,
            steps: 0,
            kept: 0,
            step_events: 0,
            frame_events: 0,
            allowance: 0,
        };
        let mut pen = Pen::default();
        match actor {
            Actor::Worker(who) => {
                for event in case.events(who)? {
                    match event {
                        RankEvent::Main { at, .. } => track.main = Some(at),
                        RankEvent::Step(step) => {
                            pen.step(case.rank_of(who, &step), &step);
                            let first = track.training.map_or(step.begin, |(first, _)| first);
                            track.training = Some((first, step.end));
                            track.steps += 1;
                        }
                        _ => {}
                    }
                }
            }
            Actor::Porter => read_porter(&case.station)?.for_each(|event| pen.moved(&event)),
        }
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
        if self.allowance == self.need() || self.actor == Actor::Porter {
            return u64::MAX;
        }
        let events = self.allowance.saturating_sub(self.frame_events) as u64;
        self.steps * events / self.step_events.max(1) as u64
    }

    /// All but the steps.
    fn frame(&self, pen: &mut Pen, place: usize) {
        let Self { case, actor, .. } = self;
        let who = match (*actor, case.host) {
            (Actor::Worker(Who::Member(own)), Some(host)) => hosts::name(host, own),
            (Actor::Worker(who), _) => who.to_string(),
            (Actor::Porter, host) => format!("porter of host {}", host.unwrap_or_default()),
        };
        pen.process("name", json!({ "name": format!("{} {who}", case.name) }));
        pen.process("sort_index", json!({ "sort_index": place }));
        if let Some(why) = &case.unfinished {
            pen.process("labels", json!({ "labels": why }));
        }
        let Actor::Worker(who) = *actor else { return pen.thread(STEPS, "porter") };
        pen.thread(STEPS, "steps");
        for (_, at, mark) in case.marks.iter().filter(|(whose, ..)| *whose == who) {
            pen.instant(mark, *at);
        }
        let (spawn, reap) = case.span_of(who);
        let Some(main) = self.main else { return };
        pen.run_phase("launch", (spawn, main));
        if let Some(begun) = self.training.map(|(begin, _)| begin).or(reap) {
            pen.run_phase("init", (main, begun));
        }
        if let (Some((_, end)), Some(reap)) = (self.training, reap) {
            pen.run_phase("tail", (end, reap));
        }
    }

    /// Draws what fits, no more than `most` steps.
    fn draw(&mut self, place: usize, most: u64, out: &mut Sheet<'_>) -> io::Result<()> {
        let mut pen = Pen::new(place + 1, self.case.first_spawn);
        if self.case.host.is_some() {
            pen.ranks_are_of = " of this host";
        }
        self.frame(&mut pen, place);
        if pen.events > self.allowance {
            return Ok(());
        }
        out.put(&mut pen)?;
        let Actor::Worker(who) = self.actor else {
            for event in read_porter(&self.case.station).into_iter().flatten() {
                pen.moved(&event);
                if pen.events > self.allowance {
                    break;
                }
                out.put(&mut pen)?;
            }
            return Ok(());
        };
        let steps = self.case.events(who).into_iter().flatten().filter_map(|event| match event {
            RankEvent::Step(step) => Some(step),
            _ => None,
        });
        for step in steps.take(usize::try_from(most).unwrap_or(usize::MAX)) {
            pen.step(self.case.rank_of(who, &step), &step);
            if pen.events > self.allowance {
                break;
            }
            out.put(&mut pen)?;
            self.kept += 1;
        }
        Ok(())
    }

    fn left_out(&self) -> Option<Value> {
        let Self { case, actor, kept, steps, .. } = self;
        let Actor::Worker(who) = actor else { return None };
        let mut note = json!({ "case": case.name, "steps_kept": kept, "steps_total": steps });
        match who {
            Who::Rank(rank) => note["rank"] = json!(rank),
            Who::Member(member) => note["member"] = json!(member),
        }
        if let Some(host) = case.host {
            note["host"] = json!(host);
        }
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
        let peers = ranks.iter().filter(|rank| rank.case.name == case.name);
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
