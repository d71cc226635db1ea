//! `paceline report`: the tables and files of a study that has run, or what sets two of them apart.

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use paceline_lab::{Report, Study, StudyFolder, compare, terminal};

use crate::colour;
use crate::outcome::{Usage, print};

/// Options of `paceline report`.
#[derive(Args)]
pub struct Options {
    /// A study's folder, or two to compare [default: the last study-N here]
    #[arg(value_name = "DIR", num_args = 0..=2)]
    studies: Vec<PathBuf>,
    /// Print JSON to standard output, and nothing else
    #[arg(long)]
    json: bool,
}

/// Reports one study anew, or compares two.
pub fn run(options: &Options) -> Result<()> {
    match &options.studies[..] {
        [before, after] => compare_two(before, after, options.json),
        [one] => report_one(one, options.json),
        _ => {
            let latest = StudyFolder::latest(Path::new(""));
            let none = "there is no study-N here; name the folder of a study, or run `paceline bench`";
            report_one(&latest.ok_or_else(|| Usage::new(none))?, options.json)
        }
    }
}

/// Reports the study of a folder anew.
fn report_one(path: &Path, json: bool) -> Result<()> {
    let (mut folder, study) = StudyFolder::open(path).map_err(Usage::new)?;
    folder.lock().map_err(Usage::new)?;
    render(&folder, &study, json)
}

/// Analyses a study, writes its report in all forms, and prints it.
pub fn render(folder: &StudyFolder, study: &Study, json: bool) -> Result<()> {
    let mut cases = Vec::new();
    let mut written = Ok(());
    for logs in (0..study.places()).filter_map(|place| folder.read_case(study, place)) {
        written = written.and_then(|()| folder.write_tensorboard(&logs));
        cases.push(logs.report());
    }
    let report = Report::new(study, cases);
    // What could be read is shown even where nothing can be written.
    print_report(&report, json)?;
    written?;
    folder.write_pages(study, &report)?;
    point_to(folder, json)
}

fn compare_two(before: &Path, after: &Path, json: bool) -> Result<()> {
    let read = |path: &Path| -> Result<Report> {
        let (folder, study) = StudyFolder::open(path).map_err(Usage::new)?;
        Ok(folder.analyse(&study))
    };
    let comparison = compare::compare(&read(before)?, &read(after)?);
    if json {
        return print(&format!("{}\n", serde_json::to_string_pretty(&comparison)?));
    }
    let names = [before, after].map(|path| path.display().to_string());
    print(&terminal::render_comparison(&comparison, &names, colours()))
}

/// Says where the page lies.
pub fn point_to(folder: &StudyFolder, json: bool) -> Result<()> {
    if json {
        return Ok(());
    }
    print(&format!("\nThe report lies in {}\n", folder.path().join("report.html").display()))
}

/// Prints a report, as a table or as what report.json holds.
pub fn print_report(report: &Report, json: bool) -> Result<()> {
    match json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(report)?)),
        false => print(&terminal::render_report(report, colours())),
    }
}

fn colours() -> terminal::Colours {
    if colour::wanted(stdout().is_terminal()) { terminal::Colours::Ansi } else { terminal::Colours::None }
}
