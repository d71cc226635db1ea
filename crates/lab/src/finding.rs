//! What a reader should know first: where time was lost, said in plain words, with what to do about it.
//!
//! Decided on numbers alone, and only where they are large enough and certain enough. Losses are worker-seconds.

mod accuracy;
mod advice;

use std::cmp::Ordering;

use paceline_record::Outcome;
use serde::Serialize;

use self::advice::Program;
use crate::numbers::fixed;
use crate::numbers::steady::Slowdown;
use crate::numbers::waterfall::{Cause, Unit, Waterfall};
use crate::report::Explained;
use crate::stats::steady::Verdict;
use crate::{CaseReport, Machine, words};

/// Share of the workers' time from which on a cause is worth a word.
const NOTABLE: f64 = 0.05;

/// Share from which on an update is, which even an ideal run has.
const NOTABLE_UPDATE: f64 = 0.2;

/// Share of a run that may stay without an account.
const UNACCOUNTED: f64 = 0.01;

/// Half-width of a rate's interval, over the rate, from which on it should be taken with care.
const UNCERTAIN: f64 = 0.05;

/// Part of all waiting for late ranks from which on one rank is to blame.
const TO_BLAME: f64 = 0.5;

/// The same of two ranks, of which one or the other is always the late one.
const TO_BLAME_OF_TWO: f64 = 0.8;

/// Under so many steps it cannot be told who is late again and again.
const FEW_STEPS: u64 = 20;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Launch and init take a notable part of the run.
    StartUp,
    /// The first steps are slower than the others, and there are too few others.
    WarmUp,
    /// Each rank computes more slowly than one worker alone.
    Computation,
    /// Devices have nothing to do.
    Idle,
    /// Ranks wait for data.
    Input,
    /// Communication shows.
    Communication,
    /// Ranks wait for a late one.
    Stragglers,
    /// The update takes a notable part of the step.
    Update,
    /// Evaluation and checkpoints do.
    Evaluation,
    /// The end of the run does.
    Tail,
    /// Time that no phase accounts for.
    Other,
    /// Fixed costs together take a notable part of the run, though none does alone.
    Short,
    /// Steps become slower during the run.
    Slowdown,
    /// Step times do not settle.
    NoSteadyState,
    /// The rate is uncertain.
    Uncertain,
    /// More threads than cores.
    Crowded,
    /// The loss is no number any more.
    Diverged,
    /// More workers come to a lower test accuracy.
    Accuracy,
}

/// Findings that are shown at once; the others cost less.
pub(crate) const SHOWN: usize = 8;

/// One thing worth knowing about a case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Place of the case in the report.
    pub case: usize,
    /// What was found, with its figures.
    pub text: String,
    /// What to do about it.
    pub advice: String,
    /// Worker-seconds lost; `None` where it is not a matter of time.
    pub lost_s: Option<f64>,
    /// The same over all the workers' time.
    pub share: Option<f64>,
}

/// Looks at all groups of a study; what cost most comes first.
pub(crate) fn find(machine: &Machine, cases: &[CaseReport], explained: &[Explained]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in explained {
        let done = group.cases.iter().filter(|&&place| cases[place].status == Outcome::Done);
        let one = done.clone().map(|&place| &cases[place]).find(|case| case.case.workers == 1);
        let members: Vec<Member<'_>> =
            done.map(|&place| Member { place, case: &cases[place], one, group, machine }).collect();
        for kind in KINDS {
            // Of a cause that shows at several numbers of workers, the worst place tells.
            let found = members.iter().filter_map(|member| member.look(kind));
            findings.extend(found.max_by(by_weight));
        }
    }
    findings.sort_by(|a, b| by_weight(b, a));
    findings
}

const KINDS: [Kind; 18] = [
    Kind::StartUp,
    Kind::WarmUp,
    Kind::Computation,
    Kind::Idle,
    Kind::Input,
    Kind::Communication,
    Kind::Stragglers,
    Kind::Update,
    Kind::Evaluation,
    Kind::Tail,
    Kind::Other,
    Kind::Short,
    Kind::Slowdown,
    Kind::NoSteadyState,
    Kind::Uncertain,
    Kind::Crowded,
    Kind::Diverged,
    Kind::Accuracy,
];

