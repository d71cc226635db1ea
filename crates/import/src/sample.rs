//! Files for tests of readers.

use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A temporary file with these bytes.
pub(super) fn file_of(bytes: impl AsRef<[u8]>) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes.as_ref()).expect("room for it");
    file
}

/// A real file that is not part of the project; `None` if the folder of samples is missing.
pub(super) fn sample(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["../../../shared/samples", "../../../../shared/samples"];
    places.iter().map(|place| root.join(place).join(name)).find(|path| path.exists())
}
