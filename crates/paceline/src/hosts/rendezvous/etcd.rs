//! Meeting through etcd: whoever writes its address down first is the first.

use std::env;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use paceline_comm::CommError;
use paceline_comm::etcd::{Access, Files, FirstNote, Login, Registry};
use paceline_record::{Host, Nanos};
use paceline_train::hosts::{Registrar, Role};

use super::{Seeker, is_address};
use crate::outcome::{Usage, say};

/// How long to wait before it is looked again who is first.
const PAUSE: Duration = Duration::from_millis(200);

/// How long etcd may give no answer before the user is told.
const FAULT: Duration = Duration::from_secs(1);

/// How long nobody must be there before a run begins: where etcd has been away, or has lost its data, hosts of a run that goes on may
/// have to wait for an answer that does not come, before they write themselves down again.
const DESERTED: Duration = Duration::from_secs(3);

/// Where etcd is, and which of its keys are the job's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdPlace {
    /// Addresses of its members.
    pub at: Vec<String>,
    pub prefix: String,
    pub secure: bool,
}

impl FromStr for EtcdPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "'{text}' has no host, no port or no prefix; write etcd://HOST:PORT/PREFIX, as etcd://etcd:2379/resnet-1, with a prefix of \
                 its own for each job; etcds:// for TLS; several addresses with commas between them"
            )
        };
        let (secure, rest) = match text.strip_prefix("etcds://") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("etcd://").ok_or_else(wrong)?),
        };
        let (addresses, prefix) = rest.split_once('/').ok_or_else(wrong)?;
        let prefix = prefix.trim_matches('/');
        let at: Vec<String> = addresses.split(',').map(Into::into).collect();
        if prefix.is_empty() || !at.iter().all(|address| is_address(address)) {
            return Err(wrong());
        }
        Ok(Self { at, prefix: prefix.into(), secure })
    }
}

