//! What a report says, as sections. Nothing is computed here except units.
//!
//! Cases with different scaling (weak, strong) are in different tables, and each table says which it is. The runs of a training are
//! in one: that it went on with other workers makes no study of scaling.

mod findings;
mod hosts;
mod layers;
mod learning;
mod results;
mod why;

use std::collections::BTreeSet;

use paceline_record::Case;

use crate::numbers::recovery::MOST_EVENTS;
use crate::section::{Block, Medium, Section, Topic};
use crate::words::{self, megabytes};
use crate::{CaseReport, Explained, Report};

pub use layers::{Rows, layers};

/// Most events of a case that a terminal shows.
const EVENTS: usize = 20;

/// Most layers of a case that a document shows.
const LAYERS: usize = 20;

/// What a study is, as its title says it.
pub fn kind(report: &Report) -> &'static str {
    let command = report.command.first().map(String::as_str);
    let workers: BTreeSet<u32> = report.cases.iter().map(|case| case.case.workers).collect();
    match command {
        Some("train") => "Training",
        Some("run") if workers.len() == 1 && report.cases.len() == 1 => "Training run",
        Some("run") if workers.len() == 1 => "Training runs",
        Some("import") if report.cases.len() == 1 => "Imported run",
        Some("import") => "Imported runs",
        _ if workers.len() == 1 => "Benchmark",
        _ => "Scaling study",
    }
}

/// Whether the study is a training, whose loss and accuracy come first.
pub(crate) fn is_training(report: &Report) -> bool {
    report.command.first().is_some_and(|command| command == "train")
}

/// Whether the study was followed from outside: by `paceline run`.
pub(crate) fn is_followed(report: &Report) -> bool {
    report.command.first().is_some_and(|command| command == "run")
}

/// All sections of a report, in the order in which they are read.
pub fn of(report: &Report, medium: Medium) -> Vec<Section> {
    let mut results = Vec::new();
    let scalings = scalings(report);
    if is_training(report) || scalings.len() < 2 {
        let all = Cases::new(report, report.explained.iter().collect());
        results.extend(tables(&all, "", medium));
    } else {
        for scaling in scalings {
            let groups = report.explained.iter().filter(|group| group.key.scaling.as_deref() == scaling);
            let after = format!(", {} scaling", scaling.unwrap_or("unknown"));
            results.extend(tables(&Cases::new(report, groups.collect()), &after, medium));
        }
    }
    let groups = report.explained.iter().enumerate();
    results.extend(groups.filter_map(|(place, group)| why::section(place, group)));
    results.extend(named(report).filter_map(|(case, name)| ranks(report, case, &name)));
    let found = findings::section(report, medium);
    let judged = match medium {
        Medium::Screen => [verdict(report), Some(found), findings::unfinished(report)],
        Medium::Page => [findings::unfinished(report), verdict(report), Some(found)],
    };
    let judged = judged.into_iter().flatten();
    let mut sections: Vec<Section> = match medium {
        Medium::Screen => results.into_iter().chain(judged).collect(),
        Medium::Page => judged.chain(results).collect(),
    };
    let all: Vec<(&CaseReport, String)> = named(report).collect();
    let events = if medium == Medium::Screen { EVENTS } else { MOST_EVENTS };
    sections.extend(all.iter().filter_map(|(case, name)| members(case, name, events)));
    sections.extend(all.iter().filter_map(|(case, name)| hosts::section(case, name)));
    sections.extend(all.iter().filter_map(|(case, name)| source(case, name)));
    if medium == Medium::Page {
        sections.extend(all.iter().filter_map(|(case, name)| profile(case, name)));
        sections.push(about(report));
    }
    if is_followed(report) {
        // What a script of somebody else's trains on need not be images.
        sections = sections.into_iter().map(|section| section.reworded(words::of_examples)).collect();
    }
    sections
}

/// The result in a few lines; `None` if there is nothing to compare or to test.
fn verdict(report: &Report) -> Option<Section> {
    let lines = words::verdict(report);
    (!lines.is_empty()).then(|| Section::new(Topic::Verdict, "Result").list(lines))
}

