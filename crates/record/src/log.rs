//! The run log: append-only JSON lines.
//!
//! A case's folder holds `rank-<r>.jsonl`, written by each worker, and `launcher.jsonl`, written by the process that
//! started them. The first line is the header; it names the format and its version:
//!
//! ```text
//! {"format":"paceline-log","version":5,"rank":0,"world":1}
//! {"format":"paceline-log","version":5,"case":{"model":"resnet50","workers":1,...}}
//! ```
//!
//! Every further line is one event, an object whose one key names it. A rank writes
//!
//! ```text
//! {"main":{"at":81020304,"pid":4711}}
//! {"compiled":{"at":81520304,"planned":412000000}}
//! {"step":{"step":0,"begin":81520400,"end":98234000,"phases":{"forward":9000000,...},"examples":64,"loss":2.31}}
//! {"evaluated":{"at":98230000,"steps":1,"examples":10000,"loss":2.1,"correct":1730}}
//! {"saved":{"at":98233000,"steps":1,"bytes":27000000}}
//! {"done":{"at":98240000,"peak_resident":430000000}}
//! ```
//!
//! and the launcher
//!
//! ```text
//! {"spawn":{"rank":0,"at":81000000}}
//! {"reap":{"rank":0,"at":98300000,"exit":{"code":0}}}
//! {"over":{"outcome":"done","reason":null}}
//! ```
//!
//! Times are nanoseconds on the host's monotonic clock (`CLOCK_MONOTONIC`), which all processes share; a simulated run has
//! a clock of its own, from 0. A run lasts from the first spawn to the last reap. Each rank's time over that span is tiled
//! by phases: `launch` up to its `main`, `init` up to its first step, the steps' own phases, `tail` from the end of its
//! last step, and `other`, the rest.
//!
//! Each event of a worker reaches the system in one write, so that whatever ends a process leaves whole lines and at most
//! one torn last line, which readers leave out. A whole line that is no event is an error. Fields that a reader does not
//! know are passed over; what cannot be read by an older reader raises the version. Version 2 added `evaluated` and
//! `saved`; version 3 members and rosters, recoveries, a step's `generation` and `scheduling`, and a porter's log; version 4
//! hosts, their clocks, and what a porter took; version 5 what a rank tells whose launcher knows nothing of its training.
//! `docs/run-log.md` has every field.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{
    Bytes, EvalRecord, Host, LauncherEvent, LauncherHeader, LogError, Member, MemberChange, MemberEvent,
    MemberHeader, Nanos, Outcome, PorterEvent, PorterHeader, Rank, RankEvent, RankHeader, Recovery, Step,
    StepRecord, Who,
};

/// The version that this program writes. It reads all versions up to it.
pub const VERSION: u32 = 5;

const FORMAT: &str = "paceline-log";

/// Name of a rank's log in its case's folder.
pub fn rank_file(rank: Rank) -> String {
    format!("rank-{rank}.jsonl")
}

/// Name of a member's log in its case's folder.
pub fn member_file(member: Member) -> String {
    format!("member-{member}.jsonl")
}

/// Name of the launcher's log in its case's folder.
pub const LAUNCHER_FILE: &str = "launcher.jsonl";

/// Name of the launcher's log of a machine whose first rank is this one, in a run whose ranks are numbered over several machines.
pub fn launcher_file(first: Rank) -> String {
    if first == Rank(0) { LAUNCHER_FILE.into() } else { format!("launcher-{first}.jsonl") }
}

/// Name of the log of a host's porter in its case's folder; it is there only in runs on several hosts.
pub const PORTER_FILE: &str = "porter.jsonl";

/// Name of the folder of another host's logs in its case's folder, once they have been gathered on the first host.
pub fn host_folder(host: Host) -> String {
    format!("host-{}", host.0)
}

#[derive(Serialize)]
struct Stamped<'a, H> {
    format: &'static str,
    version: u32,
    #[serde(flatten)]
    header: &'a H,
}

#[derive(Deserialize)]
struct Stamp {
    format: String,
    version: u32,
}

