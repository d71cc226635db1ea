//! What ranks say about their own times that were followed from outside: what could not be told, and what was measured how often.

use std::collections::BTreeSet;

use paceline_record::log::{RankLog, WorkerHeader};
use paceline_record::{Phase, Who};

use crate::Run;

/// Phases that some rank could not tell, and none did.
pub fn untold(done: &[&Run]) -> BTreeSet<Phase> {
    let said = logs(done).flat_map(|log| match &log.header {
        WorkerHeader::Rank(header) => header.untold.as_slice(),
        WorkerHeader::Member(_) => &[],
    });
    // Time outside the steps is the reader's to tell, and so is the rest.
    let around = [Phase::Launch, Phase::Init, Phase::Tail, Phase::Other];
    let mut untold: BTreeSet<Phase> = said.copied().filter(|phase| !around.contains(phase)).collect();
    untold.retain(|&phase| logs(done).flat_map(|log| &log.steps).all(|step| step.phases[phase].is_zero()));
    untold
}

/// Seconds in which devices had nothing to do because their host was late, summed over ranks, as the mean over repeats; `None` if no
/// step tells.
pub fn starved(done: &[&Run]) -> Option<f64> {
    let told = logs(done).flat_map(|log| &log.steps).filter_map(|step| step.starved);
    let sum = told.map(|time| time.seconds()).reduce(|sum, more| sum + more)?;
    Some(sum / done.len() as f64)
}

/// What a reader should know: first how many steps were measured, then what the ranks noted, each once.
pub fn notes(done: &[&Run]) -> Vec<String> {
    let mut notes: Vec<String> = sampled(done).into_iter().collect();
    let mut said: Vec<(&str, BTreeSet<Who>)> = Vec::new();
    for log in logs(done) {
        for note in &log.notes {
            let who = log.header.who();
            match said.iter_mut().find(|(text, _)| text == note) {
                Some((_, by)) => {
                    by.insert(who);
                }
                None => said.push((note, [who].into())),
            }
        }
    }
    let all: BTreeSet<Who> = logs(done).map(|log| log.header.who()).collect();
    let sentence = |(text, by): (&str, BTreeSet<Who>)| match by.len() == all.len() {
        true => text.to_owned(),
        false => {
            let names: Vec<String> = by.iter().map(ToString::to_string).collect();
            format!("{}: {text}", names.join(", "))
        }
    };
    notes.extend(said.into_iter().map(sentence));
    notes
}

fn sampled(done: &[&Run]) -> Option<String> {
    let steps = || logs(done).flat_map(|log| &log.steps);
    let (all, measured) = (steps().count(), steps().filter(|step| step.sampled).count());
    match measured {
        _ if measured == all => None,
        0 => Some("the phases of no step were measured".into()),
        _ => Some(format!(
            "the phases of {measured} of {all} steps were measured (all ranks together); each of the others is taken to be divided \
             as the measured steps before and after it"
        )),
    }
}

fn logs<'a>(done: &'a [&'a Run]) -> impl Iterator<Item = &'a RankLog> {
    done.iter().flat_map(|run| &run.ranks)
}

#[cfg(test)]
mod tests {
    use paceline_record::Nanos;

    use super::*;
    use crate::CaseReport;
    use crate::fixture::{MS, Plan};
    use crate::numbers::waterfall::Cause;

    fn untell(run: &mut Run, phases: &[Phase]) {
        for log in &mut run.ranks {
            if let WorkerHeader::Rank(header) = &mut log.header {
                header.untold = phases.into();
            }
        }
    }

    #[test]
    fn what_a_rank_cannot_tell_is_unknown_unless_it_told_it() {
        let mut run = Plan::calm("net", 2).run();
        untell(&mut run, &[Phase::CommWait, Phase::CommCpu, Phase::Forward, Phase::Launch]);
        for step in run.ranks.iter_mut().flat_map(|log| &mut log.steps) {
            (step.phases[Phase::CommWait], step.phases[Phase::CommCpu]) = (Nanos(0), Nanos(0));
            step.late_rank = Nanos(0);
        }
        let case = CaseReport::of(&[run]);
        let phases = case.phases_s.as_ref().expect("done");
        assert!(!phases.contains_key(&Phase::CommWait) && phases.contains_key(&Phase::Forward));
        assert!(phases.contains_key(&Phase::Launch) && phases.contains_key(&Phase::Eval));
        assert_eq!((case.overlap, case.communication_ratio, case.comm_busy_s), (None, None, None));
        let causes: Vec<Cause> = case.cost.expect("done").parts.iter().map(|part| part.cause).collect();
        assert!(!causes.contains(&Cause::Communication) && !causes.contains(&Cause::Stragglers));
        assert!(causes.contains(&Cause::Computation) && causes.contains(&Cause::Other));
        let total: f64 = phases.values().sum();
        assert!((total - 2.0 * case.total_s.expect("done")).abs() < 1e-9, "they still sum to the whole");
    }

    #[test]
    fn a_note_is_said_once_and_by_whom_unless_all_say_it() {
        let mut run = Plan::calm("net", 2).run();
        run.ranks[0].notes = vec!["all say this".into(), "one says this".into()];
        run.ranks[1].notes = vec!["all say this".into(), "all say this".into()];
        assert_eq!(CaseReport::of(&[run]).notes, ["all say this", "rank 0: one says this"]);
    }

    #[test]
    fn starved_devices_are_told_of_only_where_somebody_told() {
        let mut run = Plan::calm("net", 2).run();
        assert_eq!(starved(&[&run]), None);
        run.ranks[1].steps[0].starved = Some(Nanos(5 * MS));
        assert_eq!(starved(&[&run]), Some(0.005));
    }
}
