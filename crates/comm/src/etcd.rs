//! etcd as the place where hosts meet: who is first, which roster is the newest, and who is there.
//!
//! Spoken to through its JSON gateway, which every etcd since 3.4 has at its client address. Each call has a deadline; one that gets no
//! answer goes to the next address the next time.

mod registry;

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

pub use self::registry::{FirstNote, HostNote, Look, Registry};
use crate::CommError;

/// How long etcd may take to answer; and where another of its members can be asked instead: all leases of a job would run out while
/// every host waited for the same one.
const ANSWER: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_millis(600);

/// The longest answer that is read.
const LONGEST: u64 = 4 << 20;

/// How etcd is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Addresses of its members, `HOST:PORT`.
    pub at: Vec<String>,
    /// Whether to use TLS, and with which files.
    pub tls: Option<Files>,
    /// Name and password, where it wants them.
    pub login: Option<Login>,
}

/// Files in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Certificates of whoever signed etcd's own.
    pub authority: PathBuf,
    /// This host's certificate and its key, where etcd wants one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Who logs in.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The name.
    pub name: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({})", self.name)
    }
}

/// A connection with etcd.
pub(crate) struct Etcd {
    access: Access,
    agent: Agent,
    /// How long an answer may take.
    limit: Duration,
    /// The address that is asked.
    next: usize,
    token: Option<String>,
}

/// What etcd says where a token is too old, of a time before it restarted, or of one before somebody's rights were changed.
const OLD_TOKEN: [u64; 2] = [16, 3];

/// What it says where it could do it in a moment: it is late, has too much to do, or has no leader.
const PASSING: [u64; 3] = [4, 8, 14];

/// A key or value, as the gateway wants bytes.
fn coded(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Bytes of the gateway.
fn decoded(value: &Value) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(value.as_str()?).ok()
}

/// A whole number: the gateway writes large ones as text.
fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

/// The version that the first of its members that answers says it has, and its address.
pub fn version(access: Access) -> Result<(String, String), CommError> {
    let mut etcd = Etcd::new(access)?;
    let mut version = etcd.version();
    for _ in 1..etcd.access.at.len() {
        if version.is_err() {
            etcd.next += 1;
            version = etcd.version();
        }
    }
    Ok((version?, etcd.at().to_owned()))
}

/// What etcd says where it refuses something: a number, and why. Up to 3.5 it is `{"error": "why", "code": 7}`, since 3.6
/// `{"message": "why", "code": 7}`; in a stream either is the value of `error`, and the number may be `grpc_code`.
fn refusal(status: u16, answer: &Value) -> Option<(u64, String)> {
    let error = &answer["error"];
    let codes = [&answer["code"], &error["code"], &error["grpc_code"]];
    if (200..300).contains(&status) && error.is_null() && answer["code"].is_null() {
        return None;
    }
    let words = [error, &error["message"], &answer["message"]];
    let why =
        words.into_iter().find_map(Value::as_str).map_or_else(|| format!("HTTP status {status}"), Into::into);
    let unnamed = if status >= 500 { PASSING[2] } else { 0 };
    Some((codes.into_iter().find(|code| !code.is_null()).map_or(unnamed, number), why))
}