/// Appends events to a log, one write each, without allocating once its line has reached its usual length.
#[derive(Debug)]
pub struct Writer<E> {
    path: PathBuf,
    /// Open while every event is written at once; closed while lines are collected.
    file: Option<File>,
    /// Lines that are not yet written.
    lines: Vec<u8>,
    events: PhantomData<fn(E)>,
}

/// A collecting writer writes when it holds this many bytes.
const COLLECTED: usize = 64 << 10;

/// A rank's log, open for writing.
pub type RankWriter = Writer<RankEvent>;

/// The launcher's log, open for writing.
pub type LauncherWriter = Writer<LauncherEvent>;

/// A porter's log, open for writing.
pub type PorterWriter = Writer<PorterEvent>;

impl RankWriter {
    /// Starts `rank-<r>.jsonl` in a case's folder.
    pub fn create(folder: &Path, header: &RankHeader) -> Result<Self, LogError> {
        Self::start(folder.join(rank_file(header.rank)), header)
    }

    /// Starts `member-<m>.jsonl` in a case's folder.
    pub fn create_of_member(folder: &Path, header: &MemberHeader) -> Result<Self, LogError> {
        Self::start(folder.join(member_file(header.member)), header)
    }
}

impl LauncherWriter {
    /// Starts `launcher.jsonl` in a case's folder, and holds it for as long as this lives: that is how others know that the
    /// run is under way (see [`LauncherLog::is_held`]). It appears with its header, held.
    pub fn create(folder: &Path, header: &LauncherHeader) -> Result<Self, LogError> {
        Self::create_of_machine(folder, Rank(0), header)
    }

    /// The same for the launcher of a machine whose first rank is `first`.
    pub fn create_of_machine(folder: &Path, first: Rank, header: &LauncherHeader) -> Result<Self, LogError> {
        let (path, draft) = (folder.join(launcher_file(first)), folder.join(".launcher"));
        let io = |source| LogError::Io { path: path.clone(), source };
        let file = File::create(&draft).map_err(io)?;
        // On a file system without locks nobody can tell that the run is under way; that is no reason not to run.
        let _ = file.lock();
        let writer = Self::begin(path.clone(), file, header)?;
        fs::rename(&draft, &path).map_err(io)?;
        Ok(writer)
    }
}

impl PorterWriter {
    /// Starts `porter.jsonl` in a case's folder.
    pub fn create(folder: &Path, header: &PorterHeader) -> Result<Self, LogError> {
        Self::start(folder.join(PORTER_FILE), header)
    }
}

impl<E: Serialize> Writer<E> {
    fn start<H: Serialize>(path: PathBuf, header: &H) -> Result<Self, LogError> {
        let file = File::create(&path).map_err(|source| LogError::Io { path: path.clone(), source })?;
        Self::begin(path, file, header)
    }

    fn begin<H: Serialize>(path: PathBuf, file: File, header: &H) -> Result<Self, LogError> {
        let mut writer = Self { path, file: Some(file), lines: Vec::with_capacity(512), events: PhantomData };
        writer.write_line(&Stamped { format: FORMAT, version: VERSION, header })?;
        Ok(writer)
    }

    /// The same log, but events are collected and written many at a time, and the file is open only then: for one
    /// process that writes the logs of a thousand ranks. What is left is written by [`Self::flush`].
    pub fn collecting(self) -> Self {
        Self { file: None, ..self }
    }

    /// Appends an event.
    pub fn append(&mut self, event: &E) -> Result<(), LogError> {
        self.write_line(event)
    }

    /// Writes what has been collected.
    pub fn flush(&mut self) -> Result<(), LogError> {
        let written = match &mut self.file {
            Some(file) => file.write_all(&self.lines),
            None => {
                let file = OpenOptions::new().append(true).open(&self.path);
                file.and_then(|mut file| file.write_all(&self.lines))
            }
        };
        self.lines.clear();
        written.map_err(|source| LogError::Io { path: self.path.clone(), source })
    }

