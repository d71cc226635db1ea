//! The findings, at the top of the page.

use super::markup::{Px, Tag};
use super::unit::{digits, percent};
use crate::finding::SHOWN;
use crate::{Finding, Report, words};

/// The findings of a report, largest loss first.
pub fn render(report: &Report) -> Tag {
    let section = Tag::new("section").class("findings").with(Tag::new("h2").text("Findings"));
    if report.findings.is_empty() {
        return section.with(Tag::new("p").text(words::no_findings(report)));
    }
    let (open, rest) = report.findings.split_at(report.findings.len().min(SHOWN));
    let section = section.with(list(open, 1));
    if rest.is_empty() {
        return section;
    }
    let summary = Tag::new("summary").text(format_args!("{} smaller ones", rest.len()));
    section.with(Tag::new("details").with(summary).with(list(rest, SHOWN + 1)))
}

fn list(findings: &[Finding], from: usize) -> Tag {
    Tag::new("ol").set("start", from).with_all(findings.iter().map(item))
}

fn item(finding: &Finding) -> Tag {
    let text = Tag::new("p").class("what").text(&finding.text);
    let advice = Tag::new("p").class("advice").with(Tag::new("b").text("What to do: "));
    let advice = mark_code(advice, &finding.advice);
    let words = Tag::new("div").with(text).with(advice);
    Tag::new("li").with(loss(finding)).with(words)
}

fn loss(finding: &Finding) -> Tag {
    let column = Tag::new("div").class("loss");
    // What is not known is not drawn.
    let Some(fraction) = finding.fraction else { return column };
    let width = Px(100.0 * fraction.clamp(0.0, 1.0));
    let bar = Tag::new("i").set("style", format_args!("width:{width}%"));
    let seconds = |lost: f64| Tag::new("span").text(format_args!("{} worker-seconds", digits(lost)));
    column
        .with(Tag::new("b").text(percent(fraction)))
        .with(Tag::new("span").class("meter").set("aria-hidden", "true").with(bar))
        .with_all(finding.lost_s.map(seconds))
}

/// Adds text in which options and backticked parts are code, so that lines do not break inside them.
fn mark_code(mut tag: Tag, text: &str) -> Tag {
    for (number, part) in text.split('`').enumerate() {
        if number % 2 == 1 {
            tag.push(Tag::new("code").text(part));
            continue;
        }
        for word in part.split_inclusive(' ') {
            let option = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            if option.starts_with("--") {
                tag = tag.with(Tag::new("code").text(option)).text(&word[option.len()..]);
            } else {
                tag = tag.text(word);
            }
        }
    }
    tag
}
