//! From the clock of one host to that of the first.
//!
//! A reading says what another host's clock showed at a moment of the first host's. Between two readings the offset is taken
//! to change evenly, and beyond the last two as it does between them. A reading that is close to a better one is left out: what is
//! gained in time is less than what its uncertainty costs.

use std::collections::BTreeMap;

use paceline_record::{
    ArrivalRecord, BucketRecord, ClockReading, Nanos, Phase, PhaseTimes, Scheduling, StepRecord,
};

/// Two readings are used together if they are this many times as far apart as they are uncertain: the rate of the clock is then known to
/// one part in as many.
const APART: u128 = 10_000;

/// How much the rates of two clocks differ at most, if nothing is known about them.
const DRIFT: f64 = 200e-6;

/// Clocks whose rates seem to differ by more than this do not: one of them stood still or was set.
const MOST_DRIFT: f64 = 500e-6;

/// A moment further than this from every reading cannot be told: a day.
const REACH: i128 = 86_400_000_000_000;

/// Puts moments of a host on the clock of the first host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clock {
    /// In order of time, on either clock. None for the first host itself.
    knots: Vec<Knot>,
}

/// A reading that is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Knot {
    /// What the host's clock showed.
    own: i128,
    /// What that has to be reduced by to get the first host's clock.
    offset: i128,
    /// How much the offset may be wrong.
    within: f64,
}

impl Clock {
    /// The clock that these readings tell of, or why they tell of none.
    pub(crate) fn new(readings: impl IntoIterator<Item = ClockReading>) -> Result<Self, String> {
        let knots: Vec<Knot> = choose(readings).into_values().map(Knot::from).collect();
        if knots.is_empty() {
            return Err("its clock was never compared with that of the first host".into());
        }
        if !knots.is_sorted_by(|one, next| one.own < next.own) {
            return Err("the readings of its clock contradict each other: it ran backwards".into());
        }
        Ok(Self { knots })
    }

    /// A moment on the first host's clock; `None` if no reading is near enough.
    pub(crate) fn moment(&self, own: Nanos) -> Option<Nanos> {
        if self.knots.is_empty() {
            return Some(own);
        }
        let own = i128::from(own.0);
        let (from, rate) = self.stretch(own);
        let after = own - from.own;
        let (first, last) = (self.knots[0].own, self.knots[self.knots.len() - 1].own);
        if own < first - REACH || last + REACH < own {
            return None;
        }
        let offset = from.offset + (rate * after as f64).round() as i128;
        u64::try_from(own - offset).ok().map(Nanos)
    }

    /// How much moments from one to another may be wrong, in either direction.
    pub(crate) fn within(&self, from: Nanos, to: Nanos) -> Nanos {
        let (from, to) = (i128::from(from.0), i128::from(to.0));
        let between = self.knots.windows(2).filter(|pair| pair[0].own <= to && from <= pair[1].own);
        let between = between.map(|pair| pair[0].within.max(pair[1].within) + jump(pair[0], pair[1]));
        let ends = [from, to].map(|own| self.beyond(own));
        Nanos(between.chain(ends).fold(0.0, f64::max).ceil() as u64)
    }

    /// How much a moment outside the readings may be wrong; 0 for others.
    fn beyond(&self, own: i128) -> f64 {
        let (Some(first), Some(last)) = (self.knots.first(), self.knots.last()) else { return 0.0 };
        let (near, other) = match own {
            _ if own <= first.own => (first, self.knots.get(1)),
            _ if own >= last.own => (last, self.knots.len().checked_sub(2).and_then(|at| self.knots.get(at))),
            _ => return 0.0,
        };
        let known = other.filter(|other| drift(*near, **other).abs() <= MOST_DRIFT);
        let rate =
            known.map_or(DRIFT, |other| (near.within + other.within) / (near.own - other.own).abs() as f64);
        near.within + rate * (own - near.own).abs() as f64
    }

    /// The reading that a moment is told from, and how fast the offset grows there.
    fn stretch(&self, own: i128) -> (Knot, f64) {
        let after = self.knots.partition_point(|knot| knot.own <= own);
        let inside = (1..self.knots.len()).contains(&after);
        let at = after.clamp(1, self.knots.len().max(2) - 1);
        match self.knots.get(at) {
            Some(&to) => {
                let from = self.knots[at - 1];
                let rate = drift(from, to);
                let known = inside || rate.abs() <= MOST_DRIFT;
                let near = if own > to.own { to } else { from };
                (near, if known { rate } else { 0.0 })
            }
            None => (self.knots[0], 0.0),
        }
    }

