//! The life of a member, whose tasks check all that they read.

use paceline_record::Nanos;

use super::super::{Board, Ended, Member, Node, Parts, ShardTask, Shards, SliceTask, Slices, Tests, side};
use super::scenario::{Data, hash};
use super::truth::{gradient, kept, statistic, tested, top_out};
use super::world::{Place, View};

/// The tasks of a member.
struct Hands<'a> {
    view: &'a View,
    board: Board,
}

impl Hands<'_> {
    fn data(&self) -> Data {
        Data(self.view.world.scenario)
    }

    fn read(&self, at: usize) -> u64 {
        self.view.read(Place::Data(at))
    }

    fn write(&self, at: usize, value: u64) {
        self.view.write(Place::Data(at), value);
    }

    fn state(&self, step: u64, value: usize) -> u64 {
        let found = self.read(self.data().state(side(step), 0, value));
        let expected = self.view.world.truth.states[step as usize][value];
        assert_eq!(found, expected, "the state before step {step} is wrong");
        found
    }
}

impl Shards for Hands<'_> {
    type Error = ();

    fn run(&mut self, task: ShardTask, progress: &mut dyn FnMut(usize)) -> Result<(), ()> {
        let ShardTask { step, shard, again, .. } = task;
        let (view, data, scenario) = (self.view, self.data(), self.view.world.scenario);
        view.world.begin(view.process, (step, u64::from(shard)));
        view.world.again.set(view.world.again.get() + u64::from(again));
        let before = self.read(data.statistic(side(step), shard));
        let expected = view.world.truth.statistics[step as usize][shard as usize];
        assert_eq!(before, expected, "statistics of shard {shard} before step {step} are wrong");
        progress(0);
        for bucket in 0..scenario.shape.buckets {
            let values =
                scenario.range(bucket, 0).start..scenario.range(bucket, scenario.shape.slices - 1).end;
            for value in values.clone() {
                // Gradients are added up in place: half-way they are wrong.
                self.write(data.gradient(shard, value), 13);
            }
            if scenario.fates.is_some() {
                // Where it may learn that hosts stop.
                progress(bucket as usize);
            }
            for value in values {
                let found = self.state(step, value);
                self.write(data.gradient(shard, value), gradient(step, shard, value, found));
            }
            progress(bucket as usize + 1);
        }
        self.write(data.statistic(side(step + 1), shard), statistic(step, shard, before));
        self.board.note_result(view, step, shard, (0.0, hash(&[step, u64::from(shard)])));
        view.world.end(view.process);
        Ok(())
    }
}

struct Sums<'a>(Hands<'a>);

impl Sums<'_> {
    /// The sum of a value over a node of this host.
    fn add(&self, step: u64, node: Node, value: usize) -> u64 {
        let (world, data) = (self.0.view.world, self.0.data());
        let state = world.truth.states[step as usize][value];
        let leaves = node.shards().map(|shard| {
            let found = self.0.read(data.gradient(shard, value));
            let expected = gradient(step, shard, value, state);
            assert_eq!(found, expected, "a gradient of shard {shard} in step {step} is wrong");
            (Node { first: shard, level: 0 }, found)
        });
        top_out(&leaves.collect::<Vec<_>>())
    }

    /// The sum of a value over all shards.
    fn sum(&self, step: u64, parts: &Parts, value: usize) -> u64 {
        let (world, data) = (self.0.view.world, self.0.data());
        let nodes = parts.all_nodes().map(|(node, is_own)| {
            if is_own {
                return (node, self.add(step, node, value));
            }
            let found = self.0.read(data.gradient(node.first, value));
            let expected = world.truth.node(step, node, value);
            assert_eq!(found, expected, "{node:?} of step {step} is not as another host has sent it");
            (node, found)
        });
        top_out(&nodes.collect::<Vec<_>>())
    }

    /// Runs a slice's task, within whatever its member is doing.
    fn task(&self, number: u64, SliceTask { step, bucket, slice }: SliceTask, mut each: impl FnMut(usize)) {
        let view = self.0.view;
        let outer = view.world.processes.borrow_mut()[view.process].running.take();
        view.world.begin(view.process, (step, number + u64::from(bucket * 100 + slice)));
        view.world.scenario.range(bucket, slice).for_each(&mut each);
        view.world.processes.borrow_mut()[view.process].running = outer;
    }
}

