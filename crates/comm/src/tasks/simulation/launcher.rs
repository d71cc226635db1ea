//! A host's launcher: fills every seat, goes over to new rosters of members and of hosts, and carries what travels between hosts. The
//! first host's is also the authority.

use std::cell::RefCell;
use std::collections::BTreeSet;

use paceline_record::{Host, Nanos};

use super::super::authority::{Authority, Decided, HostPolicy, Known, Order, Place, Roster, Stand, Word};
use super::super::registry::{Petition, Verdict};
use super::super::warden::Done;
use super::super::{Board, Parts, Porter, Standing, Warden, given};
use super::net::Letter;
use super::scenario::{Fates, Mistake, Scenario};
use super::truth::tested;
use super::wire::{SimCargo, SimWire};
use super::world::{Condition, Outcome, View};

/// Where a host is in the change of rosters.
enum Phase {
    /// Members work, or there is no roster of hosts.
    Runs,
    /// A roster was called, and members are to stop.
    Called,
    /// They have, and the authority knows.
    Stands,
    /// All hosts stand like this.
    Goes(Vec<Stand>),
}

struct Launcher<'a> {
    view: &'a View,
    board: Board,
    scenario: Scenario,
    warden: Warden<'a, View>,
    /// Seats that were filled.
    asked: Vec<u32>,
    /// Members that fewer are asked for than, until they have ended.
    dismissed: Vec<u32>,
    passed: u64,
    /// Whether members may work.
    runs: bool,
    /// The generation of members that took effect last.
    fenced: u32,
    authority: Option<Authority>,
    /// How it gets rosters written down.
    petition: Option<Petition>,
    /// The host whose authority this one obeys, and since when it looks for another.
    first_host: usize,
    seeks: Option<u64>,
    /// Whether its authority should not be, and what that hears and says.
    usurps: bool,
    own_words: RefCell<Vec<Word>>,
    own_orders: Vec<Order>,
    /// The newest roster of hosts, and the generation that work goes on by.
    roster: Roster,
    generation: u64,
    phase: Phase,
    porter: Option<(SimWire<'a>, Porter<'a, View, SimCargo<'a>>)>,
    /// Whether there is a state, or none before so many steps are done.
    has_state: bool,
    first: u64,
    /// The step to stop before.
    hold: Option<u64>,
    caught_up: bool,
    finished: bool,
    /// Steps that were noted as done.
    noted: u64,
}

/// Runs a host until its training ends.
pub fn lead(view: &View, board: Board) {
    let scenario = view.world.scenario;
    let authority = scenario.fates.filter(|_| view.host == 0);
    let authority = authority.map(|fates| Authority::new(scenario.policy(fates), named(0), now(view)));
    board.begin_at(view, 0, 0);
    let mut launcher = Launcher {
        view,
        board,
        scenario,
        warden: Warden::new(view, board, scenario.steps),
        asked: Vec::new(),
        dismissed: Vec::new(),
        passed: 0,
        runs: scenario.fates.is_none(),
        fenced: 0,
        authority,
        petition: scenario
            .fates
            .filter(|fates| fates.registry)
            .map(|_| Petition::new(RUN, view.host as u64, None)),
        first_host: 0,
        seeks: None,
        usurps: false,
        own_words: RefCell::default(),
        own_orders: Vec::new(),
        roster: Roster::default(),
        generation: 0,
        phase: Phase::Runs,
        porter: None,
        has_state: false,
        first: 0,
        hold: None,
        caught_up: false,
        finished: false,
        noted: 0,
    };
    let outcome = launcher.run();
    view.memory().outcome.set(Some(outcome));
}

/// What tells this run from others.
const RUN: u64 = 7;

/// How long a host looks for another authority, and how long for one that others still hear.
const SEARCH: u64 = 40_000;
const DOUBT: u64 = 15_000;

fn now(view: &View) -> Nanos {
    Nanos(view.world.now())
}

fn named(host: usize) -> Host {
    Host(host as u32)
}

