//! What hosts keep in etcd, below the prefix of their job.
//!
//! | key | value | lives |
//! |---|---|---|
//! | `first` | who is first, and where it is called | with the lease of that host |
//! | `roster` | the newest roster that was granted | until the run has ended well |
//! | `hosts/N` | a host that is there | with the lease of that host |

use std::collections::BTreeMap;
use std::net::SocketAddr;

use paceline_record::Host;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Access, Etcd, coded, decoded, number};
use crate::CommError;
use crate::tasks::registry::{Entry, Record};

/// Who is first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstNote {
    /// A number that its launcher has drawn.
    pub by: u64,
    /// Its number among hosts.
    pub host: Host,
    /// Where others call it.
    pub at: SocketAddr,
}

/// A host that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNote {
    /// What tells the run from others.
    pub run: u64,
    /// The host's name.
    pub name: String,
}

/// All that is there at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Who is first.
    pub first: Option<FirstNote>,
    /// The newest roster.
    pub entry: Option<Entry>,
    /// Hosts whose leases have not run out.
    pub hosts: BTreeMap<Host, HostNote>,
}

impl Look {
    /// Whether hosts of the run that was last written down are still there: whoever comes now may not begin another one.
    pub fn is_inhabited(&self) -> bool {
        let run = self.entry.as_ref().map(|entry| entry.record.run);
        self.hosts.values().any(|host| Some(host.run) == run)
    }
}

/// The keys of a job.
pub struct Registry {
    etcd: Etcd,
    prefix: String,
    lease: Option<u64>,
}

impl Registry {
    /// Below a prefix. Nothing is asked yet.
    pub fn new(access: Access, prefix: &str) -> Result<Self, CommError> {
        Ok(Self {
            etcd: Etcd::new(access)?,
            prefix: format!("{}/", prefix.trim_end_matches('/')),
            lease: None,
        })
    }

    /// Where it is, in words.
    pub fn place(&self) -> String {
        format!("etcd at {}", self.etcd.access.at.join(", "))
    }

    fn key(&self, name: &str) -> String {
        coded(format!("{}{name}", self.prefix).as_bytes())
    }

    /// What is there.
    pub fn look(&mut self) -> Result<Look, CommError> {
        // All keys behind the prefix: up to the one with a last letter that is one higher.
        let mut end = self.prefix.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = json!({ "key": self.key(""), "range_end": coded(&end) });
        let answer = self.etcd.ask("kv/range", &range)?;
        let mut look = Look::default();
        for pair in answer["kvs"].as_array().into_iter().flatten() {
            let Some(key) = decoded(&pair["key"]).and_then(|key| String::from_utf8(key).ok()) else {
                continue;
            };
            match key.strip_prefix(&self.prefix) {
                Some("first") => look.first = read(pair),
                Some("roster") => look.entry = self.entry(pair)?,
                Some(name) => {
                    let host = name.strip_prefix("hosts/").and_then(|host| host.parse().ok()).map(Host);
                    look.hosts.extend(host.zip(read(pair)));
                }
                None => {}
            }
        }
        Ok(look)
    }

    /// What is written down as a roster. Something else there is somebody else's.
    fn entry(&self, pair: &Value) -> Result<Option<Entry>, CommError> {
        if pair.is_null() {
            return Ok(None);
        }
        let record = read::<Record>(pair).ok_or_else(|| CommError::EtcdRefused {
            at: self.etcd.at().to_owned(),
            why: format!(
                "{}roster holds what no run of this version has written; use another prefix",
                self.prefix
            ),
        })?;
        Ok(Some(Entry { revision: number(&pair["mod_revision"]), record }))
    }

    /// Takes a lease of so many seconds, or keeps the one that there is; whether it is a new one, without any key.
    pub fn keep(&mut self, seconds: u64) -> Result<bool, CommError> {
        if let Some(lease) = self.lease {
            let answer = self.etcd.ask("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
            if number(&answer["result"]["TTL"]) > 0 {
                return Ok(false);
            }
            self.lease = None;
        }
        let answer = self.etcd.ask("lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let lease = Some(number(&answer["ID"])).filter(|&lease| lease > 0);
        let none =
            || CommError::NoEtcd { at: self.etcd.at().to_owned(), why: "it has given no lease".into() };
        self.lease = Some(lease.ok_or_else(none)?);
        Ok(true)
    }

    fn leased(&self, name: &str, value: &impl Serialize) -> Value {
        let value = serde_json::to_vec(value).expect("invariant: plain data");
        json!({ "key": self.key(name), "value": coded(&value), "lease": self.lease.unwrap_or(0).to_string() })
    }

    /// Says that a host is there, as long as its lease is kept.
    pub fn enter(&mut self, host: Host, note: &HostNote) -> Result<(), CommError> {
        let put = self.leased(&format!("hosts/{host}"), note);
        self.etcd.ask("kv/put", &put).map(drop)
    }

    /// Becomes first, as long as the lease is kept, where nobody is; whoever is first then.
    pub fn claim(&mut self, note: &FirstNote) -> Result<FirstNote, CommError> {
        let key = self.key("first");
        let answer = self.etcd.ask(
            "kv/txn",
            &json!({
                "compare": [{ "key": key, "target": "VERSION", "result": "EQUAL", "version": "0" }],
                "success": [{ "request_put": self.leased("first", note) }],
                "failure": [{ "request_range": { "key": key } }],
            }),
        )?;
        if answer["succeeded"] == true {
            return Ok(note.clone());
        }
        let found = read(&answer["responses"][0]["response_range"]["kvs"][0]);
        found.ok_or_else(|| CommError::EtcdRefused {
            at: self.etcd.at().to_owned(),
            why: format!(
                "{}first holds what no run of this version has written; use another prefix",
                self.prefix
            ),
        })
    }

    /// Writes a roster down in the place of that change, 0 for nothing, if that is what is there: the new change, or what is there.
    pub fn swap(&mut self, known: u64, record: &Record) -> Result<Result<u64, Option<Entry>>, CommError> {
        let key = self.key("roster");
        let value = coded(&serde_json::to_vec(record).expect("invariant: plain data"));
        let answer = self.etcd.ask(
            "kv/txn",
            &json!({
                "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": known.to_string() }],
                "success": [{ "request_put": { "key": key, "value": value } }],
                "failure": [{ "request_range": { "key": key } }],
            }),
        )?;
        if answer["succeeded"] == true {
            return Ok(Ok(number(&answer["header"]["revision"])));
        }
        Ok(Err(self.entry(&answer["responses"][0]["response_range"]["kvs"][0])?))
    }

    /// Forgets a run that has ended, if its roster is what is there, and gives the lease up.
    pub fn clear(&mut self, run_at: Option<u64>) -> Result<(), CommError> {
        if let Some(known) = run_at {
            let key = self.key("roster");
            let delete = json!({
                "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": known.to_string() }],
                "success": [{ "request_delete_range": { "key": key } }],
            });
            self.etcd.ask("kv/txn", &delete)?;
        }
        if let Some(lease) = self.lease.take() {
            self.etcd.ask("lease/revoke", &json!({ "ID": lease.to_string() }))?;
        }
        Ok(())
    }
}

/// The value of a pair of the gateway.
fn read<T: DeserializeOwned>(pair: &Value) -> Option<T> {
    serde_json::from_slice(&decoded(&pair["value"])?).ok()
}
