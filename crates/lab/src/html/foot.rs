//! The end of the page: the command, the machine, and what each number means.

use super::markup::Tag;
use super::section;
use crate::Report;
use crate::section::{Section, Topic};

/// Definitions of the numbers, one line each.
const DEFINITIONS: [(&str, &str); 16] = [
    ("init", "From the first spawn to the first step of any rank."),
    ("train", "From the begin of the first step to the end of the last, over all ranks."),
    ("total", "The whole run: from the first spawn to the last reap, on the launcher's clock."),
    (
        "images/s",
        "Images of the steady steps over their time, all workers together. The 95 % interval is from a bootstrap.",
    ),
    (
        "steady state",
        "Where steps stop getting faster, found from their times. Earlier steps do not count for images/s.",
    ),
    (
        "speed-up",
        "Relative to the one-worker case of the same study: by images/s, by training time per image, and by the time of the whole run per image.",
    ),
    ("efficiency", "Speed-up divided by the number of workers."),
    (
        "phases",
        "Each rank's time from the first spawn to the last reap, split without gaps. Time outside every named phase is other.",
    ),
    (
        "exchange",
        "Exposed communication: waiting in collectives (comm_wait) and work for them on the worker's own cores (comm_cpu), mean over ranks and steps.",
    ),
    ("comp. : comm.", "Computation (forward, backward) to exposed communication, as 10 : x."),
    ("hidden", "The fraction of the time with a collective under way in which a rank did something else."),
    (
        "cost of an image",
        "Workers times the time of the whole run, divided by the images that all of them saw.",
    ),
    ("from 1 to N", "The difference in that cost, split by cause. The parts sum to the whole."),
    ("s per epoch", "Training time, including evaluation and checkpoints, divided by the epochs done."),
    (
        "accuracy",
        "Fraction of images classified correctly: in training over the last epoch, in the last test with Wilson's 95 % interval.",
    ),
    (
        "memory",
        "Peak resident memory. Memory that workers share counts once in the total, and in equal parts per worker.",
    ),
];

/// The end of the page.
pub fn render(report: &Report, sections: &[Section]) -> Tag {
    let about = sections.iter().filter(|section| section.topic == Topic::About);
    let about = about.flat_map(|section| {
        [Tag::new("h2").text(&section.title)].into_iter().chain(section::blocks(section))
    });
    let definition = |(name, text): (&str, &str)| [Tag::new("dt").text(name), Tag::new("dd").text(text)];
    let definitions = Tag::new("dl").class("facts").with_all(DEFINITIONS.into_iter().flat_map(definition));
    Tag::new("footer")
        .with_all(about)
        .with(Tag::new("h2").text("What the numbers mean"))
        .with(definitions)
        .with(Tag::new("p").class("schema").text(format_args!(
            "The same numbers in machine-readable form: report.json, schema version {}.",
            report.schema
        )))
}
