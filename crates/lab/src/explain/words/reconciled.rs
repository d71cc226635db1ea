//! A rate and a clock, in sentences.

use super::super::reconcile::{Fitted, Reconciliation, Speedups, Verdict, Work};
use super::{number, workers};

/// What a rate and a clock say together.
pub(super) fn sentences(found: &Reconciliation) -> Vec<String> {
    match found {
        Reconciliation::Same { rate, clock, examples, work } => {
            let whose = if *work == Work::Divided { "in all" } else { "for each worker" };
            vec![format!(
                "{rate} is {} examples {whose} over {clock}: it was computed from that clock. The two are one measure and cannot \
                 disagree; a rate that counts steady steps only would be a second one",
                number(*examples)
            )]
        }
        Reconciliation::Fitted(fitted) => explain_fit(fitted),
    }
}

fn explain_fit(fit: &Fitted) -> Vec<String> {
    let Fitted {
        rate,
        clock,
        work,
        points,
        fixed,
        verdict,
        by_digits_s,
        examples,
        as_told,
        steps,
        batch,
        r2,
        ..
    } = fit;
    let Fitted { speedups, enough, .. } = fit;
    let mut sentences = Vec::new();
    let divided = if *work == Work::Divided { "" } else { " a worker" };
    let r2 = r2.map_or_else(String::new, |r2| format!(", R2 {r2:.3}"));
    let work = match (steps, batch) {
        (Some(steps), Some(batch)) => format!(
            "T(N) = fixed + batch * {steps} steps / rate(N) fits {clock} in {points} rows: fixed {:.1} s (95 % interval {:.1} .. {:.1}), \
             batch {:.1} (standard error {:.1}, 95 % interval {:.1} .. {:.1}){r2}",
            fixed.value,
            fixed.lo,
            fixed.hi,
            batch.examples.value,
            batch.standard_error,
            batch.examples.lo,
            batch.examples.hi
        ),
        _ => format!(
            "T(N) = fixed + examples / rate(N) fits {clock} in {points} rows: fixed {:.1} s (95 % interval {:.1} .. {:.1}), {} examples{divided} \
             ({} .. {}){r2}; --steps would give the batch",
            fixed.value,
            fixed.lo,
            fixed.hi,
            number(examples.value),
            number(examples.lo),
            number(examples.hi)
        ),
    };
    sentences.push(work);
    if let Some((batch, expected)) = batch.and_then(|batch| Some((batch, batch.expected?))) {
        sentences.push(if batch.consistent == Some(true) {
            format!("the batch is consistent with {expected}")
        } else {
            format!("the batch is not the {expected} that was named: steps, batch or whose rate it is must be otherwise")
        });
    }
    sentences.extend(as_told.map(|as_told| {
        let agree = if as_told { "agree" } else { "do not agree" };
        format!(
            "the examples that were told {agree} with the fit: {} .. {}",
            number(examples.lo),
            number(examples.hi)
        )
    }));
    sentences.push(match verdict {
        Verdict::Fixed => format!(
            "{rate} leaves out {:.1} s of every run, on any number of workers: what comes before and after the steady steps",
            fixed.value
        ),
        Verdict::None => "a fixed time cannot be told from zero: the interval holds it".into(),
        Verdict::Negative => format!(
            "the fixed time comes out below zero: runs are shorter than {rate} allows, so that rate, clock, steps or whose rate \
             it is must be otherwise"
        ),
    });
    if 3.0 * by_digits_s >= fixed.hi - fixed.value && *by_digits_s >= 0.05 {
        sentences.push(format!(
            "the printed digits limit this: their rounding alone leaves {by_digits_s:.1} s to either side"
        ));
    }
    sentences.extend(speedups.iter().flat_map(|at| compare(at, fit)));
    if let Some(enough) = enough {
        let length = match (enough.steps, enough.steps_interval) {
            (Some(steps), Some((lo, hi))) => {
                format!(
                    "{} steps on ({} .. {})",
                    number(round(steps)),
                    number(round(lo.max(0.0))),
                    number(round(hi))
                )
            }
            _ => format!("{} examples on", number(round(enough.examples))),
        };
        sentences.push(format!("the two agree within 5 % from {length}"));
    }
    sentences
}

/// The two speed-ups on the most workers.
fn compare(at: &Speedups, fit: &Fitted) -> Vec<String> {
    let most = workers(at.workers);
    let measures = format!("on {most}, the clock gives {:.1}x and the rate {:.1}x", at.clock, at.rate);
    let Some(without) = at.without else {
        let apart = 100.0 * (at.rate / at.clock - 1.0).abs();
        let verdict = match (at.consistent, fit.verdict) {
            (true, _) => "they agree within 5 %: no fixed time is needed to explain them".into(),
            (false, Verdict::None) if at.rate > at.clock => format!(
                "they differ by {apart:.0} %. A fixed time of up to {:.1} s could be the reason, but the table does not tell it from \
                 none",
                fit.fixed.hi
            ),
            (false, Verdict::Fixed) => {
                format!(
                    "they differ by {apart:.0} %, and the fixed time is longer than the run: no straight line holds here"
                )
            }
            (false, _) => format!("they differ by {apart:.0} %, and no fixed time explains that"),
        };
        return vec![measures, verdict];
    };
    let hi = without.hi.map_or_else(|| "no limit above".into(), |hi| format!("{hi:.1}x"));
    let sentence = format!(
        "{measures}. Without the fixed time the clock gives {:.1}x ({:.1}x .. {hi} over the interval of the fixed time)",
        without.value, without.lo
    );
    let verdict = if at.consistent {
        format!(
            "the two measures are consistent: they differ because the run is too short. {:.0} % of the {} of {most} is the fixed \
             time",
            100.0 * without.fixed_fraction,
            fit.clock
        )
    } else {
        "the two measures are not consistent: a fixed time alone does not explain the difference".into()
    };
    vec![sentence, verdict]
}

/// Three digits of a number: more would be pretence.
fn round(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let unit = 10f64.powf((value.log10()).floor() - 2.0);
    (value / unit).round() * unit
}
