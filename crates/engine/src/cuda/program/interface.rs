//! A program as the step loop sees it.

use std::mem::offset_of;

use super::*;

fn check(what: &'static str, expected: usize, got: usize) -> Result<(), EngineError> {
    if expected == got { Ok(()) } else { Err(EngineError::WrongLength { what, expected, got }) }
}

fn check_below(what: &'static str, limit: usize, got: usize) -> Result<(), EngineError> {
    if got < limit {
        return Ok(());
    }
    Err(EngineError::Unsupported(format!("{what} {got} is beyond {limit}")))
}

fn foreign() -> EngineError {
    EngineError::Unsupported("a program on a GPU has no region on the host".into())
}

impl Program for CudaProgram {
    fn plan(&self) -> &MemoryPlan {
        &self.low.plan
    }

    fn slots(&self) -> &[Slot] {
        &self.low.slots
    }

    fn numerics(&self) -> Numerics {
        self.numerics.clone()
    }

    fn parameters(&mut self) -> Region {
        let on_device = self.place(self.memory.params.address, self.low.trained);
        self.mirror.as_ref().and_then(Mirror::parameters).unwrap_or(on_device)
    }

    fn gradients(&mut self) -> Region {
        match &self.mirror {
            Some(mirror) => mirror.gradients(0),
            None => self.place(self.memory.grads[0].address, self.low.trained),
        }
    }

    fn statistics(&mut self, shard: usize) -> Region {
        self.place(self.memory.moving[shard].address, self.low.moving_len)
    }

    fn state(&mut self) -> Vec<Region> {
        if let Some(at_home) = self.mirror.as_mut().and_then(Mirror::state) {
            return at_home;
        }
        self.memory.state.iter().map(|memory| self.place(memory.address, self.low.trained)).collect()
    }

