//! Letters between two.

use super::*;
use crate::CommError;

fn pair(secrecy: Secrecy) -> (Letters, Letters) {
    let terms = terms(secrecy);
    let (caller, visitor) = connect(&quiet_door(&terms), &terms, b"");
    (Letters::new(caller), Letters::new(visitor.stream))
}

/// So many letters, with the sender helping.
fn receive(from: &mut Letters, to: &mut Letters, count: usize) -> Vec<Vec<u8>> {
    let (deadline, mut letters) = (deadline(), Vec::new());
    while letters.len() < count {
        assert!(!deadline.has_passed(), "{} of {count} letters", letters.len());
        assert_eq!(from.progress().expect("progress"), Vec::<Vec<u8>>::new());
        letters.extend(to.progress().expect("progress"));
        if !from.wants_write() {
            wait_readable(to, Duration::from_millis(10));
        }
    }
    letters
}

fn disconnected(error: CommError) -> String {
    match error {
        CommError::Disconnected { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn letters_of_all_sizes_arrive_in_order() {
    for secrecy in [Secrecy::Plain, Secrecy::Encrypted] {
        let (mut here, mut there) = pair(secrecy);
        let letters: Vec<Vec<u8>> = [0, 1, 70_000, 3, LONGEST_LETTER, 0]
            .iter()
            .enumerate()
            .map(|(i, &len)| vec![i as u8; len])
            .collect();
        for letter in &letters {
            here.send(letter).expect("a letter");
        }
        assert!(receive(&mut here, &mut there, letters.len()) == letters);
        assert!(!here.wants_write());
        there.send(b"thanks").expect("a letter");
        assert_eq!(receive(&mut there, &mut here, 1), [b"thanks"]);
    }
}

#[test]
fn the_last_letters_are_read_before_the_end_is_told() {
    let (mut here, mut there) = pair(Secrecy::Plain);
    here.send(b"the last").expect("a letter");
    drop(here);
    wait_readable(&there, LIMIT);
    let mut letters = Vec::new();
    let end = loop {
        match there.progress() {
            Ok(more) => letters.extend(more),
            Err(error) => break disconnected(error),
        }
    };
    assert_eq!(letters, [b"the last"]);
    assert_eq!(end, "it closed the connection");
    assert_eq!(disconnected(there.send(b"too late").expect_err("nobody")), end);
}

#[test]
fn what_comes_with_the_first_letter_is_read_after_it() {
    let (mut here, mut there) = pair(Secrecy::Plain);
    for letter in [&b"welcome"[..], b"one", b"two"] {
        here.send(letter).expect("a letter");
    }
    drop(here);
    let deadline = deadline();
    let first = loop {
        if let Some(first) = there.first().expect("a letter") {
            break first;
        }
        assert!(!deadline.has_passed(), "nothing comes");
    };
    assert_eq!(first, b"welcome");
    let mut rest = Vec::new();
    let end = loop {
        match there.progress() {
            Ok(more) => rest.extend(more),
            Err(error) => break disconnected(error),
        }
    };
    assert_eq!((rest, &end[..]), (vec![b"one".to_vec(), b"two".to_vec()], "it closed the connection"));
}

#[test]
fn the_last_letters_are_read_even_if_nothing_can_be_sent_any_more() {
    let (mut here, mut there) = pair(Secrecy::Plain);
    here.send(b"a question that is never read").expect("a letter");
    wait_readable(&there, LIMIT);
    there.send(b"go away").expect("a letter");
    drop(there);
    let deadline = deadline();
    while here.send(b"another").is_ok() {
        assert!(!deadline.has_passed(), "the end is not noticed");
    }
    assert!(!here.wants_write());
    assert_eq!(here.progress().expect("a letter"), [b"go away"]);
    here.progress().expect_err("nobody");
}

#[test]
fn whoever_reads_no_letters_is_given_up_before_memory_is_full() {
    let (mut here, _there) = pair(Secrecy::Plain);
    let letter = vec![0; LONGEST_LETTER];
    let why = (0..100).find_map(|_| here.send(&letter).err()).map(disconnected);
    assert!(why.expect("an end").starts_with("it does not read its letters"));
}

#[test]
fn what_is_no_letter_ends_the_connection() {
    let head = |len: u32, sum: u32| [len.to_le_bytes(), sum.to_le_bytes()].concat();
    for (bytes, why) in [
        (head(LONGEST_LETTER as u32 + 1, 0), "it announced a letter of 16777217 bytes"),
        ([head(3, 0), b"abc".to_vec()].concat(), "a letter was damaged on the way"),
    ] {
        let terms = terms(Secrecy::Plain);
        let (mut raw, visitor) = connect(&quiet_door(&terms), &terms, b"");
        let mut letters = Letters::new(visitor.stream);
        raw.write(&[std::io::IoSlice::new(&bytes)]).expect("a write");
        wait_readable(&letters, LIMIT);
        assert_eq!(disconnected(letters.progress().expect_err("no letter")), why);
    }
}
