//! Where the steady state of a series of step times begins, and what the series looks like.
//!
//! After Barrett et al. (2017): outliers are removed ([`outliers`]), change points split the rest ([`pelt`]), and
//! segments that cannot be distinguished are joined into one level:
//!
//! - two levels are the same if their means differ by at most one standard deviation of a step, or three
//!   standard errors of the difference, with the autocorrelation r of the steps in it: `sqrt((1 + r) / (1 - r))`. PELT
//!   assumes independent steps and so finds changes in slow waves of dependent ones; this undoes it. There is no
//!   tolerance in percent: the answer is the same in any unit, and whatever constant is added to all times;
//! - a segment after which the old level returns is a disturbance and belongs to that level, if it lasts no longer
//!   than either side of it, and a quarter of both together at most;
//! - a level of less than a tenth of the run at its end belongs to the one before, if that lasted: nobody knows what came next.
//!
//! The steady state is the last level. There is none if that
//!
//! - is less than a tenth of the run, or less than half of it and faster than what came before: one fast stretch is no reason to
//!   leave out most of a run;
//! - is one of two alternating levels (five levels or more), or the last of a staircase (four or more), and has not yet
//!   lasted longer than the ones before: twice their mean if alternating, 1.5 times for a staircase;
//! - rises or falls by more than six standard deviations of a step from its first step to its last.
//!
//! Otherwise the verdict compares it with its neighbour, the last level before it that lasted ([`Verdict`]): what came long before
//! says nothing about what changed there. A finished case always has a rate: without a steady state, the steps that count are those
//! of the second opinion, MSER-5 ([`mser`]), which leaves out half of them at most, or all if it has none; after a slowdown in the
//! last quarter all of them count. Slow steps at the very start never do.

use serde::Serialize;

use super::order::mean;
use super::pelt::{self, Pelt};
use super::regression::{self, Regression};
use super::{mser, outliers};

/// With fewer steps than this, no steady state can be found.
const SHORT: usize = 20;

/// Steps that do not count in a run that is too short: the first ones warm caches and fault pages in.
const WARM_UP: usize = 2;

/// A level shorter than this fraction of the run is too short to be the steady state.
const SUBSTANTIAL: f64 = 0.1;

/// A level shorter than this fraction of the run is too short to say that the last one is slower.
const COMPARABLE: f64 = 0.15;

/// A level that is faster than what came before must last for this fraction of the run to be its steady state.
const SETTLED: f64 = 0.5;

/// Distance from the levels before at which a short level at the end is not chance, in units of what noise explains.
const CLEAR: f64 = 2.0;

/// After a slowdown, the slower steps are those that count if they are at least this fraction of the run.
const LASTING: f64 = 0.25;

/// This many levels going up and down until the end are periodic.
const TURNS: usize = 5;

/// This many levels in one direction until the end are a ramp.
const STAIRS: usize = 4;

/// A level that drifts by this many standard deviations of a step is not steady.
const TREND: f64 = 6.0;

/// What a series of step times looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// One level from the start.
    #[default]
    #[serde(rename = "flat")]
    Flat,
    /// Slower steps first, then the steady state.
    #[serde(rename = "warm-up")]
    WarmUp,
    /// The last level is slower than its neighbour.
    #[serde(rename = "slowdown")]
    Slowdown,
    /// One level, but the steps vary widely around it.
    #[serde(rename = "noisy")]
    Noisy,
    /// The last level began too close to the end, or times rise, fall or alternate until the end.
    #[serde(rename = "no steady state")]
    NoSteadyState,
    /// Too few steps to tell.
    #[serde(rename = "too short")]
    TooShort,
}

/// The steady state of a series of step times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SteadyState {
    /// First step that counts.
    pub from: usize,
    /// What the series looks like.
    pub verdict: Verdict,
    /// First steps of all levels after the first, ascending.
    pub changes: Vec<usize>,
    /// Where steps became slower; `None` unless that is the verdict.
    pub slower: Option<Slower>,
    /// Outliers, ascending; slow steps at the very start are warm-up and not among them.
    pub outliers: Vec<usize>,
    /// First step that counts by MSER-5; `None` if it finds none.
    pub mser: Option<usize>,
    /// Whether MSER-5 would start more than a tenth of the run elsewhere, and the steps between are at another level than the
    /// steps after.
    pub disagrees: bool,
}

