//! The sections about groups of cases that differ only in the number of workers.

use super::markup::Tag;
use super::{figures, section};
use crate::section::{Section, Topic};
use crate::training::trainings;
use crate::{CaseReport, Explained, Report};

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
        let done: Vec<&CaseReport> = cases.filter(|case| case.is_told()).collect();
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

fn finished(report: &Report) -> impl Iterator<Item = (usize, Group<'_>)> {
    let groups = report.explained.iter().enumerate();
    groups.filter_map(|(place, explained)| Some((place, Group::new(report, explained)?)))
}

/// All groups in one figure, where there are several.
pub fn render_together(report: &Report) -> Option<Tag> {
    // Parts of one training are not to be compared with each other.
    if trainings(report).iter().any(|training| training.len() > 1) {
        return None;
    }
    let groups: Vec<Group<'_>> = finished(report).map(|(_, group)| group).collect();
    figures::overlay(&groups).map(|overlay| Tag::new("section").class("overlay").with(overlay))
}

/// The groups of a report. Of several all but the first are collapsed.
pub fn render(report: &Report, sections: &[Section]) -> Vec<Tag> {
    let told = |place: usize| sections.iter().find(|section| section.topic == Topic::Group(place));
    let groups: Vec<(Group<'_>, Option<&Section>)> =
        finished(report).map(|(place, group)| (group, told(place))).collect();
    let name = |group: &Group<'_>| Tag::new("h2").text(group.explained.key.label());
    let facts = |group: &Group<'_>| Tag::new("p").class("facts").text(facts(group));
    if let [(only, told)] = &groups[..] {
        let section = Tag::new("section").set("id", "group-0").with(name(only)).with(facts(only));
        return vec![section.with(only.render(*told))];
    }
    let mut parts = Vec::new();
    if groups.len() > LISTED {
        let link = |(place, (group, _)): (usize, &(Group<'_>, _))| {
            let link = Tag::new("a").set("href", format_args!("#group-{place}"));
            Tag::new("li").with(link.text(group.explained.key.label()))
        };
        let list = Tag::new("ul").with_all(groups.iter().enumerate().map(link));
        parts.push(Tag::new("nav").set("aria-label", "groups").with(list));
    }
    for (place, (group, told)) in groups.iter().enumerate() {
        // A browser expands the section that contains the link's target, so the id is inside.
        let inside = Tag::new("div").set("id", format_args!("group-{place}"));
        let inside = inside.with(facts(group)).with(group.render(*told));
        let section = Tag::new("details").class("section");
        let section = if place == 0 { section.set("open", "") } else { section };
        parts.push(section.with(Tag::new("summary").with(name(group))).with(inside));
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
