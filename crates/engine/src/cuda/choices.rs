//! The fastest way to compute each product, remembered on disk.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::kernels::{cache_folder, digest, keep};
use crate::{Algorithm, Way};

/// Their names in the file.
const WAYS: [(&str, Way); 3] = [("gemm", Way::Gemm), ("cudnn", Way::Cudnn), ("unrolled", Way::Unrolled)];

/// Goes up when the numbers of a list come to name other algorithms, or the file's form changes.
const LISTS: u32 = 4;

/// Choices made before, on this GPU with these libraries.
#[derive(Debug, Default)]
pub(super) struct Choices {
    known: HashMap<String, Algorithm>,
    path: Option<PathBuf>,
    changed: bool,
}

impl Choices {
    /// Those of the disk. `machine` names the GPU and the versions.
    pub fn load(machine: &str) -> Self {
        let name = format!("choices-{:016x}.txt", digest(&format!("{machine} {LISTS}")));
        let path = cache_folder().map(|folder| folder.join(name));
        let text = path.as_ref().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let known = text.lines().filter_map(parse).map(|known| (known.product.clone(), known)).collect();
        Self { known, path, changed: false }
    }

    pub fn get(&self, product: &str) -> Option<Algorithm> {
        self.known.get(product).cloned()
    }

    pub fn remember(&mut self, algorithm: &Algorithm) {
        self.known.insert(algorithm.product.clone(), algorithm.clone());
        self.changed = true;
    }

    /// Writes what was found since.
    pub fn save(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| std::mem::take(&mut self.changed)) else { return };
        let mut all: Vec<_> = self.known.values().collect();
        all.sort_by_key(|known| &known.product);
        keep(path, all.into_iter().map(write).collect::<String>().as_bytes());
    }
}

fn parse(line: &str) -> Option<Algorithm> {
    let mut words = line.split(' ');
    let (product, named, number, name) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let (_, way) = WAYS.into_iter().find(|(name, _)| *name == named)?;
    Some(Algorithm { product: product.into(), way, number: number.parse().ok()?, name: name.into() })
}

fn write(Algorithm { product, way, number, name }: &Algorithm) -> String {
    let (named, _) = WAYS.into_iter().find(|(_, known)| known == way).expect("invariant: all are there");
    let mut line = String::new();
    writeln!(line, "{product} {named} {number} {name}").expect("invariant: a string takes all");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_was_written() {
        for (_, way) in WAYS {
            for name in ["eng38_k2=1", ""] {
                let known = Algorithm { product: "Data/fp32/n2".into(), way, number: 7, name: name.into() };
                assert_eq!(parse(write(&known).trim_end_matches('\n')), Some(known));
            }
        }
        assert_eq!(parse("Data/fp32/n2 gemm 7"), None, "a line of an older form");
        assert_eq!(parse("Data/fp32/n2 guess 7 "), None);
    }
}
