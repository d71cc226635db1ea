//! Series of numbers over steps from monitoring logs, and the steps they describe.
//!
//! Such a log has points, not steps: a rate, a loss or a time, with a step and a wall-clock time. A point covers all steps
//! since the previous one, and so does the [`StepRecord`] made from it. How long they took comes from the best
//! available source: step times, rates of steps, the wall-clock times of the points if they agree with the rates, or
//! else the rates alone.

use std::collections::BTreeMap;

use paceline_lab::stats;
use paceline_record::{Nanos, Phase, Rank, Step, StepRecord};

use super::{Imported, ImportedRank};

/// Most points of one series; further ones are skipped with a warning.
pub const MOST_POINTS: usize = 1_000_000;

/// The most points of all series together.
pub const MOST_IN_ALL: usize = 8_000_000;

/// Relative difference up to which wall-clock times and rates agree.
const AGREE: f64 = 0.1;

/// Most examples of a step, so that sums do not overflow.
const MOST_EXAMPLES: f64 = 1e12;

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

    /// Points of all series together.
    pub fn len(&self) -> usize {
        self.points
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// The run of one worker that these numbers describe.
    pub fn into_run(self) -> Imported {
        let mut warnings = self.warnings.clone();
        let rows = Rows::of(&self, &mut warnings);
        let Laid { steps, batch, nominal } = rows.lay_out(&mut warnings);
        let mut run = Imported { warnings, nominal, ..Imported::default() };
        run.case.workers = 1;
        run.case.batch_per_worker = batch;
        run.ranks = vec![ImportedRank { rank: Rank(0), steps, peak_device: None }];
        run
    }
}

/// What a series is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Meaning {
    /// Seconds of a step, after this factor.
    StepTime { per_second: u32 },
    /// Examples a second.
    Examples,
    /// Steps a second.
    Steps,
    /// Loss in training.
    Loss,
    /// Milliseconds of a phase per step.
    Phase(Phase),
}

/// Words of which the name of a loss in training is made: `Loss/train`, `train_loss_step`, `epoch_loss`, `loss_1`.
const OF_A_LOSS: [&str; 9] = ["loss", "losses", "train", "training", "total", "batch", "epoch", "step", "1"];

/// What a series is about, by its name.
fn meaning_of(name: &str) -> Option<Meaning> {
    if let Some(phase) = name.strip_prefix("phase/").and_then(|name| name.strip_suffix("_ms")) {
        return Phase::ALL.into_iter().find(|known| known.name() == phase).map(Meaning::Phase);
    }
    let plain: String = name
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' })
        .collect();
    let words: Vec<&str> = plain.split('_').filter(|word| !word.is_empty()).collect();
    if words.iter().any(|word| ["val", "validation", "eval", "test", "average", "avg", "mean"].contains(word))
    {
        return None;
    }
    let is_second = |word: &str| ["s", "sec", "second", "seconds"].contains(&word);
    let per_second = match words.as_slice() {
        [rest @ .., "per", last] if is_second(last) => rest.last(),
        [rest @ .., last] if is_second(last) => rest.last(),
        _ => None,
    };
    match per_second {
        Some(&("example" | "examples" | "image" | "images" | "img" | "imgs" | "sample" | "samples")) => {
            return Some(Meaning::Examples);
        }
        Some(&("step" | "steps" | "iter" | "iters" | "iterations" | "it" | "batches")) => {
            return Some(Meaning::Steps);
        }
        _ => {}
    }
    match words.as_slice() {
        [.., "step", "ms"] | [.., "step", "time", "ms"] => Some(Meaning::StepTime { per_second: 1000 }),
        [.., "step", "time", "s" | "sec" | "seconds"]
        | [.., "s" | "sec" | "seconds", "per", "step"]
        | [.., "step", "seconds"] => Some(Meaning::StepTime { per_second: 1 }),
        [.., "train" | "training" | "total" | "batch" | "losses" | "loss", "loss"] => Some(Meaning::Loss),
        _ if words.contains(&"loss") && words.iter().all(|word| OF_A_LOSS.contains(word)) => {
            Some(Meaning::Loss)
        }
        _ => None,
    }
}

/// The values of one step.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    wall_time: f64,
    step_s: Option<f64>,
    examples_per_s: Option<f64>,
    steps_per_s: Option<f64>,
    loss: Option<f64>,
    phases_ms: [Option<f32>; Phase::ALL.len()],
}

