//! What to do about a finding, in terms of the program that made the run: our options mean nothing to other programs.

use paceline_record::Case;

use crate::CaseReport;
use crate::import::source::Format;

/// The program that made a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Paceline,
    PyTorch,
    Horovod,
    TensorFlow,
    /// The source does not say.
    Unknown,
}

impl Program {
    pub fn of(case: &CaseReport) -> Self {
        let Some(origin) = &case.origin else {
            // The Python adapter writes our run log itself.
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

    /// Each rank computes more slowly.
    pub fn computation(self, case: &Case) -> &'static str {
        match (case.global_batch, self.is_ours()) {
            (Some(_), true) => {
                "each worker's part of the batch is smaller, so its matrix products are less efficient: use a larger \
                 --global-batch or fewer workers"
            }
            (Some(_), false) => {
                "each worker's part of the batch is smaller, so its matrix products are less efficient: use a larger global \
                 batch or fewer workers"
            }
            (None, true) => {
                "workers may share memory bandwidth, caches or clock: compare with --update independent, and try fewer workers with \
                 more --threads, or a smaller --batch that fits the cache; `paceline doctor` lists what the cores share"
            }
            (None, false) => {
                "workers may share memory bandwidth, caches, power or clock: try fewer workers per machine, or a batch that fits \
                 each worker's part of them"
            }
        }
    }

    /// The host launches work too late.
    pub fn late_host(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "give the device more work at a time: a larger batch, CUDA graphs, `torch.compile`, fused optimizers, and do \
                 not read results (`.item()`, printing) within a step"
            }
            _ => {
                "give the device more work at a time: a larger batch, CUDA graphs, compiled or fused operators, and do not \
                 read results within a step"
            }
        }
    }

    /// The trace shows no activity on the host.
    pub fn silent_host(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "check what the host does between operators (Python, input, waiting for other processes): use more loader \
                 workers, or move work out of the step; `record_function` makes it visible"
            }
            _ => {
                "check what the host does between calls (input, computation, waiting for other processes): use more loader \
                 workers, or move work out of the step; an NVTX range makes it visible"
            }
        }
    }

    /// The trace shows nothing for some of the time.
    pub fn unseen(self) -> &'static str {
        match self {
            Self::PyTorch => {
                "the trace shows neither operators nor collectives there: it may be Python, input or sleep; mark such code \
                 (`record_function`) to tell them apart"
            }
            _ => {
                "the trace shows neither work nor collectives there: it may be input, computation on the host or sleep; mark \
                 such code (NVTX ranges) to tell them apart"
            }
        }
    }

    /// An adapter's hooks do not see some of the time.
    pub fn unmeasured(self) -> &'static str {
        "no hook measures this time: Python, input or sleep between forward, backward and the update; mark such code with \
         `with log.phase(...)`, or use `paceline import` on a profiler trace"
    }

    /// Ranks hold each other up in turn.
    pub fn turns(self) -> &'static str {
        match self {
            Self::Paceline => {
                "ranks hold each other up in turn: stop other programs (`paceline doctor`), or give each step more work (a \
                 larger --batch, --accumulate) so that delays even out"
            }
            _ => {
                "ranks hold each other up in turn: stop other programs on the machines, or give each step more work (a larger \
                 batch, gradient accumulation) so that delays even out"
            }
        }
    }

    /// The update takes long.
    pub fn update(self, case: &Case) -> &'static str {
        match self {
            Self::Paceline if case.settings.contains_key("elastic") => {
                "use fewer updates: a larger --batch or --accumulate"
            }
            Self::Paceline => {
                "try --update sharded (each worker updates a slice), or fewer updates through a larger --batch or --accumulate"
            }
            Self::PyTorch => {
                "try a fused optimizer (`fused=True`), `ZeroRedundancyOptimizer` (each worker updates a slice), or fewer updates \
                 through a larger batch or gradient accumulation"
            }
            _ => "let each worker update a slice of the parameters, or use a larger batch for fewer updates",
        }
    }

    /// Communication is exposed.
    pub fn communication(self, case: &Case) -> &'static str {
        match self {
            Self::Paceline => communication_of_ours(case),
            Self::PyTorch => {
                "exchange less often or less data: a larger batch, gradient accumulation (`no_sync`), a 16-bit communication \
                 hook (`bf16_compress_hook`); other bucket sizes (`bucket_cap_mb`) may hide more behind backward"
            }
            Self::Horovod => {
                "exchange less often or less data: a larger batch, `backward_passes_per_step`, `hvd.Compression.fp16`; \
                 HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME control how tensors are fused"
            }
            _ => "exchange less often or less data: a larger batch, gradient accumulation, 16-bit gradients",
        }
    }

    /// Steps become slower.
    pub fn slowdown(self) -> &'static str {
        match self.is_ours() {
            true => {
                "something changed during the run, such as thermal throttling, another program or growing memory: repeat it \
                 (--repeat 3) and run `paceline doctor`"
            }
            false => {
                "something changed during the run, such as thermal throttling, another program or growing memory: repeat it \
                 and check what else ran on the machine"
            }
        }
    }

    /// Step times do not settle.
    pub fn unsteady(self) -> &'static str {
        match self.is_ours() {
            true => "run longer, repeat it (--repeat 3), and stop other programs (`paceline doctor`)",
            false => "run longer, repeat it, and stop other programs on the machine",
        }
    }

    /// A run has too few steps.
    pub fn more_steps(self) -> &'static str {
        match self.is_ours() {
            true => "run at least 20 steps, better 60: --steps 60",
            false => "log at least 20 steps",
        }
    }

    /// The rate is uncertain.
    pub fn uncertain(self, repeats: u32) -> &'static str {
        match self.is_ours() && repeats <= 1 {
            true => "run more steps, or --repeat 3",
            false => "run more steps or more repeats",
        }
    }

    /// Training diverged.
    pub fn diverged(self) -> &'static str {
        match self.is_ours() {
            true => "use a smaller --lr; the measured speeds are still valid, as the work is the same",
            false => {
                "use a smaller learning rate; the measured speeds are still valid, as the work is the same"
            }
        }
    }
}

