//! Who is stuck: a pure function of what was seen of each member.
//!
//! A member is stalled if it holds a task and shows no progress, although the launcher itself ran all the while. Where all
//! members that hold tasks stand still, it is probably the machine, and they get far more time: a disk that is slow for all
//! stalls nobody, nor does a frozen machine or a laptop that slept, as the launcher did not run then. One that waits for a
//! processor is slow, not stuck, and gets more time too. One that a signal has stopped is stalled whatever it does, unless all are.

use paceline_record::{Nanos, Step};

/// The shortest time after which somebody can count as stalled.
const LEAST: Nanos = Nanos(800_000_000);

/// Median steps after which somebody counts as stalled.
const STEPS: u64 = 4;

/// What is allowed for what has no median step yet, and for what is not computing: loading, testing.
const GENEROUS: Nanos = Nanos(60_000_000_000);

/// How much longer somebody gets who only waits for a processor, or where all stand still.
const STARVED: u64 = 10;

/// The most time between two looks that counts: more means that the launcher itself stood still.
const LONGEST_LOOK: Nanos = Nanos(250_000_000);

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Doing {
    /// Nothing: it waits, or is not in yet.
    Nothing = 0,
    /// A shard or a slice.
    Computing = 1,
    /// Getting a batch.
    Loading = 2,
    /// A part of a test.
    Testing = 3,
}

impl Doing {
    pub fn read(code: u64) -> Self {
        match code {
            1 => Self::Computing,
            2 => Self::Loading,
            3 => Self::Testing,
            _ => Self::Nothing,
        }
    }
}

/// What the system says about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// It runs, or would if it had a processor; the processor time it has had.
    Runnable(Nanos),
    /// It sleeps, or waits for a disk.
    Blocked,
    /// A signal has stopped it.
    Stopped,
}

/// What was seen of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    pub seat: u32,
    /// When it last showed progress.
    pub beat: Nanos,
    pub doing: Doing,
    pub run: Run,
}

/// How long each seat's member has stood still.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    seats: Vec<Standing>,
    looked: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    beat: Nanos,
    /// Time that it stood still while the launcher looked on.
    stood: Nanos,
    /// Of that, time in which it was runnable and had no processor.
    starved: Nanos,
    cpu: Nanos,
}

/// Somebody who is stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub seat: u32,
    pub since: Nanos,
    pub step: Step,
}

impl Watch {
    /// For so many seats.
    pub fn new(seats: u32) -> Self {
        Self { seats: vec![Standing::default(); seats as usize], looked: None }
    }

