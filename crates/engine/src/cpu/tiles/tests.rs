//! Tiles against plain loops over the same bf16 values, in double precision.

use std::sync::Arc;

use paceline_model::{Border, Shape};

use super::super::element::{Bf16, Element};
use super::super::kernels::tile::Mode;
use super::super::memory::View;
use super::super::pool::{Placement, Pool};
use super::super::product::{ConvShape, Direction, Operands};
use super::super::simd::Simd;
use super::super::weights::WeightOperands;
use super::{TileProduct, TileSum};
use crate::Layout;
use crate::outline::Window;

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn values(&mut self, count: usize) -> Vec<Bf16> {
        (0..count).map(|_| Bf16::round(self.next())).collect()
    }
}

/// A convolution with its operands: `[sample][row][column][channel]`, and weights `[tap][in / groups][out]`.
struct Case {
    conv: ConvShape,
    input: Vec<Bf16>,
    output: Vec<Bf16>,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// What a case must give.
struct Expected {
    forward: Vec<f64>,
    backward: Vec<f64>,
    weights: Vec<f64>,
    bias: Vec<f64>,
}

impl Case {
    fn new(
        input: Shape,
        out: usize,
        kernel: (usize, usize),
        more: (usize, Border, usize, usize),
    ) -> Option<Self> {
        let (stride, border, groups, batch) = more;
        let side = |side: usize, before: usize, after: usize, kernel: usize| {
            Some((side + before + after).checked_sub(kernel)? / stride + 1)
        };
        let h = side(input.h, border.top, border.bottom, kernel.0)?;
        let w = side(input.w, border.left, border.right, kernel.1)?;
        let output = Shape::new(h, w, out);
        let window = Window { kernel, stride: (stride, stride), border, input, output };
        let conv = ConvShape { window, groups, batch };
        let mut draw = Draw((input.len() * 31 + out * 7 + batch + stride) as u64);
        Some(Self {
            conv,
            input: draw.values(batch * input.len()),
            output: draw.values(batch * output.len()),
            weights: draw.floats(conv.taps() * conv.group_in() * out),
            bias: draw.floats(out),
        })
    }

    fn expected(&self) -> Expected {
        let Window { kernel, stride, border, input, output } = self.conv.window;
        let mut expected = Expected {
            forward: vec![0.0; self.output.len()],
            backward: vec![0.0; self.input.len()],
            weights: vec![0.0; self.weights.len()],
            bias: vec![0.0; output.c],
        };
        let wide = |value: Bf16| f64::from(value.widen());
        let (group_in, group_out) = (self.conv.group_in(), self.conv.group_out());
        for n in 0..self.conv.batch {
            for y in 0..output.h {
                for x in 0..output.w {
                    for o in 0..output.c {
                        let at_out = ((n * output.h + y) * output.w + x) * output.c + o;
                        expected.bias[o] += wide(self.output[at_out]);
                        expected.forward[at_out] += f64::from(self.bias[o]);
                        for ky in 0..kernel.0 {
                            for kx in 0..kernel.1 {
                                let iy = (y * stride.0 + ky).wrapping_sub(border.top);
                                let ix = (x * stride.1 + kx).wrapping_sub(border.left);
                                if iy >= input.h || ix >= input.w {
                                    continue;
                                }
                                for i in 0..group_in {
                                    let channel = o / group_out * group_in + i;
                                    let at_in = ((n * input.h + iy) * input.w + ix) * input.c + channel;
                                    let at = ((ky * kernel.1 + kx) * group_in + i) * output.c + o;
                                    let weight = wide(Bf16::round(self.weights[at]));
                                    expected.forward[at_out] += wide(self.input[at_in]) * weight;
                                    expected.backward[at_in] += wide(self.output[at_out]) * weight;
                                    expected.weights[at] +=
                                        wide(self.input[at_in]) * wide(self.output[at_out]);
                                }
                            }
                        }
                    }
                }
            }
        }
        expected
    }

    fn check(&self, layout: Layout, simd: Simd) {
        let expected = self.expected();
        let bits = self.run(layout, simd, 1, &expected);
        assert_eq!(bits, self.run(layout, simd, 3, &expected), "{simd} {layout}: three threads");
    }