impl Etcd {
    /// Reads the files; nothing is asked yet.
    pub fn new(access: Access) -> Result<Self, CommError> {
        let limit = if access.at.len() > 1 { SOON } else { ANSWER };
        let config = Agent::config_builder()
            .timeout_global(Some(limit))
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0);
        let agent = match access.tls.as_ref().map(Files::read).transpose()? {
            Some(tls) => config.tls_config(tls).build(),
            None => config.build(),
        };
        Ok(Self { access, agent: agent.into(), limit, next: 0, token: None })
    }

    /// Why there is no answer.
    fn describe(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Timeout(_) => format!("not within {} s", self.limit.as_secs_f64()),
            error => error.to_string(),
        }
    }

    fn version(&self) -> Result<String, CommError> {
        let unanswered = |why| CommError::NoEtcd { at: self.at().to_owned(), why };
        let answer = self.agent.get(self.address("version")).call();
        let text =
            answer.and_then(|mut answer| answer.body_mut().with_config().limit(LONGEST).read_to_string());
        let text = text.map_err(|error| unanswered(self.describe(&error)))?;
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        told["etcdserver"].as_str().map(Into::into).ok_or_else(|| unanswered("it is no etcd".into()))
    }

    fn at(&self) -> &str {
        &self.access.at[self.next % self.access.at.len()]
    }

    fn address(&self, path: &str) -> String {
        let scheme = if self.access.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/{path}", self.at())
    }

    /// Asks for something; its answer.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Value, CommError> {
        if self.token.is_none() && self.access.login.is_some() {
            self.log_in()?;
        }
        let mut answer = self.post(path, body)?;
        let is_old = matches!(&answer, Err((code, _)) if OLD_TOKEN.contains(code));
        if is_old && self.access.login.is_some() {
            self.log_in()?;
            answer = self.post(path, body)?;
        }
        self.accept(answer)
    }

    fn log_in(&mut self) -> Result<(), CommError> {
        let Some(Login { name, password }) = self.access.login.clone() else { return Ok(()) };
        self.token = None;
        let answer = self.post("auth/authenticate", &json!({ "name": name, "password": password }))?;
        let answer = self.accept(answer)?;
        self.token = answer["token"].as_str().map(Into::into);
        Ok(())
    }

    /// Sends something; what etcd answers, or what it refuses with.
    fn post(&mut self, path: &str, body: &Value) -> Result<Result<Value, (u64, String)>, CommError> {
        let mut request = self.agent.post(self.address(&format!("v3/{path}")));
        if let Some(token) = &self.token {
            request = request.header("Authorization", token);
        }
        let answer = request.send_json(body).and_then(|mut answer| {
            // A stream's answer is its first line.
            let text = answer.body_mut().with_config().limit(LONGEST).read_to_string()?;
            Ok((answer.status().as_u16(), text))
        });
        let at = self.at().to_owned();
        let answer = match answer {
            Ok((status, text)) => {
                let first = text.lines().next().unwrap_or_default();
                let read = serde_json::from_str::<Value>(first);
                let read = read.map(|answer| refusal(status, &answer).map_or(Ok(answer), Err));
                read.map_err(|_| match status {
                    404 => CommError::EtcdRefused {
                        at,
                        why: "it has no JSON gateway at /v3, or is older than 3.4".into(),
                    },
                    _ => {
                        let said: String = first.chars().take(120).collect();
                        CommError::NoEtcd { at, why: format!("HTTP status {status}: {said}") }
                    }
                })
            }
            // A certificate that is not trusted now is not trusted later.
            Err(ureq::Error::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(CommError::EtcdRefused { at, why: format!("no connection with TLS ({error})") })
            }
            Err(error) => Err(CommError::NoEtcd { at, why: self.describe(&error) }),
        };
        if answer.is_err() {
            self.next += 1;
        }
        answer
    }

    /// An answer that is no refusal.
    fn accept(&mut self, answer: Result<Value, (u64, String)>) -> Result<Value, CommError> {
        let (code, why) = match answer {
            Ok(answer) => return Ok(answer),
            Err(refusal) => refusal,
        };
        let at = self.at().to_owned();
        self.next += 1;
        Err(match PASSING.contains(&code) {
            true => CommError::NoEtcd { at, why },
            false => CommError::EtcdRefused { at, why },
        })
    }
}

impl Files {
    fn read(&self) -> Result<TlsConfig, CommError> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|error| CommError::EtcdFile { path: path.clone(), why: error.to_string() })
        };
        let wrong = |path: &PathBuf, why: &dyn std::fmt::Display| CommError::EtcdFile {
            path: path.clone(),
            why: why.to_string(),
        };
        let certificates = |path: &PathBuf| -> Result<Vec<Certificate<'static>>, CommError> {
            let text = read(path)?;
            let all = ureq::tls::parse_pem(&text).filter_map(|item| match item {
                Ok(ureq::tls::PemItem::Certificate(one)) => Some(Ok(one)),
                Ok(_) => None,
                Err(error) => Some(Err(wrong(path, &error))),
            });
            let all: Vec<_> = all.collect::<Result<_, _>>()?;
            if all.is_empty() { Err(wrong(path, &"it holds no certificate in PEM form")) } else { Ok(all) }
        };
        let trusted = certificates(&self.authority)?;
        let mut tls = TlsConfig::builder().root_certs(RootCerts::from(trusted));
        if let Some((certificate, key)) = &self.own {
            let chain = certificates(certificate)?;
            let key = PrivateKey::from_pem(&read(key)?).map_err(|error| wrong(key, &error))?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
        }
        Ok(tls.build())
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
