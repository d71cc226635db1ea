//! What to do about a finding, in terms of the program that made the run: our options mean nothing to other programs.

use std::collections::BTreeSet;

use paceline_record::{Case, Phase};

use super::{accuracy, recovery};
use crate::CaseReport;
use crate::numbers::learning::Learning;
use crate::origin::Format;

/// The program that made a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// `paceline bench` on a real machine.
    Bench,
    /// `paceline train`: its runs are not repeated.
    Train,
    /// `paceline bench --engine simulated`: a repeat is the same run again, and nothing else runs on its machine.
    Simulated,
    /// A PyTorch script that writes the run log itself, or a trace of one.
    PyTorch,
    /// A PyTorch script under `paceline run`, which knows nothing of us.
    Followed,
    Horovod,
    TensorFlow,
    /// The source does not say.
    Unknown,
}

impl Program {
    /// By a case, and by the command of its study.
    pub fn of(case: &CaseReport, command: &[String]) -> Self {
        let Some(origin) = &case.origin else {
            return match (case.case.engine.as_deref(), command.first().map(String::as_str)) {
                (_, Some("run")) => Self::Followed,
                // The Python package writes our run log itself.
                (Some("pytorch"), _) => Self::PyTorch,
                (Some("simulated"), _) => Self::Simulated,
                (_, Some("train")) => Self::Train,
                (_, Some("bench")) => Self::Bench,
                _ => Self::Unknown,
            };
        };
        match origin.format {
            Some(Format::Kineto) => Self::PyTorch,
            Some(Format::Horovod) => Self::Horovod,
            Some(Format::TfCnn | Format::MetricLog) => Self::TensorFlow,
            Some(Format::Sqlite | Format::Events | Format::NvidiaSmi | Format::XPlane | Format::Chrome)
            | None => Self::Unknown,
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Self::Bench | Self::Train | Self::Simulated)
    }

    pub fn is_pytorch(self) -> bool {
        matches!(self, Self::PyTorch | Self::Followed)
    }

    /// The same advice in the options that a case has: where the batch of all workers is fixed, that is the one to change.
    pub fn fit(self, case: &Case, advice: &str) -> String {
        match self.is_ours() && case.global_batch.is_some() {
            true => advice.replace(" --batch", " --global-batch"),
            false => advice.into(),
        }
    }