impl EtcdPlace {
    /// How it is reached.
    pub fn access(&self) -> Result<Access, Usage> {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        // The names are those of etcd's own client.
        let tls = match (self.secure, set("ETCDCTL_CACERT")) {
            (false, _) => None,
            (true, Some(authority)) => {
                let own = match (set("ETCDCTL_CERT"), set("ETCDCTL_KEY")) {
                    (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
                    (None, None) => None,
                    (Some(_), None) => {
                        return Err(Usage::new("ETCDCTL_CERT has no key: name its file in ETCDCTL_KEY"));
                    }
                    (None, Some(_)) => {
                        return Err(Usage::new(
                            "ETCDCTL_KEY has no certificate: name its file in ETCDCTL_CERT",
                        ));
                    }
                };
                Some(Files { authority: PathBuf::from(authority), own })
            }
            (true, None) => {
                return Err(Usage::new(
                    "etcds:// needs the certificate of whoever signed etcd's: name its file in ETCDCTL_CACERT (and this host's own, where \
                     etcd wants one, in ETCDCTL_CERT and ETCDCTL_KEY)",
                ));
            }
        };
        let login = match (set("ETCDCTL_USER"), set("ETCDCTL_PASSWORD")) {
            (None, _) => None,
            (Some(name), Some(password)) => Some(Login { name, password }),
            (Some(both), None) => {
                let (name, password) = both.split_once(':').ok_or_else(|| {
                    Usage::new("ETCDCTL_USER has no password: write NAME:PASSWORD, or set ETCDCTL_PASSWORD")
                })?;
                Some(Login { name: name.into(), password: password.into() })
            }
        };
        Ok(Access { at: self.at.clone(), tls, login })
    }

    /// The address of this host that leads to etcd.
    fn own_address(&self) -> Option<IpAddr> {
        let far: Vec<SocketAddr> =
            self.at.iter().filter_map(|at| at.to_socket_addrs().ok()).flatten().collect();
        far.into_iter().find_map(|far| {
            let any = if far.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            // Nothing is sent: the system only chooses a way.
            let socket = UdpSocket::bind(any).ok()?;
            socket.connect(far).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
    }
}

impl Seeker<'_> {
    /// Whoever is written down first is the first.
    pub(super) fn meet_through(&self, place: &EtcdPlace, lease: Nanos) -> Result<(Role, Arc<Registrar>)> {
        let refuse = |error: CommError| match error {
            error @ (CommError::EtcdFile { .. } | CommError::EtcdRefused { .. }) => {
                anyhow::Error::from(Usage::new(error.to_string()))
            }
            error => error.into(),
        };
        let registry = Registry::new(place.access()?, &place.prefix).map_err(refuse)?;
        let registrar = Arc::new(Registrar::start(registry, lease)?);
        let until = Instant::now() + self.patience;
        let by = u64::from(std::process::id()) << 32 ^ Registrar::number();
        let mut door = None;
        let (mut has_said, mut has_complained) = (false, false);
        // Since when nobody has been seen there.
        let mut deserted = None;
        let patience = self.patience.as_secs_f64();
        loop {
            let look = match registrar.look_now(until.min(Instant::now() + FAULT)) {
                Ok(look) => look,
                Err(error @ CommError::NoEtcd { .. }) if Instant::now() < until => {
                    deserted = None;
                    if !std::mem::replace(&mut has_complained, true) {
                        say(&format!("{error}; trying for {patience:.0} s (--host-wait)"));
                    }
                    continue;
                }
                Err(error @ CommError::NoEtcd { .. }) => {
                    bail!("{error}; it was tried for {patience:.0} s, wait longer with --host-wait")
                }
                Err(error) => return Err(refuse(error)),
            };
            let is_deserted = look.first.is_none() && !look.is_inhabited();
            let since = deserted.take().unwrap_or_else(Instant::now);
            deserted = is_deserted.then_some(since);
            let wait = match &look.first {
                Some(first) if first.by == by => {
                    let doors = door.into_iter().collect();
                    return Ok((Role::First { doors, local: None }, registrar));
                }
                Some(first) => {
                    registrar.lead(None);
                    if self.is_there(first.at) {
                        return Ok((self.call(vec![first.at]), registrar));
                    }
                    format!("the first host ({}) does not answer", first.at)
                }
                None if look.is_inhabited() => {
                    registrar.lead(None);
                    "a run has lost its first host, and another takes its place".into()
                }
                None if since.elapsed() < DESERTED => {
                    registrar.lead(None);
                    String::new()
                }
                None => {
                    let opened = match door.take() {
                        Some(door) => door,
                        None => {
                            let ip = self.interface.or_else(|| place.own_address());
                            let ip = ip.map_or_else(|| self.own_address(), Ok)?;
                            self.open(SocketAddr::new(ip, self.port))?
                        }
                    };
                    registrar.lead(Some(FirstNote { by, host: Host(0), at: opened.address() }));
                    door = Some(opened);
                    String::new()
                }
            };
            if Instant::now() >= until {
                let wait = if wait.is_empty() { "nobody is first".into() } else { wait };
                bail!("{wait}, and has not changed within {patience:.0} s (--host-wait)");
            }
            if !wait.is_empty() && !std::mem::replace(&mut has_said, true) {
                say(&format!("{wait}; waiting for {patience:.0} s (--host-wait)"));
            }
            sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_etcd_are_read_and_others_refused() {
        let read = |text: &str| text.parse::<EtcdPlace>();
        let place = EtcdPlace { at: vec!["etcd:2379".into()], prefix: "resnet-1".into(), secure: false };
        assert_eq!(read("etcd://etcd:2379/resnet-1"), Ok(place.clone()));
        assert_eq!(read("etcds://etcd:2379/resnet-1/"), Ok(EtcdPlace { secure: true, ..place.clone() }));
        let many = EtcdPlace { at: vec!["a:1".into(), "[::1]:2".into()], prefix: "x/y".into(), ..place };
        assert_eq!(read("etcd://a:1,[::1]:2/x/y"), Ok(many));
        for text in [
            "etcd://",
            "etcd://etcd/x",
            "etcd://etcd:2379",
            "etcd://etcd:2379/",
            "etcd://a:1,/x",
            "tcp://a:1/x",
        ] {
            let message = read(text).expect_err(text);
            assert!(message.contains("write etcd://HOST:PORT/PREFIX"), "{message}");
        }
    }
}
