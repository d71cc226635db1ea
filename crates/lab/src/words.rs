//! Numbers in sentences, the same for every form of the report.

mod head;
mod recovery;
mod verdict;

use paceline_record::{Bytes, Phase};

use crate::case::whole_workers;
use crate::numbers::law::{Forecast, Laws};
use crate::numbers::phases::RankPhases;
use crate::numbers::speedup::Speedup;
use crate::stats::laws::{Fit, Parameter, Unfit};
use crate::stats::steady::Verdict;
use crate::{CaseReport, Explained, Report, Table};

pub use self::head::{load, made, notices};
pub use self::recovery::{event_table, recovery};
pub use self::verdict::verdict;

/// Columns of a terminal that lines are kept within.
const WIDTH: usize = 100;

/// Foreign text without control characters other than newlines, so that it cannot steer a terminal.
pub fn plain(text: &str) -> String {
    text.replace(|letter: char| letter.is_control() && letter != '\n', " ")
}

/// Breaks a line that is too long for a terminal; continuation lines are indented.
pub fn wrap(line: &str) -> String {
    fill(line, WIDTH, ["", "  "])
}

/// Breaks a text between words into lines of this width; the first begins with the first indent, the others with the second.
/// Options, paths and ratios stay whole, and a number keeps its percent sign.
pub fn fill(text: &str, width: usize, indents: [&str; 2]) -> String {
    let options = textwrap::Options::new(width)
        .initial_indent(indents[0])
        .subsequent_indent(indents[1])
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let joined = text.replace(" %", "\u{a0}%").replace(" : ", "\u{a0}:\u{a0}");
    textwrap::fill(&joined, options).replace("\u{a0}:\u{a0}", " : ").replace("\u{a0}%", " %")
}

/// An amount of memory in a readable unit.
pub fn bytes(Bytes(bytes): Bytes) -> String {
    match bytes {
        0..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 * 1e-3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 * 1e-6),
        _ => format!("{:.2} GB", bytes as f64 * 1e-9),
    }
}

/// Megabytes without a unit, for table cells.
pub fn megabytes(bytes: Bytes) -> String {
    format!("{:.0}", bytes.0 as f64 * 1e-6)
}

/// A value as text, or a dash if it is unknown.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

/// A number with so many decimals, or a dash.
pub fn digits(value: Option<f64>, digits: usize) -> String {
    or_dash(value, |value| {
        let text = format!("{value:.digits$}");
        let zero = text.trim_start_matches(['-', '0', '.']).is_empty();
        if zero { text.trim_start_matches('-').into() } else { text }
    })
}

/// An interval, or a dash.
pub fn range(ends: Option<(f64, f64)>, places: usize) -> String {
    or_dash(ends, |(lo, hi)| format!("{} .. {}", digits(Some(lo), places), digits(Some(hi), places)))
}

/// The command of a study as it would be typed into a shell.
pub fn command(words: &[String]) -> String {
    let words = ["paceline"].into_iter().chain(words.iter().map(String::as_str));
    shlex::Quoter::new().allow_nul(true).join(words).expect("invariant: only nul bytes are refused")
}

/// "1 worker", "2 workers".
pub fn workers(count: impl Into<u64>) -> String {
    let count = count.into();
    if count == 1 { "1 worker".into() } else { format!("{count} workers") }
}

/// The same about data that need not be images: "8.1 images/s" becomes "8.1 examples/s". Paths and names keep theirs.
pub fn of_examples(text: &str) -> String {
    const SAID: [(&str, &str); 9] = [
        ("images/s", "examples/s"),
        ("Images/s", "Examples/s"),
        ("per image", "per example"),
        ("An image", "An example"),
        ("an image", "an example"),
        ("images per step", "examples per step"),
        ("Images of", "Examples of"),
        ("of images", "of examples"),
        ("the images", "the examples"),
    ];
    let is_part = |letter: char| letter.is_alphanumeric() || "/_-".contains(letter);
    let reword = |text: String, (images, examples): &(&str, &str)| {
        let (mut told, mut rest) = (String::with_capacity(text.len()), text.as_str());
        while let Some((before, after)) = rest.split_once(images) {
            told += before;
            told += if told.ends_with(is_part) || after.starts_with(is_part) { images } else { examples };
            rest = after;
        }
        told + rest
    };
    SAID.iter().fold(text.to_owned(), reword)
}

/// How the speed-up by images/s becomes the one by training time, as a product that anyone can check; `None` if it is unknown.
pub fn reconcile(speedup: &Speedup) -> Option<String> {
    let Speedup { workers, speed, time, total, steady_fraction, steady_fraction_one } = *speedup;
    let whole = total.map_or_else(String::new, |total| format!("; {total:.2}x for the whole run"));
    Some(format!(
        "{workers} workers: {speed:.2}x by images/s times {:.1} / {:.1} (% of training time at the steady rate, {workers} workers / \
         1 worker) = {:.2}x by training time{whole}",
        100.0 * steady_fraction?,
        100.0 * steady_fraction_one?,
        time?,
    ))
}

