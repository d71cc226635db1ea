use paceline_record::Host;

use super::fake::FakeEtcd;
use super::*;
use crate::tasks::authority::Roster;
use crate::tasks::registry::Record;

fn registry(etcd: &FakeEtcd) -> Registry {
    Registry::new(Access { at: vec![etcd.at.to_string()], ..Access::default() }, "job").expect("no files")
}

fn record(generation: u64, by: u64) -> Record {
    Record { run: 7, roster: Roster { generation, places: Vec::new(), is_loss: false }, next: 3, by }
}

fn note(host: u32) -> FirstNote {
    FirstNote { by: host.into(), host: Host(host), at: "127.0.0.1:1".parse().expect("an address") }
}

#[test]
fn of_two_that_would_be_first_one_is_and_the_other_knows_it() {
    let etcd = FakeEtcd::start();
    let [mut one, mut two] = [registry(&etcd), registry(&etcd)];
    assert!(one.keep(2).expect("a lease") && two.keep(2).expect("a lease"));
    assert_eq!(one.claim(&note(0)).expect("an answer"), note(0));
    assert_eq!(two.claim(&note(1)).expect("an answer"), note(0));
    one.clear(None).expect("it goes");
    assert_eq!(two.claim(&note(1)).expect("an answer"), note(1));
    assert_eq!(two.look().expect("an answer").first, Some(note(1)));
}

#[test]
fn a_roster_replaces_only_the_one_that_is_known() {
    let etcd = FakeEtcd::start();
    let [mut one, mut two] = [registry(&etcd), registry(&etcd)];
    let first = one.swap(0, &record(1, 1)).expect("an answer").expect("nothing was there");
    let found = two.swap(0, &record(1, 2)).expect("an answer").expect_err("something was there");
    assert_eq!(found.map(|entry| (entry.revision, entry.record.by)), Some((first, 1)));
    let second = two.swap(first, &record(2, 2)).expect("an answer").expect("it was known");
    assert!(second > first);
    assert!(one.swap(first, &record(2, 1)).expect("an answer").is_err());
    // Of a run that another one has followed nothing is taken away.
    one.clear(Some(first)).expect("it goes");
    assert_eq!(two.look().expect("an answer").entry.map(|entry| entry.revision), Some(second));
    two.clear(Some(second)).expect("it goes");
    assert_eq!(one.look().expect("an answer"), Look::default());
}

#[test]
fn keys_go_with_their_host_and_a_run_is_inhabited_as_long_as_one_of_its_own_is_there() {
    let etcd = FakeEtcd::start();
    let mut one = registry(&etcd);
    one.keep(2).expect("a lease");
    one.enter(Host(1), &HostNote { run: 7, name: "b".into() }).expect("an answer");
    assert!(!one.look().expect("an answer").is_inhabited(), "no roster was granted");
    one.swap(0, &record(1, 1)).expect("an answer").expect("nothing was there");
    assert!(one.look().expect("an answer").is_inhabited());
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(!one.keep(2).expect("an answer"), "the lease is the same");
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(one.look().expect("an answer").is_inhabited(), "it was kept");
    std::thread::sleep(Duration::from_millis(1_200));
    let look = one.look().expect("an answer");
    assert!(look.hosts.is_empty() && !look.is_inhabited() && look.entry.is_some());
    assert!(one.keep(2).expect("an answer"), "it is another lease");
}

#[test]
fn another_member_is_asked_where_one_does_not_answer() {
    let etcd = FakeEtcd::start();
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let access = Access { at: vec![closed.to_string(), etcd.at.to_string()], ..Access::default() };
    let mut registry = Registry::new(access, "job").expect("no files");
    let error = registry.look().expect_err("nobody is there");
    assert!(matches!(&error, CommError::NoEtcd { at, .. } if *at == closed.to_string()), "{error}");
    assert_eq!(registry.look().expect("an answer"), Look::default());
    etcd.set_down(true);
    assert!(matches!(registry.look(), Err(CommError::NoEtcd { .. })));
}

