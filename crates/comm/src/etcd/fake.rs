//! A small etcd for tests: what [`Registry`](super::Registry) asks of the JSON gateway, in this process, and as wicked as a test wants.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// An etcd on loopback, which goes with the test.
pub struct FakeEtcd {
    pub at: SocketAddr,
    store: Arc<Mutex<Store>>,
}

#[derive(Default)]
struct Store {
    revision: u64,
    pairs: BTreeMap<Vec<u8>, Pair>,
    leases: BTreeMap<u64, (u64, Instant)>,
    /// The password, where one is wanted, and the token of whoever has given it.
    password: Option<String>,
    token: u64,
    /// Whether calls get no answer.
    is_down: bool,
}

#[derive(Clone)]
struct Pair {
    value: Vec<u8>,
    revision: u64,
    version: u64,
    lease: u64,
}

fn bytes(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64")
}

fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

impl FakeEtcd {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("an address");
        let store = Arc::new(Mutex::new(Store::default()));
        let served = store.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = served.clone();
                // A broken connection is the caller's affair.
                thread::spawn(move || serve(stream, &store).ok());
            }
        });
        Self { at, store }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers nobody, or does again.
    #[allow(unused)]
    pub fn set_down(&self, is_down: bool) {
        self.store().is_down = is_down;
    }

    /// Loses all data.
    #[allow(unused)]
    pub fn forget(&self) {
        let mut store = self.store();
        store.pairs.clear();
        store.leases.clear();
    }

    /// Wants a password from now on, and knows no token of before.
    #[allow(unused)]
    pub fn lock(&self, password: &str) {
        let mut store = self.store();
        (store.password, store.token) = (Some(password.into()), store.token + 1);
    }

    /// Writes something down.
    #[allow(unused)]
    pub fn put(&self, key: &str, value: &str) {
        self.store().put(key.as_bytes().to_vec(), value.as_bytes().to_vec(), 0);
    }

    /// The keys that are there, and their values as text.
    #[allow(unused)]
    pub fn pairs(&self) -> BTreeMap<String, String> {
        let mut store = self.store();
        store.expire();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        store.pairs.iter().map(|(key, pair)| (text(key), text(&pair.value))).collect()
    }
}

fn serve(stream: TcpStream, store: &Mutex<Store>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let (mut path, mut length, mut token) = (String::new(), 0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("POST /v3/") {
                path = rest.split(' ').next().unwrap_or_default().into();
            } else if let Some(rest) = lower.strip_prefix("content-length: ") {
                length = rest.parse().unwrap_or(0);
            } else if let Some(rest) =
                line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
            {
                token = rest.1.into();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = {
            let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
            if store.is_down {
                return Ok(());
            }
            store.expire();
            store.answer(&path, &asked, &token)
        };
        let status = if answer.get("error").is_some() { "400 Bad Request" } else { "200 OK" };
        let text = answer.to_string();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )?;
    }
}

impl Store {
    fn expire(&mut self) {
        let now = Instant::now();
        self.leases.retain(|_, (_, until)| *until > now);
        let leases = &self.leases;
        self.pairs.retain(|_, pair| pair.lease == 0 || leases.contains_key(&pair.lease));
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>, lease: u64) {
        self.revision += 1;
        let version = self.pairs.get(&key).map_or(0, |pair| pair.version) + 1;
        self.pairs.insert(key, Pair { value, revision: self.revision, version, lease });
    }

    fn answer(&mut self, path: &str, asked: &Value, token: &str) -> Value {
        if path == "auth/authenticate" {
            return match self.password.as_deref() == asked["password"].as_str() {
                true => json!({ "token": format!("token.{}", self.token) }),
                false => {
                    json!({ "error": "etcdserver: authentication failed, invalid user ID or password", "code": 3 })
                }
            };
        }
        if self.password.is_some() && token != format!("token.{}", self.token) {
            let (error, code) = match token {
                "" => ("etcdserver: user name is empty", 3),
                _ => ("etcdserver: invalid auth token", 16),
            };
            return json!({ "error": error, "code": code });
        }
        match path {
            "kv/range" => self.range(asked),
            "kv/put" => self.request(&json!({ "request_put": asked })),
            "kv/txn" => self.transact(asked),
            "lease/grant" => {
                self.revision += 1;
                let (id, seconds) = (7_000 + self.revision, number(&asked["TTL"]));
                self.leases.insert(id, (seconds, Instant::now() + Duration::from_secs(seconds)));
                json!({ "ID": id.to_string(), "TTL": seconds.to_string() })
            }
            "lease/keepalive" => {
                let Some((seconds, until)) = self.leases.get_mut(&number(&asked["ID"])) else {
                    return json!({ "result": { "ID": asked["ID"] } });
                };
                *until = Instant::now() + Duration::from_secs(*seconds);
                json!({ "result": { "ID": asked["ID"], "TTL": seconds.to_string() } })
            }
            "lease/revoke" => {
                self.leases.remove(&number(&asked["ID"]));
                self.expire();
                json!({})
            }
            _ => json!({ "error": "Not Found", "code": 5 }),
        }
    }

    fn range(&self, asked: &Value) -> Value {
        let from = bytes(&asked["key"]);
        let end = asked.get("range_end").map(bytes);
        let is_in = |key: &Vec<u8>| match &end {
            Some(end) => *key >= from && key < end,
            None => *key == from,
        };
        let pairs = self.pairs.iter().filter(|(key, _)| is_in(key)).map(|(key, pair)| {
            json!({
                "key": BASE64_STANDARD.encode(key),
                "value": BASE64_STANDARD.encode(&pair.value),
                "mod_revision": pair.revision.to_string(),
                "version": pair.version.to_string(),
            })
        });
        let pairs: Vec<Value> = pairs.collect();
        json!({ "header": { "revision": self.revision.to_string() }, "kvs": pairs })
    }

    fn request(&mut self, one: &Value) -> Value {
        if let Some(put) = one.get("request_put") {
            self.put(bytes(&put["key"]), bytes(&put["value"]), number(&put["lease"]));
            return json!({ "response_put": {} });
        }
        if let Some(range) = one.get("request_range") {
            return json!({ "response_range": self.range(range) });
        }
        self.pairs.remove(&bytes(&one["request_delete_range"]["key"]));
        json!({ "response_delete_range": {} })
    }

    fn transact(&mut self, asked: &Value) -> Value {
        let holds = asked["compare"].as_array().into_iter().flatten().all(|compare| {
            let pair = self.pairs.get(&bytes(&compare["key"]));
            match compare["target"].as_str() {
                Some("VERSION") => pair.map_or(0, |pair| pair.version) == number(&compare["version"]),
                _ => pair.map_or(0, |pair| pair.revision) == number(&compare["mod_revision"]),
            }
        });
        let branch = if holds { "success" } else { "failure" };
        let requests: Vec<Value> = asked[branch].as_array().cloned().unwrap_or_default();
        let responses: Vec<Value> = requests.iter().map(|one| self.request(one)).collect();
        json!({ "header": { "revision": self.revision.to_string() }, "succeeded": holds, "responses": responses })
    }
}
