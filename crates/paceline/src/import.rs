//! `paceline import`: other people's logs and traces become a study.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use paceline_import::ranks::Told;
use paceline_import::{source, write};
use paceline_lab::Held;

use crate::outcome::Show;
use crate::report;

/// Options of `paceline import`.
#[derive(Args)]
pub struct Options {
    /// Files, or folders that hold the ranks of a run: PyTorch traces, nvprof and Nsight Systems profiles, Horovod timelines,
    /// TensorBoard event files, tf_cnn_benchmarks and metric.log logs, nvidia-smi's output
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Folder of the study
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// What to call the network, where the files do not say
    #[arg(long, value_name = "NAME", default_value = "imported")]
    model: String,
    /// Samples a step on each worker, where the files do not say
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    batch: Option<u64>,
    /// Replace the study that the folder holds
    #[arg(long)]
    fresh: bool,
    /// Print report.json to standard output, and nothing else
    #[arg(long)]
    json: bool,
}

/// Imports and reports.
pub fn run(options: &Options) -> Result<()> {
    let told = Told { model: options.model.clone(), batch: options.batch };
    let runs = source::import(&options.paths, &told)?;
    let command: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let held = if options.fresh { Held::Replace } else { Held::Resume };
    let (folder, study) = write::write(&runs, &command, &options.out, held)?;
    report::render(&folder, &study, Show::json(options.json))?;
    Ok(())
}
