//! The last layer: the loss, and its gradient with respect to what it judges.

use super::memory::View;
use super::pool::Pool;

/// Loss and number of right answers of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Judgement {
    pub loss: f32,
    pub correct: usize,
}

/// Mean cross-entropy of softmax(logits) against the labels; leaves (softmax - one-hot) / (batch * passes) in `grad`.
pub(crate) fn softmax_cross_entropy(logits: View, labels: &[u32], grad: View, passes: usize) -> Judgement {
    let classes = logits.len() / labels.len();
    // SAFETY: the loss runs alone.
    let (logits, grad) = unsafe { (logits.read(), grad.write()) };
    let mut loss = 0.0;
    let mut correct = 0;
    let share = 1.0 / labels.len() as f64;
    let grad_share = share / passes as f64;
    let samples = logits.chunks_exact(classes).zip(grad.chunks_exact_mut(classes));
    for ((logits, grad), &label) in samples.zip(labels) {
        let (mut top, mut best) = (f32::NEG_INFINITY, 0);
        for (class, &value) in logits.iter().enumerate() {
            if value > top {
                (top, best) = (value, class);
            }
        }
        let sum: f64 = logits.iter().map(|&value| f64::from(value - top).exp()).sum();
        let label = label as usize;
        loss += sum.ln() - f64::from(logits[label] - top);
        correct += usize::from(best == label);
        for (class, (grad, &value)) in grad.iter_mut().zip(logits).enumerate() {
            let probability = f64::from(value - top).exp() / sum;
            let target = if class == label { 1.0 } else { 0.0 };
            *grad = ((probability - target) * grad_share) as f32;
        }
    }
    Judgement { loss: (loss * share) as f32, correct }
}

/// Values that are summed before they join the total; fixed, as the order of sums is.
const CHUNK: usize = 4096;

/// Mean squared difference; leaves 2 (output - target) / (count * passes) in `grad`. `workspace` holds a sum a chunk.
pub(crate) fn mean_squared_error(
    pool: &Pool,
    output: View,
    target: View,
    (grad, passes): (View, usize),
    workspace: View,
) -> Judgement {
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
            let difference = output[i] - target[i];
            total += f64::from(difference) * f64::from(difference);
            grad[i] = factor * difference;
        }
        sum[0] = total as f32;
    });
    // SAFETY: the sums are complete.
    let sums = unsafe { workspace.part(0, count.div_ceil(CHUNK)).read() };
    let total: f64 = sums.iter().map(|&sum| f64::from(sum)).sum();
    Judgement { loss: (total / count as f64) as f32, correct: 0 }
}

/// Values of workspace that [`mean_squared_error`] needs.
pub(crate) fn squared_error_workspace(count: usize) -> usize {
    count.div_ceil(CHUNK)
}
