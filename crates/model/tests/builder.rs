//! The builder: shapes inferred, parameters in order, and errors that name the layer.

use paceline_model::{BatchNorm, Border, Builder, Conv2d, ConvTranspose, Dense, Init, NodeId, Shape, Window};

fn start(h: usize, w: usize, c: usize) -> (Builder, NodeId) {
    Builder::new("test", Shape::new(h, w, c), 10).unwrap()
}

#[test]
fn a_window_that_does_not_fit_names_the_layer_and_the_shapes() {
    let (mut b, x) = start(2, 9, 3);
    let error = b.conv("stem", x, Conv2d::k(3, 3).out(8)).unwrap_err().to_string();
    for part in ["stem", "3x3", "2x9x3"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn maps_that_differ_are_neither_added_nor_joined() {
    let (mut b, x) = start(8, 8, 3);
    let y = b.max_pool("pool", x, Window::k(2, 2).stride(2)).unwrap();
    for error in [b.add("sum", x, y).unwrap_err(), b.concat("sum", &[x, y]).unwrap_err()] {
        assert_eq!(error.to_string(), "layer sum: inputs of 8x8x3 and 4x4x3 do not fit together");
    }
}

#[test]
fn dense_asks_for_a_vector() {
    let (mut b, x) = start(8, 8, 3);
    let error = b.dense("top", x, Dense::to(10)).unwrap_err().to_string();
    assert!(error.contains("layer top: an input of 8x8x3") && error.contains("flatten"), "{error}");
    let x = b.flatten("flat", x);
    assert_eq!(b.shape(x), Shape::vector(192));
    assert!(b.dense("top", x, Dense::to(10)).is_ok());
}

#[test]
fn parameters_have_kerass_order_names_and_dimensions() {
    let (mut b, x) = start(8, 8, 4);
    let x = b.conv("a", x, Conv2d::k(3, 5).out(6).groups(2).bias()).unwrap();
    let x = b.batch_norm("n", x, BatchNorm::KERAS);
    let x = b.depthwise_conv("d", x, Conv2d::k(3, 3)).unwrap();
    let up = ConvTranspose {
        out: 7,
        kernel: (3, 3),
        stride: (2, 2),
        crop: 1,
        output_padding: 1,
        bias: true,
        init: Init::Glorot,
    };
    let side = b.shape(x).h;
    let x = b.conv_transpose("t", x, up).unwrap();
    assert_eq!(b.shape(x).h, 2 * side);
    let graph = b.mean_squared_error("loss", x, x).unwrap();
    let params: Vec<_> = graph.params.iter().map(|p| (p.name.as_str(), p.dims.as_slice())).collect();
    let expected: [(&str, &[usize]); 9] = [
        ("a/kernel", &[3, 5, 2, 6]),
        ("a/bias", &[6]),
        ("n/gamma", &[6]),
        ("n/beta", &[6]),
        ("n/moving_mean", &[6]),
        ("n/moving_variance", &[6]),
        ("d/kernel", &[3, 3, 1, 6]),
        ("t/kernel", &[3, 3, 7, 6]),
        ("t/bias", &[7]),
    ];
    assert_eq!(params, expected);
    assert_eq!((graph.params[0].fan_in, graph.params[0].fan_out), (30, 90));
    assert_eq!((graph.params[6].fan_in, graph.params[6].fan_out), (9, 54));
}

#[test]
fn impossible_sizes_are_errors_and_never_panics() {
    assert!(Builder::new("test", Shape::new(0, 4, 3), 10).is_err());
    assert!(Builder::new("test", Shape::new(usize::MAX, usize::MAX, 3), 10).is_err());
    let (mut b, x) = start(4, 4, 3);
    assert!(b.conv("groups", x, Conv2d::k(1, 1).out(4).groups(2)).is_err());
    assert!(b.conv("wide", x, Conv2d::k(1, 1).out(usize::MAX)).is_err());
    assert!(b.pad("pad", x, Border::even(usize::MAX)).is_err());
    assert!(b.concat("none", &[]).is_err());
    assert!(b.dropout("all", x, 1.0).is_err());
    assert!(b.softmax_cross_entropy("loss", x).is_err());
}
