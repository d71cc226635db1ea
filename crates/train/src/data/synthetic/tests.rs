use super::*;
use crate::data::loader::tests::InOrder;
use crate::data::{Augment, Loading, TestSet};

fn loading(seed: u64) -> Loading {
    Loading {
        data: "synthetic:cifar10".parse().expect("a known name"),
        input: (32, 32),
        classes: 10,
        seed,
        batch: 64,
        passes: 1,
        all_shards: 4,
        augment: Augment::Standard,
        threads: 1,
        log: None,
    }
}

fn loader(seed: u64, shard: u32) -> InOrder {
    InOrder::open(loading(seed), shard..shard + 1, 0)
}

fn next(loader: &mut InOrder) -> (Vec<f32>, Vec<u32>) {
    let batch = loader.next().expect("nothing can go wrong");
    (batch.images.to_vec(), batch.labels.to_vec())
}

#[test]
fn the_same_seed_gives_the_same_pictures_and_others_give_others() {
    let (mut a, mut b) = (loader(1, 0), loader(1, 0));
    assert_eq!(next(&mut a), next(&mut b));
    assert_ne!(next(&mut a), next(&mut loader(2, 0)));
    assert_ne!(next(&mut loader(1, 0)), next(&mut loader(1, 1)));
}

#[test]
fn values_have_about_mean_zero_and_variance_one() {
    let (images, _) = next(&mut loader(3, 0));
    let n = images.len() as f32;
    let mean = images.iter().sum::<f32>() / n;
    let variance = images.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n;
    assert!(mean.abs() < 0.05, "{mean}");
    assert!((variance - 1.0).abs() < 0.1, "{variance}");
}

#[test]
fn the_class_shows_in_pictures_of_the_test_set() {
    // The mean picture of each class, from batches to learn from, tells the class of every picture of the test.
    let mut loader = loader(5, 0);
    let len = 32 * 32 * 3;
    let mut means = vec![vec![0.0f32; len]; 10];
    for _ in 0..POOL {
        let (images, labels) = next(&mut loader);
        for (image, label) in images.chunks_exact(len).zip(labels) {
            for (mean, value) in means[label as usize].iter_mut().zip(image) {
                *mean += value;
            }
        }
    }
    let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
    let Loading { data, input, classes, .. } = loading(5);
    let mut test = TestSet::open(&data, input, classes, 5, 64).expect("nothing can go wrong");
    let (batch, live) = test.batch(0).expect("nothing can go wrong");
    assert_eq!(live, 64);
    assert_ne!(batch.images, next(&mut self::loader(5, 0)).0, "the test set is not what was learnt from");
    for (image, &label) in batch.images.chunks_exact(len).zip(batch.labels) {
        let likeness = |class: &usize| -> f32 {
            let mean = &means[*class];
            mean.iter().zip(image).map(|(a, b)| a * b).sum::<f32>() / norm(mean)
        };
        let best = (0..10).max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        assert_eq!(best, Some(label as usize));
    }
}

#[test]
fn the_last_batch_of_the_test_set_is_short() {
    let Loading { data, input, classes, .. } = loading(0);
    let mut test = TestSet::open(&data, input, classes, 0, 64).expect("nothing can go wrong");
    assert_eq!(test.len(), 10_000);
    let (batch, live) = test.batch(156 * 64).expect("nothing can go wrong");
    assert_eq!((batch.labels.len(), live), (64, 16));
}

#[test]
fn pools_of_large_pictures_are_small() {
    let motif = Motif { shape: Shape::new(224, 224, 3), classes: 10, seed: 0 };
    let each = |batch, all_shards| Pools::new(motif, Course { batch, passes: 1, all_shards }).each;
    assert_eq!(each(64, 1), 1);
    assert_eq!(each(8, 1), 6);
    assert_eq!(each(8, 32), 1, "all pools together are bounded too");
}

#[test]
fn a_pool_goes_round() {
    let mut loader = loader(1, 0);
    let first = next(&mut loader);
    for _ in 1..POOL {
        assert_ne!(next(&mut loader), first);
    }
    assert_eq!(next(&mut loader), first);
}

#[test]
fn a_shard_gets_the_same_whoever_runs_it_and_after_a_resume() {
    let loading = Loading { passes: 2, ..loading(1) };
    let mut all = InOrder::open(loading.clone(), 0..4, 0);
    let mut resumed = InOrder::open(loading, 2..3, 2);
    let steps: Vec<Vec<_>> = (0..4).map(|_| (0..8).map(|_| next(&mut all)).collect()).collect();
    for step in &steps[2..] {
        assert!(step[4] == next(&mut resumed) && step[5] == next(&mut resumed));
    }
}
