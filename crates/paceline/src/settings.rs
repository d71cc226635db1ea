//! Settings of a job: what `bench` and `train` can be asked for alike, on the command line and in a file.
//!
//! Nothing here has a default. A setting that is not given is `None`, and the job keeps its own value: that of
//! [`Job::new`], or the checkpoint's where a training resumes.

use anyhow::Result;
use clap::{Args, Command};
use paceline_engine::cpu::Simd;
use paceline_engine::{Layout, Numerics, Precision};
use paceline_train::data::Augment;
use paceline_train::schedule::{Kind, Rule};
use paceline_train::{
    Bounds, Compress, Deal, Elastic, Faults, Job, Learning, Length, OptimizerKind, Scaling, Strategy,
};
use serde::Deserialize;

use crate::hosts::HostSettings;
use crate::outcome::Usage;
use crate::values::{
    Epochs, Fill, Fraction, Int, List, Megabytes, Rate, Seconds, Size, SomeEpochs, WhetherElastic, YesNo,
    fill_all,
};

/// All settings, group by group.
#[derive(Args, Clone, Debug, Default)]
pub struct Settings {
    #[command(flatten)]
    pub work: Work,
    #[command(flatten)]
    pub learning: LearningSettings,
    #[command(flatten)]
    pub computing: ComputingSettings,
    #[command(flatten)]
    pub elastic: ElasticSettings,
    #[command(flatten)]
    pub hosts: HostSettings,
}

/// What is trained on, by how many workers, for how long.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Work {
    /// synthetic:cifar10, synthetic:imagenet, synthetic:HxWxC, cifar10:DIR (see `paceline data`) or images:DIR (a folder
    /// for each class)
    #[arg(long)]
    pub data: Option<List<String>>,
    /// Worker processes
    #[arg(long, value_name = "N")]
    pub workers: Option<List<Int<1, 1024>>>,
    /// How workers share what they learn: allreduce, sharded, replicated, ps-cpu, ps-gpu; with `bench` also independent
    #[arg(long, value_name = "STRATEGY")]
    pub update: Option<List<Strategy>>,
    /// Samples a step on each worker
    #[arg(long)]
    pub batch: Option<List<Int<1, 1_000_000>>>,
    /// Samples a step on all workers together, divided equally
    #[arg(long, value_name = "G")]
    pub global_batch: Option<List<Int<1, 1_000_000_000>>>,
    /// Shards that each step is cut into, each with batch norm of its own: the same number gives the same weights on any
    /// number of workers up to it; more than workers makes batch norm see fewer samples [default: the workers]
    #[arg(long, value_name = "V")]
    pub shards: Option<List<Int<1, 4096>>>,
    /// Steps of each worker
    #[arg(long, value_name = "N", conflicts_with_all = ["examples", "epochs"])]
    pub steps: Option<List<Int<1, 1_000_000_000>>>,
    /// Instead of --steps: passes over the data, with a test after each
    #[arg(long, value_name = "E", conflicts_with = "examples")]
    pub epochs: Option<List<SomeEpochs>>,
    /// Instead of --steps: samples that all workers see together
    #[arg(long, value_name = "E")]
    pub examples: Option<List<Int<1, 1_000_000_000_000>>>,
    /// Seed of weights, data and augmentation; with `bench` also of the order of repeats
    #[arg(long)]
    pub seed: Option<List<u64>>,
}