    /// Each rank computes more slowly.
    pub fn computation(self, case: &Case) -> &'static str {
        // Threads and caches of the host are not what a GPU computes with.
        let on_host = self.is_ours() && case.engine.as_deref() != Some("cuda");
        match (case.global_batch, self.is_ours()) {
            (None, _) if self == Self::Simulated => {
                "the simulated machine slows its workers down: contention of --simulate says by how much"
            }
            (Some(_), true) => {
                "each worker's part of the batch is smaller, so its matrix products are less efficient: use a larger \
                 --global-batch or fewer workers"
            }
            (Some(_), false) => {
                "each worker's part of the batch is smaller, so its matrix products are less efficient: use a larger global \
                 batch or fewer workers"
            }
            (None, _) if on_host && (self == Self::Train || has_tasks(case)) => {
                "workers may share memory bandwidth, caches or clock: try fewer workers with more --threads, or a smaller --batch \
                 that fits the cache; `paceline doctor` lists what the cores share"
            }
            (None, _) if on_host => {
                "workers may share memory bandwidth, caches or clock: compare with --update independent, and try fewer workers with \
                 more --threads, or a smaller --batch that fits the cache; `paceline doctor` lists what the cores share"
            }
            (None, _) if self.is_pytorch() && is_on_host(case) => {
                "workers may share memory bandwidth, caches or clock: try fewer workers with more threads each (OMP_NUM_THREADS), or \
                 a batch that fits each worker's part of the cache; `paceline doctor` lists what the cores share"
            }
            (None, _) => {
                "workers may share memory bandwidth, caches, power or clock: try fewer workers per machine, or a batch that fits \
                 each worker's part of them"
            }
        }
    }

    /// Each rank computes more slowly, and has fewer threads than the one worker that it is compared with.
    pub fn fewer_threads(self) -> &'static str {
        match self.is_pytorch() {
            true => {
                "compare like with like: set OMP_NUM_THREADS to the same number for every run; without it, torchrun gives one thread \
                 to each of several workers and leaves a single one all cores"
            }
            false => "compare like with like: give every worker the same number of threads",
        }
    }

    /// Batches come too late. Others may not train on images.
    pub fn input(self) -> &'static str {
        match (self.is_pytorch(), self.is_ours()) {
            (true, _) => {
                "let more processes load ahead (`num_workers` of DataLoader, with `persistent_workers=True`; `pin_memory=True` for a \
                 GPU), or keep the data in memory"
            }
            (_, true) => {
                "prepare batches in advance on separate cores, use smaller images, or keep the data in memory"
            }
            _ => "prepare batches in advance on separate cores, or keep the data in memory",
        }
    }

    /// The host launches work too late.
    pub fn late_host(self) -> &'static str {
        match self {
            Self::PyTorch | Self::Followed => {
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
            Self::PyTorch | Self::Followed => {
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
            Self::PyTorch | Self::Followed => {
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
        match self {
            Self::Followed => {
                "no hook sees this time: Python code or sleep between loading, forward, backward and the update; a trace of \
                 `torch.profiler` shows what it is, and `paceline import` reads it"
            }
            _ => {
                "no hook measures this time: Python, input or sleep between forward, backward and the update; mark such code with \
                 `with log.phase(...)`, or use `paceline import` on a profiler trace"
            }
        }
    }

    /// Ranks hold each other up in turn.
    pub fn turns(self) -> &'static str {
        match self {
            Self::Simulated => {
                "ranks hold each other up in turn: give each step more work (a larger --batch, --accumulate) so that delays \
                 even out"
            }
            Self::Bench | Self::Train => {
                "ranks hold each other up in turn: stop other programs (`paceline doctor`), or give each step more work (a \
                 larger --batch, --accumulate) so that delays even out"
            }
            _ => {
                "ranks hold each other up in turn: stop other programs on the machines, or give each step more work (a larger \
                 batch, gradient accumulation) so that delays even out"
            }
        }
    }

    /// A rank is late in most steps.
    pub fn late(self, who: &str) -> String {
        match self {
            Self::Simulated => {
                format!("the simulated machine makes {who} slower than the others: --simulate says how")
            }
            _ => format!("{who} is slower than the others: check its cores and what else runs on them"),
        }
    }

    /// A rank is late because of what it does beside computing.
    pub fn longer(self, who: &str, phase: Phase) -> String {
        match (self, phase) {
            (Self::Simulated, _) => self.late(who),
            (_, Phase::Load) => {
                format!("look at the input of {who}: its files, its disk, its loader's workers")
            }
            (_, Phase::Other) => {
                format!(
                    "look at what {who} does between its phases that the others do not: printing, saving, waiting, other code"
                )
            }
            _ => format!("look at what {who} does there that the others do not"),
        }
    }

    /// A rank is late because it has more to do.
    pub fn uneven(self) -> &'static str {
        match self {
            Self::Bench | Self::Train | Self::Simulated => {
                "the shards of a step do not divide evenly: make --shards a multiple of all workers of all hosts"
            }
            _ => "give every rank as many examples a step",
        }
    }

    /// A rank is late because it was not on a core.
    pub fn kept_off(self, who: &str) -> String {
        match self {
            Self::Simulated => self.late(who),
            _ => format!("find out what else ran on the core of {who}"),
        }
    }

    /// A rank is late in some steps only.
    pub fn now_and_then(self) -> &'static str {
        match self {
            Self::Simulated => "the simulated machine delays ranks now and then: --simulate says how",
            Self::Bench | Self::Train => {
                "something held that rank up now and then, or for once: stop other programs (`paceline doctor`); timeline.json \
                 shows when"
            }
            _ => {
                "something held that rank up now and then, or for once: find out what else ran on its machine"
            }
        }
    }

    /// Tests and checkpoints take long.
    pub fn evaluation(self, learning: Option<&Learning>) -> &'static str {
        match learning {
            // Less often than once is never.
            Some(learning) if learning.curve.len() == 1 => match learning.eval_s >= learning.checkpoint_s {
                true => "a longer run spends less of its time on its one test",
                false => "run longer, or save less often",
            },
            _ if self.is_pytorch() => {
                "evaluate and save less often, or save in the background (`async_save` of `torch.distributed.checkpoint`)"
            }
            _ => "evaluate and save less often",
        }
    }

    /// The update takes long.
    pub fn update(self, case: &Case) -> &'static str {
        match self {
            _ if self.is_ours() && has_tasks(case) => "use fewer updates: a larger --batch or --accumulate",
            _ if self.is_ours() => {
                "try --update sharded (each worker updates a slice), or fewer updates through a larger --batch or --accumulate"
            }
            Self::PyTorch | Self::Followed => {
                "try a fused optimizer (`fused=True`), `ZeroRedundancyOptimizer` (each worker updates a slice), or fewer updates \
                 through a larger batch or gradient accumulation"
            }
            _ => "let each worker update a slice of the parameters, or use a larger batch for fewer updates",
        }
    }

    /// Communication is exposed.
    pub fn communication(self, case: &Case) -> &'static str {
        match self {
            _ if self.is_ours() => communication_of_ours(case),
            Self::PyTorch | Self::Followed => {
                "exchange less often or less data: a larger batch, gradient accumulation (`no_sync`), a 16-bit communication \
                 hook (`bf16_compress_hook`); other bucket sizes (`bucket_cap_mb`) may hide more behind backward, and \
                 `gradient_as_bucket_view=True` saves a copy"
            }
            Self::Horovod => {
                "exchange less often or less data: a larger batch, `backward_passes_per_step`, `hvd.Compression.fp16`; \
                 HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME control how tensors are fused"
            }
            _ => "exchange less often or less data: a larger batch, gradient accumulation, 16-bit gradients",
        }
    }

    /// Steps become slower.
    pub fn slowdown(self, repeats: u32) -> &'static str {
        match self {
            Self::Simulated => "the simulated machine becomes slower during the run: --simulate says when",
            Self::Bench if repeats <= 1 => {
                "something changed during the run, such as thermal throttling, another program or growing memory: run \
                 `paceline doctor`; --repeat 3 shows whether it comes back"
            }
            Self::Followed if repeats <= 1 => {
                "something changed during the run, such as thermal throttling, another program or growing memory: run \
                 `paceline doctor`; --repeat 3 shows whether it comes back"
            }
            Self::Bench | Self::Train | Self::Followed => {
                "something changed during the run, such as thermal throttling, another program or growing memory: run \
                 `paceline doctor`"
            }
            _ => {
                "something changed during the run, such as thermal throttling, another program or growing memory: check what \
                 else ran on the machine"
            }
        }
    }

    /// Step times do not settle.
    pub fn unsteady(self) -> &'static str {
        match self {
            Self::Simulated => "run longer",
            Self::Bench | Self::Train => "run longer, and stop other programs (`paceline doctor`)",
            _ => "run longer, and stop other programs on the machine",
        }
    }

    /// A run has too few steps.
    pub fn more_steps(self) -> &'static str {
        match self.is_ours() {
            true => "run at least 20 steps, better 60: --steps 60",
            false if self == Self::Followed => "let it do at least 20 steps, better 60",
            false => "log at least 20 steps",
        }
    }

    /// The rate is uncertain: because steps of one run vary, which repeats do not change, or because repeats do.
    pub fn uncertain(self, repeats: u32) -> &'static str {
        match self {
            Self::Bench | Self::Followed if repeats > 1 => "run more steps, or more repeats (--repeat)",
            _ => "run more steps",
        }
    }

    /// A run with planted faults is compared with one without.
    pub fn compared(self, repeats: u32) -> &'static str {
        match self {
            Self::Simulated => "both are simulated: only the faults set them apart",
            _ if repeats > 1 => "this compares the means of the repeats",
            Self::Bench => {
                "this compares one run with one: runs differ by chance too, and --repeat 3 shows by how much"
            }
            _ => "this compares one run with one: runs differ by chance too",
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

/// Every advice that a study of `paceline <command>` may get, to be checked against the options of that command.
pub fn every_advice(command: &str) -> BTreeSet<String> {
    let programs: &[Program] = match command {
        "bench" => &[Program::Bench, Program::Simulated],
        "train" => &[Program::Train],
        "run" => &[Program::Followed],
        _ => &[Program::PyTorch, Program::Horovod, Program::TensorFlow, Program::Unknown],
    };
    let mut all = BTreeSet::new();
    for (&program, case) in programs.iter().flat_map(|program| cases().map(move |case| (program, case))) {
        let plain = [
            program.input(),
            program.fewer_threads(),
            program.evaluation(None),
            program.late_host(),
            program.silent_host(),
            program.unseen(),
            program.unmeasured(),
            program.turns(),
            program.now_and_then(),
            program.unsteady(),
            program.more_steps(),
            program.diverged(),
            program.computation(&case),
            program.update(&case),
            program.communication(&case),
        ];
        let repeated = [1, 3].into_iter();
        let repeated = repeated.flat_map(|repeats| {
            [program.slowdown(repeats), program.uncertain(repeats), program.compared(repeats)]
        });
        let advice = plain.into_iter().chain(repeated).chain(accuracy::every_advice(program));
        // Only our own runs have members that can be lost.
        let lost = [recovery::PLANTED, recovery::NOT_PLANTED].into_iter().filter(|_| program.is_ours());
        let advice = advice.chain(lost);
        all.extend(advice.map(|advice| program.fit(&case, advice)));
        let who = "rank 0";
        all.extend([program.late(who), program.kept_off(who)]);
        all.extend([Phase::Load, Phase::Other, Phase::Update].map(|phase| program.longer(who, phase)));
    }
    all
}

/// Cases that advice tells apart.
fn cases() -> impl Iterator<Item = Case> {
    let settings =
        [("overlap", "no"), ("elastic", "1..2"), ("hosts", "2"), ("compress", "none"), ("compress", "bf16")];
    let updates = [None, Some("allreduce"), Some("sharded"), Some("ps-cpu")];
    let engines = ["cpu", "cuda"].into_iter();
    let all = engines.flat_map(move |engine| settings.map(|setting| (engine, setting)));
    let all = all.flat_map(move |(engine, setting)| updates.map(|update| (engine, setting, update)));
    all.flat_map(|(engine, (name, value), update)| {
        [None, Some(128)].map(|global_batch| Case {
            engine: Some(engine.into()),
            update: update.map(Into::into),
            global_batch,
            settings: [(name, value), ("device", engine)]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            ..Case::default()
        })
    })
}

/// Whether what is trained with PyTorch computes on cores of the host.
pub(super) fn is_on_host(case: &Case) -> bool {
    case.settings.get("device").is_some_and(|device| device == "cpu")
}

/// Whether a run has no ranks but tasks, which `--update allreduce` and `--update sharded` cut in the same way.
fn has_tasks(case: &Case) -> bool {
    ["elastic", "hosts"].iter().any(|name| case.settings.contains_key(*name))
}

fn communication_of_ours(case: &Case) -> &'static str {
    let set = |name: &str| case.settings.get(name).map(String::as_str);
    if set("overlap") == Some("no") {
        return "exchange during the backward pass: --overlap yes";
    }
    match case.update.as_deref() {
        // Fewer bytes help where a wire is between workers.
        Some("allreduce") if set("hosts").is_some() && set("compress") == Some("none") => {
            "try a larger --batch, --accumulate, or --compress bf16"
        }
        _ if has_tasks(case) => "try a larger --batch or --accumulate",
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
mod tests;
