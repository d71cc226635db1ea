//! What needs the whole trace: its clock, collectives, steps.

use std::collections::BTreeMap;

use paceline_record::Nanos;

use super::super::operations::Source;
use super::build::Builder;
use super::collective;
use super::window;
use crate::trace::{Clock, Kind, Slice, StepRange, Trace};

/// September 2001: later times count from 1970, earlier ones from another origin.
const EPOCH: i64 = 1_000_000_000_000_000_000;

impl Builder {
    /// The trace of all events that were taken.
    pub fn finish(mut self) -> Trace {
        let origin = self.choose_origin();
        self.drop_odd(origin);
        self.rename_tracks();
        let launched = self.candidates.iter().any(|candidate| candidate.source == Source::Launch);
        let trace = &mut self.trace;
        trace.collectives = collective::choose(
            std::mem::take(&mut self.candidates),
            &mut trace.slices,
            !self.unread.is_empty() || trace.backend.as_ref().is_some_and(|backend| backend.contains("nccl")),
        );
        if launched && trace.collectives.is_empty() {
            let why =
                "collectives are launched, but their kernels are not in the trace: their time is unknown";
            trace.warnings.push(why.into());
        }
        self.find_steps();
        self.warn();
        self.trace.sort();
        self.trace
    }

    /// What is added to every moment.
    fn choose_origin(&mut self) -> i128 {
        let begins = || self.trace.slices.iter().map(|slice| slice.begin.0 as i64);
        let late = begins().filter(|&begin| begin >= EPOCH).count();
        if 2 * late > self.trace.slices.len() {
            self.trace.clock = Clock::Epoch;
            return 0;
        }
        if let Some(base) = self.base.filter(|&base| base >= EPOCH) {
            self.trace.clock = Clock::Epoch;
            return base.into();
        }
        // Only differences are meaningful, so the earliest time may be 0.
        -i128::from(begins().min().unwrap_or(0).min(0))
    }

    /// Converts times to the trace's clock, and skips events outside it.
    fn drop_odd(&mut self, origin: i128) {
        let place = |moment: Nanos| u64::try_from(i128::from(moment.0 as i64) + origin).ok().map(Nanos);
        let mut gone = Vec::new();
        let mut at = 0;
        self.trace.slices.retain_mut(|slice| {
            let placed = place(slice.begin).zip(place(slice.end));
            match placed {
                Some(times) => (slice.begin, slice.end) = times,
                None => gone.push(at),
            }
            at += 1;
            placed.is_some()
        });
        self.odd.timeless += gone.len() as u64;
        self.candidates.retain_mut(|candidate| {
            let before = gone.partition_point(|&gone| gone < candidate.slice);
            let keep = gone.get(before) != Some(&candidate.slice);
            candidate.slice -= before as u32;
            keep
        });
    }

    /// Steps as marked by the host, or by devices if the host marks none.
    fn find_steps(&mut self) {
        let mut host: BTreeMap<u64, StepRange> = BTreeMap::new();
        let mut device = host.clone();
        let ranges = |slice: &&Slice| slice.kind == Kind::Range;
        for slice in self.trace.slices.iter().filter(ranges) {
            let Some(number) = self.step(slice.name) else { continue };
            let on_device = self.trace.tracks[slice.track as usize].device.is_some();
            let found = if on_device { &mut device } else { &mut host };
            let step =
                found.entry(number).or_insert(StepRange { number, begin: slice.begin, end: slice.end });
            step.begin = step.begin.min(slice.begin);
            step.end = step.end.max(slice.end);
        }
        let by_host = !host.is_empty();
        let mut steps: Vec<StepRange> = if by_host { host } else { device }.into_values().collect();
        if !by_host && !steps.is_empty() {
            // Streams run ahead of each other, steps do not.
            steps.sort_by_key(|step| step.begin);
            for at in 1..steps.len() {
                steps[at - 1].end = steps[at - 1].end.min(steps[at].begin);
            }
            self.trace.steps_on_device = true;
            self.trace
                .warnings
                .push("steps are marked on the device only: they begin and end with its work".into());
        }
        self.trace.steps = steps;
    }

    fn warn(&mut self) {
        let odd = self.odd;
        let sentences = [
            (odd.timeless, "no valid time: skipped".to_owned()),
            (odd.endless, "no valid duration: treated as 0".to_owned()),
            (odd.large, format!("more than {} MiB of text: skipped", window::MOST >> 20)),
        ];
        for (count, what) in sentences {
            if count > 0 {
                let events = if count == 1 { "1 event has" } else { &format!("{count} events have") };
                self.trace.warnings.push(format!("{events} {what}"));
            }
        }
        if !self.unread.is_empty() {
            let named = |(category, count): (&String, &u64)| format!("{count} {category}");
            let categories: Vec<String> = self.unread.iter().map(named).collect();
            self.trace.warnings.push(format!(
                "events that may be work of a device were not read ({}): when devices were idle is unknown",
                categories.join(", ")
            ));
            self.trace.unread = true;
        }
        if self.trace.slices.is_empty() {
            self.trace.warnings.push("the trace has no events with a duration".into());
        }
    }
}
