//! `paceline report`: the tables and files of a study that has run, or what sets several of them apart.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use paceline_lab::{LabError, Report, Status, Study, StudyFolder, compare, html, terminal, write_whole};

use crate::outcome::{self, Show, Usage, print, say};
use crate::screen::screen;

/// Options of `paceline report`.
#[derive(Args)]
pub struct Options {
    /// A study's folder, or several to compare with the first [default: the last study-N here]
    #[arg(value_name = "DIR")]
    studies: Vec<PathBuf>,
    /// With several studies: write the comparison as a page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print JSON to standard output, and nothing else
    #[arg(long)]
    json: bool,
}

/// Reports one study again, or compares several.
pub fn run(options: &Options) -> Result<()> {
    let show = Show::json(options.json);
    if options.html.is_some() && options.studies.len() < 2 {
        let why =
            "--html writes a comparison: name at least two studies; a study's own page is its report.html";
        return Err(Usage::new(why).into());
    }
    match &options.studies[..] {
        studies @ [_, _, ..] => compare(studies, options.html.as_deref(), show),
        [one] => report_one(one, show),
        _ => {
            let latest = StudyFolder::latest(Path::new(""));
            let none = "there is no study-N here; name the folder of a study, or run `paceline bench`";
            report_one(&latest.ok_or_else(|| Usage::new(none))?, show)
        }
    }
}

/// Reports the study of a folder again. Of one that is running it tells what is there; who runs it will write the report.
fn report_one(path: &Path, show: Show) -> Result<()> {
    let (mut folder, study) = StudyFolder::open(path)?;
    if let Err(busy) = folder.lock() {
        let report = folder.analyse(&study);
        if !report.running {
            return Err(busy.into());
        }
        print_report(&report, show)?;
        let later = format!("\nThe report will be {} when the study ends.\n", page(&folder).display());
        return if show == Show::Json { Ok(()) } else { print(&later) };
    }
    let report = render(&folder, &study, show)?;
    Ok(outcome::check_done(&report).inspect_err(|_| say_unfinished(&report))?)
}

/// Says which cases of a study did not finish.
fn say_unfinished(report: &Report) {
    let bad = report.cases.iter().filter(|case| case.status != Status::Done || case.reason.is_some());
    let mut named: Vec<String> = bad
        .map(|case| {
            let how = if case.status == Status::Done { "in part" } else { case.status.name() };
            format!("{} on {} ({how})", case.case.model, case.workers_said())
        })
        .collect();
    if report.missing > 0 {
        named.push(format!("{} not begun", report.missing));
    }
    let all = report.cases.len() as u32 + report.missing;
    say(&format!("error: not all of {all} cases are done: {}", named.join(", ")));
}

/// Analyses a study and writes TensorBoard's files, whose logs are read once for both; whether these could be written comes back
/// beside the report.
pub fn analyse(folder: &StudyFolder, study: &Study) -> (Report, Result<(), LabError>) {
    let mut cases = Vec::new();
    let mut written = Ok(());
    for logs in (0..study.places()).filter_map(|place| folder.read_case(study, place)) {
        written = written.and_then(|()| folder.write_tensorboard(&logs));
        cases.push(logs.report());
    }
    (Report::new(study, cases), written)
}

/// Analyses a study, writes its report in all forms, and prints it.
pub fn render(folder: &StudyFolder, study: &Study, show: Show) -> Result<Report> {
    let (report, written) = analyse(folder, study);
    // What could be read is shown even where nothing can be written.
    print_report(&report, show)?;
    written?;
    folder.write_pages(study, &report)?;
    point_to(folder, show)?;
    Ok(report)
}

/// Compares studies with the first. Nothing is written into their folders.
fn compare(paths: &[PathBuf], page: Option<&Path>, show: Show) -> Result<()> {
    let read = |path: &PathBuf| -> Result<Report> {
        let (folder, study) = StudyFolder::open(path)?;
        Ok(folder.analyse(&study))
    };
    let reports: Vec<Report> = paths.iter().map(read).collect::<Result<_>>()?;
    let comparisons = compare::compare_all(&reports);
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    if let Some(page) = page {
        let text = html::render_comparison(&reports, &comparisons, &names);
        write_whole(page, |out| out.write_all(text.as_bytes()))?;
    }
    match (show, &comparisons[..]) {
        (Show::Json, [two]) => return outcome::print_json(two),
        (Show::Json, more) => return outcome::print_json(&more),
        (Show::Text, _) => {}
    }
    for (place, (comparison, name)) in comparisons.iter().zip(&names[1..]).enumerate() {
        let sections = compare::sections(comparison, &[names[0].clone(), name.clone()]);
        let gap = if place > 0 { "\n" } else { "" };
        print(&format!("{gap}{}", terminal::render(&sections, screen())))?;
    }
    match page {
        Some(page) => print(&format!("\nPage: {}\n", page.display())),
        None => Ok(()),
    }
}

/// Says where the report is.
pub fn point_to(folder: &StudyFolder, show: Show) -> Result<()> {
    if show == Show::Json {
        return Ok(());
    }
    print(&format!("\nReport: {}\n", page(folder).display()))
}

/// The page of a study's report.
pub fn page(folder: &StudyFolder) -> PathBuf {
    folder.path().join("report.html")
}

/// Prints a report, as a table or as what report.json holds.
pub fn print_report(report: &Report, show: Show) -> Result<()> {
    match show {
        Show::Json => outcome::print_json(report),
        Show::Text => print(&terminal::render_report(report, screen())),
    }
}
