//! Damage to files, for tests of readers: what a reader makes of it may be anything but a panic.

use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::NamedTempFile;

/// One way to damage a file.
#[derive(Clone, Debug)]
pub(super) enum Damage {
    Cut(usize),
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
}

/// Some damage, to be done to any file.
pub(super) fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let pieces = prop::sample::select(vec![
        &b"[["[..],
        b"{",
        b"\"",
        b"\n",
        b"\t",
        b"-",
        b"1e999",
        b"NaN",
        b"18446744073709551615",
        b"\xff\xff\xff\xff",
        b"-9223372036854775808",
        b"\0\0\0\0\0\0\0\0",
    ]);
    let damage = prop_oneof![
        any::<usize>().prop_map(Damage::Cut),
        (any::<usize>(), any::<u8>()).prop_map(|(at, with)| Damage::Flip(at, with)),
        (any::<usize>(), pieces).prop_map(|(at, piece)| Damage::Insert(at, piece.to_vec())),
        (any::<usize>(), 1..40_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        (any::<usize>(), 1..200_usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
    ];
    prop::collection::vec(damage, 1..6)
}

/// A file with the damage done to it.
pub(super) fn damage(file: &[u8], damages: &[Damage]) -> Vec<u8> {
    let mut file = file.to_vec();
    for damage in damages {
        let length = file.len().max(1);
        let span =
            |at: usize, size: usize| (at % length).min(file.len())..(at % length + size).min(file.len());
        match damage {
            Damage::Cut(at) => file.truncate(at % length),
            Damage::Flip(at, with) => {
                if let Some(byte) = file.get_mut(at % length) {
                    *byte ^= with;
                }
            }
            Damage::Insert(at, piece) => drop(file.splice(span(*at, 0), piece.iter().copied())),
            Damage::Remove(at, size) => drop(file.drain(span(*at, *size))),
            Damage::Repeat(at, size) => {
                let part = file[span(*at, *size)].to_vec();
                file.splice(span(*at, 0), part);
            }
        }
    }
    file
}

/// A file of these bytes, for as long as the handle lives.
pub(super) fn file_of(bytes: impl AsRef<[u8]>) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes.as_ref()).expect("room for it");
    file
}

/// A real file that is not part of the project; `None` where the folder of samples is not present.
pub(super) fn sample(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["../../../shared/samples", "../../../../shared/samples"];
    places.iter().map(|place| root.join(place).join(name)).find(|path| path.exists())
}
