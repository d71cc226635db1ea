//! Starts the workers of a job, watches them, and reaps them.
//!
//! Workers are tied to the thread that calls [`launch`]: if it ends, the system kills them. Call it from the main thread, which
//! lives as long as the process.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::tasks::Bell;
use paceline_comm::{Segment, SegmentSize};
use paceline_record::log::{LauncherWriter, RankLog, RankReader};
use paceline_record::{Exit, LauncherEvent, LauncherHeader, Load, LogError, Outcome, Rank, RankEvent, Step};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::hosts::{self, Admitted, Introduction, Meeting, Parted};
use crate::job::Assignment;
use crate::worker::STOPPED;
use crate::{Death, Job, Prepared, TrainError, clock, describe, elastic, process, simulate};

/// How often the launcher reads progress and checks for an interruption.
const TICK: Duration = Duration::from_millis(100);

/// How long workers that are asked to stop may take to finish their step and write a checkpoint.
const STOPPING: Duration = Duration::from_secs(60);

/// Lines of a dead worker's standard error that an error quotes.
pub(crate) const LAST_WORDS: usize = 5;

/// What the launcher needs from its surroundings.
pub struct Surroundings<'a> {
    /// The program that workers run.
    pub program: PathBuf,
    /// Set when the user wants to stop.
    pub interrupted: &'a AtomicBool,
    /// What else the machine does, for the record.
    pub load: Option<Load>,
    /// How this launcher meets those of other hosts, if the job is for several.
    pub meeting: Option<Meeting>,
    /// Called regularly with the progress of rank 0.
    pub progress: &'a mut dyn FnMut(Glance<'_>),
}

/// The progress of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Glance<'a> {
    /// Steps that it has finished in this run.
    pub steps: u64,
    /// Events it has logged since the last call.
    pub events: &'a [RankEvent],
    /// What the user should know, of what happened to hosts since the last call.
    pub said: &'a [String],
}

/// Runs a job in worker processes, or on a simulated machine, and waits for it. The logs in the job's folder record how it
/// ended, whatever this returns.
pub fn launch(job: &Job, prepared: &Prepared, surroundings: Surroundings<'_>) -> Result<(), TrainError> {
    run(job, prepared, surroundings, &mut |_| Ok(())).0
}

/// What became of the logs of a host that was not the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logs {
    /// They are where they were written.
    Kept,
    /// The first host has them.
    Stored {
        /// It has no other run.
        is_last: bool,
    },
    /// Those of all hosts are here: this one has taken the first host's place.
    Gathered,
}

/// The same on a host that is not the first: how it ended, and what became of its logs. `admitted` is called before anything is
/// written.
pub fn follow(
    job: &Job,
    prepared: &Prepared,
    surroundings: Surroundings<'_>,
    admitted: Admitted<'_>,
) -> (Result<(), TrainError>, Logs) {
    let (result, parted) = run(job, prepared, surroundings, admitted);
    let logs = match parted {
        Parted::Alone => Logs::Kept,
        Parted::From(party) => {
            party.deliver(&job.folder).map_or(Logs::Kept, |is_last| Logs::Stored { is_last })
        }
        Parted::Led => Logs::Gathered,
    };
    (result, logs)
}

fn run(
    job: &Job,
    prepared: &Prepared,
    surroundings: Surroundings<'_>,
    admitted: Admitted<'_>,
) -> (Result<(), TrainError>, Parted) {
    let mut parted = Parted::Alone;
    let mut surroundings = surroundings;
    let bell = match Bell::create() {
        Ok(bell) => bell,
        Err(error) => return (Err(error.into()), parted),
    };
    let meeting = surroundings.meeting.take();
    let mpi = meeting.as_ref().and_then(Meeting::mpi);
    mpi.iter().for_each(|mpi| mpi.set_under_way());
    let met = meeting.as_ref().map(|meeting| hosts::meet(job, meeting, &bell, admitted)).transpose();
    let result = met.and_then(|met| {
        let result = log_run(job, prepared, surroundings, Met { bell, met }, &mut parted);
        // However it ended, all hosts know of it.
        mpi.iter().for_each(|mpi| mpi.set_over());
        result
    });
    (result, parted)
}

