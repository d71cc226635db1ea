//! What lies between hosts: letters to and from the authority, messages on wires, cuts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::authority::{Order, Word};
use super::super::registry::{Entry, Record};
use super::scenario::Random;
use crate::wire::Tag;

/// A way between two hosts on which nothing gets through.
#[derive(Clone, Copy, Debug)]
struct Cut {
    hosts: [usize; 2],
    /// When each of them gives the other up.
    expires: [u64; 2],
    heals: u64,
}

/// What a host says to the authority.
pub enum Letter {
    /// It has come.
    Hello,
    /// It has lost the authority that it had, and comes back.
    Back,
    Word(Word),
}

/// A message that has left its sender's memory.
pub struct Message {
    pub generation: u64,
    pub from: usize,
    pub tag: Tag,
    pub values: Vec<u64>,
    /// When it can be received.
    pub due: u64,
    /// Where it goes, and how much of it is there.
    pub target: Option<*mut u64>,
    pub written: usize,
}

/// A place where all hosts can read and write, as long as it answers and they are not cut off from it.
#[derive(Default)]
pub struct Registry {
    revision: u64,
    pub entry: Option<Entry>,
    /// Who is first, until then if it is not heard of before.
    first: Option<(usize, u64)>,
    down: u64,
}

/// How long a first host may be silent before its place is free.
const SILENCE: u64 = 5_000;

impl Registry {
    /// The first host, as far as anybody knows.
    pub fn first(&self, now: u64) -> Option<usize> {
        self.first.filter(|&(_, until)| now < until).map(|(host, _)| host)
    }

    /// A host says that it is first; whether it is.
    pub fn claim(&mut self, host: usize, now: u64) -> bool {
        let is_its = self.first(now).is_none_or(|first| first == host);
        if is_its {
            self.first = Some((host, now + SILENCE));
        }
        is_its
    }

    /// Writes a record in the place of that change, if that is what is there; else what is there.
    pub fn swap(&mut self, known: u64, record: &Record) -> Result<u64, Option<Entry>> {
        if self.entry.as_ref().map_or(0, |entry| entry.revision) != known {
            return Err(self.entry.clone());
        }
        self.revision += 1;
        self.entry = Some(Entry { revision: self.revision, record: record.clone() });
        Ok(self.revision)
    }

    /// Answers nobody for so long.
    pub fn go_down(&mut self, until: u64) {
        self.down = until;
    }

    /// Forgets everything.
    pub fn forget(&mut self) {
        (self.entry, self.first) = (None, None);
    }
}

/// How long a cut lasts before a side gives the other up.
const LEASE: u64 = 3_000;

pub struct Net {
    /// Messages, by receiver.
    pub flying: Vec<Vec<Message>>,
    /// Hosts whose launcher lives.
    pub alive: Vec<bool>,
    /// The generation of each host's newest wire.
    pub wires: Vec<u64>,
    /// Wires that were closed towards a peer: generation, by whom, to whom.
    pub closed: Vec<(u64, usize, usize)>,
    /// Hosts whose letters an authority takes no more: the authority, and such a host.
    pub turned: BTreeSet<(usize, usize)>,
    /// Its number, for cuts, is that after the last host.
    pub registry: Registry,
    /// Whether anything befell a host, or the way between two.
    pub has_struck: bool,
    cuts: Vec<Cut>,
    /// By sender and receiver.
    orders: BTreeMap<(usize, usize), VecDeque<(u64, Order)>>,
    letters: BTreeMap<(usize, usize), VecDeque<(u64, Letter)>>,
    /// Who went on by the roster of a generation, and by which steps were done.
    rosters: BTreeMap<u64, Vec<usize>>,
    steps: BTreeMap<u64, Vec<u64>>,
}

/// A delay: mostly short.
pub fn delay(random: &mut Random) -> u64 {
    let bound = random.pick(&[1, 20, 20, 100, 100, 1_500]);
    random.below(bound) as u64
}

