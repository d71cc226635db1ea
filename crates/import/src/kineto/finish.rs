//! What needs the whole trace: its clock, collectives, steps.

use std::collections::BTreeMap;

use paceline_record::Nanos;

use super::super::operations::Source;
use super::build::Builder;
use super::collective;
use super::window;
use crate::trace::{Clock, Kind, StepRange, Trace};

impl Builder {
    /// The trace of all events that were taken.
    pub fn finish(mut self) -> Trace {
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
        let clock = Clock::choose(trace.slices.iter().map(|slice| slice.begin.0 as i64), self.base);
        trace.place(clock);
        let all = trace.slices.len();
        trace.sort();
        self.odd.timeless += (all - trace.slices.len()) as u64;
        self.find_steps();
        self.warn();
        self.trace
    }

    /// Steps as marked by the host, or by devices if the host marks none.
    fn find_steps(&mut self) {
        let mut found: [BTreeMap<u64, StepRange>; 2] = Default::default();
        for slice in self.trace.slices.iter().filter(|slice| slice.kind == Kind::Range) {
            let Some(number) = self.step(slice.name) else { continue };
            let on_device = self.trace.device_of(slice).is_some();
            let new = StepRange { number, begin: slice.begin, end: slice.end };
            let step = found[usize::from(on_device)].entry(number).or_insert(new);
            step.end = step.end.max(slice.end);
        }
        let [host, device] = found.map(|steps| steps.into_values().collect::<Vec<StepRange>>());
        self.trace.steps_on_device = host.is_empty() && !device.is_empty();
        self.trace.steps = if host.is_empty() { device } else { host };
        self.trace.steps.sort_by_key(|step| step.begin);
        if self.trace.steps_on_device {
            // Streams run ahead of each other, steps do not.
            let begins: Vec<Nanos> = self.trace.steps.iter().map(|step| step.begin).collect();
            for (step, next) in self.trace.steps.iter_mut().zip(&begins[1..]) {
                step.end = step.end.min(*next);
            }
            let note = "steps are marked on the device only: they begin and end with its work";
            self.trace.warnings.push(note.into());
        }
    }

    fn warn(&mut self) {
        let odd = self.odd;
        let sentences = [
            (odd.timeless, "no valid time: skipped".to_owned()),
            (odd.endless, "no valid duration: treated as 0".to_owned()),
            (odd.unbegun, "no begin: skipped".to_owned()),
            (self.unended(), "no end: skipped".to_owned()),
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
