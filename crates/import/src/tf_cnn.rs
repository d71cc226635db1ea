//! Output of tf_cnn_benchmarks: a header that describes the case, then the rate every few steps.
//!
//! ```text
//! Model:       resnet50
//! Batch size:  128 global
//!              64 per device
//! ...
//! 10<TAB>images/sec: 245.3 +/- 1.2 (jitter = 2.0)<TAB>7.593
//! total images/sec: 245.01
//! ```
//!
//! The rate of a line is the batch over the mean time of *all* steps since the warm-up. The time of all steps up to a line is
//! thus steps * batch / rate, and the time between two lines is the difference, as far as one printed decimal
//! allows: lines that cannot be distinguished are merged.

mod header;

use std::collections::BTreeMap;
use std::path::Path;

use paceline_record::{Nanos, Rank, Step, StepRecord};

use self::header::Header;
use super::lines::Lines;
use super::{ImportError, Imported, ImportedRank};

/// Largest relative error of the time between two lines due to rounding.
const OFF: f64 = 0.05;

/// Half of the last decimal that is printed.
const ROUNDING: f64 = 0.05;

/// Most lines that are kept of a run.
const MOST: usize = 1_000_000;

/// Higher process numbers and longer lists of devices are treated as damage.
const PROCESSES: u32 = 1 << 12;

/// The most steps of all workers together.
const MOST_STEPS: usize = 4_000_000;

/// A line about steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Steps since the warm-up.
    pub steps: u64,
    /// Images per second over all of them.
    pub images_per_s: f64,
    /// Loss of the last; may be NaN.
    pub loss: Option<f32>,
}

/// One run of the benchmark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// What the header says.
    pub header: Header,
    /// Lines by process; 0 if there is only one.
    pub lines: BTreeMap<Rank, Vec<Line>>,
    /// Images per second of all processes over all steps, by the clock.
    pub total: Option<f64>,
    /// Whether there were warm-up steps before the timed ones.
    pub warmed_up: bool,
    /// What was salvaged, guessed or skipped, one sentence each.
    pub warnings: Vec<String>,
    kept: usize,
}

/// Whether a file with this beginning is a log of the benchmark.
pub fn recognise(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let mut header = Header::default();
    let told = text.lines().filter(|line| header.read(untag(line).1)).count();
    told >= 4 && header.model.is_some()
        || text.lines().any(|line| matches!(read_line(untag(line).1), Some(Told::Steps(_))))
}

/// The runs of a log: a header starts a new one if the previous run has steps.
pub fn read(path: &Path) -> Result<Vec<Log>, ImportError> {
    let mut lines = Lines::open(path)?;
    let (mut logs, mut log, mut tagged) = (Vec::new(), Log::default(), false);
    while let Some(line) = lines.next()? {
        let (process, text) = untag(&line);
        tagged |= process.is_some();
        match read_line(text) {
            Some(Told::Steps(line)) => log.push(process, line),
            Some(Told::Total(rate)) => log.total = log.total.or(Some(rate)),
            None if text.contains("Done warm up") || text.contains("Running warm up") => log.warmed_up = true,
            None => {
                let begins = text.starts_with("Model:") && !log.lines.is_empty();
                if begins {
                    logs.push(std::mem::take(&mut log));
                }
                log.header.read(text);
            }
        }
    }
    logs.push(log);
    logs.retain(|log| !log.lines.is_empty());
    if logs.is_empty() {
        return Err(ImportError::bad(path, "not a tf_cnn_benchmarks log: no line has images/sec"));
    }
    for log in &mut logs {
        if !tagged {
            log.warn_mixed();
        }
        log.warn_warm_up();
        if lines.passed_over > 0 {
            log.warnings.push(format!("skipped {} lines that are too long", lines.passed_over));
        }
    }
    Ok(logs)
}

/// The runs of a log as runs of ours.
pub fn import(path: &Path) -> Result<Vec<Imported>, ImportError> {
    Ok(read(path)?.into_iter().map(Log::into_run).collect())
}

/// The content of a line.
enum Told {
    Steps(Line),
    Total(f64),
}