    fn write_line<T: Serialize>(&mut self, value: &T) -> Result<(), LogError> {
        let before = self.lines.len();
        serde_json::to_writer(&mut self.lines, value).map_err(|error| {
            self.lines.truncate(before);
            LogError::Io { path: self.path.clone(), source: error.into() }
        })?;
        self.lines.push(b'\n');
        if self.file.is_some() || self.lines.len() >= COLLECTED { self.flush() } else { Ok(()) }
    }
}

/// Reads a log's whole lines, event by event. At the end of the file it can be asked again later: a log that is still
/// being written can be followed.
#[derive(Debug)]
pub struct Reader<H, E> {
    path: PathBuf,
    file: BufReader<File>,
    /// The line so far; what is left in it at the end of the file is torn, or not yet written to its end.
    line: Vec<u8>,
    number: u64,
    header: H,
    events: PhantomData<fn() -> E>,
}

/// A rank's log, open for reading.
pub type RankReader = Reader<RankHeader, RankEvent>;

/// A member's log, open for reading.
pub type MemberReader = Reader<MemberHeader, RankEvent>;

/// The launcher's log, open for reading.
pub type LauncherReader = Reader<LauncherHeader, LauncherEvent>;

/// A porter's log, open for reading.
pub type PorterReader = Reader<PorterHeader, PorterEvent>;

impl RankReader {
    /// Opens `rank-<r>.jsonl` in a case's folder.
    pub fn open(folder: &Path, rank: Rank) -> Result<Self, LogError> {
        Self::begin(folder.join(rank_file(rank)))
    }
}

impl MemberReader {
    /// Opens `member-<m>.jsonl` in a case's folder.
    pub fn open(folder: &Path, member: Member) -> Result<Self, LogError> {
        Self::begin(folder.join(member_file(member)))
    }
}

impl PorterReader {
    /// Opens `porter.jsonl` in a case's folder; `None` where there is none: the run was on one host.
    pub fn open(folder: &Path) -> Result<Option<Self>, LogError> {
        match Self::begin(folder.join(PORTER_FILE)) {
            Err(LogError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            reader => reader.map(Some),
        }
    }
}

impl LauncherReader {
    /// Opens `launcher.jsonl` in a case's folder.
    pub fn open(folder: &Path) -> Result<Self, LogError> {
        Self::begin(folder.join(LAUNCHER_FILE))
    }
}

impl<H: DeserializeOwned, E: DeserializeOwned> Reader<H, E> {
    fn begin(path: PathBuf) -> Result<Self, LogError> {
        let io = |source| LogError::Io { path: path.clone(), source };
        let mut file = BufReader::new(File::open(&path).map_err(io)?);
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line).map_err(io)?;
        let stamp = match serde_json::from_slice::<Stamp>(&line) {
            Ok(stamp) if stamp.format == FORMAT && line.ends_with(b"\n") => stamp,
            _ => return Err(LogError::NoHeader { path }),
        };
        if !(1..=VERSION).contains(&stamp.version) {
            return Err(LogError::Version { path, found: stamp.version });
        }
        let header = serde_json::from_slice(&line).map_err(|error| LogError::Garbage {
            path: path.clone(),
            line: 1,
            why: error.to_string(),
        })?;
        line.clear();
        Ok(Self { path, file, line, number: 1, header, events: PhantomData })
    }

    /// The first line.
    pub fn header(&self) -> &H {
        &self.header
    }

    /// The next event, or `None` where the whole lines end for now.
    pub fn next_event(&mut self) -> Result<Option<E>, LogError> {
        self.file
            .read_until(b'\n', &mut self.line)
            .map_err(|source| LogError::Io { path: self.path.clone(), source })?;
        if !self.line.ends_with(b"\n") {
            return Ok(None);
        }
        self.number += 1;
        let event = serde_json::from_slice(&self.line).map_err(|error| LogError::Garbage {
            path: self.path.clone(),
            line: self.number,
            why: error.to_string(),
        });
        self.line.clear();
        event.map(Some)
    }
}

/// The first line of a worker's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerHeader {
    /// A rank's, of a run whose workers stay.
    Rank(RankHeader),
    /// A member's, of a run whose workers come and go.
    Member(MemberHeader),
}

