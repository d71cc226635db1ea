//! How fast workers exchange: all-reduces of several sizes between processes, and copies of memory as the limit; or all-reduces
//! between hosts.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use paceline_comm::measure::{self, AllReduceRow, CopyRow, Trial};
use paceline_comm::{Segment, SegmentSize};
use paceline_record::{Bytes, Rank};
use serde::{Deserialize, Serialize};

pub use crate::hosts::HostRow;
use crate::hosts::{LocalPlace, Meeting, Role, end_or_kill};
use crate::{TrainError, affinity, process};

/// The environment variable that makes a process a rank of a measurement, or one of several hosts of this machine.
const VARIABLE: &str = "PACELINE_MEASUREMENT";

/// How often the ranks are checked.
const TICK: Duration = Duration::from_millis(5);

#[derive(Serialize, Deserialize)]
enum Assignment {
    Rank(AssignedRank),
    Host(AssignedHost),
}

#[derive(Serialize, Deserialize)]
struct AssignedRank {
    rank: Rank,
    world: u32,
    launcher: i32,
    segment: i32,
    sizes: Vec<Bytes>,
    pin: bool,
}

/// What a host on the same machine as the first is told.
#[derive(Clone, Serialize, Deserialize)]
struct AssignedHost {
    /// Its place on this machine.
    number: u32,
    place: LocalPlace,
    hosts: u32,
}

/// A rank's result.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    reduced: Vec<AllReduceRow>,
    copied: Vec<CopyRow>,
}

/// One size: rank 0's time, and the number of wrong values on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The all-reduce.
    pub reduced: AllReduceRow,
    /// A copy of the same amount of memory, on all ranks at once.
    pub copied: CopyRow,
}

/// Whether this process was started as a part of a measurement.
pub fn is_assigned() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Does this process's part: a rank prints its result.
pub fn run() -> Result<(), TrainError> {
    let text = std::env::var(VARIABLE).map_err(|error| TrainError::NoAssignment(error.to_string()))?;
    let assignment: Assignment =
        serde_json::from_str(&text).map_err(|error| TrainError::NoAssignment(error.to_string()))?;
    let assignment = match assignment {
        Assignment::Rank(assignment) => assignment,
        Assignment::Host(AssignedHost { place, number, hosts }) => {
            let meeting = place.take()?;
            affinity::pin_host(number, hosts)?;
            return between_hosts(&meeting, hosts, &[]).map(drop);
        }
    };
    process::die_with(assignment.launcher)?;
    if assignment.pin {
        affinity::pin(assignment.rank, assignment.world, 1)?;
    }
    let mut collective = Segment::attach(assignment.segment)?.join(assignment.rank)?;
    let found = Found {
        reduced: measure::all_reduce(&mut collective, &assignment.sizes, Trial::default())?,
        copied: measure::memcpy(&mut collective, &assignment.sizes, Trial::default())?,
    };
    println!("{}", serde_json::to_string(&found).expect("invariant: rows are plain data"));
    Ok(())
}

/// Measures all sizes between `world` processes of `program`.
pub fn all_reduce(program: &Path, world: u32, sizes: &[Bytes], pin: bool) -> Result<Vec<Row>, TrainError> {
    let largest = sizes.iter().map(|size| size.0).max().unwrap_or(0);
    let own = (largest as usize).div_ceil(size_of::<f32>());
    let segment = Segment::create(SegmentSize { world, areas: world, own, common: 0 })?;
    let mut ranks = Vec::new();
    for rank in (0..world).map(Rank) {
        let assignment = Assignment::Rank(AssignedRank {
            rank,
            world,
            launcher: std::process::id() as i32,
            segment: segment.descriptor().expect("invariant: created here"),
            sizes: sizes.to_vec(),
            pin,
        });
        let mut child = Command::new(program)
            .env(VARIABLE, serde_json::to_string(&assignment).expect("invariant: plain data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(TrainError::system(format!("start {}", program.display())))?;
        // Read while it is written: a rank with a lot of output must not block on a full pipe.
        let mut out = child.stdout.take().expect("invariant: piped");
        let told = thread::spawn(move || std::io::read_to_string(&mut out));
        ranks.push(Running { child, told: Some(told) });
    }
    wait_for_all(&mut ranks, &segment)?;
    let found = ranks.iter_mut().map(Running::found).collect::<Result<Vec<_>, _>>()?;
    let row = |size: usize| {
        let mut reduced = found[0].reduced[size];
        reduced.wrong = found.iter().map(|rank| rank.reduced[size].wrong).sum();
        Row { reduced, copied: found[0].copied[size] }
    };
    Ok((0..sizes.len()).map(row).collect())
}

/// Measures all sizes between so many hosts; all of them call it. On the first host: its times, and the wrong values of all hosts.
/// On the others, which take the first one's sizes, `None`.
pub fn between_hosts(
    meeting: &Meeting,
    hosts: u32,
    sizes: &[Bytes],
) -> Result<Option<Vec<HostRow>>, TrainError> {
    let mut started = Vec::new();
    if let Role::First { doors, local: Some(local) } = &meeting.role {
        for number in 1..=local.count {
            let place = LocalPlace::new(meeting, doors[0].address(), number);
            started.push(StartedHost::new(&local.program, AssignedHost { place, number, hosts })?);
        }
        affinity::pin_host(0, hosts)?;
    }
    // The others of this machine end before this returns.
    crate::hosts::measure::all_reduce(meeting, hosts, sizes)
}

/// Another host of this machine. Dropping it waits for its end, or kills it.
struct StartedHost {
    child: Child,
    name: String,
}

impl StartedHost {
    fn new(program: &Path, assigned: AssignedHost) -> Result<Self, TrainError> {
        let name = assigned.place.name.clone();
        let assignment = Assignment::Host(assigned);
        let child = Command::new(program)
            .env(VARIABLE, serde_json::to_string(&assignment).expect("invariant: plain data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(TrainError::system(format!("start {}", program.display())))?;
        Ok(Self { child, name })
    }
}

impl Drop for StartedHost {
    fn drop(&mut self) {
        end_or_kill(&mut self.child);
        let said = self.child.stderr.take().map(std::io::read_to_string);
        for line in said.and_then(Result::ok).unwrap_or_default().lines() {
            eprintln!("{}: {line}", self.name);
        }
    }
}

fn wait_for_all(ranks: &mut [Running], segment: &Segment) -> Result<(), TrainError> {
    let mut left: Vec<usize> = (0..ranks.len()).collect();
    while !left.is_empty() {
        for index in left.clone() {
            let ended = ranks[index].child.try_wait().map_err(TrainError::system("wait for a rank"))?;
            let Some(status) = ended else { continue };
            if !status.success() {
                segment.mark_dead(Rank(index as u32), &status.to_string());
                let why = std::io::Error::other(format!("rank {index} ended with {status}"));
                return Err(TrainError::system("measure")(why));
            }
            left.retain(|&other| other != index);
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// A rank's process and the thread that reads its output. Dropping it kills and reaps the process.
struct Running {
    child: Child,
    told: Option<JoinHandle<std::io::Result<String>>>,
}

impl Running {
    fn found(&mut self) -> Result<Found, TrainError> {
        let told = self.told.take().expect("invariant: asked once");
        let text = told
            .join()
            .expect("invariant: reading does not panic")
            .map_err(TrainError::system("read from a rank"))?;
        serde_json::from_str(&text).map_err(|error| TrainError::system("read from a rank")(error.into()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This fails only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
