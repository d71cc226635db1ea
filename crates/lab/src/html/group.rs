//! The sections about groups of cases that differ only in the number of workers.

use paceline_record::Outcome;

use super::figures;
use super::markup::Tag;
use crate::training::trainings;
use crate::{CaseReport, Explained, Key, Report, words};

/// More groups than these get an index.
const LISTED: usize = 3;

/// Waterfalls that are expanded: those with the most workers.
const OPEN_FALLS: usize = 2;

/// A group with at least one finished case.
pub struct Group<'a> {
    /// Its speed-ups and waterfalls.
    pub explained: &'a Explained,
    /// Its finished cases, by workers.
    pub done: Vec<&'a CaseReport>,
    /// Its one-worker case.
    pub one: Option<&'a CaseReport>,
}

impl<'a> Group<'a> {
    fn new(report: &'a Report, explained: &'a Explained) -> Option<Self> {
        let cases = explained.cases.iter().filter_map(|&place| report.cases.get(place));
        let done: Vec<&CaseReport> = cases.filter(|case| case.status == Outcome::Done).collect();
        let one = done.iter().copied().find(|case| case.case.workers == 1);
        (!done.is_empty()).then_some(Self { explained, done, one })
    }

    /// Workers of its largest case.
    pub fn most_workers(&self) -> u32 {
        self.done.iter().map(|case| case.case.workers).max().unwrap_or(1)
    }

    fn render(&self) -> Tag {
        let cells = |figures: Vec<Tag>| Tag::new("div").class("pair").with_all(figures);
        let upper = [figures::speedup(self), figures::efficiency(self)].into_iter().flatten();
        let mut falls: Vec<Tag> = self.explained.waterfalls.iter().rev().map(figures::waterfall).collect();
        let rest = falls.split_off(falls.len().min(OPEN_FALLS));
        let last = [figures::overlap(self), figures::memory(self)].into_iter().flatten();
        let below = figures::phases(self).into_iter().chain(falls).chain(last);
        let mut section = Tag::new("div").class("group").with(cells(upper.collect()));
        section = section.with_all(figures::accuracy(self)).with_all(figures::steps(self));
        section = section.with_all(figures::members(self));
        section.push(Tag::new("div").class("flow").with_all(below));
        if !rest.is_empty() {
            let summary = Tag::new("summary").text("With fewer workers");
            section.push(Tag::new("details").with(summary).with(cells(rest)));
        }
        section.with_all(self.words())
    }

    /// Its figures in sentences.
    fn words(&self) -> Option<Tag> {
        let speedups = self.explained.speedups.iter().filter(|speedup| speedup.workers > 1);
        let mut lists = Vec::new();
        let reconciled: Vec<String> = speedups.map(words::reconcile).collect();
        if !reconciled.is_empty() {
            lists.push(Tag::new("h3").text("How the speed-up measures relate"));
            lists.push(sentences(reconciled));
        }
        let laws = words::laws(&self.explained.laws);
        if !laws.is_empty() {
            lists.push(Tag::new("h3").text("Scaling laws"));
            lists.push(sentences(laws));
        }
        (!lists.is_empty()).then(|| Tag::new("div").class("words").with_all(lists))
    }
}

fn sentences(all: Vec<String>) -> Tag {
    Tag::new("ul").with_all(all.into_iter().map(|sentence| Tag::new("li").text(sentence)))
}

fn finished(report: &Report) -> Vec<Group<'_>> {
    report.explained.iter().filter_map(|explained| Group::new(report, explained)).collect()
}

/// All groups in one figure, where there are several.
pub fn render_together(report: &Report) -> Option<Tag> {
    // Parts of one training are not to be compared with each other.
    let resumed = trainings(report).iter().any(|training| training.len() > 1);
    let groups = if resumed { Vec::new() } else { finished(report) };
    figures::overlay(&groups).map(|overlay| Tag::new("section").class("overlay").with(overlay))
}

/// The groups of a report. Of several all but the first are collapsed.
pub fn render(report: &Report) -> Vec<Tag> {
    let groups = finished(report);
    if let [only] = &groups[..] {
        let key = &only.explained.key;
        let name = Tag::new("h2").text(key.label());
        let facts = Tag::new("p").class("facts").text(facts(key));
        return vec![Tag::new("section").set("id", "group-0").with(name).with(facts).with(only.render())];
    }
    let mut parts = Vec::new();
    if groups.len() > LISTED {
        let link = |(place, group): (usize, &Group<'_>)| {
            let link = Tag::new("a").set("href", format_args!("#group-{place}"));
            Tag::new("li").with(link.text(group.explained.key.label()))
        };
        let list = Tag::new("ul").with_all(groups.iter().enumerate().map(link));
        parts.push(Tag::new("nav").set("aria-label", "groups").with(list));
    }
    for (place, group) in groups.iter().enumerate() {
        let key = &group.explained.key;
        let name = Tag::new("h2").text(key.label());
        let facts = Tag::new("p").class("facts").text(facts(key));
        // A browser expands the section that contains the link's target, so the id is inside.
        let inside =
            Tag::new("div").set("id", format_args!("group-{place}")).with(facts).with(group.render());
        let section = Tag::new("details").class("section");
        let section = if place == 0 { section.set("open", "") } else { section };
        parts.push(section.with(Tag::new("summary").with(name)).with(inside));
    }
    parts
}

/// What the cases of a group have in common.
fn facts(key: &Key) -> String {
    let batch = key.batch.map(|batch| match key.scaling.as_deref() {
        Some("strong") => format!("{batch} images per step"),
        _ => format!("{batch} images per step on each worker"),
    });
    let threads = key.threads.map(|threads| match threads {
        1 => "1 thread per worker".to_owned(),
        threads => format!("{threads} threads per worker"),
    });
    let scaling = key.scaling.as_ref().map(|scaling| format!("{scaling} scaling"));
    let named = [key.engine.clone(), key.precision.clone(), key.layout.clone(), key.update.clone()];
    let facts = [scaling, batch, threads].into_iter().chain(named).flatten();
    facts.collect::<Vec<_>>().join(" \u{b7} ")
}
