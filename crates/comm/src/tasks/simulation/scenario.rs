//! What a run does, drawn from its seed, and where data lies.

use paceline_record::Nanos;

use super::super::authority::HostPolicy;
use super::super::parts::outboxes;
use super::super::{Dealing, Node, Parts, Shape};

/// A mistake in the protocol that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A bucket is flagged before its gradients are written.
    FlagBeforeData,
    /// Tasks of the lost are freed before all have acknowledged the roster.
    NoFence,
    /// The next state is written over the last.
    OneBuffer,
    /// Nobody is woken when a roster is published.
    NoCall,
    /// Only those are woken whom a flag tells of.
    NoWake,
    /// As many slices as members, so a slice's number changes its meaning.
    SlicesByRoster,
    /// What was sent before hosts went over to a new roster is still taken.
    OldGeneration,
    /// A host's part of a sum is sent while its gradients are still written.
    NodeTooEarly,
    /// The next mean is written before all hosts have the last.
    MeanDropped,
    /// Notes of shards replace others that the receiver has not read.
    NotesTooEarly,
    /// A host that cannot reach the authority decides for itself.
    TwoAuthorities,
    /// Hosts deal shards anew while members compute them.
    ShardsNotFenced,
    /// A shard of a lost member is computed again while what is there of it is still sent.
    NotDrained,
    /// A first host calls a roster that was not granted.
    NotGranted,
}

impl Mistake {
    /// Whether it takes several hosts to make it.
    fn is_of_hosts(self) -> bool {
        matches!(
            self,
            Self::OldGeneration
                | Self::NodeTooEarly
                | Self::MeanDropped
                | Self::NotesTooEarly
                | Self::TwoAuthorities
                | Self::ShardsNotFenced
                | Self::NotDrained
                | Self::NotGranted
        )
    }
}

/// Words of data in a slice, where there is one host and where there are several.
const WIDTH: usize = 3;
const WIDTH_OF_HOSTS: usize = 2;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn pick(&mut self, values: &[usize]) -> usize {
        values[self.below(values.len())]
    }
}

pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(1, |sum, &part| mix(sum.wrapping_mul(31).wrapping_add(part)))
}

/// What befalls hosts.
#[derive(Clone, Copy, Debug)]
pub struct Fates {
    /// Hosts that are there from the begin, and that come later.
    pub first: usize,
    pub later: usize,
    /// With fewer hosts than this nothing runs.
    pub min: u32,
    pub elastic: bool,
    /// One access in so many is followed by the loss of a host, by a cut, by the coming of a host; 0 for never.
    pub kills: usize,
    pub cuts: usize,
    pub joins: usize,
    /// Losses and cuts there are at most.
    pub strokes: u32,
    /// Whether rosters are written down, so that any host may be lost.
    pub registry: bool,
}

/// What a run does, drawn from its seed.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub shape: Shape,
    pub steps: u64,
    /// Steps between two tests.
    pub tested: u64,
    pub dealing: Dealing,
    /// One access in so many is followed by a kill, a stop, a request to leave; 0 for never.
    pub kills: usize,
    pub stops: usize,
    pub leaves: usize,
    /// Members that may still be started.
    pub spares: u32,
    pub fates: Option<Fates>,
    pub mistake: Option<Mistake>,
}

impl Scenario {
    pub fn draw(random: &mut Random, mistake: Option<Mistake>) -> Self {
        match mistake {
            None if random.one_in(MANY_HOSTS) => match random.below(8) {
                0 => Self::of_lost_hosts(random, mistake),
                1 => Self::of_lost_members(random, mistake),
                2 => Self::of_lost_firsts(random, mistake),
                3 => Self::of_hosts_lost_at_once(random, mistake),
                _ => Self::of_hosts(random, mistake),
            },
            Some(Mistake::ShardsNotFenced) => Self::of_lost_hosts(random, mistake),
            Some(Mistake::NotDrained) => Self::of_lost_members(random, mistake),
            Some(Mistake::NotGranted) => Self::of_cut_firsts(random, mistake),
            Some(some) if some.is_of_hosts() => Self::of_hosts(random, mistake),
            _ => Self::of_one(random, mistake),
        }
    }

