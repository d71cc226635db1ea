//! Findings: where time was lost, in one sentence each, and what to do about it.
//!
//! Findings are decided from numbers alone, and only where the numbers are large and certain enough. Losses are in
//! worker-seconds.

mod accuracy;
mod advice;
mod following;
mod off_core;
mod recovery;
mod steps;
mod stragglers;

use std::cmp::Ordering;

use paceline_record::Phase;
use serde::Serialize;

use self::advice::Program;
pub use self::advice::every_advice;
use crate::case::whole_workers;
use crate::numbers::fixed;
use crate::numbers::waterfall::{Cause, Unit, Waterfall};
use crate::origin::Origin;
use crate::report::Explained;
use crate::{CaseReport, Study, words};

/// A cause is reported if it takes at least this fraction of the workers' time: less than 5 %, so that one that takes 5 % is, whatever
/// noise makes of it.
const NOTABLE: f64 = 0.045;

/// The same for the update, which even an ideal run has to do.
const NOTABLE_UPDATE: f64 = 0.2;

/// Fraction of a run that may be outside every phase.
const UNACCOUNTED: f64 = 0.01;

/// With fewer steps than this, it cannot be decided which rank is late repeatedly.
const FEW_STEPS: u64 = 20;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Launch and init take a notable part of the run.
    StartUp,
    /// The first steps are slower than the others, and too few others follow.
    WarmUp,
    /// Threads that could have run were not on a core.
    OffCore,
    /// Each rank computes more slowly than one worker alone.
    Computation,
    /// Devices are idle.
    Idle,
    /// Devices have nothing to do because their host is late, in whatever phase.
    Starved,
    /// Ranks wait for data.
    Input,
    /// Communication is exposed: computation does not hide it.
    Communication,
    /// Ranks wait for late ranks.
    Stragglers,
    /// The update takes a notable part of the step.
    Update,
    /// Evaluation and checkpoints take a notable part of the run.
    Evaluation,
    /// Workers were lost.
    Recovery,
    /// Planted faults made the run longer or not, compared with the same run without them.
    Faults,
    /// The time after a rank's last step takes a notable part of the run.
    Tail,
    /// Time that no phase accounts for.
    Other,
    /// Fixed costs take a notable part of the run together, though none does alone.
    Short,
    /// The run has too few steps to say where their time goes.
    FewSteps,
    /// Steps become slower during the run.
    Slowdown,
    /// Step times vary widely around one level.
    Noisy,
    /// Step times do not settle.
    NoSteadyState,
    /// The rate has a wide interval.
    Uncertain,
    /// There are more threads than cores.
    Crowded,
    /// The loss stopped being a number.
    Diverged,
    /// More workers reach a lower test accuracy.
    Accuracy,
    /// Tests are much worse than training at the same time, and not for overfitting alone.
    TestBehind,
}

/// Findings that are always visible; the rest are folded away.
pub(crate) const SHOWN: usize = 8;

/// A finding about one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// Index of the case in the report.
    pub case: usize,
    /// What was found, with its figures.
    pub text: String,
    /// What to do about it.
    pub advice: String,
    /// Worker-seconds lost; `None` if the finding is not about time.
    pub lost_s: Option<f64>,
    /// The same as a fraction of the workers' time.
    #[serde(rename = "share")]
    pub fraction: Option<f64>,
    /// How much there is of it, where it is not about time: decides which case is named.
    #[serde(skip)]
    pub(crate) size: f64,
}

/// The findings about all groups of a study, largest loss first.
pub(crate) fn find(study: &Study, cases: &[CaseReport], explained: &[Explained]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for group in explained {
        let done = group.cases.iter().filter(|&&place| cases[place].is_told());
        let one = done.clone().map(|&place| &cases[place]).find(|case| whole_workers(&case.case) == Some(1));
        let members: Vec<Member<'_>> =
            done.map(|&place| Member { place, case: &cases[place], one, cases, group, study }).collect();
        let mut found: Vec<Finding> = members.iter().flat_map(Member::look).collect();
        found.sort_by_key(|finding| finding.kind);
        // A cause that shows at several worker counts is reported once, where it costs most.
        let alike = found.chunk_by(|one, next| one.kind == next.kind);
        findings.extend(alike.filter_map(|alike| alike.iter().max_by(|a, b| by_weight(a, b)).cloned()));
    }
    // A network that does not learn is no use, however fast.
    findings.sort_by(|a, b| {
        (!a.kind.is_about_learning()).cmp(&!b.kind.is_about_learning()).then(by_weight(b, a))
    });
    findings
}