/// The cases of a table, by group and workers, each with the name of its group.
struct Cases<'a> {
    report: &'a Report,
    groups: Vec<&'a Explained>,
    all: Vec<(&'a CaseReport, String)>,
}

impl<'a> Cases<'a> {
    fn new(report: &'a Report, groups: Vec<&'a Explained>) -> Self {
        let all = groups.iter().flat_map(|group| labelled(report, group)).collect();
        Self { report, groups, all }
    }

    /// Why groups among them have no speed-ups, one sentence each.
    fn incomparable(&self) -> Vec<String> {
        let one = self.groups.len() == 1;
        let sentence = |group: &&Explained| {
            let why = words::incomparable(self.report, group)?;
            let whose = if one { String::new() } else { format!("{}: ", group.key.label()) };
            Some(format!("{whose}no speed-ups and no waterfall: {why}"))
        };
        self.groups.iter().filter_map(sentence).collect()
    }

    /// Those that finished.
    fn done(&self) -> impl Iterator<Item = (&'a CaseReport, &str)> {
        let all = self.all.iter().map(|(case, label)| (*case, label.as_str()));
        all.filter(|(case, _)| case.is_told())
    }
}

/// The cases of a group with its name.
fn labelled<'a>(report: &'a Report, group: &'a Explained) -> impl Iterator<Item = (&'a CaseReport, String)> {
    let cases = group.cases.iter().filter_map(|&place| report.cases.get(place));
    cases.map(|case| (case, group.key.label()))
}

/// The cases of a report, by group, with a name for each.
pub(crate) fn named(report: &Report) -> impl Iterator<Item = (&CaseReport, String)> {
    let cases = report.explained.iter().flat_map(|group| labelled(report, group));
    cases.map(|(case, label)| (case, format!("{label}, {}", case.workers_said())))
}

/// The kinds of scaling in a report: each gets its own tables.
fn scalings(report: &Report) -> Vec<Option<&str>> {
    let mut scalings: Vec<Option<&str>> = Vec::new();
    for group in &report.explained {
        let scaling = group.key.scaling.as_deref();
        if !scalings.contains(&scaling) {
            scalings.push(scaling);
        }
    }
    scalings
}

/// Everything about these cases, if any finished; titles end in what sets them apart.
fn tables(cases: &Cases<'_>, after: &str, medium: Medium) -> Vec<Section> {
    // Why cases did not finish is told elsewhere.
    if cases.done().next().is_none() {
        return Vec::new();
    }
    let learning = learning::table(cases)
        .map(|table| Section::new(Topic::Cases, format!("Learning{after}")).tables([table]));
    let is_training = is_training(cases.report);
    let title = if is_training && learning.is_some() { "Speed" } else { "Results" };
    let mut results = Section::new(Topic::Cases, format!("{title}{after}"));
    let scales =
        !is_training && cases.all.iter().any(|(case, _)| case.case.workers != cases.all[0].0.case.workers);
    let scales = scales.then(|| meaning(cases.groups[0].key.scaling.as_deref(), medium));
    let common: Vec<String> = scales.into_iter().chain(describe(&cases.all)).collect();
    if !common.is_empty() {
        results = results.say(common.join(", "));
    }
    results = results.tables([results::cases(cases)]);
    if !is_training {
        results = results.list(cases.incomparable());
    }
    let mut sections = vec![results];
    if cases.done().any(|(case, _)| case.phases_s.is_some()) {
        let phases = Section::new(Topic::Cases, format!("Phases{after}")).detail();
        sections.push(phases.say("Mean milliseconds per step of one rank.").tables([results::phases(cases)]));
    }
    let steps = Section::new(Topic::Cases, format!("Steps{after}")).detail();
    sections.push(steps.tables([results::steps(cases)]));
    let place = if is_training { 0 } else { sections.len() };
    sections.splice(place..place, learning);
    sections
}

