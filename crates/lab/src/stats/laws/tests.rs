use super::*;
use crate::stats::noise::normal;
use crate::stats::random::SplitMix;

const SIZES: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0];

/// Laws with parameters that studies have.
const PLANTED: [(Law, Values); 4] = [
    (Law::Linear, [116.0, 0.0, 0.0]),
    (Law::Amdahl, [116.0, 0.05, 0.0]),
    (Law::Gustafson, [116.0, 0.2, 0.0]),
    (Law::Usl, [116.0, 0.04, 0.002]),
];

fn measure(law: Law, values: Values, noise: f64, draw: &mut SplitMix) -> Vec<Point> {
    SIZES.map(|x| Point { x, y: law.value(values, x) * (1.0 + noise * normal(draw)) }).to_vec()
}

fn points<const N: usize>(points: [(f64, f64); N]) -> Vec<Point> {
    points.map(|(x, y)| Point { x, y }).to_vec()
}

#[test]
fn parameters_come_back_from_exact_points_and_the_right_law_is_chosen() {
    for (law, values) in PLANTED {
        let points = measure(law, values, 0.0, &mut SplitMix(1));
        let fit = fit(law, &points).expect("a fit");
        for (parameter, planted) in fit.parameters.iter().zip(values) {
            assert!((parameter.value - planted).abs() < 1e-8 * planted, "{law:?}: {parameter:?}");
            assert!(!parameter.at_bound);
        }
        assert!(fit.r2.expect("rates differ") > 1.0 - 1e-12);
        assert_eq!(best(&points).expect("eight points").law, law);
        let next = fit.predict(64.0);
        assert!((next.value - law.value(values, 64.0)).abs() < 1e-6 * next.value, "{next:?}");
    }
}

/// Eight sizes, noise of 2 %, 1000 trials. Measured: parameters are covered in 93.5 % to 95.0 %, a new measurement at
/// twice the largest size in 93.4 % to 94.7 %; the right law is chosen in 94.9 % (linear), 98.8 % (Amdahl), and 100 %
/// (Gustafson, universal scalability).
#[test]
fn intervals_cover_what_was_planted_and_noise_hides_no_law() {
    let clock = (Law::Clock, [9.0, 63.0, 0.0]);
    for (law, values) in PLANTED.into_iter().chain([clock]) {
        let mut draw = SplitMix(1);
        let mut covered = vec![0; law.parameters().len() + 1];
        let mut chosen = 0;
        for _ in 0..1000 {
            let points = measure(law, values, 0.02, &mut draw);
            let fit = fit(law, &points).expect("a fit");
            for (count, (parameter, planted)) in covered.iter_mut().zip(fit.parameters.iter().zip(values)) {
                *count += usize::from(parameter.lo <= planted && planted <= parameter.hi);
            }
            let next = law.value(values, 64.0) * (1.0 + 0.02 * normal(&mut draw));
            let Estimate { lo, hi, .. } = fit.predict(64.0);
            *covered.last_mut().expect("one count") += usize::from(lo <= next && next <= hi);
            chosen += usize::from(best(&points).expect("eight points").law == law);
        }
        assert!(covered.iter().all(|count| (915..=970).contains(count)), "{law:?}: {covered:?}");
        assert!(chosen >= 930 || law == Law::Clock, "{law:?}: {chosen}");
    }
}

#[test]
fn throughput_peaks_where_the_universal_law_says() {
    let usl = |kappa| measure(Law::Usl, [100.0, 0.1, kappa], 0.0, &mut SplitMix(1));
    let peak = fit(Law::Usl, &usl(0.001)).expect("a fit").peak.expect("it falls");
    assert!((peak - 30.0).abs() < 1e-6, "{peak}");
    let amdahl = measure(Law::Amdahl, [100.0, 0.1, 0.0], 0.0, &mut SplitMix(1));
    assert_eq!(fit(Law::Amdahl, &amdahl).expect("a fit").peak, None);
}

#[test]
fn a_parameter_that_would_pass_its_bound_stays_there_and_says_so() {
    // More than linear, as caches make it.
    let super_linear = points([(1.0, 100.0), (2.0, 210.0), (4.0, 430.0), (8.0, 900.0), (16.0, 1850.0)]);
    for law in [Law::Amdahl, Law::Gustafson, Law::Usl] {
        let fit = fit(law, &super_linear).expect("a fit");
        for parameter in &fit.parameters[1..] {
            assert_eq!((parameter.value, parameter.lo, parameter.at_bound), (0.0, 0.0, true), "{law:?}");
            assert!(parameter.hi > 0.0);
        }
        assert_eq!(fit.peak, None);
    }
    // A time that would begin below zero.
    let clock = fit(Law::Clock, &points([(1.0, 0.5), (2.0, 1.5), (3.0, 2.5), (4.0, 3.5)])).expect("a fit");
    assert!(clock.parameters[0].at_bound && !clock.parameters[1].at_bound);
    assert_eq!(clock.parameters[0].value, 0.0);
    // More workers, and less than one of them did.
    let worse = points([(1.0, 100.0), (2.0, 60.0), (4.0, 40.0), (8.0, 20.0)]);
    let amdahl = fit(Law::Amdahl, &worse).expect("a fit");
    assert_eq!((amdahl.parameters[1].value, amdahl.parameters[1].at_bound), (1.0, true));
}

