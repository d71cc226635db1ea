//! Logs of another host on their way to the first.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use super::letter::Letter;

/// Bytes of a piece.
const PIECE: usize = 1 << 20;

/// Bytes that a host may send.
const MOST: u64 = 16 << 30;

/// The folder for the logs of a host. They are drafts until all are there.
pub(super) struct Store {
    folder: PathBuf,
    bytes: u64,
}

impl Store {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, bytes: 0 }
    }

    /// Whether a file of this name is one of a run's logs.
    pub fn takes(name: &str) -> bool {
        let plain = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
        let kinds = [".jsonl", ".stderr", ".txt"];
        plain && !name.starts_with('.') && name.len() < 64 && kinds.iter().any(|kind| name.ends_with(kind))
    }

    /// Letters that carry files, and the one that ends them.
    pub fn pieces(files: Vec<(String, String)>) -> VecDeque<Letter> {
        let mut pieces = VecDeque::new();
        for (name, text) in files {
            let mut rest = &text[..];
            loop {
                let mut end = rest.len().min(PIECE);
                while !rest.is_char_boundary(end) {
                    end -= 1;
                }
                pieces.push_back(Letter::File { name: name.clone(), text: rest[..end].into() });
                rest = &rest[end..];
                if rest.is_empty() {
                    break;
                }
            }
        }
        pieces.push_back(Letter::File { name: String::new(), text: String::new() });
        pieces
    }

    fn draft(&self) -> PathBuf {
        self.folder.with_extension("part")
    }

    pub fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        if !Self::takes(name) {
            return Err(io::Error::other(format!("'{name}' is not the name of a log")));
        }
        self.bytes += text.len() as u64;
        if self.bytes > MOST {
            return Err(io::Error::other(format!("they are longer than {MOST} bytes")));
        }
        fs::create_dir_all(self.draft())?;
        let mut file = OpenOptions::new().create(true).append(true).open(self.draft().join(name))?;
        file.write_all(text.as_bytes())
    }

    /// All are there.
    pub fn finish(&self) -> io::Result<()> {
        if self.draft().is_dir() {
            fs::rename(self.draft(), &self.folder)
        } else {
            fs::create_dir_all(&self.folder)
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // What is not whole is nobody's.
        let _ = fs::remove_dir_all(self.draft());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_are_taken() {
        for name in ["launcher.jsonl", "member-0.jsonl", "porter.jsonl", "member-3.stderr", "samples.txt"] {
            assert!(Store::takes(name), "{name}");
        }
        for name in ["", "../launcher.jsonl", "a/b.jsonl", ".jsonl", "weights.safetensors", "x\0.txt"] {
            assert!(!Store::takes(name), "{name}");
        }
    }

    #[test]
    fn files_come_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path().join("host-1");
        let text = "ä".repeat(PIECE);
        let mut pieces = Store::pieces(vec![
            ("launcher.jsonl".into(), text.clone()),
            ("porter.jsonl".into(), String::new()),
        ]);
        let last = pieces.pop_back().expect("the end");
        assert_eq!(last, Letter::File { name: String::new(), text: String::new() });
        let carry = |store: &mut Store| {
            for piece in &pieces {
                let Letter::File { name, text } = piece else { panic!("{piece:?}") };
                store.add(name, text).expect("room");
            }
        };
        carry(&mut Store::new(place.clone()));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        let mut store = Store::new(place.clone());
        carry(&mut store);
        store.finish().expect("it is moved");
        drop(store);
        assert_eq!(fs::read_to_string(place.join("launcher.jsonl")).expect("a file"), text);
        assert!(place.join("porter.jsonl").exists());
    }
}