/// A launcher that has met those of other hosts, if there are any, and what they ring.
struct Met {
    bell: Bell,
    met: Option<Introduction>,
}

fn log_run(
    job: &Job,
    prepared: &Prepared,
    surroundings: Surroundings<'_>,
    Met { bell, met }: Met,
    parted: &mut Parted,
) -> Result<(), TrainError> {
    let job = met.as_ref().map_or(job, |met| &met.job).clone();
    let job = &job;
    let header = LauncherHeader {
        // A simulated clock has no date.
        started: (!job.is_simulated()).then(clock::started),
        load: surroundings.load,
        host: met.as_ref().map(|met| met.party.host),
        ..LauncherHeader::new(job.case())
    };
    let mut log = LauncherWriter::create(&job.folder, &header)?;
    let result = match met {
        _ if job.is_simulated() || (job.elastic.is_none() && job.hosts.is_none()) => {
            supervise(job, prepared, surroundings, &mut log)
        }
        met => elastic::lead::run(job, surroundings, &mut log, bell, met, parted),
    };
    let (outcome, reason) = match &result {
        Ok(()) => (Outcome::Done, None),
        Err(TrainError::Interrupted) => {
            (Outcome::Interrupted, Some("by Ctrl-C or another request to end".into()))
        }
        Err(error) if error.is_interruption() => (Outcome::Interrupted, Some(describe(error))),
        Err(error) => (Outcome::Failed, Some(describe(error))),
    };
    let noted = log.append(&LauncherEvent::Over { outcome, reason });
    // How the run ended comes first: a full disk may be the cause of both.
    result?;
    Ok(noted?)
}

fn supervise(
    job: &Job,
    prepared: &Prepared,
    surroundings: Surroundings<'_>,
    log: &mut LauncherWriter,
) -> Result<(), TrainError> {
    let failed = if job.is_simulated() {
        simulate::run(job, surroundings, log)?
    } else {
        run_processes(job, prepared, surroundings, log)?
    };
    match failed {
        None => Ok(()),
        Some(Failure::Interrupted) => Err(TrainError::Interrupted),
        Some(Failure::Died(rank, exit)) => Err(TrainError::Died(examine(job, rank, exit))),
        Some(Failure::Unsaved(why)) => {
            let saving = match why {
                Some((rank, exit)) => TrainError::Died(examine(job, rank, exit)),
                None => TrainError::SlowToStop { seconds: STOPPING.as_secs() },
            };
            Err(TrainError::Unsaved { error: Box::new(TrainError::Interrupted), saving: Box::new(saving) })
        }
    }
}

fn run_processes(
    job: &Job,
    prepared: &Prepared,
    surroundings: Surroundings<'_>,
    log: &mut LauncherWriter,
) -> Result<Option<Failure>, TrainError> {
    let (tell, ended) = mpsc::channel();
    let mut workers = Vec::new();
    let segment = create_segment(job, prepared)?;
    for rank in (0..job.workers).map(Rank) {
        log.append(&LauncherEvent::Spawn { rank, at: clock::now() })?;
        workers.push(Worker::spawn(job, rank, segment.as_ref(), &surroundings.program)?);
    }
    for worker in &workers {
        worker.watch(tell.clone())?;
    }
    drop(tell);
    let interrupted = surroundings.interrupted;
    let watch = Watch { ended, segment, interrupted, saves: job.milestones.saving.is_some() };
    watch.reap_all(&mut workers, surroundings.progress, log)
}

/// Allocates the memory that several workers share, before any of them starts.
fn create_segment(job: &Job, prepared: &Prepared) -> Result<Option<Segment>, TrainError> {
    if !job.shares_memory() {
        return Ok(None);
    }
    let (own, common) = job.shared_values(prepared.trained);
    Ok(Some(Segment::create(SegmentSize { world: job.workers, areas: job.shards(), own, common })?))
}

/// Why not all workers did all their steps: the first cause.
pub(crate) enum Failure {
    Interrupted,
    Died(Rank, Exit),
    /// Interrupted, and the state could not be saved: who died then, or `None` if it took too long.
    Unsaved(Option<(Rank, Exit)>),
}

