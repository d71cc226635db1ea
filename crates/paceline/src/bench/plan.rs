//! From options to the runs of a study: the product of all lists, repeats in drawn order, and a folder for each.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use paceline_lab::Planned;
use paceline_lab::stats::random::SplitMix;
use paceline_record::Case;
use paceline_train::{Every, Job, Length, Scaling};

use super::options::{Options, ScalingKind};
use crate::machine;
use crate::outcome::Usage;
use crate::settings::{Limit, too_many};
use crate::values::{Int, List};

/// One run: what to do, and what the study's record says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// What to do.
    pub job: Job,
    /// What is written down.
    pub planned: Planned,
}

/// The most runs of a study: more is a slip of the keyboard.
const MOST_RUNS: usize = 10_000;

/// The most steps of a simulated case, over all workers: about 7 GB of logs.
const MOST_SIMULATED: u64 = 10_000_000;

/// The networks of a study that names none.
const MODELS: [&str; 2] = ["mobilenet_v2", "resnet50"];

/// The runs that options ask for, in the order in which they take place.
pub fn plan(options: &Options) -> Result<Vec<PlannedJob>> {
    let jobs = jobs(options)?;
    let repeats = options.repeats();
    if jobs.len() * repeats as usize > MOST_RUNS {
        return Err(too_many(MOST_RUNS).into());
    }
    if options.study.profile.is_some() && repeats > 1 {
        return Err(Usage::new(
            "--profile and --repeat do not go together: timing layers changes what is repeated",
        )
        .into());
    }
    let cases: Vec<Case> = jobs.iter().map(Job::case).collect();
    let names = name_folders(&cases);
    let mut runs = Vec::new();
    for repeat in 1..=repeats {
        for (place, job) in jobs.iter().enumerate() {
            let name = &names[place];
            let folder = if repeat == 1 { name.clone() } else { format!("{name}-repeat{repeat}") };
            let case = cases[place].clone();
            let planned = Planned { folder, place, repeat, case, steps: job.steps };
            runs.push(PlannedJob { job: job.clone(), planned });
        }
    }
    if repeats > 1 {
        shuffle(&mut runs, jobs[0].seed);
    }
    Ok(runs)
}

/// The product of all lists; workers change fastest, networks slowest.
fn jobs(options: &Options) -> Result<Vec<Job>> {
    let mut settings = options.settings.clone();
    let List(workers) = settings.work.workers.get_or_insert_with(|| List(options.usual_workers()));
    let most = workers.iter().map(|workers| workers.0).max().unwrap_or(1);
    // The same for every case, so that only workers change.
    let hosts = settings.hosts.hosts.filter(|_| settings.hosts.local).map_or(1, |hosts| u64::from(hosts.max));
    let threads = Int((machine::granted() as u64 / (most * hosts)).max(1));
    settings.computing.threads.get_or_insert_with(|| List(vec![threads]));
    let models = match &options.study.models[..] {
        [] => MODELS.map(str::to_owned).to_vec(),
        given => given.to_vec(),
    };
    let models = models.iter().map(|model| measurement(options, model)).collect();
    let mut jobs = settings.apply(models, &sizes(options, most)?, Limit::Study(MOST_RUNS))?;
    for job in &mut jobs {
        job.settle(machine::granted())?;
        if matches!(job.length, Length::Epochs(_)) {
            let every = settings.learning.eval_every.map(|epochs| Every(epochs.0));
            job.milestones.eval = every.or(Job::training("").milestones.eval);
        }
        check(options, job)?;
    }
    // The same case named twice counts once.
    let mut known = BTreeSet::new();
    jobs.retain(|job| known.insert(job.case()));
    Ok(jobs)
}

/// A job with what no list decides.
fn measurement(options: &Options, model: &str) -> Job {
    let mut job = Job::new(model);
    job.exchange.alone = options.study.exchange_alone;
    job.profile = options.study.profile.is_some();
    job.simulation = options.study.simulate.clone().unwrap_or_default();
    job
}