/// How weights follow gradients.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(next_help_heading = "Learning")]
#[serde(default, rename_all = "kebab-case")]
pub struct LearningSettings {
    /// The update rule: sgd, nesterov or adam (betas 0.9 and 0.999, epsilon 1e-8)
    #[arg(long, value_name = "RULE")]
    pub optimizer: Option<List<OptimizerKind>>,
    /// Learning rate
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub lr: Option<List<Rate>>,
    /// How the learning rate follows the global batch: none, or linear (Goyal et al. 2017), see --lr-batch
    #[arg(long, value_name = "none|linear")]
    pub lr_rule: Option<List<Rule>>,
    /// The global batch that --lr is right for, with --lr-rule linear
    #[arg(long, value_name = "G")]
    pub lr_batch: Option<List<Int<1, { u64::MAX }>>>,
    /// How the learning rate changes: constant; step, a tenth after half of the steps and again after three quarters; or
    /// cosine, down to 0 at the end
    #[arg(long, value_name = "KIND")]
    pub schedule: Option<List<Kind>>,
    /// Epochs in which the learning rate rises to its full height; with --lr-rule linear it starts at --lr
    #[arg(long, value_name = "E")]
    pub warmup_epochs: Option<List<Epochs>>,
    /// Fraction of the old velocity that each update keeps, with sgd and nesterov
    #[arg(long, allow_negative_numbers = true)]
    pub momentum: Option<List<Fraction>>,
    /// L2 penalty on all trained values
    #[arg(long, value_name = "L2", allow_negative_numbers = true)]
    pub weight_decay: Option<List<Rate>>,
    /// Part of each label that is spread over all classes
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub label_smoothing: Option<List<Fraction>>,
    /// Fraction of batch norm's old running statistics that each step keeps, once there are enough; Keras has 0.999 for
    /// mobilenet_v2 and 0.99 for others
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    pub bn_momentum: Option<List<Fraction>>,
    /// How pictures are varied from epoch to epoch: standard (CIFAR-10: pad, crop, flip; images: random resized crop, flip)
    /// or none
    #[arg(long, value_name = "KIND")]
    pub augment: Option<List<Augment>>,
    /// Test the network after every so many epochs, and at the end; 0 for the end alone
    #[arg(long, value_name = "E")]
    #[serde(deserialize_with = "crate::values::one")]
    pub eval_every: Option<Epochs>,
    /// Write the numbers of the samples that each worker was given to samples-RANK.txt
    #[arg(long)]
    pub log_samples: bool,
}

/// What computes, and how.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(next_help_heading = "Computing")]
#[serde(default, rename_all = "kebab-case")]
pub struct ComputingSettings {
    /// What computes: cpu or cuda; with `bench` also simulated, a machine that --simulate describes
    #[arg(long)]
    pub engine: Option<List<String>>,
    /// Threads in each worker
    #[arg(long, value_name = "T")]
    pub threads: Option<List<Int<1, 1024>>>,
    /// Whether each worker keeps to cores of its own: yes or no
    #[arg(long, value_name = "yes|no")]
    pub pin: Option<List<YesNo>>,
    /// Size of the pictures [default: the data's]
    #[arg(long, value_name = "HxW")]
    pub input: Option<List<Size>>,
    /// Classes [default: the data's]
    #[arg(long)]
    pub classes: Option<List<Int<1, 1_000_000>>>,
    /// Instruction set of the cpu engine: avx512, avx2 or portable; with --precision bf16 also amx and avx512_bf16. Hosts of one job use
    /// the same; the weights of others differ in the last digits
    #[arg(long, value_name = "SET")]
    #[serde(deserialize_with = "crate::values::one")]
    pub instructions: Option<Simd>,
    /// Order of dimensions: nhwc or nchw
    #[arg(long)]
    pub layout: Option<List<Layout>>,
    /// Number format: fp32 or bf16; with --engine cuda also tf32
    #[arg(long)]
    pub precision: Option<List<Precision>>,
    /// Passes of each shard whose gradients are added up before one exchange
    #[arg(long, value_name = "K")]
    pub accumulate: Option<List<Int<1, 10_000>>>,
    /// Exchange gradients in buckets of about so many MB, the first and the last of about 1 MB
    #[arg(long, value_name = "MB")]
    pub bucket_mb: Option<List<Megabytes>>,
    /// Whether gradients are exchanged while backward still runs: yes or no
    #[arg(long, value_name = "yes|no")]
    pub overlap: Option<List<YesNo>>,
    /// Number format of gradients in an exchange, with --update allreduce: none, fp16 or bf16
    #[arg(long, value_name = "FORMAT")]
    pub compress: Option<List<Compress>>,
    /// Let several workers use one GPU and exchange through the host, for testing
    #[arg(long)]
    pub share_gpu: bool,
}

