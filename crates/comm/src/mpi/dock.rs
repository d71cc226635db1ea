//! Where messages wait that MPI moves: a few berths for each other rank, out and in.
//!
//! MPI reads and writes berths alone, which live as long as MPI does. So a message that is no longer wanted can be left to itself: its
//! bytes reach nobody's memory but its berth. Bytes that go out are copied into a berth, and those that come in are copied out of one
//! when they are known to be wanted.
//!
//! Each message is a *chunk* with a head that tells what it is. Those of a rank come in the order in which they were sent.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{ptr, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::interface::Interface;
use super::talk::{Switchboard, Words};
use crate::CommError;
use crate::wire::timespec;

/// Bytes of a chunk's head.
const HEAD: usize = 64;

/// Berths for what goes to a rank, and for what comes from it.
const OUT: usize = 8;
const IN: usize = 4;

/// Bytes of all berths, about; and of one chunk at least and at most.
const ALL: usize = 96 << 20;
const LEAST: usize = 64 << 10;
const MOST: usize = 512 << 10;

/// How long after something moved it looks again at once, and only lets others have the core: much of what libraries do they do while
/// they are looked at.
const AWAKE: Duration = Duration::from_micros(100);

/// How long it sleeps at least and at most while nothing moves, and which part of the time since something did: MPI wakes nobody.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
const NAP_PART: u32 = 8;

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A part of a wire's message.
    Cargo,
    /// A part of what two launchers say to each other.
    Talk,
    /// The sender says nothing more.
    Bye,
}

/// A chunk's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub kind: Kind,
    /// Of cargo, the run and the roster of the wire; of talk, the number of the call and who called.
    pub run: u64,
    pub generation: u64,
    pub tag: [u32; 6],
    /// Bytes of the whole message, and where this chunk begins in it.
    pub whole: u64,
    pub at: u64,
}

impl Head {
    fn write(&self, len: usize, to: &mut [u8]) {
        let kind: u32 = match self.kind {
            Kind::Cargo => 1,
            Kind::Talk => 2,
            Kind::Bye => 3,
        };
        let words = [u64::from(kind) << 32 | len as u64, self.run, self.generation, self.whole, self.at];
        for (to, word) in to.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        for (to, word) in to[40..HEAD].chunks_exact_mut(4).zip(self.tag) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// A head and the length of its chunk; `None` where it makes no sense.
    fn read(from: &[u8], most: usize) -> Option<(Self, usize)> {
        let word =
            |at: usize| u64::from_le_bytes(from[at..at + 8].try_into().expect("invariant: eight bytes"));
        let [first, run, generation, whole, at] = [0, 8, 16, 24, 32].map(word);
        let kind = match first >> 32 {
            1 => Kind::Cargo,
            2 => Kind::Talk,
            3 => Kind::Bye,
            _ => return None,
        };
        let tag = [40, 44, 48, 52, 56, 60]
            .map(|at| u32::from_le_bytes(from[at..at + 4].try_into().expect("invariant: four bytes")));
        let len = first as u32 as usize;
        let is_inside = at.checked_add(len as u64).is_some_and(|end| end <= whole);
        (len <= most && is_inside).then_some((Self { kind, run, generation, tag, whole, at }, len))
    }
}

/// Copies bytes that another process reads next. Past the caches, because on some machines it takes about as long as all the rest to write
/// to lines that the other one's core has read before.
///
/// # Safety
/// As [`ptr::copy_nonoverlapping`].
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    let streamed = {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const LINE: usize = 64;
        let begin = to.align_offset(LINE).min(len);
        let end = len - (len - begin) % LINE;
        for at in (begin..end).step_by(LINE) {
            // SAFETY: the caller vouches for the bytes, and the line is aligned; every x86-64 has these instructions.
            unsafe {
                let parts: [__m128i; 4] =
                    std::array::from_fn(|part| _mm_loadu_si128(from.add(at + 16 * part).cast()));
                for (part, value) in parts.into_iter().enumerate() {
                    _mm_stream_si128(to.add(at + 16 * part).cast(), value);
                }
            }
        }
        // SAFETY: as above.
        unsafe { _mm_sfence() };
        begin..end
    };
    #[cfg(not(target_arch = "x86_64"))]
    let streamed = 0..0;
    for rest in [0..streamed.start, streamed.end..len] {
        // SAFETY: the caller vouches for the bytes.
        unsafe { ptr::copy_nonoverlapping(from.add(rest.start), to.add(rest.start), rest.len()) };
    }
}

