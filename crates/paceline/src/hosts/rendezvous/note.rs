//! The note in a shared folder that says where the first host is.
//!
//! It is written whole, under another name, and put in place by a link, which only one host can make where there is none. Where
//! the host of a note is gone, its successor is whoever makes another link, the *turn*, which is named after that note; only who has
//! the turn may replace the note or take it away.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::outcome::Usage;

/// The name of the file.
pub const NAME: &str = "rendezvous";

/// What is in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where its host is or was.
    pub at: SocketAddr,
    text: String,
}

impl Found {
    /// The note of a folder, if there is one.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let at = text.split_once(' ').and_then(|(at, _)| at.parse().ok());
        let at = at.ok_or_else(|| {
            Usage::new(format!("{} is no note of a first host; name another folder", path.display()))
        })?;
        Ok(Some(Self { at, text }))
    }
}

/// What became of a note that was to be put in place.
pub enum Put {
    /// It is there.
    Done(Note),
    /// Somebody else has put one there, or taken one away.
    Late,
    /// Somebody else has the turn.
    Busy(PathBuf),
}

/// This host's own note, in its place. It is taken away when this is dropped.
pub struct Note {
    folder: PathBuf,
    text: String,
}

impl Note {
    /// Puts a note into a folder that has none, or only that of a host that is gone.
    pub fn put(folder: &Path, at: SocketAddr, gone: Option<&Found>) -> Result<Put> {
        // Unlike any other, whichever hosts share the folder.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mark = format!("{}-{}", std::process::id(), now.as_nanos());
        let draft = folder.join(format!(".{}-{mark}", at.port()));
        let note = Self { folder: folder.into(), text: format!("{at} {mark}\n") };
        let refused = |what: &str, path: &Path| format!("cannot {what} {}", path.display());
        fs::write(&draft, &note.text).with_context(|| refused("write", &draft))?;
        let place = folder.join(NAME);
        let put = match gone {
            None => link(&draft, &place).map(|is_made| if is_made { Put::Done(note) } else { Put::Late }),
            Some(gone) => {
                in_turn(folder, &gone.text, &draft, || fs::rename(&draft, &place).map(|()| Put::Done(note)))
            }
        };
        // It is in its place or not needed.
        let _ = fs::remove_file(&draft);
        put.with_context(|| refused("link", &place))
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let place = self.folder.join(NAME);
        // Whoever comes next replaces what could not be taken away.
        let _ = in_turn(&self.folder, &self.text, &place, || fs::remove_file(&place).map(|()| Put::Late));
    }
}

/// Makes a link; whether there was none.
fn link(from: &Path, to: &Path) -> io::Result<bool> {
    match fs::hard_link(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Does something to a note that must still be there, while nobody else does.
fn in_turn(
    folder: &Path,
    text: &str,
    some: &Path,
    change: impl FnOnce() -> io::Result<Put>,
) -> io::Result<Put> {
    let name: String = text.chars().filter(char::is_ascii_alphanumeric).take(100).collect();
    let turn = folder.join(format!(".after-{name}"));
    if !link(some, &turn)? {
        return Ok(Put::Busy(turn));
    }
    let is_same = fs::read_to_string(folder.join(NAME)).is_ok_and(|found| found == text);
    let put = if is_same { change() } else { Ok(Put::Late) };
    // Nobody waits for it once the note has changed.
    let _ = fs::remove_file(&turn);
    put
}
