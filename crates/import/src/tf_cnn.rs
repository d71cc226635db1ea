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
//!
//! Loggers and launchers put something in front of each line, such as `[1,3]<stdout>:` or a date and a file name. Under MPI every
//! rank may have files of its own: all of them are one run.

mod header;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use paceline_lab::origin::LogPoint;
use paceline_record::Rank;

use self::header::Header;
use super::lines::Lines;
use super::source::LogFile;
use super::{ImportError, Imported, series};

/// Largest relative error of the time between two lines due to rounding.
const OFF: f64 = 0.05;

/// Half of the last decimal that is printed.
const ROUNDING: f64 = 0.05;

/// Most lines that are kept of a run.
const MOST: usize = 1_000_000;

/// Higher process numbers and longer lists of devices are treated as damage.
const PROCESSES: u32 = 1 << 12;

/// Relative difference from which the total of a log is another rate than that of its lines.
const DIFFER: f64 = 0.02;

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
    let told = text.lines().filter(|line| header.read(line)).count();
    told >= 4 && header.is_own() || text.lines().any(|line| matches!(read_line(line), Some(Told::Steps(_))))
}

/// The runs of a file: a header starts a new one if the previous run has steps.
fn read(path: &Path, rank: Option<Rank>) -> Result<Vec<Log>, ImportError> {
    let mut lines = Lines::open(path)?;
    let (mut logs, mut log, mut named) = (Vec::new(), Log::default(), rank.is_some());
    while let Some(line) = lines.next()? {
        let process = tag(&line).or(rank);
        named |= process.is_some();
        match read_line(&line) {
            Some(Told::Steps(line)) => log.push(process, line),
            Some(Told::Total(rate)) => log.total = log.total.or(Some(rate)),
            None if line.contains("Done warm up") || line.contains("Running warm up") => log.warmed_up = true,
            None => {
                let mut header = Header::default();
                if header.read(&line) {
                    if header.has_model() && !log.lines.is_empty() {
                        logs.push(std::mem::take(&mut log));
                    }
                    log.header.add(header);
                }
            }
        }
    }
    logs.push(log);
    for log in logs.iter_mut().filter(|log| log.lines.len() > 1 && !named) {
        let processes = log.lines.len();
        log.warnings.push(format!(
            "the log mixes lines of {processes} processes without naming them: lines of a step are assigned in order"
        ));
    }
    if lines.passed_over > 0 {
        logs[0].warnings.push(format!("skipped {} lines that are too long", lines.passed_over));
    }
    Ok(logs)
}