fn communication_of_ours(case: &Case) -> &'static str {
    let set = |name: &str| case.settings.get(name).map(String::as_str);
    if set("overlap") == Some("no") {
        return "exchange during the backward pass: --overlap yes";
    }
    // Workers that come and go all keep the whole state, and exchange in 32 bits.
    if set("elastic").is_some() {
        return "try a larger --batch or --accumulate";
    }
    match case.update.as_deref() {
        Some("allreduce") if set("compress") == Some("none") => {
            "try --update sharded, a larger --batch, --accumulate, or --compress bf16"
        }
        Some("allreduce") => "try --update sharded, a larger --batch or --accumulate",
        Some("sharded") => "try a larger --batch or --accumulate",
        Some(_) => "try --update allreduce, or a larger --batch or --accumulate",
        None => "exchange less often or less data: a larger batch, gradient accumulation, 16-bit gradients",
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::{Nanos, Phase};

    use super::{Case, Program};
    use crate::fixture::{Plan, learning_plans, study};
    use crate::{CaseReport, Kind, Report};

    #[test]
    fn an_elastic_run_is_not_told_to_use_options_that_mean_nothing_to_it() {
        let mut case = Plan::calm("resnet50", 2).case();
        case.update = Some("allreduce".into());
        case.settings.extend([("compress".into(), "none".into()), ("overlap".into(), "yes".into())]);
        let advice = |case: &Case| [Program::Paceline.communication(case), Program::Paceline.update(case)];
        let misfit = |advice: &str| ["--update", "--compress"].iter().any(|option| advice.contains(option));
        assert!(advice(&case).into_iter().all(misfit));
        case.settings.insert("elastic".into(), "1..2".into());
        assert!(!advice(&case).into_iter().any(misfit));
    }

    /// A run of two workers in which half the time of each step belongs to no phase.
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
    fn unmeasured_time_is_a_bug_in_our_runs_but_not_in_an_adapters() {
        for (engine, what, advice) in [
            ("pytorch", "between measured phases", "log.phase"),
            ("cpu", "outside every phase", "this is a bug"),
        ] {
            let report = unaccounted(engine);
            let found =
                report.findings.iter().find(|finding| finding.kind == Kind::Other).expect("half of it");
            assert!(found.text.contains(what) && found.advice.contains(advice), "{found:?}");
        }
    }

    #[test]
    fn the_rank_that_cost_most_is_named_even_if_it_is_not_to_blame() {
        let mut report = unaccounted("pytorch");
        report.cases[0].straggler.as_mut().expect("two ranks").fraction = 0.76;
        let findings = super::super::find(&report.machine, &report.cases, &report.explained);
        let late = findings.iter().find(|finding| finding.kind == Kind::Stragglers).expect("ranks wait");
        let most = "no single rank is to blame (rank 1: 76 % of the waiting)";
        assert!(late.text.ends_with(most), "{}", late.text);
    }
}