impl<'a> Launcher<'a> {
    fn run(&mut self) -> Outcome {
        match &mut self.authority {
            Some(authority) => authority.joins(named(0), "", 1, now(self.view)),
            None if self.scenario.fates.is_some() => self.say(Letter::Hello),
            None => {}
        }
        loop {
            self.view.access();
            if let Some(fates) = self.scenario.fates {
                self.decide();
                self.ask();
                while let Some(order) = self.order() {
                    if let Some(outcome) = self.obey(order) {
                        return outcome;
                    }
                }
                if self.is_cut_off() {
                    if fates.registry {
                        if self.seek(fates) {
                            return self.stop();
                        }
                    } else if !self
                        .view
                        .world
                        .scenario
                        .mistake
                        .is_some_and(|it| it == Mistake::TwoAuthorities)
                    {
                        return self.stop();
                    } else {
                        self.usurp(fates);
                    }
                }
            }
            self.tend_members();
            if self.tend_steps() {
                return Outcome::Finished;
            }
            if let Some((wire, porter)) = &mut self.porter {
                porter.post(wire);
                wire.advance(porter);
                for (host, why) in porter.take_lost() {
                    let generation = self.generation;
                    self.say(Letter::Word(Word::Misses { generation, host, why }));
                }
            }
            self.tend_hosts();
        }
    }

    fn say(&self, letter: Letter) {
        let world = self.view.world;
        let letter = match letter {
            Letter::Word(word) if self.usurps => {
                return self.own_words.borrow_mut().push(word);
            }
            letter => letter,
        };
        let way = (self.view.host, self.first_host);
        world.net.borrow_mut().say(way, letter, world.now(), &mut world.random.borrow_mut());
    }

    /// The next order. Those that follow one to go on wait until that has been obeyed.
    fn order(&mut self) -> Option<Order> {
        if let Phase::Goes(_) = self.phase {
            return None;
        }
        if self.own_orders.is_empty() {
            let way = (self.first_host, self.view.host);
            return self.view.world.net.borrow_mut().order(way, self.view.world.now());
        }
        Some(self.own_orders.remove(0))
    }

    /// Whether the authority is out of reach for good.
    fn is_cut_off(&self) -> bool {
        let (own, world) = (self.view.host, self.view.world);
        let net = world.net.borrow();
        if self.authority.is_some() {
            return false;
        }
        let first = self.first_host;
        // What is on its way comes before the end of a connection.
        let is_closed =
            (net.turned.contains(&(first, own)) || !net.alive[first]) && !net.has_orders((first, own));
        let is_closed = is_closed && !net.is_cut(first, own, world.now());
        net.has_expired(own, first, world.now()) || (is_closed && world.one_in(8))
    }

    /// Looks for another authority, or becomes it; whether it gives up.
    fn seek(&mut self, fates: Fates) -> bool {
        let (own, world) = (self.view.host, self.view.world);
        let since = *self.seeks.get_or_insert(world.now());
        let sought = world.now() - since;
        // An authority that has sent this one away has its reasons.
        let was_sent_away = world.net.borrow().turned.contains(&(self.first_host, own));
        if sought > SEARCH || was_sent_away || !fates.elastic {
            return true;
        }
        let mut net = world.net.borrow_mut();
        let now_then = world.now();
        let Some(registry) = net.registry_of(own, now_then) else { return false };
        match registry.first(now_then) {
            Some(first) if first == self.first_host => sought > DOUBT,
            Some(first) => {
                (self.first_host, self.seeks) = (first, None);
                drop(net);
                self.say(if self.roster.generation > 0 { Letter::Back } else { Letter::Hello });
                false
            }
            // Whoever has not taken part knows nothing that others need.
            None if self.roster.generation == 0 => false,
            // Others have gone on without it.
            None if registry
                .entry
                .as_ref()
                .is_some_and(|entry| entry.record.excludes(named(own), self.roster.generation)) =>
            {
                true
            }
            None => {
                assert!(registry.claim(own, now_then), "nobody else is first");
                let entry = registry.entry.clone();
                drop(net);
                let known = entry.as_ref().map(|entry| entry.record.roster.clone());
                let roster = known.filter(|known| known.generation > self.roster.generation);
                let roster = roster.unwrap_or_else(|| self.roster.clone());
                let lost = named(self.first_host);
                let awaited = roster.places.iter().map(|place| place.host);
                let awaited: BTreeSet<Host> =
                    awaited.filter(|&host| host != lost && host != named(own)).collect();
                let mut authority = Authority::resume(
                    self.scenario.policy(fates),
                    named(own),
                    Known { roster, awaited },
                    now(self.view),
                );
                authority.joins(named(own), "", 1, now(self.view));
                self.petition = Some(Petition::new(RUN, own as u64, entry.as_ref()));
                (self.authority, self.first_host, self.seeks) = (Some(authority), own, None);
                false
            }
        }
    }

