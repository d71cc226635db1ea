//! Two studies side by side: is one faster than the other, case by case?
//!
//! Cases are matched by their settings. A setting that has one value in all cases of each study, but a different one in
//! the two studies, is what is being compared, and is ignored for matching.

use std::collections::{BTreeMap, BTreeSet};

use paceline_record::Case;
use serde::Serialize;

use crate::numbers::SEED;
use crate::report::VARIANTS;
use crate::section::{Section, Topic};
use crate::stats::{self, Ratio};
use crate::words::{digits, range};
use crate::{CaseReport, Column, Machine, Report, Table};

/// How two studies differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Settings with one value in each study, but not the same.
    pub differ: Vec<Difference>,
    /// Cases that both have.
    pub cases: Vec<Compared>,
    /// Cases that are not compared.
    pub unmatched: Vec<Unmatched>,
    /// Whether any case was run only once: its interval then does not cover variation between runs.
    pub single_runs: bool,
}

/// A setting that has one value in each study, but not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// In the first study.
    pub before: String,
    /// In the second.
    pub after: String,
}

/// A case that is not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unmatched {
    /// Its name.
    pub name: String,
    /// Why not.
    pub why: Why,
}

/// Why a case is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The second study has no case of the same settings.
    OnlyBefore,
    /// The first study has none.
    OnlyAfter,
    /// It has no images/s in the first study.
    NotMeasuredBefore,
    /// In the second.
    NotMeasuredAfter,
    /// In both.
    NotMeasuredInBoth,
}

impl Unmatched {
    /// As a sentence about studies of these names.
    fn describe(&self, [before, after]: &[String; 2]) -> String {
        let name = &self.name;
        match self.why {
            Why::OnlyBefore => format!("only in {before}: {name}"),
            Why::OnlyAfter => format!("only in {after}: {name}"),
            Why::NotMeasuredBefore => format!("no images/s in {before}: {name}"),
            Why::NotMeasuredAfter => format!("no images/s in {after}: {name}"),
            Why::NotMeasuredInBoth => format!("no images/s in either: {name}"),
        }
    }
}

/// A case in both studies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Its name.
    pub name: String,
    /// Worker processes.
    pub workers: u32,
    /// Images per second in the first study.
    pub before: f64,
    /// In the second.
    pub after: f64,
    /// The second over the first, with its 95 % interval.
    pub ratio: f64,
    /// Lower end; `None` if a study has a single step.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
}

/// Whether there is a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The interval is above one.
    #[serde(rename = "faster")]
    Faster,
    /// The interval is below one.
    #[serde(rename = "slower")]
    Slower,
    /// The interval contains one.
    #[serde(rename = "no difference seen")]
    Same,
    /// There is no interval.
    #[serde(rename = "cannot tell")]
    Unknown,
}

impl Verdict {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Same => "no difference seen",
            Self::Unknown => "cannot tell",
        }
    }
}

/// Compares the second study with the first.
pub fn compare(before: &Report, after: &Report) -> Comparison {
    let differ = find_differences(before, after);
    let set_aside: Vec<&str> = differ.iter().map(|difference| difference.name.as_str()).collect();
    let key = |case: &CaseReport| {
        let mut features = features(&case.case);
        features.retain(|name, _| !set_aside.contains(&name.as_str()));
        features
    };
    let (mut cases, mut unmatched) = (Vec::new(), Vec::new());
    let mut left: Vec<&CaseReport> = after.cases.iter().collect();
    for old in &before.cases {
        let place = left.iter().position(|new| key(new) == key(old));
        let why = match place.map(|place| left.remove(place)) {
            None => Why::OnlyBefore,
            Some(new) => match compare_case(old, new, before) {
                Ok(compared) => {
                    cases.push(compared);
                    continue;
                }
                Err(why) => why,
            },
        };
        unmatched.push(Unmatched { name: name(old, before), why });
    }
    let only_after = |new| Unmatched { name: name(new, after), why: Why::OnlyAfter };
    unmatched.extend(left.into_iter().map(only_after));
    let single_runs = before.cases.iter().chain(&after.cases).any(|case| case.repeats == 1);
    let mut all = find_machine_differences(before, after);
    all.extend(differ);
    Comparison { differ: all, cases, unmatched, single_runs }
}

