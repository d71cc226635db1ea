//! What it cost that workers were lost, came and went.
//!
//! ```text
//! worker_s = waiting + unfinished + replacing                       worker-seconds: the waterfall's cause `recovery`
//! slower_s = sum over steps with fewer members than before a loss of (time - median at that strength)
//! ```
//!
//! *Waiting* is the members' phase `recovery`: until a loss was noticed and dealt with, and doing its work again.
//! *Unfinished* is what lost members did after their last step, *replacing* the launch and init of those that took their
//! places. All of it is about the first repeat, because each has its own events.

mod event;
mod hosts;

use std::collections::{BTreeMap, BTreeSet};

use paceline_record::log::{PlantedFault, RankLog};
use paceline_record::{
    Expulsion, Host, LauncherEvent, Member, MemberChange, MemberEvent, Nanos, Phase, RecoveryPhase, Step, Who,
};
use serde::Serialize;

pub use self::event::{Event, What};
use super::phases::{self, PhaseSeconds};
use super::series;
use crate::Run;
use crate::membership::{Fate, Life, Membership};
use crate::stats::{self, Work};

/// Most events that a report lists.
pub const MOST_EVENTS: usize = 200;

/// How a run whose workers come and go dealt with that.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// Members whose process ended without being asked to.
    pub losses: u64,
    /// Members that were expelled while their process ran.
    pub expulsions: u64,
    /// Members that were started in the place of lost ones.
    pub replacements: u64,
    /// Members that took part from after the run's first step on.
    pub joins: u64,
    /// Members that left in good order.
    pub leaves: u64,
    /// Rosters.
    pub generations: u64,
    /// Hosts that were lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub hosts_lost: u64,
    /// Hosts that joined after the run's first step.
    #[serde(skip_serializing_if = "is_zero")]
    pub hosts_joined: u64,
    /// Hosts that left before all was done.
    #[serde(skip_serializing_if = "is_zero")]
    pub hosts_left: u64,
    /// Samples that were computed again because somebody had lost them.
    pub examples_redone: u64,
    /// Seconds of the run by what a recovery was doing.
    pub phases_s: RecoverySeconds,
    /// Worker-seconds that losses cost.
    pub worker_s: Toll,
    /// The same as a fraction of the members' lives.
    #[serde(rename = "share")]
    pub fraction: f64,
    /// Extra seconds of the steps with fewer members than before a loss; `None` if nobody was lost, or if no step shows how
    /// long one takes at full strength.
    pub slower_s: Option<f64>,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Further events that are not listed.
    pub more_events: u64,
    /// Members and images per second over time.
    pub strength: Strength,
}

/// Seconds by phase of a recovery, on the launcher's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RecoverySeconds {
    /// Until it was noticed.
    pub detect: f64,
    /// Until the lost member could do no more harm.
    pub fence: f64,
    /// Connecting to other hosts.
    pub rebuild: f64,
    /// Copying state.
    pub state: f64,
    /// Doing lost work again.
    pub redo: f64,
    /// All of them.
    pub sum: f64,
}

/// Worker-seconds that losses cost, by what they went to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Toll {
    /// The others waited, and did lost work again.
    pub waiting: f64,
    /// What lost members did after their last step.
    pub unfinished: f64,
    /// Launch and init of replacements, and of members that were lost before their first step.
    pub replacing: f64,
    /// All of it.
    pub sum: f64,
}

const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Members and rate over time. Point i stands for `every` steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Strength {
    /// Steps per point.
    pub every: u64,
    /// Seconds from the first spawn to the end of the point's last step.
    pub to_s: Vec<f64>,
    /// The fewest members that did one of its steps.
    pub members: Vec<u64>,
    /// Its images per second, without evaluation and checkpoints.
    pub images_per_s: Vec<f64>,
}