    /// Asks for rosters to be written down, as the first host.
    fn ask(&mut self) {
        let (own, world) = (self.view.host, self.view.world);
        let (Some(authority), Some(petition)) = (&mut self.authority, &mut self.petition) else { return };
        for decided in authority.take_decided() {
            if let Decided::Proposed(roster) = decided {
                petition.propose(roster, world.hosts.len() as u32);
            }
        }
        let mut net = world.net.borrow_mut();
        let Some(registry) = net.registry_of(own, world.now()) else { return };
        // Where it has been silent for too long, somebody else may be first; that shows when it asks.
        registry.claim(own, world.now());
        let Some((known, record)) = petition.ask().filter(|_| world.one_in(3)) else { return };
        let answer = registry.swap(known, record);
        drop(net);
        if world.one_in(6) {
            // The answer is lost.
            return;
        }
        let (in_effect, is_complete) = (authority.roster().generation, authority.is_complete());
        match petition.hear(answer, in_effect, is_complete) {
            Verdict::Granted(generation) => authority.grant(generation, now(self.view)),
            Verdict::Refused(_) => authority.end("another host is first"),
            Verdict::Waits | Verdict::Again => {}
        }
    }

    /// Decides for itself, as nobody may.
    fn usurp(&mut self, fates: Fates) {
        let policy = HostPolicy { min: 1, max: 1, ..self.scenario.policy(fates) };
        let mut authority = Authority::new(policy, named(self.view.host), now(self.view));
        authority.joins(named(self.view.host), "", 1, now(self.view));
        (self.authority, self.usurps) = (Some(authority), true);
    }

    /// The authority's part.
    fn decide(&mut self) {
        let (world, own) = (self.view.world, self.view.host);
        let Some(authority) = &mut self.authority else { return };
        let usurps = self.usurps;
        for host in (0..world.hosts.len()).filter(|_| !usurps) {
            let mut net = world.net.borrow_mut();
            if net.turned.contains(&(own, host)) {
                continue;
            }
            while let Some(letter) = net.letter((host, own), world.now()) {
                match letter {
                    Letter::Hello if authority.has_room(0) => {
                        let weight = 1 + world.below(3) as u32;
                        authority.joins(named(host), "", weight, now(self.view));
                    }
                    // Whoever is in the newest roster and was not lost from it comes back with its state.
                    Letter::Back if authority.roster().place_of(named(host)).is_some() => {
                        let weight = 1 + world.below(3) as u32;
                        authority.joins(named(host), "", weight, now(self.view));
                    }
                    Letter::Hello | Letter::Back => drop(net.turned.insert((own, host))),
                    Letter::Word(word) => authority.hears(named(host), word, now(self.view)),
                }
            }
            let is_known = authority.hosts().any(|other| other == named(host));
            let is_closed = !net.alive[host] && !net.is_cut(own, host, world.now());
            if is_known && (net.has_expired(own, host, world.now()) || (is_closed && world.one_in(8))) {
                authority.loses(named(host), "it is gone", now(self.view));
                net.turned.insert((own, host));
            }
        }
        for word in self.own_words.take() {
            authority.hears(named(own), word, now(self.view));
        }
        authority.tend(now(self.view));
        for (host, order) in authority.take_orders() {
            if usurps {
                self.own_orders.push(order);
                continue;
            }
            if let Order::End(why) = &order {
                let was_in = authority.roster().place_of(host).is_some();
                let has_struck = world.net.borrow().has_struck;
                assert!(has_struck || !was_in, "host {} is told to end: {why}", host.0);
            }
            let random = &mut world.random.borrow_mut();
            world.net.borrow_mut().tell((own, host.0 as usize), order, world.now(), random);
        }
    }

    fn stop(&self) -> Outcome {
        let done = self.board.steps_done(self.view, self.passed);
        let has_state = self.has_state || self.first == 0 || done >= self.first;
        Outcome::Stopped(has_state.then_some(done))
    }