/// What becomes of a job whose workers come and go.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[command(next_help_heading = "Workers that come and go")]
#[serde(default, rename_all = "kebab-case")]
pub struct ElasticSettings {
    /// Outlive workers: with fewer than MIN wait for more, with at most MAX go on; the weights are the same whoever takes part
    /// [default of MIN:MAX: 1 to --workers]
    #[arg(long, value_name = "MIN:MAX", num_args = 0..=1, default_missing_value = "yes")]
    #[serde(deserialize_with = "crate::values::one")]
    pub elastic: Option<WhetherElastic>,
    /// Times that each worker is replaced after it was lost
    #[arg(long, value_name = "R")]
    #[serde(deserialize_with = "crate::values::one")]
    pub restarts: Option<Int<0, 1_000_000>>,
    /// How shards are dealt: static, equal ranges; or dynamic, whoever is done takes the next
    #[arg(long, value_name = "static|dynamic")]
    pub deal: Option<List<Deal>>,
    /// How long to wait with fewer than MIN workers, in seconds
    #[arg(long, value_name = "SECONDS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub elastic_wait: Option<Seconds>,
    /// Plant faults, to see what they cost: kill=MEMBER@STEP, stop=MEMBER@STEP:5s, slow=MEMBER@STEP:3, leave=MEMBER@STEP,
    /// join@STEP, random=kill:STEPS, random=stop:STEPS:2s, and with --hosts kill=hHOST@STEP, cut=hHOST@STEP:5s,
    /// clock=hHOST:3s:50ppm, with commas between them; with `bench` the same case without them is run too
    #[arg(long, value_name = "FAULTS")]
    #[serde(deserialize_with = "crate::values::one")]
    pub faults: Option<Faults>,
}

fill_all!(ElasticSettings { elastic, restarts, deal, elastic_wait, faults });
fill_all!(Work { data, workers, update, batch, global_batch, shards, steps, epochs, examples, seed });
fill_all!(LearningSettings {
    optimizer,
    lr,
    lr_rule,
    lr_batch,
    schedule,
    warmup_epochs,
    momentum,
    weight_decay,
    label_smoothing,
    bn_momentum,
    augment,
    eval_every,
    log_samples,
});
fill_all!(ComputingSettings {
    engine,
    threads,
    pin,
    input,
    classes,
    instructions,
    layout,
    precision,
    accumulate,
    bucket_mb,
    overlap,
    compress,
    share_gpu,
});

impl Fill for Settings {
    /// An option that is given in place of another, as --steps for --epochs, replaces that one too.
    fn fill(&mut self, mut file: Self) {
        let Work { steps, epochs, examples, batch, global_batch, .. } = &self.work;
        if steps.is_some() || epochs.is_some() || examples.is_some() {
            (file.work.steps, file.work.epochs, file.work.examples) = (None, None, None);
        }
        if batch.is_some() || global_batch.is_some() {
            (file.work.batch, file.work.global_batch) = (None, None);
        }
        self.work.fill(file.work);
        self.learning.fill(file.learning);
        self.computing.fill(file.computing);
        self.elastic.fill(file.elastic);
        self.hosts.fill(file.hosts);
    }
}

impl Settings {
    /// Refuses two options that say how long to train.
    pub fn check_length(&self) -> Result<(), Usage> {
        let Work { steps, epochs, examples, .. } = &self.work;
        let given =
            [("steps", steps.is_some()), ("epochs", epochs.is_some()), ("examples", examples.is_some())];
        let given: Vec<&str> =
            given.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
        match given[..] {
            [first, second, ..] => Err(Usage::new(format!("{first} cannot be used with {second}"))),
            _ => Ok(()),
        }
    }

