//! An exchange of gradients that a device makes by itself, as part of its step.

use std::ops::Range;

use paceline_record::Nanos;

use crate::{EngineError, Region};

/// What becomes of gradients between backward and the update, on the device.
pub struct Weave {
    /// Stretches of the gradient region, in the order in which backward completes them; together they are all of it.
    pub buckets: Vec<WovenBucket>,
    /// Whether a bucket is exchanged while backward goes on.
    pub overlap: bool,
    /// Ranks whose gradients lie side by side after the exchange, for the program to average; `None` where the exchange
    /// leaves the mean in place.
    pub gathered: Option<usize>,
    /// Who does it.
    pub link: Box<dyn Link>,
}

/// A bucket of gradients, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenBucket {
    /// Its values.
    pub range: Range<usize>,
    /// The part of them that this program updates.
    pub updated: Range<usize>,
}

/// The gradients of a bucket on a device.
#[derive(Clone, Copy, Debug)]
pub struct Exchanged {
    /// This rank's own, which an exchange in place replaces.
    pub own: Region,
    /// Where all ranks' gradients are to lie side by side, if the program averages them by itself.
    pub gathered: Option<Region>,
}

/// A rank's end of an exchange between devices. The calls put work on a stream of the device, given by its handle, and
/// return at once; that work may be recorded and replayed.
pub trait Link: Send {
    /// Exchanges the gradients of the bucket with this number: in place, or into a second region, rank after rank, where the
    /// program is to average them.
    fn put_gradients(&mut self, bucket: usize, values: Exchanged, stream: u64) -> Result<(), EngineError>;

    /// Hands the updated parameters of a bucket round.
    fn put_parameters(&mut self, bucket: usize, parameters: Region, stream: u64) -> Result<(), EngineError>;

    /// Called now and then while the program waits for the device, with how long it has waited: an error, and an end to
    /// the exchange, where the others have failed or are not to be waited for any longer.
    fn watch(&mut self, waited: std::time::Duration) -> Result<(), EngineError>;
}

/// When the exchange of a bucket was under way, as time before the step's end on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketTime {
    /// This rank was ready.
    pub begun: Nanos,
    /// Its values were the mean.
    pub ended: Nanos,
}