/// Removes the prefix that `mpirun --tag-output` and `horovodrun` add to a line, such as `[1,3]<stdout>:`.
fn untag(line: &str) -> (Option<Rank>, &str) {
    let tagged = line.strip_prefix("[1,").and_then(|rest| {
        let (rank, rest) = rest.split_once(']')?;
        let rest = rest.strip_prefix("<stdout>:").or_else(|| rest.strip_prefix("<stderr>:"))?;
        Some((rank.parse().ok().filter(|&rank| rank < PROCESSES)?, rest))
    });
    tagged.map_or((None, line), |(rank, rest)| (Some(Rank(rank)), rest))
}

fn read_line(line: &str) -> Option<Told> {
    let (before, after) = line.split_once("images/sec:")?;
    let mut words = after.split_whitespace();
    let rate: f64 = words.next()?.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0)?;
    let before = before.trim();
    if before.ends_with("total") {
        return Some(Told::Total(rate));
    }
    // A logger may have added a date, a process and a location.
    let steps = before.rsplit([' ', '\t', ']', ':']).next()?.parse().ok().filter(|&steps| steps > 0)?;
    let loss = after.split('\t').nth(1).and_then(|loss| loss.trim().parse().ok());
    Some(Told::Steps(Line { steps, images_per_s: rate, loss }))
}

impl Log {
    /// Adds a line. If lines do not name their process, the first process that is behind is assumed to have written it.
    fn push(&mut self, process: Option<Rank>, line: Line) {
        if self.kept == MOST {
            self.warnings.push(format!("only the first {MOST} lines were kept"));
        }
        self.kept += 1;
        if self.kept > MOST {
            return;
        }
        let behind = |rank: &Rank| self.lines[rank].last().is_none_or(|last| last.steps < line.steps);
        let process = process.or_else(|| self.lines.keys().copied().find(behind));
        let process = process.unwrap_or(Rank(self.lines.len() as u32));
        let lines = self.lines.entry(process).or_default();
        if lines.last().is_none_or(|last| last.steps < line.steps) {
            lines.push(line);
        }
    }

    fn warn_mixed(&mut self) {
        if self.lines.len() > 1 {
            self.warnings.push(format!(
                "the log mixes lines of {} processes without naming them: lines of a step are assigned in order",
                self.lines.len()
            ));
        }
    }

    fn warn_warm_up(&mut self) {
        if self.warmed_up {
            self.warnings.push("warm-up steps are not in the log: step 1 is the first one after them".into());
        }
    }

    /// Number of processes in the total, as with Horovod: it is a power of two times the rate of the only one, or close to a
    /// whole number of times. The total is by the clock, which loses a little between steps.
    fn processes_by_total(&self) -> Option<u32> {
        let last = self.lines.values().next()?.last()?;
        let times = self.total? / last.images_per_s;
        let near = |whole: f64, off: f64| (times / whole - 1.0).abs() <= off && whole <= f64::from(PROCESSES);
        let power = times.max(1.0).log2().round().exp2();
        [(power, 0.1), (times.round().max(1.0), 0.02)]
            .into_iter()
            .find_map(|(whole, off)| near(whole, off).then_some(whole as u32))
    }