/// Rows with times.
#[derive(Default)]
struct Laid {
    steps: Vec<StepRecord>,
    /// Examples per step, if all steps have the same number.
    batch: Option<u64>,
    /// Assumed examples per step.
    nominal: Option<f64>,
}

/// Rows by the last step that they cover, and how many steps each covers.
struct Rows {
    rows: Vec<(u64, Row)>,
    covered: Vec<u64>,
}

impl Rows {
    fn of(series: &Series, warnings: &mut Vec<String>) -> Self {
        let mut chosen: BTreeMap<Meaning, &str> = BTreeMap::new();
        for (name, points) in &series.by_name {
            let Some(meaning) = meaning_of(name) else { continue };
            match chosen.get(&meaning) {
                Some(&other) if series.by_name[other].len() >= points.len() => {
                    warnings.push(format!("used the series \"{other}\", not \"{name}\""));
                }
                Some(&other) => {
                    warnings.push(format!("used the series \"{name}\", not \"{other}\""));
                    chosen.insert(meaning, name);
                }
                None => drop(chosen.insert(meaning, name)),
            }
        }
        let timed = chosen.keys().any(|meaning| !matches!(meaning, Meaning::Loss | Meaning::Phase(_)));
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        // Series about time come first: they decide which rows exist.
        for (&meaning, &name) in &chosen {
            let is_time = !matches!(meaning, Meaning::Loss | Meaning::Phase(_));
            for point in tidy(name, &series.by_name[name], warnings) {
                if is_time || !timed {
                    rows.entry(point.step).or_default().set(meaning, point);
                } else if let Some(row) = rows.get_mut(&point.step) {
                    row.set(meaning, point);
                }
            }
        }
        let rows: Vec<(u64, Row)> = rows.into_iter().collect();
        let mut covered: Vec<u64> = rows.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        if !rows.is_empty() {
            covered.insert(0, covered.first().copied().unwrap_or(1));
        }
        if let Some(most) = covered.iter().copied().max().filter(|&most| most > 1) {
            warnings.push(format!(
                "the log has one point per {most} steps: each step is shown as the mean of its point"
            ));
        }
        Self { rows, covered }
    }

    /// Seconds that a row says its steps took.
    fn seconds(&self, at: usize) -> Option<f64> {
        let (row, covered) = (&self.rows[at].1, self.covered[at] as f64);
        let a_step = row.step_s.or(row.steps_per_s.map(|rate| 1.0 / rate))?;
        Some(covered * a_step)
    }

    /// Seconds from the previous row to a row, by wall-clock times.
    fn apart(&self, at: usize) -> Option<f64> {
        let before = at.checked_sub(1)?;
        let apart = self.rows[at].1.wall_time - self.rows[before].1.wall_time;
        (apart.is_finite() && apart > 0.0).then_some(apart)
    }

    /// Whether wall-clock times show how long steps took: for most rows they agree with `expected`.
    fn has_clock(&self, expected: impl Fn(usize) -> Option<f64>) -> bool {
        let (mut agree, mut compared) = (0, 0);
        for at in 1..self.rows.len() {
            let Some(expected) = expected(at) else { continue };
            compared += 1;
            agree += usize::from(self.apart(at).is_some_and(|apart| (apart / expected - 1.0).abs() <= AGREE));
        }
        compared > 0 && 2 * agree > compared && (1..self.rows.len()).all(|at| self.apart(at).is_some())
    }

    /// The batch that follows from rates and wall-clock times.
    fn find_batch(&self) -> Option<f64> {
        let one =
            |at: usize| Some(self.rows[at].1.examples_per_s? * self.apart(at)? / self.covered[at] as f64);
        let batches: Vec<f64> = (1..self.rows.len()).filter_map(one).collect();
        let batch = stats::median(&batches)?.round();
        let expected = |at: usize| Some(batch * self.covered[at] as f64 / self.rows[at].1.examples_per_s?);
        (batch >= 1.0 && self.has_clock(expected)).then_some(batch)
    }

