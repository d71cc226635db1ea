//! Ranks as the real thing: processes that inherit the segment from the one that started them.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paceline_comm::measure::{self, Trial};
use paceline_comm::{Collective, Operation, Reduction, Segment, Shm};
use paceline_record::{Bytes, Rank};

use crate::endurance;
use crate::model::Model;
use crate::world::{bits, create, every_operation, perform, soon};

const OWN: usize = 1000;

/// What tells a process that it is a rank: `story rank descriptor`.
const ASSIGNMENT: &str = "PACELINE_COMM_TEST_RANK";

/// What ranks do, by name.
type Story = (&'static str, fn(&mut Shm));

/// All that they do in these tests.
const STORIES: [Story; 4] = [
    ("everything", do_everything),
    ("endurance", endurance::endure),
    ("death", die_inside_an_operation),
    ("measure", measure_all_reduce),
];

/// Starts a process for each rank of the segment.
fn start(segment: &Segment, story: &str) -> Vec<Child> {
    let descriptor = segment.descriptor().expect("created by this process");
    let program = env::current_exe().expect("tests are programs");
    (0..segment.size().world)
        .map(|rank| {
            Command::new(&program)
                .args(["--exact", "--nocapture", "--quiet", "processes::be_a_rank"])
                .env(ASSIGNMENT, format!("{story} {rank} {descriptor}"))
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program can be started")
        })
        .collect()
}

/// What a rank printed, once it has ended well.
fn await_words(mut rank: Child) -> String {
    let mut words = String::new();
    rank.stdout.take().expect("piped").read_to_string(&mut words).expect("text");
    assert!(rank.wait().expect("a child").success(), "{words}");
    words
}

/// What the processes of the other tests do; by itself it has no assignment and nothing to do.
#[test]
fn be_a_rank() {
    let Ok(assignment) = env::var(ASSIGNMENT) else { return };
    let mut words = assignment.split(' ');
    let mut next = || words.next().expect("three words");
    let (name, rank, descriptor) = (next(), next(), next());
    let segment = Segment::attach(descriptor.parse().expect("a number")).expect("inherited");
    let mut rank = segment.join(Rank(rank.parse().expect("a number"))).expect("free");
    let (_, story) = STORIES.iter().find(|(story, _)| *story == name).expect("a story");
    story(&mut rank);
}

fn do_everything(rank: &mut Shm) {
    for operation in [0..OWN, 7..OWN - 2, 3..4].map(|range| every_operation(range, rank.world())).concat() {
        let mut model = Model::new(1, rank.world(), OWN);
        let place = rank.rank().0 as usize;
        rank.values(0..OWN).expect("free").copy_from_slice(&model.0[place]);
        model.apply(&operation);
        perform(rank, operation.clone());
        let got = rank.values(0..OWN).expect("free");
        assert!(bits(got) == bits(&model.0[place]), "rank {place} after {operation}");
    }
}

#[test]
fn processes_of_every_world_do_every_operation_as_a_serial_program_does() {
    for world in 1..=9 {
        let segment = create(world, OWN);
        start(&segment, "everything").into_iter().map(await_words).for_each(drop);
    }
}

#[test]
fn ten_thousand_operations_leave_no_memory_descriptor_or_mapping_behind() {
    let segment = create(2, endurance::OWN);
    start(&segment, "endurance").into_iter().map(await_words).for_each(drop);
}

fn die_inside_an_operation(rank: &mut Shm) {
    let reduce = |range| Operation::AllReduce { range, reduction: Reduction::Sum };
    perform(rank, reduce(0..OWN));
    // A rank that comes after the death is told so at once.
    let ticket = rank.begin(reduce(5..OWN), soon());
    if rank.rank() == Rank(2) {
        println!("\nready");
        std::thread::sleep(Duration::from_secs(60));
    }
    let finished = ticket.and_then(|ticket| rank.finish(ticket));
    let error = finished.expect_err("rank 2 does not do its part");
    println!("\nrank {}: {error}", rank.rank());
}

#[test]
fn a_killed_process_is_named_by_all_others_at_once() {
    let segment = create(4, OWN);
    let mut ranks = start(&segment, "death");
    let mut victim = ranks.remove(2);
    let words = BufReader::new(victim.stdout.take().expect("piped"));
    assert!(words.lines().any(|line| line.expect("text") == "ready"));
    victim.kill().expect("it sleeps");
    let signal = victim.wait().expect("a child").signal().expect("killed");
    let told = Instant::now();
    segment.mark_dead(Rank(2), &format!("signal {signal}"));
    for (rank, words) in [0, 1, 3].into_iter().zip(ranks.into_iter().map(await_words)) {
        let expected = format!(
            "rank {rank}: rank 2 was lost (signal 9) in operation 1, all-reduce (sum) of values 5..1000"
        );
        assert!(words.lines().any(|line| line == expected), "{words}");
    }
    assert!(told.elapsed() < Duration::from_secs(2), "they are woken and end: {:?}", told.elapsed());
}

fn measure_all_reduce(rank: &mut Shm) {
    let own = rank.own().len();
    let sizes = [Bytes(4096), Bytes(4 * own as u64)];
    let trial = Trial { warm_up: 3, repeats: 10, ..Trial::default() };
    let rows = measure::all_reduce(rank, &sizes, trial).expect("all take part");
    let copies = measure::memcpy(rank, &sizes, trial).expect("all take part");
    assert!(rows.iter().all(|row| row.wrong == 0));
    if rank.rank() == Rank(0) {
        for (row, copy) in rows.iter().zip(&copies) {
            println!("\n{row:?}\n{copy:?}");
        }
    }
}

#[test]
fn measuring_finds_no_wrong_value() {
    let segment = create(3, 20_000);
    start(&segment, "measure").into_iter().map(await_words).for_each(drop);
}
