//! The update rules.

use super::flat::chunks;
use super::memory::View;
use super::pool::Pool;
use super::simd::{Kernel, Simd, Vector, each_vector};
use crate::Optimizer;

/// Values that an update reads, and where it writes the new ones: elsewhere, or over the old ones.
#[derive(Clone, Copy)]
pub(crate) struct Moved {
    pub from: View,
    pub into: View,
}

impl Moved {
    pub fn in_place(view: View) -> Self {
        Self { from: view, into: view }
    }

    /// A part of both.
    pub fn part(self, offset: usize, len: usize) -> Self {
        Self { from: self.from.part(offset, len), into: self.into.part(offset, len) }
    }

    fn pointers(self) -> (*const f32, *mut f32) {
        (self.from.ptr(), self.into.ptr())
    }

    /// Whether new values go elsewhere. Then what is there is not worth reading first: stores past the caches took a third off
    /// the update of MobileNetV2 and ResNet-50.
    fn is_elsewhere(self) -> bool {
        self.from.ptr() != self.into.ptr()
    }
}

/// One update over a range of the parameters.
#[derive(Clone, Copy)]
pub(crate) struct Update {
    pub optimizer: Optimizer,
    pub learning_rate: f32,
    /// Updates so far, this one included: Adam's bias correction.
    pub count: i32,
    pub params: Moved,
    pub grads: View,
    /// Momentum, or Adam's first mean; as long as `params` where there is one.
    pub first: Option<Moved>,
    /// Adam's second mean.
    pub second: Option<Moved>,
}

impl Update {
    pub fn run(self, pool: &Pool, simd: Simd) {
        chunks(pool, self.grads.len(), |offset, len| {
            // SAFETY: the engine checked the instruction set; each chunk is one task's.
            unsafe { simd.run(Update { grads: self.grads.part(offset, len), ..self.of(offset, len) }) }
        });
    }

    /// The same for some of the parameters and their state.
    pub fn of(self, offset: usize, len: usize) -> Self {
        let part = |moved: Moved| moved.part(offset, len);
        Self { params: part(self.params), first: self.first.map(part), second: self.second.map(part), ..self }
    }
}

/// Stores new values, past the caches if asked to.
///
/// # Safety
/// As for a vector's own store.
#[inline(always)]
unsafe fn put<V: Vector>(streams: bool, value: V, to: *mut f32, lanes: usize) {
    // SAFETY: the caller vouches.
    unsafe { if streams && lanes == V::LANES { value.stream(to) } else { V::store_lanes(value, to, lanes) } }
}

impl Kernel for Update {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (len, grads) = (self.grads.len(), self.grads.ptr());
        let (params, new_params) = self.params.pointers();
        let streams = self.params.is_elsewhere();
        // SAFETY: all views have the same length.
        unsafe {
            let minus_rate = V::splat(-self.learning_rate);
            match (self.optimizer, self.first, self.second) {
                (Optimizer::Sgd { momentum, nesterov, weight_decay }, Some(first), _) => {
                    let (first, new_first) = first.pointers();
                    let (decay, keep) = (V::splat(weight_decay), V::splat(momentum));
                    each_vector::<V>(
                        len,
                        #[inline(always)]
                        |at, lanes| {
                            let p = V::load_lanes(params.add(at), lanes);
                            let g = p.mul_add(decay, V::load_lanes(grads.add(at), lanes));
                            let v = V::load_lanes(first.add(at), lanes).mul_add(keep, g);
                            put(streams, v, new_first.add(at), lanes);
                            let step = if nesterov { v.mul_add(keep, g) } else { v };
                            put(streams, step.mul_add(minus_rate, p), new_params.add(at), lanes);
                        },
                    );
                }
                (Optimizer::Sgd { weight_decay, .. }, None, _) => {
                    let decay = V::splat(weight_decay);
                    each_vector::<V>(
                        len,
                        #[inline(always)]
                        |at, lanes| {
                            let p = V::load_lanes(params.add(at), lanes);
                            let g = p.mul_add(decay, V::load_lanes(grads.add(at), lanes));
                            put(streams, g.mul_add(minus_rate, p), new_params.add(at), lanes);
                        },
                    );
                }
                (Optimizer::Adam { beta1, beta2, epsilon, weight_decay }, Some(first), Some(second)) => {
                    let ((first, new_first), (second, new_second)) = (first.pointers(), second.pointers());
                    let decay = V::splat(weight_decay);
                    let (keep1, take1) = (V::splat(beta1), V::splat(1.0 - beta1));
                    let (keep2, take2) = (V::splat(beta2), V::splat(1.0 - beta2));
                    let root = V::splat((1.0 - beta2.powi(self.count)).sqrt());
                    let rate = V::splat(-self.learning_rate / (1.0 - beta1.powi(self.count)));
                    let epsilon = V::splat(epsilon);
                    each_vector::<V>(
                        len,
                        #[inline(always)]
                        |at, lanes| {
                            let p = V::load_lanes(params.add(at), lanes);
                            let g = p.mul_add(decay, V::load_lanes(grads.add(at), lanes));
                            let m = V::load_lanes(first.add(at), lanes).mul_add(keep1, g.mul(take1));
                            let v = V::load_lanes(second.add(at), lanes).mul_add(keep2, g.mul(g).mul(take2));
                            put(streams, m, new_first.add(at), lanes);
                            put(streams, v, new_second.add(at), lanes);
                            let step = m.div(v.sqrt().div(root).add(epsilon));
                            put(streams, step.mul_add(rate, p), new_params.add(at), lanes);
                        },
                    );
                }
                (Optimizer::Adam { .. }, ..) => unreachable!("invariant: Adam has two states"),
            }
        }
    }
}