fn by_weight(a: &Finding, b: &Finding) -> Ordering {
    let weight = |finding: &Finding| (finding.lost_s.unwrap_or(-1.0), finding.share.unwrap_or(-1.0));
    let (a, b) = (weight(a), weight(b));
    a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
}

/// A finished case, and what it is looked at with.
struct Member<'a> {
    place: usize,
    case: &'a CaseReport,
    /// The one-worker case of its group.
    one: Option<&'a CaseReport>,
    group: &'a Explained,
    machine: &'a Machine,
}

/// A loss: worker-seconds, and their share of all the workers' time.
#[derive(Clone, Copy)]
struct Loss {
    seconds: f64,
    share: f64,
}

impl Member<'_> {
    fn look(&self, kind: Kind) -> Option<Finding> {
        match kind {
            Kind::StartUp => self.fixed_cost(kind, Cause::StartUp, "starting up (launch and init)"),
            Kind::WarmUp => self.fixed_cost(kind, Cause::WarmUp, "warming up (the first steps' surplus)"),
            Kind::Tail => self.fixed_cost(kind, Cause::Tail, "ending (after a rank's last step)"),
            Kind::Computation => self.computation(),
            Kind::Idle => self.idle(),
            Kind::Input => {
                let advice = "prepare batches ahead on cores of their own, use smaller pictures, or keep the data \
                              in memory";
                self.cost(kind, Cause::Input, NOTABLE, "waiting for input (load and copies)", advice)
            }
            Kind::Communication => {
                let advice = self.program().communication(&self.case.case);
                self.cost(kind, Cause::Communication, NOTABLE, "exposed communication", advice)
            }
            Kind::Stragglers => self.stragglers(),
            Kind::Update => self.update(),
            Kind::Evaluation => {
                let advice = "evaluate and save less often";
                self.cost(kind, Cause::Evaluation, NOTABLE, "evaluation and checkpoints", advice)
            }
            // A log that tells no phases is no trace with holes.
            Kind::Other if self.case.origin.as_ref().is_some_and(|origin| !origin.shows_work()) => None,
            Kind::Other if self.case.is_window() => {
                let what = "time that the trace shows nothing in";
                self.cost(kind, Cause::Other, NOTABLE, what, self.program().unseen())
            }
            // Hooks see what they hang on, and not what a program does between.
            Kind::Other if !self.program().is_ours() => {
                let what = "time between what is measured";
                self.cost(kind, Cause::Other, NOTABLE, what, self.program().unmeasured())
            }
            Kind::Other => {
                let advice =
                    "the phases should account for all of it: a defect worth a report, with its run logs";
                self.cost(kind, Cause::Other, UNACCOUNTED, "time without an account", advice)
            }
            Kind::Short => self.short(),
            Kind::Slowdown => self.slowdown(),
            Kind::NoSteadyState => self.no_steady_state(),
            Kind::Uncertain => self.uncertain(),
            Kind::Crowded => self.crowded(),
            Kind::Diverged => self.diverged(),
            Kind::Accuracy => self.accuracy(),
        }
    }

    fn workers(&self) -> f64 {
        f64::from(self.case.case.workers)
    }

    /// Whose run it is.
    fn program(&self) -> Program {
        Program::of(self.case)
    }

    /// Who is spoken of.
    fn label(&self) -> String {
        format!("{}, {}", self.group.key.label(), words::workers(self.case.case.workers))
    }

    fn finding(&self, kind: Kind, text: String, advice: String, loss: Option<Loss>) -> Finding {
        Finding {
            kind,
            case: self.place,
            text: format!("{}: {text}", self.label()),
            advice,
            lost_s: loss.map(|loss| loss.seconds).filter(|_| self.case.is_timed()),
            share: loss.map(|loss| loss.share),
        }
    }

    /// What a cause took of this case.
    fn loss(&self, cause: Cause) -> Option<Loss> {
        let cost = self.case.cost.as_ref()?;
        let share = cost.shares.iter().find(|share| share.cause == cause)?;
        let count = match cost.unit {
            Unit::Example => self.case.examples as f64,
            Unit::Step => self.workers() * self.case.steps as f64,
        };
        Some(Loss { seconds: share.seconds * count, share: share.seconds / cost.seconds })
    }

    /// What a cause took beyond what it takes on one worker, if that is certain.
    fn growth(&self, cause: Cause) -> Option<Loss> {
        let workers = self.case.case.workers;
        let fall: &Waterfall = self.group.waterfalls.iter().find(|fall| fall.workers == workers)?;
        let share = fall.shares.iter().find(|share| share.cause == cause)?;
        let loss =
            Loss { seconds: share.seconds * self.case.examples as f64, share: share.seconds / fall.to_s };
        (share.lo.unwrap_or(share.seconds) > 0.0).then_some(loss)
    }

    /// A part of the time, in worker-seconds too where seconds are known.
    fn says(&self, what: &str, loss: Loss) -> String {
        let digits = if loss.seconds < 9.95 { 2 } else { 0 };
        let seconds = self.seconds(loss.seconds, digits);
        format!("{:.0} % of the workers' time{seconds} goes to {what}", 100.0 * loss.share)
    }

    /// Worker-seconds in brackets; nothing where only ratios of times are known.
    fn seconds(&self, seconds: f64, digits: usize) -> String {
        if self.case.is_timed() { format!(" ({seconds:.digits$} worker-seconds)") } else { String::new() }
    }

    fn cost(&self, kind: Kind, cause: Cause, least: f64, what: &str, advice: &str) -> Option<Finding> {
        let loss = self.loss(cause).filter(|loss| loss.share >= least)?;
        Some(self.finding(kind, self.says(what, loss), advice.into(), Some(loss)))
    }

    fn fixed_cost(&self, kind: Kind, cause: Cause, what: &str) -> Option<Finding> {
        self.cost(kind, cause, NOTABLE, what, &self.longer_run())
    }

    /// How long a run would have to be.
    fn longer_run(&self) -> String {
        let Some(fixed) = self.case.fixed else {
            return "it does not shrink with more workers; run longer".into();
        };
        let steps = fixed.enough_steps;
        format!(
            "it does not shrink with more workers; run longer: from {steps} steps on, fixed costs take at most {:.0} % of \
             the run",
            100.0 * fixed::TOLERATED
        )
    }

    /// Fixed costs that are notable only together.
    fn short(&self) -> Option<Finding> {
        let fixed = self.case.fixed.filter(|fixed| fixed.share >= NOTABLE)?;
        let alone = [Cause::StartUp, Cause::WarmUp, Cause::Tail];
        if alone.iter().filter_map(|&cause| self.loss(cause)).any(|loss| loss.share >= NOTABLE) {
            return None;
        }
        let loss = Loss { seconds: fixed.seconds * self.workers(), share: fixed.share };
        let text = self.says("what is not steady steps: the run is short for its fixed costs", loss);
        Some(self.finding(Kind::Short, text, self.longer_run(), Some(loss)))
    }

    /// Slower forward and backward. A straggler alone is no reason: most ranks must be slower.
    fn computation(&self) -> Option<Finding> {
        let growth = self.growth(Cause::Computation)?;
        let typical = self.case.computation_s? / self.one?.computation_s?;
        let slower = typical - 1.0;
        let share = growth.share.min(slower / typical);
        let loss = Loss { share, seconds: growth.seconds * share / growth.share };
        if loss.share < NOTABLE {
            return None;
        }
        let text = format!(
            "each rank computes {:.0} % longer an example than one worker alone{}",
            100.0 * slower,
            self.seconds(loss.seconds, 1)
        );
        let advice = self.program().computation(&self.case.case);
        Some(self.finding(Kind::Computation, text, advice.into(), Some(loss)))
    }

    /// A device without work: the larger cause is the one to do something about.
    fn idle(&self) -> Option<Finding> {
        let loss = self.loss(Cause::Idle).filter(|loss| loss.share >= NOTABLE)?;
        let split = self.case.idle_split_s?;
        let whole = split.host_late + split.queued + split.nothing_queued + split.unknown;
        let (cause, advice, most) = [
            (
                "the host was late: it was still on its way to launch the next work",
                self.program().late_host(),
                split.host_late,
            ),
            (
                "nothing was queued, and the host did nothing that shows",
                self.program().silent_host(),
                split.nothing_queued,
            ),
            (
                "work waited in its stream for other work",
                "look for what it waits for: events between streams, synchronising calls, other devices",
                split.queued,
            ),
            (
                "the trace does not tell why",
                "record the calls of the host as well (CPU activities), so that each kernel has its launch",
                split.unknown,
            ),
        ]
        .into_iter()
        .max_by(|a, b| a.2.total_cmp(&b.2))?;
        let text =
            format!("{}; in {:.0} % of it {cause}", self.says("an idle device", loss), 100.0 * most / whole);
        Some(self.finding(Kind::Idle, text, advice.into(), Some(loss)))
    }

    fn stragglers(&self) -> Option<Finding> {
        let loss = self.loss(Cause::Stragglers).filter(|loss| loss.share >= NOTABLE)?;
        let least = if self.case.case.workers > 2 { TO_BLAME } else { TO_BLAME_OF_TWO };
        // One that was late now and then and cost most by chance is not to blame; few steps cannot tell.
        let often = |share: f64| share >= least || self.case.steps < FEW_STEPS;
        let blamed = self.case.straggler.filter(|late| late.share >= least && often(late.steps_share));
        let text = self.says("waiting for late ranks", loss);
        let (text, advice) = match blamed {
            Some(late) => (
                format!("{text}, {:.0} % of it for rank {}", 100.0 * late.share, late.rank),
                format!(
                    "rank {} is slower than the others: look at its cores and what else runs there",
                    late.rank
                ),
            ),
            None => {
                let most = self.case.straggler.map_or_else(String::new, |late| {
                    format!(": at most {:.0} % of it for the same, rank {}", 100.0 * late.share, late.rank)
                });
                (
                    format!("{text}, for one rank now and for another then{most}"),
                    self.program().turns().into(),
                )
            }
        };
        Some(self.finding(Kind::Stragglers, text, advice, Some(loss)))
    }

    fn update(&self) -> Option<Finding> {
        let grown = self.growth(Cause::Update).filter(|loss| loss.share >= NOTABLE);
        let large = self.loss(Cause::Update).filter(|loss| loss.share >= NOTABLE_UPDATE);
        let loss = grown.or(large)?;
        let what =
            if grown.is_some() { "the update, beyond that of one worker alone," } else { "the update" };
        let advice = self.program().update();
        Some(self.finding(Kind::Update, self.says(what, loss), advice.into(), Some(loss)))
    }

    fn slowdown(&self) -> Option<Finding> {
        let steady = self.case.steady.filter(|steady| steady.verdict == Verdict::Slowdown)?;
        let Slowdown { factor, lost_s } = steady.slowdown?;
        let seconds = self.workers() * lost_s;
        let train_s = self.case.train_s.or_else(|| Some(self.case.pace()?.train_s))?;
        let loss = Loss { seconds, share: lost_s / train_s };
        let text = format!(
            "from step {} on steps take {:.0} % longer than before{}",
            steady.from_step,
            100.0 * (factor - 1.0),
            self.seconds(seconds, 1)
        );
        let advice = self.program().slowdown();
        Some(self.finding(Kind::Slowdown, text, advice.into(), Some(loss)))
    }

    fn no_steady_state(&self) -> Option<Finding> {
        self.case.steady.filter(|steady| steady.verdict == Verdict::NoSteadyState)?;
        let text =
            "step times change to the end of the run; its rate is an average over changing speeds".into();
        let advice = self.program().unsteady();
        Some(self.finding(Kind::NoSteadyState, text, advice.into(), None))
    }

    fn uncertain(&self) -> Option<Finding> {
        let rate = self.case.images_per_s?;
        let half = (rate.hi? - rate.lo?) / 2.0 / rate.mean;
        (half > UNCERTAIN).then(|| {
            let text = format!("images/s are known to {:.0} % only (95 % interval)", 100.0 * half);
            let advice = self.program().uncertain(self.case.repeats);
            self.finding(Kind::Uncertain, text, advice.into(), None)
        })
    }

    fn diverged(&self) -> Option<Finding> {
        let known = self.case.loss_first.is_some() && self.case.loss_last.is_none();
        known.then(|| {
            let text =
                "the loss was a number in the first step and is none in the last: training diverged".into();
            let advice = self.program().diverged();
            self.finding(Kind::Diverged, text, advice.into(), None)
        })
    }

    fn crowded(&self) -> Option<Finding> {
        let cores = self.machine.cores?;
        let threads = self.case.case.workers * self.case.case.threads?;
        let real = self.case.case.engine.as_deref() == Some("cpu");
        (real && threads > cores).then(|| {
            let text = format!("{threads} threads took turns on {cores} cores");
            let advice =
                format!("its times measure the sharing of cores: keep workers times threads within {cores}");
            self.finding(Kind::Crowded, text, advice, None)
        })
    }
}
