//! What a log says about a run of which it recorded no step: how fast it was, every so many steps.

use serde::{Deserialize, Serialize};

use crate::stats::Work;

/// The points of a log, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// At least one. All of them have a rate, or all of them have seconds, or both.
    pub points: Vec<LogPoint>,
}

/// One point of a log. It stands for the steps since the point before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogPoint {
    /// The last of its steps.
    pub step: u64,
    /// How many steps it stands for.
    pub covers: u64,
    /// Examples per second of all workers together.
    pub examples_per_s: Option<f64>,
    /// Time of its steps together.
    pub seconds: Option<f64>,
    /// Loss of the last.
    pub loss: Option<f32>,
}

impl LogPoint {
    /// Fills in what follows from the examples of a step of all workers together.
    pub fn with_batch(self, examples: f64) -> Self {
        let work = examples * self.covers as f64;
        Self {
            seconds: self.seconds.or(self.examples_per_s.map(|rate| work / rate)),
            examples_per_s: self.examples_per_s.or(self.seconds.map(|seconds| work / seconds)),
            ..self
        }
    }
}

impl Progress {
    /// Whether the time of every step is known, and not only its rate.
    pub fn is_timed(&self) -> bool {
        self.points.iter().all(|point| point.seconds.is_some())
    }

    /// Whether every rate is known.
    pub fn has_rates(&self) -> bool {
        self.points.iter().all(|point| point.examples_per_s.is_some())
    }

    /// Steps of all points together.
    pub fn steps(&self) -> u64 {
        self.points.iter().fold(0, |sum, point| sum.saturating_add(point.covers))
    }

    /// The work of each point. Without times an example is a step and a second as long as it takes at the rate: only ratios of
    /// such work mean something, and the rate is one.
    pub(crate) fn work(&self) -> Vec<Work> {
        let work = |point: &LogPoint| match (point.seconds, point.examples_per_s) {
            (Some(seconds), rate) => Work { amount: rate.map_or(0.0, |rate| rate * seconds), seconds },
            (None, rate) => {
                let steps = point.covers as f64;
                Work { amount: steps, seconds: steps / rate.unwrap_or(f64::NAN) }
            }
        };
        self.points.iter().map(work).collect()
    }
}
