//! Windows that slide over a map: padding rules as numbers, and the resulting map.

use crate::{Border, Conv, Init, Pool, Shape, ShapeError};

/// How much border a window gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Padding {
    /// None.
    #[default]
    Valid,
    /// TensorFlow's SAME: output side = input side / stride, rounded up; an odd row goes to the bottom, an odd
    /// column to the right.
    Same,
    /// These numbers.
    Explicit(Border),
}

/// A convolution without its input: stride 1, no border, no bias and Glorot weights by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    window: Window,
    out: usize,
    groups: usize,
    bias: bool,
    init: Init,
}

impl Conv2d {
    /// A window of `h` x `w`.
    pub const fn k(h: usize, w: usize) -> Self {
        Self { window: Window::k(h, w), out: 1, groups: 1, bias: false, init: Init::Glorot }
    }

    /// Output channels.
    pub const fn out(self, out: usize) -> Self {
        Self { out, ..self }
    }

    /// The same step down and across.
    pub const fn stride(self, step: usize) -> Self {
        Self { window: self.window.stride(step), ..self }
    }

    /// Padding by rule.
    pub const fn padding(self, padding: Padding) -> Self {
        Self { window: self.window.padding(padding), ..self }
    }

    /// TensorFlow's SAME padding.
    pub const fn same(self) -> Self {
        self.padding(Padding::Same)
    }

    /// Padding by number.
    pub const fn border(self, border: Border) -> Self {
        self.padding(Padding::Explicit(border))
    }

    /// Splits channels into separate groups.
    pub const fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// With a bias.
    pub const fn bias(self) -> Self {
        Self { bias: true, ..self }
    }

    /// How the weights are initialised.
    pub const fn init(self, init: Init) -> Self {
        Self { init, ..self }
    }

    /// The convolution on this input, and the resulting height and width.
    pub(crate) fn meet(self, layer: &str, input: Shape) -> Result<(Conv, (usize, usize)), ShapeError> {
        if self.out == 0
            || self.groups == 0
            || !input.c.is_multiple_of(self.groups)
            || !self.out.is_multiple_of(self.groups)
        {
            let why = format!(
                "{} input and {} output channels do not divide into {} groups",
                input.c, self.out, self.groups
            );
            return Err(ShapeError::NotAdmitted { layer: layer.to_owned(), input, why });
        }
        let Window { kernel, stride, .. } = self.window;
        let (border, side) = self.window.slide(layer, input)?;
        let Self { out, groups, bias, init, .. } = self;
        Ok((Conv { out, kernel, stride, border, groups, bias, init }, side))
    }
}

/// A pooling window without its input: stride 1 and no border by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    kernel: (usize, usize),
    stride: (usize, usize),
    padding: Padding,
}

impl Window {
    /// A window of `h` x `w`.
    pub const fn k(h: usize, w: usize) -> Self {
        Self { kernel: (h, w), stride: (1, 1), padding: Padding::Valid }
    }

    /// The same step down and across.
    pub const fn stride(self, step: usize) -> Self {
        Self { stride: (step, step), ..self }
    }

    /// Padding by rule.
    pub const fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// TensorFlow's SAME padding.
    pub const fn same(self) -> Self {
        self.padding(Padding::Same)
    }

    /// The pool on this input, and the resulting height and width.
    pub(crate) fn meet(self, layer: &str, input: Shape) -> Result<(Pool, (usize, usize)), ShapeError> {
        let (border, side) = self.slide(layer, input)?;
        let Self { kernel, stride, .. } = self;
        if border.top.max(border.bottom) >= kernel.0 || border.left.max(border.right) >= kernel.1 {
            let why = "a pooling window would see nothing but border".to_owned();
            return Err(ShapeError::NotAdmitted { layer: layer.to_owned(), input, why });
        }
        Ok((Pool { kernel, stride, border }, side))
    }

    fn slide(self, layer: &str, input: Shape) -> Result<(Border, (usize, usize)), ShapeError> {
        let (kernel, stride) = (self.kernel, self.stride);
        if kernel.0.min(kernel.1) == 0 || stride.0.min(stride.1) == 0 {
            let why = "a window and its stride are at least 1".to_owned();
            return Err(ShapeError::NotAdmitted { layer: layer.to_owned(), input, why });
        }
        let border = match self.padding {
            Padding::Valid => Border::default(),
            Padding::Explicit(border) => border,
            Padding::Same => {
                let (top, bottom) = pad_same(input.h, kernel.0, stride.0);
                let (left, right) = pad_same(input.w, kernel.1, stride.1);
                Border { top, bottom, left, right }
            }
        };
        let h = count_stops(input.h, (border.top, border.bottom), kernel.0, stride.0);
        let w = count_stops(input.w, (border.left, border.right), kernel.1, stride.1);
        match h.zip(w) {
            Some(side) => Ok((border, side)),
            None => Err(ShapeError::WindowTooLarge {
                layer: layer.to_owned(),
                kernel_h: kernel.0,
                kernel_w: kernel.1,
                input,
            }),
        }
    }
}

/// TensorFlow's SAME: (before, after), the odd one after.
fn pad_same(side: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let last = side.div_ceil(stride).saturating_sub(1) * stride;
    let total = last.saturating_add(kernel).saturating_sub(side);
    (total / 2, total - total / 2)
}

/// Positions at which the window fits the padded side.
fn count_stops(side: usize, pad: (usize, usize), kernel: usize, stride: usize) -> Option<usize> {
    let free = side.checked_add(pad.0)?.checked_add(pad.1)?.checked_sub(kernel)?;
    Some(free / stride + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_padding_is_tensorflows() {
        // side, kernel, stride -> before, after
        for (side, kernel, stride, expected) in [
            (224, 3, 2, (0, 1)),
            (225, 3, 2, (1, 1)),
            (224, 7, 2, (2, 3)),
            (35, 3, 1, (1, 1)),
            (35, 5, 1, (2, 2)),
            (17, 7, 1, (3, 3)),
            (5, 1, 2, (0, 0)),
            (4, 1, 2, (0, 0)),
            (1, 3, 2, (1, 1)),
            (1, 2, 2, (0, 1)),
            (5, 2, 1, (0, 1)),
        ] {
            assert_eq!(pad_same(side, kernel, stride), expected, "{side} {kernel} {stride}");
            assert_eq!(count_stops(side, expected, kernel, stride), Some(side.div_ceil(stride)));
        }
    }

    #[test]
    fn a_border_as_wide_as_a_pooling_window_is_refused() {
        let window = Window::k(2, 2).padding(Padding::Explicit(Border::even(2)));
        let error = window.meet("pool", Shape::new(4, 4, 1)).unwrap_err();
        assert!(error.to_string().contains("layer pool: an input of 4x4x1"), "{error}");
    }

    #[test]
    fn a_stride_of_zero_is_refused() {
        assert!(Window::k(2, 2).stride(0).same().meet("pool", Shape::new(4, 4, 1)).is_err());
    }
}
