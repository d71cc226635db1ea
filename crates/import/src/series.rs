//! Series of numbers over steps from monitoring logs, and how fast the run was.
//!
//! Such a log has points, not steps: a rate, a loss or a time, with a step and a wall-clock time. A point covers all steps
//! since the previous one. How long they took comes from step times, from rates of steps, or from wall-clock times, where those
//! agree with the rates; otherwise it is unknown.

use std::collections::BTreeMap;

use paceline_lab::origin::{LogPoint, Progress};
use paceline_lab::stats;

use super::Imported;
use super::meaning::{self, Kind};

/// Most points of one series; further ones are skipped with a warning.
pub const MOST_POINTS: usize = 1_000_000;

/// The most points of all series together.
pub const MOST_IN_ALL: usize = 8_000_000;

/// The most points of a run; neighbours are merged beyond.
const KEPT: usize = 20_000;

/// Relative difference up to which wall-clock times and rates agree.
const AGREE: f64 = 0.1;

/// The most names that a warning lists, and the most letters of each.
const LISTED: (usize, usize) = (8, 40);

/// One number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Its step.
    pub step: u64,
    /// Seconds since 1970 when it was written.
    pub wall_time: f64,
    /// The number; may be NaN.
    pub value: f64,
}

/// All numbers of a log, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Points in the order of the log.
    pub by_name: BTreeMap<String, Vec<Point>>,
    /// What was salvaged, guessed or skipped, one sentence each.
    pub warnings: Vec<String>,
    points: usize,
    left_out: u64,
}

impl Series {
    /// Adds a point, unless there are too many.
    pub fn push(&mut self, name: &str, point: Point) {
        let known = self.by_name.get_mut(name);
        if self.points >= MOST_IN_ALL || known.as_ref().is_some_and(|points| points.len() >= MOST_POINTS) {
            self.left_out += 1;
            return;
        }
        self.points += 1;
        match known {
            Some(points) => points.push(point),
            None => drop(self.by_name.insert(name.into(), vec![point])),
        }
    }

    /// Warns about skipped points, after reading.
    pub fn close(&mut self) {
        if self.left_out > 0 {
            self.warnings.push(format!(
                "skipped {} points: at most {MOST_POINTS} per series and {MOST_IN_ALL} in total are kept",
                self.left_out
            ));
        }
    }

    /// Whether there is no point.
    pub fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// The run of one worker that these numbers describe.
    pub fn into_run(mut self) -> Imported {
        let rows = self.rows();
        let progress = rows.progress(&mut self.warnings);
        if progress.is_none() {
            let (most, letters) = LISTED;
            let names = self.by_name.keys().take(most).map(|name| name.chars().take(letters).collect());
            let names: Vec<String> = names.collect();
            self.warnings.push(match names.is_empty() {
                true => "it has no series of numbers".into(),
                false => format!(
                    "none of its {} series is a rate, a step time or a loss with a clock: {}",
                    self.by_name.len(),
                    names.join(", ")
                ),
            });
        }
        let mut run = Imported { warnings: self.warnings, progress, ..Imported::default() };
        run.case.workers = 1;
        run.case.batch_per_worker = run.progress.as_ref().and_then(find_batch);
        run
    }

    /// The series that are used, step by step.
    fn rows(&mut self) -> Rows {
        let mut chosen: BTreeMap<Kind, (&str, f64)> = BTreeMap::new();
        for (name, points) in &self.by_name {
            let Some((kind, scale)) = meaning::of(name).filter(|(kind, _)| *kind <= Kind::Loss) else {
                continue;
            };
            match chosen.get(&kind) {
                Some(&(other, of_other)) => {
                    let more = points.len() > self.by_name[other].len();
                    let (one, other) = match more {
                        true => ((name.as_str(), scale), other),
                        false => ((other, of_other), name.as_str()),
                    };
                    self.warnings.push(format!("used the series \"{}\", not \"{other}\"", one.0));
                    chosen.insert(kind, one);
                }
                None => drop(chosen.insert(kind, (name, scale))),
            }
        }
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        // Losses come last: they only add to the rows of what tells about time, if anything does.
        for (&kind, &(name, scale)) in &chosen {
            let timed = kind == Kind::Loss && !rows.is_empty();
            for point in tidy(name, &self.by_name[name], &mut self.warnings) {
                let point = Point { value: scale * point.value, ..point };
                match rows.get_mut(&point.step) {
                    Some(row) => row.set(kind, point),
                    None if timed => {}
                    None => rows.entry(point.step).or_default().set(kind, point),
                }
            }
        }
        let rows: Vec<(u64, Row)> = rows.into_iter().collect();
        let mut covered: Vec<u64> = rows.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        if !rows.is_empty() {
            covered.insert(0, covered.first().copied().unwrap_or(1));
        }
        Rows { rows, covered }
    }
}