/// Compares studies with the first of them.
pub fn compare_all(studies: &[Report]) -> Vec<Comparison> {
    let [first, rest @ ..] = studies else { return Vec::new() };
    rest.iter().map(|study| compare(first, study)).collect()
}

/// A comparison as a report: what differs between the studies of these names, and each case's ratio of images/s.
pub fn sections(comparison: &Comparison, names: &[String; 2]) -> Vec<Section> {
    let differ = comparison.differ.iter();
    let differ = differ.map(|Difference { name, before, after }| format!("{name}: {before} -> {after}"));
    let mut section = Section::new(Topic::Cases, format!("{} -> {}", names[0], names[1])).list(differ);
    section = match comparison.cases.is_empty() {
        true => section.say("The studies have no case in common."),
        false => section.tables([table(&comparison.cases)]),
    };
    if comparison.single_runs && !comparison.cases.is_empty() {
        section = section
            .say("Intervals cover variation within a run; use --repeat to include variation between runs.");
    }
    vec![section.list(comparison.unmatched.iter().map(|case| case.describe(names)))]
}

fn table(cases: &[Compared]) -> Table {
    let mut table = Table::new([
        Column::words("case"),
        Column::numbers("workers").always(),
        Column::numbers("images/s before").keep(1.0),
        Column::numbers("after").keep(1.0),
        Column::numbers("ratio").always(),
        Column::interval().keep(2.0),
        Column::words("verdict").keep(3.0),
    ]);
    for case in cases {
        table.row([
            case.name.clone(),
            case.workers.to_string(),
            digits(Some(case.before), 1),
            digits(Some(case.after), 1),
            digits(Some(case.ratio), 3),
            range(case.lo.zip(case.hi), 3),
            case.verdict.name().into(),
        ]);
    }
    table
}

fn compare_case(before: &CaseReport, after: &CaseReport, report: &Report) -> Result<Compared, Why> {
    let old: Vec<&[stats::Work]> = before.steady_steps.iter().map(Vec::as_slice).collect();
    let new: Vec<&[stats::Work]> = after.steady_steps.iter().map(Vec::as_slice).collect();
    let rates = match (before.images_per_s, after.images_per_s) {
        (Some(old), Some(new)) => (old.mean, new.mean),
        (None, Some(_)) => return Err(Why::NotMeasuredBefore),
        (Some(_), None) => return Err(Why::NotMeasuredAfter),
        (None, None) => return Err(Why::NotMeasuredInBoth),
    };
    let interval = stats::bootstrap_ratio(&new, &old, SEED);
    let verdict = match interval {
        None => Verdict::Unknown,
        Some(Ratio { lo, .. }) if lo > 1.0 => Verdict::Faster,
        Some(Ratio { hi, .. }) if hi < 1.0 => Verdict::Slower,
        Some(_) => Verdict::Same,
    };
    Ok(Compared {
        name: label(before, report),
        workers: before.case.workers,
        before: rates.0,
        after: rates.1,
        ratio: rates.1 / rates.0,
        lo: interval.map(|ratio| ratio.lo),
        hi: interval.map(|ratio| ratio.hi),
        verdict,
    })
}

fn label(case: &CaseReport, report: &Report) -> String {
    let place = report.cases.iter().position(|other| std::ptr::eq(other, case));
    let group = report.explained.iter().find(|group| place.is_some_and(|place| group.cases.contains(&place)));
    group.map_or_else(|| case.case.model.clone(), |group| group.key.label())
}

fn name(case: &CaseReport, report: &Report) -> String {
    format!("{}, {}", label(case, report), case.workers_said())
}

/// Everything that identifies a case, by name.
fn features(case: &Case) -> BTreeMap<String, String> {
    let mut features = case.settings.clone();
    let named = [
        ("model", Some(case.model.clone())),
        ("update", case.update.clone()),
        ("workers", Some(case.workers.to_string())),
    ];
    let all = named.into_iter().chain(VARIANTS.map(|(name, of)| (name, of(case))));
    features.extend(all.filter_map(|(name, value)| Some((name.to_owned(), value?))));
    features
}

