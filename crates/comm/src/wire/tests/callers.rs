//! Doors and their callers, good and bad.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;
use crate::CommError;
use crate::wire::door::Rules;
use crate::wire::handshake::PREAMBLE;

/// Rules for tests that are about callers who come too late.
fn hasty() -> Rules {
    Rules { meetings: 4, patience: Duration::from_millis(100), grace: Duration::from_millis(10) }
}

fn open(rules: Rules) -> (Door, Told) {
    let told = Told::default();
    let door = Door::open_with(LOOPBACK, &terms(Secrecy::Plain), rules, told.teller()).expect("a door");
    (door, told)
}

/// Rules for tests that are about what callers say.
fn patient() -> Rules {
    Rules { meetings: 64, patience: LIMIT, grace: LIMIT }
}

/// The lines that a door tells, at least so many.
fn await_lines(told: &Told, count: usize) -> Vec<String> {
    let deadline = deadline();
    while told.lines().len() < count {
        assert!(!deadline.has_passed(), "only {:?}", told.lines());
        thread::sleep(Duration::from_millis(1));
    }
    told.lines()
}

fn connect_raw(door: &Door) -> TcpStream {
    let socket = TcpStream::connect(door.address()).expect("a connection");
    socket.set_read_timeout(Some(LIMIT)).expect("a socket");
    socket
}

/// What the door says until it closes the connection.
fn answer(mut socket: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Closing a connection may end it in other ways, too.
    let _ = socket.read_to_end(&mut bytes);
    bytes
}

fn preamble(version: u32, secrecy: u8) -> Vec<u8> {
    let mut bytes = b"paceline".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend([secrecy, 0, 0, 0]);
    bytes
}

fn refusal(result: Result<Stream, CommError>) -> Refusal {
    match result {
        Err(CommError::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_caller_that_knows_the_secret_is_let_in_with_its_greeting() {
    for secrecy in [Secrecy::Plain, Secrecy::Encrypted] {
        let terms = terms(secrecy);
        let door = quiet_door(&terms);
        assert!(door.next().is_none());
        for greeting in [&b""[..], b"host 3", &[7; LONGEST_GREETING]] {
            let (called, visitor) = connect(&door, &terms, greeting);
            assert_eq!(visitor.greeting, greeting);
            assert_eq!((called.other(), called.secrecy()), (door.address(), secrecy));
            assert_eq!((visitor.stream.other(), visitor.stream.secrecy()), (visitor.from, secrecy));
        }
        assert!(door.next().is_none());
    }
}

#[test]
fn callers_with_another_secret_or_another_secrecy_are_told_so() {
    let (door, told) = open(patient());
    let secret = Secret::new(b"known to another job alone").expect("it is long enough");
    let stranger = Terms::new(secret, Secrecy::Plain);
    assert_eq!(refusal(call(door.address(), &stranger, b"", deadline())), Refusal::Secret);
    let other = terms(Secrecy::Encrypted);
    assert_eq!(refusal(call(door.address(), &other, b"", deadline())), Refusal::Secrecy(Secrecy::Plain));
    let lines = await_lines(&told, 2);
    assert!(lines[0].ends_with(": it has another secret; give all hosts the same"), "{lines:?}");
    assert!(lines[1].contains(": it wants encrypted connections;"), "{lines:?}");
    assert!(door.next().is_none());
}

#[test]
fn sides_of_other_versions_are_told_so() {
    let (door, told) = open(patient());
    let mut caller = connect_raw(&door);
    caller.write_all(&[preamble(9, 0), vec![7; 100]].concat()).expect("a write");
    assert_eq!(answer(caller), preamble(1, 0), "it learns which version is here");
    assert!(
        await_lines(&told, 1)[0].contains(": it speaks version 9 of the protocol and this is version 1;")
    );

    let listener = TcpListener::bind(LOOPBACK).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let newer = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a caller");
        socket.write_all(&preamble(9, 0)).expect("a write");
        socket.shutdown(Shutdown::Write).expect("a socket");
        answer(socket)
    });
    assert_eq!(refusal(call(address, &terms(Secrecy::Plain), b"", deadline())), Refusal::Version(9));
    newer.join().expect("no panic");
}

#[test]
fn garbage_is_answered_with_nothing() {
    let (door, told) = open(patient());
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..],
        &[0xff; 5000],
        &[preamble(1, 7), vec![0; 60]].concat(),
    ] {
        let mut caller = connect_raw(&door);
        caller.write_all(garbage).expect("a write");
        assert_eq!(answer(caller), b"");
    }
    let mut caller = connect_raw(&door);
    caller.write_all(&[preamble(1, 0), vec![0xff; 60]].concat()).expect("a write");
    assert_eq!(answer(caller), preamble(1, 0), "a message that is too long is not waited for");
    for line in await_lines(&told, 4) {
        assert!(line.ends_with(": what is there does not speak paceline's protocol"), "{line}");
    }
}