/// The values of one step.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    wall_time: f64,
    /// Seconds of a step.
    step_s: Option<f64>,
    rate: Option<f64>,
    loss: Option<f32>,
}

impl Row {
    fn set(&mut self, kind: Kind, point: Point) {
        // What is beyond any machine is damage.
        let positive = Some(point.value).filter(|value| (1e-12..1e12).contains(value));
        match kind {
            Kind::StepTime => self.step_s = positive,
            Kind::StepRate => self.step_s = self.step_s.or(positive.map(|value| 1.0 / value)),
            Kind::Rate => self.rate = positive,
            Kind::Loss => self.loss = Some(point.value as f32).filter(|loss| loss.is_finite()),
            Kind::AverageRate => {}
        }
        self.wall_time = self.wall_time.max(point.wall_time);
    }
}

/// Rows by the last step that they cover, and how many steps each covers.
struct Rows {
    rows: Vec<(u64, Row)>,
    covered: Vec<u64>,
}

impl Rows {
    /// Seconds from the previous row to a row, by wall-clock times.
    fn apart(&self, at: usize) -> Option<f64> {
        let before = at.checked_sub(1)?;
        let apart = self.rows[at].1.wall_time - self.rows[before].1.wall_time;
        (apart.is_finite() && apart > 0.0).then_some(apart)
    }

    /// The batch that follows from rates and wall-clock times, if they agree for most rows.
    fn batch_by_clock(&self) -> Option<f64> {
        let all = 1..self.rows.len();
        let one = |at: usize| Some(self.rows[at].1.rate? * self.apart(at)? / self.covered[at] as f64);
        let batches: Vec<f64> = all.clone().filter_map(one).collect();
        let batch = stats::median(&batches)?.round();
        let agree = batches.iter().filter(|&&one| (one / batch - 1.0).abs() <= AGREE).count();
        let clock = all.clone().all(|at| self.apart(at).is_some());
        (batch >= 1.0 && clock && 2 * agree > all.len()).then_some(batch)
    }

    /// What the rows tell; `None` if that is nothing about time.
    fn progress(&self, warnings: &mut Vec<String>) -> Option<Progress> {
        let any = |of: fn(&Row) -> Option<f64>| self.rows.iter().any(|(_, row)| of(row).is_some());
        let (by_steps, by_rates) = (any(|row| row.step_s), any(|row| row.rate));
        let batch = if by_steps { None } else { self.batch_by_clock() };
        let seconds = |at: usize| {
            let (row, covered) = (&self.rows[at].1, self.covered[at] as f64);
            match (by_steps, by_rates) {
                (true, _) => row.step_s.map(|step| covered * step),
                (false, true) => Some(covered * batch? / row.rate?),
                (false, false) => self.apart(at),
            }
        };
        let point = |at: usize| {
            let (step, row) = self.rows[at];
            let (seconds, covers) =
                (seconds(at).filter(|seconds| (1e-12..1e12).contains(seconds)), self.covered[at]);
            let point =
                LogPoint { step, covers: covers.max(1), examples_per_s: row.rate, seconds, loss: row.loss };
            // Of a log with step times, what has none is left out; of other logs, what has no rate.
            let timed = by_steps || batch.is_some() || !by_rates;
            (if timed { seconds.is_some() } else { row.rate.is_some() }).then_some(point)
        };
        let mut points: Vec<LogPoint> = (0..self.rows.len()).filter_map(point).collect();
        let without = self.rows.len() - points.len();
        if without > 0 && !points.is_empty() {
            warnings.push(format!("skipped {without} points without step times"));
        }
        if by_rates && points.iter().any(|point| point.examples_per_s.is_none()) {
            warnings.push("some points have no rate, so the rate of the run is unknown".into());
            points.iter_mut().for_each(|point| point.examples_per_s = None);
        }
        if let Some(most) = points.iter().map(|point| point.covers).max().filter(|&most| most > 1) {
            warnings.push(format!("the log has one point per {most} steps: each stands for their mean"));
        }
        (!points.is_empty()).then(|| bound(points))
    }
}

