//! `paceline status` and `paceline scale`: a running training is asked how it goes, or for another number of workers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use paceline_train::control::{self, Answer, HostStatus, MemberStatus, Request, Status};

use crate::outcome::{self, Show, Usage, print_json};

/// Options of `paceline status`.
#[derive(Args, Clone, Debug)]
pub struct StatusOptions {
    /// Folder of the training
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `paceline scale`.
#[derive(Args, Clone, Debug)]
pub struct ScaleOptions {
    /// Folder of the training
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Workers that there should be, up to MAX of --elastic MIN:MAX
    #[arg(value_name = "N")]
    workers: u32,
}

/// Says how a training goes.
pub fn status(options: &StatusOptions) -> Result<()> {
    let status = match ask(&options.folder, &Request::Status)? {
        Answer::Status(status) => status,
        Answer::Refused(why) => return Err(Usage::new(why).into()),
        Answer::Scaled { .. } => unreachable!("invariant: that was not asked"),
    };
    match Show::json(options.json) {
        Show::Json => print_json(&status),
        Show::Text => outcome::print(&describe(&status)),
    }
}

/// Asks a training for another number of workers.
pub fn scale(options: &ScaleOptions) -> Result<()> {
    match ask(&options.folder, &Request::Scale(options.workers))? {
        Answer::Scaled { workers, means } => {
            let count = if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
            outcome::print(&format!("going on with {count} from the next step on: {means}\n"))
        }
        Answer::Refused(why) => Err(Usage::new(why).into()),
        Answer::Status(_) => unreachable!("invariant: that was not asked"),
    }
}

/// Asks the training in a folder, or in a folder of its study.
fn ask(folder: &Path, request: &Request) -> Result<Answer> {
    if !folder.is_dir() {
        return Err(Usage::new(format!("there is no folder {}", folder.display())).into());
    }
    if let Some(answer) = control::ask(folder, request)? {
        return Ok(answer);
    }
    let mut cases: Vec<PathBuf> =
        fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    cases.sort();
    for case in cases.iter().filter(|case| case.join(control::SOCKET).exists()) {
        if let Some(answer) = control::ask(case, request)? {
            return Ok(answer);
        }
    }
    Err(Usage::new(format!(
        "no training with --elastic or --hosts is running in {}; `paceline report DIR` tells about one that has ended",
        folder.display()
    ))
    .into())
}

fn describe(status: &Status) -> String {
    let Status { model, step, steps, workers, min, max, generation, waits, seconds, members, events, .. } =
        status;
    let asked = if *workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
    let rate = status.images_per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
    let mut text = format!(
        "{model}: step {step} of {steps}, {rate} images/s, {seconds:.0} s since the start\n\
         {asked} asked for ({min} to {max}), roster {generation}\n"
    );
    if *waits {
        text.push_str(&format!("waiting: there are fewer than {min} workers\n"));
    }
    if !status.hosts.is_empty() {
        text.push_str("\nhost  workers  shards  state      name\n");
        for HostStatus { host, name, workers, shards, state } in &status.hosts {
            text.push_str(&format!("{host:>4} {workers:>8} {shards:>7}  {state:<9}  {name}\n"));
        }
    }
    let here = if status.hosts.is_empty() { "" } else { " (of this host)" };
    text.push_str(&format!("\nmember     pid  rank  state{here}\n"));
    for MemberStatus { member, pid, rank, state } in members {
        let rank = rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
        text.push_str(&format!("{member:>6} {pid:>7} {rank:>5}  {state}\n"));
    }
    if !events.is_empty() {
        text.push_str("\nlast events\n");
        events.iter().for_each(|event| text.push_str(&format!("{:>8.1} s  {}\n", event.seconds, event.what)));
    }
    text
}
