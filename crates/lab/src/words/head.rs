//! What stands above the tables: who made the study, when and where, and what to know before reading on.

use paceline_record::{Case, Load};

use super::{cores, threads};
use crate::{Report, Status};

/// Other programs are mentioned if they take this many cores, or this fraction of all.
const NOTABLE_CORES: f64 = 0.5;
const NOTABLE_FRACTION: f64 = 0.1;

/// "Paceline 0.1.0, 2026-11-16 08:33:34 UTC, on abacus".
pub fn made(report: &Report) -> String {
    let is_version = report.program.starts_with(|letter: char| letter.is_ascii_digit());
    let mut program =
        if is_version { format!("Paceline {}", report.program) } else { report.program.clone() };
    let mut cases = report.cases.iter().peekable();
    if cases.peek().is_some() && cases.all(|case| case.origin.is_some()) {
        program = format!("imported by {program}");
    }
    let date = report.date.as_ref().map(|date| date.replace('T', " ").replace('Z', " UTC"));
    let parts = match is_simulated(report) {
        // Its date is that of a clock that never ran.
        true => [Some(program), Some("simulated".into()), None],
        false => [Some(program), date, report.host.as_ref().map(|host| format!("on {host}"))],
    };
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn is_simulated(report: &Report) -> bool {
    let is_simulated = |case: &Case| case.engine.as_deref() == Some("simulated");
    !report.cases.is_empty() && report.cases.iter().all(|case| is_simulated(&case.case))
}

/// What to know before reading on.
pub fn notices(report: &Report) -> Vec<String> {
    under_way(report).into_iter().chain(loaded(report)).collect()
}

/// How far a running study is.
fn under_way(report: &Report) -> Option<String> {
    let all = report.cases.len() + report.missing as usize;
    let done = report.cases.iter().filter(|case| case.status == Status::Done).count();
    report.running.then(|| format!("This study is running: {done} of {all} cases are done so far"))
}

/// What else a machine does, as far as it disturbs a case; `None` where it does not.
pub fn load(case: &Case, load: &Load) -> Option<String> {
    let Load { cores: among, .. } = load;
    let takes = |who: &str, taken: Option<f64>| {
        taken
            .filter(|&taken| is_notable(taken, *among))
            .map(|taken| format!("{who} {taken:.1} of {}", cores(*among)))
    };
    let quota = short_quota(case, load).map(|quota| {
        format!("a quota grants {quota:.1} cores to {}", threads(case.workers * case.threads.unwrap_or(1)))
    });
    let parts = [
        takes("other programs use", load.busy_cores),
        takes("the hypervisor takes", load.stolen_cores),
        quota,
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn is_notable(taken: f64, cores: u32) -> bool {
    taken >= NOTABLE_CORES || taken >= NOTABLE_FRACTION * f64::from(cores)
}

/// A quota that a case's threads cannot but exceed.
fn short_quota(case: &Case, load: &Load) -> Option<f64> {
    let threads = (case.workers * case.threads?).min(load.cores);
    load.quota_cores.filter(|&quota| quota < f64::from(threads))
}

/// What disturbed the cases of a study, one sentence for each kind.
fn loaded(report: &Report) -> Vec<String> {
    let all = report.cases.len();
    let worst = |of: fn(&Case, &Load) -> Option<f64>| {
        let found = report.cases.iter().filter_map(|case| {
            let load = case.load?;
            Some((of(&case.case, &load)?, load.cores))
        });
        let found: Vec<(f64, u32)> = found.collect();
        let worst = found.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
        worst.map(|(most, cores)| (found.len(), most, cores))
    };
    let busy = worst(|_, load| load.busy_cores.filter(|&taken| is_notable(taken, load.cores)));
    let stolen = worst(|_, load| load.stolen_cores.filter(|&taken| is_notable(taken, load.cores)));
    let short = worst(short_quota);
    let taken = |who: &str, (count, most, among): (usize, f64, u32)| match all {
        1 => format!("{who} {most:.1} of {} just before the run: its times may include that", cores(among)),
        _ => format!(
            "{who} up to {most:.1} of {} just before {count} of {all} cases: their times may include that",
            cores(among)
        ),
    };
    let sentences = [
        busy.map(|worst| taken("Other programs used", worst)),
        stolen.map(|worst| taken("The hypervisor took", worst)),
        short.map(|(count, quota, _)| {
            let whose = if all == 1 { "the run".into() } else { format!("{count} of {all} cases") };
            format!("A quota granted {quota:.1} cores, fewer than the threads of {whose}")
        }),
    ];
    sentences.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Plan, report, report_on};

    #[test]
    fn a_report_says_what_made_it_and_when_and_where() {
        let mut report = report();
        assert_eq!(made(&report), "Paceline 0.1.0, 2026-11-16 08:33:34 UTC, on abacus");
        (report.date, report.host) = (None, None);
        assert_eq!(made(&report), "Paceline 0.1.0");
        report.program = "my-framework 1.0".into();
        assert_eq!(made(&report), "my-framework 1.0");
    }

    #[test]
    fn the_date_of_a_simulated_study_is_not_told() {
        let mut report = report();
        for case in &mut report.cases {
            case.case.engine = Some("simulated".into());
        }
        assert_eq!(made(&report), "Paceline 0.1.0, simulated");
    }

    #[test]
    fn only_a_load_that_can_matter_is_told() {
        let case = Plan::calm("resnet50", 2).case();
        let quiet =
            Load { cores: 16, busy_cores: Some(0.4), stolen_cores: Some(0.0), quota_cores: Some(2.0) };
        assert_eq!(load(&case, &quiet), None);
        assert_eq!(load(&case, &Load { busy_cores: None, stolen_cores: None, ..quiet }), None);
        let loud = Load { busy_cores: Some(1.94), stolen_cores: Some(0.5), quota_cores: Some(1.5), ..quiet };
        assert_eq!(
            load(&case, &loud).as_deref(),
            Some(
                "other programs use 1.9 of 16 cores, the hypervisor takes 0.5 of 16 cores, a quota grants 1.5 cores to 2 threads"
            )
        );
        assert!(
            load(&case, &Load { cores: 2, busy_cores: Some(0.2), ..quiet }).is_some(),
            "a tenth of two cores"
        );
        let one = Load { cores: 1, busy_cores: Some(0.6), quota_cores: Some(0.5), ..quiet };
        assert_eq!(
            load(&Plan::calm("resnet50", 1).case(), &one).as_deref(),
            Some("other programs use 0.6 of 1 core, a quota grants 0.5 cores to 1 thread")
        );
    }

    #[test]
    fn a_study_says_how_many_of_its_cases_were_disturbed_and_by_how_much() {
        let mut report = report_on(&[1, 2, 4].map(|workers| Plan::calm("resnet50", workers)));
        assert_eq!(loaded(&report), Vec::<String>::new());
        for (case, busy) in report.cases.iter_mut().zip([0.1, 1.2, 1.9]) {
            case.load =
                Some(Load { cores: 4, busy_cores: Some(busy), stolen_cores: None, quota_cores: Some(3.0) });
        }
        assert_eq!(
            loaded(&report),
            [
                "Other programs used up to 1.9 of 4 cores just before 2 of 3 cases: their times may include that",
                "A quota granted 3.0 cores, fewer than the threads of 1 of 3 cases"
            ]
        );
    }
}