    /// Puts all moments of a step on the first host's clock, and all lengths of time to its rate.
    pub(crate) fn step(&self, step: &mut StepRecord) -> Option<()> {
        if self.knots.is_empty() {
            return Some(());
        }
        let (begin, end) = (self.moment(step.begin)?, self.moment(step.end)?);
        let rate = self.rate((step.begin, step.end), (begin, end));
        (step.begin, step.end) = (begin, end);
        let scale = |time: &mut Nanos| *time = scaled(*time, rate);
        [&mut step.late_rank, &mut step.comm_busy, &mut step.idle_host, &mut step.idle_queued]
            .into_iter()
            .for_each(scale);
        scale(&mut step.idle_empty);
        step.overlapped.iter_mut().for_each(scale);
        scale_phases(&mut step.phases, rate);
        if let Some(told) = step.scheduling.as_deref_mut() {
            let Scheduling { cpu, process_cpu, queued, throttled, steal, .. } = told;
            [cpu, process_cpu, queued, throttled, steal].into_iter().flatten().for_each(scale);
            told.off_core.iter_mut().for_each(|times| scale_phases(times, rate));
        }
        for bucket in &mut step.buckets {
            let BucketRecord { begun, last_arrival, ended, waited_late, waited_transfer, cpu, .. } = bucket;
            for moment in [begun, last_arrival, ended] {
                *moment = self.moment(*moment)?;
            }
            [waited_late, waited_transfer, cpu].into_iter().for_each(scale);
        }
        step.starved.iter_mut().for_each(scale);
        for ArrivalRecord { begun, ended, cpu, .. } in &mut step.arrivals {
            (*begun, *ended) = (self.moment(*begun)?, self.moment(*ended)?);
            scale(cpu);
        }
        for (begin, end) in &mut step.waits {
            (*begin, *end) = (self.moment(*begin)?, self.moment(*end)?);
        }
        Some(())
    }

    /// A length of time within a stretch that is known on both clocks.
    pub(crate) fn length(&self, time: Nanos, own: (Nanos, Nanos), first: (Nanos, Nanos)) -> Nanos {
        scaled(time, self.rate(own, first))
    }

    /// What lengths of time within a stretch are multiplied by.
    fn rate(&self, own: (Nanos, Nanos), first: (Nanos, Nanos)) -> f64 {
        let [own, first] = [own, first].map(|(begin, end)| end.since(begin).0 as f64);
        let rate = first / own;
        // Where the clock stood still, so did everything that it measured.
        if (rate - 1.0).abs() <= MOST_DRIFT { rate } else { 1.0 }
    }
}

impl From<ClockReading> for Knot {
    fn from(ClockReading { at, offset, within, .. }: ClockReading) -> Self {
        let offset = i128::from(offset);
        Self { own: i128::from(at.0) + offset, offset, within: within.0 as f64 }
    }
}

/// The readings that are used, by their moment: the surest first, and no other that is too close to one of them.
fn choose(readings: impl IntoIterator<Item = ClockReading>) -> BTreeMap<Nanos, ClockReading> {
    let mut surest_first: Vec<ClockReading> = readings.into_iter().collect();
    surest_first.sort_by_key(|reading| (reading.within, reading.at));
    let mut chosen: BTreeMap<Nanos, ClockReading> = BTreeMap::new();
    for reading in surest_first {
        let close = |other: (&Nanos, &ClockReading)| {
            let uncertain = u128::from(reading.within.0) + u128::from(other.1.within.0);
            u128::from(reading.at.0.abs_diff(other.1.at.0)) <= APART * uncertain
        };
        let before = chosen.range(..=reading.at).next_back().is_some_and(close);
        if !before && !chosen.range(reading.at..).next().is_some_and(close) {
            chosen.insert(reading.at, reading);
        }
    }
    chosen
}

/// How much the offset grows in a nanosecond between two readings.
fn drift(one: Knot, other: Knot) -> f64 {
    (other.offset - one.offset) as f64 / (other.own - one.own) as f64
}

/// What the offset changed by between two readings beyond what clocks drift.
fn jump(one: Knot, other: Knot) -> f64 {
    let usual = one.within + other.within + MOST_DRIFT * (other.own - one.own) as f64;
    ((other.offset - one.offset).abs() as f64 - usual).max(0.0)
}

fn scaled(time: Nanos, rate: f64) -> Nanos {
    Nanos((time.0 as f64 * rate).round() as u64)
}

fn scale_phases(times: &mut PhaseTimes, rate: f64) {
    for phase in Phase::ALL {
        times[phase] = scaled(times[phase], rate);
    }
}

#[cfg(test)]
mod tests {
    use paceline_record::{Host, Step};
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn reading(at: u64, offset: i64, within: u64) -> ClockReading {
        ClockReading { host: Host(1), at: Nanos(at), offset, within: Nanos(within) }
    }

    /// What a clock shows that is ahead by 3 s and gains 50 us a second.
    fn drifting(at: u64) -> i64 {
        3 * S as i64 + (at / 20_000) as i64
    }

