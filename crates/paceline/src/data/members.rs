//! The files of an archive or a folder that matter, in memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::read::GzDecoder;
use paceline_train::data::cifar10::FILES;

/// Contents of files by their names, folders left off.
pub type Members = BTreeMap<String, Vec<u8>>;

/// Labels in the npm package, as it spells them.
pub const TRAIN_LABELS: &str = "train_lables.json";
/// Those of the test.
pub const TEST_LABELS: &str = "test_lables.json";

/// No file that matters is larger: neither the records nor the strips.
pub const MOST: u64 = 64 << 20;

/// The npm package's name for the pictures of a file.
pub fn strip_name(file: &str) -> String {
    file.replace(".bin", ".png")
}

/// Reads an archive or a folder.
pub fn read(path: &Path, interrupted: &AtomicBool) -> io::Result<Members> {
    if path.is_dir() { read_folder(path) } else { read_archive(File::open(path)?, interrupted) }
}

fn read_folder(folder: &Path) -> io::Result<Members> {
    let mut members = Members::new();
    // As it is, or with the folder that the archives have.
    for folder in [folder.into(), folder.join("cifar-10-batches-bin"), folder.join("package")] {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_wanted(&name) && entry.metadata()?.len() <= MOST {
                members.insert(name, fs::read(entry.path())?);
            }
        }
    }
    Ok(members)
}

fn read_archive(file: File, interrupted: &AtomicBool) -> io::Result<Members> {
    let mut members = Members::new();
    let mut archive = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    for entry in archive.entries()? {
        let entry = entry?;
        if interrupted.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let name = entry.path()?.file_name().map(|name| name.to_string_lossy().into_owned());
        if let Some(name) = name.filter(|name| is_wanted(name)) {
            let size = entry.size();
            let mut bytes = Vec::new();
            entry.take(MOST).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            members.insert(name, bytes);
        }
    }
    Ok(members)
}

fn is_wanted(name: &str) -> bool {
    [TRAIN_LABELS, TEST_LABELS].contains(&name)
        || FILES.iter().any(|file| *file == name || strip_name(file) == name)
}
