use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::data::TestSet;
use crate::data::tests::{cifar10, write_cifar10};

/// How a run is cut into ranks, shards and passes.
#[derive(Clone, Debug)]
struct Cut {
    each: usize,
    batch: usize,
    passes: usize,
    /// Where each rank's shards end.
    ranks: Vec<u32>,
    steps: u64,
    threads: usize,
}

impl Cut {
    fn all_shards(&self) -> u32 {
        *self.ranks.last().expect("a rank")
    }

    fn loading(&self, folder: &Path, shards: Range<u32>) -> Loading {
        Loading {
            data: cifar10(folder),
            input: (32, 32),
            classes: 10,
            seed: 3,
            batch: self.batch,
            passes: self.passes,
            shards,
            all_shards: self.all_shards(),
            from_step: 0,
            augment: Augment::Standard,
            threads: self.threads,
            log: None,
        }
    }

    /// Runs steps and returns each batch by step, shard and pass, and the samples of the log.
    fn run(&self, folder: &Path, steps: Range<u64>) -> (Seen, Vec<(u64, u32)>) {
        let log = folder.join("samples.log");
        let _ = std::fs::remove_file(&log);
        let mut seen = Seen::new();
        let mut first = 0;
        for &end in &self.ranks {
            let shards = std::mem::replace(&mut first, end)..end;
            let loading = Loading {
                from_step: steps.start,
                log: Some(log.clone()),
                ..self.loading(folder, shards.clone())
            };
            let mut loader = Loader::open(loading).expect("good files");
            for step in steps.clone() {
                for shard in shards.clone() {
                    for pass in 0..self.passes {
                        let batch = loader.next_batch().expect("good files");
                        seen.insert((step, shard, pass), (batch.images.to_vec(), batch.labels.to_vec()));
                    }
                }
            }
        }
        let lines = std::fs::read_to_string(&log).expect("a log");
        let samples = lines.lines().flat_map(|line| {
            let words: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let epoch = words[0];
            words[3..].iter().map(|&index| (epoch, index as u32)).collect::<Vec<_>>()
        });
        (seen, samples.collect())
    }
}

/// Pictures and labels of each step, shard and pass.
type Seen = BTreeMap<(u64, u32, usize), (Vec<f32>, Vec<u32>)>;

fn cuts() -> impl Strategy<Value = Cut> {
    let shards = prop::collection::vec(1u32..4, 1..5);
    (1usize..9, 1usize..8, 1usize..4, shards, 1u64..6, 1usize..4).prop_map(
        |(each, batch, passes, shards, steps, threads)| {
            let ranks = shards.iter().scan(0, |end, shard| {
                *end += shard;
                Some(*end)
            });
            Cut { each, batch, passes, ranks: ranks.collect(), steps, threads }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_sample_is_used_exactly_once_an_epoch(cut in cuts()) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_cifar10(folder.path(), cut.each);
        let (_, samples) = cut.run(folder.path(), 0..cut.steps);
        let mut uses = BTreeMap::new();
        for sample in &samples {
            *uses.entry(*sample).or_insert(0) += 1;
        }
        let (epoch, used) = (5 * cut.each, samples.len());
        prop_assert_eq!(used as u64, cut.steps * u64::from(cut.all_shards()) * (cut.passes * cut.batch) as u64);
        for number in 0..used.div_ceil(epoch) {
            let expected = epoch.min(used - number * epoch);
            let of_epoch = uses.range((number as u64, 0)..(number as u64 + 1, 0));
            prop_assert_eq!(of_epoch.clone().count(), expected);
            prop_assert!(of_epoch.clone().all(|(&(_, index), &times)| times == 1 && (index as usize) < epoch));
        }
    }

    #[test]
    fn shards_do_not_depend_on_ranks_threads_or_resumes(cut in cuts(), threads in 1usize..4, at in 0u64..6) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_cifar10(folder.path(), cut.each);
        let (whole, _) = cut.run(folder.path(), 0..cut.steps);
        let alone = Cut { ranks: vec![cut.all_shards()], threads, ..cut.clone() };
        let at = at.min(cut.steps);
        let (mut parts, _) = alone.run(folder.path(), 0..at);
        parts.extend(alone.run(folder.path(), at..cut.steps).0);
        prop_assert!(whole == parts);
    }
}

fn one_rank(each: usize, batch: usize) -> Cut {
    Cut { each, batch, passes: 1, ranks: vec![1], steps: 1, threads: 2 }
}

#[test]
fn epochs_differ_and_so_do_seeds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 20);
    let labels = |seed| {
        let loading = Loading { seed, ..one_rank(20, 100).loading(folder.path(), 0..1) };
        let mut loader = Loader::open(loading).expect("good files");
        let mut epoch = || loader.next_batch().expect("good files").labels.to_vec();
        [epoch(), epoch()]
    };
    let ([a, b], [c, _]) = (labels(1), labels(2));
    assert!(a != b && a != c);
}

#[test]
fn what_cannot_be_read_reaches_whoever_asks_for_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let path = folder.path().join("data_batch_5.bin");
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[0] = 77;
    std::fs::write(&path, bytes).expect("a writable file");
    let mut loader =
        Loader::open(one_rank(4, 1).loading(folder.path(), 0..1)).expect("labels are read later");
    let results: Vec<_> = (0..20).map(|_| loader.next_batch().map(drop)).collect();
    let first = results.iter().position(Result::is_err).expect("the label is in the first epoch");
    assert!(results[first].as_ref().expect_err("an error").to_string().contains("label 77"));
    assert!(results[first + 1..].iter().all(Result::is_err), "and nothing comes after it");
}

#[test]
fn the_time_of_the_threads_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let mut loader = Loader::open(one_rank(4, 64).loading(folder.path(), 0..1)).expect("good files");
    for _ in 0..20 {
        loader.next_batch().expect("good files");
    }
    assert!(loader.cpu() > Nanos(0));
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let log = Some(folder.path().join("nowhere/samples.log"));
    let loading = Loading { log, ..one_rank(4, 4).loading(folder.path(), 0..1) };
    let error = Loader::open(loading).err().expect("no such folder");
    assert!(error.to_string().contains("nowhere/samples.log"), "{error}");
}

#[test]
fn the_test_set_comes_in_its_own_order_with_a_short_end() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 7);
    let mut test = TestSet::open(&cifar10(folder.path()), (32, 32), 10, 0, 4).expect("good files");
    assert_eq!(test.len(), 7);
    let mut labels = |first| {
        let (batch, live) = test.batch(first).expect("good files");
        (batch.labels.to_vec(), live)
    };
    // The test file follows five of seven records.
    assert_eq!(labels(0), (vec![5, 6, 7, 8], 4));
    assert_eq!(labels(4), (vec![9, 0, 1, 1], 3));
}
