//! How fast a collective is, in the terms of nccl-tests, and how fast the machine copies memory: its limit.

mod exchange;

use std::hint::black_box;
use std::time::Duration;

use paceline_record::{Bytes, Nanos};
use paceline_system::clock;
use serde::{Deserialize, Serialize};

use crate::{Collective, CommError, Deadline, Operation, Reduction};

pub use exchange::{Carrier, Exchange, Rounds};

/// How a size is measured. The same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Rounds that do not count.
    pub warm_up: u32,
    /// Rounds that do; at least one is done.
    pub repeats: u32,
    /// How long one round may take.
    pub limit: Duration,
}

impl Default for Trial {
    fn default() -> Self {
        Self { warm_up: 5, repeats: 20, limit: Duration::from_secs(30) }
    }
}

/// All-reduces of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllReduceRow {
    /// Values of a rank.
    pub bytes: Bytes,
    /// Mean time of one, on this rank.
    pub time: Nanos,
    /// The shortest.
    pub fastest: Nanos,
    /// `bytes` over `time`, in GB/s.
    pub algbw: f64,
    /// `algbw` times 2 (N - 1) / N: what each link of a ring of N would carry, in GB/s.
    pub busbw: f64,
    /// Values of this rank that a checked round got wrong.
    pub wrong: u64,
}

/// Copies of one size, on all ranks at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyRow {
    /// What each rank copies.
    pub bytes: Bytes,
    /// Mean time of one copy, on this rank.
    pub time: Nanos,
    /// The shortest.
    pub fastest: Nanos,
    /// `bytes` over `time`, in GB/s. A rank of a shared-memory all-reduce reads and writes as much as this copy does.
    pub bandwidth: f64,
}

/// Times all-reduces (sum) over the first values of the own area, of each of these sizes in turn; all ranks call it at
/// once. Sizes are rounded down to whole values.
pub fn all_reduce(
    collective: &mut dyn Collective,
    sizes: &[Bytes],
    trial: Trial,
) -> Result<Vec<AllReduceRow>, CommError> {
    let measure = |&size| measure_all_reduce(collective, whole_values(size), trial);
    sizes.iter().map(measure).collect()
}

/// Times copies between private buffers of each of these sizes in turn, on all ranks at once; all ranks call it at once.
pub fn memcpy(
    collective: &mut dyn Collective,
    sizes: &[Bytes],
    trial: Trial,
) -> Result<Vec<CopyRow>, CommError> {
    let measure = |&size| measure_copy(collective, whole_values(size), trial);
    sizes.iter().map(measure).collect()
}

pub(crate) fn whole_values(size: Bytes) -> usize {
    size.0 as usize / size_of::<f32>()
}

pub(crate) fn bytes_of(values: usize) -> Bytes {
    Bytes((values * size_of::<f32>()) as u64)
}

fn measure_all_reduce(
    collective: &mut dyn Collective,
    values: usize,
    trial: Trial,
) -> Result<AllReduceRow, CommError> {
    let reduce = |collective: &mut dyn Collective| {
        let operation = Operation::AllReduce { range: 0..values, reduction: Reduction::Sum };
        let ticket = collective.begin(operation, Deadline::after(trial.limit))?;
        collective.finish(ticket).map(drop)
    };
    // Zeros stay what they are however often they are added up.
    collective.values(0..values)?.fill(0.0);
    for _ in 0..trial.warm_up {
        reduce(collective)?;
    }
    collective.barrier(Deadline::after(trial.limit))?;
    let times = time_rounds(trial, || reduce(collective))?;

    let (rank, world) = (collective.rank().0 as usize, collective.world() as usize);
    fill(collective.values(0..values)?, |i| pattern(i) + rank);
    reduce(collective)?;
    let expected = |i| (world * pattern(i) + world * (world - 1) / 2) as f32;
    let wrong = count_wrong(collective.values(0..values)?, expected);
    Ok(AllReduceRow::new(bytes_of(values), times, world, wrong))
}

impl AllReduceRow {
    pub(crate) fn new(bytes: Bytes, times: Times, world: usize, wrong: u64) -> Self {
        let algbw = gigabytes_per_second(bytes, times.mean);
        let busbw = algbw * 2.0 * (world as f64 - 1.0) / world as f64;
        Self { bytes, time: times.mean, fastest: times.fastest, algbw, busbw, wrong }
    }
}

