//! Collectives: which events are one, what they do, and how much they move.

use paceline_record::Bytes;

use super::super::operations::Source;
use super::event::Args;
use super::number::parse_whole;
use super::scan::Cursor;
use crate::trace::{Collective, Kind, Name, Slice};

/// Bytes that go into a collective, from its arguments or else from the shapes of its inputs.
pub fn count_bytes(args: &Args<'_>) -> Option<Bytes> {
    if let (Some(elements), Some(element)) = (args.elements, args.element) {
        return Some(Bytes(parse_whole(elements)?.checked_mul(element_size(element)?)?));
    }
    let mut shapes = Cursor::new(args.shapes?);
    let mut types = Cursor::new(args.types?);
    shapes.expect(b'[').ok()?;
    types.expect(b'[').ok()?;
    let mut bytes: u64 = 0;
    let mut counted = false;
    while shapes.element().ok()? && types.element().ok()? {
        let mut shape = Cursor::new(shapes.value().ok()?.token());
        if let Some(size) = element_size(types.value().ok()?.token()) {
            let mut inner = size;
            shape.expect(b'[').ok()?;
            while shape.element().ok()? {
                inner = inner.checked_mul(parse_whole(shape.value().ok()?.token())?)?;
            }
            bytes = bytes.checked_add(inner)?;
            counted = true;
        }
    }
    counted.then_some(Bytes(bytes))
}

/// Size of a number: by the name of PyTorch (`Float`) or C++ (`float`, `c10::Half`).
fn element_size(name: &[u8]) -> Option<u64> {
    let name = name.strip_prefix(b"c10::").unwrap_or(name);
    let name = name.strip_prefix(b"at::").unwrap_or(name).to_ascii_lowercase();
    Some(match name.as_slice() {
        b"byte" | b"char" | b"bool" | b"signed char" | b"unsigned char" | b"int8" | b"uint8" => 1,
        name if name.starts_with(b"float8") => 1,
        b"half" | b"bfloat16" | b"short" | b"int16" | b"uint16" | b"short int" | b"float16" => 2,
        b"float" | b"int" | b"int32" | b"uint32" | b"float32" | b"complexhalf" => 4,
        b"double" | b"long" | b"long int" | b"int64" | b"uint64" | b"float64" | b"complexfloat" => 8,
        b"complexdouble" => 16,
        _ => return None,
    })
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
/// Kernels and `gloo:` threads move the data. Only if there are none, and no kernel was `launched` either, the calls on
/// the host are taken, for a backend that does its work in them: `record_param_comms`, or else `c10d::`.
/// A transfer inside a `record_param_comms` takes over what that knows.
pub fn choose(mut candidates: Vec<Candidate>, slices: &mut [Slice], launched: bool) -> Vec<Collective> {
    let has = |source| candidates.iter().any(|candidate| candidate.source == source);
    let chosen: &[Source] = if has(Source::Device) || has(Source::Transfer) {
        &[Source::Device, Source::Transfer]
    } else if launched || has(Source::Launch) {
        &[]
    } else if has(Source::Arguments) {
        &[Source::Arguments]
    } else {
        &[Source::Call]
    };
    candidates.sort_by_key(|candidate| {
        let slice = &slices[candidate.slice as usize];
        (slice.track, slice.begin, std::cmp::Reverse(slice.end), candidate.source, candidate.slice)
    });
    let mut arguments: Option<Candidate> = None;
    let mut outer: Option<Candidate> = None;
    let mut found = Vec::new();
    for &candidate in &candidates {
        let slice = slices[candidate.slice as usize];
        let holds = |outer: &Candidate| {
            let around = &slices[outer.slice as usize];
            around.track == slice.track && slice.end <= around.end
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
        let given = Args { elements: Some(b"1000"), element: Some(b"BFloat16"), ..Args::default() };
        assert_eq!(count_bytes(&given), Some(Bytes(2000)));
        let shaped = Args {
            shapes: Some(b"[[8, 1024], [], [3]]"),
            types: Some(br#"["float", "Scalar", "long int"]"#),
            ..Args::default()
        };
        assert_eq!(count_bytes(&shaped), Some(Bytes(8 * 1024 * 4 + 24)));
        let unknown = Args { elements: Some(b"1000"), element: Some(b"Quaternion"), ..Args::default() };
        assert_eq!(count_bytes(&unknown), None);
        let huge =
            Args { elements: Some(b"18446744073709551615"), element: Some(b"Float"), ..Args::default() };
        assert_eq!(count_bytes(&huge), None);
        let odd = Args { shapes: Some(b"[[8"), types: Some(b"[\"float\"]"), ..Args::default() };
        assert_eq!(count_bytes(&odd), None);
    }
}
