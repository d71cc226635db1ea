//! Where a warm-up ends, by the marginal standard error rule MSER-5 (White 1997; Franklin and White 2008).
//!
//! The series becomes k means of five values each. Cutting off the first d leaves `k - d` of mean m; the rule takes
//! the d that minimises `sum (z - m)^2 / (k - d)^2`: the rest then determines its mean best. A minimum in the
//! second half means that the run is too short.

const BATCH: usize = 5;

/// With fewer means than this, there is no answer.
const FEWEST: usize = 10;

/// The fraction of all means that is never cut off: the fewer are left, the likelier they are close by chance.
const PART: usize = 5;

/// How many values to cut off at the start; `None` if the rule has no answer in the first half.
pub fn truncate(values: &[f64]) -> Option<usize> {
    let means: Vec<f64> =
        values.chunks_exact(BATCH).map(|batch| batch.iter().sum::<f64>() / BATCH as f64).collect();
    let mut best = (f64::INFINITY, None);
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    // From the end, so that each mean is added once (Welford 1962).
    for (cut, z) in means.iter().enumerate().rev() {
        count += 1.0;
        let step = z - mean;
        mean += step / count;
        squares += step * (z - mean);
        let error = squares / (count * count);
        if PART * (means.len() - cut) >= means.len() && error <= best.0 {
            best = (error, Some(cut));
        }
    }
    best.1.filter(|cut| means.len() >= FEWEST && cut * 2 <= means.len()).map(|cut| cut * BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::noise::normal;
    use crate::stats::random::SplitMix;

    #[test]
    fn equal_values_are_kept_and_few_are_not_judged() {
        assert_eq!(truncate(&[1.0; 100]), Some(0));
        assert_eq!(truncate(&[1.0; 49]), None);
        assert_eq!(truncate(&[]), None);
    }

    /// Measured: of 200, 143 within two batches after the change, 50 later, 7 without an answer, none before it.
    #[test]
    fn a_slow_start_is_cut_off() {
        let (mut near, mut late, mut none) = (0, 0, 0);
        for seed in 0..200 {
            let mut draw = SplitMix(seed);
            let level = |at: usize| if at < 33 { 2.0 } else { 1.0 };
            let values: Vec<f64> = (0..200).map(|at| level(at) + 0.02 * normal(&mut draw)).collect();
            match truncate(&values) {
                Some(cut) if (35..45).contains(&cut) => near += 1,
                Some(cut) if cut >= 45 => late += 1,
                Some(cut) => panic!("cut off {cut}, which leaves slow steps"),
                None => none += 1,
            }
        }
        assert!(near >= 120 && none <= 20, "{near} near, {late} late, {none} without an answer");
    }

    #[test]
    fn a_slow_majority_has_no_answer() {
        let level = |at: usize| if at < 150 { 2.0 } else { 1.0 + 0.001 * (at % 7) as f64 };
        assert_eq!(truncate(&(0..200).map(level).collect::<Vec<_>>()), None);
    }
}