impl Kind {
    /// Whether it says that training went wrong.
    const fn is_about_learning(self) -> bool {
        matches!(self, Self::Diverged | Self::TestBehind)
    }

    /// Whether it says what steps in general take.
    const fn is_about_steps(self) -> bool {
        matches!(
            self,
            Self::OffCore
                | Self::Computation
                | Self::Idle
                | Self::Starved
                | Self::Input
                | Self::Communication
                | Self::Stragglers
                | Self::Update
                | Self::Other
        )
    }
}

fn by_weight(a: &Finding, b: &Finding) -> Ordering {
    let weight =
        |finding: &Finding| [finding.lost_s.unwrap_or(-1.0), finding.fraction.unwrap_or(-1.0), finding.size];
    let pairs = weight(a).into_iter().zip(weight(b));
    pairs.map(|(a, b)| a.total_cmp(&b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// A finished case, and what is needed to judge it.
struct Member<'a> {
    place: usize,
    case: &'a CaseReport,
    /// The one-worker case of the same group.
    one: Option<&'a CaseReport>,
    /// All cases of the study.
    cases: &'a [CaseReport],
    group: &'a Explained,
    study: &'a Study,
}

/// A loss: worker-seconds, and their fraction of the workers' time.
#[derive(Clone, Copy)]
struct Loss {
    seconds: f64,
    fraction: f64,
}

impl Member<'_> {
    /// All that can be said about the case.
    fn look(&self) -> impl Iterator<Item = Finding> {
        let evaluation = self.program().evaluation(self.case.learning.as_ref());
        let found = [
            self.fixed_cost(Kind::StartUp, Cause::StartUp, "starting up (launch and init)"),
            self.fixed_cost(Kind::WarmUp, Cause::WarmUp, "warming up (extra time of the first steps)"),
            self.fixed_cost(Kind::Tail, Cause::Tail, "after a rank's last step"),
            self.off_core(),
            self.computation(),
            self.idle(),
            self.starved(),
            self.input(),
            self.communication(),
            self.stragglers(),
            self.update(),
            self.cost(Kind::Evaluation, Cause::Evaluation, "on evaluation and checkpoints", evaluation),
            self.recovery(),
            self.faults(),
            self.other(),
            self.short(),
            self.few_steps(),
            self.slowdown(),
            self.noisy(),
            self.no_steady_state(),
            self.uncertain(),
            self.crowded(),
            self.diverged(),
            self.accuracy(),
            self.test_behind(),
        ];
        found.into_iter().flatten().filter(|finding| self.can_tell(finding.kind))
    }

    /// Whether the steps of the case are such that a finding of this kind means something.
    fn can_tell(&self, kind: Kind) -> bool {
        match kind {
            // What comes before the steady state is known only if there is one.
            Kind::WarmUp | Kind::Short => !self.is_unsettled(),
            // Other members, other steps: that is no fault of the machine.
            Kind::Slowdown | Kind::Noisy | Kind::NoSteadyState => !self.case.has_changed(),
            // What a few steps took says little about the next ones.
            _ => !(kind.is_about_steps() && self.has_few_steps()),
        }
    }

    /// Input, or else copies of results: the waterfall has both in one part.
    fn input(&self) -> Option<Finding> {
        let all = self.loss(Cause::Input)?;
        let phases = self.case.phases_s.as_ref()?;
        let time = |phase: Phase| phases.get(&phase).copied().unwrap_or(0.0);
        let (input, out) = (time(Phase::Load) + time(Phase::CopyIn), time(Phase::CopyOut));
        let (part, what, advice) = match input >= out {
            true => (input, "waiting for input (load and copies in)", self.program().input()),
            false => (
                out,
                "copying results out",
                "copy less of them, less often, or while the device computes the next step",
            ),
        };
        let part = part / (input + out);
        let loss = Loss { seconds: part * all.seconds, fraction: part * all.fraction };
        (loss.fraction >= NOTABLE || self.is_large_in_steps(loss, NOTABLE))
            .then(|| self.finding(Kind::Input, self.spends(what, loss), advice.into(), Some(loss)))
    }

    fn communication(&self) -> Option<Finding> {
        let (what, advice) = match self.shows_work() {
            true => ("in exposed communication", self.program().communication(&self.case.case)),
            // A source that does not show computation cannot tell what is exposed.
            false => (
                "in exchanges, hidden behind computation or not",
                "record a trace of a rank (PyTorch's profiler, Nsight Systems) to see how much of it is hidden",
            ),
        };
        self.cost(Kind::Communication, Cause::Communication, what, advice)
    }

    /// Time that no phase accounts for.
    fn other(&self) -> Option<Finding> {
        // A log without phases is not a trace with gaps.
        if !self.shows_work() {
            return None;
        }
        // Whoever loses its core now and then loses it between two phases, too.
        let disturbed = self.loss_from(NOTABLE, Cause::OffCore).is_some();
        let (least, what, advice) = match self.program() {
            program if self.case.is_window() => (NOTABLE, "where the trace shows nothing", program.unseen()),
            // Hooks do not see what a program does between them.
            program if !program.is_ours() => (NOTABLE, "between measured phases", program.unmeasured()),
            _ => (
                if disturbed { NOTABLE } else { UNACCOUNTED },
                "outside every phase",
                "phases should account for all time: this is a bug, please report it with the run logs",
            ),
        };
        let loss = self.loss_from(least, Cause::Other)?;
        Some(self.finding(Kind::Other, self.spends(what, loss), advice.into(), Some(loss)))
    }

    /// Whether the source of the case shows computation; our own logs do.
    fn shows_work(&self) -> bool {
        self.case.origin.as_ref().is_none_or(Origin::shows_work)
    }

    fn workers(&self) -> f64 {
        self.case.workers_on_average()
    }

    /// The program that made the run.
    fn program(&self) -> Program {
        Program::of(self.case, &self.study.command)
    }

    fn worker_count(&self) -> String {
        self.case.workers_said()
    }

    fn finding(&self, kind: Kind, text: String, advice: String, loss: Option<Loss>) -> Finding {
        let text = match self.program() {
            Program::Followed => words::of_examples(&text),
            _ => text,
        };
        Finding {
            kind,
            case: self.place,
            text: format!("{}: {text}", self.group.key.label()),
            advice: self.program().fit(&self.case.case, &advice),
            lost_s: loss.map(|loss| loss.seconds),
            fraction: loss.map(|loss| loss.fraction),
            size: 0.0,
        }
    }

    /// The time of this case that goes to a cause.
    fn loss(&self, cause: Cause) -> Option<Loss> {
        let cost = self.case.cost.as_ref()?;
        let part = cost.parts.iter().find(|part| part.cause == cause)?;
        let count = match cost.unit {
            Unit::Example => self.case.examples? as f64,
            Unit::Step => self.workers() * self.case.steps as f64,
        };
        Some(Loss { seconds: part.seconds * count, fraction: part.seconds / cost.seconds })
    }

    /// The same, if it is at least this fraction of the workers' time.
    fn loss_from(&self, least: f64, cause: Cause) -> Option<Loss> {
        let fixed = matches!(cause, Cause::StartUp | Cause::WarmUp | Cause::Tail);
        self.loss(cause)
            .filter(|&loss| loss.fraction >= least || !fixed && self.is_large_in_steps(loss, least))
    }

    /// Whether a loss is large in the steps of a script that was only tried: imports take most of such a run, and would hide every cause.
    fn is_large_in_steps(&self, loss: Loss, least: f64) -> bool {
        let fixed = [Cause::StartUp, Cause::Tail].into_iter().filter_map(|cause| self.loss(cause));
        let steps = 1.0 - fixed.map(|loss| loss.fraction).sum::<f64>();
        matches!(self.program(), Program::Followed) && steps < 0.5 && loss.fraction >= 2.0 * least * steps
    }

    /// The time that a cause takes beyond what it takes on one worker, if the increase is certain.
    fn growth(&self, cause: Cause) -> Option<Loss> {
        let workers = self.case.case.workers;
        let fall: &Waterfall = self.group.waterfalls.iter().find(|fall| fall.workers == workers)?;
        let part = fall.parts.iter().find(|part| part.cause == cause)?;
        let loss =
            Loss { seconds: part.seconds * self.case.examples? as f64, fraction: part.seconds / fall.to_s };
        (part.lo? > 0.0).then_some(loss)
    }

    /// "2 workers spend 25 % of their time (8.69 worker-seconds) waiting for input".
    fn spends(&self, what: &str, loss: Loss) -> String {
        let digits = if loss.seconds < 9.95 { 2 } else { 0 };
        let verb = if self.case.case.workers == 1 { "spends" } else { "spend" };
        let whose = if self.case.case.workers == 1 { "its" } else { "their" };
        let percent = 100.0 * loss.fraction;
        format!(
            "{} {verb} {percent:.0} % of {whose} time ({:.digits$} worker-seconds) {what}",
            self.worker_count(),
            loss.seconds
        )
    }

    /// A cause that takes a notable part of the time.
    fn cost(&self, kind: Kind, cause: Cause, what: &str, advice: &str) -> Option<Finding> {
        let loss = self.loss_from(NOTABLE, cause)?;
        Some(self.finding(kind, self.spends(what, loss), advice.into(), Some(loss)))
    }

    fn fixed_cost(&self, kind: Kind, cause: Cause, what: &str) -> Option<Finding> {
        let loss = self.loss_from(fixed::TOLERATED, cause)?;
        Some(self.finding(kind, self.spends(what, loss), self.longer_run(), Some(loss)))
    }

    /// How long a run would have to be.
    fn longer_run(&self) -> String {
        let fixed = self.case.fixed.filter(|_| !self.has_few_steps() && !self.is_unsettled());
        // Advice that is met already helps nobody.
        let enough = fixed.map(|fixed| fixed.enough_steps).filter(|&steps| steps > self.case.steps);
        let enough = enough.map_or_else(String::new, |steps| {
            let tolerated = 100.0 * fixed::TOLERATED;
            format!(": with at least {steps} steps, fixed costs take at most {tolerated:.0} % of the run")
        });
        format!("more workers do not reduce it; run longer{enough}")
    }

    /// Fixed costs that are notable only together.
    fn short(&self) -> Option<Finding> {
        let fixed = self.case.fixed.filter(|fixed| fixed.fraction >= fixed::TOLERATED)?;
        let alone = [Cause::StartUp, Cause::WarmUp, Cause::Tail];
        if alone.iter().any(|&cause| self.loss_from(fixed::TOLERATED, cause).is_some()) {
            return None;
        }
        let loss = Loss { seconds: fixed.seconds * self.workers(), fraction: fixed.fraction };
        let text = self.spends("outside steady steps: the run is too short for its fixed costs", loss);
        Some(self.finding(Kind::Short, text, self.longer_run(), Some(loss)))
    }

    /// Slower forward and backward passes. One straggler is not enough: most ranks must be slower.
    fn computation(&self) -> Option<Finding> {
        let growth = self.growth(Cause::Computation)?;
        let one = self.one?;
        // Single slow steps, and steady states that begin elsewhere, make means of steady steps differ. So the median of all steps
        // has to say the same.
        let mean = self.case.computation_s? / one.computation_s?;
        let median = self.case.median_computation_s? / one.median_computation_s?;
        let typical = mean.min(median);
        let slower = typical - 1.0;
        let fraction = growth.fraction.min(slower / typical);
        let loss = Loss { fraction, seconds: growth.seconds * fraction / growth.fraction };
        if loss.fraction < NOTABLE {
            return None;
        }
        let mut text = format!(
            "with {}, each rank computes {:.0} % longer per image than one worker alone ({:.1} worker-seconds)",
            self.worker_count(),
            100.0 * slower,
            loss.seconds
        );
        let threads = self.case.case.threads.zip(one.case.threads).filter(|(own, one)| own < one);
        let advice = match threads {
            Some((own, one)) => {
                text.push_str(&format!(", which had {}; each of these has {own}", words::threads(one)));
                self.program().fewer_threads()
            }
            None => self.program().computation(&self.case.case),
        };
        Some(self.finding(Kind::Computation, text, advice.into(), Some(loss)))
    }

    /// An idle device, with advice about the most frequent reason.
    fn idle(&self) -> Option<Finding> {
        let loss = self.loss_from(NOTABLE, Cause::Idle)?;
        let split = self.case.idle_split_s?;
        let whole = split.host_late + split.queued + split.nothing_queued + split.unknown;
        let (cause, advice, most) = [
            ("the host was late to launch the next work", self.program().late_host(), split.host_late),
            (
                "nothing was queued and no thread that launches work was in a call or an operator",
                self.program().silent_host(),
                split.nothing_queued,
            ),
            (
                "queued work did not begin, and the trace does not show what it waited for",
                "look for what it waits for: events between streams, synchronising calls, other devices",
                split.queued,
            ),
            (
                "the trace does not show why",
                "record the host's calls as well (CPU activities), so that each kernel has its launch",
                split.unknown,
            ),
        ]
        .into_iter()
        .max_by(|a, b| a.2.total_cmp(&b.2))?;
        let spends = self.spends("with an idle device", loss);
        let text = format!("{spends}; in {:.0} % of it {cause}", 100.0 * most / whole);
        Some(self.finding(Kind::Idle, text, advice.into(), Some(loss)))
    }

    /// A device that its host keeps waiting. The time is part of other phases.
    fn starved(&self) -> Option<Finding> {
        let seconds = self.case.starved_s?;
        let loss = Loss { seconds, fraction: seconds / (self.workers() * self.case.total_s?) };
        let text = self.spends("with a device that waits for its host to launch work", loss);
        let advice = self.program().late_host();
        (loss.fraction >= NOTABLE).then(|| self.finding(Kind::Starved, text, advice.into(), Some(loss)))
    }

    fn update(&self) -> Option<Finding> {
        let grown = self.growth(Cause::Update).filter(|loss| loss.fraction >= NOTABLE);
        let large = self.loss_from(NOTABLE_UPDATE, Cause::Update);
        let loss = grown.or(large)?;
        let what =
            if grown.is_some() { "on the update beyond what one worker needs" } else { "on the update" };
        let advice = self.program().update(&self.case.case);
        Some(self.finding(Kind::Update, self.spends(what, loss), advice.into(), Some(loss)))
    }

    fn diverged(&self) -> Option<Finding> {
        // Who follows from outside does not see every loss.
        let seen = self.program() != Program::Followed;
        let known = seen && self.case.loss_first.is_some() && self.case.loss_last.is_none();
        known.then(|| {
            let text = format!(
                "training with {} diverged: the loss is a number in the first step but not in the last",
                self.worker_count()
            );
            let advice = self.program().diverged();
            self.finding(Kind::Diverged, text, advice.into(), None)
        })
    }

    fn crowded(&self) -> Option<Finding> {
        self.crowd().map(|(threads, cores)| {
            let text = format!(
                "with {}, {} took turns on {}",
                self.worker_count(),
                words::threads(threads),
                words::cores(cores)
            );
            let set = if self.program().is_pytorch() { " (OMP_NUM_THREADS)" } else { "" };
            let advice = format!(
                "its times measure contention for cores: keep workers times threads{set} within {cores}"
            );
            self.finding(Kind::Crowded, text, advice, None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Plan, study};
    use crate::report::Report;

    #[test]
    fn no_number_of_steps_is_advised_that_the_run_had() {
        let advice = |enough_steps: u64| {
            let mut case = CaseReport::of(&[Plan { init: 4000.0, ..Plan::calm("resnet50", 1) }.run()]);
            case.fixed.as_mut().expect("it is done").enough_steps = enough_steps;
            let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
            let mut findings = report.findings.into_iter();
            findings.find(|finding| finding.kind == Kind::StartUp).expect("4 s").advice
        };
        assert!(advice(61).contains("with at least 61 steps"));
        assert!(advice(60).ends_with("; run longer"));
    }
}
