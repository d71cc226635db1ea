//! Kernels that store bf16 compute what they compute in fp32 from the same values, and round where they store: the same bits, on every
//! instruction set, in both layouts.

use paceline_model::{Border, Shape};

use super::element::{Bf16, Element};
use super::flat::{ChannelSums, Dropout, Flat, Maps, Padding, Stretches, Sweep};
use super::kernels::tile::Mode;
use super::loss::{
    Gradient, Score, Targets, mean_squared_error, softmax_cross_entropy, squared_error_workspace,
};
use super::memory::View;
use super::norm::{Kept, Norm, NormBackward, NormParams, Running};
use super::pool::{Placement, Pool};
use super::simd::Simd;
use super::windows::{DepthwiseOperands, DepthwiseSum, Gathering, Slide};
use crate::Layout;
use crate::outline::{Bounds, Window};

const BATCH: usize = 9;

/// Values between -2 and 2, the same for a seed.
fn values(count: usize, seed: u64) -> Vec<Bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Bf16::round((state >> 40) as f32 / (1u64 << 22) as f32 - 2.0)
    };
    (0..count).map(|_| next()).collect()
}

/// Values in memory, in a format.
struct Stored<E> {
    memory: Vec<f32>,
    view: View<E>,
}

impl<E: Element> Stored<E> {
    fn new(values: &[Bf16]) -> Self {
        let mut memory = vec![0.0; values.len()];
        let view = View::of_slice(&mut memory).of::<E>().part(0, values.len());
        // SAFETY: nobody else knows the memory.
        let stored = unsafe { view.write() };
        stored.iter_mut().zip(values).for_each(|(to, value)| *to = E::round(value.widen()));
        Self { memory, view }
    }

