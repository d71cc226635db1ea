//! Folders of checkpoints: written whole or not at all, the last few kept.
//!
//! `step-<steps>` is a checkpoint. `.step-<steps>.new` is being written and `.step-<steps>.old` is being deleted: names that
//! begin with `.step-` are never read and belong to nobody once their writer has gone.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::CheckpointError;

/// No file of a checkpoint is longer: what claims to be is not read into memory.
const LONGEST: u64 = 16 << 30;

fn name(steps: u64) -> String {
    format!("step-{steps:08}")
}

/// The step of a checkpoint's folder, by its name.
pub(super) fn parse_step(folder: &Path) -> Option<u64> {
    let found = folder.file_name()?.to_str()?;
    let steps = found.strip_prefix("step-")?.parse().ok()?;
    (name(steps) == found).then_some(steps)
}

/// The checkpoints under `root`, the newest last; none if there is no such folder.
pub(super) fn list(root: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let paths = entries(root)?.into_iter();
    let mut found: Vec<_> = paths.filter_map(|path| Some((parse_step(&path)?, path))).collect();
    found.sort();
    Ok(found)
}

fn entries(root: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    match fs::read_dir(root) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
    .map_err(CheckpointError::io("read", root))
}

/// Whether there is something of this name.
pub(super) fn exists(path: &Path) -> Result<bool, CheckpointError> {
    match path.try_exists() {
        Err(error) if error.kind() != io::ErrorKind::NotADirectory => {
            Err(CheckpointError::io("read", path)(error))
        }
        found => Ok(found.unwrap_or(false)),
    }
}

/// The length of a file that must be there.
pub(super) fn length(path: &Path) -> Result<u64, CheckpointError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(CheckpointError::damaged(path, "it is not a file")),
        Ok(found) if found.len() > LONGEST => Err(CheckpointError::foreign(
            path,
            format!("{} bytes are more than any network has", found.len()),
        )),
        Ok(found) => Ok(found.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(CheckpointError::damaged(path, "it is missing"))
        }
        Err(error) => Err(CheckpointError::io("read", path)(error)),
    }
}

/// The contents of a file that must be there.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = Vec::with_capacity(length(path)? as usize);
    let file = File::open(path).map_err(CheckpointError::io("read", path))?;
    file.take(LONGEST).read_to_end(&mut bytes).map_err(CheckpointError::io("read", path))?;
    Ok(bytes)
}

/// The folder that a checkpoint will have, under a root that there is from now on.
pub(super) fn prepare(root: &Path, steps: u64) -> Result<PathBuf, CheckpointError> {
    fs::create_dir_all(root).map_err(CheckpointError::io("create", root))?;
    Ok(root.join(name(steps)))
}

/// Writes a checkpoint's files and gives it its name when all of them are on the disk.
pub(super) fn place(root: &Path, steps: u64, files: &[(&str, &Vec<u8>)]) -> Result<PathBuf, CheckpointError> {
    let path = prepare(root, steps)?;
    sweep(root)?;
    let draft = root.join(format!(".{}.new", name(steps)));
    let placed = draft_files(&draft, files).and_then(|()| {
        exchange(&draft, &path).map_err(CheckpointError::io("put in its place", &path))?;
        sync(root)
    });
    if placed.is_err() {
        // A full disk gets its room back. If even this fails, the next write tries again.
        let _ = fs::remove_dir_all(&draft);
    }
    placed?;
    sweep(root)?;
    Ok(path)
}

fn draft_files(draft: &Path, files: &[(&str, &Vec<u8>)]) -> Result<(), CheckpointError> {
    fs::create_dir(draft).map_err(CheckpointError::io("create", draft))?;
    for (name, bytes) in files {
        let path = draft.join(name);
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(CheckpointError::io("write", &path))?;
    }
    sync(draft)
}

/// Renames `draft` to `path`. What stood there takes the hidden name, in the same instant where the file system can.
fn exchange(draft: &Path, path: &Path) -> io::Result<()> {
    if !path.try_exists()? {
        return fs::rename(draft, path);
    }
    if renameat_with(CWD, draft, CWD, path, RenameFlags::EXCHANGE).is_err() {
        fs::rename(path, draft.with_extension("old"))?;
        fs::rename(draft, path)?;
    }
    Ok(())
}

/// Deletes all checkpoints up to `steps` but the last `keep`.
pub(super) fn retain(root: &Path, steps: u64, keep: NonZeroUsize) -> Result<(), CheckpointError> {
    let mut found = list(root)?;
    found.retain(|&(step, _)| step <= steps);
    found.truncate(found.len().saturating_sub(keep.get()));
    for (step, path) in found {
        // Under its own name, one that is deleted by halves would pass for a damaged one.
        let hidden = root.join(format!(".{}.old", name(step)));
        fs::rename(&path, &hidden).map_err(CheckpointError::io("delete", &path))?;
    }
    sweep(root)
}

/// Deletes what writers left behind.
fn sweep(root: &Path) -> Result<(), CheckpointError> {
    let hidden =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".step-"));
    for path in entries(root)?.into_iter().filter(hidden).filter(|path| path.is_dir()) {
        fs::remove_dir_all(&path).map_err(CheckpointError::io("delete", &path))?;
    }
    Ok(())
}

pub(super) fn abandon_later(root: &Path, steps: u64) -> Result<(), CheckpointError> {
    for (step, path) in list(root)?.into_iter().filter(|&(step, _)| step > steps) {
        let aside = root.join(format!("{}.abandoned", name(step)));
        if exists(&aside)? {
            fs::remove_dir_all(&aside).map_err(CheckpointError::io("delete", &aside))?;
        }
        fs::rename(&path, &aside).map_err(CheckpointError::io("rename", &path))?;
    }
    Ok(())
}

fn sync(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(CheckpointError::io("write", folder))
}
