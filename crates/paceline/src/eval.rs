//! `paceline eval`: how good weights are.

use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use paceline_engine::{Layout, Numerics, Precision};
use paceline_lab::write_whole;
use paceline_train::Job;
use paceline_train::checkpoint::{self, Checkpoint, Description, Tensor, Weights};
use paceline_train::data::Data;
use paceline_train::evaluate::{Answer, Likeness, Picture, Question, evaluate, sheet};
use serde_json::json;

use crate::machine;
use crate::outcome::{self, Show, Usage, print, say};

/// Options of `paceline eval`.
#[derive(Args)]
pub struct Options {
    /// A training's folder, one of its checkpoints, or a weights.safetensors
    #[arg(value_name = "CHECKPOINT")]
    path: PathBuf,
    /// The data whose test pictures are used, as for `paceline train` [default: what it was trained on]
    #[arg(long)]
    data: Option<String>,
    /// Pictures at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Threads [default: the cores]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Seed of synthetic pictures [default: the training's]
    #[arg(long)]
    seed: Option<u64>,
    /// What computes: cpu or cuda
    #[arg(long, default_value = "cpu")]
    engine: String,
    /// Order of dimensions: nhwc or nchw [default: the training's]
    #[arg(long)]
    layout: Option<Layout>,
    /// fp32, tf32 or bf16 [default: the training's, where the engine has it]
    #[arg(long)]
    precision: Option<Precision>,
    /// Of an autoencoder: where originals beside their reconstructions go, as PNG
    #[arg(long, value_name = "FILE", default_value = "reconstructions.png")]
    picture: PathBuf,
    /// Print JSON to standard output, and nothing else
    #[arg(long)]
    json: bool,
}

/// Pictures on a sheet, and how many in a row.
const PICTURES: usize = 16;
const COLUMNS: usize = 8;

/// Weights, their network, and what is known of their training.
struct Subject {
    weights: Vec<Tensor>,
    network: Description,
    job: Option<Job>,
    numerics: Option<Numerics>,
}

/// Evaluates.
pub fn run(options: &Options) -> Result<()> {
    let Subject { weights, network, job, numerics } = read(&options.path)?;
    let job = job.as_ref();
    let data = options.data.clone().or_else(|| Some(job?.data.clone())).ok_or_else(|| {
        Usage::new(format!(
            "{} does not say what it was trained on; name the data with --data",
            options.path.display()
        ))
    })?;
    let data: Data = data.parse()?;
    let classes = network.classes;
    let held = data.classes()?;
    if held != classes && !data.is_synthetic() {
        return Err(Usage::new(format!(
            "{data} has {held} classes, but {} was trained for {classes}; use data with the same classes",
            options.path.display()
        ))
        .into());
    }
    let is_own = job.is_some_and(|job| job.engine == options.engine);
    // The CPU has no tf32, which a training on a GPU may have used.
    let trained = job.map(|job| job.precision).filter(|precision| is_own || *precision == Precision::Bf16);
    let precision = options.precision.or(trained).unwrap_or(Precision::Fp32);
    let is_same = is_own && job.is_some_and(|job| job.precision == precision);
    let on_cpu = options.engine == "cpu";
    let recorded = numerics.as_ref().filter(|_| is_own && on_cpu).and_then(|own| own.instruction_set.clone());
    let question = Question {
        path: &options.path,
        weights,
        network: &network,
        data: &data,
        seed: options.seed.or(job.map(|job| job.seed)).unwrap_or(0),
        engine: &options.engine,
        threads: options.threads.map_or_else(machine::granted, |threads| threads as usize),
        layout: options.layout.or(job.map(|job| job.layout)).unwrap_or(Layout::Nhwc),
        precision,
        // What a GPU has measured holds for the batch of the training.
        numerics: numerics.filter(|_| is_same && on_cpu),
        batch: options.batch as usize,
        keep: PICTURES,
    };
    let bar = stderr().is_terminal().then(|| indicatif::ProgressBar::new(1000));
    let answer = evaluate(question, &mut |done| {
        if let Some(bar) = &bar {
            bar.set_position((1000.0 * done) as u64);
        }
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if let (Some(here), Some(recorded)) = (&answer.instructions, recorded)
        && *here != recorded
    {
        say(&format!(
            "computed with {here}; the training was computed with {recorded}, which rounds sums otherwise"
        ));
    }
    if let Some(Likeness { pairs, .. }) = &answer.likeness {
        write_png(&options.picture, &sheet(pairs, COLUMNS))?;
        say(&format!("originals above their reconstructions: {}", options.picture.display()));
    }
    show(&answer, &Tested { model: &network.model, data: &data, precision }, Show::json(options.json))
}

/// Reads weights: of a checkpoint with what it knows of its training, or of a file of their own.
fn read(path: &Path) -> Result<Subject> {
    if path.is_file() {
        let Weights { tensors, network } = checkpoint::read_weights(path)?;
        let network = network.ok_or_else(|| {
            Usage::new(format!("{} does not say which network it belongs to", path.display()))
        })?;
        return Ok(Subject { weights: tensors, network, job: None, numerics: None });
    }
    let Checkpoint { job, weights, numerics, .. } = Checkpoint::read(path)?;
    Ok(Subject { weights, network: job.network(), job: Some(job), numerics: Some(numerics.engine) })
}

/// What was tested, and how.
struct Tested<'a> {
    model: &'a str,
    data: &'a Data,
    precision: Precision,
}

fn show(answer: &Answer, tested: &Tested<'_>, show: Show) -> Result<()> {
    let Tested { model, data, precision } = tested;
    let Answer { instructions, examples, loss, correct, likeness } = answer;
    let accuracy = correct.map(|correct| correct as f64 / (*examples).max(1) as f64);
    if show == Show::Json {
        let psnr = likeness.as_ref().map(|likeness| likeness.psnr);
        return outcome::print_json(&json!({
            "model": model, "data": data.to_string(), "precision": precision, "instructions": instructions,
            "examples": examples, "loss": loss, "correct": correct, "accuracy": accuracy, "psnr_db": psnr,
        }));
    }
    let with = instructions.as_ref().map_or_else(String::new, |set| format!(" with {set}"));
    let mut text = format!(
        "{model} on {examples} test pictures of {data}, in {precision}{with}\n  loss      {loss:.4}\n"
    );
    if let Some(accuracy) = accuracy {
        text.push_str(&format!("  accuracy  {:.2} %\n", 100.0 * accuracy));
    }
    if let Some(likeness) = likeness {
        text.push_str(&format!("  PSNR      {:.2} dB, the mean over the pictures\n", likeness.psnr));
    }
    print(&text)
}

/// Writes a picture, whole or not at all.
fn write_png(path: &Path, picture: &Picture) -> Result<()> {
    let (height, width) = picture.size;
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().and_then(|mut writer| writer.write_image_data(&picture.pixels))?;
    Ok(write_whole(path, |out| out.write_all(&bytes))?)
}