/// Refuses what a study cannot measure.
fn check(options: &Options, job: &Job) -> Result<(), Usage> {
    if options.study.simulate.is_some() && job.engine != "simulated" {
        return Err(Usage::new("--simulate describes the machine of --engine simulated"));
    }
    if job.engine == "simulated" && job.steps.saturating_mul(job.workers.into()) > MOST_SIMULATED {
        return Err(Usage::new(format!(
            "{} steps of {} workers would fill the disk with logs; a simulated case has at most {MOST_SIMULATED} steps over \
             all its workers",
            job.steps, job.workers
        )));
    }
    Ok(())
}

/// Samples of a step, where options say them.
fn sizes(options: &Options, most: u64) -> Result<Vec<Scaling>, Usage> {
    let (mut weak, mut strong) = (options.settings.work.weak_sizes(), options.settings.work.strong_sizes());
    let kinds = match &options.study.scaling {
        None if strong.is_empty() => return Ok(weak),
        None => &vec![ScalingKind::Strong],
        Some(List(given)) => given,
    };
    if !kinds.contains(&ScalingKind::Strong) && !strong.is_empty() {
        let reason = "weak scaling fixes --batch; leave --global-batch out, or use --scaling strong";
        return Err(Usage::new(reason));
    }
    if !kinds.contains(&ScalingKind::Weak) && !weak.is_empty() {
        let reason = "strong scaling fixes --global-batch; leave --batch out, or use --scaling weak";
        return Err(Usage::new(reason));
    }
    let usual = Job::new("");
    if weak.is_empty() {
        weak.push(usual.scaling);
    }
    if strong.is_empty() {
        strong.push(Scaling::Strong { global_batch: usual.batch * most as usize });
    }
    Ok(kinds
        .iter()
        .flat_map(|kind| match kind {
            ScalingKind::Weak => weak.clone(),
            ScalingKind::Strong => strong.clone(),
        })
        .collect())
}

/// Fisher and Yates.
fn shuffle<T>(values: &mut [T], seed: u64) {
    let mut draw = SplitMix(seed);
    for last in (1..values.len()).rev() {
        values.swap(last, draw.below(last + 1));
    }
}

/// A name for the folder of each case: its network, what sets it apart from the others, and its workers.
fn name_folders(cases: &[Case]) -> Vec<String> {
    let mut values: BTreeMap<&str, BTreeSet<Option<String>>> = BTreeMap::new();
    for (name, value) in cases.iter().flat_map(features) {
        values.entry(name).or_default().insert(value);
    }
    let mut taken = BTreeSet::new();
    let name = |case: &Case| {
        let mut parts = vec![case.model.clone()];
        parts.extend(case.update.clone().filter(|update| update != "allreduce"));
        for (name, value) in features(case).filter(|(name, _)| values[name].len() > 1) {
            parts.extend(value.map(|value| format!("{name}{value}")));
        }
        parts.push(format!("w{}", case.workers));
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let name: String = parts.join("-").chars().map(plain).collect();
        // Long lists of settings would make names that no file system takes.
        let name = if name.len() > 150 { format!("{}-w{}", case.model, case.workers) } else { name };
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = [name.clone()].into_iter().chain(numbered).find(|name| !taken.contains(name));
        let free = free.expect("invariant: there is always a next number");
        taken.insert(free.clone());
        free
    };
    cases.iter().map(name).collect()
}

/// What may set a case apart, besides network, strategy and workers: a tag for names, and a value.
fn features(case: &Case) -> impl Iterator<Item = (&str, Option<String>)> {
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let batch = case.batch_per_worker.filter(|_| case.global_batch.is_none());
    let named = [
        ("on-", case.engine.clone()),
        ("in-", case.layout.clone()),
        ("as-", case.precision.clone()),
        ("b", number(batch)),
        ("g", number(case.global_batch)),
        ("t", number(case.threads.map(u64::from))),
        ("s", case.input.clone()),
        ("c", number(case.classes)),
    ];
    let settings = case.settings.iter().map(|(name, value)| (name.as_str(), Some(value.clone())));
    named.into_iter().chain(settings)
}

#[cfg(test)]
mod tests;
