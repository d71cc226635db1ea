//! All cases of a study: the content of `report.json`.

mod scaling;

use paceline_record::Case;
use serde::Serialize;

use crate::case::whole_workers;
use crate::finding::{self, Finding};
use crate::numbers::law::{self, Laws};
use crate::numbers::speedup::Speedup;
use crate::numbers::waterfall::{self, Waterfall};
use crate::training::RESUMED;
use crate::{CaseReport, Machine, SCHEMA, Study};

/// Every number of a study's report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this format.
    pub schema: u32,
    /// Version of the program that ran the study.
    pub program: String,
    /// When it was started, in UTC.
    pub date: Option<String>,
    /// The name of the host that it was started on.
    pub host: Option<String>,
    /// Whether somebody was at work in its folder when it was read.
    pub running: bool,
    /// The command line of the study, without the program's name.
    pub command: Vec<String>,
    /// Where it ran.
    pub machine: Machine,
    /// One for each case, in the order of the study.
    pub cases: Vec<CaseReport>,
    /// Cases of the study that have not run.
    pub missing: u32,
    /// One for each group of cases that differ only in workers.
    pub explained: Vec<Explained>,
    /// Findings, largest loss first.
    pub findings: Vec<Finding>,
}

/// Why a group of cases that differ only in workers has its speed-ups.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explained {
    /// What its cases have in common.
    pub key: Key,
    /// Indices of its cases in the report, by workers.
    pub cases: Vec<usize>,
    /// Both measures of each speed-up, reconciled; empty without a one-worker case.
    pub speedups: Vec<Speedup>,
    /// Where the cost of an example comes from on more than one worker; empty without a one-worker case.
    pub waterfalls: Vec<Waterfall>,
    /// Scaling laws fitted to the group.
    pub laws: Laws,
}

/// What cases that differ only in workers have in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Key {
    /// The network.
    pub model: String,
    /// What computes.
    pub engine: Option<String>,
    /// Order of dimensions.
    pub layout: Option<String>,
    /// Number format.
    pub precision: Option<String>,
    /// Update strategy.
    pub update: Option<String>,
    /// `weak` or `strong`.
    pub scaling: Option<String>,
    /// Samples per step: on each worker (weak) or on all together (strong).
    pub batch: Option<u64>,
    /// Threads per worker.
    pub threads: Option<u32>,
    /// Other settings in which groups of this study differ, as `option value`, or from which step a training was resumed; empty if
    /// the rest distinguishes them.
    pub variant: String,
}

impl Report {
    /// Compares cases. Speed-ups are relative to the one-worker case of the same study, if there is one.
    pub fn new(study: &Study, mut cases: Vec<CaseReport>) -> Self {
        scaling::infer(&mut cases);
        let mut explained: Vec<Explained> = Vec::new();
        for members in group(&cases) {
            explained.push(explain(&mut cases, members));
        }
        let findings = finding::find(study, &cases, &explained);
        Self {
            schema: SCHEMA,
            program: study.program.clone(),
            date: study.date.clone(),
            host: study.host.clone(),
            running: cases.iter().any(|case| case.running.is_some()),
            command: study.command.clone(),
            machine: study.machine.clone(),
            missing: study.places().saturating_sub(cases.len()) as u32,
            cases,
            explained,
            findings,
        }
    }
}

/// Indices of cases that differ only in workers, fewest workers first.
fn group(cases: &[CaseReport]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (place, case) in cases.iter().enumerate() {
        let alike = |group: &&mut Vec<usize>| scaling::are_alike(&cases[group[0]].case, &case.case);
        match groups.iter_mut().find(alike) {
            Some(group) => group.push(place),
            None => groups.push(vec![place]),
        }
    }
    for group in &mut groups {
        group.sort_by_key(|&place| cases[place].case.workers);
    }
    groups
}

fn explain(cases: &mut [CaseReport], members: Vec<usize>) -> Explained {
    let done = CaseReport::is_told;
    let one = members
        .iter()
        .map(|&place| &cases[place])
        .find(|case| whole_workers(&case.case) == Some(1) && done(case));
    let one = one.cloned();
    let (mut speedups, mut waterfalls) = (Vec::new(), Vec::new());
    if let Some(one) = &one {
        for &place in &members {
            let case = &mut cases[place];
            speedups.extend(case.compare(one));
            if let (Some(many), Some(one)) = (&case.cost, &one.cost)
                && many.workers > 1
            {
                waterfalls.extend(waterfall::waterfall(many, one));
            }
        }
    }
    let alike: Vec<&CaseReport> = members.iter().map(|&place| &cases[place]).collect();
    let laws = law::fit(&alike);
    let all: Vec<&Case> = cases.iter().map(|case| &case.case).collect();
    let mut key = Key::new(all[members[0]], &all);
    key.threads = key.threads.filter(|_| members.iter().all(|&place| all[place].threads == key.threads));
    Explained { key, cases: members, speedups, waterfalls, laws }
}

/// What resuming a training changes by itself: where it began tells enough.
const RESUMING: [&str; 6] = [RESUMED, "shards", "shards-before", "steps", "scaling", "batch"];

/// Fields of a case that are named only if cases of a study differ in them.
type Field = fn(&Case) -> Option<String>;
pub(crate) const VARIANTS: [(&str, Field); 8] = [
    ("engine", |case| case.engine.clone()),
    ("layout", |case| case.layout.clone()),
    ("precision", |case| case.precision.clone()),
    ("scaling", |case| case.scaling.clone()),
    ("batch", |case| case.global_batch.or(case.batch_per_worker).map(|batch| batch.to_string())),
    ("threads", |case| case.threads.map(|threads| threads.to_string())),
    ("input", |case| case.input.clone()),
    ("classes", |case| case.classes.map(|classes| classes.to_string())),
];

impl Key {
    /// A short name for the group: the network, and what distinguishes it within the study.
    pub fn label(&self) -> String {
        let update = self.update.as_deref().filter(|&update| update != "allreduce");
        let variant = Some(self.variant.as_str()).filter(|variant| !variant.is_empty());
        let parts = [Some(self.model.as_str()), update, variant];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The key of a case among all cases of its study.
    pub fn new(case: &Case, all: &[&Case]) -> Self {
        let is_resumed = all.iter().any(|other| other.settings.contains_key(RESUMED));
        let counts = |name: &str| !(is_resumed && RESUMING.contains(&name));
        let differs =
            |name: &&String| all.iter().any(|other| other.settings.get(*name) != case.settings.get(*name));
        let resumed = case.settings.get(RESUMED).filter(|_| all.len() > 1);
        let mut variant: Vec<String> = resumed.map(|step| format!("from step {step}")).into_iter().collect();
        let settings = case.settings.keys().filter(|name| counts(name)).filter(differs);
        variant.extend(settings.map(|name| format!("{name} {}", case.settings[name])));
        let tells = |name: &str| name != "threads" || !scaling::is_pytorch(case);
        for (name, of) in VARIANTS.into_iter().filter(|(name, _)| counts(name) && tells(name)) {
            let value = of(case);
            if all.iter().any(|other| of(other) != value) {
                variant.extend(value.map(|value| format!("{name} {value}")));
            }
        }
        Self {
            model: case.model.clone(),
            engine: case.engine.clone(),
            layout: case.layout.clone(),
            precision: case.precision.clone(),
            update: case.update.clone(),
            scaling: case.scaling.clone(),
            batch: case.global_batch.or(case.batch_per_worker),
            threads: case.threads,
            variant: variant.join(", "),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
