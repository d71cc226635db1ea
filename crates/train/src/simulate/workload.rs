//! What a job costs on a simulated machine: computed from its network, before the first step.

use paceline_engine::{Places, lay_out};
use paceline_model::{Graph, layer_costs, summarize};
use paceline_record::{Bytes, LayerTime, Nanos, Rank};

use super::network::{Messages, Parcel};
use super::noise::Noise;
use super::{MOST_OFF_CORE, scaled};
use crate::strategy::Compress;
use crate::{Job, Plan, Publish, TrainError, Updates, buckets};

/// Times of a layer in a pass at full speed, in nanoseconds.
#[derive(Clone, Debug)]
struct Layer {
    name: String,
    forward: f64,
    backward: f64,
    flops: (u64, u64),
}

/// What the parts of a step cost every rank.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    layers: Vec<Layer>,
    /// Forward of a pass at full speed, in nanoseconds.
    pub forward: f64,
    /// Backward of a pass at full speed, in nanoseconds.
    pub backward: f64,
    /// The buckets to exchange, in order; empty if there is nobody to exchange with.
    pub parcels: Vec<Parcel>,
    /// Getting a batch.
    pub load: Nanos,
    update: Nanos,
    /// Fetching the parameters from their server.
    pub fetch: Nanos,
    /// Memory of a worker.
    pub memory: Bytes,
    server_updates: bool,
    /// Recorded noise.
    pub noise: Option<Noise>,
}

impl Workload {
    /// The costs of a job. A job that cannot be simulated is refused.
    pub fn new(job: &Job) -> Result<Self, TrainError> {
        let workload = Self::of(job, &job.graph()?)?;
        workload.check_span(job)?;
        Ok(workload)
    }

    /// The same for a network that the zoo may not have.
    pub fn of(job: &Job, graph: &Graph) -> Result<Self, TrainError> {
        let simulation = &job.simulation;
        let layers = time_layers(job, graph)?;
        let further = job.workers - 1;
        let plan = job.plan();
        let exchanges = further > 0 && plan.exchanges();
        let len = lay_out(graph).trained;
        let server_updates = exchanges && plan.publish == Publish::FromServer;
        let bytes = 4.0 * len as f64;
        let updated = if plan.updates == Updates::OwnSlice { bytes / f64::from(job.workers) } else { bytes };
        let slower = 1.0 + simulation.update_contention * f64::from(further);
        let summary = summarize(graph);
        Ok(Self {
            forward: layers.iter().map(|layer| layer.forward).sum(),
            backward: layers.iter().map(|layer| layer.backward).sum(),
            parcels: if exchanges { pack(job, graph, &layers) } else { Vec::new() },
            load: simulation.load + scaled(f64::from(further), simulation.load_contention.0 as f64),
            update: scaled(slower, updated / simulation.update_gbs),
            fetch: if server_updates { Messages::new(plan, bytes).time(simulation) } else { Nanos(0) },
            // Parameters, gradients and velocities, and every activation.
            memory: Bytes(
                4 * summary.params_total
                    + 8 * summary.params_trainable
                    + summary.activation_bytes.saturating_mul(job.batch as u64),
            ),
            server_updates,
            noise: simulation.noise.as_deref().map(Noise::read).transpose()?,
            layers,
        })
    }

    /// The time of a rank's update.
    pub fn update(&self, rank: Rank) -> Nanos {
        if self.server_updates && rank != Plan::SERVER { Nanos(0) } else { self.update }
    }

    /// Times of the layers over a run that took as long as `passes` passes at full speed.
    pub fn layer_times(&self, calls: u64, passes: f64) -> Vec<LayerTime> {
        let time = |layer: &Layer| LayerTime {
            name: layer.name.clone(),
            calls,
            forward: scaled(passes, layer.forward),
            backward: scaled(passes, layer.backward),
            forward_flops: layer.flops.0,
            backward_flops: layer.flops.1,
        };
        self.layers.iter().map(time).collect()
    }

