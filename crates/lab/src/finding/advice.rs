//! What to do about a finding, in the words of the program that ran: our own options mean nothing to others.

use paceline_record::Case;

use crate::CaseReport;
use crate::import::source::Format;

/// Whose run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Paceline,
    PyTorch,
    Horovod,
    TensorFlow,
    /// Somebody's: the source does not say.
    Unknown,
}

impl Program {
    pub fn of(case: &CaseReport) -> Self {
        let Some(origin) = &case.origin else {
            // The adapter writes run logs of its own.
            return if case.case.engine.as_deref() == Some("pytorch") {
                Self::PyTorch
            } else {
                Self::Paceline
            };
        };
        match origin.format {
            Some(Format::Kineto) => Self::PyTorch,
            Some(Format::Horovod) => Self::Horovod,
            Some(Format::TfCnn | Format::MetricLog) => Self::TensorFlow,
            Some(Format::Sqlite | Format::Events | Format::NvidiaSmi) | None => Self::Unknown,
        }
    }

    pub fn is_ours(self) -> bool {
        self == Self::Paceline
    }

    /// On slower computation of each rank.
    pub fn computation(self, case: &Case) -> &'static str {
        match (case.global_batch, self.is_ours()) {
            (Some(_), true) => {
                "each worker's share of the batch is smaller, so its products are less efficient: use a larger \
                 --global-batch, or fewer workers"
            }
            (Some(_), false) => {
                "each worker's share of the batch is smaller, so its products are less efficient: use a larger batch in \
                 all, or fewer workers"
            }
            (None, true) => {
                "workers share memory bandwidth, cache or clock: fewer workers with more --threads, or a smaller \
                 --batch that fits the cache; `paceline doctor` says what the cores share"
            }
            (None, false) => {
                "workers share memory bandwidth, cache, power or clock: fewer workers on a machine, or a batch that fits \
                 what each has of them"
            }
        }
    }

    /// On a host that is late.
    pub fn late_host(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "give the device more at a time: a larger batch, CUDA graphs, `torch.compile`, fused optimizers, and no \
                 reading of results (`.item()`, printing) within a step"
            }
            _ => {
                "give the device more at a time: a larger batch, CUDA graphs, compiled or fused operators, and no reading \
                 of results within a step"
            }
        }
    }

    /// On a host that does nothing that shows.
    pub fn silent_host(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "look at what runs there between operators (Python, input, waiting for other processes): more loader \
                 workers, work moved out of the step; `record_function` over it would tell"
            }
            _ => {
                "look at what runs there between calls (input, computation on the host, waiting for other processes): more \
                 loader workers, work moved out of the step; an NVTX range over it would tell"
            }
        }
    }

    /// On time that a trace shows nothing in.
    pub fn unseen(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "the trace shows neither operators nor collectives there: Python, input or sleep between them; name such \
                 stretches (`record_function`) to tell them apart"
            }
            _ => {
                "the trace shows neither work nor collectives there: input, computation on the host or sleep; name such \
                 stretches (NVTX ranges) to tell them apart"
            }
        }
    }

    /// On time that an adapter's hooks see nothing of.
    pub fn unmeasured(self) -> &'static str {
        "no hook sees what goes on there: Python, input or sleep between forward, backward and the update; `with \
         log.phase(...)` names such stretches, and `paceline import` of a profiler's trace tells more"
    }

    /// On ranks that hold each other up by turns.
    pub fn turns(self) -> &'static str {
        match self {
            Self::Paceline => {
                "ranks hold each other up by turns: quieten the machine (`paceline doctor`), or let each step do more \
                 (a larger --batch, --accumulate), so that delays even out"
            }
            _ => {
                "ranks hold each other up by turns: quieten the machines, or let each step do more (a larger batch, \
                 accumulated gradients), so that delays even out"
            }
        }
    }

    /// On an update that takes long.
    pub fn update(self) -> &'static str {
        match self {
            Self::Paceline => {
                "try --update sharded, where each worker updates its share, or a larger --batch or --accumulate, so \
                 that there are fewer updates"
            }
            Self::PyTorch => {
                "try a fused optimizer (`fused=True`), `ZeroRedundancyOptimizer`, where each worker updates its share, or a \
                 larger batch or accumulated gradients, so that there are fewer updates"
            }
            _ => "let each worker update its share, or use a larger batch, so that there are fewer updates",
        }
    }

    /// On communication that shows.
    pub fn communication(self, case: &Case) -> &'static str {
        match self {
            Self::Paceline => communication_of_ours(case),
            Self::PyTorch => {
                "exchange less often or less: a larger batch, accumulated gradients (`no_sync`), a 16-bit communication hook \
                 (`bf16_compress_hook`); other buckets (`bucket_cap_mb`) may hide more behind backward"
            }
            Self::Horovod => {
                "exchange less often or less: a larger batch, `backward_passes_per_step`, `hvd.Compression.fp16`; \
                 HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME decide how tensors are put together"
            }
            _ => "exchange less often or smaller gradients: a larger batch, accumulation, 16 bits",
        }
    }

    /// On steps that become slower.
    pub fn slowdown(self) -> &'static str {
        match self.is_ours() {
            true => {
                "something changed during the run: a clock that falls with heat, another program, memory that grows; \
                 repeat it (--repeat 3) and see `paceline doctor`"
            }
            false => {
                "something changed during the run: a clock that falls with heat, another program, memory that grows; \
                 repeat it, and see what else the machine did"
            }
        }
    }

    /// On step times that do not settle.
    pub fn unsteady(self) -> &'static str {
        match self.is_ours() {
            true => "run longer, repeat it (--repeat 3), and quieten the machine (`paceline doctor`)",
            false => "run longer, repeat it, and quieten the machine",
        }
    }

    /// On a rate that is uncertain.
    pub fn uncertain(self, repeats: u32) -> &'static str {
        match self.is_ours() && repeats <= 1 {
            true => "more steps, or --repeat 3",
            false => "more steps, or more repeats",
        }
    }

    /// On a loss that is no number any more.
    pub fn diverged(self) -> &'static str {
        match self.is_ours() {
            true => "a smaller --lr; speeds are those of the same work all the same",
            false => "a smaller learning rate; speeds are those of the same work all the same",
        }
    }
}

