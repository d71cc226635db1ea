//! Writes imported runs as a study folder, so that everything that reads studies can read them.

use std::fs;
use std::path::Path;

use paceline_lab::origin::ORIGIN_FILE;
use paceline_lab::{Held, LabError, Machine, Planned, SCHEMA, Study, StudyFolder};
use paceline_record::log::{LauncherWriter, RankWriter};
use paceline_record::{Exit, LauncherEvent, LauncherHeader, Nanos, Outcome, Rank, RankEvent, RankHeader};

use super::Imported;

/// Writes named runs into a study folder that is new or empty, or that holds a study, for which `held` says what to
/// do. `command` is the command line for `study.json`.
pub fn write(
    runs: &[(String, Imported)],
    command: &[String],
    out: &Path,
    held: Held,
) -> Result<(StudyFolder, Study), LabError> {
    for (name, run) in runs {
        check(run).map_err(|why| LabError::Contradiction { folder: out.join(name), why })?;
    }
    let study = Study {
        schema: SCHEMA,
        program: env!("CARGO_PKG_VERSION").into(),
        command: command.to_vec(),
        // When and where the runs took place is for their sources to say.
        date: None,
        host: None,
        machine: Machine::default(),
        cases: plan(runs),
    };
    let folder = StudyFolder::start(out, &study, held)?;
    for (planned, (_, run)) in study.cases.iter().zip(runs) {
        // A run is written completely or not at all, even if the program is killed.
        let path = folder.create_case(planned)?;
        let draft = out.join(".draft-case");
        if draft.exists() {
            fs::remove_dir_all(&draft).map_err(LabError::io("remove", &draft))?;
        }
        fs::create_dir(&draft).map_err(LabError::io("create", &draft))?;
        write_case(run, &draft)?;
        fs::rename(&draft, &path).map_err(LabError::io("write", &path))?;
    }
    Ok((folder, study))
}

/// Whether the logs would be accepted by their reader.
fn check(run: &Imported) -> Result<(), String> {
    if run.progress.is_some() {
        return Ok(());
    }
    if run.ranks.len() != run.case.workers as usize || run.ranks.is_empty() {
        return Err(format!("{} ranks of a run of {} workers", run.ranks.len(), run.case.workers));
    }
    for (place, rank) in run.ranks.iter().enumerate() {
        if rank.rank != Rank(place as u32) {
            return Err(format!("rank {} is in the place of rank {place}", rank.rank));
        }
        if rank.steps.is_empty() || rank.steps.len() != run.ranks[0].steps.len() {
            return Err(format!(
                "rank {place} has {} steps, rank 0 has {}",
                rank.steps.len(),
                run.ranks[0].steps.len()
            ));
        }
    }
    Ok(())
}

fn plan(runs: &[(String, Imported)]) -> Vec<Planned> {
    let mut planned: Vec<Planned> = Vec::with_capacity(runs.len());
    for (place, (name, run)) in runs.iter().enumerate() {
        let name = folder_name(name);
        let is_free =
            |name: &String| name != "tensorboard" && planned.iter().all(|other| other.folder != *name);
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let folder = [name.clone()].into_iter().chain(numbered).find(is_free);
        planned.push(Planned {
            folder: folder.expect("invariant: numbers do not end"),
            place,
            repeat: 1,
            case: run.case.clone(),
            steps: match &run.progress {
                Some(progress) => progress.steps(),
                None => run.ranks.first().map_or(0, |rank| rank.steps.len() as u64),
            },
        });
    }
    planned
}

/// A name usable for a folder: without dots it cannot collide with the files of a study folder.
fn folder_name(name: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
    let name: String = name.chars().map(|letter| if plain(letter) { letter } else { '-' }).collect();
    if name.is_empty() { "run".into() } else { name }
}

fn write_case(run: &Imported, folder: &Path) -> Result<(), LabError> {
    let steps = || run.ranks.iter().flat_map(|rank| &rank.steps);
    let begin = steps().map(|step| step.begin).min().unwrap_or_default();
    let end = steps().map(|step| step.end).max().unwrap_or_default();
    for rank in &run.ranks {
        write_rank(run, rank, folder)?;
    }
    let header = LauncherHeader { window: true, ..LauncherHeader::new(run.case.clone()) };
    let mut log = LauncherWriter::create(folder, &header)?.collecting();
    for rank in run.ranks.iter().map(|rank| rank.rank) {
        log.append(&LauncherEvent::Spawn { rank, at: begin })?;
    }
    for rank in run.ranks.iter().map(|rank| rank.rank) {
        log.append(&LauncherEvent::Reap { rank, at: end, exit: Exit::Code(0) })?;
    }
    log.append(&LauncherEvent::Over { outcome: Outcome::Done, reason: None })?;
    log.flush()?;
    let origin = folder.join(ORIGIN_FILE);
    fs::write(&origin, run.origin().to_bytes()).map_err(LabError::io("write", origin))
}

fn write_rank(run: &Imported, rank: &super::ImportedRank, folder: &Path) -> Result<(), LabError> {
    let header = RankHeader::new(rank.rank, run.case.workers);
    let moment = |moment: Option<Nanos>| moment.unwrap_or_default();
    let mut log = RankWriter::create(folder, &header)?.collecting();
    log.append(&RankEvent::Main { at: moment(rank.steps.first().map(|step| step.begin)), pid: 0 })?;
    for step in &rank.steps {
        log.append(&RankEvent::Step(step.clone()))?;
    }
    log.append(&RankEvent::Done {
        at: moment(rank.steps.last().map(|step| step.end)),
        peak_resident: None,
        shared: None,
        peak_device: rank.peak_device,
    })?;
    Ok(log.flush()?)
}

#[cfg(test)]
mod tests;
