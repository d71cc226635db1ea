//! Where hosts meet, and which of them is the first.

mod etcd;
mod note;

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use paceline_comm::wire::{Door, Refusal, Terms, call};
use paceline_comm::{CommError, Deadline};
use paceline_record::Nanos;
use paceline_train::hosts::{Call, Registrar, Role};

pub use self::etcd::EtcdPlace;
pub use self::note::Note;
use self::note::{Found, Put};
use super::launched::Step;
use crate::outcome::{Usage, say};

/// How long whoever is said to be first may take to answer, and a host to take the place of one that does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before a folder is looked at again, and before a name is looked up again.
const PAUSE: Duration = Duration::from_millis(50);
const SLOW_PAUSE: Duration = Duration::from_millis(500);

/// Ports that hosts of Slurm jobs meet at.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;

/// Where hosts meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// An address of the first host.
    Tcp(String),
    /// A folder that all hosts share.
    File(PathBuf),
    /// Keys of etcd.
    Etcd(EtcdPlace),
}

/// A name or an address; one with colons is in brackets.
fn is_host(text: &str) -> bool {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    !text.is_empty() && (bare.is_some() || !text.contains(':'))
}

/// A name or an address, and a port.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0))
}

impl FromStr for Rendezvous {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(address) = text.strip_prefix("tcp://") {
            return match is_address(address) {
                true => Ok(Self::Tcp(address.into())),
                false => Err(format!(
                    "'{text}' has no host or no port; write tcp://HOST:PORT, as tcp://first:29400"
                )),
            };
        }
        if let Some(path) = text.strip_prefix("file://").filter(|path| path.starts_with('/')) {
            return Ok(Self::File(path.into()));
        }
        if text.starts_with("etcd://") || text.starts_with("etcds://") {
            return text.parse().map(Self::Etcd);
        }
        Err(format!(
            "'{text}' is no place to meet; there are tcp://HOST:PORT, file:///DIR and etcd://HOST:PORT/PREFIX"
        ))
    }
}

/// How this host has met the others.
pub struct Met {
    pub role: Role,
    /// To be kept while others may look for it.
    pub note: Option<Note>,
    /// Where rosters are written down.
    pub registrar: Option<Arc<Registrar>>,
}

/// What finding the others needs of this host.
#[derive(Clone, Copy)]
pub struct Seeker<'a> {
    pub terms: &'a Terms,
    /// Where other hosts are to reach it, if the user has said so.
    pub interface: Option<IpAddr>,
    /// The port there; 0 for any.
    pub port: u16,
    /// How long a name may take to be known.
    pub patience: Duration,
}

