//! The exchange of gradients and the update as parts of a step.

use super::*;
use crate::{Exchanged, Link, WovenBucket};

/// Polls of the device between two checks of the other ranks.
const POLLS: u32 = 1024;

/// How long what is left of a run may take whose exchange was given up.
const FAILED: Duration = Duration::from_secs(30);

/// An exchange with all that it needs on the device.
pub(super) struct Woven {
    pub overlap: bool,
    /// Ranks whose gradients lie side by side, and where.
    gathered: Option<(usize, Memory)>,
    buckets: Vec<Bucket>,
    stream: Stream,
    link: Box<dyn Link>,
}

/// A bucket, and when and how it is put on the stream.
struct Bucket {
    range: Range<usize>,
    updated: Range<usize>,
    /// The instruction of backward that completes it.
    after: usize,
    /// Its packed tensors.
    tensors: Range<usize>,
    /// Order the streams.
    fork: Event,
    join: Event,
    /// When the exchange began and ended.
    begun: Event,
    ended: Event,
}

/// The instructions of backward after which each parameter's gradient is complete.
pub(super) fn completions(backward: &[Step], places: &Places) -> Vec<usize> {
    let mut last = vec![0; places.ranges.len()];
    for (index, step) in backward.iter().enumerate() {
        match &step.action {
            Action::Product { direction: Direction::Filter, kernel, .. } => last[kernel.0] = index,
            Action::Product { .. } => {}
            Action::Kernel { args, .. } => {
                for arg in args {
                    if let Arg::Grad(id) = arg {
                        last[id.0] = index;
                    }
                }
            }
        }
    }
    last
}

impl Woven {
    pub fn new(weave: Weave, program: &CudaProgram) -> Result<Self, EngineError> {
        let low = &program.low;
        let last = completions(&low.backward, &low.places);
        let within = |range: &Range<usize>, at: usize| range.contains(&at);
        let mut after = 0;
        let mut buckets = Vec::new();
        for WovenBucket { range, updated } in weave.buckets {
            let slots = low.places.slots.iter().filter(|slot| within(&range, slot.range.start));
            after = slots.map(|slot| last[slot.param.0]).fold(after, usize::max);
            let packed = &low.packing.tensors;
            let mine = |index: &usize| within(&range, packed[*index].canonical as usize);
            let first = (0..packed.len()).find(mine).unwrap_or(0);
            let count = (0..packed.len()).filter(mine).count();
            buckets.push(Bucket {
                range,
                updated,
                after,
                // Neighbours in the region are neighbours among the packed tensors, in reverse order.
                tensors: first..first + count,
                fork: Event::new()?,
                join: Event::new()?,
                begun: Event::new()?,
                ended: Event::new()?,
            });
        }
        let longest = buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
        let gathered = match weave.gathered {
            Some(ranks) => Some((ranks, Memory::new(4 * ranks * longest)?)),
            None => None,
        };
        Ok(Self { overlap: weave.overlap, gathered, buckets, stream: Stream::new()?, link: weave.link })
    }
}

impl CudaProgram {
    /// Exchanges the buckets that an instruction of backward completes.
    pub(super) fn exchange_ready(
        &self,
        woven: &mut Woven,
        put: Put,
        target: Target,
        mark: Mark,
    ) -> Result<(), EngineError> {
        for at in 0..woven.buckets.len() {
            if woven.buckets[at].after != put.number {
                continue;
            }
            let bucket = &woven.buckets[at];
            self.main.stream.mark(&bucket.fork)?;
            woven.stream.wait_for(&bucket.fork)?;
            if let Some(side) = put.side {
                woven.stream.wait_for(side)?;
            }
            self.unpack(&woven.stream, bucket.tensors.clone(), target)?;
            self.exchange(woven, at, mark)?;
        }
        Ok(())
    }

    /// Exchanges a bucket on the stream for exchanges.
    fn exchange(&self, woven: &mut Woven, at: usize, mark: Mark) -> Result<(), EngineError> {
        let _bucket = nvtx::range(format_args!("bucket {at}"));
        let Woven { gathered, buckets, stream, link, .. } = woven;
        let bucket = &buckets[at];
        mark(stream, &bucket.begun)?;
        let gradients =
            self.place(self.memory.grads[0].address, self.low.places.trained).part(bucket.range.clone());
        let beside = gathered
            .as_ref()
            .map(|(ranks, memory)| (*ranks, self.place(memory.address, ranks * gradients.len)));
        let values = Exchanged { own: gradients, gathered: beside.map(|(_, region)| region) };
        link.put_gradients(at, values, stream.0 as u64)?;
        if let Some((ranks, region)) = beside {
            let args = [
                Word::from(region.address),
                Word::from(gradients.address),
                Word::from(gradients.len as u64),
                Word::from(ranks as i32),
            ];
            launch(&self.kernels, stream, "average", wide_shape(gradients.len), &args)?;
        }
        mark(stream, &bucket.ended)?;
        stream.mark(&bucket.join)
    }