/// The runs of a log, or of a job whose ranks have files of their own.
pub fn import(files: &[LogFile<'_>]) -> Result<Vec<Imported>, ImportError> {
    let mut runs: Vec<Log> = Vec::new();
    let mut others: Vec<(PathBuf, Log)> = Vec::new();
    for &(path, rank) in files {
        for (place, log) in read(path, rank)?.into_iter().enumerate() {
            match runs.get_mut(place) {
                // Beside the files of the ranks, a launcher may keep what all of them wrote.
                _ if rank.is_none() && files.len() > 1 => others.push((path.into(), log)),
                Some(run) => run.add(log),
                None => runs.push(log),
            }
        }
    }
    runs.retain(|log| !log.lines.is_empty());
    for (path, mut log) in others {
        match runs.iter_mut().find(|run| run.has_all_of(&log)) {
            Some(run) => {
                (log.lines, log.warnings) = Default::default();
                run.add(log);
                let note = format!("{} repeats lines of the ranks: they count once", path.display());
                if run.warnings.last() != Some(&note) {
                    run.warnings.push(note);
                }
            }
            None => runs.push(log),
        }
    }
    runs.retain(|log| !log.lines.is_empty());
    match (runs.is_empty(), files) {
        (true, [(path, _), ..]) => {
            Err(ImportError::bad(*path, "not a tf_cnn_benchmarks log: no line has images/sec"))
        }
        _ => Ok(runs.into_iter().map(Log::into_run).collect()),
    }
}

/// The content of a line.
enum Told {
    Steps(Line),
    Total(f64),
}

/// The rank in what `mpirun --tag-output` and `horovodrun` put before a line: `[1,3]<stdout>:` or `[3]<stderr>:`.
fn tag(line: &str) -> Option<Rank> {
    let (before, _) = line.split_once("]<std")?;
    let rank = before.rsplit(['[', ',']).next()?.trim().parse().ok();
    rank.filter(|&rank| rank < PROCESSES).map(Rank)
}

fn read_line(line: &str) -> Option<Told> {
    let (before, after) = line.split_once("images/sec:")?;
    let mut words = after.split_whitespace();
    let rate: f64 = words.next()?.parse().ok().filter(|rate| (1e-12..1e12).contains(rate))?;
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

    /// Adds what another file of the same run has.
    fn add(&mut self, other: Self) {
        self.header.add(other.header);
        for (rank, lines) in other.lines {
            lines.into_iter().for_each(|line| self.push(Some(rank), line));
        }
        self.total = self.total.or(other.total);
        self.warmed_up |= other.warmed_up;
        self.warnings.extend(other.warnings);
    }

    /// Whether it has each line of another log, whoever wrote it.
    fn has_all_of(&self, other: &Self) -> bool {
        let key = |line: &Line| (line.steps, line.images_per_s.to_bits());
        let own: HashSet<_> = self.lines.values().flatten().map(key).collect();
        other.lines.values().flatten().all(|line| own.contains(&key(line)))
    }

    /// Lines of all processes together: their rates add up. Of those that wrote nothing, `missing`, the mean is assumed.
    fn together(&self, missing: u32) -> Vec<Line> {
        let written = self.lines.len() as f64;
        let scale = (written + f64::from(missing)) / written;
        let Some(first) = self.lines.values().next() else { return Vec::new() };
        let sum = |line: &Line| {
            let of = |lines: &Vec<Line>| {
                let place = lines.binary_search_by_key(&line.steps, |other| other.steps).ok()?;
                Some(lines[place].images_per_s)
            };
            let rate: Option<f64> = self.lines.values().map(of).sum();
            Some(Line { images_per_s: scale * rate?, ..*line })
        };
        first.iter().filter_map(sum).collect()
    }

    /// The run as one of ours: a device is a worker.
    fn into_run(self) -> Imported {
        let mut run =
            Imported { case: self.header.case(), warnings: self.warnings.clone(), ..Imported::default() };
        let told = self.header.devices();
        let devices = told.unwrap_or(1).clamp(1, PROCESSES);
        let highest = self.lines.keys().next_back().map_or(0, |rank| rank.0).min(PROCESSES - 1);
        // A process uses all devices that its header lists, but under Horovod each device has its own.
        let (processes, each) = match self.header.is_horovod() {
            true => (devices.max(highest + 1), 1),
            false => (highest + 1, devices),
        };
        run.case.workers = (processes * each).min(PROCESSES);
        let written = self.lines.len() as u32;
        if written < processes {
            run.warnings.push(format!(
                "the log has lines of {written} of {processes} processes: the others are assumed to be as fast, as in the \
                 benchmark's own total"
            ));
        }
        if self.warmed_up {
            run.warnings.push("warm-up steps are not in the log: step 1 is the first one after them".into());
        }
        let lines = self.together(processes.saturating_sub(written));
        let kept = resolve(&lines, ROUNDING * f64::from(processes));
        run.warnings
            .push("the log prints means since the warm-up: a point is the mean between two lines".into());
        if kept.len() < lines.len() {
            run.warnings.push(format!(
                "lines are merged where one decimal of a mean does not give their step time within {:.0} %",
                100.0 * OFF
            ));
        }
        let rate = lines.last().map_or(f64::NAN, |line| line.images_per_s);
        if let Some(total) = self.total.filter(|total| (total / rate - 1.0).abs() > DIFFER) {
            run.warnings.push(match told {
                Some(_) => format!(
                    "the log's total is {total:.2} images/s by the clock, but its lines give {rate:.2}: the rest was between steps"
                ),
                None => format!(
                    "the log's total is {total:.2} images/s, but its lines give {rate:.2}: there may be more processes, and the \
                     log does not say how many"
                ),
            });
        }
        let batch = run.case.batch_per_worker.map(|batch| batch as f64 * f64::from(run.case.workers));
        let mut before = Line { steps: 0, images_per_s: 1.0, loss: None };
        let point = |line: &Line| {
            let (covers, time) = (line.steps - before.steps, time(line) - time(&before));
            before = *line;
            LogPoint {
                step: line.steps,
                covers,
                examples_per_s: Some(covers as f64 / time),
                seconds: batch.map(|batch| batch * time),
                loss: line.loss.filter(|loss| loss.is_finite()),
            }
        };
        let points: Vec<LogPoint> = kept.iter().map(point).collect();
        run.progress = (!points.is_empty()).then(|| series::bound(points));
        run
    }
}

/// Steps over rate: the time of a line's steps, in units of a batch.
fn time(line: &Line) -> f64 {
    line.steps as f64 / line.images_per_s
}

/// Lines between which the time is known, each rate being off by `rounding` at most; the last one is always included.
fn resolve(lines: &[Line], rounding: f64) -> Vec<Line> {
    let uncertainty = |line: &Line| time(line) * rounding / line.images_per_s;
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

#[cfg(test)]
mod tests;
