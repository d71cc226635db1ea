//! MPI between the launchers of several hosts: each is a rank. The library is found at run time.
//!
//! One thread, that of [`Mpi`], begins MPI, makes all its calls and ends it; it tests and sleeps, and is never in a call that waits.
//! Porters work on it. What launchers say to each other goes through it, too, so that nothing listens anywhere.

mod dock;
mod interface;
mod library;
mod talk;
mod wire;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use paceline_record::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::thread::set_current_timer_slack;

pub use interface::{Abi, Interface};
pub use library::{Family, Library, VARIABLE};
pub(crate) use talk::RankLetters;
pub use wire::Roster;

use crate::CommError;
use crate::measure::{AllReduceRow, Trial, bytes_of, time_rounds, whole_values};
use crate::wire::{Cable, Letters, Wire, timespec};
use dock::Dock;
use talk::Switchboard;
use wire::MpiWire;

/// How long the thread sleeps where MPI does not work any more.
const RESIGNED: Duration = Duration::from_millis(100);

/// How long others may take to leave MPI, where they are about to and where they may not know that this one is.
const FAREWELL: Duration = Duration::from_secs(30);
const ABRUPT: Duration = Duration::from_secs(1);

/// The longest text that ranks tell each other at the start.
const LONGEST_TOLD: usize = 1 << 20;

