//! Which samples an elastic run used: what its members noted, each batch once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paceline_record::Member;

use crate::TrainError;
use crate::worker::runner::samples_file;

/// The file of a finished run.
pub const SAMPLES_FILE: &str = "samples.txt";

/// Puts the notes of all members into one file. A shard that was begun twice is noted twice, by the lost member and by the
/// one that did it again, with the same samples; it counts once. Notes that differ would mean that a sample was used twice or not
/// at all.
pub(super) fn merge(folder: &Path, members: impl Iterator<Item = Member>) -> Result<(), TrainError> {
    let mut shards: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
    for member in members {
        let path = samples_file(folder, member.0);
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let mut own: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
        // The last line of a lost member may be torn.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut words = line.split(' ').skip(1).map(str::parse);
            if let (Some(Ok(step)), Some(Ok(shard))) = (words.next(), words.next()) {
                own.entry((step, shard)).or_default().push(line.to_owned());
            }
        }
        for (key, lines) in own {
            let known = shards.entry(key).or_default();
            let common = known.len().min(lines.len());
            if known[..common] != lines[..common] {
                let why = format!("members disagree on the samples of shard {} in step {}", key.1, key.0);
                return Err(TrainError::system(format!("merge {}", path.display()))(std::io::Error::other(
                    why,
                )));
            }
            if lines.len() > known.len() {
                *known = lines;
            }
        }
    }
    let path = folder.join(SAMPLES_FILE);
    let lines: Vec<String> = shards.into_values().flatten().collect();
    let text = if lines.is_empty() { String::new() } else { lines.join("\n") + "\n" };
    fs::write(&path, text).map_err(TrainError::system(format!("write {}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_two_have_noted_counts_once_and_a_torn_line_does_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |member: u32, text: &str| {
            fs::write(samples_file(folder.path(), member), text).expect("written");
        };
        write(0, "0 0 0 1 2\n0 0 1 3 4\n0 1 0 5 6\n0 1 1 7");
        write(1, "0 1 0 5 6\n0 1 1 7 8\n");
        merge(folder.path(), (0..3).map(Member)).expect("merged");
        let text = fs::read_to_string(folder.path().join(SAMPLES_FILE)).expect("there");
        assert_eq!(text, "0 0 0 1 2\n0 0 1 3 4\n0 1 0 5 6\n0 1 1 7 8\n");
        write(2, "0 0 0 1 9\n");
        let error = merge(folder.path(), (0..3).map(Member)).expect_err("they differ");
        assert!(error.to_string().contains("shard 0 in step 0"), "{error}");
    }
}