    fn obey(&mut self, order: Order) -> Option<Outcome> {
        let done = self.board.steps_done(self.view, self.passed);
        match order {
            Order::Call(roster) => {
                // Nothing of the old generation is sent or received any more.
                self.porter = None;
                self.has_state |= self.generation > 0 && done >= self.first;
                (self.roster, self.phase, self.runs) = (roster, Phase::Called, false);
                self.publish(self.warden.roster().to_vec());
            }
            Order::Go { generation, stands } => {
                if generation == self.roster.generation {
                    self.phase = Phase::Goes(stands);
                }
            }
            Order::Limit => {
                let step = self.warden.limit(self.passed);
                self.say(Letter::Word(Word::CanHold(step)));
            }
            Order::Hold(step) => {
                self.warden.hold(step);
                self.hold = Some(step);
            }
            Order::Bye => return Some(Outcome::Finished),
            Order::End(_) => return Some(self.stop()),
        }
        None
    }

    fn publish(&mut self, roster: Vec<u32>) {
        let runs = self.runs && !roster.is_empty();
        self.warden.publish(&roster, self.scenario.steps, runs);
    }

    fn tend_members(&mut self) {
        let (view, memory) = (self.view, self.view.memory());
        let ended: Vec<(u32, usize)> = {
            let processes = view.world.processes.borrow();
            let is_over =
                |&mut (_, process): &mut (u32, usize)| processes[process].condition == Condition::Ended;
            memory.started.borrow_mut().extract_if(.., is_over).collect()
        };
        for &(seat, _) in &ended {
            self.warden.bury(seat);
            self.asked.retain(|&other| other != seat);
            self.dismissed.retain(|&other| other != seat);
        }
        if let [seat, _, ..] = *self.warden.roster()
            && view.world.one_in(100)
        {
            self.dismissed.push(seat);
        }
        if !self.is_all_done() {
            for seat in 0..self.scenario.shape.seats {
                if !self.asked.contains(&seat) {
                    self.asked.push(seat);
                    memory.start.borrow_mut().push(seat);
                }
            }
        }
        let mut wanted: Vec<u32> = self.asked.clone();
        wanted.sort_unstable();
        wanted.retain(|&seat| self.warden.ready(seat).is_some() && !self.dismissed.contains(&seat));
        if self.warden.has_lost() || wanted != self.warden.roster() {
            self.publish(wanted);
        }
        if !self.is_drained() {
            return;
        }
        let Some(fenced) = self.warden.tend() else { return };
        self.fenced = fenced.generation;
        if let Phase::Called = self.phase {
            let stand = self.stand();
            let generation = self.roster.generation;
            self.say(Letter::Word(Word::Stands { generation, stand }));
            self.phase = Phase::Stands;
        }
    }

    /// Whether what a lost member left behind can be written again.
    fn is_drained(&mut self) -> bool {
        if self.scenario.mistake == Some(Mistake::NotDrained) || !self.warden.frees() {
            return true;
        }
        // What was flagged before all acknowledged the roster is sent first.
        self.warden.is_acknowledged()
            && self.porter.as_mut().is_none_or(|(wire, porter)| {
                porter.post(wire);
                !porter.is_sending()
            })
    }

    fn is_all_done(&self) -> bool {
        let done = self.board.steps_done(self.view, self.passed);
        done == self.scenario.steps && (!done.is_multiple_of(self.scenario.tested) || self.passed == done)
    }

    /// Ends tests; whether all is done on this host, and nobody else has to know.
    fn tend_steps(&mut self) -> bool {
        let (view, board, scenario) = (self.view, self.board, self.scenario);
        let done = board.steps_done(view, self.passed);
        if done > self.passed && done.is_multiple_of(self.scenario.tested) && board.is_tested(view, done) {
            for part in 0..scenario.shape.shards {
                let state = view.world.truth.states[done as usize][0];
                let found = board.test_of(view, part).1;
                assert_eq!(found, tested(done, part, state), "part {part} of the test after {done} is wrong");
            }
            self.passed = done;
            board.pass(view, done);
        }
        let is_over =
            self.is_all_done() && view.memory().started.borrow().is_empty() && self.asked.is_empty();
        if !is_over || scenario.fates.is_none() {
            return is_over;
        }
        if !std::mem::replace(&mut self.finished, true) {
            self.say(Letter::Word(Word::Finished));
        }
        false
    }

