//! A program as the step loop sees it.

use std::mem::offset_of;

use super::*;

impl CudaProgram {
    /// Where values are: on the host where memory for them was provided there, else on the device.
    fn find(&mut self, values: Values) -> Option<Region> {
        match values {
            Values::Parameters => {
                let home = self.mirror.as_ref().and_then(Mirror::parameters);
                home.or_else(|| Some(self.place(self.memory.params.address, self.low.places.trained)))
            }
            Values::Gradients(shard) => {
                let memory = self.memory.grads.get(shard)?;
                let home = self.mirror.as_ref().map(|mirror| mirror.gradients(shard));
                home.or_else(|| Some(self.place(memory.address, self.low.places.trained)))
            }
            Values::Statistics(shard) => {
                let memory = self.memory.moving.get(shard)?;
                Some(self.place(memory.address, self.low.places.statistics_len))
            }
            Values::State(number) => {
                let home = self.mirror.as_mut().and_then(|mirror| mirror.state(number));
                let memory = self.memory.state.get(number);
                home.or_else(|| memory.map(|memory| self.place(memory.address, self.low.places.trained)))
            }
            Values::Param(param) => {
                let (whole, range) = match self.low.places.ranges.get(param.0)?.clone() {
                    Some(range) => (Values::Parameters, range),
                    None => (Values::Statistics(0), self.low.places.statistics[param.0].clone()?),
                };
                Some(self.find(whole)?.part(range))
            }
            Values::Gradient(param) => {
                let range = self.low.places.ranges.get(param.0)?.clone()?;
                Some(self.place(self.memory.grads[0].address, self.low.places.trained).part(range))
            }
            Values::Output => None,
        }
    }

    /// Copies the output out of the device's layout.
    fn read_output(&mut self, into: &mut [f32]) -> Result<(), EngineError> {
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
}

fn nanos(time: Duration) -> Nanos {
    Nanos(time.as_nanos() as u64)
}

fn missing(values: Values) -> EngineError {
    EngineError::Unsupported(format!("this program has no {values:?} to read or write"))
}

impl Program for CudaProgram {
    fn plan(&self) -> &MemoryPlan {
        &self.low.plan
    }

    fn slots(&self) -> &[Slot] {
        &self.low.places.slots
    }

    fn numerics(&self) -> Numerics {
        self.numerics.clone()
    }

    fn len(&self, values: Values) -> usize {
        let present = |there: bool, len: usize| if there { len } else { 0 };
        match values {
            Values::Parameters => self.low.places.trained,
            Values::Gradients(shard) => present(shard < self.spec.shards, self.low.places.trained),
            Values::Statistics(shard) => present(shard < self.spec.shards, self.low.places.statistics_len),
            Values::State(number) => {
                present(number < self.spec.optimizer.state_per_value(), self.low.places.trained)
            }
            Values::Param(param) => {
                let places = &self.low.places;
                let place = |all: &[Option<Range<usize>>]| all.get(param.0).cloned().flatten();
                place(&places.ranges).or_else(|| place(&places.statistics)).map_or(0, |range| range.len())
            }
            Values::Gradient(param) => {
                self.low.places.ranges.get(param.0).and_then(Option::as_ref).map_or(0, Range::len)
            }
            Values::Output => self.spec.batch * self.output.len(),
        }
    }

    fn read(&mut self, values: Values, into: &mut [f32]) -> Result<(), EngineError> {
        check_len("values to read", self.len(values), into.len())?;
        self.settle()?;
        if values == Values::Output {
            return self.read_output(into);
        }
        let region = self.find(values).ok_or_else(|| missing(values))?;
        match region.place {
            Place::Device(_) => driver::read(into, region.address),
            Place::Host => {
                // SAFETY: one of this program's own regions; `Homes` vouches that nobody else uses it during a call.
                into.copy_from_slice(unsafe { host_values(region) });
                Ok(())
            }
        }
    }

