//! Against a fake of the library: groups of threads whose "devices" are plain memory, and every call done at once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread::ThreadId;
use std::time::Instant;

use super::*;
use crate::slice;

/// One group: what each rank put into the call that is under way.
struct Group {
    world: usize,
    barrier: Barrier,
    calls: Mutex<Vec<Option<Call>>>,
}

/// A library whose handles are a rank's number. Grouped calls are remembered and done at the end, as NCCL does.
struct Fake {
    group: Group,
    /// Calls of threads that are inside of a group.
    grouped: Mutex<HashMap<ThreadId, Grouped>>,
    aborted: AtomicUsize,
    destroyed: AtomicUsize,
    /// Whether a rank has failed.
    broken: bool,
    /// Held while the others do not come.
    absent: Mutex<()>,
    /// Held while there are recordings with operations of the group.
    recorded: Mutex<()>,
    log: Mutex<Vec<&'static str>>,
}

type Grouped = Vec<(Handle, What, Call)>;

#[derive(Clone, Copy)]
enum What {
    AllReduce,
    ReduceScatter,
    AllGather,
    Reduce(usize),
    Broadcast(usize),
}

impl Fake {
    fn new(world: usize) -> Self {
        Self {
            group: Group { world, barrier: Barrier::new(world), calls: Mutex::new(vec![None; world]) },
            grouped: Mutex::default(),
            aborted: AtomicUsize::new(0),
            destroyed: AtomicUsize::new(0),
            broken: false,
            absent: Mutex::default(),
            recorded: Mutex::default(),
            log: Mutex::default(),
        }
    }

    /// Waits until the group has been left, once.
    fn is_left(&self) {
        let by = Instant::now() + 10 * SECOND;
        while self.aborted.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < by, "the group is still there");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.aborted.load(Ordering::SeqCst), 1, "once");
    }

    fn put(&self, comm: Handle, what: What, name: &'static str, call: Call) -> Result<(), CommError> {
        assert_eq!(call.stream, 7, "the stream goes through");
        self.log.lock().unwrap().push(name);
        if let Some(calls) = self.grouped.lock().unwrap().get_mut(&thread::current().id()) {
            calls.push((comm, what, call));
            return Ok(());
        }
        self.perform(comm, what, call);
        Ok(())
    }

    fn perform(&self, handle: Handle, what: What, call: Call) {
        let rank = handle.number();
        self.group.calls.lock().unwrap()[rank] = Some(call);
        self.group.barrier.wait();
        let calls: Vec<Call> = self.group.calls.lock().unwrap().iter().map(|call| call.unwrap()).collect();
        assert!(calls.iter().all(|other| other.len == call.len), "all ranks name as many values");
        let read = |call: Call, skip: usize| -> Vec<f32> {
            let at = (call.from as *const f32).wrapping_add(skip);
            // SAFETY: the tests name memory of theirs, and nobody writes before the second barrier.
            unsafe { std::slice::from_raw_parts(at, call.len) }.to_vec()
        };
        let mean = |skip: usize| -> Vec<f32> {
            let mut sum = vec![0.0; call.len];
            for other in &calls {
                sum.iter_mut().zip(read(*other, skip)).for_each(|(sum, value)| *sum += value);
            }
            sum.iter().map(|sum| sum / self.group.world as f32).collect()
        };
        let result = match what {
            What::AllReduce => Some(mean(0)),
            What::ReduceScatter => Some(mean(rank * call.len)),
            What::AllGather => Some(calls.iter().flat_map(|other| read(*other, 0)).collect()),
            What::Reduce(root) => (root == rank).then(|| mean(0)),
            What::Broadcast(root) => Some(read(calls[root], 0)),
        };
        self.group.barrier.wait();
        if let Some(result) = result {
            // SAFETY: as above; each rank writes its own.
            unsafe { std::slice::from_raw_parts_mut(call.into as *mut f32, result.len()) }
                .copy_from_slice(&result);
        }
        self.group.barrier.wait();
    }
}

impl Interface for Fake {
    fn unique_id(&self) -> Result<UniqueId, CommError> {
        Ok([9; 128])
    }

    fn context(&self) -> Result<usize, CommError> {
        Ok(42)
    }

    fn enter(&self, context: usize) -> Result<(), CommError> {
        assert_eq!(context, 42, "the caller's device");
        Ok(())
    }

    fn init_rank(&self, world: u32, id: UniqueId, rank: Rank) -> Result<Handle, CommError> {
        assert_eq!((world as usize, id), (self.group.world, [9; 128]));
        drop(self.absent.lock().unwrap());
        // SAFETY: it is only a number here.
        Ok(unsafe { Handle::new(rank.0 as usize) })
    }

    fn all_reduce(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        self.put(comm, What::AllReduce, "all_reduce", call)
    }

    fn reduce_scatter(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        self.put(comm, What::ReduceScatter, "reduce_scatter", call)
    }

    fn all_gather(&self, comm: Handle, call: Call) -> Result<(), CommError> {
        self.put(comm, What::AllGather, "all_gather", call)
    }