/// Why the finished cases of a group have no speed-ups; `None` where they have, or where none finished.
pub fn incomparable(report: &Report, group: &Explained) -> Option<&'static str> {
    let mut done =
        group.cases.iter().map(|&place| &report.cases[place]).filter(|case| case.is_told()).peekable();
    if !group.speedups.is_empty() || done.peek().is_none() {
        return None;
    }
    Some(match done.any(|case| whole_workers(&case.case) == Some(1)) {
        true => "the cases have no images/s to compare",
        false => "there is no finished one-worker case to compare with",
    })
}

/// Whether most of a case's time is in no phase that its source shows.
fn is_dark(case: &CaseReport) -> bool {
    let Some(phases) = &case.phases_s else { return true };
    let other = phases.get(&Phase::Other).copied().unwrap_or(0.0);
    case.origin.is_some() && 2.0 * other > phases.values().sum::<f64>()
}

/// What to say where there are no findings: nothing is known about cases that did not finish.
pub fn no_findings(report: &Report) -> &'static str {
    let done = report.cases.iter().filter(|case| case.is_told()).count();
    match done {
        0 => "None: no case finished.",
        _ if report.cases.iter().all(is_dark) => "None: what most of the time was spent on is not known.",
        _ if done < report.cases.len() + report.missing as usize => {
            "None in the cases that finished: no cause takes a notable part of their time."
        }
        _ => "None: no cause takes a notable part of the time.",
    }
}

/// "1 core", "2 cores".
pub fn cores(count: u32) -> String {
    if count == 1 { "1 core".into() } else { format!("{count} cores") }
}

/// "1 thread", "2 threads".
pub fn threads(count: u32) -> String {
    if count == 1 { "1 thread".into() } else { format!("{count} threads") }
}

/// What the fitted laws say about a group, one sentence each.
pub fn laws(laws: &Laws) -> Vec<String> {
    let mut sentences = Vec::new();
    let all = || laws.throughput.iter().map(|law| &law.fit);
    let named = |name: &Option<String>| all().find(|fit| Some(fit.name) == name.as_deref());
    let best = named(&laws.best);
    if let Some(law) = best {
        sentences.push(format!("{} fits images/s best: {}", law.name, describe(law)));
    }
    if let Some(law) = named(&laws.rough) {
        sentences.push(format!(
            "no scaling law fits images/s: {} has the lowest AICc and is still off by {:.0} % (more worker counts, or repeats of \
             real runs, would help)",
            law.name,
            100.0 * law.residual_sd
        ));
    }
    if best.is_some() && all().any(|law| law.name == "USL" && law.aicc.is_none()) {
        sentences.push("the USL was not considered: with three parameters, its AICc needs 6 points".into());
    }
    if let Some(unfit) = laws.unfit {
        sentences.push(format!("no scaling law can be chosen: {unfit}{}", help(unfit)));
    }
    if let (Some(law), Some(peak)) = (best, laws.peak_workers)
        && law.name == "USL"
    {
        sentences.push(format!("by this law, throughput peaks at {peak:.0} workers"));
    }
    if let Some(Forecast { workers, images_per_s, lo, hi }) = laws.next {
        sentences.push(format!(
            "{workers} workers would give {images_per_s:.0} images/s (95 % interval {lo:.0} .. {hi:.0}) if no new bottleneck appears"
        ));
    }
    if let Some(Parameter { value, lo, hi, .. }) =
        laws.clock.as_ref().and_then(|law| law.fit.parameters.first())
        && hi - lo <= *value
    {
        sentences.push(format!(
            "{value:.2} s of every run (95 % interval {lo:.2} .. {hi:.2}) do not shrink as workers are added"
        ));
    }
    sentences
}

/// What would let a law be chosen: each repeat is a point, but no new size.
fn help(unfit: Unfit) -> &'static str {
    match unfit {
        Unfit::TooFewPoints { .. } => {
            " (more worker counts would help; with three of them or more, repeats of real runs too)"
        }
        Unfit::TooFewSizes { .. } => " (more worker counts would help)",
        Unfit::BadPoint { .. } | Unfit::NoMinimum => "",
    }
}

fn describe(law: &Fit) -> String {
    let parameter = |Parameter { name, value, lo, hi, .. }: &Parameter| {
        format!("{name} = {value:.4} ({lo:.4} .. {hi:.4})")
    };
    let parameters: Vec<String> = law.parameters.iter().map(parameter).collect();
    let r2 = law.r2.map_or_else(String::new, |r2| format!(", R2 {r2:.4}"));
    format!("{}, {}{r2}", law.formula, parameters.join(", "))
}

/// Most ranks of a case that are listed.
const LISTED: usize = 16;

/// Tables about an imported case: first where each rank's steps spent their time (traces only), then what the source adds.
pub fn origin_tables(case: &CaseReport) -> Vec<Table> {
    let Some(origin) = &case.origin else { return Vec::new() };
    let ranks = origin.traced.as_ref().and_then(|_| rank_table(case));
    ranks.into_iter().chain(origin.tables()).collect()
}