    /// Runs all directions, compares, and returns all results.
    fn run(&self, layout: Layout, simd: Simd, threads: usize, expected: &Expected) -> Vec<u32> {
        let label = format!("{simd} {layout} {:?}", self.conv);
        let pool = Arc::new(Pool::new(threads, Placement::Anywhere).expect("threads"));
        let Window { input, output, .. } = self.conv.window;
        let mut bits = Vec::new();
        for (direction, from, to) in [
            (Direction::Forward, &self.input, &self.output),
            (Direction::Backward, &self.output, &self.input),
        ] {
            let (from_shape, to_shape, values) = match direction {
                Direction::Forward => (input, output, &expected.forward),
                Direction::Backward => (output, input, &expected.backward),
            };
            let plan = TileProduct::new(self.conv, direction, layout, simd);
            let mut source = packed(&arranged(from, from_shape, layout));
            let before = arranged(to, to_shape, layout);
            for mode in [Mode::Write, Mode::Add] {
                let mut dest = packed(&before);
                // NaN shows what is read without having been written.
                let mut workspace = vec![f32::from_bits(0x7fc0_7fc0); plan.workspace(threads)];
                let (mut weights, mut bias) = (self.weights.clone(), self.bias.clone());
                let operands = Operands {
                    source: View::of_slice(&mut source).of::<Bf16>().part(0, from.len()),
                    weights: View::of_slice(&mut weights),
                    bias: (direction == Direction::Forward).then(|| View::of_slice(&mut bias)),
                    dest: View::of_slice(&mut dest).of::<Bf16>().part(0, to.len()),
                    mode,
                    workspace: View::of_slice(&mut workspace),
                };
                plan.run(&pool, &operands);
                // SAFETY: the run is over.
                let result = unsafe { operands.dest.read() };
                let real = arranged(values, to_shape, layout);
                for (i, (own, &real)) in result.iter().zip(&real).enumerate() {
                    let added = if mode == Mode::Add { f64::from(before[i].widen()) } else { 0.0 };
                    let (own, real) = (f64::from(own.widen()), real + added);
                    assert!(
                        (own - real).abs() <= real.abs() / 250.0 + 1e-4,
                        "{label} {direction:?} {mode:?} {i}: {own}, not {real}"
                    );
                }
                bits.extend(result.iter().map(|value| u32::from(value.0)));
            }
        }
        let plan = TileSum::new(self.conv, layout, simd);
        let mut source = packed(&arranged(&self.input, input, layout));
        let mut grad = packed(&arranged(&self.output, output, layout));
        let (mut weights, mut bias) = (vec![f32::NAN; self.weights.len()], vec![f32::NAN; output.c]);
        for (mode, times) in [(Mode::Write, 1.0), (Mode::Add, 2.0)] {
            let mut workspace = vec![f32::from_bits(0x7fc0_7fc0); plan.workspace(threads)];
            let operands = WeightOperands {
                input: View::of_slice(&mut source).of::<Bf16>().part(0, self.input.len()),
                output_grad: View::of_slice(&mut grad).of::<Bf16>().part(0, self.output.len()),
                weight_grad: View::of_slice(&mut weights),
                bias_grad: Some(View::of_slice(&mut bias)),
                mode,
                workspace: View::of_slice(&mut workspace),
            };
            plan.run(&pool, &operands);
            for (what, own, real) in
                [("weight", &weights, &expected.weights), ("bias", &bias, &expected.bias)]
            {
                for (i, (&own, real)) in own.iter().zip(real).enumerate() {
                    let real = times * real;
                    assert!(
                        (f64::from(own) - real).abs() <= 1e-3 * real.abs().max(1.0),
                        "{label} {mode:?} {what} {i}: {own}, not {real}"
                    );
                }
                bits.extend(own.iter().map(|value| value.to_bits()));
            }
        }
        bits
    }
}

/// Values in a layout.
fn arranged<T: Copy>(values: &[T], shape: Shape, layout: Layout) -> Vec<T> {
    let (pixels, channels) = (shape.pixels(), shape.c);
    let place = |at: usize| match layout {
        Layout::Nhwc => at,
        Layout::Nchw => {
            let (n, rest) = (at / shape.len(), at % shape.len());
            n * shape.len() + rest % pixels * channels + rest / pixels
        }
    };
    (0..values.len()).map(|at| values[place(at)]).collect()
}

/// bf16 values in the memory of fp32 ones.
fn packed(values: &[Bf16]) -> Vec<f32> {
    values
        .chunks(2)
        .map(|pair| f32::from_bits(u32::from(pair[0].0) | u32::from(pair.get(1).map_or(0, |v| v.0)) << 16))
        .collect()
}

/// The instruction sets of this machine, and AMX played for it if it has the rest of what that needs.
fn sets() -> impl Iterator<Item = Simd> {
    #[cfg(target_arch = "x86_64")]
    let is_played = Simd::Avx512Bf16.available() && !Simd::Amx.available();
    #[cfg(not(target_arch = "x86_64"))]
    let is_played = false;
    #[cfg(target_arch = "x86_64")]
    if is_played {
        super::super::amx::played::install();
    }
    Simd::ALL.into_iter().filter(move |&simd| simd.available() || (simd == Simd::Amx && is_played))
}

fn everywhere(case: &Case) {
    for simd in sets() {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            case.check(layout, simd);
        }
    }
}

