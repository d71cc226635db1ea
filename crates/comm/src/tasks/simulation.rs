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
    // Each with a seed that is tried first: some mistakes show in one of ten thousands.
    let mistakes = [
        (Mistake::FlagBeforeData, 0),
        (Mistake::NoFence, 15_306),
        (Mistake::OneBuffer, 0),
        (Mistake::NoCall, 0),
        (Mistake::NoWake, 1_062),
        (Mistake::SlicesByRoster, 0),
        (Mistake::OldGeneration, 0),
        (Mistake::NodeTooEarly, 0),
        (Mistake::MeanDropped, 0),
        (Mistake::NotesTooEarly, 0),
        (Mistake::TwoAuthorities, 0),
        (Mistake::ShardsNotFenced, 58_564),
        (Mistake::NotDrained, 447),
        (Mistake::NotGranted, 0),
    ];
    let search = |mistakes: &[(Mistake, u64)]| -> Vec<Mistake> {
        let mut stacks = Vec::new();
        let mut is_found = |mistake, first| {
            let found = [first]
                .into_iter()
                .chain(0..400_000)
                .find(|&seed| run(seed, Some(mistake), &mut stacks).is_err());
            found.inspect(|seed| println!("{mistake:?} is found by seed {seed}")).is_some()
        };
        let missed = mistakes.iter().filter(|(mistake, first)| !is_found(*mistake, *first));
        missed.map(|(mistake, _)| *mistake).collect()
    };
    let (of_members, of_hosts) = mistakes.split_at(6);
    let missed = std::thread::scope(|scope| {
        let other = scope.spawn(|| search(of_members));
        [search(of_hosts), other.join().expect("it does not panic")].concat()
    });
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "{missed:?} were not found");
}