#[test]
fn what_cannot_be_fitted_says_why() {
    use Unfit::{BadPoint, TooFewPoints, TooFewSizes};
    let one = points([(1.0, 100.0)]);
    let same = points([(2.0, 100.0), (2.0, 101.0), (2.0, 99.0)]);
    for law in [Law::Amdahl, Law::Gustafson, Law::Clock] {
        assert_eq!(fit(law, &[]), Err(TooFewPoints { have: 0, need: 3 }));
        assert_eq!(fit(law, &one), Err(TooFewPoints { have: 1, need: 3 }));
        assert_eq!(fit(law, &same), Err(TooFewSizes { have: 1, need: 2 }));
    }
    for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let rate = points([(1.0, 100.0), (2.0, bad), (4.0, 300.0)]);
        let size = points([(1.0, 100.0), (bad, 200.0), (4.0, 300.0)]);
        for law in Law::THROUGHPUT.into_iter().chain([Law::Clock]) {
            assert_eq!(fit(law, &rate), Err(BadPoint { index: 1 }));
            assert_eq!(fit(law, &size), Err(BadPoint { index: 1 }));
        }
        assert_eq!(best(&rate), Err(BadPoint { index: 1 }));
    }
    let five = measure(Law::Amdahl, [100.0, 0.1, 0.0], 0.01, &mut SplitMix(1))[..5].to_vec();
    assert_eq!(best(&five[..4]), Err(TooFewPoints { have: 4, need: 5 }));
    assert_eq!(best(&five).map(|fit| fit.law), Ok(Law::Amdahl), "the USL does not compete");
    assert_eq!(fit(Law::Usl, &five).expect("a fit").aicc, None);
    let twice: Vec<Point> = five[..2].repeat(3);
    assert_eq!(best(&twice), Err(TooFewSizes { have: 2, need: 3 }));
}

proptest::proptest! {
    #[test]
    fn no_points_make_a_fit_panic_or_leave_its_bounds(
        raw in proptest::collection::vec((1u32..64, 1e-6f64..1e6), 0..9),
    ) {
        let points: Vec<Point> = raw.iter().map(|&(n, y)| Point { x: f64::from(n), y }).collect();
        for law in Law::THROUGHPUT.into_iter().chain([Law::Clock]) {
            let Ok(fit) = fit(law, &points) else { continue };
            for (parameter, &(_, low, high)) in fit.parameters.iter().zip(law.parameters()) {
                proptest::prop_assert!(low <= parameter.lo && parameter.hi <= high, "{parameter:?}");
                proptest::prop_assert!(parameter.lo <= parameter.value && parameter.value <= parameter.hi);
            }
            let next = fit.predict(128.0);
            proptest::prop_assert!(0.0 <= next.lo && next.lo <= next.value && next.value <= next.hi, "{next:?}");
        }
    }

    #[test]
    fn the_minimum_is_no_worse_than_any_parameters_nearby(
        rates in proptest::collection::vec(0.5f64..1.5, 8),
        sigma in 0.0f64..1.0,
        kappa in 0.0f64..0.05,
    ) {
        let law = |x: f64| 100.0 * x / (1.0 + 0.05 * (x - 1.0) + 0.002 * x * (x - 1.0));
        let points: Vec<Point> =
            SIZES.iter().zip(&rates).map(|(&x, rate)| Point { x, y: law(x) * rate }).collect();
        let (values, _) = minimum::find(Law::Usl, &points).expect("a minimum");
        let least = minimum::sum_squares(Law::Usl, &points, values);
        for scale in [0.5, 0.9, 1.0, 1.1, 2.0] {
            let other = minimum::sum_squares(Law::Usl, &points, [values[0] * scale, sigma, kappa]);
            proptest::prop_assert!(least <= other * (1.0 + 1e-9), "{least} {other}");
        }
    }
}

/// The Horovod lab report (500 steps of `resnet_v2_101`): 1 / time on 1 to 32 GPUs is Amdahl's, 5 % serial; no fall
/// is seen.
#[test]
fn the_horovod_lab_follows_amdahl() {
    let lab = points([(1.0, 163.0), (2.0, 93.0), (4.0, 47.0), (8.0, 30.0), (16.0, 19.0), (32.0, 14.0)]);
    let rates: Vec<Point> = lab.iter().map(|p| Point { x: p.x, y: 500.0 / p.y }).collect();
    let best = best(&rates).expect("six points");
    assert_eq!(best.law, Law::Amdahl);
    let sigma = best.parameters[1];
    assert!((sigma.value - 0.054).abs() < 1e-3 && sigma.lo > 0.04 && sigma.hi < 0.07, "{sigma:?}");
    assert!(fit(Law::Usl, &rates).expect("a fit").parameters[2].at_bound);
}
