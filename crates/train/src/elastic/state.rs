//! The state of an elastic training in the memory that its members share: where it begins, and what a checkpoint takes of it.

use std::mem::take;
use std::ops::Range;
use std::path::Path;

use paceline_comm::tasks::{Ground, GroundSize, Shape, side};
use paceline_comm::{Area, slice};
use paceline_engine::{Places, lay_out};
use paceline_model::Graph;
use paceline_record::Rank;

use crate::buckets::{self, Bucket};
use crate::checkpoint::{self, Checkpoint, OnNumerics, Position, Tensor};
use crate::milestone::{mean, shard_name};
use crate::{Job, Numerics, TrainError};

/// Slices of a bucket for each seat: enough that the work of a lost member can be divided.
const SLICES_PER_SEAT: u32 = 2;

/// How a training is laid out in shared memory: it follows from the job and its network, so launcher and members agree.
pub(crate) struct Layout {
    pub places: Places,
    pub buckets: Vec<Bucket>,
    pub size: GroundSize,
}

impl Layout {
    pub fn new(job: &Job, graph: &Graph) -> Self {
        let places = lay_out(graph);
        let (seats, most) = (job.most_here(), job.most_workers());
        // Where devices exchange, the state comes here only now and then, with a part from each member.
        let on_device = job.exchanges_on_device();
        let buckets = match on_device {
            true => {
                vec![Bucket { range: 0..places.trained, last_slot: places.slots.len().saturating_sub(1) }]
            }
            false => buckets::cut(&places.slots, places.trained, &job.exchange),
        };
        let hosts = job.hosts.map_or(1, |hosts| hosts.max);
        let size = GroundSize {
            shape: Shape {
                seats,
                shards: job.shards(),
                buckets: buckets.len() as u32,
                slices: if on_device { seats } else { SLICES_PER_SEAT * most },
                hosts,
            },
            values: places.trained,
            state: job.learning.rule().state_per_value(),
            statistics: places.statistics_len,
            half: job.exchange.compress.half(),
            gradients: if on_device { 0 } else { job.shards() },
        };
        Self { places, buckets, size }
    }

    /// Where each slice lies, bucket by bucket.
    pub fn slices(&self) -> Vec<Range<usize>> {
        let slices = self.size.shape.slices;
        let of = |bucket: &Bucket| {
            let range = bucket.range.clone();
            (0..slices).map(move |number| slice(range.clone(), Rank(number), slices))
        };
        self.buckets.iter().flat_map(of).collect()
    }
}

/// The state, as the launcher sees it.
pub(crate) struct State<'a> {
    pub job: &'a Job,
    pub graph: &'a Graph,
    pub layout: &'a Layout,
    pub ground: &'a Ground,
}

impl State<'_> {
    /// Draws the first weights, or takes those of the checkpoint that the job names. Returns the steps done before, and their
    /// tests.
    pub fn begin(&self) -> Result<Position, TrainError> {
        match &self.job.milestones.resume {
            Some(path) => self.resume(path),
            None => {
                self.draw()?;
                Ok(Position::default())
            }
        }
    }

    fn draw(&self) -> Result<(), TrainError> {
        let threads = self.job.threads * self.job.workers as usize;
        let mut statistics = vec![0.0; self.layout.places.statistics_len];
        let parameters = write(self.ground.parameters(0));
        paceline_engine::draw(self.graph, self.job.seed, threads, parameters, &mut statistics)?;
        for shard in 0..self.job.shards() {
            write(self.ground.statistics(0, shard)).copy_from_slice(&statistics);
        }
        Ok(())
    }

    fn resume(&self, path: &Path) -> Result<Position, TrainError> {
        let mut checkpoint = Checkpoint::read(path)?;
        // Numerics have been compared before.
        checkpoint.check_job(path, self.job, OnNumerics::Renew)?;
        let now = side(checkpoint.position.steps);
        let weights = checkpoint::arrange(take(&mut checkpoint.weights), self.graph, path)?;
        let parameters = write(self.ground.parameters(now));
        for slot in &self.layout.places.slots {
            parameters[slot.range.clone()].copy_from_slice(&weights[slot.param.0]);
        }
        for (number, name) in self.kept() {
            let state = write(self.ground.state(now, number));
            for slot in &self.layout.places.slots {
                let name = format!("{name}/{}", self.graph.params[slot.param.0].name);
                let values = checkpoint::find(&checkpoint.optimizer, &name, slot.range.len(), path)?;
                state[slot.range.clone()].copy_from_slice(values);
            }
        }
        for shard in 0..self.job.shards() {
            let area = write(self.ground.statistics(now, shard));
            area.copy_from_slice(&checkpoint.statistics_of(shard, self.job, area.len(), path)?);
        }
        Ok(checkpoint.position.resumed(self.job))
    }

    /// What the update rule keeps, by number and name.
    fn kept(&self) -> impl Iterator<Item = (usize, &'static str)> {
        let names = self.job.learning.optimizer.state_names().iter().copied();
        names.enumerate().take(self.layout.size.state)
    }

    /// The state at a position, while nobody writes to it: its next-but-one step has not begun.
    pub fn checkpoint(
        &self,
        position: Position,
        numerics: &paceline_engine::Numerics,
    ) -> Result<Checkpoint, TrainError> {
        let now = side(position.steps);
        // SAFETY: members only read this side before they have done the next step, and the caller holds them back.
        let read = |area: Area| unsafe { area.read(0..area.len()) };
        let parameters = read(self.ground.parameters(now));
        let statistics: Vec<Vec<f32>> =
            (0..self.job.shards()).map(|shard| read(self.ground.statistics(now, shard)).to_vec()).collect();
        let moving = mean(&statistics);
        let places = &self.layout.places;
        let weights = self.graph.params.iter().enumerate().map(|(id, param)| {
            let values = match (&places.ranges[id], &places.statistics[id]) {
                (Some(range), _) => &parameters[range.clone()],
                (None, Some(range)) => &moving[range.clone()],
                (None, None) => &[],
            };
            Tensor { name: param.name.clone(), shape: param.dims.clone(), values: values.to_vec() }
        });
        let weights = weights.collect();
        let mut optimizer = Vec::new();
        for (number, name) in self.kept() {
            let state = read(self.ground.state(now, number));
            optimizer.extend(places.slots.iter().map(|slot| {
                let param = &self.graph.params[slot.param.0];
                let values = state[slot.range.clone()].to_vec();
                Tensor { name: format!("{name}/{}", param.name), shape: param.dims.clone(), values }
            }));
        }
        let shards = (0..).zip(statistics).map(|(shard, values)| Tensor {
            name: shard_name(shard),
            shape: vec![values.len()],
            values,
        });
        Ok(Checkpoint {
            job: self.job.clone(),
            numerics: Numerics::new(self.job, numerics.clone()),
            fingerprint: self.job.fingerprint()?,
            position,
            weights,
            optimizer,
            shards: shards.collect(),
        })
    }
}

/// Values to write, before anybody else is there.
fn write<'a>(area: Area) -> &'a mut [f32] {
    // SAFETY: no member has been started, and nobody keeps what it was given.
    unsafe { area.write(0..area.len()) }
}