fn measure_copy(collective: &mut dyn Collective, values: usize, trial: Trial) -> Result<CopyRow, CommError> {
    let from = vec![1.0_f32; values];
    let mut into = vec![0.0_f32; values];
    let mut copy = || black_box(&mut into[..]).copy_from_slice(black_box(&from));
    for _ in 0..trial.warm_up {
        copy();
    }
    collective.barrier(Deadline::after(trial.limit))?;
    let times = time_rounds(trial, || {
        copy();
        Ok(())
    })?;
    // Nobody may stop while others still measure: the machine would be less busy.
    collective.barrier(Deadline::after(trial.limit))?;
    let bytes = bytes_of(values);
    Ok(CopyRow {
        bytes,
        time: times.mean,
        fastest: times.fastest,
        bandwidth: gigabytes_per_second(bytes, times.mean),
    })
}

pub(crate) struct Times {
    mean: Nanos,
    fastest: Nanos,
}

pub(crate) fn time_rounds<E>(trial: Trial, mut round: impl FnMut() -> Result<(), E>) -> Result<Times, E> {
    let repeats = trial.repeats.max(1);
    let begin = clock::now();
    let mut last = begin;
    let mut fastest = Nanos(u64::MAX);
    for _ in 0..repeats {
        round()?;
        let now = clock::now();
        fastest = fastest.min(now.since(last));
        last = now;
    }
    Ok(Times { mean: Nanos(last.since(begin).0 / u64::from(repeats)), fastest })
}

/// A small whole number, so that sums are exact.
fn pattern(i: usize) -> usize {
    i % 61
}

fn fill(values: &mut [f32], number: impl Fn(usize) -> usize) {
    for (i, value) in values.iter_mut().enumerate() {
        *value = number(i) as f32;
    }
}

fn count_wrong(values: &[f32], expected: impl Fn(usize) -> f32) -> u64 {
    let is_wrong = |&(i, &value): &(usize, &f32)| value != expected(i);
    values.iter().enumerate().filter(is_wrong).count() as u64
}

/// Bytes per nanosecond; 0 for none, however short they took.
fn gigabytes_per_second(bytes: Bytes, time: Nanos) -> f64 {
    bytes.0 as f64 / (time.0 as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segment, SegmentSize, Shm};
    use paceline_record::Rank;

    /// The only rank of a world.
    fn alone() -> Shm {
        let size = SegmentSize { world: 1, areas: 1, own: 100, common: 0 };
        Segment::create(size).and_then(|segment| segment.join(Rank(0))).expect("memory for a small segment")
    }

    #[test]
    fn a_size_that_is_no_whole_value_is_rounded_down() {
        let mut alone = alone();
        let trial = Trial { repeats: 2, ..Trial::default() };
        let sizes = [Bytes(0), Bytes(7), Bytes(400)];
        let rows = all_reduce(&mut alone, &sizes, trial).expect("alone");
        let bytes: Vec<_> = rows.iter().map(|row| row.bytes).collect();
        assert_eq!(bytes, [Bytes(0), Bytes(4), Bytes(400)]);
        assert!(rows.iter().all(|row| row.wrong == 0 && row.busbw == 0.0));
        assert!(rows.iter().all(|row| row.fastest <= row.time));
        let copies = memcpy(&mut alone, &sizes, trial).expect("alone");
        assert!(copies[2].bandwidth > 0.0);
    }

    #[test]
    fn a_size_beyond_the_own_area_is_refused() {
        let mut alone = alone();
        let refused = all_reduce(&mut alone, &[Bytes(404)], Trial::default());
        assert!(matches!(refused, Err(CommError::Busy { .. })));
    }

    #[test]
    fn wrong_values_are_counted() {
        let mut values = [0.0; 100];
        fill(&mut values, |i| pattern(i) + 1);
        assert_eq!(count_wrong(&values, |i| (pattern(i) + 1) as f32), 0);
        values[3] = 0.5;
        values[99] = f32::NAN;
        assert_eq!(count_wrong(&values, |i| (pattern(i) + 1) as f32), 2);
    }
}