    /// Hosts that are lost in the middle of steps, so that shards move between those that are left.
    fn of_lost_hosts(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let mut scenario = Self::of_hosts(random, mistake);
        let first = 3 + random.below(2);
        scenario.shape = Shape { seats: 2, shards: first as u32 + 3, hosts: first as u32, ..scenario.shape };
        let fates = Fates {
            first,
            later: 0,
            min: 1,
            elastic: true,
            kills: 1_500,
            cuts: 0,
            joins: 0,
            strokes: 2,
            registry: false,
        };
        Self { fates: Some(fates), ..scenario }
    }

    /// Hosts that are lost one right after the other while members stand still in their shards, which move away and come back.
    fn of_hosts_lost_at_once(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let mut scenario = Self::of_lost_hosts(random, mistake);
        let first = 4 + random.below(2);
        scenario.shape = Shape { shards: first as u32 + 3, hosts: first as u32, ..scenario.shape };
        let fates = scenario.fates.map(|fates| Fates { first, kills: 500, strokes: 3, ..fates });
        Self { stops: 100, kills: 0, fates, ..scenario }
    }

    /// Hosts that are lost one after the other, the first among them, with nothing else between them: the training goes on.
    fn of_lost_firsts(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let scenario = Self::of_lost_hosts(random, mistake);
        let fates = scenario.fates.map(|fates| Fates { registry: true, kills: 3_000, ..fates });
        Self { fates, ..scenario }
    }

    /// First hosts that are cut off from others and from where rosters are written down.
    fn of_cut_firsts(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let scenario = Self::of_lost_hosts(random, mistake);
        let fates =
            scenario.fates.map(|fates| Fates { registry: true, kills: 0, cuts: 1_500, strokes: 4, ..fates });
        Self { steps: scenario.steps + 4, fates, ..scenario }
    }

    /// Members that are lost between the buckets of a shard that is sent as it is.
    fn of_lost_members(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let mut scenario = Self::of_hosts(random, mistake);
        let first = 2;
        scenario.shape = Shape { seats: 1, shards: 2, buckets: 3, hosts: first as u32, ..scenario.shape };
        let fates = Fates {
            first,
            later: 0,
            min: 1,
            elastic: true,
            kills: 0,
            cuts: 0,
            joins: 0,
            strokes: 0,
            registry: false,
        };
        Self { kills: 400, fates: Some(fates), ..scenario }
    }

    fn of_one(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let seats = 1 + random.below(4) as u32;
        Self {
            shape: Shape {
                seats,
                shards: seats + random.below(3) as u32,
                buckets: 1 + random.below(3) as u32,
                slices: 1 + random.below(3) as u32,
                hosts: 1,
            },
            steps: 2 + random.below(6) as u64,
            tested: 2,
            dealing: if random.one_in(2) { Dealing::Static } else { Dealing::Dynamic },
            kills: random.pick(&[0, 100, 200, 800]),
            stops: random.pick(&[0, 60, 300]),
            leaves: random.pick(&[0, 0, 3000]),
            spares: 4 + random.below(20) as u32,
            fates: None,
            mistake,
        }
    }