/// How far a request to stop has come.
#[derive(Clone, Copy, Debug)]
enum Request {
    None,
    /// Workers were asked to stop after a step.
    Made(Instant),
    /// Rank 0 has ended, which it does when the state is saved.
    Done,
}

/// What the launcher watches while workers run.
struct Watch<'a> {
    /// Tells which workers have ended.
    ended: Receiver<Rank>,
    segment: Option<Segment>,
    interrupted: &'a AtomicBool,
    /// Whether workers save their state before they stop.
    saves: bool,
}

impl Watch<'_> {
    /// Reaps every worker. After the first failure it kills the others, because a run cannot continue without all its ranks.
    /// Where the state can be saved, an interruption asks them to stop after a step.
    fn reap_all(
        &self,
        workers: &mut [Worker],
        show: &mut dyn FnMut(Glance<'_>),
        log: &mut LauncherWriter,
    ) -> Result<Option<Failure>, TrainError> {
        let mut failed = None;
        let mut request = Request::None;
        let mut progress = Progress::new(workers[0].folder.clone());
        loop {
            match self.ended.recv_timeout(TICK) {
                Ok(rank) => {
                    let exit = workers[rank.0 as usize].reap()?;
                    log.append(&LauncherEvent::Reap { rank, at: clock::now(), exit })?;
                    if is_stopped(exit) {
                        request = if rank == Rank(0) { Request::Done } else { request };
                    } else if failed.is_none() && !exit.is_success() {
                        failed = Some(self.name_failure(rank, exit, request));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if failed.is_none() && self.interrupted.load(Ordering::Relaxed) {
                match request {
                    _ if !self.saves => failed = Some(Failure::Interrupted),
                    Request::None => {
                        workers[0].ask_to_stop();
                        request = Request::Made(Instant::now());
                    }
                    Request::Made(since) if since.elapsed() > STOPPING => {
                        failed = Some(Failure::Unsaved(None))
                    }
                    Request::Made(_) | Request::Done => {}
                }
            }
            if failed.is_some() {
                workers.iter_mut().for_each(Worker::kill);
            } else {
                progress.look(show);
            }
        }
        progress.look(show);
        let exits = || workers.iter().filter_map(|worker| worker.exit);
        // An interruption after all work was done changes nothing.
        let all_well = exits().count() == workers.len() && exits().all(Exit::is_success);
        let stopped = exits().any(is_stopped).then_some(Failure::Interrupted);
        Ok(failed.or(stopped).filter(|_| !all_well))
    }

    /// What the end of a worker means that did not do its work.
    fn name_failure(&self, rank: Rank, exit: Exit, request: Request) -> Failure {
        // A terminal sends Ctrl-C to the workers too, as `kill` does with a group, and they may notice it first.
        let is_signalled = matches!(exit, Exit::Signal(SIGINT | SIGTERM));
        let is_saved = matches!(request, Request::Done);
        if is_saved || (is_signalled && was_interrupted(self.interrupted)) {
            return Failure::Interrupted;
        }
        // Ranks that wait for it get an error that names it.
        if let Some(segment) = &self.segment {
            segment.mark_dead(rank, &exit.to_string());
        }
        match request {
            Request::None => Failure::Died(rank, exit),
            _ => Failure::Unsaved(Some((rank, exit))),
        }
    }
}

/// Whether a worker stopped because it was asked to, with its state saved.
fn is_stopped(exit: Exit) -> bool {
    exit == Exit::Code(i32::from(STOPPED))
}

/// Whether the launcher has been interrupted too, or will notice in a moment.
fn was_interrupted(flag: &AtomicBool) -> bool {
    for _ in 0..10 {
        if flag.load(Ordering::Relaxed) {
            return true;
        }
        thread::sleep(TICK / 5);
    }
    false
}

/// A worker's process. It is killed if it is dropped before it is reaped.
struct Worker {
    rank: Rank,
    folder: PathBuf,
    child: Child,
    exit: Option<Exit>,
}

impl Worker {
    fn spawn(job: &Job, rank: Rank, segment: Option<&Segment>, program: &Path) -> Result<Self, TrainError> {
        let assignment = Assignment {
            job: job.clone(),
            rank,
            launcher: std::process::id() as i32,
            segment: segment.and_then(Segment::descriptor),
            membership: None,
        };
        let path = words_file(&job.folder, rank);
        let words = File::create(&path).map_err(TrainError::system(format!("write {}", path.display())))?;
        let child = process::worker(program)
            .args(["worker", &rank.to_string()])
            .env(Assignment::VARIABLE, assignment.to_json())
            .stderr(words)
            .spawn()
            .map_err(TrainError::system(format!("start {}", program.display())))?;
        Ok(Self { rank, folder: job.folder.clone(), child, exit: None })
    }

    /// Sends the rank when the process has ended. The process stays a zombie until it is reaped, so its number cannot pass to
    /// another process while it may still be killed.
    fn watch(&self, tell: Sender<Rank>) -> Result<(), TrainError> {
        let rank = self.rank;
        let pid = Pid::from_child(&self.child);
        let wait = move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            // Both errors can be ignored: reaping tells more, and a receiver that is gone needs nothing.
            let _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options));
            let _ = tell.send(rank);
        };
        thread::Builder::new()
            .name(format!("watch-{rank}"))
            .spawn(wait)
            .map_err(TrainError::system("start a thread"))?;
        Ok(())
    }

    fn reap(&mut self) -> Result<Exit, TrainError> {
        let status = self.child.wait().map_err(TrainError::system(format!("wait for rank {}", self.rank)))?;
        let exit = exit_of(status);
        self.exit = Some(exit);
        if exit.is_success() {
            remove_if_empty(&words_file(&self.folder, self.rank));
        }
        Ok(exit)
    }

    /// Asks it to stop, and with it all ranks. One that has not begun to listen ends at once, with nothing done.
    fn ask_to_stop(&self) {
        // This fails only if the process has already ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    fn kill(&mut self) {
        if self.exit.is_none() {
            // This fails only if the process has already ended.
            let _ = self.child.kill();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.exit.is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or_default()),
    }
}

