//! What lies between hosts: letters to and from the authority, messages on wires, cuts.

use std::collections::{BTreeMap, VecDeque};

use super::super::authority::{Order, Word};
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
    /// Hosts whose letters the authority takes no more.
    pub turned: Vec<bool>,
    /// Whether anything befell a host, or the way between two.
    pub has_struck: bool,
    cuts: Vec<Cut>,
    orders: Vec<VecDeque<(u64, Order)>>,
    letters: Vec<VecDeque<(u64, Letter)>>,
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
            turned: vec![false; hosts],
            has_struck: false,
            cuts: Vec::new(),
            orders: (0..hosts).map(|_| VecDeque::new()).collect(),
            letters: (0..hosts).map(|_| VecDeque::new()).collect(),
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

    pub fn tell(&mut self, host: usize, order: Order, now: u64, random: &mut Random) {
        push(&mut self.orders[host], order, now, random);
    }

    pub fn say(&mut self, host: usize, letter: Letter, now: u64, random: &mut Random) {
        push(&mut self.letters[host], letter, now, random);
    }

    /// The next order for a host.
    pub fn order(&mut self, host: usize, now: u64) -> Option<Order> {
        if self.is_cut(0, host, now) {
            return None;
        }
        self.orders[host].pop_front_if(|(due, _)| *due <= now).map(|(_, order)| order)
    }

    /// The next letter of a host.
    pub fn letter(&mut self, host: usize, now: u64) -> Option<Letter> {
        if self.is_cut(0, host, now) {
            return None;
        }
        self.letters[host].pop_front_if(|(due, _)| *due <= now).map(|(_, letter)| letter)
    }

    /// Whether orders are on their way to a host.
    pub fn has_orders(&self, host: usize) -> bool {
        !self.orders[host].is_empty()
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