impl WorkerHeader {
    /// Whose log it is.
    pub fn who(&self) -> Who {
        match self {
            Self::Rank(header) => Who::Rank(header.rank),
            Self::Member(header) => Who::Member(header.member),
        }
    }

    /// A member's place on its host; ranks have none.
    pub fn seat(&self) -> Option<u32> {
        match self {
            Self::Rank(_) => None,
            Self::Member(header) => Some(header.seat),
        }
    }
}

/// A fault that was asked for, as the worker told of it the moment before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlantedFault {
    /// The moment before.
    pub at: Nanos,
    /// The step that it is in.
    pub step: Step,
    /// The fault, in the words of `--faults`.
    pub fault: String,
}

/// All that a rank or a member told.
#[derive(Clone, Debug, PartialEq)]
pub struct RankLog {
    /// Whose log it is.
    pub header: WorkerHeader,
    /// The worker's first instruction.
    pub main: Option<Nanos>,
    /// Memory that the program planned.
    pub planned: Option<Bytes>,
    /// The steps that ended, in order.
    pub steps: Vec<StepRecord>,
    /// The tests of the network, in order; only rank 0 tells of them.
    pub evaluations: Vec<EvalRecord>,
    /// Phases of recoveries, in order.
    pub recoveries: Vec<Recovery>,
    /// Faults that were planted in it, in order.
    pub faults: Vec<PlantedFault>,
    /// What a reader should know, in order.
    pub notes: Vec<String>,
    /// When the worker had nothing left to do; `None` if it did not live to tell.
    pub done: Option<Nanos>,
    /// The most memory the worker held.
    pub peak_resident: Option<Bytes>,
    /// Part of that which it shares with the other ranks.
    pub shared: Option<Bytes>,
    /// The most memory of a device that the worker held.
    pub peak_device: Option<Bytes>,
}

impl RankLog {
    /// The log of a worker that has told nothing yet.
    pub const fn empty(header: WorkerHeader) -> Self {
        Self {
            header,
            main: None,
            planned: None,
            steps: Vec::new(),
            evaluations: Vec::new(),
            recoveries: Vec::new(),
            faults: Vec::new(),
            notes: Vec::new(),
            done: None,
            peak_resident: None,
            shared: None,
            peak_device: None,
        }
    }

    /// Reads `rank-<r>.jsonl` in a case's folder.
    pub fn read(folder: &Path, rank: Rank) -> Result<Self, LogError> {
        Self::read_folding(folder, rank, |_| {})
    }

    /// The same; `fold` sees each step before it is kept, and may take out what need not be: a long run's exchanges
    /// would fill the memory.
    pub fn read_folding(
        folder: &Path,
        rank: Rank,
        fold: impl FnMut(&mut StepRecord),
    ) -> Result<Self, LogError> {
        let reader = RankReader::open(folder, rank)?;
        let header = WorkerHeader::Rank(reader.header().clone());
        Self::collect(header, reader, fold)
    }

    /// Reads `member-<m>.jsonl` in a case's folder, as [`Self::read_folding`] does.
    pub fn read_member_folding(
        folder: &Path,
        member: Member,
        fold: impl FnMut(&mut StepRecord),
    ) -> Result<Self, LogError> {
        let reader = MemberReader::open(folder, member)?;
        let header = WorkerHeader::Member(reader.header().clone());
        Self::collect(header, reader, fold)
    }

    /// Reads `member-<m>.jsonl` in a case's folder.
    pub fn read_member(folder: &Path, member: Member) -> Result<Self, LogError> {
        Self::read_member_folding(folder, member, |_| {})
    }

