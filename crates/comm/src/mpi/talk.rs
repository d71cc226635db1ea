//! What launchers say to each other through MPI: calls, and letters that are carried on them.
//!
//! Everybody but the one thread that calls MPI goes through a [`Switchboard`]: they leave there what is to be sent, and find there what
//! has come.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dock::{Head, Kind};
use crate::CommError;
use crate::tasks::Bell;
use crate::wire::{Address, Cable, LONGEST_LETTER, Letters};

/// Bytes of letters that wait to be sent on one call.
const MOST_WAITING: usize = 64 << 20;

/// What is said on a call.
const OPEN: u32 = 1;
const LETTER: u32 = 2;
const CLOSE: u32 = 3;

/// Which side of a call this rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Caller,
    Called,
}

/// A call, as this rank knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The other one.
    rank: u32,
    /// The number that the caller has given it.
    call: u64,
    part: Part,
}

/// What has come on a call.
struct Line {
    letters: VecDeque<Vec<u8>>,
    /// The one that comes, as far as it is there.
    incoming: Vec<u8>,
    /// Why nothing more comes.
    over: Option<String>,
    /// Bytes that wait to be sent.
    waiting: usize,
    /// Rung when something has come.
    bell: Arc<Bell>,
}

/// What is to be sent.
struct Parcel {
    key: Key,
    what: u32,
    bytes: Vec<u8>,
    sent: usize,
}

/// A chunk of it.
pub(super) struct Words {
    pub head: Head,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    lines: HashMap<Key, Line>,
    /// By rank.
    outgoing: Vec<VecDeque<Parcel>>,
    /// Calls that nobody has answered, with what was said first.
    visitors: VecDeque<(Key, Vec<u8>)>,
    calls: u64,
    broken: Option<String>,
}

/// Where all calls of this rank meet.
pub(super) struct Switchboard {
    state: Mutex<State>,
    /// Rung when something is to be sent.
    called: Bell,
    /// Rung when somebody calls.
    visited: Bell,
}

impl Switchboard {
    pub fn new(world: u32) -> Result<Self, CommError> {
        let state = State { outgoing: (0..world).map(|_| VecDeque::new()).collect(), ..State::default() };
        Ok(Self { state: Mutex::new(state), called: Bell::private()?, visited: Bell::private()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable when something is to be sent.
    pub fn called(&self) -> BorrowedFd<'_> {
        self.called.as_fd()
    }

    /// Wakes the thread that calls MPI.
    pub fn wake(&self) {
        self.called.ring();
    }

    /// Notes that it has been woken.
    pub fn heed(&self) {
        // It fails only where nobody has rung.
        let _ = self.called.silence();
    }

    /// Readable while somebody calls.
    pub fn visited(&self) -> BorrowedFd<'_> {
        self.visited.as_fd()
    }

    /// The next chunk for a rank.
    pub fn next(&self, rank: u32, most: usize) -> Option<Words> {
        let mut state = self.state();
        let parcel = state.outgoing[rank as usize].front_mut()?;
        let len = (parcel.bytes.len() - parcel.sent).min(most);
        let head = Head {
            kind: Kind::Talk,
            run: parcel.key.call,
            generation: u64::from(parcel.key.part == Part::Called),
            tag: [parcel.what, 0, 0, 0, 0, 0],
            whole: parcel.bytes.len() as u64,
            at: parcel.sent as u64,
        };
        let bytes = parcel.bytes[parcel.sent..parcel.sent + len].to_vec();
        parcel.sent += len;
        let (key, is_sent) = (parcel.key, parcel.sent == parcel.bytes.len());
        if is_sent {
            state.outgoing[rank as usize].pop_front();
        }
        if let Some(line) = state.lines.get_mut(&key) {
            line.waiting -= len;
        }
        Some(Words { head, bytes })
    }

    /// Whether there is one.
    pub fn has_words(&self, rank: u32) -> bool {
        !self.state().outgoing[rank as usize].is_empty()
    }

    /// Takes a chunk of what a rank says.
    pub fn hear(&self, rank: u32, head: &Head, bytes: &[u8]) {
        // What the other one sends as the caller comes to the one who is called.
        let part = if head.generation == 0 { Part::Called } else { Part::Caller };
        let key = Key { rank, call: head.run, part };
        let mut state = self.state();
        if head.tag[0] == OPEN && part == Part::Called && head.at == 0 {
            match Bell::private() {
                Ok(bell) => drop(state.lines.insert(key, Line::new(bell))),
                Err(error) => {
                    drop(state);
                    return self.close_all(&error.to_string());
                }
            }
        }
        // Of a call that is over.
        let Some(line) = state.lines.get_mut(&key).filter(|line| line.over.is_none()) else { return };
        match head.tag[0] {
            CLOSE => line.over = Some("it closed the connection".into()),
            _ if head.whole > LONGEST_LETTER as u64 || head.at != line.incoming.len() as u64 => {
                line.over = Some("it says what makes no sense".into());
            }
            what => {
                line.incoming.extend_from_slice(bytes);
                if line.incoming.len() as u64 != head.whole {
                    return;
                }
                let whole = std::mem::take(&mut line.incoming);
                if what == OPEN {
                    state.visitors.push_back((key, whole));
                    self.visited.ring();
                    return;
                }
                line.letters.push_back(whole);
            }
        }
        line.bell.ring();
    }

    /// Whoever has called and has not been answered yet: its rank, what it said, and the connection.
    pub fn visitor(self: &Arc<Self>) -> Option<(u32, Vec<u8>, Letters)> {
        let mut state = self.state();
        let visitor = state.visitors.pop_front();
        if state.visitors.is_empty() {
            // It fails only where nobody has rung.
            let _ = self.visited.silence();
        }
        let (key, greeting) = visitor?;
        let bell = state.lines.get(&key)?.bell.clone();
        drop(state);
        Some((key.rank, greeting, Letters::between_ranks(self.line(key, bell))))
    }

    /// Calls a rank, and says something first.
    pub fn call(self: &Arc<Self>, rank: u32, greeting: &[u8], cable: &Cable) -> Result<Letters, CommError> {
        let mut state = self.state();
        let key = Key { rank, call: state.calls, part: Part::Caller };
        state.calls += 1;
        let line = Line { over: state.broken.clone(), ..Line::new(Bell::private()?) };
        let bell = line.bell.clone();
        state.lines.insert(key, line);
        drop(state);
        let mut line = self.line(key, bell);
        line.cable = cable.clone();
        line.post(OPEN, greeting.to_vec());
        Ok(Letters::between_ranks(line))
    }

    fn line(self: &Arc<Self>, key: Key, bell: Arc<Bell>) -> RankLetters {
        RankLetters { board: self.clone(), key, bell, cable: Cable::default(), kept: VecDeque::new() }
    }

    fn put(&self, key: Key, what: u32, bytes: Vec<u8>) {
        let mut state = self.state();
        if let Some(line) = state.lines.get_mut(&key) {
            line.waiting += bytes.len();
        }
        state.outgoing[key.rank as usize].push_back(Parcel { key, what, bytes, sent: 0 });
        drop(state);
        self.called.ring();
    }

    /// Nothing comes and goes any more.
    pub fn close_all(&self, why: &str) {
        let mut state = self.state();
        state.broken = Some(why.into());
        for line in state.lines.values_mut() {
            line.over.get_or_insert_with(|| why.into());
            line.bell.ring();
        }
    }
}

impl Line {
    fn new(bell: Bell) -> Self {
        let bell = Arc::new(bell);
        Self { letters: VecDeque::new(), incoming: Vec::new(), over: None, waiting: 0, bell }
    }
}

/// Letters on a call between two ranks.
pub struct RankLetters {
    board: Arc<Switchboard>,
    key: Key,
    bell: Arc<Bell>,
    cable: Cable,
    /// What waits for the cable to be whole.
    kept: VecDeque<(u32, Vec<u8>)>,
}

impl RankLetters {
    fn post(&mut self, what: u32, bytes: Vec<u8>) {
        match self.cable.is_cut_for() {
            Some(_) => self.kept.push_back((what, bytes)),
            None => self.board.put(self.key, what, bytes),
        }
    }