impl Slices for Sums<'_> {
    fn add_part(&mut self, task: SliceTask, parts: &Parts) {
        self.task(2_000, task, |value| {
            for node in parts.nodes(parts.own()).filter(|node| node.level > 0) {
                let sum = self.add(task.step, node, value);
                let at = self.0.data().node(parts, node, value);
                self.0.write(at, 19);
                self.0.write(at, sum);
            }
        });
    }

    fn run(&mut self, task: SliceTask, parts: &Parts) {
        let (data, world, step) = (self.0.data(), self.0.view.world, task.step);
        let next = side(step + 1);
        self.task(1_000, task, |value| {
            let state = self.0.state(step, value);
            let sum = if parts.is_owner(task.slice) {
                let sum = self.sum(step, parts, value);
                if parts.hosts() > 1 {
                    self.0.write(data.mean(value), 23);
                    self.0.write(data.mean(value), sum);
                }
                sum
            } else {
                let found = self.0.read(data.mean(value));
                let expected = world.truth.sums[step as usize][value];
                assert_eq!(found, expected, "the mean of step {step} is not as its owner has sent it");
                found
            };
            let after = hash(&[state, sum]);
            self.0.write(data.state(next, 0, value), 17);
            for kind in 0..world.scenario.kept() {
                let found = self.0.read(data.state(side(step), 1 + kind, value));
                assert_eq!(found, kept(state), "what is kept before step {step} is wrong");
                self.0.write(data.state(next, 1 + kind, value), kept(after));
            }
            self.0.write(data.state(next, 0, value), after);
        });
    }
}

struct Examiner<'a> {
    hands: Hands<'a>,
    steps: u64,
}

impl Tests for Examiner<'_> {
    type Error = ();

    fn run(&mut self, part: u32, progress: &mut dyn FnMut()) -> Result<(), ()> {
        let view = self.hands.view;
        view.world.begin(view.process, (self.steps, 10_000 + u64::from(part)));
        self.hands.state(self.steps, 0);
        progress();
        let state = self.hands.state(self.steps, 0);
        self.hands.board.note_test(view, part, (0.0, tested(self.steps, part, state)));
        view.world.end(view.process);
        Ok(())
    }
}

/// The life of a member.
pub fn live(view: &View, board: Board, seat: u32, number: u32) {
    let leaves = || view.world.processes.borrow()[view.process].leaves;
    let hands = || Hands { view, board };
    let scenario = view.world.scenario;
    let mut member = Member::enter(view, board, seat, number, scenario.dealing, Nanos(0));
    let (ended, mut step) = member.join(0);
    if ended == Ended::Left {
        return;
    }
    // Who comes in while the others stand at a test takes part in it.
    if step > 0 && step.is_multiple_of(scenario.tested) {
        let mut examiner = Examiner { hands: hands(), steps: step };
        if member.pause(step, Some(&mut examiner), &leaves, &|| {}) != Ok(Ended::Done) {
            return;
        }
    }
    while step < member.end() {
        if member.step(step, &mut hands(), &mut Sums(hands()), &leaves) != Ok(Ended::Done) {
            return;
        }
        let mut results = Vec::new();
        if board.results(view, step, |_, result| results.push(result)) {
            let expected = (0..scenario.shape.shards).map(|shard| hash(&[step, u64::from(shard)]));
            assert!(expected.eq(results), "a result of step {step} is wrong");
        }
        step += 1;
        if step.is_multiple_of(scenario.tested) {
            let mut examiner = Examiner { hands: hands(), steps: step };
            if member.pause(step, Some(&mut examiner), &leaves, &|| {}) != Ok(Ended::Done) {
                return;
            }
        }
    }
}