    fn collect<H: DeserializeOwned>(
        header: WorkerHeader,
        mut reader: Reader<H, RankEvent>,
        mut fold: impl FnMut(&mut StepRecord),
    ) -> Result<Self, LogError> {
        let mut log = Self::empty(header);
        while let Some(event) = reader.next_event()? {
            match event {
                RankEvent::Main { at, .. } => log.main = Some(at),
                RankEvent::Compiled { planned, .. } => log.planned = planned,
                RankEvent::Step(mut step) => {
                    let expected = log.steps.last().map_or(step.begin, |last| last.end);
                    if step.end < step.begin || step.begin < expected {
                        return Err(LogError::Garbage {
                            path: reader.path,
                            line: reader.number,
                            why: format!("step {} runs backwards in time", step.step),
                        });
                    }
                    fold(&mut step);
                    log.steps.push(step);
                }
                RankEvent::Evaluated(evaluation) => log.evaluations.push(evaluation),
                RankEvent::Saved { .. } => {}
                RankEvent::Fault { at, step, fault } => log.faults.push(PlantedFault { at, step, fault }),
                RankEvent::Recovery(recovery) => log.recoveries.push(recovery),
                RankEvent::Note { text, untold, .. } => {
                    log.notes.push(text);
                    if let WorkerHeader::Rank(header) = &mut log.header {
                        header.untold.extend(untold);
                    }
                }
                RankEvent::Done { at, peak_resident, shared, peak_device } => {
                    log.done = Some(at);
                    log.peak_resident = peak_resident;
                    log.shared = shared;
                    log.peak_device = peak_device;
                }
            }
        }
        Ok(log)
    }
}

/// All that the launcher told.
#[derive(Clone, Debug, PartialEq)]
pub struct LauncherLog {
    /// The first line: the case that was run.
    pub header: LauncherHeader,
    /// When the first worker was started.
    pub first_spawn: Option<Nanos>,
    /// When the last worker had ended.
    pub last_reap: Option<Nanos>,
    /// Everything that it told of members, hosts, rosters, recoveries and tests, in order.
    pub membership: Vec<LauncherEvent>,
    /// How the case ended, and why; `None` if the launcher is still at work, or did not live to tell.
    pub over: Option<(Outcome, Option<String>)>,
}

impl LauncherLog {
    /// How the case ended; failed, if the launcher has not told. It may still be at work: [`Self::is_held`].
    pub fn outcome(&self) -> Outcome {
        self.over.as_ref().map_or(Outcome::Failed, |&(outcome, _)| outcome)
    }

    /// Whether the launcher of the run in a case's folder is at work: whoever writes the log holds a lock on it.
    pub fn is_held(folder: &Path) -> bool {
        let log = File::open(folder.join(LAUNCHER_FILE));
        log.is_ok_and(|log| matches!(log.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Reads `launcher.jsonl` in a case's folder.
    pub fn read(folder: &Path) -> Result<Self, LogError> {
        Self::read_file(&folder.join(LAUNCHER_FILE))
    }

    /// Reads a launcher's log.
    pub fn read_file(path: &Path) -> Result<Self, LogError> {
        let mut reader = LauncherReader::begin(path.into())?;
        let mut log = Self {
            header: reader.header().clone(),
            first_spawn: None,
            last_reap: None,
            membership: Vec::new(),
            over: None,
        };
        while let Some(event) = reader.next_event()? {
            match event {
                LauncherEvent::Spawn { at, .. } => log.spawned(at),
                LauncherEvent::Reap { at, .. } => log.reaped(at),
                LauncherEvent::Over { outcome, reason } => log.over = Some((outcome, reason)),
                LauncherEvent::Saved { .. } => {}
                LauncherEvent::Member(_)
                | LauncherEvent::Evaluated(_)
                | LauncherEvent::Roster(_)
                | LauncherEvent::Recovery(_)
                | LauncherEvent::Host(_)
                | LauncherEvent::Hosts(_)
                | LauncherEvent::Clock(_)
                | LauncherEvent::Scaled { .. } => {
                    if let LauncherEvent::Member(MemberEvent { at, change, .. }) = &event {
                        match change {
                            MemberChange::Spawned => log.spawned(*at),
                            MemberChange::Ended(_) => log.reaped(*at),
                            _ => {}
                        }
                    }
                    log.membership.push(event);
                }
            }
        }
        Ok(log)
    }

    fn spawned(&mut self, at: Nanos) {
        self.first_spawn = Some(self.first_spawn.map_or(at, |first| first.min(at)));
    }

    fn reaped(&mut self, at: Nanos) {
        self.last_reap = self.last_reap.max(Some(at));
    }
}

#[cfg(test)]
mod tests;
