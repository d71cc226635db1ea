//! Making a program: methods, memory, and the initial weights.

use super::super::lower::value_bytes;
use super::super::product::Workspace;
use super::*;
use crate::cpu::{Placement, allowed_cores};
use crate::cuda::{Cuda, Tuning};
use crate::random::draw;

/// The most threads that copy a batch to pinned memory.
const MOST_COPIERS: usize = 4;

/// Stretches of trained values without packed copies, each for one block.
fn stretches(lowered: &Lowered) -> Vec<[i32; 2]> {
    const LONGEST: usize = 2048;
    let plain =
        lowered.outline.places.slots.iter().filter(|slot| lowered.packing.starts[slot.param.0].is_none());
    plain
        .flat_map(|slot| {
            let end = slot.range.end;
            slot.range
                .clone()
                .step_by(LONGEST)
                .map(move |start| [start as i32, (start + LONGEST).min(end) as i32])
        })
        .collect()
}

impl CudaProgram {
    pub fn new(engine: &Cuda, graph: &Graph, spec: &Spec, homes: &Homes) -> Result<Self, EngineError> {
        let lowered = engine.lower(graph, spec)?;
        let device = engine.device.clone();
        device.enter()?;
        let kernels = engine.kernels(spec.precision)?;
        let peak = Peak::new(&device)?;
        let values = |len: usize| Memory::new(4 * len);
        let several =
            |count: usize, len: usize| (0..count).map(|_| values(len)).collect::<Result<Vec<_>, _>>();
        let bytes = value_bytes(spec.precision);
        let images = spec.batch * graph.input().len();
        let workspaces = [Memory::new(lowered.workspace)?, Memory::new(lowered.workspace)?];
        let lane = |workspace: &Memory| -> Result<Lane, EngineError> {
            let workspace = Workspace { address: workspace.address, bytes: workspace.bytes };
            Ok(Lane { workspace, stream: Stream::new()? })
        };
        let (main, side) = (lane(&workspaces[0])?, lane(&workspaces[1])?);
        let libraries = Libraries {
            cudnn: backend::Handle::new()?,
            cublas: gemm::Handle::new()?,
            kernels: kernels.clone(),
        };
        let mut methods = HashMap::new();
        let mut algorithms = Vec::new();
        {
            let mut choices = engine.choices.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let fill = |address: u64, bytes_to_fill: usize| {
                let args = [Word::from(address), Word::from((bytes_to_fill / bytes) as u64)];
                launch(&kernels, &main.stream, "noise", wide_shape(bytes_to_fill / bytes), &args)
            };
            let mut tuner = Tuner {
                libraries: &libraries,
                lane: &main,
                choices: &mut choices,
                tuning: &engine.options.tuning,
                scratch: None,
                fill: &fill,
            };
            let steps = lowered.forward.iter().chain(&lowered.backward);
            for step in steps {
                if let Action::Product { product, direction, .. } = step.action
                    && !methods.contains_key(&(product, direction))
                {
                    let (method, algorithm) = tuner.method(&lowered.products[product], direction)?;
                    algorithms.push(algorithm);
                    methods.insert((product, direction), method);
                }
            }
            tuner.choices.save();
        }
        let stretches = stretches(&lowered);
        let Outline { units, places, .. } = lowered.outline;
        let (trained, statistics_len) = (places.trained, places.statistics_len);
        // Parameters that live on the host have their update rule there.
        let at_home = homes.parameters.is_some();
        let memory = Memories {
            params: values(trained)?,
            grads: several(spec.shards, trained)?,
            moving: several(spec.shards, statistics_len)?,
            state: several(if at_home { 0 } else { spec.optimizer.state_per_value() }, trained)?,
            packed: Memory::new(lowered.packing.len * bytes)?,
            raw: Memory::new(lowered.packing.len * bytes)?,
            tensors: Memory::upload(&lowered.packing.tensors)?,
            owners: Memory::upload(&lowered.packing.owners)?,
            stretches: Memory::upload(&stretches)?,
            arena: Memory::new(lowered.arena)?,
            counters: values(lowered.counters)?,
            labels: values(spec.batch)?,
            staged_images: values(images)?,
            staged_labels: values(spec.batch)?,
            control: Memory::new(size_of::<Control>())?,
            score: Memory::new(size_of::<Score>())?,
            _workspaces: workspaces.into(),
        };
        let sides = lowered.backward.iter().filter(|step| step.track == Track::Side).count();
        let event = Event::new;
        let events = Events {
            copied: event()?,
            consumed: event()?,
            called: event()?,
            prepared: event()?,
            begin: event()?,
            forward_end: event()?,
            end: event()?,
            exchanged: event()?,
            updated: event()?,
            fetched: event()?,
            done: event()?,
            copied_out: event()?,
            over: [event()?, event()?],
            applied: Vec::new(),
            sides: (0..sides).map(|_| Ok((event()?, event()?))).collect::<Result<_, EngineError>>()?,
        };
        let at = |buffer: Buffer| memory.arena.address + lowered.offsets[buffer.0] as u64;
        let low = Compiled {
            input: at(lowered.input),
            output: at(lowered.output),
            forward: lowered.forward,
            evaluation: lowered.evaluation,
            backward: lowered.backward,
            offsets: lowered.offsets,
            wide: lowered.wide,
            places,
            packing: lowered.packing,
            stretches: stretches.len(),
            plan: lowered.plan,
            units,
        };
        let recorded = match &engine.options.tuning {
            Tuning::Recorded(numerics) => numerics.simd()?,
            _ => None,
        };
        let mirror = Mirror::new(homes, trained, spec, recorded)?;
        algorithms.sort_by(|one, other| one.product.cmp(&other.product));
        let numerics = Numerics {
            instruction_set: mirror.as_ref().and_then(Mirror::simd).map(|simd| simd.to_string()),
            device: Some(device.name.clone()),
            libraries: engine.libraries.clone(),
            algorithms,
        };
        let mut program = Self {
            recordings: HashMap::new(),
            parts: if mirror.is_some() { Part::all(&low)? } else { Vec::new() },
            woven: None,
            weaves: false,
            guarded: Vec::new(),
            methods,
            libraries,
            main,
            side,
            copying: Stream::new()?,
            copying_out: Stream::new()?,
            kernels,
            memory,
            events,
            copiers: Pool::new(allowed_cores().len().clamp(1, MOST_COPIERS), Placement::Anywhere)?,
            pinned_images: [Pinned::new(4 * images)?, Pinned::new(4 * images)?],
            pinned_labels: [Pinned::new(4 * spec.batch)?, Pinned::new(4 * spec.batch)?],
            pinned_out: Pinned::new(size_of::<Score>())?,
            pinned_control: Pinned::new(size_of::<Control>())?,
            mirror,
            fed: 0,
            runs: 0,
            times: vec![UnitTime::default(); low.units.len()],
            low,
            pending: Pending::default(),
            packed: false,
            loaded: false,
            updates: 0,
            host_update: Duration::ZERO,
            in_ready: Duration::ZERO,
            result: StepResult::default(),
            spec: *spec,
            batch: BatchShape::new(graph, spec),
            output: graph.node(graph.output()).shape,
            contents: engine.options.contents,
            numerics,
            peak,
            device,
        };
        program.draw(graph, homes.parameters.map_or(Drawing::Draw, |(_, drawing)| drawing))?;
        Ok(program)
    }

    /// Draws the initial weights on the host, as the CPU engine does, and copies them in.
    pub(super) fn draw(&mut self, graph: &Graph, trained: Drawing) -> Result<(), EngineError> {
        let mut params = vec![0.0f32; self.low.places.trained];
        let mut moving = vec![0.0f32; self.low.places.statistics_len];
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        draw(graph, self.spec.seed, threads, &mut params, &mut moving)?;
        for shard in &self.memory.moving {
            driver::write(shard.address, &moving)?;
        }
        match self.mirror.as_mut().and_then(Mirror::parameters_mut) {
            Some(_) if trained == Drawing::Leave => {}
            Some(home) => home.copy_from_slice(&params),
            None => driver::write(self.memory.params.address, &params)?,
        }
        Ok(())
    }
}
