//! Level and spread of values.
//!
//! - Quantile: linear interpolation at place `fraction * (n - 1)` of the sorted values, type 7 of Hyndman and Fan (1996).
//! - Median absolute deviation: median of `|x - median(x)|` (Hampel 1974), without the factor 1.4826 that makes it
//!   the standard deviation of normal values.
//! - Coefficient of variation: standard deviation (with `n - 1`) over mean (Pearson 1896).

/// The values in ascending order, for [`quantile`].
pub fn sort(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The value below which a fraction (0 to 1) of sorted values lies; `None` without values.
pub fn quantile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let place = fraction.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)?) as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * place.fract())
}

/// The median; the mean of the two middle values if their number is even; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sort(values);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 0 => Some((sorted[half - 1] + sorted[half]) / 2.0),
        _ => Some(sorted[half]),
    }
}

/// The median distance from the median, a spread that ignores outliers; `None` without values.
pub fn mad(values: &[f64]) -> Option<f64> {
    let middle = median(values)?;
    median(&values.iter().map(|x| (x - middle).abs()).collect::<Vec<_>>())
}

/// The mean; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Standard deviation over mean; `None` with fewer than two values or if the mean is not positive.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let level = mean(values).filter(|&m| values.len() > 1 && m > 0.0)?;
    let squares: f64 = values.iter().map(|x| (x - level).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt() / level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_takes_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_quantile_lies_between_its_neighbours() {
        let sorted = sort(&[40.0, 10.0, 30.0, 20.0]);
        assert_eq!(quantile(&sorted, 0.0), Some(10.0));
        assert_eq!(quantile(&sorted, 0.5), Some(25.0));
        assert_eq!(quantile(&sorted, 1.0), Some(40.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn one_outlier_moves_the_mean_but_not_the_mad() {
        let values = [1.0, 2.0, 3.0, 4.0, 1000.0];
        assert_eq!(mad(&values), Some(1.0));
        assert_eq!(mean(&values), Some(202.0));
        assert_eq!((mad(&[]), mean(&[])), (None, None));
    }

    #[test]
    fn variation_needs_two_values_and_a_positive_mean() {
        assert_eq!(coefficient_of_variation(&[1.0, 3.0]), Some(2f64.sqrt() / 2.0));
        assert_eq!(coefficient_of_variation(&[1.0]), None);
        assert_eq!(coefficient_of_variation(&[-1.0, 1.0]), None);
    }
}