/// The file for a worker's standard error.
pub(crate) fn words_file(folder: &Path, rank: Rank) -> PathBuf {
    folder.join(format!("rank-{rank}.stderr"))
}

fn remove_if_empty(path: &Path) {
    if fs::metadata(path).is_ok_and(|file| file.len() == 0) {
        // An empty file does no harm.
        let _ = fs::remove_file(path);
    }
}

/// What is known about a worker that died.
fn examine(job: &Job, rank: Rank, exit: Exit) -> Death {
    let log = words_file(&job.folder, rank);
    let words = fs::read(&log).unwrap_or_default();
    let words = String::from_utf8_lossy(&words);
    let lines: Vec<&str> = words.lines().collect();
    let steps = RankLog::read(&job.folder, rank).map_or(0, |log| log.steps.len() as u64);
    Death {
        rank,
        step: (steps > 0).then_some(Step(steps)),
        exit,
        log,
        last_words: lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n"),
    }
}

/// Follows the log of rank 0 while it is being written.
struct Progress {
    folder: PathBuf,
    reader: Option<RankReader>,
    steps: u64,
}

impl Progress {
    fn new(folder: PathBuf) -> Self {
        Self { folder, reader: None, steps: 0 }
    }

    /// Reports what was logged since the last call. It only feeds the progress bar, so a log that cannot be read yet is not an
    /// error.
    fn look(&mut self, tell: &mut dyn FnMut(Glance<'_>)) {
        let mut events = Vec::new();
        let _ = self.catch_up(&mut events);
        self.steps += events.iter().filter(|event| matches!(event, RankEvent::Step(_))).count() as u64;
        tell(Glance { steps: self.steps, events: &events, said: &[] });
    }

    fn catch_up(&mut self, events: &mut Vec<RankEvent>) -> Result<(), LogError> {
        if self.reader.is_none() {
            self.reader = Some(RankReader::open(&self.folder, Rank(0))?);
        }
        while let Some(event) = self.reader.as_mut().map_or(Ok(None), RankReader::next_event)? {
            events.push(event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
