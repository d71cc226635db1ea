//! Ranks in threads, through the stand-in for MPI.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use paceline_record::Host;

use super::fake::{Fake, Watch, job};
use super::*;
use crate::wire::{Inbox, Tag};

/// What takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

fn start(fake: Fake) -> Mpi {
    let world = fake.world();
    Mpi::start_with(move || Ok(Box::new(fake) as Box<dyn Interface>), world, LIMIT).expect("MPI")
}

/// Runs something on each rank of a job, at the same time; what it gave, and how the job ended.
fn on_ranks<T: Send>(world: u32, seed: u64, act: impl Fn(&Mpi) -> T + Sync) -> (Vec<T>, Watch) {
    let (fakes, watch) = job(world, seed);
    let act = &act;
    let results = thread::scope(|scope| {
        let ranks = fakes.into_iter().map(|fake| {
            scope.spawn(move || {
                let mpi = start(fake);
                let result = act(&mpi);
                mpi.set_over();
                result
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    (results, watch)
}

fn check_end(watch: &Watch, world: u32) {
    assert_eq!(watch.ended(), (world as usize, vec![]));
}

/// Messages that are expected, and those that came.
#[derive(Default)]
struct Post {
    expected: HashMap<(Host, Tag), Vec<u8>>,
    arrived: Vec<(Host, Tag)>,
    sent: usize,
    lost: Vec<Host>,
}

// SAFETY: the memory belongs to the map, which nobody changes while a wire is there.
unsafe impl Inbox for Post {
    fn place(&mut self, peer: Host, tag: Tag, len: usize) -> Option<*mut u8> {
        let place = self.expected.get_mut(&(peer, tag)).filter(|place| place.len() == len);
        place.map(|place| place.as_mut_ptr())
    }

    fn arrived(&mut self, peer: Host, tag: Tag, _: usize) {
        self.arrived.push((peer, tag));
    }

    fn sent(&mut self, _: Host, _: Tag) {
        self.sent += 1;
    }

    fn lost(&mut self, peer: Host, _: &str) {
        self.lost.push(peer);
    }
}

fn content(from: u32, to: u32, number: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(from) << 40 | u64::from(to) << 20 | u64::from(number);
    let draw = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(draw).collect()
}

fn tag(number: u32) -> Tag {
    Tag([1, number, 2, 3, 4, u32::MAX])
}

fn others(mpi: &Mpi) -> Vec<Host> {
    let own = mpi.rank();
    (0..mpi.world()).filter(|&rank| rank != own).map(Host).collect()
}

/// Sends messages of these sizes to all others in one roster, and takes as many from each; waits for all of them to come, or for none.
fn exchange(mpi: &Mpi, run: u64, generation: u64, sizes: &'static [usize], waits: bool) {
    let (own, hosts) = (mpi.rank(), others(mpi));
    let task = move |quay: &mut Quay<'_>| {
        let mut post = Post::default();
        let mut outgoing = Vec::new();
        for &host in &hosts {
            for (number, &len) in (0..).zip(sizes) {
                post.expected.insert((host, tag(number)), vec![0; len]);
                outgoing.push((host, tag(number), content(own, host.0, number, len)));
            }
        }
        let bell = crate::tasks::Bell::private().expect("a bell");
        let mut wire = quay.wire(Roster { run, generation, hosts: hosts.clone() }, Cable::default());
        for (host, tag, bytes) in &outgoing {
            // SAFETY: the bytes are kept until the wire is dropped.
            unsafe { wire.send(*host, *tag, bytes.as_ptr(), bytes.len()) };
        }
        let until = Instant::now() + LIMIT;
        let all = hosts.len() * sizes.len();
        while waits && (post.arrived.len() < all || post.sent < all) {
            assert!(Instant::now() < until, "rank {own} hangs with {} of {all}", post.arrived.len());
            wire.progress(&mut post, bell.as_fd(), Duration::from_millis(10)).expect("progress");
        }
        if !waits {
            wire.progress(&mut post, bell.as_fd(), Duration::ZERO).expect("progress");
        }
        drop(wire);
        assert_eq!(post.lost, []);
        for (host, Tag(tag)) in &post.arrived {
            let bytes = &post.expected[&(*host, Tag(*tag))];
            assert!(*bytes == content(host.0, own, tag[1], bytes.len()), "message {}", tag[1]);
        }
    };
    let running = mpi.run(task);
    running.join();
}

const SIZES: &[usize] = &[0, 1, 4097, 777_777, (1 << 20) + 3, (3 << 20) + 1, 16, 0];

#[test]
fn messages_of_all_sizes_arrive_between_all_ranks_and_each_once() {
    for (world, seed) in [(2, 1), (2, 2), (3, 3), (5, 4)] {
        let (_, watch) = on_ranks(world, seed, |mpi| exchange(mpi, 7, 1, SIZES, true));
        check_end(&watch, world);
    }
}

#[test]
fn nothing_of_an_older_roster_or_run_gets_through_a_newer_wire() {
    for seed in 1..20 {
        let (_, watch) = on_ranks(3, seed, |mpi| {
            // Left before anything of it may have come.
            exchange(mpi, 7, 1, SIZES, false);
            exchange(mpi, 7, 2, &[5, 70_000], true);
            exchange(mpi, 7, 3, SIZES, false);
            exchange(mpi, 9, 1, &[70_000, 3], true);
        });
        check_end(&watch, 3);
    }
}

#[test]
fn ranks_tell_each_other_a_text() {
    for world in [1, 2, 4] {
        let (all, watch) =
            on_ranks(world, 5, |mpi| mpi.gather(&format!("I am {}", mpi.rank()), LIMIT).expect("all answer"));
        let expected: Vec<String> = (0..world).map(|rank| format!("I am {rank}")).collect();
        assert!(all.iter().all(|texts| *texts == expected), "{all:?}");
        check_end(&watch, world);
    }
}

fn next_letter(letters: &mut Letters) -> Result<Vec<u8>, CommError> {
    let until = Instant::now() + LIMIT;
    let mut all: Vec<Vec<u8>> = Vec::new();
    while all.is_empty() {
        assert!(Instant::now() < until, "no letter comes");
        wait(&*letters, Instant::now() + Duration::from_millis(20));
        all = letters.progress()?;
    }
    assert_eq!(all.len(), 1, "letters are sent one by one here");
    Ok(all.remove(0))
}

fn next_visitor(mpi: &Mpi) -> RankVisitor {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(visitor) = mpi.visitor() {
            return visitor;
        }
        assert!(Instant::now() < until, "nobody calls");
        wait(&mpi.visited(), Instant::now() + Duration::from_millis(20));
    }
}

#[test]
fn calls_carry_letters_both_ways_while_a_wire_is_busy_and_end_when_one_side_hangs_up() {
    for seed in 1..6 {
        let (_, watch) = on_ranks(2, seed, |mpi| {
            for round in 0..3_u8 {
                let large = vec![round; 5 << 20];
                let (own, hosts) = (mpi.rank(), others(mpi));
                if own == 0 {
                    let mut visitor = next_visitor(mpi);
                    assert_eq!((visitor.rank, &visitor.greeting[..]), (1, &b"hello"[..]));
                    visitor.letters.send(&large).expect("a letter");
                    assert_eq!(next_letter(&mut visitor.letters).expect("a letter"), large);
                    exchange(mpi, 3, u64::from(round), SIZES, true);
                    visitor.letters.send(b"").expect("a letter");
                    let over = next_letter(&mut visitor.letters).expect_err("it hangs up");
                    assert!(over.to_string().contains("rank 1"), "{over}");
                } else {
                    let mut letters = mpi.call(hosts[0].0, b"hello", &Cable::default()).expect("a call");
                    letters.send(&large).expect("a letter");
                    assert_eq!(next_letter(&mut letters).expect("a letter"), large);
                    exchange(mpi, 3, u64::from(round), SIZES, true);
                    assert_eq!(next_letter(&mut letters).expect("a letter"), b"");
                }
            }
        });
        check_end(&watch, 2);
    }
}

#[test]
fn a_cut_cable_holds_letters_back_until_it_is_whole() {
    on_ranks(2, 1, |mpi| {
        if mpi.rank() == 0 {
            let mut letters = next_visitor(mpi).letters;
            assert_eq!(next_letter(&mut letters).expect("a letter"), b"first");
            letters.send(b"cut").expect("a letter");
            assert_eq!(next_letter(&mut letters).expect("a letter"), b"second");
        } else {
            let cable = Cable::default();
            let mut letters = mpi.call(0, b"", &cable).expect("a call");
            letters.send(b"first").expect("a letter");
            while letters.wants_write() {
                thread::sleep(Duration::from_millis(1));
            }
            cable.cut(LIMIT);
            letters.send(b"second").expect("a letter");
            thread::sleep(Duration::from_millis(50));
            assert!(letters.wants_write() && letters.progress().expect("silence").is_empty());
            cable.cut(Duration::ZERO);
            assert_eq!(next_letter(&mut letters).expect("a letter"), b"cut");
        }
    });
}

#[test]
fn when_mpi_breaks_down_every_connection_and_every_peer_is_lost() {
    let (fakes, watch) = job(2, 3);
    let [zero, one]: [Mpi; 2] =
        fakes.into_iter().map(start).collect::<Vec<_>>().try_into().ok().expect("two");
    let mut letters = one.call(0, b"hello", &Cable::default()).expect("a call");
    let mut visitor = next_visitor(&zero);
    watch.break_down();
    for letters in [&mut letters, &mut visitor.letters] {
        let why = next_letter(letters).expect_err("it is lost").to_string();
        assert!(why.contains("the network is gone"), "{why}");
    }
    let task = |quay: &mut Quay<'_>| {
        let (mut post, bell) = (Post::default(), crate::tasks::Bell::private().expect("a bell"));
        let mut wire = quay.wire(Roster { run: 1, generation: 1, hosts: vec![Host(1)] }, Cable::default());
        wire.progress(&mut post, bell.as_fd(), Duration::from_millis(1)).expect("progress");
        assert_eq!(post.lost, [Host(1)]);
    };
    zero.run(task).join();
    drop((letters, visitor, zero, one));
    assert_eq!(watch.ended(), (0, vec![]), "nobody leaves in good order");
}

#[test]
fn a_library_that_does_not_see_the_others_is_refused() {
    let fake = job(1, 1).0.remove(0);
    let begun = Mpi::start_with(move || Ok(Box::new(fake) as Box<dyn Interface>), 2, LIMIT);
    let why = begun.err().expect("it is refused").to_string();
    assert!(why.contains("2 processes were started, and the MPI library sees 1"), "{why}");
}

#[test]
fn what_was_said_before_the_librarys_all_reduce_is_heard_before_it() {
    let trial = Trial { warm_up: 0, repeats: 1, limit: LIMIT };
    let (_, watch) = on_ranks(2, 4, |mpi| {
        let row = if mpi.rank() == 0 {
            let mut letters = next_visitor(mpi).letters;
            let (go, wait) = mpsc::channel::<()>();
            mpi.run(move |_| {
                let _ = wait.recv();
            });
            let (tell, told) = mpsc::channel();
            letters.send(b"begin").expect("a letter");
            mpi.run(move |quay| drop(tell.send(quay.all_reduce(Bytes(64), trial))));
            drop(go);
            told.recv().expect("an answer")
        } else {
            let mut letters = mpi.call(0, b"", &Cable::default()).expect("a call");
            assert_eq!(next_letter(&mut letters).expect("a letter"), b"begin");
            mpi.all_reduce(Bytes(64), trial)
        };
        assert_eq!(row.expect("a row").wrong, 0);
    });
    check_end(&watch, 2);
}

#[test]
fn a_library_that_does_not_begin_is_not_waited_for_in_vain() {
    let (done, wait) = mpsc::channel::<()>();
    let begin = move || {
        // The others never come.
        let _ = wait.recv();
        Err(CommError::Alone { started: 2, found: 1 })
    };
    let begun = Mpi::start_with(begin, 2, Duration::from_millis(20));
    let why = begun.err().expect("it is given up").to_string();
    assert!(why.contains("not all ranks have come"), "{why}");
    drop(done);
}

#[test]
fn files_that_a_process_was_started_with_are_kept_from_those_that_it_starts() {
    let file = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("a file");
    let is_kept = || rustix::io::fcntl_getfd(&file).expect("it is open").contains(FdFlags::CLOEXEC);
    assert!(!is_kept());
    keep_files();
    assert!(is_kept());
}

#[test]
fn the_librarys_own_all_reduce_is_timed_and_checked() {
    let trial = Trial { warm_up: 1, repeats: 3, limit: LIMIT };
    let (rows, watch) = on_ranks(3, 2, |mpi| mpi.all_reduce(Bytes(4097), trial).expect("a row"));
    for row in rows {
        assert_eq!((row.bytes, row.wrong), (Bytes(4096), 0));
        assert!(row.fastest <= row.time);
    }
    check_end(&watch, 3);
}