    /// What these settings make of some jobs: every combination of their values. Workers change fastest. `sizes` are the
    /// samples of a step.
    pub fn apply(&self, jobs: Vec<Job>, sizes: &[Scaling], limit: Limit) -> Result<Vec<Job>> {
        let Self { work, learning, computing, elastic, hosts } = self;
        let lengths = work.lengths();
        let mut jobs = Product { jobs, limit };
        jobs.times("data", &work.data, |job, data| job.data.clone_from(data))?;
        if work.data.is_some() {
            jobs.jobs.iter_mut().try_for_each(Job::fit_to_data)?;
        }
        jobs.times("input", &computing.input, |job, &size| job.input = size.into())?;
        jobs.times("classes", &computing.classes, |job, classes| job.classes = classes.0 as usize)?;
        jobs.times("engine", &computing.engine, |job, engine| job.engine.clone_from(engine))?;
        jobs.times("layout", &computing.layout, |job, &layout| job.layout = layout)?;
        jobs.times("precision", &computing.precision, |job, &precision| job.precision = precision)?;
        jobs.times_values("batch", sizes, |job, &scaling| job.scaling = scaling)?;
        jobs.times("accumulate", &computing.accumulate, |job, passes| job.accumulate = passes.0 as usize)?;
        jobs.times("bucket-mb", &computing.bucket_mb, |job, size| job.exchange.set_bucket_mb(size.0))?;
        jobs.times("overlap", &computing.overlap, |job, overlap| job.exchange.overlap = overlap.0)?;
        jobs.times("compress", &computing.compress, |job, &compress| job.exchange.compress = compress)?;
        jobs.times("pin", &computing.pin, |job, pin| job.pin = pin.0)?;
        jobs.times("seed", &work.seed, |job, &seed| job.seed = seed)?;
        learning.apply(&mut jobs)?;
        jobs.times("shards", &work.shards, |job, shards| job.shards = Some(shards.0 as u32))?;
        jobs.times("threads", &computing.threads, |job, threads| {
            job.threads_asked = Some(threads.0 as usize)
        })?;
        jobs.times_values(lengths.option, &lengths.values, |job, &length| job.length = length)?;
        jobs.times("update", &work.update, |job, &update| job.update = update)?;
        jobs.times("workers", &work.workers, |job, workers| job.workers = workers.0 as u32)?;
        for job in &mut jobs.jobs {
            job.log_samples |= learning.log_samples;
            job.share_gpu |= computing.share_gpu;
            if let Some(simd) = computing.instructions {
                let asked = Numerics { instruction_set: Some(simd.to_string()), ..Numerics::default() };
                job.numerics = Some(asked).filter(|_| job.engine == "cpu").or(job.numerics.take());
                job.instructions_asked = true;
            }
            elastic.apply(job, work.workers.is_some())?;
            hosts.apply(job)?;
        }
        let is_elastic = jobs.jobs.iter().any(|job| job.elastic.is_some());
        if elastic.deal.is_some() && !is_elastic {
            return Err(ElasticSettings::lonely("--deal").into());
        }
        jobs.times("deal", &elastic.deal, |job, &deal| {
            job.elastic.iter_mut().for_each(|elastic| elastic.deal = deal);
        })?;
        if let (Some(faults), Limit::Study(_)) = (&elastic.faults, limit) {
            // The undisturbed case comes first.
            jobs.times_values("faults", &[Faults::default(), faults.clone()], |job, faults| {
                job.faults = faults.clone();
            })?;
        }
        Ok(jobs.jobs)
    }

    /// Adds to the help of each option the value it has where it is not given: what the command says, or what a job has.
    pub fn show_defaults(command: Command, own: &[(&str, String)]) -> Command {
        let usual = usual_values(&Job::new(""));
        command.mut_args(|argument| {
            let is_it = |(id, _): &&(&str, String)| argument.get_id() == *id;
            match own.iter().find(is_it).or_else(|| usual.iter().find(is_it)) {
                Some((_, value)) => {
                    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                    argument.help(format!("{help} [default: {value}]"))
                }
                None => argument,
            }
        })
    }
}

impl Work {
    /// How long to train, and by which option.
    fn lengths(&self) -> Lengths {
        let (option, values) = match self {
            Self { steps: Some(List(steps)), .. } => {
                ("steps", steps.iter().map(|steps| Length::Steps(steps.0)).collect())
            }
            Self { epochs: Some(List(epochs)), .. } => {
                ("epochs", epochs.iter().map(|epochs| Length::Epochs(epochs.0)).collect())
            }
            Self { examples: Some(List(examples)), .. } => {
                ("examples", examples.iter().map(|examples| Length::Examples(examples.0)).collect())
            }
            _ => ("steps", Vec::new()),
        };
        Lengths { option, values }
    }