    fn resume_at(&mut self, updates: u64) {
        self.updates = updates as i32;
    }

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        check("images", self.spec.batch * self.input.len(), samples.images.len())?;
        check("labels", self.spec.batch, samples.labels.len())?;
        if let Some(classes) = self.classes {
            for (sample, &label) in samples.labels.iter().enumerate() {
                if label as usize >= classes {
                    return Err(EngineError::BadLabel { sample, label, classes });
                }
            }
        }
        self.device.enter()?;
        // A pinned buffer was last copied from two batches ago; a copy waits for the one before it, so this is the last.
        if self.pending.copied {
            self.events.copied.wait()?;
        }
        let slot = self.fed % 2;
        self.fed += 1;
        self.copiers.copy(samples.images, self.pinned_images[slot].values(samples.images.len()));
        self.pinned_labels[slot].values(samples.labels.len()).copy_from_slice(samples.labels);
        let stream = &self.copying;
        if self.fed > 1 {
            stream.wait_for(&self.events.consumed)?;
        }
        let images = self.pinned_images[slot].address();
        stream.copy_in(self.memory.staged_images.address, images, size_of_val(samples.images))?;
        let labels = self.pinned_labels[slot].address();
        stream.copy_in(self.memory.staged_labels.address, labels, size_of_val(samples.labels))?;
        stream.mark(&self.events.copied)?;
        self.pending.copied = true;
        Ok(())
    }

    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(Ready)) -> Result<(), EngineError> {
        check_below("shard", self.memory.grads.len(), pass.shard)?;
        if self.mirror.is_some() && pass.update.is_some() {
            return Err(EngineError::Unsupported(
                "an update within a run: gradients go through the host here".into(),
            ));
        }
        let (rate, root) = pass.update.map_or((0.0, 1.0), |rate| self.count_update(rate));
        let (live, passes) = (self.spec.batch as i32, pass.count as i32);
        self.begin(Control { stream: pass.stream, live, passes, keep: pass.keep(1.0), rate, root })?;
        let updates = pass.update.is_some();
        let run = Run::Training { shard: pass.shard, adds: pass.index > 0, updates };
        (self.pending.trained, self.pending.updated) = (true, updates);
        let home = self.mirror.as_ref().map(|mirror| mirror.gradients(pass.shard));
        if let Some(home) = home.filter(|_| pass.is_last()) {
            return self.run_in_parts((run, home), ready);
        }
        self.run(run)?;
        self.end()?;
        if !pass.is_last() || updates {
            return Ok(());
        }
        let when = Moment::Event(self.events.end.0 as u64);
        for slot in &self.low.slots {
            ready(Ready { param: slot.param, range: slot.range.clone(), when });
        }
        Ok(())
    }

    fn evaluate(&mut self, live: usize) -> Result<(), EngineError> {
        check_below("count of samples to judge", self.spec.batch + 1, live)?;
        self.begin(Control { stream: 0, live: live as i32, passes: 1, keep: 1.0, rate: 0.0, root: 1.0 })?;
        self.run(Run::Judging)?;
        self.end()?;
        (self.pending.trained, self.pending.updated) = (false, false);
        Ok(())
    }

    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError> {
        if range.start > range.end || range.end > self.low.trained {
            return Err(EngineError::WrongLength {
                what: "range of parameters",
                expected: self.low.trained,
                got: range.end,
            });
        }
        self.device.enter()?;
        let first = self.pending.applied == 0;
        if let Some(mirror) = self.mirror.as_mut().filter(|mirror| mirror.parameters().is_some()) {
            let begun = Instant::now();
            self.updates += i32::from(first);
            self.pending.applied += 1;
            mirror.apply((learning_rate, self.updates), range)?;
            self.host_update += begun.elapsed();
            return Ok(());
        }
        if first {
            let (rate, root) = self.count_update(learning_rate);
            let control = self.memory.control.address;
            self.main.stream.set(control + offset_of!(Control, rate) as u64, rate.to_bits())?;
            self.main.stream.set(control + offset_of!(Control, root) as u64, root.to_bits())?;
        }
        if self.events.applied.len() == self.pending.applied {
            self.events.applied.push([Event::new()?, Event::new()?, Event::new()?]);
        }
        let [begun, there, used] = &self.events.applied[self.pending.applied];
        self.pending.applied += 1;
        let stream = &self.main.stream;
        stream.mark(begun)?;
        if let Some(mirror) = &self.mirror {
            let from = mirror.gradients(0).part(range.clone());
            let to = self.memory.grads[0].address + 4 * range.start as u64;
            stream.copy_in(to, from.address as *const c_void, 4 * from.len)?;
        }
        stream.mark(there)?;
        self.put_rule(range)?;
        self.packed = false;
        stream.mark(used)?;
        // Whoever exchanges through the host takes the time of its calls: nothing may run on behind them.
        if self.mirror.is_some() { stream.wait() } else { Ok(()) }
    }

    fn weave(&mut self, weave: Option<Weave>) -> Result<bool, EngineError> {
        if self.mirror.is_some() || self.spec.shards > 1 {
            return Ok(false);
        }
        self.device.enter()?;
        self.recordings.clear();
        self.woven = weave.map(|weave| Woven::new(weave, self)).transpose()?;
        Ok(true)
    }

    fn bucket_times(&mut self) -> Result<Vec<BucketTime>, EngineError> {
        self.settle()?;
        self.woven_times()
    }

    fn runs_behind(&self) -> bool {
        true
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        self.settle()?;
        let events = &self.events;
        let pending = &mut self.pending;
        let mut result = StepResult::default();
        if std::mem::take(&mut pending.ran) {
            let judgement = self.pinned_out.values::<Judgement>(1)[0];
            (self.result.loss, self.result.correct) = (judgement.loss, judgement.correct as usize);
            result.copy_in_ns = events.prepared.since(&events.called)?;
            result.update_ns = events.begin.since(&events.prepared)?;
            result.forward_ns = events.forward_end.since(&events.begin)?;
            if pending.trained {
                result.backward_ns = events.end.since(&events.forward_end)?;
            }
            if std::mem::take(&mut pending.updated) {
                result.exchange_ns =
                    events.exchanged.since(&events.end)? + events.fetched.since(&events.updated)?;
                result.update_ns +=
                    events.updated.since(&events.exchanged)? + events.done.since(&events.fetched)?;
            }
            if std::mem::take(&mut pending.copied_out) {
                result.copy_out_ns = events.copied_out.since(&events.end)?;
            }
            if self.runs > 1 {
                result.idle_ns = events.called.since(&events.over[(self.runs - 1) % 2])?;
            }
        }
        let applied = std::mem::take(&mut pending.applied).min(events.applied.len());
        let at_home = self.mirror.as_ref().is_some_and(|mirror| mirror.parameters().is_some());
        for [begun, there, used] in events.applied[..applied].iter().filter(|_| !at_home) {
            result.copy_in_ns += there.since(begun)?;
            result.update_ns += used.since(there)?;
        }
        result.update_ns += std::mem::take(&mut self.host_update).as_nanos() as u64;
        result.ready_ns = std::mem::take(&mut self.telling).as_nanos() as u64;
        Ok(StepResult { loss: self.result.loss, correct: self.result.correct, ..result })
    }

    fn read_param(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError> {
        check("parameter", self.lens[param.0], into.len())?;
        self.settle()?;
        let home = self.mirror.as_mut().and_then(Mirror::parameters_mut);
        if let (Some(home), Some(range)) = (home, &self.low.ranges[param.0]) {
            into.copy_from_slice(&home[range.clone()]);
            return Ok(());
        }
        driver::read(into, self.home(param))
    }

    fn write_param(&mut self, param: ParamId, from: &[f32]) -> Result<(), EngineError> {
        check("parameter", self.lens[param.0], from.len())?;
        self.settle()?;
        self.packed = false;
        let home = self.mirror.as_mut().and_then(Mirror::parameters_mut);
        if let (Some(home), Some(range)) = (home, &self.low.ranges[param.0]) {
            home[range.clone()].copy_from_slice(from);
            return Ok(());
        }
        driver::write(self.home(param), from)
    }

    fn read_gradient(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError> {
        let Some(range) = self.low.ranges[param.0].clone().filter(|_| self.trainable[param.0]) else {
            return Err(EngineError::Unsupported(format!(
                "parameter {} is a running statistic and has no gradient",
                param.0
            )));
        };
        check("gradient", range.len(), into.len())?;
        self.settle()?;
        driver::read(into, self.memory.grads[0].address + 4 * range.start as u64)
    }

    fn read_output(&mut self, into: &mut [f32]) -> Result<(), EngineError> {
        check("output", self.spec.batch * self.output.len(), into.len())?;
        self.settle()?;
        let revealed = Memory::new(size_of_val(into))?;
        let args = [
            Word::from(self.low.output),
            Word::from(revealed.address),
            Word::from(self.spec.batch as u64),
            Word::from(self.output.pixels() as i32),
            Word::from(self.output.c as i32),
            Word::from(self.nchw()),
        ];
        launch(&self.kernels, &self.main.stream, "reveal", wide_shape(into.len()), &args)?;
        self.main.stream.wait()?;
        driver::read(into, revealed.address)
    }

    fn read_region(&mut self, region: Region, into: &mut [f32]) -> Result<(), EngineError> {
        check("region", region.len, into.len())?;
        self.settle()?;
        match (region.place, &mut self.mirror) {
            (Place::Device(_), _) => driver::read(into, region.address),
            (Place::Host, Some(mirror)) => {
                mirror.read(region, into);
                Ok(())
            }
            (Place::Host, None) => Err(foreign()),
        }
    }

    fn write_region(&mut self, region: Region, from: &[f32]) -> Result<(), EngineError> {
        check("region", region.len, from.len())?;
        self.settle()?;
        self.packed = false;
        match (region.place, &mut self.mirror) {
            (Place::Device(_), _) => driver::write(region.address, from),
            (Place::Host, Some(mirror)) => {
                mirror.write(region, from);
                Ok(())
            }
            (Place::Host, None) => Err(foreign()),
        }
    }

    fn peak_device(&mut self) -> Option<u64> {
        Some(self.peak.bytes)
    }

    fn layer_times(&self) -> Vec<LayerTime> {
        if self.spec.profiling == Profiling::Phases {
            return Vec::new();
        }
        self.low
            .units
            .iter()
            .zip(&self.times)
            .map(|(unit, time)| LayerTime {
                name: unit.name.clone(),
                calls: time.calls,
                forward_ns: time.forward_ns,
                backward_ns: time.backward_ns,
                forward_flops: unit.forward_flops,
                backward_flops: unit.backward_flops,
            })
            .collect()
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        // Nothing may be under way when the memory goes.
        let _ = self.device.make_current();
        let _ = self.copying.wait();
        let _ = self.copying_out.wait();
        let _ = self.main.stream.wait();
    }
}
