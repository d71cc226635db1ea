//! `paceline explain`: what somebody else's numbers mean.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use paceline_lab::explain::{self, Meaning, Work};

use crate::outcome::{Usage, print};

/// Options of `paceline explain`.
#[derive(Args)]
pub struct Options {
    /// A file with tables: Markdown, CSV or TSV, or a whole page; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What a column means, such as `speed=rate-global`; may be given again
    #[arg(long, value_name = "COLUMN=MEANING", value_parser = parse_map)]
    map: Vec<(String, Meaning)>,
    /// Steps of a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Examples of a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    examples: Option<u64>,
    /// Examples of a step of one worker
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// Epochs of a run
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Whether steps are divided among the workers, or each worker does all of them
    #[arg(long)]
    work: Option<WorkOption>,
    /// Print JSON to standard output, and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkOption {
    Divided,
    PerWorker,
}

fn parse_map(text: &str) -> Result<(String, Meaning), String> {
    // Headings may hold `=`, meanings do not.
    let (column, meaning) = text.rsplit_once('=').ok_or("wanted: COLUMN=MEANING")?;
    Ok((column.trim().into(), meaning.trim().parse()?))
}

/// Explains a file, by what it holds.
pub fn run(options: &Options) -> Result<()> {
    let bytes = read(&options.file)?;
    explain_tables(&String::from_utf8_lossy(&bytes), options)
}

fn explain_tables(text: &str, options: &Options) -> Result<()> {
    let Options { map, steps, examples, batch, epochs, .. } = options;
    let work = options.work.map(|work| match work {
        WorkOption::Divided => Work::Divided,
        WorkOption::PerWorker => Work::PerWorker,
    });
    let (steps, examples, batch, epochs) = (*steps, *examples, *batch, *epochs);
    let told = explain::Options { map: map.clone(), steps, examples, batch, epochs, work };
    let found = explain::explain_text(text, &told);
    let found = found.map_err(|error| Usage::new(format!("{}: {error}", options.file.display())))?;
    if options.json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&found)?));
    }
    print(&explain::render(&found))
}

/// A file's bytes, up to one more than a table may have.
fn read(path: &Path) -> Result<Vec<u8>, Usage> {
    let most = explain::LONGEST as u64 + 1;
    let mut bytes = Vec::new();
    let done = if path == Path::new("-") {
        io::stdin().take(most).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    done.map_err(|error| Usage::new(format!("cannot read {}: {error}", path.display())))?;
    Ok(bytes)
}
