//! Exchange between GPUs through NCCL: one rank a GPU, work put on a stream of the device. The library is found at run time.

mod interface;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SendError};
use std::thread;
use std::time::{Duration, Instant};

use paceline_record::Rank;

pub use interface::{Call, Handle, Interface, Library, UniqueId};

use crate::CommError;

/// Values of 32 bits on a rank's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceValues {
    address: u64,
    len: usize,
}

impl DeviceValues {
    /// So many values from an address on.
    ///
    /// # Safety
    /// They must be memory of the device of whichever [`Nccl`] they are handed to, and stay so until every operation over
    /// them is done. Meanwhile nobody else may write them, nor read what an operation writes.
    pub unsafe fn new(address: u64, len: usize) -> Self {
        Self { address, len }
    }

    fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "invariant: a part lies inside");
        Self { address: self.address + 4 * range.start as u64, len: range.len() }
    }
}

/// A stream of a rank's device, on which work is put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(u64);

impl Stream {
    /// The stream of this handle.
    ///
    /// # Safety
    /// It must be the handle of a stream of the device of whichever [`Nccl`] it is handed to, and stay so until all that
    /// was put on it is done.
    pub unsafe fn new(handle: u64) -> Self {
        Self(handle)
    }
}

/// A rank's place in a group of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The group.
    pub group: UniqueId,
    /// The rank that it is for.
    pub rank: Rank,
    /// How many ranks the group has.
    pub world: u32,
}

/// One rank of a group of GPUs. All ranks put the same operations on their streams in the same order; each returns at once,
/// and what it put there may be recorded and replayed. Sums are means.
pub struct Nccl {
    interface: Arc<dyn Interface>,
    comm: Handle,
    /// The rank's device.
    context: usize,
    rank: Rank,
    world: u32,
    /// Whether the group has been given up.
    over: bool,
}

/// How often whoever joins a group looks whether it has been recalled.
const LOOK: Duration = Duration::from_millis(5);

impl Nccl {
    /// Takes a seat in a group; the thread's device is the rank's. All ranks must do so within this time.
    pub fn join(interface: Arc<dyn Interface>, seat: Seat, within: Duration) -> Result<Self, CommError> {
        Self::join_unless(interface, seat, within, &mut || false)
    }

