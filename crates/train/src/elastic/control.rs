//! How others ask a running training: a socket in its folder, open to its user alone.
//!
//! A socket's path has 108 bytes at most, and a folder's may be longer. So both sides go through the folder's own descriptor,
//! whose path under `/proc/self/fd` is short.

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::TrainError;

/// The socket's name in the folder of a run.
pub const SOCKET: &str = "control.sock";

/// How long the other side may take for a line.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long an answer may take: a launcher that writes a checkpoint answers when that is done.
const ANSWER: Duration = Duration::from_secs(60);

/// What a running training can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// How it goes.
    Status,
    /// To go on with so many workers.
    Scale(u32),
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// How it goes.
    Status(Box<Status>),
    /// It will go on with so many workers from its next step on.
    Scaled {
        /// Workers that there will be.
        workers: u32,
        /// What that means for cores and threads.
        means: String,
    },
    /// It will not, and why.
    Refused(String),
}

/// How a running training goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The network.
    pub model: String,
    /// The process of the launcher.
    pub pid: u32,
    /// Steps done.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// Images per second over the last seconds; `None` before the first step.
    pub images_per_s: Option<f64>,
    /// Workers asked for.
    pub workers: u32,
    /// The fewest that it goes on with.
    pub min: u32,
    /// The most that there can be.
    pub max: u32,
    /// Rosters so far.
    pub generation: u64,
    /// Whether it stands still because there are too few.
    pub waits: bool,
    /// Seconds since it began.
    pub seconds: f64,
    /// The hosts, as the first of them knows them; none where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostStatus>,
    /// Who is there, on this host.
    pub members: Vec<MemberStatus>,
    /// What happened last, the newest at the end.
    pub events: Vec<EventStatus>,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its number.
    pub host: u32,
    /// Its name.
    pub name: String,
    /// Workers that it was asked to have.
    pub workers: u32,
    /// Shards of each step.
    pub shards: u32,
    /// `training`, `following` while it has no shards yet, or `coming`.
    pub state: String,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its number.
    pub member: u32,
    /// Its process.
    pub pid: u32,
    /// Its rank; `None` while it is not in the roster.
    pub rank: Option<u32>,
    /// `starting`, `training` or `leaving`.
    pub state: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventStatus {
    /// Seconds after the beginning.
    pub seconds: f64,
    /// What, in words.
    pub what: String,
}

/// The launcher's end. The socket goes with it.
pub(crate) struct Control {
    listener: UnixListener,
    folder: PathBuf,
}

/// A path to the socket that is short enough, as long as the file is open.
fn short_path(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()))
}

impl Control {
    /// Listens in a folder.
    pub fn open(folder: &Path) -> Result<Self, TrainError> {
        let refused = || TrainError::system(format!("open {}", folder.join(SOCKET).display()));
        let open = File::open(folder).map_err(refused())?;
        let path = short_path(&open);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused()(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(refused())?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(refused())?;
        listener.set_nonblocking(true).map_err(refused())?;
        Ok(Self { listener, folder: folder.into() })
    }

    /// Answers whoever has asked. Who asks nonsense, or nothing in time, gets no answer; that is not the training's trouble.
    pub fn serve(&self, mut answer: impl FnMut(Request) -> Answer) {
        while let Ok((stream, _)) = self.listener.accept() {
            let _ = respond(&stream, &mut answer);
        }
    }
}

fn respond(stream: &UnixStream, answer: &mut impl FnMut(Request) -> Answer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let mut line = String::new();
    io::Read::take(&mut BufReader::new(stream), 4096).read_line(&mut line)?;
    let own = rustix::process::geteuid();
    let reply = match serde_json::from_str(&line) {
        _ if peer.uid != own && !peer.uid.is_root() => {
            Answer::Refused("this training is another user's".into())
        }
        Ok(request) => answer(request),
        Err(_) => Answer::Refused("that is no request".into()),
    };
    let mut text = serde_json::to_string(&reply).expect("invariant: an answer is plain data");
    text.push('\n');
    (&mut &*stream).write_all(text.as_bytes())
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Whoever finds it finds that nobody listens.
        let _ = fs::remove_file(self.folder.join(SOCKET));
    }
}

/// Asks the training that runs in a folder; `None` where none does.
pub fn ask(folder: &Path, request: &Request) -> Result<Option<Answer>, TrainError> {
    let refused = || TrainError::system(format!("ask the training in {}", folder.display()));
    let open = match File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        open => open.map_err(refused())?,
    };
    let stream = match UnixStream::connect(short_path(&open)) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        stream => stream.map_err(refused())?,
    };
    stream.set_read_timeout(Some(ANSWER)).map_err(refused())?;
    let mut text = serde_json::to_string(request).expect("invariant: a request is plain data");
    text.push('\n');
    (&mut &stream).write_all(text.as_bytes()).map_err(refused())?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(refused())?;
    let answer = serde_json::from_str(&line);
    answer.map(Some).map_err(|error| refused()(io::Error::other(format!("'{}': {error}", line.trim()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder whose path no socket could have.
    fn deep() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().expect("a folder");
        let deep = (0..8).fold(root.path().to_owned(), |path, _| path.join("a-rather-long-name-of-a-folder"));
        fs::create_dir_all(&deep).expect("a deep folder");
        (root, deep)
    }

    #[test]
    fn a_training_in_a_deep_folder_is_asked_and_answers() {
        let (_root, folder) = deep();
        assert_eq!(ask(&folder, &Request::Status).expect("nobody there"), None);
        let control = Control::open(&folder).expect("a socket");
        let mode = fs::metadata(folder.join(SOCKET)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o077, 0);
        let asked = std::thread::spawn({
            let folder = folder.clone();
            move || ask(&folder, &Request::Scale(3)).expect("an answer")
        });
        while !asked.is_finished() {
            control.serve(|request| Answer::Refused(format!("{request:?}")));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(asked.join().expect("no panic"), Some(Answer::Refused("Scale(3)".into())));
        drop(control);
        assert_eq!(ask(&folder, &Request::Status).expect("nobody there"), None);
        assert!(!folder.join(SOCKET).exists());
    }

    #[test]
    fn a_socket_that_a_dead_launcher_left_is_nobody_and_is_replaced() {
        let (_root, folder) = deep();
        let control = Control::open(&folder).expect("a socket");
        std::mem::forget(control.listener.try_clone().expect("a copy"));
        // As after a kill: the file stays, and nobody listens.
        let listener = UnixListener::bind(folder.parent().expect("a parent").join("x")).is_ok();
        assert!(!listener, "the path is too long for a socket");
        drop(control);
        Control::open(&folder).expect("another socket");
    }

    #[test]
    fn nonsense_and_silence_do_no_harm() {
        let (_root, folder) = deep();
        let control = Control::open(&folder).expect("a socket");
        let open = File::open(&folder).expect("a folder");
        let silent = UnixStream::connect(short_path(&open)).expect("connected");
        let mut loud = UnixStream::connect(short_path(&open)).expect("connected");
        loud.write_all(b"{\"scale\": \"many\"}\n").expect("written");
        control.serve(|request| panic!("{request:?} was never asked"));
        let mut line = String::new();
        BufReader::new(&loud).read_line(&mut line).expect("an answer");
        assert!(line.contains("no request"), "{line}");
        drop(silent);
    }
}
