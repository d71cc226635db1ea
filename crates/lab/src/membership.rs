//! Who took part in a run whose workers come and go: the lives of its members, and how each ended.
//!
//! A member's life lasts from its spawn to the moment when its process had ended. Of members that were spawned before the
//! first step it begins with the run, and of those that were there to the end it ends with the run. So a run in which nobody
//! came or went has lives of workers times its length.

use std::collections::{BTreeMap, BTreeSet};

use paceline_record::log::{LauncherLog, RankLog, WorkerHeader};
use paceline_record::{
    EvalRecord, Exit, Expulsion, Generation, LauncherEvent, Member, MemberChange, MemberEvent, Nanos, Rank,
    Recovery, Roster, Step, Who,
};

use crate::run::Span;

/// The members of a run, and what its launcher told of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Membership {
    /// Every member, in order of its number; empty where the run has no begin or no end.
    pub lives: Vec<Life>,
    /// The rosters, in order.
    pub rosters: Vec<Roster>,
    /// Phases of recoveries, in order.
    pub recoveries: Vec<Recovery>,
    /// Tests of the network, in order.
    pub evaluations: Vec<EvalRecord>,
    /// The steps that somebody completed and logged, in order: each once.
    pub steps: Vec<Step>,
    /// Steps that were done and are in no log, because everybody who did them was lost before the end of the test or
    /// checkpoint that followed.
    pub unlogged: u64,
}

/// A member's life.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// Whose it is.
    pub member: Member,
    /// From its spawn to its end.
    pub span: Span,
    /// How it ended.
    pub fate: Fate,
    /// When it took part from.
    pub joined: Option<Nanos>,
    /// The lost member whose place it took.
    pub replaces: Option<Member>,
    /// The step that it was in, or would have come to, when it was lost or left.
    pub last: Option<Step>,
}

/// How a member ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It was there to the end of the run.
    Lasted,
    /// It left in good order, or was no longer asked for.
    Left(Nanos),
    /// Its process ended without being asked to.
    Lost(Nanos, Option<Exit>),
    /// It was expelled while its process ran.
    Expelled(Nanos, Expulsion),
}

impl Fate {
    /// When it was lost, in either way.
    pub fn lost_at(&self) -> Option<Nanos> {
        match self {
            Self::Lost(at, _) | Self::Expelled(at, _) => Some(*at),
            Self::Lasted | Self::Left(_) => None,
        }
    }
}

/// Every member that a launcher told of; empty for a run of ranks.
pub(crate) fn members(launcher: &LauncherLog) -> BTreeSet<Member> {
    let told = launcher.membership.iter().flat_map(|event| match event {
        LauncherEvent::Member(event) => vec![event.member],
        LauncherEvent::Roster(roster) => roster.members.clone(),
        _ => Vec::new(),
    });
    told.collect()
}

/// Who was which rank in which generation.
pub(crate) fn places(launcher: &LauncherLog) -> BTreeMap<(Generation, Rank), Member> {
    let rosters = launcher.membership.iter().filter_map(|event| match event {
        LauncherEvent::Roster(roster) => Some(roster),
        _ => None,
    });
    let placed = |roster: &Roster| {
        let generation = roster.generation;
        let ranks = (0..).map(Rank).zip(roster.members.clone());
        ranks.map(move |(rank, member)| ((generation, rank), member))
    };
    rosters.flat_map(placed).collect()
}

/// What a launcher told of one member.
#[derive(Default)]
struct Told {
    spawned: Option<Nanos>,
    joined: Option<Nanos>,
    left: Option<Nanos>,
    ended: Option<(Nanos, Exit)>,
    expelled: Option<(Nanos, Expulsion)>,
}

impl Membership {
    /// The members of a run with these logs; `None` for a run of ranks.
    pub(crate) fn new(launcher: &LauncherLog, logs: &[RankLog]) -> Option<Self> {
        let members = members(launcher);
        if members.is_empty() {
            return None;
        }
        let mut told: BTreeMap<Member, Told> =
            members.into_iter().map(|member| (member, Told::default())).collect();
        let (mut rosters, mut recoveries, mut evaluations) = (Vec::new(), Vec::new(), Vec::new());
        let mut done = 0;
        for event in &launcher.membership {
            match event {
                LauncherEvent::Member(event) => {
                    told.entry(event.member).or_default().hear(event);
                }
                LauncherEvent::Roster(roster) => rosters.push(roster.clone()),
                LauncherEvent::Recovery(recovery) => recoveries.push(*recovery),
                LauncherEvent::Evaluated(test) => {
                    done = done.max(test.steps);
                    evaluations.push(*test);
                }
                LauncherEvent::Saved { steps, .. } => done = done.max(*steps),
                _ => {}
            }
        }
        let steps: BTreeSet<Step> =
            logs.iter().flat_map(|log| log.steps.iter().map(|step| step.step)).collect();
        let steps: Vec<Step> = steps.into_iter().collect();
        let unlogged = count_unlogged(&steps, rosters.first(), done);
        let mut membership = Self { lives: Vec::new(), rosters, recoveries, evaluations, steps, unlogged };
        if let (Some(begin), Some(end)) = (launcher.first_spawn, launcher.last_reap) {
            membership.lives = membership.live(Span { begin, end }, told, logs);
        }
        Some(membership)
    }