#[test]
fn a_name_and_a_password_are_given_and_given_again_where_etcd_has_forgotten_them() {
    let etcd = FakeEtcd::start();
    etcd.lock("sesame");
    let error = registry(&etcd).look().expect_err("it wants a password");
    assert!(error.to_string().contains("user name is empty"), "{error}");
    let login = |password: &str| Some(Login { name: "me".into(), password: password.into() });
    let access =
        |password| Access { at: vec![etcd.at.to_string()], login: login(password), ..Access::default() };
    let error = Registry::new(access("open"), "job").expect("no files").look().expect_err("it is wrong");
    assert!(matches!(error, CommError::EtcdRefused { .. }), "{error}");
    assert!(!format!("{:?}", access("open")).contains("open"), "a password is told");
    let mut registry = Registry::new(access("sesame"), "job").expect("no files");
    assert_eq!(registry.look().expect("an answer"), Look::default());
    etcd.lock("sesame");
    assert_eq!(registry.look().expect("it logs in again"), Look::default());
}

#[test]
fn what_somebody_else_has_written_there_is_left_alone() {
    let etcd = FakeEtcd::start();
    etcd.put("job/roster", "dear diary");
    let error = registry(&etcd).look().expect_err("that is no roster");
    assert!(error.to_string().contains("use another prefix"), "{error}");
    assert_eq!(etcd.pairs().get("job/roster").map(String::as_str), Some("dear diary"));
}

/// Something that gives one answer to whatever it is asked.
fn answering(status: &str, body: &'static str) -> std::net::SocketAddr {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut asked = BufReader::new(stream.try_clone().expect("a stream"));
            let (mut line, mut length) = (String::new(), 0);
            while asked.read_line(&mut line).is_ok_and(|read| read > 2) {
                let lower = line.to_ascii_lowercase();
                length =
                    lower.strip_prefix("content-length: ").map_or(length, |n| n.trim().parse().expect("it"));
                line.clear();
            }
            asked.read_exact(&mut vec![0; length]).expect("what was announced");
            stream.write_all(answer.as_bytes()).expect("it listens");
        }
    });
    at
}

#[test]
fn what_may_pass_can_be_tried_again_and_what_will_not_is_refused() {
    for (status, body, may_pass) in [
        ("503 Service Unavailable", r#"{"error":"etcdserver: leader changed","code":14}"#, true),
        ("429 Too Many Requests", r#"{"error":"etcdserver: too many requests","code":8}"#, true),
        ("504 Gateway Timeout", "the proxy waits for somebody", true),
        ("404 Not Found", "404 page not found", false),
        ("403 Forbidden", r#"{"error":"etcdserver: permission denied","code":7}"#, false),
        // Since 3.6.
        (
            "503 Service Unavailable",
            r#"{"code":14,"message":"etcdserver: leader changed","details":[]}"#,
            true,
        ),
        ("403 Forbidden", r#"{"code":7,"message":"etcdserver: permission denied","details":[]}"#, false),
        ("400 Bad Request", r#"{"code":3,"message":"etcdserver: user name is empty","details":[]}"#, false),
        // In streams.
        ("200 OK", r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#, true),
        ("200 OK", r#"{"error":{"code":14,"message":"etcdserver: no leader","details":[]}}"#, true),
        ("200 OK", r#"{"error":{"code":7,"message":"etcdserver: permission denied"}}"#, false),
        ("500 Internal Server Error", "{}", true),
    ] {
        let access = Access { at: vec![answering(status, body).to_string()], ..Access::default() };
        let error = Registry::new(access, "job").expect("no files").look().expect_err("it is no answer");
        assert_eq!(matches!(error, CommError::NoEtcd { .. }), may_pass, "{error}");
        assert_eq!(matches!(error, CommError::EtcdRefused { .. }), !may_pass, "{error}");
    }
}

#[test]
fn the_version_is_that_of_the_first_member_that_answers() {
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let there = answering("200 OK", r#"{"etcdserver":"3.5.1","etcdcluster":"3.5.0"}"#);
    let access = Access { at: vec![closed.to_string(), there.to_string()], ..Access::default() };
    assert_eq!(version(access).expect("an answer"), ("3.5.1".into(), there.to_string()));
    let other = answering("200 OK", r#"{"version":"1"}"#);
    let access = Access { at: vec![closed.to_string(), other.to_string()], ..Access::default() };
    assert!(version(access).expect_err("none is etcd").to_string().contains("it is no etcd"));
}

#[test]
fn files_for_tls_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    let open = || {
        let tls = Some(Files { authority: file.clone(), own: None });
        Registry::new(Access { at: vec!["etcd:1".into()], tls, login: None }, "job").map(drop)
    };
    let error = open().expect_err("it is not there").to_string();
    assert!(error.contains("ca.pem"), "{error}");
    std::fs::write(&file, "no certificate").expect("a file");
    let error = open().expect_err("it holds nothing").to_string();
    assert!(error.contains("ca.pem") && error.contains("no certificate"), "{error}");
}