/// Steps that became slower than their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slower {
    /// First step of the level before.
    pub neighbour: usize,
    /// Its end: the first step that is not in it.
    pub until: usize,
    /// First of the slower steps.
    pub from: usize,
}

/// Finds the steady state in step times, in any unit. Times that are not finite count as outliers.
pub fn find(times: &[f64]) -> SteadyState {
    if times.len() < SHORT {
        let from = WARM_UP.min(times.len().saturating_sub(1));
        return SteadyState { from, verdict: Verdict::TooShort, ..SteadyState::default() };
    }
    Series::new(times).judge()
}

/// The steps without outliers, with their original indices.
struct Series {
    length: usize,
    leading: usize,
    outliers: Vec<usize>,
    places: Vec<usize>,
    values: Vec<f64>,
}

impl Series {
    fn new(times: &[f64]) -> Self {
        let finite: Vec<usize> = (0..times.len()).filter(|&at| times[at].is_finite()).collect();
        let values: Vec<f64> = finite.iter().map(|&at| times[at]).collect();
        let marks = outliers::mark(&values, Pelt::default().shortest);
        let outlier = |at: &usize| marks.outliers.binary_search(at).is_ok();
        let kept: Vec<usize> = (marks.leading..values.len()).filter(|at| !outlier(at)).collect();
        let places: Vec<usize> = kept.iter().map(|&at| finite[at]).collect();
        let leading = if marks.leading > 0 { finite[marks.leading - 1] + 1 } else { 0 };
        let aside = |at: &usize| *at >= leading && places.binary_search(at).is_err();
        Self {
            length: times.len(),
            leading,
            outliers: (0..times.len()).filter(aside).collect(),
            values: kept.iter().map(|&at| values[at]).collect(),
            places,
        }
    }

    fn judge(self) -> SteadyState {
        let changes = Pelt::default().find_changes(&self.values);
        let noise = Noise::new(&self.values, &changes);
        let levels = join_end(noise.join(split(&self.values, &changes)), self.values.len());
        let mser = mser::truncate(&self.values);
        let (cut, verdict) = match judge(&levels, &self.values, &noise) {
            Some(Verdict::Flat) => (0, Verdict::Flat),
            Some(verdict) => (levels.last().map_or(0, |last| last.from), verdict),
            None => (mser.unwrap_or(0), Verdict::NoSteadyState),
        };
        let slower = (verdict == Verdict::Slowdown).then(|| self.slower(&levels)).flatten();
        let lasts = (self.values.len() - cut) as f64 >= LASTING * self.values.len() as f64;
        let cut = if verdict == Verdict::Slowdown && !lasts { 0 } else { cut };
        let verdict = if verdict == Verdict::Flat && self.leading > 0 { Verdict::WarmUp } else { verdict };
        SteadyState {
            from: self.place(cut),
            verdict,
            changes: levels.iter().skip(1).map(|level| self.place(level.from)).collect(),
            slower,
            mser: mser.map(|at| self.place(at)),
            disagrees: verdict != Verdict::NoSteadyState && self.disagree(cut, mser, &noise),
            outliers: self.outliers,
        }
    }

    fn slower(&self, levels: &[Level]) -> Option<Slower> {
        let (last, before) = levels.split_last()?;
        let level = neighbour(before, self.values.len())?;
        let until = if level.to < last.from { self.place(level.to) } else { self.place(last.from) };
        Some(Slower { neighbour: self.place(level.from), until, from: self.place(last.from) })
    }

    /// The original index of a kept step. The first kept one is the end of the warm-up, and outliers after it
    /// do not belong to that.
    fn place(&self, at: usize) -> usize {
        if at == 0 { self.leading.min(self.length - 1) } else { self.places[at] }
    }

