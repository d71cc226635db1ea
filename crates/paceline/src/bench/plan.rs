//! From options to the runs of a study: the product of all lists, repeats in drawn order, and a folder for each.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;
use paceline_engine::{Layout, Precision};
use paceline_lab::Planned;
use paceline_lab::stats::random::SplitMix;
use paceline_record::Case;
use paceline_train::data::Augment;
use paceline_train::data::Data;
use paceline_train::{Compress, ExchangeOptions, Job, Learning, Milestones, Scaling, Strategy};

use super::options::{Options, ScalingKind};
use crate::machine;
use crate::outcome::Usage;

/// One run: what to do, and what the study's record says of it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// What to do.
    pub job: Job,
    /// What is written down.
    pub planned: Planned,
}

/// The most runs of a study: more is a slip of the keyboard.
const MOST_RUNS: u64 = 10_000;

/// The most steps of a simulated case, over all workers: about 7 GB of logs.
const MOST_SIMULATED: u64 = 10_000_000;

/// The runs that options ask for, in the order in which they take place.
pub fn plan(options: &Options) -> Result<Vec<PlannedJob>> {
    let jobs = jobs(options)?;
    let cases: Vec<Case> = jobs.iter().map(Job::case).collect();
    let names = name_folders(&cases);
    let mut runs = Vec::new();
    for repeat in 1..=options.repeat {
        for (place, job) in jobs.iter().enumerate() {
            let name = &names[place];
            let folder = if repeat == 1 { name.clone() } else { format!("{name}-repeat{repeat}") };
            let case = cases[place].clone();
            let planned = Planned { folder, place, repeat, case, steps: job.steps };
            runs.push(PlannedJob { job: job.clone(), planned });
        }
    }
    if options.repeat > 1 {
        shuffle(&mut runs, options.seed[0]);
    }
    Ok(runs)
}

/// The product of all lists; workers change fastest, networks slowest.
fn jobs(options: &Options) -> Result<Vec<Job>> {
    check(options)?;
    let workers = options.worker_counts();
    let most = workers.iter().copied().max().unwrap_or(1);
    let threads = match &options.threads[..] {
        [] => vec![(machine::cores() / most as usize).max(1) as u32],
        given => given.to_vec(),
    };
    let mut jobs = vec![blank(options)];
    jobs = times(jobs, &options.models, |job, model| job.model.clone_from(model));
    jobs = times(jobs, &options.data, |job, data| job.data.clone_from(data));
    jobs.iter_mut().try_for_each(set_pictures)?;
    if !options.input.is_empty() {
        jobs = times(jobs, &options.input, |job, &input| job.input = input);
    }
    if !options.classes.is_empty() {
        jobs = times(jobs, &options.classes, |job, &classes| job.classes = classes as usize);
    }
    jobs = times(jobs, &options.engine, |job, engine| job.engine.clone_from(engine));
    jobs = times(jobs, &options.layout, |job, &layout| job.layout = layout);
    jobs = times(jobs, &options.precision, |job, &precision| job.precision = precision);
    jobs = times(jobs, &sizes(options), |job, size| (job.scaling, job.batch) = (size.scaling, size.batch));
    jobs = times(jobs, &options.accumulate, |job, &passes| job.accumulate = passes as usize);
    jobs = times(jobs, &options.bucket_mb, |job, &size| set_bucket(&mut job.exchange, size));
    jobs = times(jobs, &options.overlap, |job, &overlap| job.exchange.overlap = overlap);
    jobs = times(jobs, &options.compress, |job, &compress| job.exchange.compress = compress);
    jobs = times(jobs, &options.pin, |job, &pin| job.pin = pin);
    jobs = times(jobs, &options.seed, |job, &seed| job.seed = seed);
    jobs = times(jobs, &options.lr, |job, &rate| job.learning.schedule.base = rate);
    jobs = times(jobs, &options.lr_rule, |job, &rule| job.learning.schedule.rule = rule);
    if !options.shards.is_empty() {
        jobs = times(jobs, &options.shards, |job, &shards| job.shards = Some(shards));
    }
    jobs = times(jobs, &threads, |job, &threads| job.threads = threads as usize);
    jobs = match (&options.examples[..], &options.epochs[..]) {
        ([], []) => times(jobs, &options.steps, |job, &steps| job.steps = steps),
        ([], epochs) => times(jobs, epochs, |job, &epochs| job.epochs = Some(epochs)),
        (examples, _) => times(jobs, examples, |job, &examples| job.examples = Some(examples)),
    };
    jobs = times(jobs, &options.update, |job, &update| job.update = update);
    jobs = times(jobs, &workers, |job, &workers| job.workers = workers);
    let mut jobs = jobs.into_iter().map(share_out).collect::<Result<Vec<Job>, Usage>>()?;
    jobs.iter_mut().try_for_each(|job| options.learning.settle(job))?;
    // The same case named twice counts once.
    let mut known = BTreeSet::new();
    jobs.retain(|job| known.insert(job.case()));
    Ok(jobs)
}