    /// Samples of a step on each worker.
    pub fn weak_sizes(&self) -> Vec<Scaling> {
        let batches = self.batch.iter().flat_map(|List(batches)| batches);
        batches.map(|batch| Scaling::Weak { batch: batch.0 as usize }).collect()
    }

    /// Samples of a step on all workers together.
    pub fn strong_sizes(&self) -> Vec<Scaling> {
        let batches = self.global_batch.iter().flat_map(|List(batches)| batches);
        batches.map(|batch| Scaling::Strong { global_batch: batch.0 as usize }).collect()
    }
}

impl ElasticSettings {
    fn lonely(option: &str) -> Usage {
        Usage::new(format!("{option} is for workers that come and go; use it with --elastic"))
    }

    /// Makes a job elastic, or changes how it is. One that resumes may have other numbers of workers than it had.
    fn apply(&self, job: &mut Job, says_workers: bool) -> Result<(), Usage> {
        job.faults = self.faults.clone().unwrap_or_default();
        let usual = Bounds { min: 1, max: job.workers };
        match (self.elastic, &mut job.elastic) {
            (Some(WhetherElastic::No), elastic) => *elastic = None,
            (Some(WhetherElastic::Yes), elastic) => {
                let bounds = elastic.as_ref().map_or(usual, Elastic::bounds);
                elastic.get_or_insert_with(|| Elastic::new(bounds));
            }
            (Some(WhetherElastic::Within(Bounds { min, max })), elastic) => {
                let elastic = elastic.get_or_insert_with(|| Elastic::new(usual));
                (elastic.min, elastic.max) = (min, max);
                if !says_workers {
                    job.workers = job.workers.clamp(min, max);
                }
            }
            (None, Some(elastic)) if says_workers => {
                (elastic.min, elastic.max) = (elastic.min.min(job.workers), elastic.max.max(job.workers));
            }
            (None, _) => {}
        }
        let Some(elastic) = &mut job.elastic else {
            let given =
                [("--restarts", self.restarts.is_some()), ("--elastic-wait", self.elastic_wait.is_some())];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((option, _)) => Err(Self::lonely(option)),
                None => Ok(()),
            };
        };
        elastic.restarts = self.restarts.map_or(elastic.restarts, |restarts| restarts.0 as u32);
        elastic.patience_s = self.elastic_wait.map_or(elastic.patience_s, |wait| wait.0);
        Ok(())
    }
}

struct Lengths {
    option: &'static str,
    values: Vec<Length>,
}

impl LearningSettings {
    fn apply(&self, jobs: &mut Product) -> Result<(), Usage> {
        // An optimizer brings its usual rate, so it comes before --lr.
        jobs.times("optimizer", &self.optimizer, |job, &kind| job.learning.set_optimizer(kind))?;
        if self.momentum.is_some() && !jobs.jobs.iter().any(|job| job.learning.optimizer.has_momentum()) {
            return Err(Usage::new("--momentum is for sgd and nesterov; leave it out with --optimizer adam"));
        }
        jobs.times("lr", &self.lr, |job, rate| job.learning.schedule.base = rate.0)?;
        jobs.times("lr-rule", &self.lr_rule, |job, &rule| job.learning.schedule.rule = rule)?;
        jobs.times("lr-batch", &self.lr_batch, |job, batch| job.learning.schedule.reference_batch = batch.0)?;
        jobs.times("schedule", &self.schedule, |job, &kind| job.learning.schedule.kind = kind)?;
        jobs.times("warmup-epochs", &self.warmup_epochs, |job, epochs| {
            job.learning.warmup_epochs = epochs.0
        })?;
        jobs.times("momentum", &self.momentum, |job, momentum| job.learning.momentum = momentum.0)?;
        jobs.times("weight-decay", &self.weight_decay, |job, decay| job.learning.weight_decay = decay.0)?;
        jobs.times("label-smoothing", &self.label_smoothing, |job, part| {
            job.learning.label_smoothing = part.0
        })?;
        jobs.times("bn-momentum", &self.bn_momentum, |job, part| job.learning.bn_momentum = Some(part.0))?;
        jobs.times("augment", &self.augment, |job, &augment| job.augment = augment)
    }
}