impl Seeker<'_> {
    /// Finds out whether this host is the first.
    pub fn meet(&self, place: &Rendezvous, lease: Nanos) -> Result<Met> {
        Ok(match place {
            Rendezvous::Tcp(address) => Met { role: self.meet_at(address)?, note: None, registrar: None },
            Rendezvous::File(folder) => {
                let (role, note) = self.meet_in(folder)?;
                Met { role, note, registrar: None }
            }
            Rendezvous::Etcd(place) => {
                let (role, registrar) = self.meet_through(place, lease)?;
                Met { role, note: None, registrar: Some(registrar) }
            }
        })
    }

    fn call(&self, at: Vec<SocketAddr>) -> Role {
        Role::Other(Call { at, interface: self.interface, port: self.port })
    }

    fn open(&self, address: SocketAddr) -> Result<Arc<Door>, CommError> {
        Door::open(address, self.terms, |line: String| say(&line)).map(Arc::new)
    }

    /// Whoever can listen at the address is the first. A name may be that of a host that was replaced, and lead to where it was for a
    /// while: it is looked up again until somebody answers there, or this host is there itself.
    fn meet_at(&self, address: &str) -> Result<Role> {
        let until = Instant::now() + self.patience;
        loop {
            let addresses = reachable(address, self.resolve(address)?)?;
            if let Some(role) = self.listen_at(&addresses)? {
                return Ok(role);
            }
            let is_name = address.parse::<SocketAddr>().is_err();
            if !is_name || addresses.iter().any(|&at| self.is_there(at)) {
                return Ok(self.call(addresses));
            }
            if Instant::now() >= until {
                bail!(
                    "the first host has not answered at {} ({address}) within {:.0} s; start the same command there, or wait longer with \
                     --host-wait",
                    addresses[0],
                    self.patience.as_secs_f64()
                );
            }
            sleep(SLOW_PAUSE);
        }
    }

    /// What this host is, if that shows without a call: the first, or another one on the first's machine.
    fn listen_at(&self, addresses: &[SocketAddr]) -> Result<Option<Role>> {
        let mut refused = None;
        for &at in addresses {
            match self.open(at) {
                Ok(door) => {
                    let elsewhere = self.interface.filter(|&ip| ip != at.ip());
                    let bytes = elsewhere.map(|ip| self.open(SocketAddr::new(ip, self.port))).transpose()?;
                    let doors = [door].into_iter().chain(bytes).collect();
                    return Ok(Some(Role::First { doors, local: None }));
                }
                Err(CommError::NoDoor { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                    // The first is on this machine.
                    return Ok(Some(self.call(vec![at])));
                }
                Err(CommError::NoDoor { source, .. }) if source.kind() == io::ErrorKind::AddrNotAvailable => {
                }
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if addresses.len() == 1 => Err(error.into()),
            // Of several addresses some may be of a kind that this host does not have.
            _ => Ok(None),
        }
    }

    /// The addresses that a name has, once it has some: in a cluster it may come with its host.
    fn resolve(&self, address: &str) -> Result<Vec<SocketAddr>> {
        let until = Instant::now() + self.patience;
        let mut has_said = false;
        loop {
            let error = match address.to_socket_addrs() {
                Ok(found) => return Ok(found.collect()),
                Err(error) => error,
            };
            if Instant::now() >= until {
                let patience = self.patience.as_secs_f64();
                bail!(
                    "cannot find {address}, where hosts are to meet ({error}), and have tried for {patience:.0} s; wait longer with --host-wait"
                );
            }
            if !std::mem::replace(&mut has_said, true) {
                let patience = self.patience.as_secs_f64();
                say(&format!(
                    "cannot find {address}, where hosts are to meet ({error}); trying for {patience:.0} s (--host-wait)"
                ));
            }
            sleep(SLOW_PAUSE);
        }
    }

    /// Hosts that srun has started meet on the first node, where the first of them is.
    pub fn meet_on(&self, step: &Step, rank: u32) -> Result<Role> {
        // Not among those that systems give to connections, and another one for each step.
        let port = FIRST_PORT + ((step.job.wrapping_mul(31) + step.step) % u64::from(PORTS)) as u16;
        let loopback = SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = match step.nodes {
            1 => vec![loopback],
            _ => self.resolve(&format!("{}:{port}", step.first))?,
        };
        let is_near = |at: &SocketAddr| at.ip().to_canonical().is_loopback();
        if rank > 0 {
            let far: Vec<SocketAddr> =
                addresses.iter().filter(|at| step.nodes == 1 || !is_near(at)).copied().collect();
            return match far.is_empty() {
                true => Err(Usage::new(format!(
                    "{} is {} on this host, where no other host can be reached; give --rendezvous tcp://HOST:PORT with an address of the \
                     first node",
                    step.first, addresses[0]
                ))
                .into()),
                false => Ok(self.call(far)),
            };
        }
        // A host may know itself by another address than the others do.
        let own = self.interface.map(|ip| SocketAddr::new(ip, port));
        let outside = self.own_address().ok().map(|ip| SocketAddr::new(ip, port)).filter(|_| step.nodes != 1);
        let known = addresses.into_iter().filter(|at| step.nodes == 1 || !is_near(at));
        let mut refused = None;
        for at in own.into_iter().chain(known).chain(outside) {
            match self.open(at) {
                Ok(door) => return Ok(Role::First { doors: vec![door], local: None }),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.map_or_else(
            || {
                Usage::new("cannot tell at which address others reach this host; give it with --interface IP")
                    .into()
            },
            Into::into,
        ))
    }

    /// Whoever leaves its address in the folder before others do is the first.
    fn meet_in(&self, folder: &Path) -> Result<(Role, Option<Note>)> {
        if !folder.is_dir() {
            let folder = folder.display();
            let why =
                format!("{folder} is no folder; hosts meet in one that is there, and that all of them see");
            return Err(Usage::new(why).into());
        }
        let until = Instant::now() + PATIENCE;
        let mut opened = None;
        loop {
            let there = Found::read(folder)?;
            if let Some(there) = &there
                && self.is_there(there.at)
            {
                return Ok((self.call(vec![there.at]), None));
            }
            let door = match opened.take() {
                Some(door) => door,
                None => self.open(SocketAddr::new(self.own_address()?, self.port))?,
            };
            match Note::put(folder, door.address(), there.as_ref())? {
                Put::Done(note) => return Ok((Role::First { doors: vec![door], local: None }, Some(note))),
                // Somebody else was faster.
                Put::Late => {}
                Put::Busy(turn) if Instant::now() >= until => bail!(
                    "another host began to take the place of one that is gone, and has not done so within {} s; if none is about \
                     to start, remove {}",
                    PATIENCE.as_secs(),
                    turn.display()
                ),
                Put::Busy(_) => sleep(PAUSE),
            }
            opened = Some(door);
        }
    }

    /// Whether a host of some job listens there, whatever its secret.
    fn is_there(&self, at: SocketAddr) -> bool {
        match call(at, self.terms, b"", Deadline::after(PATIENCE)) {
            Ok(_) => true,
            Err(CommError::Refused { refusal, .. }) => refusal != Refusal::Stranger,
            Err(_) => false,
        }
    }

    /// The address at which others reach this host.
    fn own_address(&self) -> Result<IpAddr> {
        let from = |any: &str, far: &str| {
            // Nothing is sent: the system only chooses a way.
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(far).ok()?;
            Some(socket.local_addr().ok()?.ip())
        };
        let found = self.interface.or_else(|| from("0.0.0.0:0", "192.0.2.1:9"));
        let found = found.or_else(|| from("[::]:0", "[2001:db8::1]:9"));
        Ok(found.ok_or_else(|| {
            Usage::new("cannot tell at which address others reach this host; give it with --interface IP")
        })?)
    }
}

/// The addresses of a rendezvous that other hosts can reach, too.
fn reachable(name: &str, addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Usage> {
    let Some(first) = addresses.first().copied() else {
        return Err(Usage::new(format!("{name} is no address")));
    };
    if first.ip().is_unspecified() {
        let reason = format!("{name} is every host's address; name one that only the first host has");
        return Err(Usage::new(reason));
    }
    // Who says 127.0.0.1 or localhost means hosts that are all on this machine.
    let is_localhost = name.rsplit_once(':').is_some_and(|(host, _)| host == "localhost");
    if name.parse::<SocketAddr>().is_ok() || is_localhost {
        return Ok(addresses);
    }
    let others: Vec<SocketAddr> =
        addresses.into_iter().filter(|address| !address.ip().to_canonical().is_loopback()).collect();
    if others.is_empty() {
        let port = first.port();
        return Err(Usage::new(format!(
            "{name} is {first} on this host, where no other host can reach it (/etc/hosts may say so of a host's own name); give an \
             address of this host that the others can reach, as --rendezvous tcp://192.168.0.1:{port}, on every host"
        )));
    }
    Ok(others)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;

    use paceline_comm::wire::{Secrecy, Secret};

    use super::*;

    fn terms() -> Terms {
        Terms::new(Secret::random().expect("random numbers"), Secrecy::Plain)
    }

    fn seeker(terms: &Terms) -> Seeker<'_> {
        Seeker { terms, interface: Some(IpAddr::from([127, 0, 0, 1])), port: 0, patience: Duration::ZERO }
    }

    /// A port that no other test has, below those that the system gives to whoever names none.
    fn own_port(test: u16) -> u16 {
        20_000 + (std::process::id() % 2_500) as u16 * 4 + test
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).expect("a folder").count()
    }

    #[test]
    fn places_to_meet_are_read_and_others_refused() {
        assert_eq!("tcp://first:29400".parse(), Ok(Rendezvous::Tcp("first:29400".into())));
        assert_eq!("tcp://[::1]:1".parse(), Ok(Rendezvous::Tcp("[::1]:1".into())));
        assert_eq!("file:///shared/here".parse(), Ok(Rendezvous::File("/shared/here".into())));
        for text in [
            "first:29400",
            "tcp://first",
            "tcp://:29400",
            "tcp://first:99999",
            "file://here",
            "http://first:80",
            "",
        ] {
            let message = text.parse::<Rendezvous>().expect_err(text);
            assert!(
                message.contains("write tcp://HOST:PORT") || message.contains("there are tcp://"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_name_that_is_loopback_here_is_refused_or_its_other_addresses_are_taken() {
        let read = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let [own, far] = ["127.0.1.1:29400", "192.168.7.5:29400"].map(read);
        let message = reachable("a:29400", vec![own]).expect_err("nobody else gets there").to_string();
        assert!(message.contains("a:29400 is 127.0.1.1:29400 on this host"), "{message}");
        assert!(message.contains("--rendezvous tcp://"), "{message}");
        assert_eq!(reachable("a:29400", vec![own, far]).expect("an address"), [far]);
        for meant in ["127.0.1.1:29400", "localhost:29400"] {
            assert_eq!(reachable(meant, vec![own]).expect("all on one machine"), [own]);
        }
    }

    #[test]
    fn of_two_on_one_machine_the_second_calls_whatever_addresses_the_name_has() {
        let terms = terms();
        let name = format!("localhost:{}", own_port(0));
        let Role::First { doors, .. } = seeker(&terms).meet_at(&name).expect("it is first") else {
            panic!("nobody was there before");
        };
        let Role::Other(call) = seeker(&terms).meet_at(&name).expect("it finds the first") else {
            panic!("there is a first");
        };
        assert_eq!(call.at, [doors[0].address()]);
    }

    #[test]
    fn whoever_writes_first_is_first_and_its_note_goes_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let terms = terms();
        let (first, note) = seeker(&terms).meet_in(folder.path()).expect("it is first");
        let Role::First { doors, .. } = &first else { panic!("nobody was there before") };
        assert!(note.is_some());
        let (Role::Other(call), None) = seeker(&terms).meet_in(folder.path()).expect("it finds the first")
        else {
            panic!("there is a first");
        };
        assert_eq!(call.at, [doors[0].address()]);
        assert_eq!(files(folder.path()), 1, "a draft is left");
        drop(note);
        assert_eq!(files(folder.path()), 0, "the note is left");
    }

    #[test]
    fn a_note_of_a_host_that_was_killed_is_replaced_and_hinders_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let terms = terms();
        let (dead, note) = seeker(&terms).meet_in(folder.path()).expect("it is first");
        std::mem::forget(note);
        drop(dead);
        let (first, note) = seeker(&terms).meet_in(folder.path()).expect("it takes the place");
        assert!(matches!(first, Role::First { .. }));
        assert_eq!(files(folder.path()), 1);
        drop(note);
        assert_eq!(files(folder.path()), 0);
    }

    #[test]
    fn a_stranger_at_the_noted_address_is_not_the_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let stranger = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = stranger.local_addr().expect("an address");
        fs::write(folder.path().join(note::NAME), format!("{at} 1-1\n")).expect("a file");
        let answer = std::thread::spawn(move || {
            use std::io::Write;
            let (mut socket, _) = stranger.accept().expect("a caller");
            socket.write_all(b"220 this is something else entirely\r\n").expect("it listens");
        });
        let terms = terms();
        let (role, _note) = seeker(&terms).meet_in(folder.path()).expect("it is first");
        assert!(matches!(role, Role::First { .. }));
        answer.join().expect("it has answered");
    }

    #[test]
    fn of_many_that_come_at_once_where_one_was_killed_just_one_is_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, terms) = (folder.path(), terms());
        let (dead, note) = seeker(&terms).meet_in(path).expect("it is first");
        std::mem::forget(note);
        drop(dead);
        let met: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| seeker(&terms).meet_in(path).expect("a role"))).collect();
            all.into_iter().map(|one| one.join().expect("it has met")).collect()
        });
        let firsts = met.iter().filter(|(role, _)| matches!(role, Role::First { .. })).count();
        assert_eq!(firsts, 1);
        drop(met);
        assert_eq!(files(path), 0);
    }

    #[test]
    fn a_file_that_no_host_wrote_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(note::NAME);
        fs::write(&file, "dear diary").expect("a file");
        let terms = terms();
        let message = match seeker(&terms).meet_in(folder.path()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("that is no note"),
        };
        assert!(message.contains("name another folder"), "{message}");
        assert_eq!(fs::read_to_string(file).expect("it is there"), "dear diary");
    }

    #[test]
    fn a_fixed_port_is_that_of_the_first_host_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let port = own_port(1);
        let terms = terms();
        let (role, _note) = Seeker { port, ..seeker(&terms) }.meet_in(folder.path()).expect("it is first");
        let Role::First { doors, .. } = role else { panic!("nobody was there before") };
        assert_eq!(doors[0].address().port(), port);
    }

    #[test]
    fn the_first_host_takes_bytes_at_its_interface_and_meets_at_the_rendezvous() {
        let at = SocketAddr::from(([127, 0, 0, 1], own_port(2)));
        let terms = terms();
        let elsewhere = IpAddr::from([127, 0, 0, 2]);
        let seeker = Seeker { interface: Some(elsewhere), ..seeker(&terms) };
        let Role::First { doors, .. } = seeker.meet_at(&at.to_string()).expect("it is first") else {
            panic!("nobody was there before");
        };
        let ips: Vec<IpAddr> = doors.iter().map(|door| door.address().ip()).collect();
        assert_eq!(ips, [at.ip(), elsewhere]);
    }
}
