//! Work of devices: kernels on streams, and operations of XLA.

use std::collections::HashMap;

use super::super::operations;
use super::{Rank, Row};
use crate::trace::Kind;

/// Operations of XLA that exchange data between devices.
const EXCHANGES: [&str; 9] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
];

/// Which part of a collective an operation is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Start,
    Done,
}

/// The collective that an operation is a part of.
fn exchange(operation: &str) -> Option<(&'static str, Part)> {
    let (base, part) = match (operation.strip_suffix("-start"), operation.strip_suffix("-done")) {
        (Some(base), _) => (base, Part::Start),
        (_, Some(base)) => (base, Part::Done),
        _ => (operation, Part::Whole),
    };
    EXCHANGES.into_iter().find(|name| *name == base).map(|name| (name, part))
}

/// The operation in the text of an instruction: `all-reduce` of `%psum.7 = f32[8]{0} all-reduce(f32[8]{0} %p), ...`.
fn spelt_out(instruction: &str) -> Option<&str> {
    let (_, text) = instruction.split_once(" = ")?;
    let mut depth = 0_i32;
    let shape = text.find(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ' ' && depth == 0
    })?;
    text[shape + 1..].split_once('(').map(|(operation, _)| operation)
}

/// What instructions of the programs do, by their names.
type Operations = HashMap<String, String>;

/// What an instruction does: by its text, by its program, or else by its name without the number.
fn operation<'a>(row: &Row<'a>, operations: &'a Operations) -> &'a str {
    let name = row.label.strip_prefix('%').unwrap_or(row.label);
    let known = || operations.get(name).map(String::as_str);
    let base = || name.split(['.', ' ']).next().unwrap_or(name);
    spelt_out(row.name).or_else(known).unwrap_or_else(base)
}

impl Rank {
    /// Takes the kernels and copies of a stream.
    pub(super) fn take_stream(&mut self, rows: &[Row<'_>], track: u32) {
        for row in rows {
            let (name, device) = (row.name, self.trace.tracks[track as usize].device);
            let is_copy = row.copy.is_some() || name.starts_with("Memcpy");
            let elsewhere = row.copy.is_some_and(|copy| copy.to.is_some() && copy.to != device);
            let kind = match operations::of_copy(name) {
                Kind::CopyDevice if is_copy && (elsewhere || name == "MemcpyP2P") => Kind::Collective,
                kind if is_copy => kind,
                _ if name.starts_with("Memset") => Kind::Fill,
                _ => operations::of_runtime(name).unwrap_or(Kind::Compute),
            };
            let exchange = match kind {
                Kind::Collective => Some("peer_copy"),
                Kind::Compute => operations::of_kernel(name),
                _ => None,
            };
            match exchange {
                Some(operation) => self.push_collective(row, operation, track),
                None => self.push(row, name, kind, track),
            }
        }
    }

    /// Takes operations that go on beside others: of collectives, all of their time.
    pub(super) fn take_transfers(&mut self, rows: &[Row<'_>], track: u32, operations: &Operations) {
        for row in rows {
            if let Some((name, _)) = exchange(operation(row, operations)) {
                self.push_collective(row, name, track);
            }
        }
    }

    /// Takes operations of XLA that run one after the other. If transfers are on a line of their own, `transfers`, their
    /// begin and end count there.
    pub(super) fn take_ops(
        &mut self,
        rows: &[Row<'_>],
        track: u32,
        operations: &Operations,
        transfers: bool,
    ) {
        let mut started: HashMap<&str, &Row<'_>> = HashMap::new();
        let holds = find_holders(rows);
        // Of loops and calls, what is in them counts.
        for (row, _) in rows.iter().zip(holds).filter(|(_, holds)| !holds) {
            let operation = operation(row, operations);
            match exchange(operation) {
                Some((name, Part::Whole)) => self.push_collective(row, name, track),
                Some(_) if transfers => {}
                Some((_, Part::Start)) => drop(started.insert(row.label, row)),
                Some((name, Part::Done)) => {
                    let start = started.remove(start_of(row).as_str());
                    self.unpaired += u64::from(start.is_none());
                    let begin = start.map_or(row.begin, |start| start.begin);
                    self.push_collective(&Row { begin, ..*row }, name, track);
                }
                None => {
                    let kind = match operation {
                        "infeed" => Kind::CopyIn,
                        "outfeed" => Kind::CopyOut,
                        "copy-start" | "copy-done" => Kind::CopyDevice,
                        _ => Kind::Compute,
                    };
                    self.push(row, row.label, kind, track);
                }
            }
        }
        self.unpaired += started.len() as u64;
    }
}

/// What the end of a collective calls its begin: its operand where the whole instruction is there, or else the same number.
fn start_of(done: &Row<'_>) -> String {
    let operand = done.name.split_once("-done(").and_then(|(_, operands)| operands.rsplit_once('%'));
    match operand {
        Some((_, name)) => name.split([')', ',', ' ']).next().unwrap_or(name).to_owned(),
        None => done.label.replacen("-done", "-start", 1),
    }
}

/// Which rows hold others, in order of their begins.
fn find_holders(rows: &[Row<'_>]) -> Vec<bool> {
    let mut holds = vec![false; rows.len()];
    let mut open: Vec<usize> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        while open.pop_if(|&mut last| rows[last].end <= row.begin).is_some() {}
        if let Some(&around) = open.last() {
            let (outer, inner) = (&rows[around], row);
            holds[around] |= inner.end <= outer.end && (inner.begin, inner.end) != (outer.begin, outer.end);
        }
        open.push(at);
    }
    holds
}
