//! Shapes of one sample, and shape errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Height, width and channels of one sample; a vector is 1x1xC. Layout (NHWC or NCHW) is the engine's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Rows of the map.
    pub h: usize,
    /// Columns of the map.
    pub w: usize,
    /// Channels.
    pub c: usize,
}

impl Shape {
    /// A map of `h` x `w` with `c` channels.
    pub const fn new(h: usize, w: usize, c: usize) -> Self {
        Self { h, w, c }
    }

    /// A vector of `c` values.
    pub const fn vector(c: usize) -> Self {
        Self { h: 1, w: 1, c }
    }

    /// Values in one sample.
    pub const fn len(self) -> usize {
        self.h * self.w * self.c
    }

    /// Whether one sample holds no value at all.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Positions of the map, without channels.
    pub const fn pixels(self) -> usize {
        self.h * self.w
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.h, self.w, self.c)
    }
}

/// Why a layer cannot take the shapes it was given; `layer` names it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// The window does not fit the padded input.
    #[error(
        "layer {layer}: a {kernel_h}x{kernel_w} window does not fit an input of {input}; use a larger --input"
    )]
    WindowTooLarge {
        /// The layer's name.
        layer: String,
        /// Window height.
        kernel_h: usize,
        /// Window width.
        kernel_w: usize,
        /// What it was given.
        input: Shape,
    },
    /// Two inputs that must agree do not.
    #[error("layer {layer}: inputs of {left} and {right} do not fit together")]
    Mismatch {
        /// The layer's name.
        layer: String,
        /// First input.
        left: Shape,
        /// The input that differs from it.
        right: Shape,
    },
    /// A size that the layer or the network does not accept.
    #[error("layer {layer}: an input of {input} is not possible: {why}")]
    NotAdmitted {
        /// The layer's name.
        layer: String,
        /// What it was given.
        input: Shape,
        /// What is required.
        why: String,
    },
}