#[test]
fn whoever_calls_something_else_is_told_so() {
    let listener = TcpListener::bind(LOOPBACK).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let other = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a caller");
        socket.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").expect("a write");
        let mut bytes = [0; PREAMBLE];
        socket.read_exact(&mut bytes).expect("a preamble");
        // The second hangs up at once.
        drop(listener.accept().expect("a caller"));
    });
    let terms = terms(Secrecy::Plain);
    assert_eq!(refusal(call(address, &terms, b"", deadline())), Refusal::Stranger);
    let hung_up = call(address, &terms, b"", deadline()).expect_err("nobody");
    assert!(matches!(hung_up, CommError::Unreached { .. }), "{hung_up}");
    other.join().expect("no panic");
    // The listener is closed now.
    let nobody = call(address, &terms, b"", deadline()).expect_err("nobody");
    assert_eq!(nobody.to_string(), format!("cannot reach {address}: nobody listens there"));
}

#[test]
fn a_call_that_is_not_answered_ends_at_its_deadline() {
    let listener = TcpListener::bind(LOOPBACK).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let terms = terms(Secrecy::Plain);
    for wait in [0, 20] {
        let error =
            call(address, &terms, b"", Deadline::after(Duration::from_millis(wait))).expect_err("nobody");
        assert!(error.to_string().contains("in time"), "{error}");
    }
}

#[test]
fn an_address_that_is_taken_is_refused_in_words() {
    let terms = terms(Secrecy::Plain);
    let door = quiet_door(&terms);
    let error = Door::open(door.address(), &terms, |_| ()).map(|_| ()).expect_err("it is taken");
    let CommError::NoDoor { address, source } = error else { panic!("{error}") };
    assert_eq!((address, source.kind()), (door.address(), std::io::ErrorKind::AddrInUse));
}

#[test]
fn whoever_says_nothing_or_half_of_it_is_sent_away() {
    let (door, told) = open(hasty());
    let silent = connect_raw(&door);
    let mut half = connect_raw(&door);
    half.write_all(&preamble(1, 0)[..9]).expect("a write");
    let mut most = connect_raw(&door);
    most.write_all(&[preamble(1, 0), vec![48, 0, 1, 2, 3]].concat()).expect("a write");
    assert_eq!(answer(silent), b"");
    assert_eq!(answer(half), b"");
    assert_eq!(answer(most), preamble(1, 0));
    for line in await_lines(&told, 3) {
        assert!(line.ends_with(": no handshake within 0.1 s"), "{line}");
    }
    drop(connect_raw(&door));
    assert!(await_lines(&told, 4)[3].ends_with(": it closed the connection in the handshake"));
}

#[test]
fn callers_that_say_nothing_make_room_for_others() {
    let (door, told) = open(Rules { patience: LIMIT, ..hasty() });
    let silent: Vec<TcpStream> = (0..20).map(|_| connect_raw(&door)).collect();
    let (_, visitor) = connect(&door, &terms(Secrecy::Plain), b"me");
    assert_eq!(visitor.greeting, b"me");
    assert!(await_lines(&told, 5)[0].ends_with(": it showed no secret while others waited"));
    drop(silent);
}

#[test]
fn a_recorded_handshake_opens_no_door() {
    let (door, told) = open(patient());
    let terms = terms(Secrecy::Plain);
    // Somebody between the two writes down what the caller says.
    let between = TcpListener::bind(LOOPBACK).expect("a listener");
    let address = between.local_addr().expect("an address");
    let (recorded, visitor) = thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            let (mut caller, _) = between.accept().expect("a caller");
            let mut called = connect_raw(&door);
            let (mut back, mut forth) =
                (called.try_clone().expect("a socket"), caller.try_clone().expect("a socket"));
            scope.spawn(move || std::io::copy(&mut back, &mut forth));
            let mut recorded = Vec::new();
            let mut bytes = [0; 1024];
            loop {
                let read = caller.read(&mut bytes).expect("a read");
                called.write_all(&bytes[..read]).expect("a write");
                recorded.extend_from_slice(&bytes[..read]);
                if read == 0 {
                    called.shutdown(Shutdown::Write).expect("a socket");
                    return recorded;
                }
            }
        });
        drop(call(address, &terms, b"start the job", deadline()).expect("a call"));
        let visitor = await_visitor(&door);
        assert_eq!(visitor.greeting, b"start the job");
        drop(visitor.stream);
        (recorder.join().expect("no panic"), visitor.from)
    });
    assert!(visitor.ip().is_loopback());
    let mut caller = connect_raw(&door);
    caller.write_all(&recorded).expect("a write");
    answer(caller);
    assert!(await_lines(&told, 1)[0].ends_with(": its greeting is a recording or was changed on the way"));
    assert!(door.next().is_none());
}
