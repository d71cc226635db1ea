//! `metric.log` of TensorFlow's official models: one JSON object per line, mostly rates of the examples-per-second hook.
//!
//! ```text
//! {"name": "current_examples_per_sec", "value": 812.4, "unit": null, "global_step": 200, "timestamp": "2018-10-04T09:12:31.170000Z", "extras": []}
//! ```
//!
//! The hook's clock starts when the first step is done and counts whole intervals. Its average is batch * steps / time over
//! all intervals so far, so rates of intervals follow from averages if the log has no others.

use std::path::Path;

use serde::Deserialize;

use super::lines::Lines;
use super::meaning::{self, Kind};
use super::series::{Point, Series};
use super::{ImportError, Imported};

/// The rate of each interval.
const CURRENT: &str = "current_examples_per_sec";

/// What the hook does not count.
const UNCOUNTED: &str = "the hook's clock starts after the first step and counts whole intervals: start-up, the first step, the last \
                         part of an interval, checkpoints at both ends and the end of the run are in none of its rates, and a \
                         Horovod process may count its own examples only";

#[derive(Deserialize)]
struct Metric {
    name: String,
    value: Option<f64>,
    global_step: Option<u64>,
    timestamp: Option<String>,
}

/// Whether a file with this beginning is a `metric.log`.
pub fn recognise(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let is_metric = |line: &str| {
        line.starts_with('{')
            && ["\"name\"", "\"value\"", "\"global_step\"", "\"timestamp\""]
                .iter()
                .all(|key| line.contains(key))
    };
    text.lines().find(|line| !line.trim().is_empty()).is_some_and(is_metric)
}

/// The series of a log. Unreadable lines are skipped with a warning.
pub fn read(path: &Path) -> Result<Series, ImportError> {
    let mut lines = Lines::open(path)?;
    let mut series = Series::default();
    let (mut damaged, mut valueless) = (0_u64, 0_u64);
    while let Some(line) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let Ok(metric) = parse(&line) else {
            damaged += 1;
            continue;
        };
        let (Some(value), Some(step)) = (metric.value, metric.global_step) else {
            valueless += 1;
            continue;
        };
        let wall_time = metric.timestamp.as_deref().and_then(seconds_since_1970).unwrap_or(f64::NAN);
        series.push(&metric.name, Point { step, wall_time, value });
    }
    if series.is_empty() {
        return Err(ImportError::bad(path, "not a metric.log: no line has a name, a value and a step"));
    }
    for (count, what) in [
        (damaged, "lines cannot be read and were skipped"),
        (valueless, "lines have no value or no step and were skipped"),
        (lines.passed_over, "lines are too long and were skipped"),
    ] {
        if count > 0 {
            series.warnings.push(format!("{count} {what}"));
        }
    }
    series.close();
    Ok(series)
}

/// The log as a run of one worker.
pub fn import(path: &Path) -> Result<Imported, ImportError> {
    let mut series = read(path)?;
    let of = |wanted: Kind| {
        series.by_name.iter().find(|(name, _)| meaning::of(name).is_some_and(|(kind, _)| kind == wanted))
    };
    if let (None, Some((_, average))) = (of(Kind::Rate), of(Kind::AverageRate)) {
        let rates = from_averages(average);
        let note = "the log has averages since the first step: rates of intervals are computed from them";
        series.warnings.push(note.into());
        rates.into_iter().for_each(|point| series.push(CURRENT, point));
    }
    if series.by_name.contains_key(CURRENT) {
        series.warnings.push(UNCOUNTED.into());
    }
    let mut run = series.into_run();
    run.case.engine = Some("tensorflow".into());
    Ok(run)
}

/// A metric; Python writes numbers that JSON does not know.
fn parse(line: &str) -> serde_json::Result<Metric> {
    serde_json::from_str(line).or_else(|error| {
        let mut mended = line.to_owned();
        for unknown in ["NaN", "-Infinity", "Infinity"] {
            mended = mended.replace(&format!("\"value\": {unknown}"), "\"value\": null");
        }
        if mended == line { Err(error) } else { serde_json::from_str(&mended) }
    })
}

/// Rates of intervals from averages since the first. The first point is assumed to cover as many steps as the second.
fn from_averages(average: &[Point]) -> Vec<Point> {
    let apart = |pair: &[Point]| pair[1].step.checked_sub(pair[0].step).filter(|&steps| steps > 0);
    let Some(steps) = average.windows(2).map(apart).collect::<Option<Vec<u64>>>() else { return Vec::new() };
    let (mut done, mut time) = (0.0, 0.0);
    let mut rates = Vec::new();
    for (&steps, point) in steps.first().into_iter().chain(&steps).zip(average) {
        let (all, until) = (done + steps as f64, (done + steps as f64) / point.value);
        rates.push(Point { value: steps as f64 / (until - time), ..*point });
        (done, time) = (all, until);
    }
    rates
}

/// A time such as `2018-10-04T09:12:31.170000Z`.
fn seconds_since_1970(text: &str) -> Option<f64> {
    let (date, time) = text.trim_end_matches('Z').split_once(['T', ' '])?;
    let part = |text: &str| text.parse::<i64>().ok().filter(|part| (0..=9999).contains(part));
    let mut date = date.splitn(3, '-').map(part);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (part(time.next()?)?, part(time.next()?)?);
    let second: f64 = time.next()?.parse().ok().filter(|second| (0.0..61.0).contains(second))?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 24 || minute > 59 {
        return None;
    }
    // Days of the civil calendar, with years that begin in March so that a leap day comes last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era_days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = era_days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some((days * 86_400 + hour * 3600 + minute * 60) as f64 + second)
}

#[cfg(test)]
mod tests;
