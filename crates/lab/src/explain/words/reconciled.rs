//! A rate and a clock, in sentences.

use super::super::audit::round_to;
use super::super::reconcile::{Batch, Fitted, Reconciliation, Speedups, Verdict, Work};
use super::number;
use crate::stats::regression::Estimate;
use crate::words::workers;

/// How a rate and a clock relate.
pub(super) fn sentences(found: &Reconciliation) -> Vec<String> {
    match found {
        Reconciliation::Same { rate, clock, examples, work } => {
            let whose = if *work == Work::Divided { "in total" } else { "per worker" };
            vec![format!(
                "{rate} is {} examples {whose} divided by {clock}, so it was computed from that clock. The two are one measure and \
                 cannot disagree; a rate over steady steps only would be a second one",
                number(*examples)
            )]
        }
        Reconciliation::Fitted(fitted) => explain_fit(fitted),
    }
}

fn explain_fit(fit: &Fitted) -> Vec<String> {
    let Fitted { rate, clock, fixed, examples, points, by_digits_s, .. } = fit;
    let divided = if fit.work == Work::Divided { "" } else { " per worker" };
    let r2 = fit.r2.map_or_else(String::new, |r2| format!(", R2 {r2:.3}"));
    let Estimate { value, lo, hi } = fixed;
    let fits =
        format!("fits {clock} in {points} rows: fixed {value:.1} s (95 % interval {lo:.1} .. {hi:.1})");
    let [count, fewest, most] = [examples.value, examples.lo, examples.hi].map(number);
    let mut sentences = vec![match (fit.steps, fit.batch) {
        (Some(steps), Some(Batch { examples: Estimate { value, lo, hi }, standard_error, .. })) => format!(
            "T(N) = fixed + batch * {steps} steps / rate(N) {fits}, batch {value:.1} (standard error {standard_error:.1}, 95 % \
             interval {lo:.1} .. {hi:.1}){r2}"
        ),
        _ => format!(
            "T(N) = fixed + examples / rate(N) {fits}, {count} examples{divided} ({fewest} .. {most}){r2}; give --steps to get the \
             batch"
        ),
    }];
    if let Some(Batch { expected: Some(expected), consistent, .. }) = fit.batch {
        sentences.push(if consistent == Some(true) {
            format!("the batch is consistent with {expected}")
        } else {
            format!(
                "the batch is not the stated {expected}: the steps, the batch, or the reading of the rate (all workers or one) is wrong"
            )
        });
    }
    sentences.extend(fit.as_told.map(|as_told| {
        let agree = if as_told { "agrees" } else { "does not agree" };
        format!("the given number of examples {agree} with the fit: {fewest} .. {most}")
    }));
    sentences.push(match fit.verdict {
        Verdict::Fixed => format!(
            "{rate} leaves out {value:.1} s of every run, whatever the number of workers: the time before and after the steady steps"
        ),
        Verdict::None => "the fixed time is not distinguishable from zero".into(),
        Verdict::Negative => format!(
            "the fixed time is negative: runs are shorter than {rate} allows, so the rate, the clock, the steps, or the reading of \
             the rate (all workers or one) is wrong"
        ),
    });
    if 3.0 * by_digits_s >= hi - value && *by_digits_s >= 0.05 {
        sentences
            .push(format!("rounding limits this: the printed digits alone allow +/- {by_digits_s:.1} s"));
    }
    sentences.extend(fit.speedups.iter().flat_map(|at| compare(at, fit)));
    sentences.extend(fit.enough.map(|enough| {
        let length = match (enough.steps, enough.steps_interval) {
            (Some(steps), Some((lo, hi))) => {
                let [steps, lo, hi] = [steps, lo.max(0.0), hi].map(|steps| number(round_to(steps, 3)));
                format!("{steps} steps ({lo} .. {hi})")
            }
            _ => format!("{} examples", number(round_to(enough.examples, 3))),
        };
        format!("the two agree within 5 % in runs of at least {length}")
    }));
    sentences
}

/// The two speed-ups at the largest worker count.
fn compare(at: &Speedups, fit: &Fitted) -> Vec<String> {
    let most = workers(at.workers);
    let measures = format!("on {most}, the clock gives {:.1}x and the rate {:.1}x", at.clock, at.rate);
    let Some(without) = at.without else {
        let apart = 100.0 * (at.rate / at.clock - 1.0).abs();
        let verdict = match (at.consistent, fit.verdict) {
            (true, _) => "they agree within 5 %: no fixed time is needed to explain them".into(),
            (false, Verdict::None) if at.rate > at.clock => format!(
                "they differ by {apart:.0} %. A fixed time of up to {:.1} s could be the reason, but the table is also consistent with \
                 none",
                fit.fixed.hi
            ),
            (false, Verdict::Fixed) => {
                format!(
                    "they differ by {apart:.0} %, and the fixed time is longer than the run: a straight line does not fit here"
                )
            }
            (false, _) => format!("they differ by {apart:.0} %, and no fixed time explains that"),
        };
        return vec![measures, verdict];
    };
    let hi = without.hi.map_or_else(|| "no upper limit".into(), |hi| format!("{hi:.1}x"));
    let sentence = format!(
        "{measures}. Without the fixed time the clock gives {:.1}x ({:.1}x .. {hi} over the interval of the fixed time)",
        without.value, without.lo
    );
    let verdict = if at.consistent {
        format!(
            "the two measures are consistent: they differ because the run is too short. The fixed time is {:.0} % of the {} of \
             {most}",
            100.0 * without.fixed_fraction,
            fit.clock
        )
    } else {
        "the two measures are not consistent: a fixed time alone does not explain the difference".into()
    };
    vec![sentence, verdict]
}
