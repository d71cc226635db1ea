//! What a member does, and what it waits for.

use paceline_record::Nanos;

use crate::tasks::Parts;

/// How tasks are dealt to members. The bits do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dealing {
    /// Each member has a range of shards and of slices, by its rank.
    #[default]
    Static,
    /// The same, but whoever is done takes tasks that others have not begun.
    Dynamic,
}

/// A shard to be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardTask {
    /// The step.
    pub step: u64,
    /// The shard.
    pub shard: u32,
    /// Whether somebody lost had begun it.
    pub again: bool,
    /// Steps and shards that this member will probably run next.
    pub upcoming: [Option<(u64, u32)>; 3],
}

/// A slice to be added up and updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceTask {
    /// The step.
    pub step: u64,
    /// The bucket.
    pub bucket: u32,
    /// Its number in the bucket.
    pub slice: u32,
}

/// Computes shards.
pub trait Shards {
    /// Why one could not be computed.
    type Error;

    /// Computes a shard's gradients from the state before the step. It calls `progress` from time to time with the number of
    /// buckets that are complete. When it returns, the shard's results are noted.
    fn run(&mut self, task: ShardTask, progress: &mut dyn FnMut(usize)) -> Result<(), Self::Error>;
}

/// Adds up slices of gradients, and updates the state.
pub trait Slices {
    /// Writes a slice of the state after the step. The owner of the slice adds it up over all shards, of which those of other
    /// hosts are there as nodes, and leaves the mean for them; on other hosts the mean is there.
    fn run(&mut self, task: SliceTask, parts: &Parts);

    /// Adds up what this host has of a slice that another one owns, node by node.
    fn add_part(&mut self, task: SliceTask, parts: &Parts);
}

/// Tests the network.
pub trait Tests {
    /// Why it could not be tested.
    type Error;

    /// Tests a part, and notes its result. It calls `progress` from time to time.
    fn run(&mut self, part: u32, progress: &mut dyn FnMut()) -> Result<(), Self::Error>;
}

/// How a member's step, or its whole part, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is done.
    Done,
    /// This member is in the roster no more, or was asked to leave.
    Left,
}

/// What a member waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Somebody's gradients of a bucket.
    Gradients(u32),
    /// Somebody's slices.
    Slices,
    /// Other hosts.
    Hosts,
    /// Parts of a test.
    Tests,
    /// The launcher, which goes over to a new roster.
    Roster,
    /// The launcher, which ends a test or writes a checkpoint.
    Launcher,
}

/// A time in which a member waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// For what.
    pub on: Waiting,
    /// When it began.
    pub begin: Nanos,
    /// When it ended.
    pub end: Nanos,
}