/// Every job with every value.
fn times<T>(jobs: Vec<Job>, values: &[T], set: impl Fn(&mut Job, &T)) -> Vec<Job> {
    let with = |job: &Job, value: &T| {
        let mut job = job.clone();
        set(&mut job, value);
        job
    };
    jobs.iter()
        .flat_map(|job| values.iter().map(move |value| (job, value)))
        .map(|(j, v)| with(j, v))
        .collect()
}

/// A job of which nothing is decided that lists decide.
fn blank(options: &Options) -> Job {
    Job {
        model: String::new(),
        engine: String::new(),
        layout: Layout::Nhwc,
        precision: Precision::Fp32,
        workers: 1,
        batch: 1,
        shards: None,
        scaling: Scaling::Weak,
        threads: 1,
        input: (0, 0),
        classes: 0,
        data: String::new(),
        augment: Augment::default(),
        steps: 1,
        epochs: None,
        examples: None,
        seed: 0,
        learning: Learning::at(0.0),
        update: Strategy::AllReduce,
        exchange: ExchangeOptions { alone: options.exchange_alone, ..ExchangeOptions::default() },
        share_gpu: options.share_gpu,
        accumulate: 1,
        pin: true,
        profile: options.profile.is_some(),
        simulation: options.simulate.clone().unwrap_or_default(),
        milestones: Milestones::default(),
        log_samples: false,
        asked: Vec::new(),
        folder: PathBuf::new(),
    }
}

/// Refuses options that do not go together.
fn check(options: &Options) -> Result<(), Usage> {
    let compressed = options.compress.iter().any(|&compress| compress != Compress::None);
    if compressed && options.update.iter().any(|&update| update != Strategy::AllReduce) {
        let reason = "gradients travel in 16 bits with --update allreduce only; leave --compress out";
        return Err(Usage::new(reason));
    }
    if options.simulate.is_some() && options.engine != ["simulated"] {
        return Err(Usage::new("--simulate describes the machine of --engine simulated"));
    }
    if options.scaling == [ScalingKind::Weak] && !options.global_batch.is_empty() {
        return Err(Usage::new(
            "weak scaling fixes --batch; leave --global-batch out, or use --scaling strong",
        ));
    }
    let strong = match &options.scaling[..] {
        [] => !options.global_batch.is_empty(),
        given => given.iter().all(|&kind| kind == ScalingKind::Strong),
    };
    if strong && !options.batch.is_empty() {
        return Err(Usage::new(
            "strong scaling fixes --global-batch; leave --batch out, or use --scaling weak",
        ));
    }
    let runs = count_runs(options);
    if runs > MOST_RUNS {
        return Err(Usage::new(format!("these lists make {runs} runs; a study has at most {MOST_RUNS}")));
    }
    if options.profile.is_some() && options.repeat > 1 {
        return Err(Usage::new(
            "--profile and --repeat do not go together: timing layers changes what is repeated",
        ));
    }
    Ok(())
}

