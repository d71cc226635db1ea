use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::data::tests::{cifar10, write_cifar10};
use crate::data::{Draw, Sequence, TestSet};

/// A loader whose turns are asked for in order.
pub(crate) struct InOrder {
    pub loader: Loader,
    sequence: Sequence,
    number: u64,
}

impl InOrder {
    pub fn open(loading: Loading, shards: Range<u32>, from_step: u64) -> Self {
        let sequence = Sequence { shards, passes: loading.passes, from_step };
        Self { loader: Loader::open(loading).expect("good files"), sequence, number: 0 }
    }

    pub fn next(&mut self) -> Result<Samples<'_>, TrainError> {
        let turn = self.sequence.turn(self.number);
        self.number += 1;
        let upcoming: Vec<Turn> =
            (self.number..).take(self.loader.depth()).map(|number| self.sequence.turn(number)).collect();
        self.loader.log(turn)?;
        self.loader.batch(turn, &upcoming)
    }
}

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

    fn loading(&self, folder: &Path) -> Loading {
        Loading {
            data: cifar10(folder),
            input: (32, 32),
            classes: 10,
            seed: 3,
            batch: self.batch,
            passes: self.passes,
            all_shards: self.all_shards(),
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
            let loading = Loading { log: Some(log.clone()), ..self.loading(folder) };
            let mut loader = InOrder::open(loading, shards.clone(), steps.start);
            for step in steps.clone() {
                for shard in shards.clone() {
                    for pass in 0..self.passes {
                        let batch = loader.next().expect("good files");
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
        let loading = Loading { seed, ..one_rank(20, 100).loading(folder.path()) };
        let mut loader = InOrder::open(loading, 0..1, 0);
        let mut epoch = || loader.next().expect("good files").labels.to_vec();
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
    let mut loader = InOrder::open(one_rank(4, 1).loading(folder.path()), 0..1, 0);
    let results: Vec<_> = (0..20).map(|_| loader.next().map(drop)).collect();
    let first = results.iter().position(Result::is_err).expect("the label is in the first epoch");
    assert!(results[first].as_ref().expect_err("an error").to_string().contains("label 77"));
    assert!(results[first + 1..].iter().all(Result::is_err), "and nothing comes after it");
}

#[test]
fn the_time_of_the_threads_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let mut loader = InOrder::open(one_rank(4, 64).loading(folder.path()), 0..1, 0);
    for _ in 0..20 {
        loader.next().expect("good files");
    }
    assert!(loader.loader.cpu() > Nanos(0));
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let log = Some(folder.path().join("nowhere/samples.log"));
    let loading = Loading { log, ..one_rank(4, 4).loading(folder.path()) };
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

/// All turns of some steps of three shards, two passes each, in order.
fn turns() -> Vec<Turn> {
    let sequence = Sequence { shards: 0..3, passes: 2, from_step: 0 };
    (0..36).map(|number| sequence.turn(number)).collect()
}

/// Loaders of made pictures and of files, on a number of threads.
fn kinds(folder: &Path, threads: usize) -> [Loading; 2] {
    let files = Loading {
        passes: 2,
        all_shards: 3,
        threads,
        ..Cut { each: 11, batch: 5, passes: 2, ranks: vec![3], steps: 6, threads }.loading(folder)
    };
    [Loading { data: "synthetic:8x8x3".parse().expect("a size"), input: (8, 8), ..files.clone() }, files]
}

fn take(loader: &mut Loader, turn: Turn, upcoming: &[Turn]) -> (Vec<f32>, Vec<u32>) {
    let batch = loader.batch(turn, upcoming).expect("good files");
    (batch.images.to_vec(), batch.labels.to_vec())
}

/// What each turn gets if turns are asked for in order.
fn in_order(loading: &Loading) -> BTreeMap<Turn, (Vec<f32>, Vec<u32>)> {
    let mut loader = InOrder::open(loading.clone(), 0..3, 0);
    turns()
        .into_iter()
        .map(|turn| {
            let batch = loader.next().expect("good files");
            (turn, (batch.images.to_vec(), batch.labels.to_vec()))
        })
        .collect()
}

#[test]
fn turns_get_the_same_batches_in_any_order_whatever_was_foreseen() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 11);
    for (threads, seed) in [1, 3].into_iter().flat_map(|threads| (0..8).map(move |seed| (threads, seed))) {
        for loading in kinds(folder.path(), threads) {
            let expected = in_order(&loading);
            let mut draw = Draw::new(&[seed]);
            let mut order = turns();
            for place in (1..order.len()).rev() {
                order.swap(place, draw.below(place + 1));
            }
            let mut loader = Loader::open(loading).expect("good files");
            loader.expect(&order[..draw.below(10)]);
            for number in 0..order.len() {
                // Sometimes what comes is foreseen, sometimes something else is, or nothing, or the same twice.
                let (first, any) = (number + draw.below(2), draw.below(order.len()));
                let upcoming = match draw.below(4) {
                    0 => Vec::new(),
                    1 => order[any..].to_vec(),
                    _ => order[first..(first + draw.below(8)).min(order.len()).max(first)].to_vec(),
                };
                let turn = order[number];
                assert!(take(&mut loader, turn, &upcoming) == expected[&turn], "{turn:?}, seed {seed}");
            }
        }
    }
}

#[test]
fn the_same_turn_can_be_asked_for_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 11);
    for loading in kinds(folder.path(), 1) {
        let (mut loader, turns) = (Loader::open(loading).expect("good files"), turns());
        let first = take(&mut loader, turns[0], &turns[..3]);
        assert!(take(&mut loader, turns[0], &turns[1..4]) == first);
        assert!(take(&mut loader, turns[1], &[turns[0]]) != first);
        assert!(take(&mut loader, turns[0], &[]) == first);
    }
}