/// The recovery of a run; `None` where workers stay, or where the run has no begin or no end.
pub fn recovery(run: &Run) -> Option<Recovery> {
    let membership = run.membership.as_ref()?;
    let lives_s = run.lives_s()?;
    let view = View::new(run, membership);
    let count = |of: fn(&Life) -> bool| membership.lives.iter().filter(|life| of(life)).count() as u64;
    let first = membership.steps.first();
    let begin = run.training().map(|training| training.begin);
    let joined = |log: &&RankLog| match log.steps.first() {
        Some(step) => Some(&step.step) > first,
        None => {
            let life = membership.life(log.header.who());
            life.and_then(|life| life.joined).is_some_and(|joined| Some(joined) > begin)
        }
    };
    let worker_s = view.worker_s();
    let hosts = view.host_events();
    let of_hosts = |what: What| hosts.iter().filter(|(_, event)| event.what == what).count() as u64;
    let (events, more_events) = view.events();
    Some(Recovery {
        losses: count(|life| matches!(life.fate, Fate::Lost(..))),
        expulsions: count(|life| matches!(life.fate, Fate::Expelled(..))),
        replacements: count(|life| life.replaces.is_some()),
        joins: run.ranks.iter().filter(joined).count() as u64,
        leaves: count(|life| matches!(life.fate, Fate::Left(_))),
        generations: membership.rosters.len() as u64,
        hosts_lost: of_hosts(What::Lost),
        hosts_joined: of_hosts(What::Joined),
        hosts_left: of_hosts(What::Left),
        examples_redone: run.ranks.iter().flat_map(|log| &log.steps).map(|step| step.redone).sum(),
        phases_s: seconds(membership),
        worker_s,
        fraction: if lives_s > 0.0 { worker_s.sum / lives_s } else { 0.0 },
        slower_s: view.slower(),
        events,
        more_events,
        strength: view.strength(),
    })
}

/// What a member's loss, or its replacing a lost one, moves from start-up and tail to recovery.
pub(super) fn toll(run: &Run, log: &RankLog, tiled: &PhaseSeconds) -> Toll {
    let Some(life) = run.membership.as_ref().and_then(|membership| membership.life(log.header.who())) else {
        return Toll::default();
    };
    let lost = life.fate.lost_at().is_some();
    let replacing = if life.replaces.is_some() || (lost && log.steps.is_empty()) {
        tiled[&Phase::Launch] + tiled[&Phase::Init]
    } else {
        0.0
    };
    let unfinished = if lost { tiled[&Phase::Tail] } else { 0.0 };
    let waiting = tiled[&Phase::Recovery];
    Toll { waiting, unfinished, replacing, sum: waiting + unfinished + replacing }
}

fn seconds(membership: &Membership) -> RecoverySeconds {
    let mut seconds = RecoverySeconds::default();
    for recovery in &membership.recoveries {
        let time = recovery.end.since(recovery.begin).seconds();
        *match recovery.phase {
            RecoveryPhase::Detect => &mut seconds.detect,
            RecoveryPhase::Fence => &mut seconds.fence,
            RecoveryPhase::Rebuild => &mut seconds.rebuild,
            RecoveryPhase::State => &mut seconds.state,
            RecoveryPhase::Redo => &mut seconds.redo,
        } += time;
        seconds.sum += time;
    }
    seconds
}

/// Whether a fault, in the words of `--faults`, ends whoever it is planted in.
fn ends_a_member(fault: &str) -> bool {
    ["kill=", "leave="].iter().any(|kind| fault.starts_with(kind))
}

/// A run, and what its events are told from.
struct View<'a> {
    run: &'a Run,
    membership: &'a Membership,
    /// What each member cost.
    tolls: BTreeMap<Member, Toll>,
    /// The global steps.
    steps: Vec<Work>,
    /// Members that did each of them.
    strengths: Vec<u64>,
    /// Members and hosts that were lost, by the step that they were in.
    lost: BTreeMap<Step, Vec<Lost>>,
}

/// Who was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lost {
    Member(Member),
    Host(Host),
}

impl<'a> View<'a> {
    fn new(run: &'a Run, membership: &'a Membership) -> Self {
        let toll = |log: &RankLog| {
            let tiled = phases::tile_of(run, log)?;
            match log.header.who() {
                Who::Member(member) => Some((member, toll(run, log, &tiled))),
                Who::Rank(_) => None,
            }
        };
        let mut lost: BTreeMap<Step, Vec<Lost>> = BTreeMap::new();
        for life in membership.lives.iter().filter(|life| life.fate.lost_at().is_some()) {
            if let Some(step) = life.last {
                lost.entry(step).or_default().push(Lost::Member(life.member));
            }
        }
        for (step, host) in hosts::losses(run) {
            lost.entry(step).or_default().push(Lost::Host(host));
        }
        Self {
            run,
            membership,
            tolls: run.ranks.iter().filter_map(toll).collect(),
            steps: run.global_steps(),
            strengths: (0..run.steps()).map(|k| run.records(k).count() as u64).collect(),
            lost,
        }
    }