    fn write(&mut self, values: Values, from: &[f32]) -> Result<(), EngineError> {
        check_len("values to write", self.len(values), from.len())?;
        self.settle()?;
        let region = self.find(values).ok_or_else(|| missing(values))?;
        self.packed = false;
        match region.place {
            Place::Device(_) => driver::write(region.address, from),
            Place::Host => {
                // SAFETY: as above.
                unsafe { host_values(region) }.copy_from_slice(from);
                Ok(())
            }
        }
    }

    fn bind(&mut self, homes: &Homes) -> Result<(), EngineError> {
        self.device.enter()?;
        match &mut self.mirror {
            Some(mirror) => mirror.bind(homes),
            None => Err(EngineError::Unsupported(
                "the values of this program are on its device: it was compiled without memory on the host"
                    .into(),
            )),
        }
    }

    fn host_update(&self) -> Result<HostUpdate, EngineError> {
        HostUpdate::new(self.spec.optimizer, self.numerics.simd()?)
    }

    fn resume_at(&mut self, updates: u64) {
        self.updates = updates as i32;
    }

    fn feed(&mut self, samples: Samples<'_>) -> Result<(), EngineError> {
        self.batch.check(samples)?;
        self.device.enter()?;
        // The pinned buffer was last copied from two batches ago. Copies run in order, so the previous copy is the last.
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

    fn forward_backward(&mut self, pass: Pass, ready: &mut dyn FnMut(usize)) -> Result<(), EngineError> {
        check_below("shard", self.memory.grads.len(), pass.shard)?;
        if self.mirror.is_some() && pass.update.is_some() {
            return Err(EngineError::Unsupported(
                "a run cannot include the update where gradients go through the host".into(),
            ));
        }
        let (rate, root) = pass.update.map_or((0.0, 1.0), |rate| self.count_update(rate));
        let (live, passes) = (self.spec.batch as i32, pass.count as i32);
        self.begin(Control { stream: pass.stream, live, passes, keep: pass.keep(1.0), rate, root })?;
        if pass.index == 0 {
            self.remember()?;
        }
        let updates = pass.update.is_some();
        let target = Target { shard: pass.shard, adds: pass.index > 0 };
        let run = Run::Training { target, updates };
        (self.pending.trained, self.pending.updated) = (true, updates);
        ready(0);
        let home = self.mirror.as_ref().map(|mirror| mirror.gradients(pass.shard));
        if let Some(home) = home.filter(|_| pass.is_last()) {
            return self.run_in_parts(run, home, ready);
        }
        self.run(run)?;
        self.end()?;
        let complete = pass.is_last() && !updates;
        ready(if complete { self.low.places.slots.len() } else { 0 });
        Ok(())
    }

    fn evaluate(&mut self, live: usize) -> Result<(), EngineError> {
        check_below("number of samples that count", self.spec.batch + 1, live)?;
        self.begin(Control { stream: 0, live: live as i32, passes: 1, keep: 1.0, rate: 0.0, root: 1.0 })?;
        self.run(Run::Evaluation)?;
        self.end()?;
        (self.pending.trained, self.pending.updated) = (false, false);
        Ok(())
    }

    fn apply(&mut self, learning_rate: f32, range: Range<usize>) -> Result<(), EngineError> {
        check_range(&range, self.low.places.trained)?;
        self.device.enter()?;
        let first = self.pending.applied == 0;
        if let Some(mirror) = self.mirror.as_mut().filter(|mirror| mirror.parameters().is_some()) {
            let begun = Instant::now();
            self.updates += i32::from(first);
            self.pending.applied += 1;
            mirror.apply(learning_rate, self.updates, range)?;
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
        // An exchange through the host is timed by its calls: nothing may run on after they return.
        if self.mirror.is_some() { stream.wait() } else { Ok(()) }
    }

    fn driving(&self) -> Driving {
        if self.weaves { Driving::Woven } else { Driving::Queued }
    }

    fn weave(&mut self, weave: Option<Weave>) -> Result<(), EngineError> {
        if self.mirror.is_some() || self.spec.shards > 1 {
            return Ok(());
        }
        self.device.enter()?;
        self.recordings.clear();
        self.woven = weave.map(|weave| Woven::new(weave, self)).transpose()?;
        self.weaves = true;
        Ok(())
    }

    fn guard(&mut self) -> Result<(), EngineError> {
        self.device.enter()?;
        let Memories { params, moving, state, .. } = &self.memory;
        let places = &self.low.places;
        let trained = [params].into_iter().chain(state).map(|memory| (memory, places.trained));
        let all = trained.chain(moving.iter().map(|memory| (memory, places.statistics_len)));
        let copies = all.filter(|&(_, len)| len > 0).map(|(memory, len)| {
            let (address, bytes) = (memory.address, 4 * len);
            Ok(Guarded { address, bytes, copy: Memory::new(bytes)? })
        });
        self.guarded = copies.collect::<Result<_, EngineError>>()?;
        self.peak.look(&self.device)
    }

    fn undo(&mut self) -> Result<(), EngineError> {
        self.device.enter()?;
        self.await_failed()?;
        for Guarded { address, bytes, copy } in &self.guarded {
            self.main.stream.copy_on(*address, copy.address, *bytes)?;
        }
        self.main.stream.wait()?;
        let copied = self.pending.copied;
        self.pending = Pending { copied, ..Pending::default() };
        self.packed = false;
        Ok(())
    }

    fn bucket_times(&mut self) -> Result<Vec<BucketTime>, EngineError> {
        self.settle()?;
        self.woven_times()
    }

    fn finish(&mut self) -> Result<StepResult, EngineError> {
        self.settle()?;
        let events = &self.events;
        let pending = &mut self.pending;
        let mut result = StepResult::default();
        if std::mem::take(&mut pending.ran) {
            let score = self.pinned_out.values::<Score>(1)[0];
            (self.result.loss, self.result.correct) = (score.loss, score.correct as usize);
            let phases = &mut result.phases;
            phases[Phase::CopyIn] = events.prepared.since(&events.called)?;
            phases[Phase::Update] = events.begin.since(&events.prepared)?;
            phases[Phase::Forward] = events.forward_end.since(&events.begin)?;
            if pending.trained {
                phases[Phase::Backward] = events.end.since(&events.forward_end)?;
            }
            if std::mem::take(&mut pending.updated) {
                phases[Phase::CommWait] =
                    events.exchanged.since(&events.end)? + events.fetched.since(&events.updated)?;
                phases[Phase::Update] +=
                    events.updated.since(&events.exchanged)? + events.done.since(&events.fetched)?;
            }
            if std::mem::take(&mut pending.copied_out) {
                phases[Phase::CopyOut] = events.copied_out.since(&events.end)?;
            }
            if self.runs > 1 {
                result.idle = events.called.since(&events.over[(self.runs - 1) % 2])?;
            }
        }
        let applied = std::mem::take(&mut pending.applied).min(events.applied.len());
        let at_home = self.mirror.as_ref().is_some_and(|mirror| mirror.parameters().is_some());
        for [begun, there, used] in events.applied[..applied].iter().filter(|_| !at_home) {
            result.phases[Phase::CopyIn] += there.since(begun)?;
            result.phases[Phase::Update] += used.since(there)?;
        }
        result.phases[Phase::Update] += nanos(std::mem::take(&mut self.host_update));
        result.in_ready = nanos(std::mem::take(&mut self.in_ready));
        Ok(StepResult { loss: self.result.loss, correct: self.result.correct, ..result })
    }

    fn measured(&mut self) -> Measured {
        let layers = match self.spec.profiling {
            Profiling::Layers => layers(&self.low.units, &self.times),
            Profiling::Phases => Vec::new(),
        };
        Measured { peak_device: Some(Bytes(self.peak.bytes)), layers }
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        // Nothing may run when the memory is freed.
        let _ = self.device.make_current();
        let _ = self.copying.wait();
        let _ = self.copying_out.wait();
        let _ = self.main.stream.wait();
    }
}
