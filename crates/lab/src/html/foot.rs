//! Where the numbers come from: the machine, the command, and what each number is.

use super::markup::Tag;
use crate::{Machine, Report};

/// The numbers, a line each.
const DEFINITIONS: [(&str, &str); 16] = [
    ("init", "From the first spawn to the first step of any rank."),
    ("train", "From the begin of the first step to the end of the last, over all ranks."),
    ("total", "From the first spawn to the last reap, on the launcher's clock: the whole run."),
    (
        "images/s",
        "Images of the steady steps over their time, all workers together; the 95 % interval is by bootstrap.",
    ),
    ("steady", "Where steps stop getting faster is found in their times; steps before it count for no rate."),
    (
        "speed-up",
        "Against the one-worker case of the same study: by images/s, by training time an image, by the whole run's time an image.",
    ),
    ("efficiency", "Speed-up over workers."),
    (
        "phases",
        "Each rank's time from the first spawn to the last reap, cut into parts that leave nothing out; what no part accounts for is other.",
    ),
    (
        "exchange",
        "Communication that showed: waiting in collectives (comm_wait) and work for them on the worker's own cores (comm_cpu), as a mean over ranks and steps.",
    ),
    ("comp. : comm.", "Computation (forward, backward) to exposed communication, as 10 : x."),
    ("hidden", "The part of the time with a collective under way in which a rank did something else."),
    ("cost of an example", "Workers times the whole run's time, over the images that all of them saw."),
    ("from 1 to N", "The difference of that cost, shared out by cause; the parts sum to the whole."),
    ("s an epoch", "The training time, evaluation and checkpoints included, over the epochs done."),
    (
        "accuracy",
        "Share of pictures guessed right: in training over the last epoch, in the last test with Wilson's 95 % interval.",
    ),
    ("memory", "Peak resident memory; what workers share counts once in all, and to an equal part for each."),
];

/// The end of the page.
pub fn render(report: &Report) -> Tag {
    let command = Tag::new("pre").with(Tag::new("code").text(command(&report.command)));
    let machine = Tag::new("dl").class("facts").with_all(machine(&report.machine));
    let definition = |(name, text): (&str, &str)| [Tag::new("dt").text(name), Tag::new("dd").text(text)];
    let definitions = Tag::new("dl").class("facts").with_all(DEFINITIONS.into_iter().flat_map(definition));
    Tag::new("footer")
        .with(Tag::new("h2").text("Where this comes from"))
        .with(command)
        .with(machine)
        .with(Tag::new("h2").text("What the numbers are"))
        .with(definitions)
        .with(Tag::new("p").class("schema").text(format_args!(
            "The same numbers for programs: report.json, schema version {}.",
            report.schema
        )))
}

fn command(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/@+%".contains(c);
    let quote = |word: &String| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let words: Vec<String> = ["paceline".to_owned()].into_iter().chain(words.iter().map(quote)).collect();
    words.join(" ")
}

fn machine(machine: &Machine) -> Vec<Tag> {
    let facts = [
        ("processor", machine.cpu.clone()),
        ("cores", machine.cores.map(|cores| cores.to_string())),
        ("memory", machine.memory.map(|memory| format!("{:.1} GB", 1e-9 * memory.0 as f64))),
        ("kernel", machine.kernel.clone()),
        ("engine", machine.engine.clone()),
    ];
    let known = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.flat_map(|(name, value)| [Tag::new("dt").text(name), Tag::new("dd").text(value)]).collect()
}