    /// Takes note of what was seen in a step. `median` is that of the steps so far.
    pub fn look(&mut self, sights: &[Sight], median: Option<Nanos>, step: Step, now: Nanos) -> Vec<Stalled> {
        let passed = self.looked.map_or(Nanos(0), |last| now.since(last).min(LONGEST_LOOK));
        self.looked = Some(now);
        let mut holders = 0;
        let mut standing = 0;
        for sight in sights {
            let seat = &mut self.seats[sight.seat as usize];
            let moved = sight.beat != seat.beat;
            if moved || (sight.doing == Doing::Nothing && sight.run != Run::Stopped) {
                *seat = Standing { beat: sight.beat, ..Standing::default() };
            } else {
                seat.stood += passed;
                if let Run::Runnable(cpu) = sight.run
                    && cpu.since(seat.cpu).0 < passed.0 / 20
                {
                    seat.starved += passed;
                }
            }
            if let Run::Runnable(cpu) = sight.run {
                seat.cpu = cpu;
            }
            holders += u32::from(sight.doing != Doing::Nothing);
            standing += u32::from(sight.doing != Doing::Nothing && seat.stood > Nanos(LEAST.0 / 2));
        }
        // All who could work stand still: probably the machine does. One alone has nobody to be compared with.
        let all_stand = holders > 1 && standing == holders;
        let all_stopped = sights.len() > 1 && sights.iter().all(|sight| sight.run == Run::Stopped);
        let is_stalled = |sight: &&Sight| {
            let Standing { stood, starved, .. } = self.seats[sight.seat as usize];
            if sight.run == Run::Stopped {
                return stood > LEAST && !all_stopped;
            }
            let allowed = match (sight.doing, median) {
                (Doing::Nothing, _) => return false,
                (Doing::Computing, Some(median)) => LEAST.max(Nanos(STEPS * median.0)),
                (Doing::Loading, Some(median)) => GENEROUS.max(Nanos(STEPS * median.0)),
                (Doing::Testing, Some(median)) => LEAST.max(Nanos(2 * STEPS * median.0)),
                (_, None) => GENEROUS,
            };
            let is_starved = starved.0 > stood.0 / 2;
            stood > if is_starved || all_stand { Nanos(STARVED * allowed.0) } else { allowed }
        };
        let stalled = sights.iter().filter(is_stalled);
        stalled.map(|sight| Stalled { seat: sight.seat, since: sight.beat, step }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: u64 = 1_000_000;
    const TICK: u64 = 50 * MILLI;

    fn sight(seat: u32, beat: u64, doing: Doing) -> Sight {
        Sight { seat, beat: Nanos(beat), doing, run: Run::Blocked }
    }

    /// Looks every 50 ms until somebody is stalled; when that was.
    fn watch(seconds: u64, median: Option<u64>, see: impl Fn(u64) -> Vec<Sight>) -> Option<(u64, u32)> {
        let mut watch = Watch::new(4);
        (0..seconds * 1000 * MILLI / TICK).map(|tick| tick * TICK).find_map(|now| {
            let median = median.map(|millis| Nanos(millis * MILLI));
            let stalled = watch.look(&see(now), median, Step(3), Nanos(now));
            stalled.first().map(|stalled| (now / MILLI, stalled.seat))
        })
    }

    #[test]
    fn a_member_that_stands_still_while_others_work_is_stalled_within_a_second() {
        let see = |now| vec![sight(0, now, Doing::Computing), sight(1, 7, Doing::Computing)];
        let (at, seat) = watch(5, Some(20), see).expect("stalled");
        assert!((800..1000).contains(&at) && seat == 1, "{at} ms");
        // Five of its steps where these are longer.
        let (at, _) = watch(60, Some(1000), see).expect("stalled");
        assert!((4000..5000).contains(&at), "{at} ms");
    }

    #[test]
    fn others_that_wait_for_it_are_not_stalled() {
        let see = |_| vec![sight(0, 7, Doing::Nothing), sight(1, 7, Doing::Computing)];
        assert_eq!(watch(5, Some(20), see).map(|(_, seat)| seat), Some(1));
        assert_eq!(watch(100, Some(20), |_| vec![sight(0, 7, Doing::Nothing)]), None);
    }

    #[test]
    fn a_stall_that_everybody_shares_expels_nobody() {
        let see = |_| vec![sight(0, 7, Doing::Computing), sight(1, 9, Doing::Computing)];
        assert_eq!(watch(7, Some(20), see), None);
        let see = |_| vec![sight(0, 7, Doing::Loading), sight(1, 9, Doing::Loading)];
        assert_eq!(watch(300, Some(20), see), None);
        let stopped = |seat| Sight { run: Run::Stopped, ..sight(seat, 7, Doing::Computing) };
        assert_eq!(watch(300, Some(20), |_| vec![stopped(0), stopped(1)]), None);
    }

    #[test]
    fn whoever_was_stopped_is_stalled_whatever_it_does_and_however_many_there_are() {
        let stopped = |seat, doing| Sight { run: Run::Stopped, ..sight(seat, 7, doing) };
        let waiting = |now| vec![sight(0, now, Doing::Computing), stopped(1, Doing::Nothing)];
        assert_eq!(watch(2, Some(20), waiting).map(|(_, seat)| seat), Some(1));
        let two =
            |_| vec![sight(0, 7, Doing::Nothing), stopped(1, Doing::Computing), stopped(2, Doing::Computing)];
        assert_eq!(watch(2, Some(1000), two).map(|(_, seat)| seat), Some(1));
    }

    #[test]
    fn a_launcher_that_slept_blames_nobody() {
        let mut watch = Watch::new(2);
        let see = |beat| [sight(0, beat, Doing::Computing), sight(1, beat, Doing::Nothing)];
        watch.look(&see(1), Some(Nanos(MILLI)), Step(0), Nanos(0));
        // A suspended laptop wakes an hour later.
        let hour = 3_600_000 * MILLI;
        assert!(watch.look(&see(1), Some(Nanos(MILLI)), Step(0), Nanos(hour)).is_empty());
    }

    #[test]
    fn who_waits_for_a_processor_gets_more_time_and_a_livelock_does_not() {
        let starved = |now| {
            vec![
                sight(0, now, Doing::Computing),
                Sight { run: Run::Runnable(Nanos(5)), ..sight(1, 7, Doing::Computing) },
            ]
        };
        assert_eq!(watch(7, Some(20), starved), None);
        let livelocked = |now| {
            vec![
                sight(0, now, Doing::Computing),
                Sight { run: Run::Runnable(Nanos(now)), ..sight(1, 7, Doing::Computing) },
            ]
        };
        assert!(watch(2, Some(20), livelocked).is_some());
    }

    #[test]
    fn a_slow_disk_and_a_first_step_get_their_time() {
        let loading = |now| vec![sight(0, now, Doing::Computing), sight(1, 7, Doing::Loading)];
        assert_eq!(watch(30, Some(20), loading), None);
        let first = |now| vec![sight(0, now, Doing::Computing), sight(1, 7, Doing::Computing)];
        assert_eq!(watch(30, None, first), None);
        assert!(watch(70, None, first).is_some());
    }
}
