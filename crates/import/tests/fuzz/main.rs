//! Readers of foreign files on files that are damaged, torn or hostile: whatever a file holds, a reader gives an error or
//! what can be salvaged. It never panics, and never takes memory without bound.
//!
//! Each reader starts from the files of its folder under `tests/corpus`, all made by the project. A file that ever made a
//! reader fail is kept there. `corpus_is_read` reads them all as they are; each `fuzz_` test changes them at random, goes on
//! from changes that showed something new, and prints how many cases it ran:
//!
//! ```text
//! cargo test -p paceline-import --test fuzz                                                  a few hundred cases each
//! PACELINE_FUZZ_MINUTES=10 cargo test -p paceline-import --test fuzz fuzz_ -- --nocapture   ten minutes each
//! ```
//!
//! `PACELINE_FUZZ_SEED` is where the random numbers begin, `PACELINE_FUZZ_CORPUS` where the corpus lies. What fails is
//! written there, or else to the folder of temporary files, and named.

mod memory;
mod mutation;
mod readers;

use std::collections::HashSet;
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use paceline_lab::stats::random::SplitMix;

use crate::mutation::Form;
use crate::readers::Reader;

/// Cases of each reader where no minutes are asked for.
const CASES: u64 = 300;

/// The most cases that are kept to go on from.
const POOL: usize = 2000;

/// No case grows beyond this, so that the memory that is taken says something of the reader.
const LONGEST: usize = 256 << 10;

/// The most memory that a file of [`LONGEST`] may take, all tests together.
const MOST_MEMORY: usize = 1 << 30;

/// Where the corpus lies.
fn corpus() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    env::var_os("PACELINE_FUZZ_CORPUS").map_or_else(own, PathBuf::from)
}

/// The files of a reader's folder, by name.
fn seeds(reader: &Reader) -> Vec<(String, Vec<u8>)> {
    let folder = corpus().join(reader.corpus);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.expect("a file of the corpus").path())
        .map(|path| {
            let bytes = fs::read(&path).expect("a file of the corpus");
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let bytes = if name.ends_with(".sql") { mutation::database(&bytes) } else { bytes };
            (name, if reader.form == Form::Packed { mutation::pack(&bytes) } else { bytes })
        })
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{} is empty", folder.display());
    seeds
}

/// Gives a file to a reader; `Err` says what the reader did that none may.
fn attempt(reader: &Reader, bytes: &[u8]) -> Result<u64, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("file");
    fs::write(&path, bytes).expect("room for a file");
    memory::begin();
    let outcome = catch_unwind(AssertUnwindSafe(|| (reader.read)(&path)));
    let taken = memory::peak();
    match outcome {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").into())
        }
        Ok(_) if taken > MOST_MEMORY => Err(format!("{taken} bytes of memory for {} of file", bytes.len())),
        Ok(outcome) => Ok(readers::fingerprint(&outcome, &path)),
    }
}

/// Keeps a file that a reader failed on; where it lies.
fn keep(reader: &Reader, bytes: &[u8]) -> PathBuf {
    let name = format!("failed_{:016x}", readers::fingerprint(&format!("{bytes:?}"), Path::new("-")));
    let place = corpus().join(reader.corpus).join(&name);
    // A packed file is kept packed, under a name of its own, and read back as it is.
    if reader.form != Form::Packed && fs::write(&place, bytes).is_ok() {
        return place;
    }
    let place = env::temp_dir().join(name);
    fs::write(&place, bytes).expect("room for what failed");
    place
}

fn number(name: &str) -> Option<f64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Changes files at random and gives them to a reader.
fn fuzz(name: &str, reader: &Reader) {
    let minutes = number("PACELINE_FUZZ_MINUTES");
    let begin = Instant::now();
    let seed = number("PACELINE_FUZZ_SEED").map_or(1, |seed| seed as u64);
    let mut draw = SplitMix(seed);
    let mut pool: Vec<Vec<u8>> = seeds(reader).into_iter().map(|(_, bytes)| bytes).collect();
    let mut seen: HashSet<u64> = HashSet::new();
    let (mut cases, mut slowest) = (0_u64, Duration::ZERO);
    let goes_on = |cases: u64| match minutes {
        Some(minutes) => begin.elapsed().as_secs_f64() < 60.0 * minutes,
        None => cases < CASES,
    };
    while goes_on(cases) {
        let mut bytes = mutation::change(&pool, reader.form, &mut draw);
        bytes.truncate(LONGEST);
        let started = Instant::now();
        match attempt(reader, &bytes) {
            Ok(outcome) if seen.insert(outcome) && pool.len() < POOL => pool.push(bytes),
            Ok(_) => {}
            Err(why) => panic!("{name}: {why}; the file is kept as {}", keep(reader, &bytes).display()),
        }
        slowest = slowest.max(started.elapsed());
        cases += 1;
    }
    println!(
        "{name}: {cases} cases in {:.0} s from seed {seed}, {} outcomes, slowest {:.3} s, no finding",
        begin.elapsed().as_secs_f64(),
        seen.len(),
        slowest.as_secs_f64()
    );
}

#[test]
fn corpus_is_read() {
    for reader in &readers::ALL {
        for (name, bytes) in seeds(reader) {
            attempt(reader, &bytes).unwrap_or_else(|why| panic!("{}/{name}: {why}", reader.corpus));
        }
    }
}

#[test]
fn seeds_are_what_their_folder_says() {
    for reader in &readers::ALL {
        let whole = |(name, bytes): &(String, Vec<u8>)| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("file");
            fs::write(&path, bytes).expect("room for a file");
            !name.starts_with("failed_") && !(reader.read)(&path).starts_with("error")
        };
        assert!(seeds(reader).iter().any(whole), "no file of {} is read as it is", reader.corpus);
    }
}

/// A test for each reader, so that each can be run by itself.
macro_rules! fuzz {
    ($($name:ident: $reader:expr;)*) => {
        $(
            #[test]
            fn $name() {
                fuzz(stringify!($name), &$reader);
            }
        )*
    };
}

fuzz! {
    fuzz_kineto: readers::KINETO;
    fuzz_kineto_packed: readers::KINETO_PACKED;
    fuzz_ranks: readers::RANKS;
    fuzz_nvprof: readers::NVPROF;
    fuzz_nsys: readers::NSYS;
    fuzz_horovod: readers::HOROVOD;
    fuzz_events: readers::EVENTS;
    fuzz_tf_cnn: readers::TF_CNN;
    fuzz_metric_log: readers::METRIC_LOG;
    fuzz_nvidia_smi: readers::NVIDIA_SMI;
    fuzz_table: readers::TABLE;
    fuzz_xplane: readers::XPLANE;
    fuzz_chrome: readers::CHROME;
}