    fn reduce(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        self.put(comm, What::Reduce(root.0 as usize), "reduce", call)
    }

    fn broadcast(&self, comm: Handle, root: Rank, call: Call) -> Result<(), CommError> {
        self.put(comm, What::Broadcast(root.0 as usize), "broadcast", call)
    }

    fn group_start(&self) -> Result<(), CommError> {
        let before = self.grouped.lock().unwrap().insert(thread::current().id(), Vec::new());
        assert!(before.is_none(), "groups are not nested");
        Ok(())
    }

    fn group_end(&self) -> Result<(), CommError> {
        let calls = self.grouped.lock().unwrap().remove(&thread::current().id());
        for (comm, what, call) in calls.expect("a group was begun") {
            self.perform(comm, what, call);
        }
        Ok(())
    }

    fn async_error(&self, _: Handle) -> Result<(), CommError> {
        match self.broken {
            true => Err(CommError::Nccl { call: "an exchange through NCCL", answer: "remote error".into() }),
            false => Ok(()),
        }
    }

    fn abort(&self, _: Handle) {
        drop(self.recorded.lock().unwrap());
        self.aborted.fetch_add(1, Ordering::SeqCst);
    }

    fn destroy(&self, _: Handle) {
        self.destroyed.fetch_add(1, Ordering::SeqCst);
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn join(fake: &Arc<Fake>, rank: u32) -> Nccl {
    let group = fake.unique_id().expect("a name");
    let seat = Seat { group, rank: Rank(rank), world: fake.group.world as u32 };
    Nccl::join(fake.clone(), seat, 10 * SECOND).expect("all come")
}

/// Values in plain memory: the fake's device.
fn values(own: &mut [f32]) -> DeviceValues {
    // SAFETY: the fake does each call at once, while the rank that owns them waits.
    unsafe { DeviceValues::new(own.as_mut_ptr() as u64, own.len()) }
}

/// The one stream that the fake knows.
fn stream() -> Stream {
    // SAFETY: the fake looks at the number alone.
    unsafe { Stream::new(7) }
}

/// Runs all ranks of a world over values of their own (rank r begins with r, r + 1, ...) and returns what became of them.
fn run(
    world: usize,
    len: usize,
    work: impl Fn(&mut Nccl, DeviceValues, &mut [f32]) + Sync,
) -> (Arc<Fake>, Vec<Vec<f32>>) {
    let fake = Arc::new(Fake::new(world));
    let values = thread::scope(|scope| {
        let ranks: Vec<_> = (0..world as u32)
            .map(|rank| {
                let (fake, work) = (&fake, &work);
                scope.spawn(move || {
                    let mut own: Vec<f32> = (0..len).map(|i| (rank as usize + i) as f32).collect();
                    let mut beside = vec![0.0; world * len];
                    let mut nccl = join(fake, rank);
                    let at = values(&mut own);
                    work(&mut nccl, at, &mut beside);
                    own.extend(beside);
                    own
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    (fake, values)
}

fn slices_of(len: usize, world: usize) -> Vec<Range<usize>> {
    (0..world as u32).map(|rank| slice(0..len, Rank(rank), world as u32)).collect()
}

#[test]
fn every_rank_ends_with_the_mean() {
    let (fake, values) = run(3, 100, |nccl, at, _| nccl.all_reduce(at, stream()).expect("done"));
    for own in &values {
        assert_eq!((own[0], own[99]), (1.0, 100.0));
    }
    assert_eq!(fake.destroyed.load(Ordering::SeqCst), 3, "every rank leaves");
    assert_eq!(fake.aborted.load(Ordering::SeqCst), 0);
}

#[test]
fn slices_are_reduced_and_gathered_whether_they_are_even_or_not() {
    // 128 values are 8 lines: 4 a rank of 2; 100 values are 7 lines, which 3 ranks cannot share evenly.
    for (world, len, native) in [(2, 128, true), (3, 100, false), (4, 20, false)] {
        let slices = slices_of(len, world);
        let (fake, values) = run(world, len, |nccl, at, _| {
            nccl.reduce_scatter(at, &slices, stream()).expect("done");
            nccl.all_gather(at, &slices, stream()).expect("done");
        });
        let middle = (world - 1) as f32 / 2.0;
        for own in &values {
            for (i, value) in own[..len].iter().enumerate() {
                assert_eq!(*value, middle + i as f32, "world {world}, value {i}");
            }
        }
        let log = fake.log.lock().unwrap();
        assert_eq!(log.contains(&"reduce_scatter"), native, "{log:?}");
        assert_eq!(log.contains(&"broadcast"), !native, "{log:?}");
    }
}

#[test]
fn a_rank_s_slice_is_reduced_before_it_is_gathered() {
    let slices = slices_of(128, 2);
    let (_, values) = run(2, 128, |nccl, at, _| nccl.reduce_scatter(at, &slices, stream()).expect("done"));
    assert_eq!((values[0][0], values[1][64]), (0.5, 64.5), "own slices");
    assert_eq!((values[0][64], values[1][0]), (64.0, 1.0), "the others' are untouched");
}

#[test]
fn values_of_all_come_to_lie_side_by_side() {
    let (_, values) = run(3, 10, |nccl, at, beside| {
        nccl.gather_beside(at, values(beside), stream()).expect("done");
    });
    for own in &values {
        assert_eq!((own[10], own[20], own[39]), (0.0, 1.0, 11.0));
    }
}

#[test]
fn a_server_reduces_to_itself_and_hands_round() {
    let (_, values) = run(4, 8, |nccl, at, _| {
        nccl.reduce(at, Rank(0), stream()).expect("done");
        if nccl.rank == Rank(0) {
            // SAFETY: no call is under way.
            unsafe { *(at.address as *mut f32) += 100.0 };
        }
        nccl.broadcast(at, Rank(0), stream()).expect("done");
    });
    for own in &values {
        assert_eq!((own[0], own[1]), (101.5, 2.5));
    }
}

#[test]
fn a_rank_that_nobody_answers_gives_up_after_its_patience() {
    let fake = Arc::new(Fake::new(1));
    let mut nccl = join(&fake, 0);
    assert!(nccl.watch(SECOND / 2, SECOND).is_ok());
    let error = nccl.watch(2 * SECOND, SECOND).expect_err("too long");
    assert!(matches!(error, CommError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("had not answered after 2 s"), "{error}");
    assert!(matches!(nccl.watch(Duration::ZERO, SECOND), Err(CommError::Recalled)), "it is over");
    drop(nccl);
    fake.is_left();
    assert_eq!(fake.destroyed.load(Ordering::SeqCst), 0, "what was aborted is not destroyed");
}

#[test]
fn a_rank_gives_up_at_once_where_another_has_failed() {
    let fake = Arc::new(Fake { broken: true, ..Fake::new(1) });
    let mut nccl = join(&fake, 0);
    let error = nccl.watch(Duration::ZERO, SECOND).expect_err("remote error");
    assert!(error.to_string().contains("remote error"), "{error}");
    fake.is_left();
}

#[test]
fn a_group_whose_ranks_come_too_late_is_not_waited_for_and_then_left() {
    let fake = Arc::new(Fake::new(2));
    let absent = fake.absent.lock().unwrap();
    let joined = Nccl::join(
        fake.clone(),
        Seat { group: [9; 128], rank: Rank(0), world: 2 },
        Duration::from_millis(50),
    );
    assert!(matches!(joined, Err(CommError::Silent { .. })));
    assert_eq!(fake.aborted.load(Ordering::SeqCst), 0, "nobody has come yet");
    drop(absent);
    fake.is_left();
    assert_eq!(fake.destroyed.load(Ordering::SeqCst), 0, "what was aborted is not destroyed");
}

#[test]
fn whoever_is_recalled_while_it_joins_does_not_wait_for_the_lost() {
    let fake = Arc::new(Fake::new(2));
    let absent = fake.absent.lock().unwrap();
    let mut looks = 0;
    let mut recalled = || {
        looks += 1;
        looks == 3
    };
    let seat = Seat { group: [9; 128], rank: Rank(0), world: 2 };
    let joined = Nccl::join_unless(fake.clone(), seat, 300 * SECOND, &mut recalled);
    assert!(matches!(joined, Err(CommError::Recalled)));
    drop(absent);
    fake.is_left();
    assert_eq!(fake.destroyed.load(Ordering::SeqCst), 0, "what was aborted is not destroyed");
}

#[test]
fn giving_up_does_not_wait_for_recordings_that_their_owner_has_still_to_drop() {
    let fake = Arc::new(Fake::new(1));
    let mut nccl = join(&fake, 0);
    let recorded = fake.recorded.lock().unwrap();
    // It would not return from here if it waited.
    nccl.give_up();
    nccl.give_up();
    assert_eq!(fake.aborted.load(Ordering::SeqCst), 0, "they are still there");
    drop(recorded);
    fake.is_left();
}

#[test]
fn a_machine_without_the_library_is_told_so() {
    let error = interface::open(&["libpaceline-has-no-such.so.2"]).expect_err("nobody has it");
    assert_eq!(
        error.to_string(),
        "NCCL (libnccl) was not found; 2.27 or later is needed; install it, or name its folder in LD_LIBRARY_PATH"
    );
    let error = CommError::NoNccl { found: Some("2.19.3".into()) };
    assert!(error.to_string().contains("2.19.3 was found; 2.27"), "{error}");
}

#[test]
fn the_first_name_that_can_be_loaded_is_taken() {
    let libc = interface::open(&["libpaceline-has-no-such.so.2", "libc.so.6"]).expect("every process has it");
    let error = Library::take(libc).map(drop).expect_err("it is no NCCL");
    assert!(error.to_string().contains("of unknown version was found; 2.27"), "{error}");
}

#[test]
fn a_file_that_cannot_be_loaded_is_told_from_none() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let error = interface::open(&["libpaceline-has-no-such.so.2", text]).expect_err("it is text");
    let error = error.to_string();
    assert!(error.contains("cannot be loaded") && error.contains(text), "{error}");
}