    #[test]
    fn offset_and_drift_are_taken_off_between_the_readings_and_beyond_them() {
        let clock =
            Clock::new((1..9).map(|s| reading(s * S, drifting(s * S), 1000))).expect("honest readings");
        for at in [S / 2, S, S + 7, 4 * S + 123_456_789, 8 * S, 9 * S] {
            let told = clock.moment(Nanos(at + drifting(at) as u64)).expect("it is near");
            assert!(told.0.abs_diff(at) <= 2, "{at}: {told:?}");
        }
        assert_eq!(clock.within(Nanos(5 * S), Nanos(9 * S)), Nanos(1000));
        let far = clock.within(Nanos(5 * S), Nanos(21 * S));
        assert!(far > Nanos(1000) && far < Nanos(30_000), "{far:?}");
    }

    #[test]
    fn a_poor_reading_beside_a_good_one_does_not_count() {
        let mut readings: Vec<ClockReading> = (1..9).map(|s| reading(s * S, 500, 1000)).collect();
        readings.extend((1..9).map(|s| reading(s * S + S / 10, 4_000_000, 5_000_000)));
        let clock = Clock::new(readings).expect("honest readings");
        for at in [S, 2 * S + S / 10, 5 * S + S / 20, 8 * S + S / 10] {
            assert_eq!(clock.moment(Nanos(at + 500)), Some(Nanos(at)));
        }
        let within = clock.within(Nanos(S), Nanos(9 * S));
        assert!(within < Nanos(5000), "{within:?}");
    }

    #[test]
    fn a_clock_that_stood_still_is_as_uncertain_as_that_is_long() {
        let readings = [(1, 0), (2, 0), (13, -10), (14, -10)];
        let readings = readings.map(|(at, offset)| reading(at * S, offset * S as i64, 1000));
        let clock = Clock::new(readings).expect("it never ran backwards");
        assert_eq!(clock.moment(Nanos(4 * S)), Some(Nanos(14 * S)));
        assert!(clock.within(Nanos(2 * S), Nanos(3 * S)) > Nanos(9 * S));
        let mut step = StepRecord::open(Step(0), Nanos(2 * S));
        step.end = Nanos(3 * S);
        step.book(Phase::Forward, Nanos(S));
        clock.step(&mut step).expect("moments near readings");
        assert_eq!((step.end, step.phases[Phase::Forward]), (Nanos(13 * S), Nanos(S)));
    }

    #[test]
    fn readings_that_tell_of_no_clock_are_refused_in_words() {
        let why = |readings: &[ClockReading]| Clock::new(readings.iter().copied()).expect_err("no clock");
        assert!(why(&[]).contains("never compared"));
        let backwards = [reading(S, 0, 0), reading(2 * S, -2 * S as i64, 0)];
        assert!(why(&backwards).contains("contradict"));
        let extreme = Clock::new([reading(S, i64::MAX, u64::MAX), reading(u64::MAX, i64::MIN, u64::MAX)]);
        assert_eq!(extreme.expect("one of them").moment(Nanos(S)), None);
        let early = Clock::new([reading(S, 3 * S as i64, 1)]).expect("one reading");
        assert_eq!(early.moment(Nanos(S)), None, "before the first host's clock began");
    }

    proptest! {
        // From a millisecond on: within an error of the readings, what was earlier was before the first host's clock began.
        #[test]
        fn a_moment_is_wrong_by_no_more_than_is_said(
            errors in proptest::collection::vec((0..200_000u64, -1.0..1.0f64), 2..60),
            moments in proptest::collection::vec(1..70_000u64, 1..20),
        ) {
            let readings = errors.iter().enumerate().map(|(place, &(within, error))| {
                let at = (place as u64 + 1) * S;
                reading(at, drifting(at) + (error * within as f64) as i64, within)
            });
            let clock = Clock::new(readings).expect("honest readings");
            for at in moments.into_iter().map(|ms| ms * 1_000_000) {
                let own = Nanos(at + drifting(at) as u64);
                let told = clock.moment(own).expect("it is near");
                let within = clock.within(own, own);
                prop_assert!(told.0.abs_diff(at) <= within.0 + 3, "{at} {told:?} {within:?}");
            }
        }

        #[test]
        fn no_readings_make_it_panic_or_run_backwards(
            all in proptest::collection::vec((any::<u64>(), any::<i64>(), any::<u64>()), 0..20),
            own in any::<u64>(), more in any::<u64>(),
        ) {
            let readings = all.into_iter().map(|(at, offset, within)| reading(at, offset, within));
            if let Ok(clock) = Clock::new(readings) {
                let later = own.saturating_add(more);
                let both = [own, later].map(|own| clock.moment(Nanos(own)));
                clock.within(Nanos(own), Nanos(later));
                // Beyond the precision of a rate, nothing can be promised.
                if let ([Some(one), Some(other)], true) = (both, later < 1 << 50) {
                    prop_assert!(one.0 <= other.0 + 2, "{one:?} {other:?}");
                }
            }
        }
    }
}
