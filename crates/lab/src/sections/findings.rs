//! The findings, and the cases that did not finish.

use super::{is_followed, is_training, named};
use crate::finding::SHOWN;
use crate::section::{Block, Item, Medium, Section, Topic};
use crate::{Report, Status, words};

/// The findings, largest loss first; a screen shows the first few.
pub fn section(report: &Report, medium: Medium) -> Section {
    let mut section = Section::new(Topic::Findings, "Findings");
    let all = &report.findings;
    let shown = if medium == Medium::Screen { all.len().min(SHOWN) } else { all.len() };
    let item = |finding: &crate::Finding| Item { text: finding.text.clone(), advice: finding.advice.clone() };
    if shown > 0 {
        section = section.with(Block::Numbered(all[..shown].iter().map(item).collect()));
    } else {
        section = section.say(words::no_findings(report));
    }
    if all.len() > shown {
        section = section.say(format!("{} smaller ones are in the report.", all.len() - shown));
    }
    section
}

/// The cases that did not finish, and why; `None` if all did.
pub fn unfinished(report: &Report) -> Option<Section> {
    let mut facts = Vec::new();
    for (case, name) in named(report) {
        if case.status != Status::Done || case.reason.is_some() {
            let ended = if case.status == Status::Done { "partly done" } else { case.status.name() };
            let reason = case.reason.as_deref().unwrap_or("unknown reason");
            facts.push((format!("{name}, {ended}"), reason.trim().to_owned()));
        }
    }
    let mut section = Section::new(Topic::Unfinished, "Unfinished cases");
    if !facts.is_empty() {
        section = section.with(Block::Facts(facts));
    }
    let interrupted = report.cases.iter().filter(|case| case.status == Status::Interrupted).count() as u32;
    let left = report.missing + interrupted;
    // `train` resumes from a checkpoint and says so itself; what was followed is not continued but done again.
    if left > 0 && !is_training(report) && !is_followed(report) {
        let all = report.cases.len() as u32 + report.missing;
        let verb = if left == 1 { "is" } else { "are" };
        let go_on = if report.running { "" } else { "; run the same command again to continue" };
        section = section.say(format!("{left} of {all} cases {verb} left{go_on}."));
    }
    (!section.blocks.is_empty()).then_some(section)
}
