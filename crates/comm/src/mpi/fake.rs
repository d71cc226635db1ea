//! A stand-in for MPI between threads of one process, which decides from a seed what is done when.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use super::interface::Interface;
use crate::CommError;

/// All that is between ranks.
#[derive(Default)]
struct Between {
    /// Messages from each rank to each, in order; those in flight count as sent only when they have been taken.
    mail: Vec<Vec<VecDeque<Message>>>,
    /// What was wrong with how MPI was used.
    mistakes: Vec<String>,
    finalized: usize,
    sums: Vec<f32>,
    arrived: usize,
    rounds: usize,
    broken: bool,
}

struct Message {
    bytes: Vec<u8>,
    /// The sender's place; its send is done when this has been taken.
    place: usize,
}

enum Request {
    Send { is_done: bool },
    Receive { from: usize, into: *mut u8, len: usize, is_cancelled: bool },
}

/// One rank.
pub struct Fake {
    rank: usize,
    world: usize,
    between: Arc<Mutex<Between>>,
    requests: Vec<Option<Request>>,
    /// Places of receives from each rank, in the order in which they were begun.
    expected: Vec<VecDeque<usize>>,
    /// Sends of this rank that others have taken.
    taken: Arc<Mutex<Vec<Vec<usize>>>>,
    seed: u64,
}

// SAFETY: a fake is moved to the thread that uses it; what it points to is its user's.
unsafe impl Send for Fake {}

/// Ranks of one job, for threads of their own.
pub fn job(world: u32, seed: u64) -> (Vec<Fake>, Watch) {
    let world = world as usize;
    let mail = (0..world).map(|_| (0..world).map(|_| VecDeque::new()).collect()).collect();
    let between = Arc::new(Mutex::new(Between { mail, ..Between::default() }));
    let taken = Arc::new(Mutex::new(vec![Vec::new(); world]));
    let rank = |rank| Fake {
        rank,
        world,
        between: between.clone(),
        requests: (0..super::dock::places(world as u32)).map(|_| None).collect(),
        expected: vec![VecDeque::new(); world],
        taken: taken.clone(),
        seed: seed ^ (rank as u64) << 32 | 1,
    };
    ((0..world).map(rank).collect(), Watch(between.clone()))
}

/// What a job's ranks have done.
pub struct Watch(Arc<Mutex<Between>>);

impl Watch {
    /// How many have left MPI in good order, and what was wrong with how it was used.
    pub fn ended(&self) -> (usize, Vec<String>) {
        let between = self.0.lock().expect("no panic");
        (between.finalized, between.mistakes.clone())
    }

    /// From now on every call fails.
    pub fn break_down(&self) {
        self.0.lock().expect("no panic").broken = true;
    }
}

impl Fake {
    fn between(&self) -> MutexGuard<'_, Between> {
        self.between.lock().expect("no panic")
    }

    fn draw(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed >> 20
    }

    fn check(&self) -> Result<(), CommError> {
        match self.between().broken {
            true => Err(CommError::Mpi { call: "fake", answer: "the network is gone".into() }),
            false => Ok(()),
        }
    }
}

impl Interface for Fake {
    fn rank(&self) -> u32 {
        self.rank as u32
    }

    fn world(&self) -> u32 {
        self.world as u32
    }

    unsafe fn send(&mut self, place: usize, to: u32, from: *const u8, len: usize) -> Result<(), CommError> {
        self.check()?;
        let to = to as usize;
        assert!(self.requests[place].is_none(), "a place is used twice");
        // SAFETY: the caller vouches for the bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) }.to_vec();
        self.between().mail[self.rank][to].push_back(Message { bytes, place });
        self.requests[place] = Some(Request::Send { is_done: false });
        Ok(())
    }

    unsafe fn receive(
        &mut self,
        place: usize,
        from: u32,
        into: *mut u8,
        len: usize,
    ) -> Result<(), CommError> {
        self.check()?;
        assert!(self.requests[place].is_none(), "a place is used twice");
        self.requests[place] = Some(Request::Receive { from: from as usize, into, len, is_cancelled: false });
        self.expected[from as usize].push_back(place);
        Ok(())
    }

    fn test(&mut self, done: &mut Vec<usize>) -> Result<(), CommError> {
        self.check()?;
        for place in std::mem::take(&mut self.taken.lock().expect("no panic")[self.rank]) {
            if let Some(Request::Send { is_done }) = &mut self.requests[place] {
                *is_done = true;
            }
        }
        for from in 0..self.world {
            // Some come now, some later.
            while !self.draw().is_multiple_of(3) && !self.expected[from].is_empty() {
                let message = self.between().mail[from][self.rank].pop_front();
                let Some(Message { bytes, place: theirs }) = message else { break };
                let place = self.expected[from].pop_front().expect("one is expected");
                let Some(Request::Receive { into, len, .. }) = self.requests[place] else {
                    panic!("no receive")
                };
                assert!(bytes.len() <= len, "a message does not fit");
                // SAFETY: whoever receives vouches for the room.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
                self.taken.lock().expect("no panic")[from].push(theirs);
                self.requests[place] = None;
                done.push(place);
            }
        }
        for place in 0..self.requests.len() {
            let is_over = match &self.requests[place] {
                Some(Request::Send { is_done }) => *is_done,
                Some(Request::Receive { from, is_cancelled: true, .. }) => {
                    self.expected[*from].retain(|&other| other != place);
                    true
                }
                _ => false,
            };
            if is_over && !self.draw().is_multiple_of(3) {
                self.requests[place] = None;
                done.push(place);
            }
        }
        // Messages of different ranks are done in any order.
        let turn = self.draw() as usize % done.len().max(1);
        done.rotate_left(turn);
        Ok(())
    }

    fn cancel(&mut self, place: usize) -> Result<(), CommError> {
        self.check()?;
        match &mut self.requests[place] {
            Some(Request::Receive { is_cancelled, .. }) => *is_cancelled = true,
            _ => panic!("nothing to cancel"),
        }
        Ok(())
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CommError> {
        let round = {
            let mut between = self.between();
            between.sums.resize(values.len(), 0.0);
            between.sums.iter_mut().zip(&*values).for_each(|(sum, value)| *sum += value);
            between.arrived += 1;
            if between.arrived == self.world {
                between.arrived = 0;
                between.rounds += 1;
            }
            between.rounds + usize::from(between.arrived > 0)
        };
        while self.between().rounds < round {
            std::thread::yield_now();
        }
        values.copy_from_slice(&self.between().sums);
        self.barrier()?;
        self.between().sums.clear();
        self.barrier()
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let round = {
            let mut between = self.between();
            between.arrived += 1;
            if between.arrived == self.world {
                between.arrived = 0;
                between.rounds += 1;
            }
            between.rounds + usize::from(between.arrived > 0)
        };
        while self.between().rounds < round {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn finalize(&mut self) -> Result<(), CommError> {
        self.check()?;
        let mut between = self.between.lock().expect("no panic");
        if self.requests.iter().any(Option::is_some) {
            between.mistakes.push(format!("rank {} left while something was under way", self.rank));
        }
        if between.mail.iter().any(|mail| !mail[self.rank].is_empty()) {
            between.mistakes.push(format!("rank {} left while something was on its way to it", self.rank));
        }
        between.finalized += 1;
        Ok(())
    }
}
