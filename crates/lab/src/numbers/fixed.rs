//! Fixed costs: what a run takes besides its steady steps, and how long it must be for that not to matter.
//!
//! ```text
//! fixed_s      = total_s - paused_s - examples / images_per_s.mean
//! enough_steps = steps for which fixed_s is 5 % of total_s = 19 * fixed_s / (seconds of a steady step)
//! ```
//!
//! Evaluation and checkpoints are not fixed costs: a longer run has more of them.

use serde::Serialize;

use super::speedup::Pace;

/// Fraction of the whole run that fixed costs may take.
pub const TOLERATED: f64 = 0.05;

/// Fixed costs of a case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fixed {
    /// Start-up, the extra time of the warm-up, and the tail.
    pub seconds: f64,
    /// The same as a fraction of the whole run.
    #[serde(rename = "share")]
    pub fraction: f64,
    /// Steps for which they take at most 5 % of the run.
    pub enough_steps: u64,
}

/// The fixed costs of a run of `steps` steps; `None` if the steady steps are slower than the others, which hides them.
pub fn fixed(pace: &Pace, steps: u64) -> Option<Fixed> {
    let step = pace.examples? as f64 / pace.images_per_s / steps as f64;
    let total_s = pace.total_s?;
    let seconds = total_s - pace.paused_s? - step * steps as f64;
    let enough = (seconds * (1.0 - TOLERATED) / TOLERATED / step).ceil().max(1.0);
    (seconds >= 0.0 && enough.is_finite()).then(|| Fixed {
        seconds,
        fraction: seconds / total_s,
        enough_steps: enough as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_enough_steps_the_fixed_costs_are_a_twentieth() {
        let pace = |steps: u64| Pace {
            workers: 1,
            examples: Some(64 * steps),
            images_per_s: 640.0,
            train_s: Some(0.1 * steps as f64 + 5.0),
            paused_s: Some(5.0),
            total_s: Some(0.1 * steps as f64 + 7.0),
        };
        let short = fixed(&pace(10), 10).expect("a rate");
        assert!((short.seconds - 2.0).abs() < 1e-9 && (short.fraction - 2.0 / 8.0).abs() < 1e-9);
        assert_eq!(short.enough_steps, 380);
        let long =
            fixed(&Pace { paused_s: Some(0.0), total_s: Some(40.0), ..pace(380) }, 380).expect("a rate");
        assert!((long.fraction - TOLERATED).abs() < 1e-9);
    }
}