    fn live(&self, run: Span, told: BTreeMap<Member, Told>, logs: &[RankLog]) -> Vec<Life> {
        let by_member: BTreeMap<Member, &RankLog> = logs
            .iter()
            .filter_map(|log| match log.header.who() {
                Who::Member(member) => Some((member, log)),
                Who::Rank(_) => None,
            })
            .collect();
        let first = logs.iter().filter_map(|log| log.steps.first()).map(|step| step.begin).min();
        let last = logs.iter().filter_map(|log| log.steps.last()).map(|step| step.end).max();
        let mut lives = Vec::new();
        for (member, told) in told {
            let log = by_member.get(&member);
            let done = log.and_then(|log| log.steps.last()).map(|step| step.step);
            let early = first.is_none_or(|first| told.spawned.is_none_or(|spawned| spawned < first));
            let late = told.ended.is_none_or(|(at, _)| last.is_none_or(|last| at >= last))
                || (done.is_some() && done == self.steps.last().copied());
            let lasted = late && told.left.is_none() && told.expelled.is_none();
            let ended = told.ended.map_or(run.end, |(at, _)| at);
            let fate = match (lasted, told.left, told.expelled) {
                (true, ..) => Fate::Lasted,
                (_, Some(at), _) | (_, _, Some((at, Expulsion::Surplus))) => Fate::Left(at),
                (_, _, Some((at, Expulsion::Ended))) => Fate::Lost(at, told.ended.map(|(_, exit)| exit)),
                (_, _, Some((at, why))) => Fate::Expelled(at, why),
                // Whoever was on the way, and no longer asked for, is gone without a word.
                (_, _, None) if done.is_none() && !self.listed(member) => Fate::Left(ended),
                (_, _, None) => Fate::Lost(ended, told.ended.map(|(_, exit)| exit)),
            };
            let span = Span {
                begin: if early { run.begin } else { told.spawned.unwrap_or(run.begin) },
                end: if lasted { run.end } else { ended },
            };
            let last = self.step_of_end(done, &span, &fate, logs);
            lives.push(Life { member, span, fate, joined: told.joined, replaces: None, last });
        }
        find_replacements(&mut lives, &by_member);
        lives
    }

    /// The step that a member was in when it ended: the one after its last, or the one that the others were in.
    fn step_of_end(&self, done: Option<Step>, span: &Span, fate: &Fate, logs: &[RankLog]) -> Option<Step> {
        if *fate == Fate::Lasted {
            return None;
        }
        if let Some(done) = done {
            return Some(Step(done.0 + 1));
        }
        let steps = logs.iter().flat_map(|log| &log.steps);
        steps.filter(|step| step.end >= span.end).map(|step| step.step).min()
    }

    /// The life of a member.
    pub fn life(&self, who: Who) -> Option<&Life> {
        self.lives.iter().find(|life| Who::Member(life.member) == who)
    }

    /// Whether a member was in any roster.
    fn listed(&self, member: Member) -> bool {
        self.rosters.iter().any(|roster| roster.members.contains(&member))
    }
}

impl Told {
    fn hear(&mut self, MemberEvent { at, change, .. }: &MemberEvent) {
        match change {
            MemberChange::Spawned => self.spawned = self.spawned.or(Some(*at)),
            MemberChange::Left => self.left = self.left.or(Some(*at)),
            MemberChange::Ended(exit) => self.ended = self.ended.or(Some((*at, *exit))),
            MemberChange::Expelled(why) => {
                self.expelled = self.expelled.take().or_else(|| Some((*at, why.clone())));
            }
            MemberChange::Joined => self.joined = self.joined.or(Some(*at)),
            MemberChange::Stalled { .. } | MemberChange::Other(_) => {}
        }
    }
}

/// Steps that nobody logged: gaps, and those after the last logged step that a test or a checkpoint tells of.
fn count_unlogged(steps: &[Step], roster: Option<&Roster>, done: u64) -> u64 {
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return 0 };
    let first = roster.map_or(*first, |roster| roster.step.min(*first));
    let all = last.0.saturating_add(1).max(done) - first.0;
    all.saturating_sub(steps.len() as u64)
}

/// Whoever was spawned after a loss, on the lost member's seat of the same host, replaces it. One that wrote no log, and so has no
/// known seat, replaces whoever was lost first and has not been replaced.
fn find_replacements(lives: &mut [Life], logs: &BTreeMap<Member, &RankLog>) {
    let host = |member: Member| match logs.get(&member).map(|log| &log.header) {
        Some(WorkerHeader::Member(header)) => header.host,
        _ => None,
    };
    let seat = |member: Member| {
        let log = logs.get(&member).filter(|log| log.main.is_some())?;
        log.header.seat()
    };
    let mut lost: Vec<(Nanos, Member)> =
        lives.iter().filter_map(|life| Some((life.fate.lost_at()?, life.member))).collect();
    lost.sort();
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&at| (lives[at].span.begin, lives[at].member));
    for at in order {
        let Life { member, span, .. } = lives[at];
        let free = lost.iter().position(|&(moment, who)| {
            let alike = seat(member).zip(seat(who)).is_none_or(|(own, its)| own == its);
            moment <= span.begin && who != member && host(who) == host(member) && alike
        });
        lives[at].replaces = free.map(|free| lost.remove(free).1);
    }
}

#[cfg(test)]
mod tests;
