//! The protocol, run by a scheduler that decides everything from a seed: who runs next, when a plain write becomes visible,
//! who is killed or stopped half-way, who joins, when the launcher notices; what lies between hosts, and which of them are lost.
//!
//! Each process is a coroutine that runs the code of [`Member`](super::Member), [`Warden`](super::Warden),
//! [`Porter`](super::Porter) and [`Authority`](super::authority::Authority), unchanged, and hands over to the scheduler
//! before accesses to shared memory. Plain writes wait in a buffer of their process and become visible one by one, in any
//! order; a word drains the buffer first, as a release does. Of a killed process's buffer a random part becomes visible.
//! Between hosts, messages take any time and overtake each other; see [`wire`] and [`net`].
//!
//! Tasks check all that they read against the values that a sequential run gives, so a torn, stale or half-written input
//! is found where it is read. Nobody may run a task that somebody else on the host is running, and no two sides may go on without each
//! other. In the end all of the state must be right, on every host that is left.

mod launcher;
mod member;
mod net;
mod scenario;
mod schedule;
mod truth;
mod wire;
mod world;

pub use scenario::Mistake;
use schedule::run;

/// Seeds of a run: `PACELINE_SEEDS` of them, or as many as suit a test.
fn seeds(usual: u64) -> u64 {
    std::env::var("PACELINE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn whatever_befalls_members_and_hosts_the_state_is_that_of_an_undisturbed_run() {
    let count = seeds(4_000);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let half = |first: u64| {
        let mut stacks = Vec::new();
        let outcomes = (first..count).step_by(2).map(|seed| run(seed, None, &mut stacks));
        outcomes.collect::<Result<Vec<u64>, String>>().map(|again| again.into_iter().sum::<u64>())
    };
    let again = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        [half(0), other.join().expect("it does not panic")]
    });
    std::panic::set_hook(quiet);
    let again: u64 = again.into_iter().map(|sum| sum.unwrap_or_else(|error| panic!("{error}"))).sum();
    // The seeds reach what they are for.
    assert!(again > count / 2, "only {again} shards were begun twice in {count} runs");
}

#[test]
fn every_planted_mistake_is_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mistakes = [
        Mistake::FlagBeforeData,
        Mistake::NoFence,
        Mistake::OneBuffer,
        Mistake::NoCall,
        Mistake::NoWake,
        Mistake::SlicesByRoster,
        Mistake::OldGeneration,
        Mistake::NodeTooEarly,
        Mistake::MeanDropped,
        Mistake::NotesTooEarly,
        Mistake::TwoAuthorities,
        Mistake::ShardsNotFenced,
        Mistake::NotDrained,
    ];
    let search = |mistakes: &[Mistake]| -> Vec<Mistake> {
        let mut stacks = Vec::new();
        let mut is_found = |mistake| (0..40_000).any(|seed| run(seed, Some(mistake), &mut stacks).is_err());
        mistakes.iter().copied().filter(|&mistake| !is_found(mistake)).collect()
    };
    let (of_members, of_hosts) = mistakes.split_at(6);
    let missed = std::thread::scope(|scope| {
        let other = scope.spawn(|| search(of_members));
        [search(of_hosts), other.join().expect("it does not panic")].concat()
    });
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "{missed:?} were not found");
}
