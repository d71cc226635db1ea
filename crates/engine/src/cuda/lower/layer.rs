//! Layers of several instructions: products with biases and borders, batch norm, windows.

use super::*;

/// Zeros around a map.
#[derive(Clone, Copy)]
pub(crate) struct Padding {
    pub inner: Map,
    pub outer: Map,
    pub border: Border,
}

impl Lowering<'_> {
    pub(super) fn lower_product(&mut self, y: NodeId, layer: &outline::Product) {
        let outline::Product { x, window, groups, kernel, transposed, .. } = *layer;
        let mut product = Product {
            batch: self.spec.batch,
            input: window.input,
            output: window.output,
            kernel: window.kernel,
            stride: window.stride,
            border: window.border,
            groups,
            layout: self.spec.layout,
            precision: self.spec.precision,
        };
        if x == NodeId(0) {
            product.input.c = self.wide;
        }
        let mut source = self.value(x);
        let copied = match self.pad_unevenly(&mut product, &mut source) {
            None if !transposed => self.pick(x, &mut product, &mut source),
            padded => padded,
        };
        let number = self.products.iter().position(|known| *known == product).unwrap_or_else(|| {
            self.products.push(product);
            self.products.len() - 1
        });
        self.kept[self.unit] = Kept::Product(number, copied);
        let dest = self.output(y);
        let (direction, x_side, y_side) =
            if transposed { (Direction::Data, dest, source) } else { (Direction::Forward, source, dest) };
        let action = match self.stem(&product, [source, dest], kernel).filter(|_| !transposed) {
            Some(stem) => stem,
            None => Action::Product { product: number, direction, x: x_side, kernel, y: y_side },
        };
        self.put(When::Always, action);
    }

    /// A convolution of few channels, which the libraries are slow at: our own kernel on tensor cores, where it applies.
    fn stem(&self, product: &Product, [x, y]: [Buffer; 2], kernel: ParamId) -> Option<Action> {
        const MOST_SHARED: usize = 112 << 10;
        let Product { input, output, kernel: (kh, kw), stride, groups, .. } = *product;
        let few = input.c == 8 && groups == 1 && matches!(output.c, 32 | 64);
        let ours = self.spec.precision == Precision::Bf16 && !self.nchw() && few;
        // The kernel's shared memory: weights, its patch of the input, its outputs and the places of its taps.
        let pairs = (kh * kw).div_ceil(2);
        let patch = (15 * stride.0 + kh) * (15 * stride.1 + kw);
        let words = output.c * (8 * pairs + 4) + 4 * patch + 256 * (output.c / 2 + 4) + 2 * pairs;
        if !ours || 4 * words > MOST_SHARED {
            return None;
        }
        let window = self.window(&product.window());
        let tiles = self.spec.batch * output.h.div_ceil(16) * output.w.div_ceil(16);
        let shape = Shape {
            grid: (tiles.min(264) as u32, 1, 1),
            block: (256, 1),
            shared: 4 * words as u32,
            cluster: 1,
        };
        let args = vec![Arg::Window(window), x.into(), Arg::Packed(kernel), y.into()];
        Some(Action::Kernel { name: format!("stem_{}", output.c), shape, args })
    }

    /// Some of cuDNN's engines give wrong results for asymmetric borders: such a border is written out.
    fn pad_unevenly(&mut self, product: &mut Product, source: &mut Buffer) -> Option<Copied> {
        let border = product.border;
        if border.top == border.bottom && border.left == border.right {
            return None;
        }
        let inner = product.input;
        let outer =
            Map::new(inner.h + border.top + border.bottom, inner.w + border.left + border.right, inner.c);
        let buffer = self.values(self.spec.batch * outer.len());
        let padding = Padding { inner, outer, border };
        let action = self.pad(*source, buffer, padding, Toward::Output);
        self.put(When::Always, action);
        (product.input, product.border, *source) = (outer, Border::default(), buffer);
        Some(Copied { buffer, map: outer, how: Copying::Bordered(padding) })
    }

    /// A 1x1 convolution with a stride is a matrix product of the pixels that it selects. cuDNN's engines are no faster; those
    /// with full fp32 precision are up to fifty times slower. Convolutions of the same value share the copy.
    fn pick(&mut self, x: NodeId, product: &mut Product, source: &mut Buffer) -> Option<Copied> {
        let Product { input, output, kernel, stride, border, groups, .. } = *product;
        if kernel != (1, 1) || stride == (1, 1) || groups != 1 || border != Border::default() {
            return None;
        }
        let map = Map::new(output.h, output.w, input.c);
        let window = self.window(&outline::Window { kernel, stride, border, input, output: map });
        let known = self.picks.iter().position(|pick| pick.x == x && pick.window.stride == window.stride);
        let number = known.unwrap_or_else(|| {
            let values = self.spec.batch * map.len();
            let buffer = self.values(values);
            let args = vec![Arg::Window(window), (*source).into(), buffer.into()];
            let action = self.spread("avg_pool", values, map.c, args);
            self.put(When::Always, action);
            self.picks.push(Pick { x, window, buffer, users: 0 });
            self.picks.len() - 1
        });
        self.picks[number].users += 1;
        let buffer = self.buffers.touch(self.picks[number].buffer, 0);
        (product.input, product.stride, *source) = (map, (1, 1), buffer);
        Some(Copied { buffer, map, how: Copying::Picked(number) })
    }

    pub(super) fn lower_norm(&mut self, y: NodeId, layer: &outline::Norm) {
        let outline::Norm { x, residual, bounds, gamma, beta, bias, .. } = *layer;
        let (mean, variance) = (Arg::Moving(layer.moving_mean), Arg::Moving(layer.moving_variance));
        let map = self.map(x);
        let optional = |param: Option<ParamId>| param.map_or(Arg::Null, Arg::Param);
        let kept = self.bytes(16 * map.c);
        let input = self.value(x);
        let residual_buffer = residual.map_or(Arg::Null, |other| self.value(other).into());
        let once = self.once(map);
        self.kept[self.unit] = Kept::Buffer(kept);
        let unmade = residual.is_none() && once.is_none() && self.is_read_in_threes(y);
        let output = if unmade {
            self.unmade[y.0] = Some(Front { layer: *layer, kept });
            self.buffers.assign(y, input)
        } else {
            self.output(y)
        };
        let mut apply = vec![input.into(), residual_buffer, output.into(), kept.into()];
        apply.extend(self.row_args(map));
        apply.extend(bounds.args());
        let mut measure = vec![optional(gamma), optional(beta), optional(bias), mean, variance];
        measure.extend([
            Arg::Float(layer.epsilon),
            Arg::Float(layer.correction),
            Arg::Double(layer.momentum),
            Arg::Control,
        ]);
        let action = match once {
            Some((shape, suffix)) => {
                let args = apply.iter().chain(&measure).copied().collect();
                Action::Kernel { name: format!("norm_once_{suffix}"), shape, args }
            }
            None => {
                let (shape, suffix) = self.flow(map, Passes::One, 1);
                let mut args = vec![input.into(), kept.into()];
                args.extend(self.row_args(map));
                args.extend(measure);
                args.push(self.bytes(8 * map.c * shape.grid.1 as usize).into());
                args.push(self.counters(shape.grid.0 as usize));
                Action::Kernel { name: format!("norm_measure_{suffix}"), shape, args }
            }
        };
        self.put(When::Training, action);
        let args = vec![
            kept.into(),
            Arg::Int(map.c as i32),
            optional(gamma),
            optional(beta),
            optional(bias),
            mean,
            variance,
            Arg::Float(layer.epsilon),
        ];
        let few = Shape { grid: (map.c.div_ceil(128) as u32, 1, 1), block: (128, 1), shared: 0, cluster: 1 };
        self.put(When::Evaluation, Action::Kernel { name: "norm_recall".into(), shape: few, args });
        let (shape, suffix) = self.flow(map, Passes::Many, 1 + usize::from(residual.is_some()));
        let when = if once.is_some() { When::Evaluation } else { When::Always };
        if !unmade {
            self.put(when, Action::Kernel { name: format!("norm_apply_{suffix}"), shape, args: apply });
        }
    }

    /// Whether a value is read by a depthwise window of 3x3 alone, whose kernels can make it from a batch norm's input.
    fn is_read_in_threes(&self, id: NodeId) -> bool {
        let Some(next) = self.outline.consumers.sole(id) else { return false };
        let is_next = |unit: &&Unit| unit.y == next;
        let reader = self.outline.units[self.unit..].iter().find(is_next).map(|unit| &unit.kind);
        matches!(reader, Some(Kind::Depthwise { window, .. }) if self.fits_three(self.window(window)))
    }
}
