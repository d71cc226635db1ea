//! Named points of a member's life, at which faults strike.
//!
//! `PACELINE_STRIKE=kill@in-slice:3:1` lets member 1 kill itself the third time that it comes to the point `in-slice`; several are
//! separated by commas. Tests use it. A fault of `--faults` strikes when the next bucket is complete. Where nothing is armed, a
//! point is two loads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_record::Member;
use rustix::process::{Signal, getpid, kill_process};

/// The environment variable that arms a point.
const VARIABLE: &str = "PACELINE_STRIKE";

/// A place in a member's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    BeforeJoin,
    AfterJoin,
    BeforeGroup,
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
    pub const ALL: [Self; 12] = [
        Self::BeforeJoin,
        Self::AfterJoin,
        Self::BeforeGroup,
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
            Self::BeforeGroup => "before-group",
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

/// What the environment asks of this member, and how often each point is still to be passed.
static ASKED: OnceLock<Vec<(Point, Strike, AtomicU64)>> = OnceLock::new();

/// Takes note of what the environment asks of a member.
pub(crate) fn listen(member: Member) {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    ASKED.get_or_init(|| text.split(',').filter_map(|one| parse(one, member)).collect());
}

/// `kill@POINT:COUNT:MEMBER`, if it is for this member.
fn parse(text: &str, own: Member) -> Option<(Point, Strike, AtomicU64)> {
    let (strike, rest) = text.split_once('@')?;
    let mut parts = rest.split(':');
    let (name, count, member) = (parts.next()?, parts.next()?, parts.next()?);
    if member.parse() != Ok(own.0) {
        return None;
    }
    let strike = if strike == "kill" { Strike::Kill } else { Strike::Stop };
    let point = Point::ALL.into_iter().find(|point| point.name() == name)?;
    Some((point, strike, AtomicU64::new(count.parse().ok()?)))
}

/// Lets the next completed bucket be the last thing that this process does for a while, or for ever.
pub(crate) fn arm(strike: Strike) {
    ARMED.store(strike as u64, Ordering::Relaxed);
}

/// Comes to a point.
pub(crate) fn reach(point: Point) {
    for (place, what, left) in ASKED.get().into_iter().flatten() {
        if *place == point && left.fetch_sub(1, Ordering::Relaxed) == 1 {
            strike(*what);
        }
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
