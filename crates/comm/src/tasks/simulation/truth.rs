//! What one process alone would compute.

use super::super::Node;
use super::scenario::{Scenario, hash, mix};

/// All states and statistics, by the number of steps done.
pub struct Truth {
    pub states: Vec<Vec<u64>>,
    pub sums: Vec<Vec<u64>>,
    pub statistics: Vec<Vec<u64>>,
}

pub fn gradient(step: u64, shard: u32, value: usize, state: u64) -> u64 {
    hash(&[step, u64::from(shard), value as u64, state])
}

pub fn statistic(step: u64, shard: u32, before: u64) -> u64 {
    hash(&[step, u64::from(shard), before, 77])
}

pub fn tested(steps: u64, part: u32, state: u64) -> u64 {
    hash(&[steps, u64::from(part), state, 99]) >> 12
}

/// What the update rule keeps beside a trained value.
pub fn kept(state: u64) -> u64 {
    mix(state ^ 5)
}

/// Two sums as one. The order matters.
pub fn combine(left: u64, right: u64) -> u64 {
    mix(left.wrapping_mul(3).wrapping_add(right))
}

/// A sum over leaves, split at the largest power of two.
pub fn tree(leaves: &[u64]) -> u64 {
    match leaves {
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(leaves.len().next_power_of_two() / 2);
            combine(tree(left), tree(right))
        }
    }
}

/// The whole sum, from nodes that cover it in order.
pub fn top_out(nodes: &[(Node, u64)]) -> u64 {
    let mut floors: Vec<(u32, u64)> = Vec::new();
    for &(Node { mut level, .. }, mut sum) in nodes {
        while let Some(&(_, left)) = floors.last().filter(|floor| floor.0 == level) {
            floors.pop();
            (sum, level) = (combine(left, sum), level + 1);
        }
        floors.push((level, sum));
    }
    floors.into_iter().rev().map(|(_, sum)| sum).reduce(|right, left| combine(left, right)).expect("a node")
}

impl Truth {
    pub fn of(scenario: &Scenario) -> Self {
        let shards = scenario.shape.shards;
        let mut states = vec![(0..scenario.values() as u64).map(mix).collect::<Vec<_>>()];
        let mut statistics = vec![(0..u64::from(shards)).map(mix).collect::<Vec<_>>()];
        let mut sums = Vec::new();
        for step in 0..scenario.steps {
            let last = &states[step as usize];
            let sum = last.iter().enumerate().map(|(value, &state)| {
                let leaves: Vec<u64> = (0..shards).map(|shard| gradient(step, shard, value, state)).collect();
                tree(&leaves)
            });
            let sum: Vec<u64> = sum.collect();
            let next = last.iter().zip(&sum).map(|(&state, &sum)| hash(&[state, sum])).collect();
            let moved = (0..).zip(&statistics[step as usize]);
            let moved = moved.map(|(shard, &before)| statistic(step, shard, before)).collect();
            sums.push(sum);
            states.push(next);
            statistics.push(moved);
        }
        Self { states, sums, statistics }
    }

    /// What a host has to send of a value.
    pub fn node(&self, step: u64, node: Node, value: usize) -> u64 {
        let state = self.states[step as usize][value];
        tree(&node.shards().map(|shard| gradient(step, shard, value, state)).collect::<Vec<_>>())
    }
}