fn communication_of_ours(case: &Case) -> &'static str {
    let set = |name: &str| case.settings.get(name).map(String::as_str);
    if set("overlap") == Some("no") {
        return "exchange while backward goes on: --overlap yes";
    }
    match case.update.as_deref() {
        Some("allreduce") if set("compress") == Some("none") => {
            "try --update sharded, a larger --batch, --accumulate, or --compress bf16"
        }
        Some("allreduce") => "try --update sharded, a larger --batch or --accumulate",
        Some("sharded") => "try a larger --batch or --accumulate",
        Some(_) => "try --update allreduce, or a larger --batch or --accumulate",
        None => "exchange less often or smaller gradients: a larger batch, accumulation, 16 bits",
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::{Nanos, Phase};

    use crate::fixture::{Plan, learning_plans, study};
    use crate::{CaseReport, Kind, Report};

    /// The findings on a run of two workers in whose steps half the time is without a phase.
    fn unaccounted(engine: &str) -> Report {
        let mut run = Plan { late: 20.0, ..learning_plans()[1].clone() }.run();
        run.launcher.header.case.engine = Some(engine.into());
        for step in run.ranks.iter_mut().flat_map(|rank| &mut rank.steps) {
            step.phases[Phase::Backward] = Nanos(0);
        }
        let case = CaseReport::of(&[run]);
        Report::new(&study(std::slice::from_ref(&case.case)), vec![case])
    }

    #[test]
    fn time_between_the_hooks_of_an_adapter_is_no_defect() {
        for (engine, what, advice) in [
            ("pytorch", "time between what is measured", "log.phase"),
            ("cpu", "time without an account", "a defect worth a report"),
        ] {
            let report = unaccounted(engine);
            let found =
                report.findings.iter().find(|finding| finding.kind == Kind::Other).expect("half of it");
            assert!(found.text.contains(what) && found.advice.contains(advice), "{found:?}");
        }
    }

    #[test]
    fn the_rank_that_cost_most_is_named_even_where_it_is_not_to_blame() {
        let mut report = unaccounted("pytorch");
        report.cases[0].straggler.as_mut().expect("two ranks").share = 0.76;
        let findings = super::super::find(&report.machine, &report.cases, &report.explained);
        let late = findings.iter().find(|finding| finding.kind == Kind::Stragglers).expect("ranks wait");
        let most = "for one rank now and for another then: at most 76 % of it for the same, rank 1";
        assert!(late.text.ends_with(most), "{}", late.text);
    }
}