/// Room for one chunk and its head.
type Berth = Box<[u8]>;

/// What there is between this rank and another one.
struct Side {
    out: Vec<Berth>,
    /// Which of them are free.
    free: Vec<usize>,
    into: Vec<Berth>,
    /// Which of them something has come into, and the one that comes next.
    full: Vec<bool>,
    next: usize,
    /// Whether it has said that it says nothing more.
    is_gone: bool,
}

/// All berths, and the only one who calls MPI. It is never dropped: MPI may use berths as long as there is a process.
pub(super) struct Dock {
    interface: Box<dyn Interface>,
    chunk: usize,
    /// By rank; this rank's own is never used.
    sides: Vec<Side>,
    pub board: Arc<Switchboard>,
    /// Runs that are over, and the run and the roster of the wire that is there or was last.
    past: HashSet<u64>,
    era: Option<(u64, u64)>,
    is_wired: bool,
    done: Vec<usize>,
    moved: Instant,
    /// What MPI has refused; nothing is asked of it any more.
    broken: Option<String>,
}

/// Places of messages that may be under way between so many ranks.
pub(super) fn places(world: u32) -> usize {
    world as usize * (OUT + IN)
}

impl Dock {
    /// Waits for chunks of all other ranks.
    pub fn open(
        interface: Box<dyn Interface>,
        board: Arc<Switchboard>,
    ) -> Result<&'static mut Self, CommError> {
        let world = interface.world() as usize;
        let chunk = (ALL / (world * (OUT + IN))).clamp(LEAST, MOST) & !4095;
        let own = interface.rank() as usize;
        let side = |rank: usize| {
            let berths = |count: usize| -> Vec<Berth> {
                let count = if rank == own { 0 } else { count };
                (0..count).map(|_| vec![0; HEAD + chunk].into()).collect()
            };
            let (out, into) = (berths(OUT), berths(IN));
            Side {
                free: (0..out.len()).rev().collect(),
                full: vec![false; into.len()],
                out,
                into,
                next: 0,
                is_gone: false,
            }
        };
        let sides = (0..world).map(side).collect();
        let dock = Box::leak(Box::new(Self {
            interface,
            chunk,
            sides,
            board,
            past: HashSet::new(),
            era: None,
            is_wired: false,
            done: Vec::new(),
            moved: Instant::now(),
            broken: None,
        }));
        for rank in dock.others() {
            for berth in 0..IN {
                dock.expect(rank, berth)?;
            }
        }
        Ok(dock)
    }

    pub fn rank(&self) -> u32 {
        self.interface.rank()
    }

    pub fn world(&self) -> u32 {
        self.interface.world()
    }

    /// The library itself, where nobody else uses it.
    pub fn interface(&mut self) -> &mut dyn Interface {
        &mut *self.interface
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let own = self.rank();
        (0..self.world()).filter(move |&rank| rank != own)
    }

    fn place(rank: u32, berth: usize) -> usize {
        rank as usize * (OUT + IN) + berth
    }

    /// Lets the next chunk of a rank come into a berth.
    fn expect(&mut self, rank: u32, berth: usize) -> Result<(), CommError> {
        let side = &mut self.sides[rank as usize];
        side.full[berth] = false;
        let room = &mut side.into[berth];
        let (at, len) = (room.as_mut_ptr(), room.len());
        // SAFETY: a dock is never dropped; nobody looks into the berth before it is full.
        unsafe { self.interface.receive(Self::place(rank, OUT + berth), rank, at, len) }
    }

    /// The chunk that is next from a rank, if it is there.
    ///
    /// # Errors
    /// If it makes no sense.
    pub fn front(&self, rank: u32) -> Result<Option<(Head, &[u8])>, CommError> {
        let side = &self.sides[rank as usize];
        if !side.full.get(side.next).is_some_and(|is_full| *is_full) {
            return Ok(None);
        }
        let berth = &side.into[side.next];
        let (head, len) = Head::read(berth, self.chunk).ok_or_else(|| CommError::Mpi {
            call: "MPI_Irecv",
            answer: format!("what came from rank {rank} is no message of Paceline's"),
        })?;
        Ok(Some((head, &berth[HEAD..HEAD + len])))
    }

    /// Goes on to the chunk after it.
    pub fn advance(&mut self, rank: u32) -> Result<(), CommError> {
        let side = &mut self.sides[rank as usize];
        let berth = side.next;
        side.next = (berth + 1) % IN;
        self.expect(rank, berth)
    }

    /// Bytes that a chunk can have.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Sends a chunk, if there is a berth for it.
    ///
    /// # Safety
    /// `from` is valid for reads of `len` bytes, at most those of a chunk.
    pub unsafe fn load(
        &mut self,
        rank: u32,
        head: &Head,
        from: *const u8,
        len: usize,
    ) -> Result<bool, CommError> {
        let side = &mut self.sides[rank as usize];
        let Some(berth) = side.free.pop() else { return Ok(false) };
        let room = &mut side.out[berth];
        head.write(len, room);
        if len > 0 {
            // SAFETY: the caller vouches for the bytes, and a berth has room for a chunk.
            unsafe { copy_past_caches(from, room[HEAD..HEAD + len].as_mut_ptr(), len) };
        }
        let at = room.as_ptr();
        // SAFETY: a dock is never dropped; the berth is written again only when it is free.
        unsafe { self.interface.send(Self::place(rank, berth), rank, at, HEAD + len) }?;
        Ok(true)
    }

    /// A wire is there for a roster of a run. Cargo of rosters before it is dropped from here on.
    pub fn begin_wire(&mut self, run: u64, generation: u64) {
        if let Some((last, _)) = self.era.filter(|&(last, _)| last != run) {
            self.past.insert(last);
        }
        (self.era, self.is_wired) = (Some((run, generation)), true);
    }

    pub fn end_wire(&mut self) {
        self.is_wired = false;
    }

    /// Whether cargo is for nobody any more. What is for a wire to come waits for it.
    fn is_past(&self, head: &Head) -> bool {
        let Some((run, generation)) = self.era else { return false };
        match head.run == run {
            true => head.generation < generation || (head.generation == generation && !self.is_wired),
            false => self.past.contains(&head.run),
        }
    }

    /// Lets MPI work, and passes on what launchers say; whether anything moved.
    pub fn tend(&mut self) -> Result<bool, CommError> {
        if let Some(answer) = &self.broken {
            return Err(CommError::Mpi { call: "MPI", answer: answer.clone() });
        }
        let result = self.try_tend();
        if let Err(error) = &result {
            // Whoever says that, the job is about to be ended.
            self.broken = Some(error.to_string());
            self.board.close_all(&error.to_string());
        }
        if matches!(result, Ok(true)) {
            self.moved = Instant::now();
        }
        result
    }

    fn try_tend(&mut self) -> Result<bool, CommError> {
        let mut done = std::mem::take(&mut self.done);
        done.clear();
        self.interface.test(&mut done)?;
        let mut has_moved = !done.is_empty();
        for &place in &done {
            let (rank, berth) = (place / (OUT + IN), place % (OUT + IN));
            let side = &mut self.sides[rank];
            match berth.checked_sub(OUT) {
                None => side.free.push(berth),
                Some(berth) => side.full[berth] = true,
            }
        }
        self.done = done;
        for rank in self.others() {
            while let Some((head, bytes)) = self.front(rank)? {
                match head.kind {
                    Kind::Talk => self.board.hear(rank, &head, bytes),
                    Kind::Bye => self.sides[rank as usize].is_gone = true,
                    Kind::Cargo if self.is_past(&head) => {}
                    Kind::Cargo => break,
                }
                self.advance(rank)?;
                has_moved = true;
            }
            while let Some(words) = self.next_words(rank) {
                self.say(rank, words)?;
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    fn next_words(&self, rank: u32) -> Option<Words> {
        (!self.sides[rank as usize].free.is_empty()).then(|| self.board.next(rank, self.chunk))?
    }

    fn say(&mut self, rank: u32, words: Words) -> Result<(), CommError> {
        let Words { head, bytes } = words;
        // SAFETY: the bytes are there, and fit a chunk.
        unsafe { self.load(rank, &head, bytes.as_ptr(), bytes.len()) }.map(drop)
    }

    /// Sleeps until `bell` is rung, somebody wants to say something, `wait` has passed, or it is time to look again; whether it was the
    /// bell.
    pub fn nap(&self, bell: Option<BorrowedFd<'_>>, wait: Duration) -> Result<bool, CommError> {
        let since = self.moved.elapsed();
        let idle = if since < AWAKE {
            thread::yield_now();
            Duration::ZERO
        } else {
            (since / NAP_PART).clamp(NAPS.0, NAPS.1)
        };
        let mut files = vec![PollFd::from_borrowed_fd(self.board.called(), PollFlags::IN)];
        files.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)));
        match poll(&mut files, Some(&timespec(wait.min(idle)))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(CommError::system("wait for other hosts")(error)),
        }
        if !files[0].revents().is_empty() {
            self.board.heed();
        }
        Ok(files.get(1).is_some_and(|bell| !bell.revents().is_empty()))
    }

    /// Waits until all that was to be said or sent is with the others, or at least out of this rank's hands.
    ///
    /// # Errors
    /// If they do not take it, or if MPI does not work any more.
    pub fn flush(&mut self, within: Duration) -> Result<(), CommError> {
        let until = Instant::now() + within;
        let is_loaded = |side: &Side| side.free.len() < side.out.len();
        while self.others().any(|rank| self.board.has_words(rank) || is_loaded(&self.sides[rank as usize])) {
            if Instant::now() >= until {
                let answer = format!("others have not taken it within {} s", within.as_secs());
                return Err(CommError::Mpi { call: "MPI_Isend", answer });
            }
            if !self.tend()? {
                self.nap(None, NAPS.1)?;
            }
        }
        Ok(())
    }

    /// Says farewell to all others, and leaves MPI when they have done so, too.
    ///
    /// # Errors
    /// If they do not, or if MPI does not work any more: it is then left as it is.
    pub fn leave(&mut self, within: Duration) -> Result<(), CommError> {
        let until = Instant::now() + within;
        let bye = Head { kind: Kind::Bye, run: 0, generation: 0, tag: [0; 6], whole: 0, at: 0 };
        let mut untold: Vec<u32> = self.others().collect();
        loop {
            let mut left = Vec::new();
            for rank in untold {
                // SAFETY: nothing is read.
                if self.board.has_words(rank) || !unsafe { self.load(rank, &bye, ptr::null(), 0) }? {
                    left.push(rank);
                }
            }
            untold = left;
            let is_silent = |side: &Side| side.free.len() == side.out.len();
            let own = self.rank() as usize;
            let mut others = self.sides.iter().enumerate().filter(|&(rank, _)| rank != own);
            if untold.is_empty() && others.all(|(_, side)| side.is_gone && is_silent(side)) {
                break;
            }
            if Instant::now() >= until {
                let answer = format!("others have not said farewell within {} s", within.as_secs());
                return Err(CommError::Mpi { call: "leaving", answer });
            }
            // Cargo that nobody takes is in front of what others say last.
            for rank in self.others() {
                while self.front(rank)?.is_some_and(|(head, _)| head.kind == Kind::Cargo) {
                    self.advance(rank)?;
                }
            }
            if !self.tend()? {
                self.nap(None, NAPS.1)?;
            }
        }
        let mut expected: Vec<usize> = Vec::new();
        for rank in self.others() {
            for berth in (0..IN).filter(|&berth| !self.sides[rank as usize].full[berth]) {
                expected.push(Self::place(rank, OUT + berth));
            }
        }
        for &place in &expected {
            self.interface.cancel(place)?;
        }
        let mut done = Vec::new();
        self.interface.test(&mut done)?;
        while expected.iter().any(|place| !done.contains(place)) {
            if Instant::now() >= until {
                let answer = format!("receives were not given up within {} s", within.as_secs());
                return Err(CommError::Mpi { call: "MPI_Cancel", answer });
            }
            self.nap(None, NAPS.0)?;
            self.interface.test(&mut done)?;
        }
        self.interface.finalize()
    }
}
