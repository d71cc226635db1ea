//! Named points of a step, at which faults strike.
//!
//! `PACELINE_STRIKE=kill@in-slice:3` lets a worker kill itself the third time that it comes to the point `in-slice`; tests use
//! it. A fault of `--faults` strikes in the middle of the next shard. Where nothing is armed, a point is one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The environment variable that arms a point.
pub(crate) const VARIABLE: &str = "PACELINE_STRIKE";

/// A place in a member's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeJoin,
    AfterJoin,
    InShard,
    BeforeFlag,
    AfterFlag,
    BeforeLastFlag,
    BeforeSlice,
    InSlice,
    InTest,
    InCheckpoint,
    BeforeEnd,
}

impl Point {
    pub const ALL: [Self; 11] = [
        Self::BeforeJoin,
        Self::AfterJoin,
        Self::InShard,
        Self::BeforeFlag,
        Self::AfterFlag,
        Self::BeforeLastFlag,
        Self::BeforeSlice,
        Self::InSlice,
        Self::InTest,
        Self::InCheckpoint,
        Self::BeforeEnd,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeJoin => "before-join",
            Self::AfterJoin => "after-join",
            Self::InShard => "in-shard",
            Self::BeforeFlag => "before-flag",
            Self::AfterFlag => "after-flag",
            Self::BeforeLastFlag => "before-last-flag",
            Self::BeforeSlice => "before-slice",
            Self::InSlice => "in-slice",
            Self::InTest => "in-test",
            Self::InCheckpoint => "in-checkpoint",
            Self::BeforeEnd => "before-end",
        }
    }
}

/// What happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    Kill = 1,
    Stop = 2,
}

/// What the next point in a shard brings: nothing, or a [`Strike`].
static ARMED: AtomicU64 = AtomicU64::new(0);

/// What the environment asks for, and how often its point is still to be passed.
static ASKED: OnceLock<Option<(Point, Strike)>> = OnceLock::new();
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Lets the next completed bucket be the last thing that this process does for a while, or for ever.
pub(crate) fn arm(strike: Strike) {
    ARMED.store(strike as u64, Ordering::Relaxed);
}

fn asked() -> Option<(Point, Strike)> {
    *ASKED.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let (strike, rest) = text.split_once('@')?;
        let (name, count) = rest.split_once(':')?;
        let strike = if strike == "kill" { Strike::Kill } else { Strike::Stop };
        LEFT.store(count.parse().ok()?, Ordering::Relaxed);
        Point::ALL.into_iter().find(|point| point.name() == name).map(|point| (point, strike))
    })
}

/// Comes to a point.
pub(crate) fn reach(point: Point) {
    if let Some((place, what)) = asked()
        && place == point
        && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
    {
        strike(what);
    }
    if point == Point::AfterFlag {
        match ARMED.swap(0, Ordering::Relaxed) {
            1 => strike(Strike::Kill),
            2 => strike(Strike::Stop),
            _ => {}
        }
    }
}

fn strike(strike: Strike) {
    let signal = match strike {
        Strike::Kill => Signal::KILL,
        Strike::Stop => Signal::STOP,
    };
    // It cannot fail: a process may send signals to itself.
    let _ = kill_process(getpid(), signal);
}
