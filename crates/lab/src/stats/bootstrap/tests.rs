use super::*;
use crate::stats::noise::{autoregressive, normal, uniform};

fn pieces(seconds: &[f64]) -> Vec<Work> {
    let piece = |&seconds| Work { amount: 64.0, seconds };
    seconds.iter().map(piece).collect()
}

#[test]
fn the_rate_weighs_slow_pieces_by_their_time() {
    assert_eq!(rate(&pieces(&[1.0, 3.0])), Some(32.0));
    assert_eq!(rate(&[]), None);
}

#[test]
fn one_piece_has_no_interval_and_equal_pieces_have_a_point() {
    assert_eq!(bootstrap_rate(&[], 0), None);
    assert_eq!(bootstrap_rate(&[&pieces(&[1.0]), &[]], 0), None);
    let equal = pieces(&[0.5; 9]);
    assert_eq!(bootstrap_rate(&[&equal], 0), Some((128.0, 128.0)));
    assert_eq!(bootstrap_rate(&[&equal, &equal], 0), Some((128.0, 128.0)));
}

#[test]
fn no_time_has_no_interval() {
    let still = pieces(&[0.0; 9]);
    assert_eq!(bootstrap_rate(&[&still], 0), None);
    assert_eq!(bootstrap_ratio(&[&pieces(&[1.0; 9])], &[&still], 0), None);
    assert_eq!(bootstrap_ratio(&[&pieces(&[1.0])], &[&pieces(&[1.0; 9])], 0), None);
}

proptest::proptest! {
    #[test]
    fn the_interval_lies_within_the_extremes_and_repeats(
        seconds in proptest::collection::vec(0.01f64..1.0, 2..40),
        others in proptest::collection::vec(0.01f64..1.0, 0..40),
        seed in 0u64..1000,
    ) {
        let (work, more) = (pieces(&seconds), pieces(&others));
        let repeats: [&[Work]; 2] = [&work, &more];
        let (lo, hi) = bootstrap_rate(&repeats, seed).expect("two pieces or more");
        let all = || seconds.iter().chain(&others).copied();
        proptest::prop_assert!(lo <= hi);
        proptest::prop_assert!(64.0 / all().fold(0.0, f64::max) <= lo * (1.0 + 1e-12));
        proptest::prop_assert!(hi <= 64.0 / all().fold(1.0, f64::min) * (1.0 + 1e-12));
        proptest::prop_assert_eq!(bootstrap_rate(&repeats, seed), Some((lo, hi)));
    }
}

/// Of `trials` series of step times around one second, how many give an interval that holds the truth.
fn count_covered(trials: u64, mut seconds: impl FnMut(&mut SplitMix) -> Vec<Vec<f64>>) -> usize {
    let mut draw = SplitMix(7);
    let mut covers = |trial| {
        let repeats: Vec<Vec<Work>> = seconds(&mut draw).iter().map(|s| pieces(s)).collect();
        let repeats: Vec<&[Work]> = repeats.iter().map(Vec::as_slice).collect();
        let (lo, hi) = bootstrap_rate(&repeats, trial).expect("two pieces or more");
        lo <= 64.0 && 64.0 <= hi
    };
    (0..trials).filter(|&trial| covers(trial)).count()
}

/// Bounds are three standard errors of 500 trials around the coverage that was measured: 95.0 % and 94.4 %.
#[test]
fn the_interval_covers_independent_steps_as_often_as_it_says() {
    for (length, measured) in [(40, 475), (200, 472)] {
        let series = |draw: &mut SplitMix| (0..length).map(|_| 0.9 + 0.2 * uniform(draw)).collect();
        let covered = count_covered(500, |draw| vec![series(draw)]);
        assert!(covered.abs_diff(measured) <= 15, "{covered} of 500 at {length} steps");
    }
}

/// Measured: 93.8 % at phi 0.3 and 100 steps; at phi 0.6, 91.6 %, 90.2 % and 94.0 % at 40, 100 and 300 steps. At
/// phi 0.6 the mean varies four times as much as that of independent steps: drawn one by one, they would cover 67 %.
#[test]
fn the_interval_covers_dependent_steps_nearly_as_often() {
    for (phi, length, measured) in [(0.3, 100, 469), (0.6, 40, 458), (0.6, 100, 451), (0.6, 300, 470)] {
        let level = |e: &f64| 1.0 + 0.05 * e;
        let series = |draw: &mut SplitMix| autoregressive(draw, phi, length).iter().map(level).collect();
        let covered = count_covered(500, |draw| vec![series(draw)]);
        assert!(covered.abs_diff(measured) <= 20, "{covered} of 500 at phi {phi}, {length} steps");
    }
}

/// Repeats of 50 steps that differ by 2 % from each other, and by 5 % from step to step. Measured: 86.6 % of two
/// repeats, 91.6 % of three, 95.0 % of five, 95.6 % of ten.
#[test]
fn the_interval_of_several_repeats_holds_what_differs_between_them() {
    let repeat = |draw: &mut SplitMix| {
        let level = 1.0 + 0.02 * normal(draw);
        (0..50).map(|_| level + 0.05 * normal(draw)).collect()
    };
    for (repeats, measured) in [(2, 433), (3, 458), (5, 475), (10, 478)] {
        let covered = count_covered(500, |draw| (0..repeats).map(|_| repeat(draw)).collect());
        assert!(covered.abs_diff(measured) <= 20, "{covered} of 500 with {repeats} repeats");
    }
}

#[test]
fn a_ratio_compares_two_studies() {
    let mut draw = SplitMix(3);
    let mut study =
        |level: f64| pieces(&(0..100).map(|_| level + 0.05 * normal(&mut draw)).collect::<Vec<_>>());
    let (fast, slow) = (study(1.0), study(1.5));
    let Ratio { ratio, lo, hi } = bootstrap_ratio(&[&fast], &[&slow], 1).expect("two studies");
    assert!(1.45 < lo && lo < ratio && ratio < hi && hi < 1.55, "{lo} {ratio} {hi}");
    assert_eq!(ratio, rate(&fast).expect("time went by") / rate(&slow).expect("time went by"));
    let same = bootstrap_ratio(&[&fast], &[&fast, &fast], 1).expect("two studies");
    assert!(same.lo < 1.0 && 1.0 < same.hi, "{same:?}");
}