    fn worker_s(&self) -> Toll {
        self.tolls.values().fold(Toll::default(), |sum, toll| Toll {
            waiting: sum.waiting + toll.waiting,
            unfinished: sum.unfinished + toll.unfinished,
            replacing: sum.replacing + toll.replacing,
            sum: sum.sum + toll.sum,
        })
    }

    /// Seconds of the phase `recovery` in a step, all members together.
    fn waited(&self, k: usize) -> f64 {
        self.run.records(k).map(|step| step.phases[Phase::Recovery]).sum::<Nanos>().seconds()
    }

    /// What the others waited for each lost member and host: what they spent in its step and in those up to the next loss. Those
    /// lost in one step share it evenly.
    fn waited_for(&self) -> BTreeMap<Lost, f64> {
        let mut waited: BTreeMap<Lost, f64> = BTreeMap::new();
        for (k, &step) in self.membership.steps.iter().enumerate() {
            let seconds = self.waited(k);
            if let (true, Some((_, lost))) = (seconds > 0.0, self.lost.range(..=step).next_back()) {
                for &one in lost {
                    *waited.entry(one).or_default() += seconds / lost.len() as f64;
                }
            }
        }
        waited
    }

    /// Extra time of the steps between a loss and the moment when as many members are there as before.
    fn slower(&self) -> Option<f64> {
        if self.lost.is_empty() {
            return None;
        }
        let left: Vec<Step> = self
            .membership
            .lives
            .iter()
            .filter(|life| matches!(life.fate, Fate::Left(_)))
            .filter_map(|life| life.last)
            .collect();
        let mut usual: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let mut weak: Vec<(u64, f64)> = Vec::new();
        let mut needed: Option<u64> = None;
        for (k, (&step, work)) in self.membership.steps.iter().zip(&self.steps).enumerate() {
            let gone = left.iter().filter(|&&gone| gone == step).count() as u64;
            needed = needed.map(|needed| needed.saturating_sub(gone));
            let here = self.strengths[k];
            if self.lost.contains_key(&step) {
                let before = k.checked_sub(1).map_or(here, |before| self.strengths[before]);
                needed = needed.max(Some(before.saturating_sub(gone)));
                continue;
            }
            match needed {
                Some(full) if here < full => weak.push((full, work.seconds)),
                _ => {
                    needed = None;
                    if self.waited(k) == 0.0 {
                        usual.entry(here).or_default().push(work.seconds);
                    }
                }
            }
        }
        let medians: BTreeMap<u64, f64> = usual
            .into_iter()
            .filter_map(|(strength, times)| Some((strength, stats::median(&times)?)))
            .collect();
        weak.into_iter().map(|(full, seconds)| Some(seconds - medians.get(&full)?)).sum()
    }

    /// What happened, in order, and how much of it is not listed.
    fn events(&self) -> (Vec<Event>, u64) {
        let waited = self.waited_for();
        let mut started: BTreeSet<Member> = BTreeSet::new();
        let told = self.run.launcher.membership.iter();
        let mut events: Vec<(Nanos, Event)> =
            told.filter_map(|event| self.told(event, &mut started)).collect();
        for life in &self.membership.lives {
            events.extend(self.end_of(life, &waited));
            events.extend(self.planted_in(life));
        }
        events.extend(self.host_events().into_iter().map(|(at, event)| {
            let host = event.host.filter(|_| event.what == What::Lost);
            let cost_s = host.and_then(|host| waited.get(&Lost::Host(host)).copied());
            (at, Event { cost_s, ..event })
        }));
        events.sort_by_key(|&(at, ref event)| (at, event.host, event.member, event.what));
        let more = events.len().saturating_sub(MOST_EVENTS);
        (events.into_iter().take(MOST_EVENTS).map(|(_, event)| event).collect(), more as u64)
    }

    /// What the launcher told of members that came after the first step or stood still, and of other numbers of workers.
    fn told(&self, event: &LauncherEvent, started: &mut BTreeSet<Member>) -> Option<(Nanos, Event)> {
        let &MemberEvent { member, at, ref change } = match event {
            LauncherEvent::Member(event) => event,
            LauncherEvent::Scaled { at, workers } => {
                return Some((*at, Event { workers: Some(*workers), ..self.of_nobody(*at, What::Scaled) }));
            }
            _ => return None,
        };
        let first = self.run.training().map(|training| training.begin).unwrap_or_default();
        let event = |what: What| self.event(at, member, what);
        let event = match change {
            MemberChange::Spawned if at >= first => {
                started.insert(member);
                let replaces = self.membership.life(Who::Member(member)).and_then(|life| life.replaces);
                let cost_s = self.tolls.get(&member).map(|toll| toll.replacing).filter(|&cost| cost > 0.0);
                Event { replaces, cost_s, ..event(What::Started) }
            }
            MemberChange::Joined if started.remove(&member) => {
                let step = self.log(member).and_then(|log| log.steps.first()).map(|step| step.step);
                Event { step, ..event(What::Joined) }
            }
            MemberChange::Stalled { step, .. } if !self.was_expelled_stalled(member) => {
                Event { step: Some(*step), ..event(What::Stalled) }
            }
            _ => return None,
        };
        Some((at, event))
    }