/// Differences between the machines of two studies.
fn find_machine_differences(before: &Report, after: &Report) -> Vec<Difference> {
    let cores = |machine: &Machine| machine.cores.map(|cores| cores.to_string());
    let (old, new) = (&before.machine, &after.machine);
    let facts = [("cpu", old.cpu.clone(), new.cpu.clone()), ("cores", cores(old), cores(new))];
    let known = facts.into_iter().filter_map(|(name, before, after)| {
        Some(Difference { name: name.into(), before: before?, after: after? })
    });
    known.filter(|fact| fact.before != fact.after).collect()
}

/// Settings that have one value in each study, but not the same; a missing setting counts as `unset`. Networks and
/// workers are never ignored.
fn find_differences(before: &Report, after: &Report) -> Vec<Difference> {
    let sets = |report: &Report| -> Vec<BTreeMap<String, String>> {
        report.cases.iter().map(|case| features(&case.case)).collect()
    };
    let (old, new) = (sets(before), sets(after));
    let names: BTreeSet<&String> = old.iter().chain(&new).flat_map(BTreeMap::keys).collect();
    let only = |sets: &[BTreeMap<String, String>], name: &str| -> Option<String> {
        let mut values = sets.iter().map(|set| set.get(name).map_or("unset", String::as_str));
        let first = values.next()?;
        values.all(|value| value == first).then(|| first.to_owned())
    };
    let differs = |name: &&String| {
        let (before, after) = (only(&old, name)?, only(&new, name)?);
        let counts = before != after && !["model", "workers"].contains(&name.as_str());
        counts.then(|| Difference { name: (*name).clone(), before, after })
    };
    names.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Plan, report_on};

    #[test]
    fn the_same_twice_shows_no_difference_and_a_slower_one_does() {
        let plan = |compute, seed| Plan { compute, seed, ..Plan::calm("resnet50", 2) };
        let before = report_on(&[plan(90.0, 1)]);
        let again = compare(&before, &report_on(&[plan(90.0, 2)]));
        assert_eq!(again.cases[0].verdict, Verdict::Same, "{again:?}");
        let slower = compare(&before, &report_on(&[plan(99.0, 2)]));
        let case = &slower.cases[0];
        assert_eq!(case.verdict, Verdict::Slower);
        assert!(case.lo < Some(0.92) && Some(0.91) < case.hi, "{case:?}");
        assert!((case.ratio - 102.25 / 111.25).abs() < 0.01, "{case:?}");
    }

    #[test]
    fn a_comparison_is_a_section_like_any_other() {
        let plan = |compute| Plan { compute, ..Plan::calm("resnet50", 2) };
        let comparison = compare(&report_on(&[plan(90.0)]), &report_on(&[plan(99.0)]));
        let sections = sections(&comparison, &["a".into(), "b".into()]);
        insta::assert_snapshot!(crate::terminal::render(&sections, crate::terminal::Screen::PLAIN), @r"
        a -> b
        case      workers  images/s before   after  ratio   95 % interval  verdict
        resnet50        2           1276.0  1170.9  0.918  0.916 .. 0.920  slower
        Intervals cover variation within a run; use --repeat to include variation between runs.
        ");
    }

    #[test]
    fn what_is_compared_is_named_and_what_has_no_match_too() {
        let mut before = report_on(&[Plan::calm("resnet50", 1), Plan::calm("vgg_19", 1)]);
        let after = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]);
        for case in &mut before.cases {
            case.case.layout = Some("nchw".into());
        }
        let comparison = compare(&before, &after);
        assert_eq!(comparison.differ[0].name, "layout");
        assert_eq!(comparison.cases.len(), 1);
        let names = ["a", "b"].map(String::from);
        let unmatched: Vec<String> = comparison.unmatched.iter().map(|case| case.describe(&names)).collect();
        assert_eq!(unmatched, ["only in a: vgg_19, 1 worker", "only in b: resnet50, 2 workers"]);
    }

    #[test]
    fn a_case_that_did_not_finish_is_told_from_one_that_is_not_there() {
        let before = report_on(&[Plan::calm("resnet50", 1)]);
        let mut after = before.clone();
        after.cases[0].images_per_s = None;
        let comparison = compare(&before, &after);
        let sections = sections(&comparison, &["a".into(), "b".into()]);
        let shown = crate::terminal::render(&sections, crate::terminal::Screen::PLAIN);
        assert!(shown.contains("no images/s in b: resnet50, 1 worker"), "{shown}");
        assert!(!shown.contains("Intervals cover"), "there are none: {shown}");
    }
}
