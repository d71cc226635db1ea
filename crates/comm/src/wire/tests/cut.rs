//! Hosts that are cut off for a while: silence on both sides, and nothing is lost when it is over.

use super::*;

/// Longer than any test, and no time at all.
const LONG: Duration = Duration::from_secs(10_000);
const OVER: Duration = Duration::ZERO;

/// The terms of two hosts, each with a cable of its own.
fn two() -> (Terms, Terms) {
    (terms(Secrecy::Plain), terms(Secrecy::Plain))
}

#[test]
fn letters_of_a_host_that_is_cut_off_come_when_the_cut_heals() {
    let (near, far) = two();
    let door = quiet_door(&far);
    let (stream, visitor) = connect(&door, &near, b"");
    let (mut here, mut there) = (Letters::new(stream), Letters::new(visitor.stream));
    near.cable.cut(LONG);
    here.send(b"from here").expect("it waits");
    there.send(b"from there").expect("it waits");
    for _ in 0..20 {
        assert!(here.progress().expect("no error").is_empty());
        assert!(there.progress().expect("no error").is_empty());
        thread::sleep(Duration::from_millis(1));
    }
    near.cable.cut(OVER);
    let deadline = deadline();
    let (mut came, mut went) = (Vec::new(), Vec::new());
    while came.is_empty() || went.is_empty() {
        assert!(!deadline.has_passed(), "nothing comes");
        came.extend(here.progress().expect("no error"));
        went.extend(there.progress().expect("no error"));
    }
    assert_eq!((came, went), (vec![b"from there".to_vec()], vec![b"from here".to_vec()]));
}

#[test]
fn a_wire_of_a_host_that_is_cut_off_goes_on_when_the_cut_heals() {
    let (near, far) = two();
    let door = quiet_door(&far);
    let (stream, visitor) = connect(&door, &near, b"");
    let make = |host, stream| Tcp::new(vec![(Host(host), vec![stream])], Sizes::default()).expect("a wire");
    let bytes = vec![7; 1_000_000];
    let (mut here, mut there) = (Post::default(), Post::default());
    let tag = Tag([1; 6]);
    here.expect(Host(1), tag, bytes.len());
    there.expect(Host(0), tag, bytes.len());
    let (mut wire, mut other) = (make(1, stream), make(0, visitor.stream));
    let bell = silence();
    near.cable.cut(LONG);
    // SAFETY: the bytes live as long as the wires, and nobody changes them.
    unsafe { wire.send(Host(1), tag, bytes.as_ptr(), bytes.len()) };
    // SAFETY: as above.
    unsafe { other.send(Host(0), tag, bytes.as_ptr(), bytes.len()) };
    for _ in 0..20 {
        wire.progress(&mut here, bell.as_fd(), Duration::from_millis(1)).expect("progress");
        other.progress(&mut there, bell.as_fd(), Duration::from_millis(1)).expect("progress");
    }
    assert!(here.places == 0 && there.places == 0, "nothing has come");
    near.cable.cut(OVER);
    let deadline = deadline();
    while here.arrived.is_empty() || there.arrived.is_empty() {
        assert!(!deadline.has_passed(), "nothing comes");
        wire.progress(&mut here, bell.as_fd(), Duration::from_millis(1)).expect("progress");
        other.progress(&mut there, bell.as_fd(), Duration::from_millis(1)).expect("progress");
    }
    assert!(here.lost.is_empty() && there.lost.is_empty());
    drop((wire, other));
    assert!(here.expected[&(Host(1), tag)] == bytes && there.expected[&(Host(0), tag)] == bytes);
}

#[test]
fn nobody_is_reached_or_let_in_through_a_cut_cable() {
    let (near, far) = two();
    // Whoever gave up calling is sent away later.
    let door = Door::open(LOOPBACK, &far, |_| {}).expect("a door");
    let address = door.address();
    for cut in [&near, &far] {
        cut.cable.cut(LONG);
        let called = call(address, &near, b"", Deadline::after(Duration::from_millis(50)));
        assert!(matches!(called, Err(CommError::Unreached { .. })), "{called:?}");
        assert!(door.next().is_none());
        cut.cable.cut(OVER);
    }
    connect(&door, &near, b"again");
}