    /// What it goes through from now on.
    pub(crate) fn set_cable(&mut self, cable: &Cable) {
        self.cable = cable.clone();
    }

    pub(crate) fn other(&self) -> Address {
        Address::Rank(self.key.rank)
    }

    pub(crate) fn send(&mut self, letter: &[u8]) -> Result<(), CommError> {
        let mut state = self.board.state();
        let line = state.lines.get_mut(&self.key).expect("invariant: a line lives as long as its letters");
        if line.waiting + letter.len() > MOST_WAITING {
            line.over = Some(format!("it does not read its letters, and {MOST_WAITING} bytes of them wait"));
        }
        let over = line.over.clone();
        drop(state);
        match over {
            Some(why) => Err(CommError::Disconnected { address: self.other(), why }),
            None => {
                self.post(LETTER, letter.to_vec());
                Ok(())
            }
        }
    }

    /// Whether something of it has not been given to MPI yet. There is nothing to poll for: it goes by itself.
    pub(crate) fn is_waiting(&self) -> bool {
        let state = self.board.state();
        let is_over = state.broken.is_some();
        !is_over && (!self.kept.is_empty() || state.lines.get(&self.key).is_some_and(|line| line.waiting > 0))
    }

    pub(crate) fn progress(&mut self) -> Result<Vec<Vec<u8>>, CommError> {
        // It fails only where nobody has rung.
        let _ = self.bell.silence();
        if self.cable.is_cut_for().is_some() {
            return Ok(Vec::new());
        }
        while let Some((what, bytes)) = self.kept.pop_front() {
            self.board.put(self.key, what, bytes);
        }
        let mut state = self.board.state();
        let line = state.lines.get_mut(&self.key).expect("invariant: a line lives as long as its letters");
        let letters: Vec<Vec<u8>> = line.letters.drain(..).collect();
        match &line.over {
            Some(why) if letters.is_empty() => {
                Err(CommError::Disconnected { address: Address::Rank(self.key.rank), why: why.clone() })
            }
            _ => Ok(letters),
        }
    }
}

impl AsFd for RankLetters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl Drop for RankLetters {
    fn drop(&mut self) {
        // In order, and after all that was to be said.
        for (what, bytes) in std::mem::take(&mut self.kept) {
            self.board.put(self.key, what, bytes);
        }
        self.board.put(self.key, CLOSE, Vec::new());
        self.board.state().lines.remove(&self.key);
    }
}