/// What the number of workers changes.
fn meaning(scaling: Option<&str>, medium: Medium) -> String {
    let name = scaling.unwrap_or("unknown");
    let meaning = match scaling {
        Some("weak") => " (the batch per worker is the same for any number of workers)",
        Some("strong") => " (the global batch is the same for any number of workers)",
        _ => " (as the source of the study says it)",
    };
    let meaning = if medium == Medium::Page { meaning } else { "" };
    format!("{name} scaling{meaning}")
}

/// What all cases of a table have in common.
fn describe(cases: &[(&CaseReport, String)]) -> impl Iterator<Item = String> {
    let common = |of: &dyn Fn(&Case) -> Option<String>| -> Option<String> {
        let first = of(&cases.first()?.0.case)?;
        cases.iter().all(|(case, _)| of(&case.case).as_deref() == Some(&first)).then_some(first)
    };
    let batch = |case: &Case| match case.global_batch {
        Some(global) => Some(format!("global batch {global}")),
        None => case.batch_per_worker.map(|batch| format!("batch {batch} per worker")),
    };
    let threads = |case: &Case| {
        let threads = case.threads?;
        let noun = if threads == 1 { "thread" } else { "threads" };
        Some(format!("{threads} {noun} per worker"))
    };
    let parts = [
        common(&batch),
        common(&threads),
        common(&|case| case.settings.get("data").cloned()),
        common(&|case| case.input.clone()),
        common(&|case| case.engine.clone()),
        common(&|case| case.layout.clone()),
        common(&|case| case.precision.clone()),
    ];
    parts.into_iter().flatten()
}

/// What happened to the members of an elastic case.
fn members(case: &CaseReport, name: &str, events: usize) -> Option<Section> {
    let sentences = words::recovery(case);
    let table = words::event_table(case, events);
    let section = Section::new(Topic::Case, format!("{name}: members"));
    (!sentences.is_empty() || table.is_some()).then(|| section.list(sentences).tables(table))
}

/// What the ranks of a case say about their times, and the times of each, if it was followed.
fn ranks(report: &Report, case: &CaseReport, name: &str) -> Option<Section> {
    let table = if is_followed(report) { words::rank_table(case) } else { None };
    let section = Section::new(Topic::Case, format!("{name}: ranks"));
    (table.is_some() || !case.notes.is_empty()).then(|| section.list(case.notes.clone()).tables(table))
}

/// What the source of an imported case says beyond its steps.
fn source(case: &CaseReport, name: &str) -> Option<Section> {
    let origin = case.origin.as_ref()?;
    let from = origin.format.map_or_else(String::new, |format| format!(", from {}", format.name()));
    let notes = origin.notes.iter().map(|note| format!("note: {note}"));
    let section = Section::new(Topic::Case, format!("{name}{from}"));
    Some(section.list(origin.sentences().into_iter().chain(notes)).tables(words::origin_tables(case)))
}

/// The slowest layers of a case that was profiled.
fn profile(case: &CaseReport, name: &str) -> Option<Section> {
    let section = Section::new(Topic::Case, format!("{name}: layers")).detail();
    let table = || layers(&case.layers, Rows::Top(LAYERS));
    (!case.layers.is_empty()).then(|| section.say("Rank 0, slowest first.").tables([table()]))
}

/// The command and the machine.
fn about(report: &Report) -> Section {
    let machine = &report.machine;
    let facts = [
        ("processor", machine.cpu.clone()),
        ("cores", machine.cores.map(|cores| cores.to_string())),
        ("memory", machine.memory.map(|bytes| format!("{} MB", megabytes(bytes)))),
        ("kernel", machine.kernel.clone()),
        ("engine", machine.engine.clone()),
    ];
    let known = facts.into_iter().filter_map(|(name, fact)| Some((name.into(), fact?)));
    Section::new(Topic::About, "Command and machine")
        .with(Block::Code(words::command(&report.command)))
        .with(Block::Facts(known.collect()))
}

#[cfg(test)]
mod tests;
