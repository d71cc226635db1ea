//! The sections about groups of cases that differ only in the number of workers.

use super::markup::Tag;
use super::{figures, section};
use crate::section::{Section, Topic};
use crate::{CaseReport, Explained, Report, Status};

/// Groups that are expanded; the rest are collapsed.
const OPEN: usize = 3;

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
        let done: Vec<&CaseReport> = cases.filter(|case| case.status == Status::Done).collect();
        let one = done.iter().copied().find(|case| case.case.workers == 1);
        (!done.is_empty()).then_some(Self { explained, done, one })
    }

    /// Workers of its largest case.
    pub fn most_workers(&self) -> u32 {
        self.done.iter().map(|case| case.case.workers).max().unwrap_or(1)
    }

    /// Its figures, and the same in words and numbers.
    fn render(&self, told: Option<&Section>) -> Tag {
        let cells = |figures: Vec<Tag>| Tag::new("div").class("pair").with_all(figures);
        let upper = [figures::speedup(self), figures::efficiency(self)].into_iter().flatten();
        let mut falls: Vec<Tag> = self.explained.waterfalls.iter().rev().map(figures::waterfall).collect();
        let rest = falls.split_off(falls.len().min(OPEN_FALLS));
        let last = [figures::overlap(self), figures::memory(self)].into_iter().flatten();
        let below = figures::phases(self).into_iter().chain(falls).chain(last);
        let mut drawn = Tag::new("div").class("group").with(cells(upper.collect()));
        drawn = drawn.with_all(figures::accuracy(self)).with_all(figures::steps(self));
        drawn = drawn.with_all(figures::members(self));
        drawn.push(Tag::new("div").class("flow").with_all(below));
        if !rest.is_empty() {
            let summary = Tag::new("summary").text("With fewer workers");
            drawn.push(Tag::new("details").with(summary).with(cells(rest)));
        }
        let told = told.map(|told| {
            let title = Tag::new("h3").text(&told.title);
            Tag::new("div").class("words").with(title).with_all(section::blocks(told))
        });
        drawn.with_all(told)
    }
}

/// The groups of a report; if there are many, with an index and only the first ones expanded.
pub fn render(report: &Report, sections: &[Section]) -> Vec<Tag> {
    let told = |place: usize| sections.iter().find(|section| section.topic == Topic::Group(place));
    let groups: Vec<(Group<'_>, Option<&Section>)> = report
        .explained
        .iter()
        .enumerate()
        .filter_map(|(place, explained)| Some((Group::new(report, explained)?, told(place))))
        .collect();
    let mut parts = Vec::new();
    if groups.len() > OPEN {
        let link = |(place, (group, _)): (usize, &(Group<'_>, _))| {
            let link = Tag::new("a").set("href", format_args!("#group-{place}"));
            Tag::new("li").with(link.text(group.explained.key.label()))
        };
        let list = Tag::new("ul").with_all(groups.iter().enumerate().map(link));
        parts.push(Tag::new("nav").set("aria-label", "groups").with(list));
    }
    for (place, (group, told)) in groups.iter().enumerate() {
        let name = Tag::new("h2").text(group.explained.key.label());
        let id = format!("group-{place}");
        let facts = Tag::new("p").class("facts").text(facts(group));
        parts.push(if place < OPEN {
            Tag::new("section").set("id", id).with(name).with(facts).with(group.render(*told))
        } else {
            // A browser expands the section that contains the link's target, so the id is inside.
            let inside = Tag::new("div").set("id", id).with(facts).with(group.render(*told));
            Tag::new("details").class("section").with(Tag::new("summary").with(name)).with(inside)
        });
    }
    parts
}

/// What the cases of a group have in common.
fn facts(group: &Group<'_>) -> String {
    let key = &group.explained.key;
    let batch = key.batch.map(|batch| match key.scaling.as_deref() {
        Some("strong") => format!("{batch} images per step"),
        _ => format!("{batch} images per step on each worker"),
    });
    let threads = key.threads.map(|threads| match threads {
        1 => "1 thread per worker".to_owned(),
        threads => format!("{threads} threads per worker"),
    });
    let scales = group.done.iter().any(|case| case.case.workers != group.done[0].case.workers);
    let scaling = key.scaling.as_ref().filter(|_| scales).map(|scaling| format!("{scaling} scaling"));
    let named = [key.engine.clone(), key.precision.clone(), key.layout.clone(), key.update.clone()];
    let facts = [scaling, batch, threads].into_iter().chain(named).flatten();
    facts.collect::<Vec<_>>().join(" \u{b7} ")
}