    /// What follows backward: waiting for the exchange, the update, and copies of the new weights.
    pub(super) fn put_update(&self, woven: Option<&mut Woven>, mark: Mark) -> Result<(), EngineError> {
        let _update = nvtx::range("update");
        let (stream, events) = (&self.main.stream, &self.events);
        let Some(woven) = woven else {
            mark(stream, &events.exchanged)?;
            self.put_rule(0..self.low.places.trained)?;
            mark(stream, &events.updated)?;
            mark(stream, &events.fetched)?;
            self.pack()?;
            return mark(stream, &events.done);
        };
        let in_backward = woven.overlap && self.spec.profiling == Profiling::Phases;
        if !in_backward {
            for at in 0..woven.buckets.len() {
                let fork = &woven.buckets[at].fork;
                stream.mark(fork)?;
                woven.stream.wait_for(fork)?;
                self.exchange(woven, at, mark)?;
            }
        }
        if let Some(last) = woven.buckets.last() {
            stream.wait_for(&last.join)?;
        }
        mark(stream, &events.exchanged)?;
        for bucket in &woven.buckets {
            self.put_rule(bucket.updated.clone())?;
        }
        mark(stream, &events.updated)?;
        let parameters = self.place(self.memory.params.address, self.low.places.trained);
        for (at, bucket) in woven.buckets.iter().enumerate() {
            woven.link.put_parameters(at, parameters.part(bucket.range.clone()), stream.0 as u64)?;
        }
        mark(stream, &events.fetched)?;
        self.pack()?;
        mark(stream, &events.done)
    }

    /// The update straight from packed gradients into packed weights.
    pub(super) fn put_direct_update(&self, mark: Mark) -> Result<(), EngineError> {
        let Optimizer::Sgd { momentum, nesterov, weight_decay } = self.spec.optimizer else {
            unreachable!("invariant: only SGD updates this way");
        };
        let _update = nvtx::range("update");
        let (stream, events, memory) = (&self.main.stream, &self.events, &self.memory);
        mark(stream, &events.exchanged)?;
        let velocity = Word::from(memory.state.first().map_or(0, |memory| memory.address));
        let rule = [
            Word::from(momentum),
            Word::from(weight_decay),
            Word::from(i32::from(nesterov)),
            Word::from(memory.control.address),
        ];
        let count = self.low.packing.owners.len();
        if count > 0 {
            let mut args = vec![
                Word::from(memory.tensors.address),
                Word::from(memory.owners.address),
                Word::from(memory.raw.address),
                Word::from(memory.packed.address),
                Word::from(memory.params.address),
                velocity,
                Word::from(self.nchw()),
            ];
            args.extend(rule);
            self.tiles(stream, "sgd_packed", count, &args)?;
        }
        if self.low.stretches > 0 {
            let mut args = vec![
                Word::from(memory.stretches.address),
                Word::from(memory.grads[0].address),
                Word::from(memory.params.address),
                velocity,
            ];
            args.extend(rule);
            let shape =
                Shape { grid: (self.low.stretches as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
            launch(&self.kernels, stream, "sgd_stretches", shape, &args)?;
        }
        mark(stream, &events.updated)?;
        mark(stream, &events.fetched)?;
        mark(stream, &events.done)
    }

    /// The update rule over a range.
    pub(super) fn put_rule(&self, range: Range<usize>) -> Result<(), EngineError> {
        if range.is_empty() {
            return Ok(());
        }
        let at = |memory: &Memory| Word::from(memory.address + 4 * range.start as u64);
        let count = Word::from(range.len() as u64);
        let mut args = vec![at(&self.memory.params), at(&self.memory.grads[0])];
        let name = match self.spec.optimizer {
            Optimizer::Sgd { momentum, nesterov, weight_decay } => {
                args.extend([self.memory.state.first().map_or(Word::from(0u64), at), count]);
                args.extend([momentum, weight_decay].map(Word::from));
                args.push(Word::from(i32::from(nesterov)));
                "sgd"
            }
            Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
                args.extend(self.memory.state.iter().map(at));
                args.push(count);
                args.extend([beta1, beta2, epsilon, weight_decay].map(Word::from));
                "adam"
            }
        };
        args.push(Word::from(self.memory.control.address));
        launch(&self.kernels, &self.main.stream, name, wide_shape(range.len()), &args)
    }

    /// Counts an update: its learning rate with Adam's bias correction, and the root of the second one.
    pub(super) fn count_update(&mut self, learning_rate: f32) -> (f32, f32) {
        self.updates += 1;
        match self.spec.optimizer {
            Optimizer::Sgd { .. } => (learning_rate, 1.0),
            Optimizer::Adam { beta1, beta2, .. } => {
                (learning_rate / (1.0 - beta1.powi(self.updates)), (1.0 - beta2.powi(self.updates)).sqrt())
            }
        }
    }

    /// Waits for the main stream, and watches the other ranks where an exchange is on it.
    pub(super) fn await_stream(&self, woven: Option<&mut Woven>) -> Result<(), EngineError> {
        let Some(woven) = woven else {
            return self.main.stream.wait();
        };
        let begun = Instant::now();
        loop {
            for _ in 0..POLLS {
                if self.main.stream.is_idle()? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            woven.link.watch(begun.elapsed())?;
        }
    }

    /// Remembers what the run that follows changes.
    pub(super) fn remember(&self) -> Result<(), EngineError> {
        self.guarded.iter().try_for_each(|Guarded { address, bytes, copy }| {
            self.main.stream.copy_on(copy.address, *address, *bytes)
        })
    }

    /// Waits for a run whose exchange was given up: what is left of it ends by itself.
    pub(super) fn await_failed(&self) -> Result<(), EngineError> {
        let by = Instant::now() + FAILED;
        while !self.main.stream.is_idle()? {
            if Instant::now() > by {
                return Err(EngineError::Exchange("a run goes on although its exchange was given up".into()));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// When each bucket was exchanged, as time before the end of the run.
    pub(super) fn woven_times(&self) -> Result<Vec<BucketTime>, EngineError> {
        let Some(woven) = &self.woven else { return Ok(Vec::new()) };
        let before = |event: &Event| self.events.done.since(event);
        let time =
            |bucket: &Bucket| Ok(BucketTime { begun: before(&bucket.begun)?, ended: before(&bucket.ended)? });
        woven.buckets.iter().map(time).collect()
    }
}
