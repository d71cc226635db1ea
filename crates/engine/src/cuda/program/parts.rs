//! Backward in parts, for gradients that go through the host: what one part completes is copied out and exchanged while
//! the device computes the next.

use super::woven::completions;
use super::*;

/// All parts but the last complete at least one in so many of all gradients.
const PARTS: usize = 8;

/// A part of backward.
struct Cut {
    /// Instructions.
    steps: Range<usize>,
    /// The slots that they complete, the values of these, and the packed tensors among them.
    slots: Range<usize>,
    values: Range<usize>,
    tensors: Range<usize>,
}

/// Cuts backward where enough gradients are complete.
fn cut(backward: &[Step], places: &Places, packing: &Packing) -> Vec<Cut> {
    let Places { slots, trained, .. } = places;
    let last = completions(backward, places);
    let mut cuts: Vec<Cut> = Vec::new();
    let mut after = 0;
    for (number, slot) in slots.iter().enumerate() {
        after = last[slot.param.0].max(after);
        let (steps, first, begin) =
            cuts.last().map_or((0, 0, 0), |cut| (cut.steps.end, cut.slots.end, cut.values.end));
        let (end, values) = match slots.get(number + 1) {
            Some(next) if PARTS * (next.range.start - begin) < *trained => continue,
            Some(next) => (after + 1, begin..next.range.start),
            None => (backward.len(), begin..*trained),
        };
        let mine = |tensor: &Tensor| values.contains(&(tensor.canonical as usize));
        let start = packing.tensors.iter().position(mine).unwrap_or(0);
        let count = packing.tensors.iter().filter(|tensor| mine(tensor)).count();
        cuts.push(Cut { steps: steps..end, slots: first..number + 1, tensors: start..start + count, values });
    }
    if cuts.is_empty() {
        cuts.push(Cut { steps: 0..backward.len(), slots: 0..0, values: 0..*trained, tensors: 0..0 });
    }
    cuts
}

/// A part of backward; the first has forward in front of it.
pub(super) struct Part {
    cut: Cut,
    recordings: HashMap<Run, Recording>,
    /// Its gradients are computed, and copied to the host.
    complete: Event,
    copied: Event,
}

impl Part {
    /// All parts of a program.
    pub fn all(low: &Compiled) -> Result<Vec<Self>, EngineError> {
        let new = |cut| {
            let (complete, copied) = (Event::new()?, Event::new()?);
            Ok(Self { cut, recordings: HashMap::new(), complete, copied })
        };
        cut(&low.backward, &low.places, &low.packing).into_iter().map(new).collect()
    }
}

impl CudaProgram {
    /// Forward and backward; calls `ready` for the gradients of each part when they are in their home on the host.
    pub(super) fn run_in_parts(
        &mut self,
        run: Run,
        home: Region,
        ready: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        let mut parts = std::mem::take(&mut self.parts);
        let outcome = self.run_all_parts(&mut parts, run, home, ready);
        self.parts = parts;
        outcome
    }

    fn run_all_parts(
        &mut self,
        parts: &mut [Part],
        run: Run,
        home: Region,
        ready: &mut dyn FnMut(usize),
    ) -> Result<(), EngineError> {
        let shard = run.target().shard;
        let profiled = self.spec.profiling == Profiling::Layers;
        if profiled {
            self.run_profiled(run)?;
        }
        let (stream, copying_out) = (&self.main.stream, &self.copying_out);
        let step = nvtx::range("step");
        for part in parts.iter() {
            match part.recordings.get(&run) {
                _ if profiled => {}
                Some(recording) => stream.replay(recording)?,
                None => self.put_part(part, run, Stream::mark)?,
            }
            stream.mark(&part.complete)?;
            copying_out.wait_for(&part.complete)?;
            let to = home.part(part.cut.values.clone());
            let from = self.memory.grads[shard].address + 4 * part.cut.values.start as u64;
            copying_out.copy_out(to.address as *mut c_void, from, 4 * to.len)?;
            copying_out.mark(&part.copied)?;
        }
        copying_out.mark(&self.events.copied_out)?;
        drop(step);
        self.pending.copied_out = true;
        self.end()?;
        self.tell(0, ready)?;
        for part in parts.iter() {
            part.copied.wait()?;
            self.tell(part.cut.slots.end, ready)?;
        }
        self.copying_out.wait()?;
        self.main.stream.wait()?;
        // The first run has loaded machine code, which a recording cannot.
        for part in parts.iter_mut().filter(|part| !profiled && !part.recordings.contains_key(&run)) {
            let recording = self.main.stream.record(|| self.put_part(part, run, Stream::mark_recorded))?;
            part.recordings.insert(run, recording);
            self.peak.look(&self.device)?;
        }
        Ok(())
    }

    /// Calls `ready`. That costs no time while the device still computes.
    fn tell(&mut self, slots: usize, ready: &mut dyn FnMut(usize)) -> Result<(), EngineError> {
        let (idle, begun) = (self.main.stream.is_idle()?, Instant::now());
        ready(slots);
        if idle {
            self.in_ready += begun.elapsed();
        }
        Ok(())
    }

    fn put_part(&self, part: &Part, run: Run, mark: Mark) -> Result<(), EngineError> {
        let (stream, events, target) = (&self.main.stream, &self.events, run.target());
        if part.cut.steps.start == 0 {
            mark(stream, &events.begin)?;
            self.put(&self.low.forward, target, |_| Ok(()))?;
            mark(stream, &events.forward_end)?;
        }
        self.put(&self.low.backward[part.cut.steps.clone()], target, |_| Ok(()))?;
        self.unpack(stream, part.cut.tensors.clone(), target)?;
        if part.cut.steps.end == self.low.backward.len() { mark(stream, &events.end) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use paceline_model::zoo;

    use super::super::super::lower::lower;
    use super::*;

    #[test]
    fn parts_follow_each_other_and_complete_the_slots_they_announce() {
        for name in ["resnet50", "mobilenet_v2", "vgg_19", "image_compression"] {
            let graph = zoo::build(name, Some((32, 32)), 10).unwrap();
            let lowered = lower(&graph, &Spec { precision: Precision::Bf16, ..Spec::new(2) });
            let places = &lowered.outline.places;
            let cuts = cut(&lowered.backward, places, &lowered.packing);
            assert!((2..=PARTS + 1).contains(&cuts.len()), "{name}: {} parts", cuts.len());
            let (mut steps, mut slots, mut values, mut tensors) = (0, 0, 0, 0);
            let last = completions(&lowered.backward, places);
            for cut in &cuts {
                assert_eq!(
                    (cut.steps.start, cut.slots.start, cut.values.start),
                    (steps, slots, values),
                    "{name}"
                );
                (steps, slots, values) = (cut.steps.end, cut.slots.end, cut.values.end);
                tensors += cut.tensors.len();
                for slot in &places.slots[cut.slots.clone()] {
                    assert!(last[slot.param.0] < steps, "{name}: {} is announced too early", slot.param.0);
                    assert!(
                        cut.values.start <= slot.range.start && slot.range.end <= cut.values.end,
                        "{name}"
                    );
                }
            }
            assert_eq!(
                (steps, slots, values),
                (lowered.backward.len(), places.slots.len(), places.trained),
                "{name}"
            );
            assert_eq!(tensors, lowered.packing.tensors.len(), "{name}");
        }
    }
}