    fn disagree(&self, cut: usize, mser: Option<usize>, noise: &Noise) -> bool {
        // MSER without an answer would drop more than half.
        let other = mser.unwrap_or(self.values.len() / 2);
        let (early, late) = (cut.min(other), cut.max(other));
        let between = Level::new(&self.values, early, late);
        let after = Level::new(&self.values, late, self.values.len());
        (late - early) as f64 > SUBSTANTIAL * self.length as f64 && !noise.same(&between, &after)
    }
}

/// Consecutive steps around one mean.
#[derive(Clone, Copy, Debug)]
struct Level {
    from: usize,
    to: usize,
    /// Number of steps in the mean and the squares, without disturbances.
    count: f64,
    mean: f64,
    squares: f64,
}

impl Level {
    fn new(values: &[f64], from: usize, to: usize) -> Self {
        let part = &values[from..to];
        let mean = mean(part).unwrap_or(0.0);
        let squares = part.iter().map(|x| (x - mean).powi(2)).sum();
        Self { from, to, count: part.len() as f64, mean, squares }
    }

    fn length(&self) -> usize {
        self.to - self.from
    }

    /// Both as one level, with the steps between them as its disturbance.
    fn with(&self, next: &Self) -> Self {
        let count = self.count + next.count;
        let step = next.mean - self.mean;
        Self {
            from: self.from,
            to: next.to,
            count,
            mean: self.mean + step * next.count / count,
            squares: self.squares + next.squares + step * step * self.count * next.count / count,
        }
    }
}

fn split(values: &[f64], changes: &[usize]) -> Vec<Level> {
    let starts = std::iter::once(0).chain(changes.iter().copied());
    let ends = changes.iter().copied().chain([values.len()]);
    starts.zip(ends).map(|(from, to)| Level::new(values, from, to)).collect()
}

fn fit_line(values: &[f64]) -> Option<Regression<2>> {
    let rows: Vec<[f64; 2]> = (0..values.len()).map(|at| [1.0, at as f64]).collect();
    regression::fit(&rows, values)
}

/// Whether a line over this many steps rises or falls more than steps deviate from it.
fn drifts(line: &Regression<2>, steps: usize, floor: f64) -> bool {
    line.coefficients[1].abs() * steps as f64 > TREND * line.residual_sd.max(floor)
}

/// Spread of the steps of one level.
struct Noise {
    floor: f64,
    /// Factor by which the variance of a mean of dependent steps exceeds that of independent ones.
    inflation: f64,
}

impl Noise {
    fn new(values: &[f64], changes: &[usize]) -> Self {
        let (mut power, mut product) = (0.0, 0.0);
        let floor = pelt::find_floor(values).unwrap_or(0.0);
        for level in split(values, changes) {
            let part = &values[level.from..level.to];
            // On a ramp, neighbours are similar because of the slope, not because steps depend on each other.
            let line = fit_line(part).filter(|line| drifts(line, part.len(), floor));
            let rest: Vec<f64> = match line {
                Some(line) => {
                    (0..part.len()).map(|at| part[at] - line.predict(&[1.0, at as f64]).value).collect()
                }
                None => part.iter().map(|value| value - level.mean).collect(),
            };
            power += rest.iter().map(|x| x * x).sum::<f64>();
            product += rest.windows(2).map(|w| w[0] * w[1]).sum::<f64>();
        }
        let correlation = if power > 0.0 { (product / power).clamp(0.0, 0.9) } else { 0.0 };
        Self { floor, inflation: (1.0 + correlation) / (1.0 - correlation) }
    }

    fn same(&self, a: &Level, b: &Level) -> bool {
        self.distance(a, b) <= 1.0
    }

    /// Whether a level rises or falls more than steps deviate from its regression line.
    fn drifts(&self, values: &[f64]) -> bool {
        fit_line(values).is_some_and(|line| drifts(&line, values.len(), self.floor))
    }

    /// Distance between two levels, in units of what noise explains.
    fn distance(&self, a: &Level, b: &Level) -> f64 {
        let spread = ((a.squares + b.squares) / (a.count + b.count)).sqrt().max(self.floor);
        let error = spread * (self.inflation * (1.0 / a.count + 1.0 / b.count)).sqrt();
        let reach = spread.max(3.0 * error);
        let apart = (a.mean - b.mean).abs();
        if apart > 0.0 { apart / reach } else { 0.0 }
    }