impl Net {
    pub fn new(hosts: usize) -> Self {
        Self {
            flying: (0..hosts).map(|_| Vec::new()).collect(),
            alive: vec![false; hosts],
            wires: vec![0; hosts],
            closed: Vec::new(),
            turned: BTreeSet::new(),
            registry: Registry::default(),
            has_struck: false,
            cuts: Vec::new(),
            orders: BTreeMap::new(),
            letters: BTreeMap::new(),
            rosters: BTreeMap::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Cuts the way between two hosts, for a while or for good.
    pub fn cut(&mut self, hosts: [usize; 2], heals: Option<u64>, now: u64, random: &mut Random) {
        self.has_struck = true;
        let expires = hosts.map(|_| now + LEASE + random.below(LEASE as usize) as u64);
        self.cuts.push(Cut { hosts, expires, heals: heals.map_or(u64::MAX, |after| now + after) });
    }

    fn between(&self, a: usize, b: usize, now: u64) -> impl Iterator<Item = &Cut> {
        self.cuts
            .iter()
            .filter(move |cut| cut.hosts.contains(&a) && cut.hosts.contains(&b) && now < cut.heals)
    }

    pub fn is_cut(&self, a: usize, b: usize, now: u64) -> bool {
        a != b && self.between(a, b, now).next().is_some()
    }

    /// Whether a host has given another one up.
    pub fn has_expired(&self, own: usize, other: usize, now: u64) -> bool {
        let side = |cut: &Cut| usize::from(cut.hosts[1] == own);
        own != other && self.between(own, other, now).any(|cut| now >= cut.expires[side(cut)])
    }

    /// An authority tells a host.
    pub fn tell(&mut self, way: (usize, usize), order: Order, now: u64, random: &mut Random) {
        push(self.orders.entry(way).or_default(), order, now, random);
    }

    /// A host says to an authority.
    pub fn say(&mut self, way: (usize, usize), letter: Letter, now: u64, random: &mut Random) {
        push(self.letters.entry(way).or_default(), letter, now, random);
    }

    /// The next order of an authority for a host.
    pub fn order(&mut self, way: (usize, usize), now: u64) -> Option<Order> {
        if self.is_cut(way.0, way.1, now) {
            return None;
        }
        self.orders.get_mut(&way)?.pop_front_if(|(due, _)| *due <= now).map(|(_, order)| order)
    }

    /// The next letter of a host for an authority.
    pub fn letter(&mut self, way: (usize, usize), now: u64) -> Option<Letter> {
        if self.is_cut(way.0, way.1, now) {
            return None;
        }
        self.letters.get_mut(&way)?.pop_front_if(|(due, _)| *due <= now).map(|(_, letter)| letter)
    }

    /// Whether orders of an authority are on their way to a host.
    pub fn has_orders(&self, way: (usize, usize)) -> bool {
        self.orders.get(&way).is_some_and(|orders| !orders.is_empty())
    }

    /// The registry, if a host can reach it now.
    pub fn registry_of(&mut self, host: usize, now: u64) -> Option<&mut Registry> {
        let is_reached = now >= self.registry.down && !self.is_cut(host, self.alive.len(), now);
        is_reached.then_some(&mut self.registry)
    }

    /// Whether hosts have gone on by some roster.
    pub fn has_begun(&self) -> bool {
        !self.rosters.is_empty()
    }

    /// Notes that hosts go on by a roster.
    pub fn note_roster(&mut self, generation: u64, hosts: &[usize]) {
        let known = self.rosters.entry(generation).or_insert_with(|| hosts.to_vec());
        assert_eq!(known, hosts, "there are two rosters of generation {generation}");
    }

    /// Notes that a host has done a step by a roster.
    pub fn note_step(&mut self, step: u64, generation: u64) {
        let by = self.steps.entry(step).or_default();
        if by.contains(&generation) {
            return;
        }
        for other in by.iter() {
            let hosts = &self.rosters[&generation];
            let is_shared = self.rosters[other].iter().any(|host| hosts.contains(host));
            assert!(is_shared, "step {step} was done by two sides that have nobody in common");
        }
        by.push(generation);
    }
}

/// Letters of a connection stay in order.
fn push<T>(queue: &mut VecDeque<(u64, T)>, letter: T, now: u64, random: &mut Random) {
    let last = queue.back().map_or(0, |&(due, _)| due);
    queue.push_back((last.max(now + delay(random)), letter));
}
