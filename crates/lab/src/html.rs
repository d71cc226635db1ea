//! The report as a self-contained page. Rendering only: nothing is computed here except layout and units.
//!
//! Figures are our own SVG, so that their colours follow the reader's theme.

mod bars;
mod chart;
mod comparison;
mod figure;
mod figures;
mod files;
mod findings;
mod foot;
mod group;
mod markup;
mod scale;
mod section;
mod unit;

use std::collections::BTreeSet;
use std::fmt::Display;

pub use comparison::render_comparison;
use markup::Tag;
use sha2::{Digest, Sha256};

use crate::case::recorded_part;
use crate::origin::UNKNOWN_RANKS;
use crate::section::{Medium, Topic};
use crate::{CaseReport, Report, sections, words};

/// Most names that a title lists.
const NAMED: usize = 4;

/// The page of a study, for `report.html`.
pub fn render(report: &Report) -> String {
    let title = title(report);
    let header = Tag::new("header")
        .with(Tag::new("p").class("kind").text(format_args!("Paceline \u{b7} {}", sections::kind(report))))
        .with(Tag::new("h1").text(&title))
        .with(Tag::new("p").class("facts").text(facts(report)))
        .with(Tag::new("p").class("facts").text(words::made(report)))
        .with_all(words::verdict(report).iter().map(|line| {
            // Percent signs stay with their numbers, and the ends of intervals together.
            let line = line.replace(" %", "\u{a0}%").replace(" .. ", "\u{a0}..\u{a0}");
            Tag::new("p").class("verdict").text(line)
        }))
        .with_all(
            words::notices(report).into_iter().map(|notice| Tag::new("p").class("notice").text(notice)),
        );
    let sections = sections::of(report, Medium::Page);
    let about =
        |topic: Topic| sections.iter().filter(move |section| section.topic == topic).map(section::render);
    // Why something failed comes before everything else.
    let unfinished = sections.iter().find(|section| section.topic == Topic::Unfinished).map(|section| {
        let title = Tag::new("h2").text(&section.title);
        let told = Tag::new("section").class("unfinished").with(title).with_all(section::blocks(section));
        told.with_all(files::render_failed(report))
    });
    let main = Tag::new("main")
        .with(header)
        .with_all(unfinished)
        .with(findings::render(report))
        .with_all(figures::training(report).map(|figure| Tag::new("section").with(figure)))
        .with_all(group::render_together(report))
        .with_all(about(Topic::Cases))
        .with_all(group::render(report, &sections))
        .with_all(about(Topic::Case))
        .with(files::render(report))
        .with(foot::render(report, &sections));
    let title = Tag::new("title").text(format_args!("{title} \u{b7} Paceline"));
    if sections::is_followed(report) {
        return page(&title, &words::of_examples(&main.to_string()));
    }
    page(&title, &main)
}

/// A whole page around its content. It runs our script and no other, and asks for nothing.
fn page(title: &Tag, main: &impl Display) -> String {
    // Style sheet and script are ours and need no escaping.
    let (style, script) = (include_str!("html/style.css"), include_str!("html/script.js"));
    let policy = format!("default-src 'none'; style-src 'unsafe-inline'; script-src '{}'", digest(script));
    let policy = Tag::new("meta").set("http-equiv", "Content-Security-Policy").set("content", policy);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{}\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n{title}\n<style>\n{style}</style>\n</head>\n\
         <body>\n{main}\n<script>{script}</script>\n</body>\n</html>\n",
        policy.void()
    )
}

/// How a content security policy names a script.
fn digest(script: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = "sha256-".to_owned();
    for three in Sha256::digest(script).chunks(3) {
        let bits = (0..3).fold(0, |bits, place| bits << 8 | u32::from(*three.get(place).unwrap_or(&0)));
        let letter = |place: usize| char::from(LETTERS[(bits >> (18 - 6 * place) & 63) as usize]);
        text.extend((0..4).map(|place| if place <= three.len() { letter(place) } else { '=' }));
    }
    text
}

/// Networks and worker counts.
fn title(report: &Report) -> String {
    let models = unique(report, |case| Some(case.case.model.clone()));
    let cases = report.cases.iter().map(|case| (case.case.workers, recorded_part(&case.case)));
    let counts: BTreeSet<(u32, Option<&str>)> = cases.collect();
    let one = counts.len() == 1 && counts.contains(&(1, None));
    let say = |(count, part): (u32, Option<&str>)| match part {
        Some(part) if part.ends_with(UNKNOWN_RANKS) => format!("{part} of"),
        Some(part) => part.to_owned(),
        None => count.to_string(),
    };
    let workers: Vec<String> = counts.into_iter().map(say).collect();
    if models.is_empty() {
        return "A study without cases".into();
    }
    let noun = if one { "worker" } else { "workers" };
    let workers = match &workers[..] {
        [first, .., last] if workers.len() > 2 * NAMED => format!("{first} to {last}"),
        few => join(few),
    };
    format!("{} on {workers} {noun}", list(&models, "networks"))
}

/// Scaling, engine, update strategy and input size.
fn facts(report: &Report) -> String {
    let counts = unique(report, |case| Some(case.case.workers.to_string()));
    let scales = counts.len() > 1 && !sections::is_training(report);
    let scaling = unique(report, |case| case.case.scaling.clone().filter(|_| scales));
    let engine = unique(report, |case| case.case.engine.clone());
    let input = unique(report, |case| case.case.input.clone());
    let update = unique(report, |case| case.case.update.clone());
    let known = |names: &[String], noun: &str, after: &str| {
        (!names.is_empty()).then(|| format!("{}{after}", list(names, noun)))
    };
    let facts = [
        known(&scaling, "kinds of", " scaling"),
        known(&engine, "engines", " engine"),
        known(&update, "update strategies", ""),
        known(&input, "input sizes", " images"),
    ];
    facts.into_iter().flatten().collect::<Vec<_>>().join(" \u{b7} ")
}

/// Each name once, in the order of the cases.
fn unique(report: &Report, of: impl Fn(&CaseReport) -> Option<String>) -> Vec<String> {
    let mut names = Vec::new();
    for name in report.cases.iter().filter_map(of) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The names, or their number if there are many.
fn list(names: &[String], noun: &str) -> String {
    if names.len() > NAMED { format!("{} {noun}", names.len()) } else { join(names) }
}

fn join(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests;