    /// The same, unless it is recalled meanwhile: whoever is waited for may be lost.
    pub fn join_unless(
        interface: Arc<dyn Interface>,
        seat: Seat,
        within: Duration,
        is_recalled: &mut dyn FnMut() -> bool,
    ) -> Result<Self, CommError> {
        let Seat { group, rank, world } = seat;
        let context = interface.context()?;
        // Without room for a message, one is either taken by whom it is for or comes back to who sent it.
        let (tell, told) = mpsc::sync_channel(0);
        let joining = interface.clone();
        // The call blocks until all have come, and cannot be told to stop. Where it is not waited for any longer, the thread stays
        // until the connections of those who have gone end its call, or this process does.
        thread::Builder::new()
            .name("nccl-init".into())
            .spawn(move || {
                let joined = joining.enter(context).and_then(|()| joining.init_rank(world, group, rank));
                // Nobody listens any more where the deadline has passed: the group that came too late is left.
                if let Err(SendError(Ok(comm))) = tell.send(joined) {
                    joining.abort(comm);
                }
            })
            .map_err(CommError::system("start a thread"))?;
        let by = Instant::now() + within;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(comm) => return Ok(Self { interface, comm: comm?, context, rank, world, over: false }),
                Err(_) if is_recalled() => return Err(CommError::Recalled),
                Err(RecvTimeoutError::Timeout) if Instant::now() < by => {}
                Err(_) => return Err(CommError::Silent { waited: within }),
            }
        }
    }

    /// Every rank ends with the mean.
    pub fn all_reduce(&mut self, values: DeviceValues, stream: Stream) -> Result<(), CommError> {
        self.interface.all_reduce(self.comm, Call::in_place(values, stream))
    }

    /// Each rank ends with the mean of its own slice; what the others hold of theirs is of no use.
    pub fn reduce_scatter(
        &mut self,
        values: DeviceValues,
        slices: &[Range<usize>],
        stream: Stream,
    ) -> Result<(), CommError> {
        let own = values.part(slices[self.rank.0 as usize].clone());
        if are_even(slices) {
            let call = Call { from: values.address, into: own.address, len: own.len, stream: stream.0 };
            return self.interface.reduce_scatter(self.comm, call);
        }
        self.for_each_slice(values, slices, |root, slice| {
            self.interface.reduce(self.comm, root, Call::in_place(slice, stream))
        })
    }

    /// Every rank ends with the slices of all.
    pub fn all_gather(
        &mut self,
        values: DeviceValues,
        slices: &[Range<usize>],
        stream: Stream,
    ) -> Result<(), CommError> {
        let own = values.part(slices[self.rank.0 as usize].clone());
        if are_even(slices) {
            let call = Call { from: own.address, into: values.address, len: own.len, stream: stream.0 };
            return self.interface.all_gather(self.comm, call);
        }
        self.for_each_slice(values, slices, |root, slice| {
            self.interface.broadcast(self.comm, root, Call::in_place(slice, stream))
        })
    }

    /// Every rank ends with the values of all, side by side in the order of the ranks: `into` has room for `world` times as
    /// many.
    pub fn gather_beside(
        &mut self,
        values: DeviceValues,
        into: DeviceValues,
        stream: Stream,
    ) -> Result<(), CommError> {
        assert!(into.len >= values.len * self.world as usize, "invariant: room for the values of all ranks");
        let call = Call { from: values.address, into: into.address, len: values.len, stream: stream.0 };
        self.interface.all_gather(self.comm, call)
    }

    /// One rank ends with the mean.
    pub fn reduce(&mut self, values: DeviceValues, root: Rank, stream: Stream) -> Result<(), CommError> {
        self.interface.reduce(self.comm, root, Call::in_place(values, stream))
    }

    /// Every rank ends with the values of one.
    pub fn broadcast(&mut self, values: DeviceValues, root: Rank, stream: Stream) -> Result<(), CommError> {
        self.interface.broadcast(self.comm, root, Call::in_place(values, stream))
    }

    /// One operation a slice, as one.
    fn for_each_slice(
        &self,
        values: DeviceValues,
        slices: &[Range<usize>],
        put: impl Fn(Rank, DeviceValues) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        self.interface.group_start()?;
        let put_all = (0..)
            .map(Rank)
            .zip(slices)
            .filter(|(_, slice)| !slice.is_empty())
            .try_for_each(|(root, slice)| put(root, values.part(slice.clone())));
        // A group that was begun is ended, whatever happened in it.
        let ended = self.interface.group_end();
        put_all.and(ended)
    }

    /// Whether there is still something to wait for, `waited` into a wait that may take until `patience`. The group is
    /// given up where another rank has failed, or has not answered for so long: what waits on the device then ends.
    pub fn watch(&mut self, waited: Duration, patience: Duration) -> Result<(), CommError> {
        if self.over {
            return Err(CommError::Recalled);
        }
        let sound = self.interface.async_error(self.comm);
        let error = match sound {
            Err(error) => error,
            Ok(()) if waited > patience => CommError::Silent { waited },
            Ok(()) => return Ok(()),
        };
        self.give_up();
        Err(error)
    }

    /// Gives the group up: operations under way end with whatever they have.
    ///
    /// NCCL tells the device at once, and then waits until no recording has operations of the group any more. Whoever gives it up
    /// has to drop those, so another thread waits.
    pub fn give_up(&mut self) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let (interface, comm, context) = (self.interface.clone(), self.comm, self.context);
        let abort = move || {
            // Whatever the driver answers, the group is left.
            let _ = interface.enter(context);
            interface.abort(comm);
        };
        if thread::Builder::new().name("nccl-abort".into()).spawn(abort).is_err() {
            self.interface.abort(self.comm);
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        if !self.over {
            self.interface.destroy(self.comm);
        }
    }
}

/// Whether all slices are equally long, as NCCL's own division of a range is.
fn are_even(slices: &[Range<usize>]) -> bool {
    slices.iter().all(|slice| slice.len() == slices[0].len())
}