    /// Assigns times to the rows.
    fn lay_out(&self, warnings: &mut Vec<String>) -> Laid {
        if self.rows.is_empty() {
            warnings.push("the log has no series with a loss, a rate or step times".into());
            return Laid::default();
        }
        let any = |of: fn(&Row) -> Option<f64>| self.rows.iter().any(|(_, row)| of(row).is_some());
        let has_rate = any(|row| row.examples_per_s);
        let timed = any(|row| row.step_s) || any(|row| row.steps_per_s);
        let mut nominal = None;
        let (seconds, examples, by_clock): (Vec<Option<f64>>, Option<f64>, bool) = if timed {
            let seconds: Vec<_> = (0..self.rows.len()).map(|at| self.seconds(at)).collect();
            let by_clock = self.has_clock(|at| seconds[at]);
            (seconds, None, by_clock)
        } else if !has_rate {
            let clock = (0..self.rows.len()).map(|at| self.apart(at)).collect();
            (clock, None, self.has_clock(|at| self.apart(at)))
        } else {
            let found = self.find_batch();
            if found.is_none() {
                let rates: Vec<f64> = self.rows.iter().filter_map(|(_, row)| row.examples_per_s).collect();
                nominal = stats::median(&rates).map(|rate| rate.round().max(1.0));
            }
            let batch = found.or(nominal);
            let one = |at: usize| Some(batch? * self.covered[at] as f64 / self.rows[at].1.examples_per_s?);
            ((0..self.rows.len()).map(one).collect(), batch, found.is_some())
        };
        let mut pen = Pen { rows: self, seconds, examples, by_clock, end: None };
        let steps: Vec<(StepRecord, u64)> =
            (0..self.rows.len()).filter_map(|at| Some((pen.step(at)?, self.covered[at]))).collect();
        if steps.len() < self.rows.len() {
            let without = self.rows.len() - steps.len();
            warnings.push(format!("skipped {without} points without step times"));
        }
        // Rates alone do not give a batch.
        let batch =
            steps.first().map(|(step, covered)| step.examples / covered).filter(|_| timed || by_clock);
        let batch = batch.filter(|&batch| {
            batch > 0
                && steps.iter().all(|(step, covered)| batch.checked_mul(*covered) == Some(step.examples))
        });
        Laid { steps: steps.into_iter().map(|(step, _)| step).collect(), batch, nominal }
    }
}

/// Writes rows as steps.
struct Pen<'a> {
    rows: &'a Rows,
    seconds: Vec<Option<f64>>,
    examples: Option<f64>,
    by_clock: bool,
    end: Option<Nanos>,
}

impl Pen<'_> {
    fn step(&mut self, at: usize) -> Option<StepRecord> {
        let (number, row) = &self.rows.rows[at];
        let covered = self.rows.covered[at] as f64;
        let seconds = self.seconds[at].filter(|seconds| seconds.is_finite() && *seconds > 0.0);
        let (begin, end) = if self.by_clock {
            let end = nanos(row.wall_time)?;
            let first = || Some(Nanos(end.0.saturating_sub(nanos(seconds?)?.0)));
            (self.end.or_else(first)?, end)
        } else {
            let begin = self.end.unwrap_or_default();
            (begin, Nanos(begin.0.checked_add(nanos(seconds?)?.0)?))
        };
        self.end = Some(end);
        let mut step = StepRecord::open(Step(*number), begin);
        step.end = end;
        step.covers = self.rows.covered[at].max(1);
        let examples = match (self.examples, row.examples_per_s) {
            (Some(batch), _) => batch * covered,
            (None, Some(rate)) => rate * seconds.unwrap_or(end.since(begin).seconds()),
            (None, None) => 0.0,
        };
        step.examples = examples.round().min(MOST_EXAMPLES) as u64;
        step.loss = row.loss.map(|loss| loss as f32).filter(|loss| loss.is_finite());
        for phase in Phase::ALL.into_iter().filter(|&phase| phase != Phase::Other) {
            let time = row.phases_ms[phase as usize].and_then(|ms| nanos(f64::from(ms) * 1e-3 * covered));
            let left = end.since(begin).since(step.phases.total());
            step.book(phase, time.unwrap_or_default().min(left));
        }
        Some(step)
    }
}

/// Seconds as nanoseconds, if a run can have so many.
fn nanos(seconds: f64) -> Option<Nanos> {
    (0.0..1e10).contains(&seconds).then(|| Nanos((seconds * 1e9).round() as u64))
}

impl Row {
    fn set(&mut self, meaning: Meaning, point: Point) {
        let positive = Some(point.value).filter(|value| value.is_finite() && *value > 0.0);
        match meaning {
            Meaning::StepTime { per_second } => {
                self.step_s = positive.map(|value| value / f64::from(per_second));
            }
            Meaning::Examples => self.examples_per_s = positive,
            Meaning::Steps => self.steps_per_s = positive,
            Meaning::Loss => self.loss = Some(point.value),
            Meaning::Phase(phase) => self.phases_ms[phase as usize] = Some(point.value as f32),
        }
        self.wall_time = self.wall_time.max(point.wall_time);
    }
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