#[test]
fn a_loader_can_be_dropped_while_its_threads_are_at_work() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 11);
    for threads in [1, 3] {
        let [_, files] = kinds(folder.path(), threads);
        for asked in 0..4 {
            let loading = Loading { batch: 500, ..files.clone() };
            let (mut loader, turns) = (Loader::open(loading).expect("good files"), turns());
            loader.expect(&turns);
            for number in 0..asked {
                loader.batch(turns[number], &turns[number + 1..]).expect("good files");
            }
        }
    }
}

#[test]
fn what_cannot_be_read_hurts_only_those_who_ask_for_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 4);
    let path = folder.path().join("data_batch_5.bin");
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[0] = 77;
    std::fs::write(&path, bytes).expect("a writable file");
    for threads in [1, 3] {
        let loading = Loading { threads, ..one_rank(4, 1).loading(folder.path()) };
        let mut loader = InOrder::open(loading.clone(), 0..1, 0);
        let bad = (0..20).position(|_| loader.next().is_err()).expect("the label is in the first epoch");
        let turn = |step: usize| Turn { step: step as u64, shard: 0, pass: 0 };
        let mut loader = Loader::open(loading).expect("labels are read later");
        loader.expect(&[turn(bad)]);
        for step in (0..20).filter(|step| *step != bad) {
            loader.batch(turn(step), &[turn(bad)]).expect("another batch");
        }
        assert!(loader.batch(turn(bad), &[]).is_err_and(|error| error.to_string().contains("label 77")));
        assert!(matches!(loader.batch(turn(0), &[]), Err(TrainError::LoaderEnded)), "nothing comes after it");
    }
}

#[test]
fn the_log_tells_of_any_turn_when_it_is_asked_to() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_cifar10(folder.path(), 11);
    for loading in kinds(folder.path(), 1) {
        let path = folder.path().join("samples.log");
        let mut loader = Loader::open(Loading { log: Some(path.clone()), ..loading }).expect("good files");
        let turns = turns();
        loader.batch(turns[7], &[]).expect("good files");
        assert_eq!(std::fs::read_to_string(&path).expect("a log"), "");
        loader.log(turns[20]).expect("a writable file");
        let line = std::fs::read_to_string(&path).expect("a log");
        let Turn { step, shard, .. } = turns[20];
        let words: Vec<&str> = line.lines().next().expect("a line").split(' ').collect();
        assert_eq!(words[1..3], [step.to_string(), shard.to_string()]);
        std::fs::remove_file(path).expect("a file");
    }
}
