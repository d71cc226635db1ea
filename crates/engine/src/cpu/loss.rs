//! The last layer: the loss, and its gradient with respect to its input.

use super::element::Element;
use super::memory::View;
use super::pool::Pool;

/// Loss of a batch, and how many of its answers were right.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Score {
    pub loss: f32,
    pub correct: usize,
}

/// The right answers.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    /// The class of each sample.
    pub labels: &'a [u32],
    /// Fraction of each label that is spread evenly over all classes.
    pub smoothing: f32,
}

/// The gradient of a loss that is the mean over so many passes.
#[derive(Clone, Copy)]
pub(crate) struct Gradient<E> {
    pub values: View<E>,
    pub passes: usize,
}

/// Mean cross-entropy of softmax(logits) against the targets; leaves (softmax - target) / (batch * passes) in `grad`.
pub(crate) fn softmax_cross_entropy<E: Element>(
    logits: View<E>,
    Targets { labels, smoothing }: Targets<'_>,
    grad: Option<Gradient<E>>,
) -> Score {
    if labels.is_empty() {
        return Score::default();
    }
    let classes = logits.len() / labels.len();
    // SAFETY: the loss runs alone.
    let logits = unsafe { logits.read() };
    let spread = f64::from(smoothing) / classes as f64;
    let sure = 1.0 - f64::from(smoothing);
    let mut loss = 0.0;
    let mut correct = 0;
    let fraction = 1.0 / labels.len() as f64;
    for (sample, (logits, &label)) in logits.chunks_exact(classes).zip(labels).enumerate() {
        let (mut top, mut best) = (f32::NEG_INFINITY, 0);
        for (class, value) in logits.iter().map(|value| value.widen()).enumerate() {
            if value > top {
                (top, best) = (value, class);
            }
        }
        let sum: f64 = logits.iter().map(|value| f64::from(value.widen() - top).exp()).sum();
        let label = label as usize;
        let surprise = |class: usize| sum.ln() - f64::from(logits[class].widen() - top);
        loss += if smoothing == 0.0 {
            surprise(label)
        } else {
            sure * surprise(label) + spread * (0..classes).map(surprise).sum::<f64>()
        };
        correct += usize::from(best == label);
        let Some(Gradient { values, passes }) = grad else { continue };
        // SAFETY: as above; each sample has a part of its own.
        let grad = unsafe { values.part(sample * classes, classes).write() };
        for (class, (grad, &value)) in grad.iter_mut().zip(logits).enumerate() {
            let probability = f64::from(value.widen() - top).exp() / sum;
            let target = spread + if class == label { sure } else { 0.0 };
            *grad = E::round(((probability - target) * (fraction / passes as f64)) as f32);
        }
    }
    Score { loss: (loss * fraction) as f32, correct }
}

/// Values that are summed before they are added to the total. Fixed, so that the order of sums is.
const CHUNK: usize = 4096;

/// Mean squared difference; leaves 2 (output - target) / (count * passes) in `grad`. `workspace` holds the sum of each chunk.
pub(crate) fn mean_squared_error<E: Element>(
    pool: &Pool,
    output: View<E>,
    target: View<E>,
    Gradient { values: grad, passes }: Gradient<E>,
    workspace: View,
) -> Score {
    let count = output.len();
    let factor = (2.0 / (count * passes) as f64) as f32;
    pool.each(count.div_ceil(CHUNK), |chunk, _| {
        let offset = chunk * CHUNK;
        let len = CHUNK.min(count - offset);
        // SAFETY: each chunk is one task's.
        let (output, target, grad, sum) = unsafe {
            (
                output.part(offset, len).read(),
                target.part(offset, len).read(),
                grad.part(offset, len).write(),
                workspace.part(chunk, 1).write(),
            )
        };
        let mut total = 0.0f64;
        for i in 0..len {
            let difference = output[i].widen() - target[i].widen();
            total += f64::from(difference) * f64::from(difference);
            grad[i] = E::round(factor * difference);
        }
        sum[0] = total as f32;
    });
    // SAFETY: the sums are complete.
    let sums = unsafe { workspace.part(0, count.div_ceil(CHUNK)).read() };
    let total: f64 = sums.iter().map(|&sum| f64::from(sum)).sum();
    Score { loss: (total / count.max(1) as f64) as f32, correct: 0 }
}

/// Values of workspace that [`mean_squared_error`] needs.
pub(crate) fn squared_error_workspace(count: usize) -> usize {
    count.div_ceil(CHUNK)
}
