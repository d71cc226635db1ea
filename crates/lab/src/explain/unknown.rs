//! What a table does not show.

use super::meaning::{self, Meaning};
use super::reconcile::Work;
use super::scaling::Row;
use super::series::{Column, Series};

/// Words for columns that hold the spread of others.
const SPREADS: &str = "lo hi lower upper std stddev stdev deviation variance variation cv interval ci";

pub(super) fn list(series: &Series, work: Option<Work>, rows: &[Row]) -> Vec<String> {
    if !series.comparable {
        return vec![
            "how anything scales: as they are read, no two rows differ only in the number of workers".into(),
        ];
    }
    let has = |meaning: Meaning| series.column(meaning).is_some();
    let (rate, clock) = (series.rate().is_some(), series.clock().is_some());
    let mut unknown = Vec::new();
    let mut say = |missing: bool, sentence: &str| {
        if missing {
            unknown.push(sentence.to_owned());
        }
    };
    let ones = series.workers.iter().filter(|workers| **workers == 1).count();
    say(ones == 0, "any speed-up over one worker: there is no row for one worker among these");
    say(ones > 1, "any speed-up over one worker: there are several rows for one worker");
    let open = series.column(Meaning::Rate).filter(|_| series.workers.len() > 1);
    if let Some(Column { name, .. }) = open {
        let asked = format!(
            "whether {name} is the rate of all workers (--map {name:?}=rate-global) or of each (--map {name:?}=rate-per-worker)"
        );
        say(true, &asked);
    }
    let says = |column: &Column, names: &str| {
        meaning::words(&column.name).iter().any(|word| meaning::among(names, word))
    };
    let spread = series.columns.iter().any(|column| column.has_spread || says(column, SPREADS));
    let repeated =
        series.workers.iter().enumerate().any(|(row, workers)| series.workers[..row].contains(workers));
    say(!spread && !repeated, "how much runs vary: no number has a spread");
    say(!clock && rate, "whether the whole run speeds up as much as the rate: there is no clock");
    say(
        clock && !rate,
        "how fast the steady steps were: there is a clock but no rate, so fixed costs and slower steps look alike",
    );
    say(
        clock && work.is_none(),
        "whether the work was divided among the workers: use --work divided or --work per-worker",
    );
    say(
        clock && !has(Meaning::InitTime) && !(has(Meaning::TotalTime) && has(Meaning::TrainTime)),
        "how long start-up took, and whether the clock includes it",
    );
    let communication = [Meaning::CommTime, Meaning::CommShare, Meaning::CommRatio].into_iter().any(has);
    say(
        !communication && rows.iter().any(|row| row.workers > 1),
        "how much of the loss is communication, waiting, input or slower computation: a trace of each rank would show it",
    );
    say(
        has(Meaning::CommTime),
        "how much of the communication is waiting for the last worker and how much is moving bytes",
    );
    if let Some(memory) = series.column(Meaning::Memory).filter(|column| !column.has_unit) {
        let whose =
            if says(memory, "per each total all") { "" } else { ", and whether it is per worker or for all" };
        say(true, &format!("the unit of the memory{whose}"));
    }
    unknown
}
