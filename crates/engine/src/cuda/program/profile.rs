//! A run with the time of each layer.

use super::*;

impl CudaProgram {
    /// One instruction after the other, each between two events.
    pub(super) fn run_profiled(&mut self, run: Run) -> Result<(), EngineError> {
        let stream = &self.main.stream;
        let target = run.target();
        let lists: [&[Step]; 2] = match run {
            Run::Training { .. } => [&self.low.forward, &self.low.backward],
            Run::Evaluation => [&self.low.evaluation, &[]],
        };
        stream.mark(&self.events.begin)?;
        let mut marks = vec![Event::new()?];
        stream.mark(&marks[0])?;
        for (index, steps) in lists.into_iter().enumerate() {
            let _backward = (index == 1).then(|| nvtx::range("backward"));
            for step in steps {
                self.act(step, &self.main, target)?;
                let mark = Event::new()?;
                stream.mark(&mark)?;
                marks.push(mark);
            }
            if index == 0 {
                stream.mark(&self.events.forward_end)?;
            }
        }
        if matches!(run, Run::Training { .. }) {
            self.unpack(stream, 0..self.low.packing.tensors.len(), target)?;
        }
        stream.mark(&self.events.end)?;
        let mut woven = self.woven.take();
        let put = match run {
            Run::Training { updates: true, .. } => self.put_update(woven.as_mut(), Stream::mark),
            _ => Ok(()),
        };
        let over = put.and_then(|()| self.await_stream(woven.as_mut()));
        self.woven = woven;
        over?;
        // The first run loads machine code.
        if !std::mem::replace(&mut self.loaded, true) {
            return self.peak.look(&self.device);
        }
        let mut pairs = marks.windows(2);
        for (index, steps) in lists.into_iter().enumerate() {
            for step in steps {
                let pair = pairs.next().expect("invariant: an event after each instruction");
                let time = pair[1].since(&pair[0])?;
                let unit = &mut self.times[step.unit];
                *(if index == 0 { &mut unit.forward } else { &mut unit.backward }) += time;
            }
        }
        self.times.iter_mut().for_each(|time| time.calls += 1);
        Ok(())
    }
}