/// How many runs the lists make, at most: the same case may be named twice.
fn count_runs(options: &Options) -> u64 {
    let Options { models, update, steps, examples, threads, input, classes, data, engine, layout, .. } =
        options;
    let Options { precision, bucket_mb, overlap, compress, accumulate, pin, seed, lr, .. } = options;
    let timing = steps.len().max(examples.len()).max(options.epochs.len());
    let lists = [
        models.len(),
        options.worker_counts().len(),
        update.len(),
        sizes(options).len(),
        timing,
        threads.len(),
        input.len(),
        classes.len(),
        data.len(),
        engine.len(),
        layout.len(),
        precision.len(),
        bucket_mb.len(),
        overlap.len(),
        compress.len(),
        accumulate.len(),
        pin.len(),
        seed.len(),
        lr.len(),
        options.lr_rule.len(),
        options.shards.len(),
        options.repeat as usize,
    ];
    lists.into_iter().fold(1u64, |runs, length| runs.saturating_mul(length.max(1) as u64))
}

/// Samples a step. Under strong scaling each worker's part follows once the workers are known.
struct BatchSize {
    scaling: Scaling,
    batch: usize,
}

fn sizes(options: &Options) -> Vec<BatchSize> {
    let kinds = match (&options.scaling[..], &options.global_batch[..]) {
        ([], []) => vec![ScalingKind::Weak],
        ([], _) => vec![ScalingKind::Strong],
        (given, _) => given.to_vec(),
    };
    let mut sizes = Vec::new();
    for kind in kinds {
        match kind {
            ScalingKind::Weak => {
                let batches = if options.batch.is_empty() { &[64] } else { &options.batch[..] };
                sizes.extend(
                    batches.iter().map(|&batch| BatchSize { scaling: Scaling::Weak, batch: batch as usize }),
                );
            }
            ScalingKind::Strong => {
                let most = options.worker_counts().into_iter().max().unwrap_or(1);
                let usual = [64 * most];
                let batches =
                    if options.global_batch.is_empty() { &usual } else { &options.global_batch[..] };
                sizes.extend(batches.iter().map(|&global| BatchSize {
                    scaling: Scaling::Strong { global_batch: global as usize },
                    batch: global as usize,
                }));
            }
        }
    }
    sizes
}

fn set_bucket(exchange: &mut ExchangeOptions, megabytes: f64) {
    exchange.bucket_bytes = (megabytes * f64::from(1 << 20)) as usize;
    exchange.first_bucket_bytes = exchange.bucket_bytes.min(1 << 20);
}

/// Pictures and classes are the data's, unless options say otherwise.
fn set_pictures(job: &mut Job) -> Result<(), Usage> {
    let data: Data = job.data.parse().map_err(Usage::new)?;
    job.input = (data.shape().h, data.shape().w);
    job.classes = data.classes().map_err(Usage::new)?;
    Ok(())
}

/// Divides a step among its shards, and a number of examples among the steps.
fn share_out(mut job: Job) -> Result<Job, Usage> {
    let (workers, shards) = (job.workers as usize, job.shards() as usize);
    let (global_batch, option) = match job.scaling {
        Scaling::Strong { global_batch } => (global_batch, "--global-batch"),
        Scaling::Weak => (job.batch * workers, "--batch"),
    };
    if !global_batch.is_multiple_of(shards) {
        let among = if job.shards.is_some() { "shards" } else { "workers" };
        let better = match job.scaling {
            Scaling::Strong { .. } => global_batch.next_multiple_of(shards),
            Scaling::Weak => job.batch.next_multiple_of(shards),
        };
        return Err(Usage::new(format!(
            "a global batch of {global_batch} cannot be shared out equally among {shards} {among}; use a multiple of {shards}, \
             as {option} {better}"
        )));
    }
    job.batch = global_batch / shards;
    if let Some(examples) = job.examples {
        job.steps = examples.div_ceil(job.global_batch());
    }
    if job.engine == "simulated" && job.steps.saturating_mul(workers as u64) > MOST_SIMULATED {
        return Err(Usage::new(format!(
            "{} steps of {workers} workers would fill the disk with logs; a simulated case has at most {MOST_SIMULATED} steps \
             over all its workers",
            job.steps
        )));
    }
    Ok(job)
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