/// Points of a run, neighbours merged if there are too many.
pub(super) fn bound(points: Vec<LogPoint>) -> Progress {
    let merge = |part: &[LogPoint]| {
        let last = part[part.len() - 1];
        let sum = |of: &dyn Fn(&LogPoint) -> Option<f64>| part.iter().map(of).sum::<Option<f64>>();
        let seconds = sum(&|point| point.seconds);
        // A rate weighs as much as its steps, whose batch is the same.
        let at_rate = sum(&|point| Some(point.covers as f64 / point.examples_per_s?));
        let covers = part.iter().fold(0, |sum: u64, point| sum.saturating_add(point.covers));
        LogPoint { covers, seconds, examples_per_s: at_rate.map(|time| covers as f64 / time), ..last }
    };
    match points.len().div_ceil(KEPT) {
        0 | 1 => Progress { points },
        every => Progress { points: points.chunks(every).map(merge).collect() },
    }
}

/// The progress of a run by those of its workers: their steps are the same, their rates add up. `None` if they have no steps in
/// common.
pub(super) fn together(workers: Vec<Progress>) -> Option<Progress> {
    let count = workers.len();
    let mut by_step: BTreeMap<u64, Vec<LogPoint>> = BTreeMap::new();
    for point in workers.into_iter().flat_map(|worker| worker.points) {
        by_step.entry(point.step).or_default().push(point);
    }
    let join = |parts: Vec<LogPoint>| {
        let seconds: Option<Vec<f64>> = parts.iter().map(|part| part.seconds).collect();
        let losses: Option<Vec<f32>> = parts.iter().map(|part| part.loss).collect();
        LogPoint {
            examples_per_s: parts.iter().map(|part| part.examples_per_s).sum(),
            seconds: seconds.map(|seconds| seconds.into_iter().fold(0.0, f64::max)),
            loss: losses.map(|losses| losses.iter().sum::<f32>() / losses.len() as f32),
            ..parts[0]
        }
    };
    let points: Vec<LogPoint> =
        by_step.into_values().filter(|parts| parts.len() == count).map(join).collect();
    let known = points.iter().all(|point| point.seconds.is_some() || point.examples_per_s.is_some());
    (!points.is_empty() && known).then_some(Progress { points })
}

/// Examples of a step, if rates and times say so and all steps have as many.
fn find_batch(progress: &Progress) -> Option<u64> {
    let examples = |point: &LogPoint| Some(point.examples_per_s? * point.seconds? / point.covers as f64);
    let batches: Option<Vec<f64>> = progress.points.iter().map(examples).collect();
    let batches = batches?;
    let batch = batches.first()?.round();
    let same = batches.iter().all(|one| (one / batch - 1.0).abs() < 1e-3);
    (same && (1.0..1e12).contains(&batch)).then_some(batch as u64)
}

/// Points with increasing steps. A run that restarted from a checkpoint repeats steps: the later ones count.
fn tidy(name: &str, points: &[Point], warnings: &mut Vec<String>) -> Vec<Point> {
    if points.len() > 1 && points.iter().all(|point| point.step == points[0].step) {
        warnings.push(format!("all points of \"{name}\" have the same step: they are numbered in order"));
        return points.iter().zip(0..).map(|(&point, step)| Point { step, ..point }).collect();
    }
    let mut tidy: Vec<Point> = Vec::with_capacity(points.len());
    for &point in points {
        while tidy.last().is_some_and(|last| last.step >= point.step) {
            tidy.pop();
        }
        tidy.push(point);
    }
    if tidy.len() < points.len() {
        warnings.push(format!(
            "skipped {} points of \"{name}\" whose steps were repeated later",
            points.len() - tidy.len()
        ));
    }
    tidy
}

#[cfg(test)]
mod tests;