    /// What is there now, rounded if it is not.
    fn rounded(&self) -> Vec<Bf16> {
        assert!(!self.memory.is_empty(), "the memory is alive");
        // SAFETY: whatever wrote to it is over.
        unsafe { self.view.read() }.iter().map(|value| Bf16::round(value.widen())).collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All results of a kernel: what it stores in the format of activations, and what it stores in fp32.
#[derive(Debug, PartialEq)]
struct Results {
    stored: Vec<Vec<Bf16>>,
    exact: Vec<Vec<u32>>,
}

/// What a batch norm is run on.
struct NormCase {
    norm: Norm,
    has_residual: bool,
    mode: Mode,
}

impl NormCase {
    fn run<E: Element>(&self, pool: &Pool) -> Results {
        let norm = &self.norm;
        let count = norm.batch * norm.pixels * norm.channels;
        let [input, residual, output_grad, before] =
            [1, 2, 3, 4].map(|seed| Stored::<E>::new(&values(count, seed)));
        let output = Stored::<E>::new(&vec![Bf16(0); count]);
        let mut floats: Vec<Vec<f32>> =
            (0..6).map(|row| (0..norm.channels).map(|c| 0.5 + (row + c) as f32 / 16.0).collect()).collect();
        let [gamma, beta, mean, variance, gamma_grad, beta_grad]: [View; 6] =
            std::array::from_fn(|row| View::of_slice(&mut floats[row]));
        let params =
            NormParams { gamma: Some(gamma), beta: Some(beta), moving_mean: mean, moving_variance: variance };
        let mut kept = vec![0.0; 4 * norm.channels];
        let kept_view = Kept::new(View::of_slice(&mut kept), norm.channels);
        let mut workspace = vec![f32::NAN; norm.workspace()];
        let scratch = View::of_slice(&mut workspace);
        let running = Running { momentum: 0.9, correction: 1.25 };
        norm.measure(pool, input.view, &params, running, &kept_view, scratch);
        norm.apply(pool, input.view, self.has_residual.then_some(residual.view), output.view, &kept_view);
        // Backward starts from the same output in both formats.
        let known = Stored::<E>::new(&output.rounded());
        let operands = NormBackward {
            input: input.view,
            output: self.has_residual.then_some(known.view),
            output_grad: output_grad.view,
            input_grad: before.view,
            mode: self.mode,
            gamma_grad: Some(gamma_grad),
            beta_grad: Some(beta_grad),
            param_mode: self.mode,
        };
        norm.backward(pool, &operands, &kept_view, scratch);
        Results {
            stored: [&output, &output_grad, &before].map(Stored::rounded).into(),
            exact: floats.iter().chain([&kept]).map(|values| bits(values)).collect(),
        }
    }
}

fn pools() -> [Pool; 2] {
    [1, 3].map(|threads| Pool::new(threads, Placement::Anywhere).expect("threads"))
}

/// Both formats, one thread and three, on every instruction set and in both layouts.
fn check(what: &str, run: impl Fn(Layout, Simd, &Pool) -> [Results; 2]) {
    for simd in Simd::ALL.into_iter().filter(|simd| simd.available()) {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let [one, three] = pools().map(|pool| run(layout, simd, &pool));
            assert!(one[0] == one[1], "{what}, {simd}, {layout}: the formats differ");
            assert!(one == three, "{what}, {simd}, {layout}: threads change bits");
        }
    }
}

#[test]
fn norms_in_bf16_are_those_of_fp32_rounded() {
    let relu = Bounds { low: 0.0, ..Bounds::NONE };
    let relu6 = Bounds { low: 0.0, high: 6.0 };
    for (pixels, channels) in [(1, 5), (6, 16), (35, 33), (49, 96)] {
        for (bounds, has_residual) in [(Bounds::NONE, true), (relu, true), (relu, false), (relu6, false)] {
            for mode in [Mode::Write, Mode::Add] {
                check(&format!("{pixels} pixels, {channels} channels, {bounds:?}"), |layout, simd, pool| {
                    let norm = Norm { layout, simd, batch: BATCH, pixels, channels, epsilon: 1e-3, bounds };
                    let case = NormCase { norm, has_residual, mode };
                    [case.run::<f32>(pool), case.run::<Bf16>(pool)]
                });
            }
        }
    }
}

/// A window's every use, forward and backward.
fn slide<E: Element>(window: &Window, layout: Layout, simd: Simd, pool: &Pool) -> Results {
    let Window { kernel, input, output, .. } = *window;
    let (channels, taps) = (input.c, kernel.0 * kernel.1);
    let mut weights: Vec<f32> = values(taps * channels, 5).iter().map(|value| value.widen()).collect();
    let mut bias: Vec<f32> = values(channels, 6).iter().map(|value| value.widen()).collect();
    let (weights, bias) = (View::of_slice(&mut weights), Some(View::of_slice(&mut bias)));
    let [source, grad] =
        [(input, 7), (output, 8)].map(|(shape, seed)| Stored::<E>::new(&values(BATCH * shape.len(), seed)));
    let winners = Stored::<E>::new(&vec![Bf16(0); BATCH * output.len()]);
    let mut stored = Vec::new();
    let forward = Slide::forward(window, BATCH, layout, simd);
    let backward = Slide::backward(window, BATCH, layout, simd);
    for mode in [Mode::Write, Mode::Add] {
        for gathering in [
            Gathering::Weighted { weights, bias },
            Gathering::Largest { winners: winners.view },
            Gathering::Mean,
        ] {
            let dest = Stored::<E>::new(&values(BATCH * output.len(), 9));
            forward.run(pool, gathering, source.view, dest.view, mode);
            stored.push(dest.rounded());
        }
        stored.push(winners.rounded());
        for gathering in [
            Gathering::Weighted { weights, bias: None },
            Gathering::Winners { winners: winners.view },
            Gathering::Fractions,
        ] {
            let dest = Stored::<E>::new(&values(BATCH * input.len(), 10));
            backward.run(pool, gathering, grad.view, dest.view, mode);
            stored.push(dest.rounded());
        }
    }
    let sum = DepthwiseSum::new(*window, BATCH, layout, simd);
    let mut exact = [vec![0.5; taps * channels], vec![0.25; channels]];
    let [weight_grad, bias_grad] = [0, 1].map(|row: usize| View::of_slice(&mut exact[row]));
    let mut workspace = vec![f32::NAN; sum.workspace()];
    for mode in [Mode::Write, Mode::Add] {
        let workspace = View::of_slice(&mut workspace);
        let (input, output_grad, bias_grad) = (source.view, grad.view, Some(bias_grad));
        sum.run(pool, &DepthwiseOperands { input, output_grad, weight_grad, bias_grad, mode, workspace });
    }
    Results { stored, exact: exact.iter().map(|values| bits(values)).collect() }
}

#[test]
fn windows_in_bf16_are_those_of_fp32_rounded() {
    let same = Border { top: 1, bottom: 1, left: 1, right: 1 };
    let after = Border { top: 0, bottom: 1, left: 0, right: 1 };
    for (input, output, kernel, stride, border) in [
        (Shape::new(1, 1, 40), Shape::new(1, 1, 40), (3, 3), (1, 1), same),
        (Shape::new(5, 7, 19), Shape::new(5, 7, 19), (3, 3), (1, 1), same),
        (Shape::new(6, 6, 33), Shape::new(3, 3, 33), (3, 3), (2, 2), after),
        (Shape::new(4, 6, 96), Shape::new(2, 3, 96), (2, 2), (2, 2), Border::default()),
    ] {
        let window = Window { kernel, stride, border, input, output };
        check(&format!("{window:?}"), |layout, simd, pool| {
            [slide::<f32>(&window, layout, simd, pool), slide::<Bf16>(&window, layout, simd, pool)]
        });
    }
}

/// All passes over flat memory, into other memory and in place.
fn sweep<E: Element>(count: usize, simd: Simd, pool: &Pool) -> Results {
    let [a, b] = [11, 12].map(|seed| Stored::<E>::new(&values(count, seed)));
    // Both sides bound some of the values.
    let bounds = Bounds { low: -0.5, high: 1.5 };
    let dropout = Dropout { rate: 0.3, seed: 5 };
    let mut stored = Vec::new();
    for sweep in [Sweep::Bound(bounds), Sweep::Unbound(bounds), Sweep::Sum, Sweep::Accumulate, Sweep::Copy] {
        let out = Stored::<E>::new(&values(count, 13));
        Flat { sweep, a: a.view, b: b.view, out: out.view }.run(pool, simd);
        stored.push(out.rounded());
    }
    let out = Stored::<E>::new(&values(count, 13));
    dropout.run(pool, 7, a.view, out.view);
    // Backward changes a gradient where it is.
    Flat { sweep: Sweep::Unbound(bounds), a: a.view, b: b.view, out: a.view }.run(pool, simd);
    dropout.run(pool, 7, b.view, b.view);
    stored.extend([&out, &a, &b].map(Stored::rounded));
    Results { stored, exact: Vec::new() }
}

#[test]
fn flat_passes_in_bf16_are_those_of_fp32_rounded() {
    // Parts of a vector, whole ones, both, and more than one thread takes at a time.
    for count in [1, 7, 16, 45, 64 * 1024 + 13] {
        check(&format!("{count} values"), |_, simd, pool| {
            [sweep::<f32>(count, simd, pool), sweep::<Bf16>(count, simd, pool)]
        });
    }
}

/// What moves, spreads or adds up the values of a map: joins, borders, means, vectors and sums of channels.
fn arrange<E: Element>(shape: Shape, layout: Layout, pool: &Pool) -> Results {
    let border = Border { top: 1, bottom: 0, left: 2, right: 1 };
    let outer = Shape::new(shape.h + 1, shape.w + 3, shape.c);
    let whole = Shape::new(shape.h, shape.w, shape.c + 5);
    let maps = Maps { shape, batch: BATCH, layout };
    let padding = Padding { border, inner: shape, outer, batch: BATCH, layout };
    let concat = Stretches::concat(shape, whole, BATCH, layout);
    // Two channels of another input lie before.
    let offset = 2 * concat.len / shape.c;
    let behind = |view: View<E>| view.part(offset, view.len() - offset);
    let [map, padded, joined, vector] =
        [(shape.len(), 21), (outer.len(), 22), (whole.len(), 23), (shape.c, 24)]
            .map(|(len, seed)| Stored::<E>::new(&values(BATCH * len, seed)));
    let (mut stored, mut exact) = (Vec::new(), Vec::new());
    let mut keep = |len: usize, run: &dyn Fn(View<E>)| {
        let dest = Stored::<E>::new(&values(BATCH * len, 25));
        run(dest.view);
        stored.push(dest.rounded());
    };
    keep(outer.len(), &|to| padding.forward(pool, map.view, to));
    keep(shape.c, &|to| maps.mean(pool, map.view, to));
    keep(shape.len(), &|to| maps.flatten(pool, map.view, to));
    let mut sums = vec![0.5; shape.c];
    let mut workspace = vec![f32::NAN; BATCH * shape.c];
    for mode in [Mode::Write, Mode::Add] {
        keep(whole.len(), &|to| concat.run(pool, map.view, behind(to), mode));
        keep(shape.len(), &|to| concat.swap().run(pool, behind(joined.view), to, mode));
        keep(shape.len(), &|to| padding.backward(pool, padded.view, to, mode));
        keep(shape.len(), &|to| maps.spread(pool, vector.view, to, mode));
        keep(shape.len(), &|to| maps.unflatten(pool, map.view, to, mode));
        let (sums_view, workspace) = (View::of_slice(&mut sums), View::of_slice(&mut workspace));
        maps.channel_sums(pool, &ChannelSums { map: map.view, sums: sums_view, mode, workspace });
        exact.push(bits(&sums));
    }
    Results { stored, exact }
}

#[test]
fn joins_borders_and_whole_maps_in_bf16_are_those_of_fp32_rounded() {
    for shape in [Shape::new(1, 1, 40), Shape::new(3, 5, 7), Shape::new(2, 3, 70)] {
        check(&format!("{shape:?}"), |layout, _, pool| {
            [arrange::<f32>(shape, layout, pool), arrange::<Bf16>(shape, layout, pool)]
        });
    }
}

/// Both losses, and their gradients in one of three passes.
fn losses<E: Element>(classes: usize, pool: &Pool) -> Results {
    let count = BATCH * classes;
    let [output, target] = [31, 32].map(|seed| Stored::<E>::new(&values(count, seed)));
    let labels: Vec<u32> = (0..BATCH).map(|sample| (sample * 7 % classes) as u32).collect();
    let (mut stored, mut exact) = (Vec::new(), Vec::new());
    let mut keep = |run: &dyn Fn(Gradient<E>) -> Score| {
        let grad = Stored::<E>::new(&vec![Bf16(0); count]);
        let Score { loss, correct } = run(Gradient { values: grad.view, passes: 3 });
        stored.push(grad.rounded());
        exact.push(vec![loss.to_bits(), correct as u32]);
    };
    for smoothing in [0.0, 0.1] {
        let targets = Targets { labels: &labels, smoothing };
        keep(&|grad| softmax_cross_entropy(output.view, targets, Some(grad)));
    }
    let mut workspace = vec![f32::NAN; squared_error_workspace(count)];
    let workspace = View::of_slice(&mut workspace);
    keep(&|grad| mean_squared_error(pool, output.view, target.view, grad, workspace));
    Results { stored, exact }
}

#[test]
fn losses_in_bf16_are_those_of_fp32_and_their_gradients_are_rounded() {
    // A thousand classes are several chunks of squared errors.
    for classes in [2, 10, 1000] {
        check(&format!("{classes} classes"), |_, _, pool| {
            [losses::<f32>(classes, pool), losses::<Bf16>(classes, pool)]
        });
    }
}
