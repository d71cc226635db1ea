//! What a step took, for the log.

use paceline_comm::tasks::{Board, Ground, Member, Wait, Waiting};
use paceline_record::{BucketRecord, Bytes, Generation, Nanos, Phase, StepRecord, Whole};

use super::{Hands, Sums};
use crate::elastic::state::Layout;

/// Books what a step took.
pub(super) struct Account<'a> {
    pub(super) board: Board,
    pub(super) ground: &'a Ground,
    pub(super) layout: &'a Layout,
    pub(super) member: &'a Member<'a, Ground>,
    pub(super) waits: &'a [Wait],
}

impl Account<'_> {
    pub(super) fn book(
        &self,
        step: u64,
        hands: &mut Hands<'_>,
        sums: &mut Sums<'_>,
        generations: &[u32],
        record: &mut StepRecord,
    ) {
        let tally = std::mem::take(&mut hands.tally);
        let times = std::mem::take(&mut sums.times);
        record.generation = Generation(u64::from(self.member.generation()));
        record.phases += tally.phases;
        record.examples = tally.examples;
        record.redone = tally.redone;
        record.loss = (tally.shards > 0).then(|| (tally.loss / f64::from(tally.shards)) as f32);
        record.correct = hands.judges.then_some(tally.correct);
        record.whole = self.whole(step, hands);
        record.book(Phase::Update, times.all.since(times.adding));
        // Calls between layers look after the exchange, and do slices of it.
        record.book(Phase::CommCpu, times.adding + tally.in_ready.since(times.within));

        // Since the loss until what was lost is done, waiting is recovery.
        let window = generations.iter().map(|&generation| self.board.loss(self.ground, generation)).min();
        let window = window.map(|since| (since, self.board.redone(self.ground, step).unwrap_or(since)));
        for wait in self.waits {
            let time = wait.end.since(wait.begin);
            let recovery = match (wait.on, window) {
                (Waiting::Roster, _) => time,
                (_, Some((since, until))) => wait.end.min(until).since(wait.begin.max(since)).min(time),
                _ => Nanos(0),
            };
            record.book(Phase::Recovery, recovery);
            let left = time.since(recovery);
            record.book(Phase::CommWait, left);
            if let Waiting::Gradients(bucket) = wait.on {
                let (arrival, _) = self.last_arrival(bucket, wait.begin);
                let late = arrival.clamp(wait.begin, wait.end).since(wait.begin).min(left);
                record.late_rank += late;
            }
        }
        self.book_buckets(step, times.moved, record);
    }

    pub(super) fn whole(&self, step: u64, hands: &Hands<'_>) -> Option<Whole> {
        let (mut loss, mut correct) = (0.0, 0);
        let known = self.board.results(self.ground, step, |shard, right| {
            loss += shard;
            correct += right;
        });
        let shards = f64::from(hands.job.shards());
        known.then(|| Whole {
            examples: hands.job.global_batch(),
            loss: Some((loss / shards) as f32).filter(|loss| loss.is_finite()),
            correct: hands.judges.then_some(correct),
        })
    }

    /// When the last shard of this host completed a bucket, and which one; a host without shards waits for none.
    pub(super) fn last_arrival(&self, bucket: u32, begin: Nanos) -> (Nanos, Option<u32>) {
        let shards = self.member.parts().own_shards();
        match self.board.last_arrival(self.ground, bucket, shards) {
            Some((at, shard)) if !at.is_zero() => (at, Some(shard)),
            _ => (begin, None),
        }
    }

    pub(super) fn book_buckets(&self, step: u64, moved: u64, record: &mut StepRecord) {
        let count = self.layout.buckets.len() as u64;
        let mut reached = Nanos(0);
        for (number, bucket) in (0..).zip(&self.layout.buckets) {
            let (last_arrival, shard) = self.last_arrival(number, record.begin);
            let ended = self.board.bucket_done(self.ground, number).max(last_arrival);
            let waited = self.waits.iter().filter(|wait| wait.on == Waiting::Gradients(number));
            let late: Nanos =
                waited.map(|wait| last_arrival.clamp(wait.begin, wait.end).since(wait.begin)).sum();
            let begun = last_arrival.since(late).max(record.begin);
            record.comm_busy += ended.since(begun.max(reached));
            reached = reached.max(ended);
            let holder = shard.and_then(|shard| self.board.holder(self.ground, shard, step));
            record.buckets.push(BucketRecord {
                bytes: Bytes(4 * bucket.range.len() as u64),
                begun,
                last_arrival,
                last_rank: holder.and_then(|seat| self.member.rank_of(seat)).unwrap_or(self.member.rank()),
                ended,
                waited_late: late,
                waited_transfer: Nanos(0),
                cpu: Nanos(record.phases[Phase::CommCpu].0 / count),
                moved: Bytes(moved / count),
            });
        }
    }
}
