//! How far hosts had come when the shards were dealt.

use paceline_record::Host;

use super::super::Board;

/// How far a host of the roster had come when the shards were dealt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The host.
    pub host: Host,
    /// Steps done; `None` where it has no state at all.
    pub done: Option<u64>,
    /// Slices of the step after these that it has not done; all of them, if it has no state.
    pub missing: Vec<(u32, u32)>,
    /// Parts of the test after these that it lacks.
    pub untested: Vec<u32>,
}

impl Standing {
    /// Whether it has a slice of the state after so many steps.
    pub(super) fn has(&self, steps: u64, slice: (u32, u32)) -> bool {
        let is_next = |done| done + 1 == steps && !self.missing.contains(&slice);
        self.done.is_some_and(|done| done >= steps || is_next(done))
    }
}

/// Steps done on the furthest of these hosts.
pub fn furthest(hosts: &[Standing]) -> u64 {
    hosts.iter().filter_map(|host| host.done).max().unwrap_or(0)
}

/// Slices of the step at work that a host did by the roster before: the others get them from it. They are not added up again, as their
/// means may be no more.
pub fn given(board: Board, hosts: &[Standing]) -> Vec<(u32, u32)> {
    let shape = board.shape();
    let slices = (0..shape.buckets).flat_map(|bucket| (0..shape.slices).map(move |slice| (bucket, slice)));
    let steps = furthest(hosts) + 1;
    slices.filter(|&slice| hosts.iter().any(|host| host.has(steps, slice))).collect()
}