    fn of_hosts(random: &mut Random, mistake: Option<Mistake>) -> Self {
        let first = 1 + random.pick(&[0, 1, 1, 2, 2, 3]);
        let later = random.pick(&[0, 1, 1, 2]).max(usize::from(first == 1));
        let hosts = (first + later.min(random.below(3))).max(2);
        Self {
            shape: Shape {
                seats: 1 + random.below(2) as u32,
                shards: (hosts + random.below(5)) as u32,
                buckets: 1 + random.below(2) as u32,
                slices: 1 + random.below(3) as u32,
                hosts: hosts as u32,
            },
            steps: 2 + random.below(5) as u64,
            tested: 1 + random.below(3) as u64,
            dealing: if random.one_in(2) { Dealing::Static } else { Dealing::Dynamic },
            kills: random.pick(&[0, 0, 1_000, 4_000]),
            stops: random.pick(&[0, 0, 500, 2_000]),
            leaves: random.pick(&[0, 0, 6_000]),
            spares: 8 + random.below(20) as u32,
            fates: Some(Fates {
                first,
                later,
                min: 1 + (random.pick(&[0, 0, 0, 1]) as u32).min(first as u32 - 1),
                elastic: !random.one_in(10),
                kills: random.pick(&[0, 2_000, 8_000]),
                cuts: random.pick(&[0, 0, 3_000]),
                joins: random.pick(&[500, 4_000, 10_000]),
                strokes: random.below(4) as u32,
                registry: mistake.is_none() && random.one_in(3),
            }),
            mistake,
        }
    }

    /// Hosts that there ever are.
    pub fn hosts(&self) -> usize {
        self.fates.map_or(1, |fates| fates.first + fates.later)
    }

    pub fn policy(&self, fates: Fates) -> HostPolicy {
        HostPolicy {
            no_guests: false,
            min: fates.min,
            max: self.shape.hosts,
            elastic: fates.elastic,
            patience: Nanos(60_000),
            grace: Nanos(300),
            returns: Nanos(15_000),
            doubt: Nanos(2_000),
            shards: self.shape.shards,
            asks: fates.registry && self.mistake != Some(Mistake::NotGranted),
        }
    }

    fn width(&self) -> usize {
        if self.fates.is_some() { WIDTH_OF_HOSTS } else { WIDTH }
    }

    pub fn values(&self) -> usize {
        self.shape.buckets as usize * self.shape.slices as usize * self.width()
    }

    pub fn range(&self, bucket: u32, slice: u32) -> std::ops::Range<usize> {
        let first = (bucket * self.shape.slices + slice) as usize * self.width();
        first..first + self.width()
    }

    /// Values that the update rule keeps for each trained one.
    pub fn kept(&self) -> usize {
        usize::from(self.fates.is_some())
    }

    pub fn slices(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let shape = self.shape;
        (0..shape.buckets).flat_map(move |bucket| (0..shape.slices).map(move |slice| (bucket, slice)))
    }
}

/// One scenario in so many has several hosts: it takes as long as many of one.
const MANY_HOSTS: usize = 8;

/// Where data lies on a host.
#[derive(Clone, Copy)]
pub struct Data(pub Scenario);

impl Data {
    /// The trained values, number 0, or those that the update rule keeps.
    pub fn state(self, side: usize, number: usize, value: usize) -> usize {
        let side = if self.0.mistake == Some(Mistake::OneBuffer) { 0 } else { side };
        (side * (1 + self.0.kept()) + number) * self.0.values() + value
    }

    pub fn gradient(self, shard: u32, value: usize) -> usize {
        self.state(2, 0, 0) + shard as usize * self.0.values() + value
    }

    pub fn statistic(self, side: usize, shard: u32) -> usize {
        let shards = self.0.shape.shards;
        self.gradient(shards, 0) + side * shards as usize + shard as usize
    }

    pub fn mean(self, value: usize) -> usize {
        self.outbox(0, value)
    }

    fn outbox(self, number: usize, value: usize) -> usize {
        self.statistic(2, 0) + number * self.0.values() + value
    }

    /// Where a node of this host lies for a slice of which it is a part.
    pub fn node(self, parts: &Parts, node: Node, value: usize) -> usize {
        if node.level == 0 {
            return self.gradient(node.first, value);
        }
        let larger = parts.nodes(parts.own()).filter(|other| other.level > 0);
        self.outbox(larger.take_while(|other| other.first < node.first).count(), value)
    }

    pub fn len(self) -> usize {
        self.outbox(1 + outboxes(self.0.shape.shards, 1), 0)
    }
}