    /// How a member came to its end, unless it lasted.
    fn end_of(&self, life: &Life, waited: &BTreeMap<Lost, f64>) -> Option<(Nanos, Event)> {
        let (at, what, exit, reason) = match &life.fate {
            Fate::Lasted => return None,
            Fate::Left(at) => (*at, What::Left, None, None),
            Fate::Lost(at, exit) => (*at, What::Lost, *exit, None),
            Fate::Expelled(at, reason) => (*at, What::Expelled, None, Some(reason.clone())),
        };
        let toll = self.tolls.get(&life.member).copied().unwrap_or_default();
        // The start of a member that was there from the beginning is no event of its own.
        let early = Some(life.span.begin) <= self.run.launcher.first_spawn;
        let start = if early { toll.replacing } else { 0.0 };
        let cost =
            toll.unfinished + start + waited.get(&Lost::Member(life.member)).copied().unwrap_or_default();
        let planted = self.planted_end(life);
        let event = Event {
            step: life.last,
            exit,
            reason,
            planted: planted.map(|planted| planted.fault.clone()),
            cost_s: (what != What::Left).then_some(cost),
            ..self.event(at, life.member, what)
        };
        Some((at, event))
    }

    /// Whether its standing still is told with its expulsion.
    fn was_expelled_stalled(&self, member: Member) -> bool {
        let life = self.membership.life(Who::Member(member));
        life.is_some_and(|life| matches!(life.fate, Fate::Expelled(_, Expulsion::Stalled)))
    }

    /// Faults that its end does not tell: those that slow it, or stop it for a while.
    fn planted_in<'b>(&'b self, life: &'b Life) -> impl Iterator<Item = (Nanos, Event)> + 'b {
        let faults = self.log(life.member).map(|log| log.faults.as_slice()).unwrap_or_default();
        let told = self.planted_end(life);
        let untold = faults.iter().filter(move |fault| Some(*fault) != told && !ends_a_member(&fault.fault));
        untold.map(|planted| {
            let event = Event {
                step: Some(planted.step),
                planted: Some(planted.fault.clone()),
                ..self.event(planted.at, life.member, What::Planted)
            };
            (planted.at, event)
        })
    }

    /// The planted fault that a member came to its end by.
    fn planted_end(&self, life: &Life) -> Option<&PlantedFault> {
        let faults = &self.log(life.member)?.faults;
        let planted = faults.iter().rev().find(|planted| !planted.fault.starts_with("slow="));
        planted.filter(|planted| life.fate != Fate::Lasted && Some(planted.step) >= life.last)
    }

    fn log(&self, member: Member) -> Option<&RankLog> {
        self.run.ranks.iter().find(|log| log.header.who() == Who::Member(member))
    }

    fn event(&self, at: Nanos, member: Member, what: What) -> Event {
        let place = self.run.hosts.as_ref().and_then(|hosts| hosts.place(member));
        let host = place.map(|(host, _)| host);
        Event { member: Some(member), host, ..self.of_nobody(at, what) }
    }

    fn of_nobody(&self, at: Nanos, what: What) -> Event {
        let begin = self.run.launcher.first_spawn.unwrap_or_default();
        Event { at_s: at.since(begin).seconds(), what, ..Event::default() }
    }

    fn strength(&self) -> Strength {
        let begin = self.run.launcher.first_spawn.unwrap_or_default();
        let every = self.steps.len().div_ceil(series::MOST).max(1);
        let ends: Vec<Nanos> = self.run.ends().map(|(_, end)| end).collect();
        let rate = |steps: &[Work]| stats::rate(steps).unwrap_or(0.0);
        Strength {
            every: every as u64,
            to_s: ends.chunks(every).filter_map(|ends| Some(ends.last()?.since(begin).seconds())).collect(),
            members: self.strengths.chunks(every).filter_map(|few| few.iter().copied().min()).collect(),
            images_per_s: self.steps.chunks(every).map(rate).collect(),
        }
    }
}