/// Milliseconds per step and phase, one row per rank; `None` with a single rank.
pub fn rank_table(case: &CaseReport) -> Option<Table> {
    let ranks = case.ranks.as_ref().filter(|ranks| ranks.len() > 1)?;
    let seconds = |rank: &RankPhases, phase: Phase| rank.phases_s.get(&phase).copied();
    let outside = [Phase::Launch, Phase::Init, Phase::Tail];
    let shown: Vec<Phase> = Phase::ALL
        .into_iter()
        .filter(|phase| !outside.contains(phase))
        .filter(|&phase| ranks.iter().any(|rank| seconds(rank, phase).is_some_and(|time| time != 0.0)))
        .collect();
    let phases: Vec<&str> = shown.iter().map(|phase| phase.name()).collect();
    let mut table = Table::of_numbers("ms per step, by rank", &phases);
    for rank in ranks.iter().take(LISTED) {
        let ms = |&phase: &Phase| {
            or_dash(seconds(rank, phase), |time| format!("{:.2}", 1e3 * time / case.steps as f64))
        };
        table.row([case.name(rank.who)].into_iter().chain(shown.iter().map(ms)));
    }
    if ranks.len() > LISTED {
        table.row([format!("and {} more", ranks.len() - LISTED)]);
    }
    Some(table)
}

/// Where a case's steady state begins, and how sure that is.
pub fn steady(case: &CaseReport) -> Option<String> {
    let steady = case.steady?;
    let from = steady.from_step;
    let mut text = match steady.verdict {
        // Which steps are slow depends on who was there.
        Verdict::WarmUp | Verdict::Slowdown | Verdict::NoSteadyState if case.has_changed() => {
            format!("members changed; counted from step {from}")
        }
        Verdict::Flat => "steady from the first step".into(),
        Verdict::Noisy => {
            let cv = case.dispersion.and_then(|spread| spread.cv).unwrap_or_default();
            format!("not steady: steps vary by {:.0} %; counted from step {from}", 100.0 * cv)
        }
        Verdict::WarmUp => format!("warm-up, steady from step {from}"),
        Verdict::Slowdown => {
            let slower = steady.slowdown.map_or(from, |slowdown| slowdown.from_step);
            format!("slowdown, slower from step {slower}; counted from step {from}")
        }
        Verdict::NoSteadyState => format!("no steady state; counted from step {from}"),
        Verdict::TooShort if steady.points.is_some() => {
            format!("too few points to tell: {}", steady.points.unwrap_or_default())
        }
        Verdict::TooShort if from == 0 && case.steps == 1 => "too short to tell: 1 step".into(),
        Verdict::TooShort if from == 0 => format!("too short to tell: {} steps, all counted", case.steps),
        Verdict::TooShort => {
            format!("too short to tell: {} steps, first {from} not counted", case.steps)
        }
    };
    if let (true, Some(other)) = (steady.mser_disagrees, steady.mser_step) {
        text.push_str(&format!("; MSER-5 would start at step {other}"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::fixture::{Plan, report_on};

    #[test]
    fn nothing_is_said_about_cases_that_did_not_finish() {
        let mut report = report_on(&[1, 2].map(|workers| Plan::calm("resnet50", workers)));
        assert_eq!(no_findings(&report), "None: no cause takes a notable part of the time.");
        for case in &mut report.cases {
            case.origin = Some(crate::origin::Origin::new(None));
            case.phases_s = Some([(Phase::Other, 9.0), (Phase::Compute, 1.0)].into_iter().collect());
        }
        assert_eq!(no_findings(&report), "None: what most of the time was spent on is not known.");
        report = report_on(&[1, 2].map(|workers| Plan::calm("resnet50", workers)));
        (report.cases[1].status, report.cases[1].repeats) = (Status::Failed, 0);
        assert!(no_findings(&report).starts_with("None in the cases that finished: "));
        (report.cases[0].status, report.cases[0].repeats) = (Status::Failed, 0);
        assert_eq!(no_findings(&report), "None: no case finished.");
    }

    #[test]
    fn repeats_are_no_help_where_worker_counts_are_missing() {
        let said = |unfit| laws(&Laws { unfit: Some(unfit), ..Laws::default() }).join("\n");
        let sizes = said(Unfit::TooFewSizes { have: 2, need: 3 });
        assert!(sizes.ends_with("3 needed (more worker counts would help)"), "{sizes}");
        let points = said(Unfit::TooFewPoints { have: 2, need: 5 });
        assert!(points.ends_with("with three of them or more, repeats of real runs too)"), "{points}");
        assert!(!said(Unfit::NoMinimum).contains("help"));
    }

    #[test]
    fn a_long_line_is_broken_between_words() {
        let line = "word ".repeat(50);
        let wrapped = wrap(line.trim_end());
        assert_eq!(wrapped.split_whitespace().count(), 50);
        assert!(wrapped.lines().count() == 3 && wrapped.lines().all(|line| line.len() <= WIDTH), "{wrapped}");
        assert_eq!(wrap("short, as it is"), "short, as it is");
    }

    #[test]
    fn control_characters_other_than_newlines_are_removed() {
        assert_eq!(plain("a\u{1b}[31mb\u{9b}2J\rc\nd"), "a [31mb 2J c\nd");
    }
}