    fn tend_hosts(&mut self) {
        if self.generation == 0 && !matches!(self.phase, Phase::Goes(_)) {
            return;
        }
        let done = self.board.steps_done(self.view, self.passed);
        if let Phase::Runs = self.phase {
            if done >= self.first {
                self.has_state = true;
                self.view.memory().has_state.set(true);
                for step in self.noted.max(self.first)..done {
                    self.view.world.net.borrow_mut().note_step(step, self.generation);
                }
                self.noted = self.noted.max(done);
            }
            let is_guest = self.warden.parts().own_shards().is_empty();
            if is_guest && done > self.first && !std::mem::replace(&mut self.caught_up, true) {
                self.say(Letter::Word(Word::CaughtUp));
            }
            if self.hold == Some(done) {
                self.hold = None;
                self.say(Letter::Word(Word::Holds(done)));
            }
        } else if let Phase::Goes(stands) = &self.phase
            && self.fenced == self.warden.generation()
        {
            let stands = stands.clone();
            self.go(stands);
        }
    }

    /// How far this host stands, where its members do.
    fn stand(&self) -> Stand {
        let (view, board) = (self.view, self.board);
        // Before anybody has gone on by a roster, all have drawn the state themselves.
        if !self.has_state && view.world.net.borrow().has_begun() {
            let missing = self.scenario.slices().collect();
            return Stand { done: None, missing, untested: Vec::new(), passed: false, group: None };
        }
        let done = board.steps_done(view, self.passed);
        let is_due = done > self.passed && done.is_multiple_of(self.scenario.tested);
        let untested = if is_due { board.untested(view, done) } else { Vec::new() };
        Stand { done: Some(done), missing: board.missing(view, done), untested, passed: !is_due, group: None }
    }

    /// Goes on by the roster that was called.
    fn go(&mut self, mut stands: Vec<Stand>) {
        let (view, board, own) = (self.view, self.board, named(self.view.host));
        let place = self.roster.place_of(own).expect("whoever is called is in the roster");
        let first = stands.iter().filter_map(|stand| stand.done).max().unwrap_or(0);
        if first == 0 {
            // All have drawn the state themselves.
            stands.iter_mut().for_each(|stand| stand.done = Some(0));
        }
        let stand = stands[place].clone();
        if stand.done.is_none() {
            // Else it takes part in what is due now.
            let has_passed = stands.iter().any(|stand| stand.done == Some(first) && stand.passed);
            self.passed = first - u64::from(!has_passed);
            board.begin_at(view, first - 1, self.passed);
            self.noted = first - 1;
        } else if stand.done < Some(first) {
            // Others have passed what was due before the step that they have done, and are past it.
            self.passed = self.passed.max(first - 1);
            board.refresh(view, first - 1);
        }
        self.has_state = stand.done.is_some();
        let hosts: Vec<Host> = self.roster.places.iter().map(|&Place { host, .. }| host).collect();
        let standings = hosts
            .iter()
            .zip(stands)
            .map(|(&host, Stand { done, missing, untested, .. })| Standing { host, done, missing, untested });
        let standings: Vec<Standing> = standings.collect();
        let parts = Parts::new(self.roster.ends(), place, self.scenario.shape.slices);
        self.warden.deal(
            parts.clone(),
            Done {
                done: stand.done.unwrap_or(first.saturating_sub(1)),
                all: first,
                missing: stand.done.is_some().then_some(&stand.missing),
                given: &given(board, &standings),
                is_loss: self.roster.is_loss,
            },
        );
        let generation = self.roster.generation;
        let numbers: Vec<usize> = hosts.iter().map(|host| host.0 as usize).collect();
        view.world.net.borrow_mut().note_roster(generation, &numbers);
        let peers = hosts.iter().copied().filter(|&host| host != own).collect();
        let mut wire = SimWire::new(view, generation, peers);
        let mut porter = Porter::new(view, board, SimCargo(view), parts, standings);
        porter.serve(&mut wire);
        self.porter = Some((wire, porter));
        (self.generation, self.first, self.runs, self.phase) = (generation, first, true, Phase::Runs);
        (self.hold, self.caught_up, self.finished) = (None, false, false);
        self.warden.release(first);
        self.publish(self.warden.roster().to_vec());
    }
}