/// What MPI's thread is asked to do.
type Task = Box<dyn FnOnce(&mut Quay<'_>) + Send>;

/// This process as a rank of an MPI job. When it is dropped, it says farewell to the others and leaves MPI.
pub struct Mpi {
    tasks: Option<Sender<Task>>,
    board: Arc<Switchboard>,
    thread: Option<JoinHandle<()>>,
    /// Whether all others are about to leave, too.
    is_over: Arc<AtomicBool>,
    rank: u32,
    world: u32,
    /// The library's name and version.
    pub version: String,
    /// Where it was loaded from.
    pub path: Option<PathBuf>,
}

/// Somebody who has called this rank.
pub struct RankVisitor {
    /// Its rank.
    pub rank: u32,
    /// What it said first.
    pub greeting: Vec<u8>,
    /// The connection with it.
    pub letters: Letters,
}

impl Mpi {
    /// Begins MPI, in a job of so many ranks as whoever started it says. To be called once in a process, before it opens files that
    /// others are to inherit.
    ///
    /// # Errors
    /// If the library refuses, does not see all of them, or has not begun within this time.
    pub fn start(library: Library, world: u32, within: Duration) -> Result<Self, CommError> {
        keep_files();
        let (version, path) = (library.version.clone(), library.path.clone());
        let mut mpi = Self::start_with(move || library.begin(dock::places(world)), world, within)?;
        (mpi.version, mpi.path) = (version, path);
        Ok(mpi)
    }

    fn start_with(
        begin: impl FnOnce() -> Result<Box<dyn Interface>, CommError> + Send + 'static,
        world: u32,
        within: Duration,
    ) -> Result<Self, CommError> {
        let board = Arc::new(Switchboard::new(world)?);
        let (tasks, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let (own, is_over) = (board.clone(), Arc::new(AtomicBool::new(false)));
        let ending = is_over.clone();
        let work = move || {
            let begun = begin().and_then(|interface| match interface.world() {
                found if found == world => Dock::open(interface, own),
                found => Err(CommError::Alone { started: world, found }),
            });
            match begun {
                Ok(dock) => {
                    // Nobody listens where the process is about to end.
                    let _ = tell.send(Ok(dock.rank()));
                    work(dock, &asked);
                    let is_over = ending.load(Ordering::Relaxed);
                    let left = dock.leave(if is_over { FAREWELL } else { ABRUPT });
                    // Where it ends before the others, they need not have left: why it ends says more.
                    if let Err(error) = left.as_ref()
                        && is_over
                    {
                        eprintln!("MPI was not left in good order: {error}");
                    }
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name("porter".into()).spawn(work);
        let thread = Some(thread.map_err(CommError::system("start a thread"))?);
        let rank = told.recv_timeout(within).map_err(|why| {
            let answer = match why {
                RecvTimeoutError::Disconnected => "its thread has ended".into(),
                RecvTimeoutError::Timeout => {
                    format!("it has not returned within {} s: not all ranks have come", within.as_secs())
                }
            };
            CommError::Mpi { call: "MPI_Init_thread", answer }
        })??;
        Ok(Self {
            tasks: Some(tasks),
            board,
            thread,
            is_over,
            rank,
            world,
            version: String::new(),
            path: None,
        })
    }

    /// This process' number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// There is something to do together again.
    pub fn set_under_way(&self) {
        self.is_over.store(false, Ordering::Relaxed);
    }

    /// What there was to do together is done, well or not: all others are about to leave, and are waited for.
    pub fn set_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Lets MPI's thread do something, after all that it was asked before. It is over when the result says so.
    pub fn run(&self, task: impl FnOnce(&mut Quay<'_>) + Send + 'static) -> Running {
        let (over, running) = mpsc::channel();
        let task: Task = Box::new(move |quay| {
            task(quay);
            drop(over);
        });
        if let Some(tasks) = &self.tasks {
            // Where the thread has ended, the task is dropped, and it is over.
            let _ = tasks.send(task);
            self.board.wake();
        }
        Running(Mutex::new(running))
    }

    /// Calls a rank, and says something first.
    ///
    /// # Errors
    /// If the system refuses. Whether somebody answers shows later.
    pub fn call(&self, rank: u32, greeting: &[u8], cable: &Cable) -> Result<Letters, CommError> {
        self.board.call(rank, greeting, cable)
    }

    /// The next of those who have called this rank.
    pub fn visitor(&self) -> Option<RankVisitor> {
        let (rank, greeting, letters) = self.board.visitor()?;
        Some(RankVisitor { rank, greeting, letters })
    }

    /// Readable while somebody has called.
    pub fn visited(&self) -> BorrowedFd<'_> {
        self.board.visited()
    }

    /// Tells all ranks a text and gets theirs, in the order of the ranks. All of them do so at the same time, before anybody is called.
    ///
    /// # Errors
    /// If not all have done so within this time.
    pub fn gather(&self, own: &str, within: Duration) -> Result<Vec<String>, CommError> {
        assert!(own.len() <= LONGEST_TOLD, "a text of {} bytes is too long", own.len());
        let until = Instant::now() + within;
        let silent = || CommError::Mpi {
            call: "MPI",
            answer: format!("not all ranks answered within {} s", within.as_secs()),
        };
        if self.rank > 0 {
            let mut letters = self.call(0, own.as_bytes(), &Cable::default())?;
            loop {
                if let Some(all) = letters.progress()?.into_iter().next() {
                    return read_all(&all).ok_or_else(silent);
                }
                if Instant::now() >= until {
                    return Err(silent());
                }
                wait(&letters, until);
            }
        }
        let mut texts = vec![String::new(); self.world as usize];
        texts[0] = own.into();
        let mut others = Vec::new();
        while others.len() + 1 < self.world as usize {
            match self.visitor() {
                Some(RankVisitor { rank, greeting, letters }) => {
                    texts[rank as usize] = String::from_utf8_lossy(&greeting).into_owned();
                    others.push(letters);
                }
                None if Instant::now() >= until => return Err(silent()),
                None => wait(&self.visited(), until),
            }
        }
        for letters in &mut others {
            letters.send(&write_all(&texts))?;
        }
        Ok(texts)
    }

    /// The library's own all-reduces of a size, in the terms of [`measure`](crate::measure). All ranks call it at once.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn all_reduce(&self, size: Bytes, trial: Trial) -> Result<AllReduceRow, CommError> {
        let (tell, told) = mpsc::channel();
        self.run(move |quay| drop(tell.send(quay.all_reduce(size, trial))));
        let over = || CommError::Mpi { call: "MPI_Allreduce", answer: "MPI's thread has ended".into() };
        told.recv().map_err(|_| over())?
    }
}

/// Keeps files that this process was started with from those that it starts. Some launchers leave open what they talk through, also with
/// others: whoever holds such an end keeps them from seeing that this process has ended.
fn keep_files() {
    let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    for file in numbers.filter(|&file| file > 2) {
        // SAFETY: it is used in this call only, and where nothing is open under this number any more the system says so.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        // It fails for the folder alone, which is closed by now.
        let _ = fcntl_setfd(file, FdFlags::CLOEXEC);
    }
}

fn wait(source: &impl AsFd, until: Instant) {
    let left = timespec(until.saturating_duration_since(Instant::now()));
    // Whatever it answers, all is looked at next.
    let _ = poll(&mut [PollFd::new(source, PollFlags::IN)], Some(&left));
}

/// Texts as one letter: a length before each.
fn write_all(texts: &[String]) -> Vec<u8> {
    let each = texts.iter().map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat());
    each.collect::<Vec<_>>().concat()
}

fn read_all(mut bytes: &[u8]) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        texts.push(String::from_utf8_lossy(text).into_owned());
        bytes = rest;
    }
    Some(texts)
}

impl Drop for Mpi {
    fn drop(&mut self) {
        drop(self.tasks.take());
        self.board.wake();
        if let Some(thread) = self.thread.take() {
            // Its panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// Something that MPI's thread has been asked to do.
pub struct Running(Mutex<Receiver<()>>);

impl Running {
    /// Whether it is over.
    pub fn is_finished(&self) -> bool {
        let over = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        over.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits until it is over.
    pub fn join(self) {
        // Nothing is ever sent: the other end is dropped.
        let _ = self.0.into_inner().unwrap_or_else(PoisonError::into_inner).recv();
    }
}

/// MPI as a task of its thread has it.
pub struct Quay<'a>(&'a mut Dock);

impl Quay<'_> {
    /// A wire between the hosts of a roster; bytes of other rosters do not get through it.
    pub fn wire(&mut self, roster: Roster, cable: Cable) -> impl Wire {
        MpiWire::new(self.0, roster, cable)
    }

    fn all_reduce(&mut self, size: Bytes, trial: Trial) -> Result<AllReduceRow, CommError> {
        // While the library waits for the others nothing is said, and they may wait for what was said last.
        self.0.flush(trial.limit)?;
        let interface = self.0.interface();
        let mut values = vec![0.0; whole_values(size)];
        let world = interface.world();
        for _ in 0..trial.warm_up {
            interface.all_reduce(&mut values)?;
        }
        interface.barrier()?;
        let times = time_rounds(trial, || interface.all_reduce(&mut values))?;
        values.fill(1.0);
        interface.all_reduce(&mut values)?;
        let wrong = values.iter().filter(|&&value| value != world as f32).count() as u64;
        Ok(AllReduceRow::new(bytes_of(values.len()), times, world as usize, wrong))
    }
}

fn work(dock: &mut Dock, asked: &Receiver<Task>) {
    // Naps are short. Where the system does not allow that, they are a little longer.
    let _ = set_current_timer_slack(NonZeroU64::new(1000));
    loop {
        match asked.try_recv() {
            Ok(task) => {
                // A panic was printed, and whoever waits for the task hears that it is over.
                let _ = catch_unwind(AssertUnwindSafe(|| task(&mut Quay(dock))));
                continue;
            }
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
        let rested = match dock.tend() {
            Ok(true) => Ok(()),
            Ok(false) => dock.nap(None, RESIGNED).map(drop),
            Err(error) => Err(error),
        };
        if rested.is_err() {
            // All lines are closed; what is left is to hear that it is over.
            match asked.recv_timeout(RESIGNED) {
                Ok(task) => task(&mut Quay(dock)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }
}