/// How many jobs settings may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A training is one job.
    One,
    /// A study has at most so many.
    Study(usize),
}

/// Jobs, multiplied by the values of one option after another.
struct Product {
    jobs: Vec<Job>,
    limit: Limit,
}

impl Product {
    /// Gives every job every value; one that is not given changes nothing.
    fn times<T>(
        &mut self,
        option: &str,
        values: &Option<List<T>>,
        set: impl Fn(&mut Job, &T),
    ) -> Result<(), Usage> {
        let values = values.as_ref().map_or(&[][..], |List(values)| values);
        self.times_values(option, values, set)
    }

    fn times_values<T>(
        &mut self,
        option: &str,
        values: &[T],
        set: impl Fn(&mut Job, &T),
    ) -> Result<(), Usage> {
        if values.is_empty() {
            return Ok(());
        }
        match self.limit {
            Limit::One if values.len() > 1 => {
                return Err(Usage::new(format!(
                    "--{option} has {} values, but `train` runs one job; `bench` runs all combinations of lists",
                    values.len()
                )));
            }
            Limit::Study(most) if self.jobs.len().saturating_mul(values.len()) > most => {
                return Err(too_many(most));
            }
            _ => {}
        }
        let with = |job: &Job, value: &T| {
            let mut job = job.clone();
            set(&mut job, value);
            job
        };
        self.jobs = self.jobs.iter().flat_map(|job| values.iter().map(|value| with(job, value))).collect();
        Ok(())
    }
}

/// A study that is a slip of the keyboard.
pub fn too_many(most: usize) -> Usage {
    Usage::new(format!("these lists make more runs than a study may have, which is at most {most}"))
}

/// What a job has where nothing is given, by the names of the options.
fn usual_values(job: &Job) -> Vec<(&'static str, String)> {
    let yes_no = |choice: bool| if choice { "yes" } else { "no" }.to_owned();
    let adam = OptimizerKind::Adam.usual_rate();
    let elastic = Elastic::new(Bounds { min: 1, max: 1 });
    let Learning { optimizer, schedule, warmup_epochs, momentum, bn_momentum, .. } = job.learning;
    vec![
        ("data", job.data.clone()),
        ("update", job.update.to_string()),
        ("batch", job.batch.to_string()),
        ("seed", job.seed.to_string()),
        ("optimizer", optimizer.to_string()),
        ("lr", format!("{}; with adam {adam}", schedule.base)),
        ("lr_rule", schedule.rule.to_string()),
        ("lr_batch", schedule.reference_batch.to_string()),
        ("schedule", schedule.kind.to_string()),
        ("warmup_epochs", warmup_epochs.to_string()),
        ("momentum", momentum.to_string()),
        ("weight_decay", job.learning.weight_decay.to_string()),
        ("label_smoothing", job.learning.label_smoothing.to_string()),
        ("bn_momentum", bn_momentum.map_or_else(|| "the network's own".into(), |part| part.to_string())),
        ("augment", job.augment.to_string()),
        ("eval_every", "1".to_owned()),
        ("engine", job.engine.clone()),
        ("instructions", "the best that this machine has".to_owned()),
        ("pin", yes_no(job.pin)),
        ("layout", job.layout.to_string()),
        ("precision", job.precision.to_string()),
        ("accumulate", job.accumulate.to_string()),
        ("bucket_mb", job.exchange.bucket_mb().to_string()),
        ("overlap", yes_no(job.exchange.overlap)),
        ("compress", job.exchange.compress.to_string()),
        ("restarts", elastic.restarts.to_string()),
        ("deal", elastic.deal.to_string()),
        ("elastic_wait", elastic.patience_s.to_string()),
    ]
}
