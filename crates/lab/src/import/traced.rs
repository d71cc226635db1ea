//! Details of a run that only traces have.

use paceline_record::Nanos;
use serde::{Deserialize, Serialize};

use super::align::{Alignment, Common};
use super::collectives::LateStep;
use super::names;
use super::top::{Top, TopCollective};
use crate::{Align, Table, words};

/// Rows of each list that are kept.
pub const KEPT: usize = 20;

/// Rows of each list that are shown.
const SHOWN: usize = 10;

/// Late steps that are shown.
const SHOWN_LATE: usize = 3;

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
        let mut kernels = Table::new([
            ("kernels and operators", Align::Left),
            ("count", Align::Right),
            ("total ms", Align::Right),
            ("mean us", Align::Right),
            ("% of total", Align::Right),
        ]);
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
        let mut collectives = Table::new([
            ("collectives", Align::Left),
            ("count", Align::Right),
            ("under way ms", Align::Right),
            ("waiting ms", Align::Right),
            ("moving ms", Align::Right),
            ("mean us", Align::Right),
            ("MB", Align::Right),
            ("% of total", Align::Right),
        ]);
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
        [(kernels, self.kernels.is_empty()), (collectives, self.collectives.is_empty())]
            .into_iter()
            .filter_map(|(table, empty)| (!empty).then_some(table))
            .collect()
    }
}