    /// Joins neighbours that are the same level, the closest first, and disturbances with what surrounds them.
    fn join(&self, mut levels: Vec<Level>) -> Vec<Level> {
        loop {
            let pairs = levels.windows(2).map(|pair| self.distance(&pair[0], &pair[1])).enumerate();
            let closest = pairs.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, distance)| *distance <= 1.0);
            let disturbed = |three: &[Level]| {
                let [before, length, after] = [0, 1, 2].map(|at| three[at].length());
                length <= before.min(after) && 4 * length <= before + after && self.same(&three[0], &three[2])
            };
            let (at, count) = match closest {
                Some((at, _)) => (at, 2),
                None => match levels.windows(3).position(disturbed) {
                    Some(at) => (at, 3),
                    None => return levels,
                },
            };
            let joined = levels[at].with(&levels[at + count - 1]);
            levels.splice(at..at + count, [joined]);
        }
    }
}

/// The verdict about the last level; `None` without a steady state.
fn judge(levels: &[Level], values: &[f64], noise: &Noise) -> Option<Verdict> {
    let (last, before) = levels.split_last()?;
    if !is_substantial(last, values.len())
        || takes_turns(levels)
        || climbs(levels)
        || noise.drifts(&values[last.from..])
    {
        return None;
    }
    if before.is_empty() {
        return Some(Verdict::Flat);
    }
    match neighbour(before, values.len()) {
        Some(neighbour) if neighbour.mean < last.mean => return Some(Verdict::Slowdown),
        // A few fast steps at the start are chance.
        None if before.iter().all(|level| level.mean < last.mean) => return Some(Verdict::Flat),
        _ => {}
    }
    if last.length() as f64 >= SETTLED * values.len() as f64 {
        return Some(Verdict::WarmUp);
    }
    // A last stretch that is a little faster is chance; one that is much faster is another level.
    let lasted = neighbour(before, values.len()).or(before.last().copied())?;
    (noise.distance(&lasted, last) <= CLEAR).then_some(Verdict::Flat)
}

/// Joins a level of the last moment with one before that lasted: whether it would have, nobody knows.
fn join_end(mut levels: Vec<Level>, steps: usize) -> Vec<Level> {
    if let [.., before, last] = levels[..]
        && is_substantial(&before, steps)
        && !is_substantial(&last, steps)
    {
        levels.truncate(levels.len() - 2);
        // The last one's steps belong to it as a disturbance does: they do not change its mean.
        levels.push(Level { to: last.to, ..before });
    }
    levels
}

fn is_substantial(level: &Level, steps: usize) -> bool {
    level.length() as f64 >= SUBSTANTIAL * steps as f64
}

/// The last of the levels before the last that lasted.
fn neighbour(before: &[Level], steps: usize) -> Option<Level> {
    let lasted = |level: &&Level| level.length() as f64 >= COMPARABLE * steps as f64;
    before.iter().rev().find(lasted).copied()
}

/// Whether the last levels alternate up and down, and the last one has lasted little longer than the others.
fn takes_turns(levels: &[Level]) -> bool {
    let turn = |l: &[Level]| (l[1].mean > l[0].mean) == (l[1].mean > l[2].mean);
    goes_on(levels, TURNS, 2.0) && levels[levels.len() - TURNS..].windows(3).all(turn)
}

/// Whether the last levels go in one direction, and the last one has lasted little longer than the others.
fn climbs(levels: &[Level]) -> bool {
    let stair = |l: &[Level]| (l[1].mean > l[0].mean) == (l[2].mean > l[1].mean);
    goes_on(levels, STAIRS, 1.5) && levels[levels.len() - STAIRS..].windows(3).all(stair)
}

/// Whether the last of `count` levels lasts at most `times` the mean of the others.
fn goes_on(levels: &[Level], count: usize, times: f64) -> bool {
    let Some(start) = levels.len().checked_sub(count) else { return false };
    let last = &levels[levels.len() - 1];
    let before = (last.from - levels[start].from) as f64 / (count - 1) as f64;
    last.length() as f64 <= times * before
}

#[cfg(test)]
mod tests;
