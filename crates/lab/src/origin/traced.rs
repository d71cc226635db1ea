//! Details of a run that only traces have.

use paceline_record::{Bytes, Nanos, Rank, Step};
use serde::{Deserialize, Serialize};

use super::alignment::{Alignment, Common};
use crate::{Table, names, words};

/// Rows of each list that are shown.
const SHOWN: usize = 10;

/// Late steps that are shown.
const SHOWN_LATE: usize = 3;

/// All slices of one name, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// The name.
    pub name: String,
    /// Number of slices.
    pub count: u64,
    /// Their total time.
    pub total: Nanos,
    /// Their mean time, in seconds.
    pub mean_s: f64,
    /// Fraction of the time of all such slices.
    #[serde(rename = "share")]
    pub fraction: f64,
}

/// All collectives of one operation, over all ranks. Simultaneous ones on a rank count once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopCollective {
    /// The operation.
    pub name: String,
    /// Number of collectives.
    pub count: u64,
    /// Time in which at least one was under way, summed over ranks.
    pub busy: Nanos,
    /// Part of `busy` until the last rank arrived; `None` if no partners are known. The rest moved bytes.
    pub waited: Option<Nanos>,
    /// Their mean time, in seconds.
    pub mean_s: f64,
    /// Fraction of the time of all collectives.
    #[serde(rename = "share")]
    pub fraction: f64,
    /// Bytes that they moved; `None` if the traces do not say.
    pub bytes: Option<Bytes>,
}

/// A step in which ranks waited for a late one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateStep {
    /// Its number.
    pub step: Step,
    /// The late rank.
    pub rank: Rank,
    /// Waiting time, summed over the ranks that waited.
    pub waited: Nanos,
    /// Longest waiting time of any rank; `None` in older studies.
    #[serde(default)]
    pub longest: Option<Nanos>,
}

/// Details of a run that only traces have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// How the clocks of the ranks were aligned.
    pub alignment: Alignment,
    /// Kernels, or operators without a device, most time first.
    pub kernels: Vec<Top>,
    /// Collectives by operation, most time first.
    pub collectives: Vec<TopCollective>,
    /// Steps in which ranks waited for a late one, most waiting first.
    pub late: Vec<LateStep>,
    /// The numbers of its ranks, whose logs are numbered from 0; empty in older studies.
    #[serde(default)]
    pub numbers: Vec<Rank>,
}

impl Traced {
    /// How clocks were aligned, and which rank delayed which steps.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.alignment.to_string()];
        let ms = |time: Nanos| format!("{:.1} ms", 1e3 * time.seconds());
        let two = self.alignment.offsets.len() == 2;
        sentences.extend(self.late.iter().take(SHOWN_LATE).map(
            |LateStep { step, rank, waited, longest }| {
                let all = ms(*waited);
                // A sum over several ranks may be longer than the step.
                let waited = match longest {
                    _ if two => format!("the other waited {all}"),
                    Some(longest) => {
                        format!("the others waited up to {} each, {all} in total,", ms(*longest))
                    }
                    None => format!("the others waited {all} in total"),
                };
                format!("in step {step}, {waited} for rank {rank}")
            },
        ));
        if self.late.is_empty()
            && !matches!(self.alignment.common, Common::Alone)
            && !self.collectives.is_empty()
        {
            sentences.push("no step is known in which ranks waited for a late rank".into());
        }
        sentences
    }

    /// The kernels and collectives that took most.
    pub fn tables(&self) -> Vec<Table> {
        let ms = |time: Nanos| format!("{:.3}", 1e3 * time.seconds());
        let mut kernels =
            Table::of_numbers("kernels and operators", &["count", "total ms", "mean us", "% of total"]);
        let shown = &self.kernels[..self.kernels.len().min(SHOWN)];
        let names = names::shorten(shown.iter().map(|top| top.name.as_str()));
        for (Top { count, total, mean_s, fraction, .. }, name) in shown.iter().zip(names) {
            kernels.row([
                name,
                count.to_string(),
                ms(*total),
                format!("{:.1}", 1e6 * mean_s),
                format!("{:.1}", 100.0 * fraction),
            ]);
        }
        let mut collectives = Table::of_numbers(
            "exchanges",
            &["count", "under way ms", "waiting ms", "moving ms", "mean us", "MB", "% of total"],
        );
        for one in self.collectives.iter().take(SHOWN) {
            collectives.row([
                names::clean(&one.name),
                one.count.to_string(),
                ms(one.busy),
                words::or_dash(one.waited, ms),
                words::or_dash(one.waited, |waited| ms(one.busy.since(waited))),
                format!("{:.1}", 1e6 * one.mean_s),
                words::or_dash(one.bytes, |bytes| format!("{:.1}", 1e-6 * bytes.0 as f64)),
                format!("{:.1}", 100.0 * one.fraction),
            ]);
        }
        [kernels, collectives].into_iter().filter(|table| !table.rows().is_empty()).collect()
    }
}