    /// Refuses a run that could exceed the clock's range.
    fn check_span(&self, job: &Job) -> Result<(), TrainError> {
        let simulation = &job.simulation;
        let further = f64::from(job.workers - 1);
        let factor = |pair: Option<f64>| pair.unwrap_or(1.0).max(1.0);
        let slowest = (1.0 + simulation.contention * further)
            // No draw is six standard deviations away.
            * (6.0 * simulation.jitter).exp()
            * factor(self.noise.as_ref().map(|noise| noise.most))
            / (1.0 - simulation.off_core.min(MOST_OFF_CORE))
            * factor(simulation.warmup.map(|(_, factor)| factor))
            * factor(simulation.slowdown.map(|(_, factor)| factor))
            * factor(simulation.straggler.map(|(_, factor)| factor));
        let due = |pair: Option<(u64, Nanos)>| pair.map_or(0.0, |(_, time)| time.0 as f64);
        let pass = (self.forward + self.backward) * slowest + self.load.0 as f64;
        let exchange: f64 = self.parcels.iter().map(|parcel| parcel.transfer.0 as f64).sum();
        let step = pass * job.accumulate as f64
            + exchange * 2.0
            + self.update.0 as f64
            + self.fetch.0 as f64
            + (simulation.other.0 as f64 + due(simulation.eval) + due(simulation.checkpoint))
            + simulation.hiccup.map_or(0.0, |(_, time)| time.0 as f64);
        let around = [simulation.spawn, simulation.init_per_worker, simulation.tail_per_worker];
        let around = around.iter().map(|time| time.0 as f64 * further).sum::<f64>();
        let total = step * job.steps as f64 + around;
        if total < 0.5 * u64::MAX as f64 {
            return Ok(());
        }
        let centuries = total * 1e-9 / (100.0 * 365.25 * 86400.0);
        Err(TrainError::Simulation(format!(
            "{} steps could take {centuries:.0} centuries on this machine; choose fewer, or a faster one",
            job.steps
        )))
    }
}

fn time_layers(job: &Job, graph: &Graph) -> Result<Vec<Layer>, TrainError> {
    let rate = job.simulation.gflops * job.threads as f64;
    let time = |flops: u64| flops as f64 * job.batch as f64 / rate;
    let costs = layer_costs(graph);
    let layer = |cost: &paceline_model::LayerCost| Layer {
        name: graph.node(cost.node).name.clone(),
        forward: time(cost.flops_forward),
        backward: time(cost.flops_backward),
        flops: (
            cost.flops_forward.saturating_mul(job.batch as u64),
            cost.flops_backward.saturating_mul(job.batch as u64),
        ),
    };
    let mut layers: Vec<Layer> = costs.iter().map(layer).collect();
    for (name, forward, backward) in &job.simulation.layers {
        let layer = layers.iter_mut().find(|layer| layer.name == *name).ok_or_else(|| {
            let model = &job.model;
            TrainError::Simulation(format!(
                "{model} has no layer '{name}'; --engine simulated --profile=all lists its layers"
            ))
        })?;
        (layer.forward, layer.backward) = (forward.0 as f64, backward.0 as f64);
    }
    Ok(layers)
}

/// Cuts the gradients into the buckets of the real exchange, and says when each is ready.
fn pack(job: &Job, graph: &Graph, layers: &[Layer]) -> Vec<Parcel> {
    let Places { slots, trained, .. } = lay_out(graph);
    // Backward goes from the last layer to the first: a layer is done when it and all layers behind it are.
    let mut done = vec![0.0; layers.len()];
    let mut sum = 0.0;
    for (done, layer) in done.iter_mut().zip(layers).rev() {
        sum += layer.backward;
        *done = sum;
    }
    let halved = if job.exchange.compress == Compress::None { 1.0 } else { 0.5 };
    let parcel = |bucket: buckets::Bucket| {
        let bytes = 4 * bucket.range.len() as u64;
        let messages = Messages::new(job.plan(), halved * bytes as f64);
        Parcel {
            bytes: Bytes(bytes),
            ready: done[graph.param(slots[bucket.last_slot].param).node.0],
            transfer: messages.time(&job.simulation),
            moved: messages.total(),
        }
    };
    buckets::cut(&slots, trained, &job.exchange).into_iter().map(parcel).collect()
}
