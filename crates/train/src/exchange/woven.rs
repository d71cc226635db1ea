//! An exchange between devices: what the host has to do for it, and what it books.

use paceline_comm::nccl::UniqueId;

use super::*;

/// Values behind each rank's own that carry its arrivals: two steps of so many buckets, two values a moment.
pub(crate) const POSTED: usize = 4 * BUCKETS;

/// Buckets whose arrivals are compared.
const BUCKETS: usize = 1024;

impl Exchange {
    /// The name of the group of devices, which rank 0 makes up and the others learn.
    pub(super) fn name_group(&mut self) -> Result<UniqueId, TrainError> {
        const LEN: usize = size_of::<UniqueId>() / size_of::<f32>();
        let first = self.rank() == Rank(0);
        let peers = self.peers();
        let area = peers.segment.area(0);
        if first {
            let words = device::new_group()?;
            let values = words.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
            // SAFETY: no operation is under way, and only the first rank writes.
            unsafe { area.write(0..LEN) }.iter_mut().zip(values).for_each(|(to, value)| *to = value);
        }
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        let mut group = [0; size_of::<UniqueId>()];
        // SAFETY: it has been written, and nobody writes again before the next barrier.
        let values = unsafe { area.read(0..LEN) };
        for (bytes, value) in group.as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_ne_bytes();
        }
        peers.collective.barrier(Deadline::after(PATIENCE))?;
        Ok(group)
    }

    /// Books what devices exchanged as part of a run that has just ended, and posts for the other ranks when this one
    /// arrived.
    pub(super) fn book_device(
        &mut self,
        program: &mut dyn Program,
        record: &mut StepRecord,
    ) -> Result<(), TrainError> {
        book_buckets(&self.buckets, self.plan.rank, program, record)?;
        let (rank, step) = (self.rank(), self.posted);
        self.peers().post(rank, step, record.buckets.iter().map(|bucket| bucket.begun));
        self.posted += 1;
        Ok(())
    }

    /// Compares when the ranks arrived in the step before the last that was posted. A rank posts a step before its device
    /// begins the next, so whoever has been through the next finds all posts of this one; and nobody posts the step after
    /// the next before all have been through that.
    pub(super) fn compare_arrivals(&self, record: &mut StepRecord) {
        self.compare(record, self.posted.saturating_sub(2));
    }

    /// The same for the last step, once all ranks are done.
    pub(super) fn compare_last_arrivals(&self, record: &mut StepRecord) {
        self.compare(record, self.posted.saturating_sub(1));
    }

    fn compare(&self, record: &mut StepRecord, step: u64) {
        let world = self.plan.world;
        let Some(peers) = self.peers.as_ref().filter(|_| self.way == Way::Device && world > 1) else {
            return;
        };
        let posts: Vec<_> =
            (0..world).map(|rank| peers.posted(Rank(rank), step, record.buckets.len())).collect();
        blame(record, &posts);
    }
}

impl Peers {
    /// Where a rank's arrivals of a step lie.
    fn post_of(&self, rank: Rank, step: u64) -> *mut [u32; 2] {
        let area = self.segment.area(rank.0);
        let start = area.len() - POSTED + (step % 2) as usize * (POSTED / 2);
        area.address().wrapping_add(start).cast()
    }

    fn post(&mut self, rank: Rank, step: u64, arrivals: impl Iterator<Item = Nanos>) {
        let place = self.post_of(rank, step);
        for (index, Nanos(at)) in arrivals.take(BUCKETS).enumerate() {
            // SAFETY: inside of this rank's own area, behind what operations use; nobody reads it before the next step.
            unsafe { place.add(index).write_volatile([at as u32, (at >> 32) as u32]) };
        }
    }

    fn posted(&self, rank: Rank, step: u64, count: usize) -> Vec<Nanos> {
        let place = self.post_of(rank, step);
        // SAFETY: as above; the rank has written it, and writes there again only once all have read it.
        let read = |index| unsafe { place.add(index).read_volatile() };
        (0..count.min(BUCKETS))
            .map(read)
            .map(|[low, high]| Nanos(u64::from(low) | u64::from(high) << 32))
            .collect()
    }
}

/// Books what a device exchanged as part of a run that has just ended, as far as its rank alone can tell.
pub(crate) fn book_buckets(
    buckets: &[Bucket],
    rank: Rank,
    program: &mut dyn Program,
    record: &mut StepRecord,
) -> Result<(), TrainError> {
    let end = clock::now();
    let mut reached = Nanos(0);
    for (bucket, time) in buckets.iter().zip(program.bucket_times()?) {
        let (begun, ended) = (end.since(time.begun), end.since(time.ended));
        record.comm_busy += ended.since(begun.max(reached));
        reached = ended;
        let bytes = Bytes(4 * bucket.range.len() as u64);
        record.buckets.push(BucketRecord {
            bytes,
            begun,
            last_arrival: begun,
            last_rank: rank,
            ended,
            waited_late: Nanos(0),
            waited_transfer: Nanos(0),
            cpu: Nanos(0),
            moved: bytes,
        });
    }
    // A device that does not wait for the exchange computes: within a run it is never idle.
    record.overlapped = Some(record.comm_busy.since(record.phases[Phase::CommWait]));
    Ok(())
}