fn border(top: usize, bottom: usize, left: usize, right: usize) -> Border {
    Border { top, bottom, left, right }
}

#[test]
fn awkward_convolutions_are_right_in_all_directions() {
    let same = border(1, 1, 1, 1);
    let none = border(0, 0, 0, 0);
    // Input, output channels, window, then stride, border, groups, batch.
    for (input, out, kernel, more) in [
        (Shape::new(5, 7, 3), 9, (3, 3), (1, same, 1, 3)),
        (Shape::new(5, 7, 4), 9, (3, 3), (2, border(0, 1, 0, 1), 1, 5)),
        (Shape::new(6, 6, 32), 40, (1, 1), (2, none, 1, 3)),
        (Shape::new(1, 1, 64), 33, (3, 3), (1, same, 1, 33)),
        (Shape::new(2, 2, 32), 35, (3, 3), (1, same, 1, 32)),
        (Shape::new(4, 4, 64), 64, (3, 3), (1, same, 1, 40)),
        (Shape::new(9, 9, 3), 16, (7, 7), (2, border(3, 3, 3, 3), 1, 2)),
        (Shape::new(4, 9, 8), 6, (1, 7), (1, border(0, 0, 3, 3), 1, 4)),
        (Shape::new(8, 5, 8), 12, (3, 2), (3, border(1, 0, 0, 1), 2, 7)),
        (Shape::new(5, 5, 12), 24, (3, 3), (1, same, 4, 1)),
        (Shape::new(1, 1, 100), 70, (1, 1), (1, none, 1, 17)),
        (Shape::new(7, 6, 96), 48, (1, 1), (1, none, 1, 35)),
        (Shape::new(3, 3, 24), 144, (1, 1), (1, none, 1, 64)),
        (Shape::new(3, 70, 16), 16, (3, 3), (2, same, 1, 1)),
        (Shape::new(8, 8, 64), 64, (3, 3), (1, same, 2, 33)),
    ] {
        everywhere(&Case::new(input, out, kernel, more).expect("a window that fits"));
    }
}

#[test]
fn weights_that_do_not_fit_the_cache_are_multiplied_in_parts() {
    everywhere(
        &Case::new(Shape::new(2, 2, 192), 320, (3, 3), (1, border(1, 1, 1, 1), 1, 3)).expect("it fits"),
    );
}

#[test]
fn images_in_several_chunks_add_up() {
    everywhere(
        &Case::new(Shape::new(24, 24, 64), 16, (1, 1), (1, border(0, 0, 0, 0), 1, 66)).expect("it fits"),
    );
    everywhere(
        &Case::new(Shape::new(64, 65, 64), 32, (3, 3), (2, border(0, 1, 1, 0), 1, 3)).expect("it fits"),
    );
}

#[test]
fn nan_and_infinity_reach_the_sums() {
    for simd in sets() {
        for (bad, test) in
            [(f32::NAN, f32::is_nan as fn(f32) -> bool), (f32::INFINITY, |v: f32| !v.is_finite())]
        {
            let mut case =
                Case::new(Shape::new(1, 1, 40), 20, (1, 1), (1, border(0, 0, 0, 0), 1, 4)).expect("it fits");
            case.input[17] = Bf16::round(bad);
            let plan = TileProduct::new(case.conv, Direction::Forward, Layout::Nhwc, simd);
            let pool = Pool::new(1, Placement::Anywhere).expect("threads");
            let (mut source, mut dest) = (packed(&case.input), packed(&case.output));
            let mut workspace = vec![0.0; plan.workspace(1)];
            let operands = Operands {
                source: View::of_slice(&mut source).of::<Bf16>(),
                weights: View::of_slice(&mut case.weights),
                bias: None,
                dest: View::of_slice(&mut dest).of::<Bf16>(),
                mode: Mode::Write,
                workspace: View::of_slice(&mut workspace),
            };
            plan.run(&pool, &operands);
            // SAFETY: the run is over.
            let result = unsafe { operands.dest.read() };
            assert!(result[..20].iter().all(|value| test(value.widen())), "{simd}: {bad}");
            assert!(result[20..].iter().all(|value| value.widen().is_finite()), "{simd}: {bad}");
        }
    }
}
