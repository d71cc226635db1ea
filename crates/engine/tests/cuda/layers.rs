//! Layers, one or a few at a time.

use paceline_engine::Layout;
use paceline_model::{Border, Conv2d, Shape};

use super::*;
use crate::graphs::*;

#[test]
fn every_kind_of_layer_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let mut failed = Vec::new();
    let mut cases = layers();
    cases.push(("autoencoder", autoencoder()));
    cases.push(("from below", from_below()));
    let seven = Conv2d::k(7, 7).out(16).stride(2).border(Border::even(3)).bias();
    cases.push(("7x7 stem", stem(Shape::new(16, 12, 3), seven)));
    cases.push(("3x3 stem", stem(Shape::new(16, 12, 3), Conv2d::k(3, 3).out(16).stride(2).same())));
    cases.push(("odd stem", stem(Shape::new(15, 13, 3), Conv2d::k(3, 3).out(16).stride(2))));
    cases.push(("plain stem", stem(Shape::new(15, 13, 3), Conv2d::k(3, 3).out(16).same())));
    for (name, graph) in &cases {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16] {
                let spec = Spec { layout, precision, label_smoothing: 0.1, ..Spec::new(6) };
                // All of them, so that one failure does not hide the others.
                let run = std::panic::AssertUnwindSafe(|| compare(name, &gpu, graph, &spec));
                if let Err(why) = std::panic::catch_unwind(run) {
                    let text = why.downcast_ref::<String>().cloned().unwrap_or_default();
                    failed.push(format!("{name} {layout} {precision}: {text}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), 6 * cases.len(), failed.join("\n"));
}

#[test]
fn convolutions_written_out_as_plain_products_agree_with_the_cpu() {
    let last = CudaOptions { tuning: Tuning::Last, contents: Contents::Poisoned, device: 0 };
    let Some(gpu) = gpu::open(last) else { return };
    let convolution = |conv: Conv2d| around(Shape::new(9, 8, 3), move |b, x| b.conv("c", x, conv));
    for (name, graph) in [
        ("3x3", convolution(Conv2d::k(3, 3).out(24).same())),
        ("3x3 stride 2", convolution(Conv2d::k(3, 3).out(24).stride(2).same())),
        ("5x2, no border", convolution(Conv2d::k(5, 2).out(8))),
        ("1x7", convolution(Conv2d::k(1, 7).out(8).same())),
        ("transposed", around(Shape::new(5, 4, 3), |b, x| b.conv_transpose("t", x, TRANSPOSE))),
        ("first", stem(Shape::new(17, 14, 3), Conv2d::k(7, 7).out(16).stride(2).border(Border::even(3)))),
    ] {
        for precision in [Precision::Fp32, Precision::Tf32] {
            compare(name, &gpu, &graph, &Spec { precision, ..Spec::new(6) });
        }
    }
}

#[test]
fn large_maps_agree_with_the_cpu_however_products_are_computed() {
    let Some(first) = gpu() else { return };
    let measured =
        Cuda::new(CudaOptions { tuning: Tuning::Measured, contents: Contents::Poisoned, device: 0 }).unwrap();
    for (name, gpu) in [("the first way", &first), ("the fastest way", &measured)] {
        for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16] {
            let spec = Spec { precision, ..Spec::new(160) };
            compare(&format!("large maps, {name}, {precision}"), gpu, &large_maps(), &spec);
        }
        compare(
            &format!("large maps, {name}, nchw"),
            gpu,
            &large_maps(),
            &Spec { layout: Layout::Nchw, ..Spec::new(24) },
        );
    }
}

#[test]
fn a_first_convolution_on_tensor_cores_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (kernel, stride, out, (h, w)) in
        [(3, 2, 32, (33, 40)), (7, 2, 64, (40, 35)), (3, 1, 64, (20, 17)), (5, 1, 32, (16, 50))]
    {
        let conv = Conv2d::k(kernel, kernel).out(out).stride(stride).same();
        let graph = stem(Shape::new(h, w, 3), conv);
        let spec = Spec { precision: Precision::Bf16, ..Spec::new(3) };
        compare(&format!("stem of {kernel} by {stride} to {out}"), &gpu, &graph, &spec);
    }
}

#[test]
fn a_norm_that_only_a_depthwise_window_reads_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for (layout, precision) in
        [(Layout::Nhwc, Precision::Fp32), (Layout::Nhwc, Precision::Bf16), (Layout::Nchw, Precision::Fp32)]
    {
        let spec = Spec { layout, precision, ..Spec::new(17) };
        for side in [(33, 32), (7, 141)] {
            compare(&format!("behind norms of {side:?}"), &gpu, &behind_norms(side), &spec);
        }
    }
}

#[test]
fn one_network_of_every_kind_of_layer_agrees_with_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let graph = every_kind();
    for layout in [Layout::Nhwc, Layout::Nchw] {
        let spec = Spec { layout, label_smoothing: 0.1, ..Spec::new(4) };
        compare("every kind", &gpu, &graph, &spec);
        let rough = step(&gpu, &graph, &Spec { precision: Precision::Bf16, ..spec });
        let off = distance(&rough.output, &step(&cpu(), &graph, &spec).output);
        assert!(off < 0.1, "{layout} bf16: output off by {off}");
    }
    compare("autoencoder", &gpu, &autoencoder(), &Spec::new(4));
    compare("many rows", &gpu, &many_rows(), &Spec::new(17));
}
