//! A program as the step loop sees it.

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

    fn parameters(&mut self) -> Region {
        match &mut self.mirror {
            Some(mirror) => mirror.parameters(),
            None => self.place(self.memory.params.address, self.low.trained),
        }
    }

    fn gradients(&mut self) -> Region {
        match &self.mirror {
            Some(mirror) => mirror.gradients(0),
            None => self.place(self.memory.grads[0].address, self.low.trained),
        }
    }

    fn statistics(&mut self, share: usize) -> Region {
        self.place(self.memory.moving[share].address, self.low.moving_len)
    }

    fn state(&mut self) -> Vec<Region> {
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
        self.pinned_images[slot].values(samples.images.len()).copy_from_slice(samples.images);
        self.pinned_labels[slot].values(samples.labels.len()).copy_from_slice(samples.labels);
        let stream = &self.copying;
        if self.fed > 1 {
            stream.wait_for(&self.events.consumed)?;
        }
        stream.mark(&self.events.copy_begin)?;
        let images = self.pinned_images[slot].address();
        stream.copy_in(self.memory.staged_images.address, images, size_of_val(samples.images))?;
        let labels = self.pinned_labels[slot].address();
        stream.copy_in(self.memory.staged_labels.address, labels, size_of_val(samples.labels))?;
        stream.mark(&self.events.copied)?;
        self.pending.copied = true;
        Ok(())
    }

    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(Ready)) -> Result<(), EngineError> {
        check_below("share", self.memory.grads.len(), pass.share)?;
        let (live, passes) = (self.spec.batch as i32, pass.count as i32);
        self.begin(Control { stream: pass.stream, live, passes, keep: pass.keep(1.0) })?;
        self.run(Run::Training { share: pass.share, adds: pass.index > 0 })?;
        self.end()?;
        self.pending.trained = true;
        if !pass.is_last() {
            return Ok(());
        }
        let mut when = Moment::Event(self.events.end.0 as u64);
        if let Some(mirror) = &mut self.mirror {
            self.main.stream.wait()?;
            driver::read(mirror.gradients_mut(pass.share), self.memory.grads[pass.share].address)?;
            when = Moment::Now;
        }
        for slot in &self.low.slots {
            ready(Ready { param: slot.param, range: slot.range.clone(), when });
        }
        Ok(())
    }

    fn evaluate(&mut self, live: usize) -> Result<(), EngineError> {
        check_below("count of samples to judge", self.spec.batch + 1, live)?;
        self.begin(Control { stream: 0, live: live as i32, passes: 1, keep: 1.0 })?;
        self.run(Run::Judging)?;
        self.end()?;
        self.pending.trained = false;
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
        if !self.pending.updating {
            self.updates += 1;
            self.pending.updating = true;
            self.main.stream.mark(&self.events.update_begin)?;
        }
        let skip = 4 * range.start as u64;
        if let Some(mirror) = &mut self.mirror {
            driver::write(self.memory.grads[0].address + skip, &mirror.gradients_mut(0)[range.clone()])?;
        }
        let at = |memory: &Memory| Word::from(memory.address + skip);
        let count = Word::from(range.len() as u64);
        let mut args = vec![at(&self.memory.params), at(&self.memory.grads[0])];
        let name = match self.spec.optimizer {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                args.extend([self.memory.state.first().map_or(Word::from(0u64), at), count]);
                args.extend([learning_rate, momentum, weight_decay].map(Word::from));
                args.push(Word::from(i32::from(nesterov)));
                "sgd"
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                args.extend(self.memory.state.iter().map(at));
                let root = (1.0 - beta2.powi(self.updates)).sqrt();
                let rate = learning_rate / (1.0 - beta1.powi(self.updates));
                args.push(count);
                args.extend([rate, root, beta1, beta2, epsilon, weight_decay].map(Word::from));
                "adam"
            }
        };
        launch(&self.kernels, &self.main.stream, name, wide_shape(range.len()), &args)?;
        self.packed = false;
        if let Some(mirror) = &mut self.mirror {
            self.main.stream.wait()?;
            driver::read(&mut mirror.parameters_mut()[range], self.memory.params.address + skip)?;
        }
        self.main.stream.mark(&self.events.update_end)
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        self.settle()?;
        if std::mem::take(&mut self.pending.ran) {
            let judgement = self.pinned_out.values::<Judgement>(1)[0];
            self.result.loss = judgement.loss;
            self.result.correct = judgement.correct as usize;
            self.result.forward_ns = self.events.forward_end.since(&self.events.begin)?;
            self.result.backward_ns = match self.pending.trained {
                true => self.events.end.since(&self.events.forward_end)?,
                false => 0,
            };
            if self.pending.copied {
                self.events.copied.wait()?;
                self.result.copy_in_ns = self.events.copied.since(&self.events.copy_begin)?;
            }
        }
        let mut result = self.result;
        if std::mem::take(&mut self.pending.updating) {
            result.update_ns = self.events.update_end.since(&self.events.update_begin)?;
        }
        Ok(result)
    }

    fn read_param(&mut self, param: ParamId, into: &mut [f32]) -> Result<(), EngineError> {
        check("parameter", self.lens[param.0], into.len())?;
        self.settle()?;
        if let (Some(mirror), Some(range)) = (&mut self.mirror, &self.low.ranges[param.0]) {
            into.copy_from_slice(&mirror.parameters_mut()[range.clone()]);
            return Ok(());
        }
        driver::read(into, self.home(param))
    }

    fn write_param(&mut self, param: ParamId, from: &[f32]) -> Result<(), EngineError> {
        check("parameter", self.lens[param.0], from.len())?;
        self.settle()?;
        self.packed = false;
        if let (Some(mirror), Some(range)) = (&mut self.mirror, &self.low.ranges[param.0]) {
            mirror.parameters_mut()[range.clone()].copy_from_slice(from);
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
            (Place::Host, Some(mirror)) => mirror.read(region, into),
            (Place::Host, None) => Err(foreign()),
        }
    }

    fn write_region(&mut self, region: Region, from: &[f32]) -> Result<(), EngineError> {
        check("region", region.len, from.len())?;
        self.settle()?;
        self.packed = false;
        match (region.place, &mut self.mirror) {
            (Place::Device(_), _) => driver::write(region.address, from),
            (Place::Host, Some(mirror)) => mirror.write(region, from),
            (Place::Host, None) => Err(foreign()),
        }
    }

    fn peak_device(&mut self) -> Option<u64> {
        Some(self.free_before.saturating_sub(self.least_free))
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
        let _ = self.device.enter();
        let _ = self.copying.wait();
        let _ = self.main.stream.wait();
    }
}
