use super::*;
use crate::stats::noise::{heavy, normal, uniform};
use crate::stats::random::SplitMix;

/// Optimal partitioning (Jackson et al. 2005): every last change is tried at every place.
fn partition(cost: &Cost, penalty: f64, shortest: usize) -> (f64, Vec<usize>) {
    let length = cost.length();
    let mut best: Vec<(f64, Vec<usize>)> = vec![(f64::INFINITY, vec![]); length + 1];
    best[0].0 = -penalty;
    for end in shortest..=length {
        let sum = |at: usize| best[at].0 + cost.of(at, end) + penalty;
        let at = (0..=end - shortest).min_by(|&a, &b| sum(a).total_cmp(&sum(b))).expect("a place");
        let mut changes = best[at].1.clone();
        changes.extend((at > 0).then_some(at));
        best[end] = (sum(at), changes);
    }
    best.swap_remove(length)
}

/// Levels and spreads that change at random places, with normal or heavy noise.
fn draw_series(draw: &mut SplitMix) -> Vec<f64> {
    let heavy_tails = draw.below(2) == 0;
    let mut values = Vec::new();
    for _ in 0..=draw.below(6) {
        let (level, spread) = (4.0 * uniform(draw), 0.1 + uniform(draw));
        for _ in 0..1 + draw.below(60) {
            let noise = if heavy_tails { heavy(draw) } else { normal(draw) };
            values.push(level + spread * noise);
        }
    }
    values
}

#[test]
fn the_search_finds_what_exact_partitioning_finds() {
    let mut draw = SplitMix(11);
    let mut changes = 0;
    for trial in 0..600 {
        let values = draw_series(&mut draw);
        let Some(cost) = Cost::new(&values) else { continue };
        // A low penalty makes many changes, and so many places to prune wrongly.
        let penalty = [1.0, 5.0, 20.0, 60.0][trial % 4];
        let shortest = 1 + trial % 7;
        if values.len() < shortest {
            continue;
        }
        let (found, exact) = (search(&cost, penalty, shortest), partition(&cost, penalty, shortest));
        assert!((found.0 - exact.0).abs() < 1e-8 * (1.0 + exact.0.abs()), "{trial}: {} {}", found.0, exact.0);
        assert_eq!(found.1, exact.1, "{trial}");
        changes += exact.1.len();
    }
    assert!(changes > 1000, "{changes}");
}

#[test]
fn a_whole_costs_no_less_than_its_parts() {
    let mut draw = SplitMix(2);
    let values = draw_series(&mut draw);
    let cost = Cost::new(&values).expect("values differ");
    for _ in 0..2000 {
        let mut places = [0; 3].map(|_| draw.below(values.len() + 1));
        places.sort();
        if let [a, b, c] = places
            && a < b
            && b < c
        {
            assert!(cost.of(a, c) >= cost.of(a, b) + cost.of(b, c) - 1e-9);
        }
    }
}

#[test]
fn equal_values_have_no_change_and_no_cost() {
    for length in [0, 1, 9, 10, 500] {
        assert_eq!(Pelt::default().find_changes(&vec![0.1; length]), [0; 0]);
    }
}

#[test]
fn two_levels_without_noise_change_once() {
    for slow in [5, 10, 30, 50, 70, 95] {
        let values: Vec<f64> = (0..100).map(|at| if at < slow { 0.3 } else { 0.1 }).collect();
        assert_eq!(Pelt::default().find_changes(&values), [slow]);
    }
}

#[test]
fn a_change_of_spread_alone_is_found() {
    let mut draw = SplitMix(4);
    let spread = |at: usize| if at < 150 { 1.0 } else { 6.0 };
    let values: Vec<f64> = (0..300).map(|at| spread(at) * normal(&mut draw)).collect();
    let changes = Pelt::default().find_changes(&values);
    assert!(matches!(changes[..], [at] if at.abs_diff(150) <= 5), "{changes:?}");
}

#[test]
fn a_higher_penalty_finds_fewer_changes() {
    let mut draw = SplitMix(9);
    let values: Vec<f64> = (0..400).map(|at| (at / 40 % 2) as f64 * 3.0 + normal(&mut draw)).collect();
    let count = |penalty| Pelt { penalty, ..Pelt::default() }.find_changes(&values).len();
    assert!(count(4.0) >= 8, "{}", count(4.0));
    assert_eq!(count(100.0), 0);
}
