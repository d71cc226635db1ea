//! Torn, damaged and hostile files: one clear error, or what was salvaged with a warning.

use std::io::{self, Read};

use proptest::prelude::*;

use super::*;

fn failure(bytes: &[u8]) -> String {
    read_bytes(bytes).expect_err("is no trace").to_string()
}

/// Warnings of a file that gives this many slices.
fn salvaged(bytes: &[u8], count: usize) -> String {
    let trace = read_bytes(bytes).unwrap();
    assert_eq!(trace.slices.len(), count, "{:?}", trace.warnings);
    trace.warnings.join("; ")
}

#[test]
fn a_file_that_is_no_trace_says_so() {
    assert!(failure(b"").contains("is empty"));
    assert!(failure(b"  \n").contains("is empty"));
    assert!(failure(b"hello").contains("not JSON"));
    assert!(failure(&[0; 100]).contains("not JSON"));
    assert!(failure(b"{}").contains("no traceEvents"));
    assert!(failure(br#"{"traceEvents": 7}"#).contains("no traceEvents"));
    assert!(failure(br#"{"traceEvents": [{"ph":"#).contains("no event precedes it"));
    assert!(failure(&[0x1f, 0x8b, 9, 9]).contains("truncated or damaged"));
    assert_eq!(salvaged(br#"{"traceEvents": []}"#, 0), "the trace has no events with a duration");
}

#[test]
fn a_torn_file_gives_the_whole_events_before_the_tear() {
    let whole = file_of(&[&operator("a", "1", "1"), &operator("b", "2", "1"), &operator("c", "3", "1")]);
    let third = whole.find("\"c\"").unwrap();
    for cut in [third, third + 3, whole.rfind('}').unwrap() - 2] {
        let warning = salvaged(&whole.as_bytes()[..cut], 2);
        assert!(warning.contains("the file ends before") && warning.contains("the 2 events"), "{warning}");
    }
    // Missing brackets alone lose nothing.
    assert!(salvaged(whole.strip_suffix("]}").unwrap().as_bytes(), 3).contains("the file ends before"));
    assert!(salvaged(whole.strip_suffix('}').unwrap().as_bytes(), 3).contains("the file ends before"));
    let warning = salvaged(format!("{whole} trailing").as_bytes(), 3);
    assert!(warning.contains("was not read"), "{warning}");
}

#[test]
fn damage_in_the_middle_keeps_what_comes_before_it() {
    let whole = file_of(&[&operator("a", "1", "1"), &operator("b", "2", "1")]);
    let broken = whole.replace(r#""cat":"cpu_op","name":"b""#, r#""cat" "cpu_op","name":"b""#);
    assert!(salvaged(broken.as_bytes(), 1).contains("not JSON"));
}

#[test]
fn a_packed_file_that_is_torn_or_has_a_wrong_checksum_gives_what_unpacks() {
    let events: Vec<String> =
        (0..20_000).map(|at| operator(&format!("op{at}"), &at.to_string(), "1")).collect();
    let packed = pack(&file_of(&events.iter().map(String::as_str).collect::<Vec<_>>()));
    let trace = read_bytes(&packed[..packed.len() / 2]).unwrap();
    assert!((1000..20_000).contains(&trace.slices.len()), "{}", trace.slices.len());
    assert!(trace.warnings[0].contains("truncated or damaged"), "{:?}", trace.warnings);
    let mut wrong = packed.clone();
    let at = wrong.len() - 6;
    wrong[at] ^= 0x55;
    assert!(salvaged(&wrong, 20_000).contains("end of the file is damaged"));
    assert_eq!(salvaged(&packed, 20_000), "");
}

#[test]
fn nesting_of_any_depth_is_passed_over() {
    let deep = format!("{}{}", "[{\"a\":".repeat(200_000), "}]".repeat(200_000));
    let event = format!(r#"{{"ph":"X","name":"a","ts":1,"dur":1,"args":{{"deep":{deep}}}}}"#);
    assert_eq!(salvaged(file_of(&[&event]).as_bytes(), 1), "");
    assert_eq!(salvaged(format!(r#"{{"x":{deep},"traceEvents":[{event}]}}"#).as_bytes(), 1), "");
}

#[test]
fn a_gigantic_event_is_passed_over_and_a_gigantic_number_is_damage() {
    let text = "x".repeat(window::MOST + 100);
    let event = operator(&text, "1", "1");
    let warning = salvaged(file_of(&[&event, &operator("b", "2", "1")]).as_bytes(), 1);
    assert_eq!(warning, "1 event has more than 16 MiB of text: skipped");
    let member = format!(r#"{{"comment":"{text}","traceEvents":[{}]}}"#, operator("b", "2", "1"));
    assert_eq!(salvaged(member.as_bytes(), 1), "");
    let number = operator("b", &"9".repeat(1 << 20), "1");
    assert!(salvaged(file_of(&[&operator("a", "1", "1"), &number]).as_bytes(), 1).contains("not JSON"));
}

#[test]
fn reading_stops_where_names_and_tracks_are_too_many() {
    struct Many {
        number: u32,
        text: Vec<u8>,
    }
    impl Read for Many {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.text.is_empty() && self.number < 70_000 {
                let number = self.number;
                self.number += 1;
                let comma = if number == 0 { "[" } else { "," };
                let name = "n".repeat(2000);
                self.text = format!(
                    r#"{comma}{{"ph":"X","name":"{number}{name}","pid":{number},"tid":1,"ts":1,"dur":1}}"#
                )
                .into();
                if self.number == 70_000 {
                    self.text.push(b']');
                }
            }
            let some = into.len().min(self.text.len());
            into[..some].copy_from_slice(&self.text[..some]);
            self.text.drain(..some);
            Ok(some)
        }
    }
    let trace = read_from(Box::new(Many { number: 0, text: Vec::new() })).unwrap();
    let held: usize = trace.names.texts().map(|text| 2 * text.len()).sum();
    assert!((1..70_000).contains(&trace.slices.len()) && held < build::MOST_NAME_BYTES, "{held}");
    assert!(trace.warnings[0].contains("reading stopped at byte"), "{:?}", trace.warnings);
}

#[test]
fn long_names_are_cut_where_a_letter_ends() {
    let (name, thread) = ("\u{e9}".repeat(100_000), "7".repeat(100_000));
    let event = format!(r#"{{"ph":"X","name":"x{name}","pid":1,"tid":"{thread}","ts":1,"dur":1}}"#);
    let naming = format!(r#"{{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{{"name":"x{name}"}}}}"#);
    let second = r#"{"ph":"X","name":"a","pid":1,"tid":2,"ts":2,"dur":1}"#;
    let trace = read_clean(&file_of(&[&event, &naming, second]));
    let kept = trace.names.text(trace.slices[0].name);
    assert!(kept.starts_with("x\u{e9}") && kept.ends_with("\u{e9}\u{2026}") && kept.len() < 20_000);
    assert!(trace.tracks.iter().all(|track| track.name.len() < 300), "{:?}", trace.tracks);
    assert!(trace.tracks[0].name.starts_with("thread 777") && trace.tracks[1].name.starts_with("x\u{e9}"));
}

#[test]
fn an_error_of_the_system_is_no_damage() {
    struct Refused;
    impl Read for Refused {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    assert!(matches!(read_from(Box::new(Refused)), Err(ImportError::Io { .. })));
}

/// One change of a file.
#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Delete(usize, usize),
    Repeat(usize, usize),
    Cut(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let sign = prop::sample::select(b"{}[]\",:\\0e-. \nN\xff".to_vec());
    prop_oneof![
        (any::<usize>(), 1u8..).prop_map(|(at, bits)| Change::Flip(at, bits)),
        (any::<usize>(), prop::collection::vec(sign, 1..6)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (any::<usize>(), 1usize..80).prop_map(|(at, length)| Change::Delete(at, length)),
        (any::<usize>(), 1usize..400).prop_map(|(at, length)| Change::Repeat(at, length)),
        any::<usize>().prop_map(Change::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: Change) {
    let length = bytes.len();
    let place = |at: usize| at % length.max(1);
    match change {
        _ if length == 0 => {}
        Change::Flip(at, bits) => bytes[place(at)] ^= bits,
        Change::Insert(at, new) => drop(bytes.splice(place(at)..place(at), new)),
        Change::Delete(at, some) => drop(bytes.drain(place(at)..(place(at) + some).min(length))),
        Change::Repeat(at, some) => {
            let copy = bytes[place(at)..(place(at) + some).min(length)].to_vec();
            drop(bytes.splice(place(at)..place(at), copy));
        }
        Change::Cut(at) => bytes.truncate(place(at)),
    }
}

/// What holds of every trace, whatever it was read from.
fn check(trace: &Trace) {
    assert!(trace.slices.is_sorted_by_key(|slice| slice.begin));
    assert!(
        trace
            .slices
            .iter()
            .all(|slice| slice.begin <= slice.end && (slice.track as usize) < trace.tracks.len())
    );
    assert!(
        trace.collectives.iter().all(|collective| trace.slices[collective.slice].kind == Kind::Collective)
    );
    assert!(trace.steps.iter().all(|step| step.begin <= step.end));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.saturating_mul(8), ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_a_file_makes_its_reader_panic(changes in prop::collection::vec(change(), 1..6)) {
        let mut bytes = GPU.as_bytes().to_vec();
        changes.into_iter().for_each(|change| apply(&mut bytes, change));
        let _ = recognise(&bytes);
        if let Ok(trace) = read_from(Box::new(io::Cursor::new(bytes))) {
            check(&trace);
        }
    }

    #[test]
    fn no_change_of_a_packed_file_makes_its_reader_panic(changes in prop::collection::vec(change(), 1..4)) {
        let mut bytes = pack(GPU);
        changes.into_iter().for_each(|change| apply(&mut bytes, change));
        let _ = recognise(&bytes);
        if let Ok(trace) = read_bytes(&bytes) {
            check(&trace);
        }
    }
}
