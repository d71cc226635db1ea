//! Where the steady state begins: found in the times of the global steps, not assumed.
//!
//! [`crate::stats::steady`] has the method. Of several repeats, the report gives the latest begin and the most serious
//! verdict; each repeat's rate starts at its own begin.

use serde::Serialize;

use crate::stats::steady::{self, SteadyState, Verdict};
use crate::stats::{self, Work};

/// Where the steady state of a case begins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// First step that counts.
    pub from_step: u64,
    /// What the step times look like.
    pub verdict: Verdict,
    /// How much slower the steps became; `None` without a slowdown.
    pub slowdown: Option<Slowdown>,
    /// First step that counts according to MSER-5, the second opinion; `None` with too few steps.
    pub mser_step: Option<u64>,
    /// Whether the two methods differ by more than noise explains.
    pub mser_disagrees: bool,
    /// Single slow or fast steps in the steady state; they count.
    pub outliers: u64,
    /// Number of points it was found in, if each stands for several steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<u64>,
}

/// Steps that became slower.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Slowdown {
    /// The steady steps' mean time over that of the fastest level before.
    pub factor: f64,
    /// Seconds that the steady steps took beyond the mean of that level.
    pub lost_s: f64,
}

/// The steady state of one repeat.
pub fn find(steps: &[Work]) -> SteadyState {
    let times: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    steady::find(&times)
}

/// The records of a repeat.
#[derive(Clone, Debug)]
pub struct Records {
    /// Work per step, averaged if a record stands for several.
    pub means: Vec<Work>,
    /// How many steps each record stands for.
    pub covers: Vec<u64>,
}

impl Records {
    /// The records of a repeat with these global steps.
    pub fn new(steps: &[Work], covers: Vec<u64>) -> Self {
        let mean = |(work, covers): (&Work, &u64)| {
            let count = *covers as f64;
            Work { amount: work.amount / count, seconds: work.seconds / count }
        };
        Self { means: steps.iter().zip(&covers).map(mean).collect(), covers }
    }

    /// Whether every record is a single step.
    pub fn are_steps(&self) -> bool {
        self.covers.iter().all(|&covers| covers == 1)
    }

    /// Steps in all records together.
    pub fn steps(&self) -> u64 {
        self.before(self.covers.len())
    }

    /// Steps before a record.
    fn before(&self, record: usize) -> u64 {
        self.covers[..record].iter().fold(0, |sum, &covers| sum.saturating_add(covers))
    }
}

/// One answer for all repeats, each with its records; `None` without repeats.
pub fn sum_up(repeats: &[SteadyState], records: &[Records]) -> Option<Steady> {
    let seriousness = |state: &&SteadyState| match state.verdict {
        Verdict::Flat => 0,
        Verdict::WarmUp => 1,
        Verdict::TooShort => 2,
        Verdict::Slowdown => 3,
        Verdict::NoSteadyState => 4,
    };
    let both = || repeats.iter().zip(records);
    let slower = both().filter_map(|(state, records)| slowdown(state, records));
    let all_steps = records.iter().all(Records::are_steps);
    Some(Steady {
        from_step: both().map(|(state, records)| records.before(state.from)).max()?,
        verdict: repeats.iter().max_by_key(seriousness)?.verdict,
        slowdown: slower.max_by(|a, b| a.lost_s.total_cmp(&b.lost_s)),
        mser_step: both().filter_map(|(state, records)| Some(records.before(state.mser?))).max(),
        mser_disagrees: repeats.iter().any(|state| state.disagrees),
        outliers: repeats.iter().map(|state| state.outliers.len() as u64).sum(),
        points: both().map(|(_, records)| records.covers.len() as u64).min().filter(|_| !all_steps),
    })
}

fn slowdown(state: &SteadyState, Records { means: steps, covers }: &Records) -> Option<Slowdown> {
    let mean = |steps: &[Work]| stats::mean(&steps.iter().map(|step| step.seconds).collect::<Vec<_>>());
    let ends = state.changes.iter().copied().filter(|&end| end < state.from).chain([state.from]);
    let begins = [0].into_iter().chain(ends.clone());
    let levels = begins.zip(ends).filter_map(|(begin, end)| mean(&steps[begin..end]));
    let fastest = levels.min_by(f64::total_cmp)?;
    let after = mean(&steps[state.from..])?;
    let late = steps[state.from..].iter().zip(&covers[state.from..]);
    let lost_s = late.map(|(step, &covers)| (step.seconds - fastest) * covers as f64).sum();
    (state.verdict == Verdict::Slowdown).then_some(Slowdown { factor: after / fastest, lost_s })
}