    /// The run as one of ours: a device is a worker.
    pub fn into_run(self) -> Imported {
        let mut run =
            Imported { case: self.header.case(), warnings: self.warnings.clone(), ..Imported::default() };
        let processes = self.lines.len() as u32;
        let by_total = self.processes_by_total().filter(|_| processes == 1);
        let (devices, ground) = match (self.header.devices, self.header.device_count(), by_total) {
            (Some(listed), ..) => (listed, None),
            (None, Some(shared), _) => (shared, Some("the global batch divided by the batch per device")),
            (None, None, Some(times)) => (times, Some("its total divided by the rate of its lines")),
            (None, None, None) => (1, None),
        };
        let devices = devices.clamp(1, PROCESSES);
        if let Some(ground) = ground.filter(|_| devices > 1) {
            run.warnings.push(format!("the log lists no devices: {devices} is {ground}"));
        }
        // Lines of one process and a total of several: each has its own device.
        let horovod = self.header.is_horovod() || by_total.is_some_and(|times| times > 1 && times == devices);
        let highest = self.lines.keys().next_back().map_or(0, |rank| rank.0);
        // One process uses all devices that its header lists, but under Horovod each device has its own.
        let each = if horovod || processes > 1 { 1 } else { devices };
        let workers = if horovod { devices.max(highest + 1) } else { (highest + 1) * each }.min(PROCESSES);
        let batch = run.case.batch_per_worker;
        let nominal = batch.map_or_else(
            || {
                let first = self.lines.values().flatten().next().map_or(1.0, |line| line.images_per_s);
                *run.nominal.insert((first / f64::from(each)).round().max(1.0))
            },
            |batch| batch as f64,
        );
        if each > 1 {
            run.warnings
                .push(format!("one process uses {each} devices: each is shown as a worker at the same pace"));
        }
        if processes < workers / each {
            run.warnings.push(format!(
                "the log has lines of {processes} of {workers} processes: the others are assumed to be as fast as the first, as \
                 in the benchmark's own total"
            ));
        }
        let mut merged = false;
        let first = self.lines.values().next().expect("invariant: a log has lines");
        let mut rate = 0.0;
        for rank in (0..workers).map(Rank) {
            let lines = self.lines.get(&Rank(rank.0 / each)).unwrap_or(first);
            let mut kept = resolve(lines);
            merged |= kept.len() < lines.len();
            kept.truncate(MOST_STEPS / workers as usize);
            rate += lines.last().map_or(0.0, |line| line.images_per_s / f64::from(each));
            run.ranks.push(ImportedRank {
                rank,
                steps: steps(&kept, nominal, f64::from(each)),
                peak_device: None,
            });
        }
        run.case.workers = workers;
        run.warnings.push(
            "the log prints means since the warm-up: each step is shown as the mean of the steps between two lines"
                .into(),
        );
        if merged {
            run.warnings.push(format!(
                "lines are merged where one decimal of a mean does not give their step time within {:.0} %",
                100.0 * OFF
            ));
        }
        if let Some(total) = self.total.filter(|total| (total / rate - 1.0).abs() > 0.02) {
            run.warnings.push(format!(
                "the log's total is {total:.2} images/s by the clock, but the step times give {rate:.2}: the rest was between steps"
            ));
        }
        run
    }
}

/// Steps over rate: the time of a line's steps, in units of a batch.
fn time(line: &Line) -> f64 {
    line.steps as f64 / line.images_per_s
}

/// Rounding error of that time.
fn uncertainty(line: &Line) -> f64 {
    time(line) * ROUNDING / line.images_per_s
}

/// Lines between which the time is known; the last one is always included.
fn resolve(lines: &[Line]) -> Vec<Line> {
    let tells = |before: Option<&Line>, line: &Line| {
        let (begin, off) = before.map_or((0.0, 0.0), |before| (time(before), uncertainty(before)));
        let apart = time(line) - begin;
        apart > 0.0 && off + uncertainty(line) <= OFF * apart
    };
    let mut kept: Vec<Line> = Vec::new();
    for line in lines {
        if tells(kept.last(), line) {
            kept.push(*line);
        }
    }
    if let Some(last) = lines.last() {
        while kept.last().is_some_and(|before| before != last && !tells(Some(before), last)) {
            kept.pop();
        }
        if kept.last() != Some(last) {
            kept.push(*last);
        }
    }
    kept
}

/// Steps between lines, of a worker that does `batch` images a step and has one of `share` parts of the rate.
fn steps(lines: &[Line], batch: f64, share: f64) -> Vec<StepRecord> {
    let nanos = |line: &Line| Nanos((time(line) * batch * share * 1e9).clamp(0.0, 1e18).round() as u64);
    let (mut begin, mut done) = (Nanos(0), 0);
    let step = |line: &Line| {
        let mut step = StepRecord::open(Step(line.steps), begin);
        step.end = nanos(line).max(begin);
        step.covers = line.steps - done;
        step.examples = ((line.steps - done) as f64 * batch).min(1e12) as u64;
        step.loss = line.loss.filter(|loss| loss.is_finite());
        (begin, done) = (step.end, line.steps);
        step
    };
    lines.iter().map(step).collect()
}

#[cfg(test)]
mod tests;