/// Completes a step's buckets with who came last, and splits what was waited for them there. `posts` holds each rank's arrivals.
fn blame(record: &mut StepRecord, posts: &[Vec<Nanos>]) {
    // What shows of the exchange is the time before its last bucket ended.
    let joined = record.buckets.iter().map(|bucket| bucket.ended).max().unwrap_or_default();
    let mut from = joined.since(record.phases[Phase::CommWait]);
    for (index, bucket) in record.buckets.iter_mut().enumerate() {
        let arrivals = posts.iter().filter_map(|rank| rank.get(index));
        let last = (0..).map(Rank).zip(arrivals).max_by_key(|&(rank, at)| (*at, std::cmp::Reverse(rank)));
        let Some((last_rank, &last_arrival)) = last else { continue };
        let turn = last_arrival.clamp(bucket.begun, bucket.ended.max(bucket.begun));
        (bucket.last_rank, bucket.last_arrival) = (last_rank, turn);
        bucket.waited_late = turn.since(bucket.begun.max(from));
        from = from.max(turn);
        bucket.waited_transfer = bucket.ended.since(bucket.begun.max(from));
        from = from.max(bucket.ended);
        record.late_rank += bucket.waited_late;
    }
    record.late_rank = record.late_rank.min(record.phases[Phase::CommWait]);
}

#[cfg(test)]
mod tests {
    use paceline_record::Step;

    use super::*;

    /// A step with buckets from one moment to another, of whose exchange so much showed.
    fn step(buckets: &[(u64, u64)], shown: u64) -> StepRecord {
        let mut record = StepRecord::open(Step(0), Nanos(0));
        record.book(Phase::CommWait, Nanos(shown));
        record.buckets = buckets
            .iter()
            .map(|&(begun, ended)| BucketRecord {
                bytes: Bytes(4),
                begun: Nanos(begun),
                last_arrival: Nanos(begun),
                last_rank: Rank(0),
                ended: Nanos(ended),
                waited_late: Nanos(0),
                waited_transfer: Nanos(0),
                cpu: Nanos(0),
                moved: Bytes(4),
            })
            .collect();
        record
    }

    #[test]
    fn whoever_arrives_last_is_named_and_only_what_shows_is_waited_for() {
        // The first bucket is hidden by backward, which ends at 150; in the second rank 1 comes 60 late.
        let mut record = step(&[(0, 100), (120, 200)], 50);
        blame(&mut record, &[vec![Nanos(0), Nanos(120)], vec![Nanos(30), Nanos(180)]]);
        let [first, second] = &record.buckets[..] else { panic!("two buckets") };
        assert_eq!((first.last_rank, first.last_arrival), (Rank(1), Nanos(30)));
        assert_eq!((first.waited_late, first.waited_transfer), (Nanos(0), Nanos(0)));
        assert_eq!((second.last_rank, second.last_arrival), (Rank(1), Nanos(180)));
        assert_eq!((second.waited_late, second.waited_transfer), (Nanos(30), Nanos(20)));
        assert_eq!(record.late_rank, Nanos(30));
    }

    #[test]
    fn the_last_rank_waits_for_nobody() {
        let mut record = step(&[(100, 140)], 40);
        blame(&mut record, &[vec![Nanos(20)], vec![Nanos(100)]]);
        assert_eq!((record.late_rank, record.buckets[0].last_rank), (Nanos(0), Rank(1)));
        assert_eq!(record.buckets[0].waited_transfer, Nanos(40));
    }

    #[test]
    fn clocks_that_disagree_do_not_make_waits_longer_than_they_were() {
        let mut record = step(&[(100, 140)], 10);
        blame(&mut record, &[vec![Nanos(100)], vec![Nanos(5000)]]);
        assert_eq!((record.late_rank, record.buckets[0].last_arrival), (Nanos(10), Nanos(140)));
    }

    #[test]
    fn arrivals_of_two_steps_lie_apart_and_are_read_back() {
        let size = paceline_comm::SegmentSize { world: 2, areas: 2, own: 100 + POSTED, common: 0 };
        let segment = Segment::create(size).expect("memory");
        let attach = || Segment::attach(segment.descriptor().expect("created here")).expect("memory");
        let peers = |rank: u32| {
            let segment = attach();
            let collective = Box::new(segment.join(Rank(rank)).expect("a rank"));
            Peers { collective, segment }
        };
        let (mut first, mut second) = (peers(0), peers(1));
        let moment = u64::from(u32::MAX) + 7;
        first.post(Rank(0), 4, [Nanos(moment), Nanos(1)].into_iter());
        second.post(Rank(1), 4, [Nanos(2), Nanos(3)].into_iter());
        second.post(Rank(1), 5, [Nanos(8), Nanos(9)].into_iter());
        assert_eq!(first.posted(Rank(1), 4, 2), [Nanos(2), Nanos(3)]);
        assert_eq!(second.posted(Rank(0), 4, 2), [Nanos(moment), Nanos(1)]);
        assert_eq!(first.posted(Rank(1), 5, 2), [Nanos(8), Nanos(9)]);
    }
}
