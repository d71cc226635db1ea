//! Collectives: which events are one, what they do, and how much they move.

use paceline_record::Bytes;

use serde_json::Value;

use super::super::operations::{Source, element_size};
use super::event::Args;
use super::number::parse_whole;
use crate::trace::{Collective, Kind, Name, Slice};

/// Bytes that go into a collective, from its arguments or else from the shapes of its inputs.
pub fn count_bytes(args: &Args<'_>) -> Option<Bytes> {
    if !args.elements.is_empty() && !args.element.is_empty() {
        let size = element_size(std::str::from_utf8(args.element).ok()?)?;
        return Some(Bytes(parse_whole(args.elements)?.checked_mul(size)?));
    }
    let shapes: Vec<Value> = serde_json::from_slice(args.shapes).ok()?;
    let types: Vec<Value> = serde_json::from_slice(args.types).ok()?;
    let sizes = types.iter().map(|name| element_size(name.as_str().unwrap_or_default()));
    let sized = shapes.into_iter().zip(sizes).filter_map(|(shape, size)| Some((shape, size?)));
    let mut bytes = None;
    for (shape, size) in sized {
        let shape: Vec<u64> = serde_json::from_value(shape).ok()?;
        let one = shape.iter().try_fold(size, |size: u64, dimension| size.checked_mul(*dimension))?;
        bytes = Some(Bytes(bytes.map_or(0, |Bytes(all)| all).checked_add(one)?));
    }
    bytes
}

/// An event about a collective.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Index of its slice.
    pub slice: u32,
    /// Its source.
    pub source: Source,
    /// The operation.
    pub operation: Name,
    /// Whether it is waiting for a collective, not a collective.
    pub waits: bool,
    /// The group of ranks.
    pub group: Option<Name>,
    /// The number in the group.
    pub sequence: Option<u64>,
}

/// Of all events about a collective, keeps the one that shows the transfer, and marks its slice.
///
/// Kernels and `gloo:` threads move the data. If kernels are launched and not shown, the threads alone would be a part of
/// all: nothing is taken. Only if there are none, and no kernel was `launched` either, the calls on the host are taken, for a backend that does its work in them: `record_param_comms`, or else `c10d::`.
/// A transfer inside a `record_param_comms` takes over what that knows.
pub fn choose(mut candidates: Vec<Candidate>, slices: &mut [Slice], launched: bool) -> Vec<Collective> {
    let has = |source| candidates.iter().any(|candidate| candidate.source == source);
    let chosen: &[Source] = if has(Source::Device) {
        &[Source::Device, Source::Transfer]
    } else if has(Source::Launch) {
        &[]
    } else if has(Source::Transfer) {
        &[Source::Transfer]
    } else if launched {
        &[]
    } else if has(Source::Arguments) {
        &[Source::Arguments]
    } else {
        &[Source::Call]
    };
    candidates.sort_by_key(|candidate| {
        let slice = &slices[candidate.slice as usize];
        let (begin, end) = (slice.begin.0 as i64, slice.end.0 as i64);
        (slice.track, begin, std::cmp::Reverse(end), candidate.source, candidate.slice)
    });
    let mut arguments: Option<Candidate> = None;
    let mut outer: Option<Candidate> = None;
    let mut found = Vec::new();
    for &candidate in &candidates {
        let slice = slices[candidate.slice as usize];
        let holds = |outer: &Candidate| {
            let around = &slices[outer.slice as usize];
            around.track == slice.track && slice.end.0 as i64 <= around.end.0 as i64
        };
        let known = arguments.filter(holds);
        if candidate.source == Source::Arguments {
            arguments = Some(candidate);
        }
        let inner = candidate.source != Source::Device && outer.as_ref().is_some_and(holds);
        if !chosen.contains(&candidate.source) || candidate.waits || inner {
            continue;
        }
        outer = Some(candidate);
        let known_bytes = known.and_then(|known| slices[known.slice as usize].bytes);
        let slice = &mut slices[candidate.slice as usize];
        slice.kind = Kind::Collective;
        slice.bytes = slice.bytes.or(known_bytes);
        found.push(Collective {
            slice: candidate.slice as usize,
            operation: candidate.operation,
            group: candidate.group.or(known.and_then(|known| known.group)),
            sequence: candidate.sequence.or(known.and_then(|known| known.sequence)),
        });
    }
    for candidate in candidates {
        let slice = &mut slices[candidate.slice as usize];
        // Bytes of another event about the same collective do not count twice.
        slice.bytes = slice.bytes.filter(|_| slice.kind == Kind::Collective);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_from_arguments_or_from_shapes() {
        let given = Args { elements: b"1000", element: b"BFloat16", ..Args::default() };
        assert_eq!(count_bytes(&given), Some(Bytes(2000)));
        let shaped = Args {
            shapes: b"[[8, 1024], [], [3]]",
            types: br#"["float", "Scalar", "long int"]"#,
            ..Args::default()
        };
        assert_eq!(count_bytes(&shaped), Some(Bytes(8 * 1024 * 4 + 24)));
        let unknown = Args { elements: b"1000", element: b"Quaternion", ..Args::default() };
        assert_eq!(count_bytes(&unknown), None);
        let huge = Args { elements: b"18446744073709551615", element: b"Float", ..Args::default() };
        assert_eq!(count_bytes(&huge), None);
        let odd = Args { shapes: b"[[8", types: b"[\"float\"]", ..Args::default() };
        assert_eq!(count_bytes(&odd), None);
    }
}
