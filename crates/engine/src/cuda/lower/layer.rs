//! Layers of several instructions: products with biases and borders, batch norm, windows.

use super::*;

impl Lowering<'_> {
    pub(super) fn lower_product(&mut self, id: NodeId, mut product: Product, transposed: bool) {
        let x = self.graph.node(id).inputs[0];
        let kernel = self.kernel(id);
        let mut source = self.value(x);
        let copied = match self.pad_unevenly(&mut product, &mut source) {
            None if !transposed => self.pick(x, &mut product, &mut source),
            padded => padded,
        };
        let number = self.products.iter().position(|known| *known == product).unwrap_or_else(|| {
            self.products.push(product);
            self.products.len() - 1
        });
        let dest = self.output(id);
        let (direction, x_side, y_side) =
            if transposed { (Direction::Data, dest, source) } else { (Direction::Forward, source, dest) };
        let action = match self.stem(&product, [source, dest], kernel).filter(|_| !transposed) {
            Some(stem) => stem,
            None => Action::Product { product: number, direction, x: x_side, kernel, y: y_side },
        };
        self.put(When::Always, action);
        self.finish(&[id], Kind::Product { x, y: id, product: number, transposed, copied });
    }

    /// A convolution of few channels, which libraries are slow at: ours on tensor cores, where it fits.
    fn stem(&self, product: &Product, [x, y]: [Buffer; 2], kernel: ParamId) -> Option<Action> {
        const MOST_SHARED: usize = 112 << 10;
        let Product { input, output, kernel: (kh, kw), stride, border, groups, .. } = *product;
        let few = input.c == 8 && groups == 1 && matches!(output.c, 32 | 64);
        let ours = self.spec.precision == Precision::Bf16 && !self.nchw() && few;
        // As the kernel lays out its weights, its patch of the input, its outputs and the places of its taps.
        let pairs = (kh * kw).div_ceil(2);
        let patch = (15 * stride.0 + kh) * (15 * stride.1 + kw);
        let words = output.c * (8 * pairs + 4) + 4 * patch + 256 * (output.c / 2 + 4) + 2 * pairs;
        if !ours || 4 * words > MOST_SHARED {
            return None;
        }
        let window = self.window(((kh, kw), stride, border), input, output);
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

    /// cuDNN's engines are not all right where a border differs from side to side: such a border is written out.
    fn pad_unevenly(&mut self, product: &mut Product, source: &mut Buffer) -> Option<Copied> {
        let border = product.border;
        if border.top == border.bottom && border.left == border.right {
            return None;
        }
        let inner = product.input;
        let outer =
            Map::new(inner.h + border.top + border.bottom, inner.w + border.left + border.right, inner.c);
        let buffer = self.bytes(self.spec.batch * outer.len() * value_bytes(self.spec.precision));
        let action = self.pad(*source, buffer, (inner, outer, border), false);
        self.put(When::Always, action);
        (product.input, product.border, *source) = (outer, Border::default(), buffer);
        Some(Copied { buffer, map: outer, how: Copying::Bordered { inner, border } })
    }

    /// A convolution of 1x1 that leaves out pixels is a plain product of those that it meets. cuDNN's own ways are no faster,
    /// those that keep all digits of fp32 up to fifty times slower. Convolutions of the same value share the copy.
    fn pick(&mut self, x: NodeId, product: &mut Product, source: &mut Buffer) -> Option<Copied> {
        let Product { input, output, kernel, stride, border, groups, .. } = *product;
        if kernel != (1, 1) || stride == (1, 1) || groups != 1 || border != Border::default() {
            return None;
        }
        let map = Map::new(output.h, output.w, input.c);
        let window = self.window((kernel, stride, border), input, map);
        let known = self.picks.iter().position(|pick| pick.x == x && pick.window.stride == window.stride);
        let number = known.unwrap_or_else(|| {
            let values = self.spec.batch * map.len();
            let buffer = self.bytes(values * value_bytes(self.spec.precision));
            let args = vec![Arg::Window(window), (*source).into(), buffer.into()];
            let action = self.spread("avg_pool", values, map.c, args);
            self.put(When::Always, action);
            self.picks.push(Pick { x, window, buffer, users: 0 });
            self.picks.len() - 1
        });
        self.picks[number].users += 1;
        let buffer = self.touch(self.picks[number].buffer, 0);
        (product.input, product.stride, *source) = (map, (1, 1), buffer);
        Some(Copied { buffer, map, how: Copying::Picked(number) })
    }

    /// A bias and the bound behind it, in place. A bias in front of a batch norm is that layer's to take into account.
    pub(super) fn lower_bias(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let bias = self.param(node, ParamKind::Bias);
        let next = self.sole_consumer(id);
        if next.is_some_and(|next| matches!(self.graph.node(next).op, Op::BatchNorm(_))) {
            return;
        }
        let bounds = next.map_or(Bounds::NONE, |next| Bounds::of(self.graph.node(next).op));
        if bias.is_none() && bounds == Bounds::NONE {
            return;
        }
        let value = self.value(id);
        let (shape, block) = self.rows(node.shape, Passes::Many);
        let mut args = vec![value.into(), bias.map_or(Arg::Null, Arg::Param)];
        args.extend(self.row_args(node.shape));
        args.extend(bounds.args());
        self.put(When::Always, Action::Kernel { name: format!("bias_apply_{block}"), shape, args });
        let mut nodes = vec![id];
        if bounds != Bounds::NONE {
            let next = next.expect("invariant: a bound follows");
            self.absorbed[next.0] = true;
            self.data[next.0] = Some(value);
            nodes.push(next);
        }
        let last = *nodes.last().expect("invariant: there is one");
        self.finish(&nodes[1..], Kind::Bias { x: id, y: last, bias, bounds });
        let unit = self.units.last_mut().expect("invariant: just finished");
        unit.name = format!("{} bias", self.graph.node(id).name);
    }

    /// Batch norm, with the residual sum and the bound that follow it where nobody else reads what lies between.
    pub(super) fn lower_norm(&mut self, id: NodeId, spec: &BatchNorm) {
        let node = self.graph.node(id);
        let mut nodes = vec![id];
        let mut residual = None;
        let mut bounds = Bounds::NONE;
        let mut last = id;
        if let Some(next) = self.sole_consumer(id)
            && self.graph.node(next).op == Op::Add
        {
            let inputs = &self.graph.node(next).inputs;
            let other = if inputs[0] == id { inputs[1] } else { inputs[0] };
            if other < id {
                residual = Some(other);
                nodes.push(next);
                last = next;
            }
        }
        if let Some(next) = self.sole_consumer(last) {
            bounds = Bounds::of(self.graph.node(next).op);
            if bounds != Bounds::NONE {
                nodes.push(next);
                last = next;
            }
        }
        for node in &nodes {
            self.absorbed[node.0] = true;
        }
        let x = node.inputs[0];
        let before = self.graph.node(x);
        let bias = self.param(before, ParamKind::Bias).filter(|_| self.sole_consumer(x) == Some(id));
        let map = node.shape;
        let count = self.spec.batch * map.pixels();
        let correction = match spec.running {
            RunningVariance::Biased => 1.0,
            RunningVariance::Unbiased => count as f32 / (count - 1).max(1) as f32,
        };
        let moving = |kind| self.param(node, kind).expect("invariant: batch norm has running statistics");
        let (mean, variance) = (moving(ParamKind::MovingMean), moving(ParamKind::MovingVariance));
        let (gamma, beta) = (self.param(node, ParamKind::Gamma), self.param(node, ParamKind::Beta));
        let optional = |param: Option<ParamId>| param.map_or(Arg::Null, Arg::Param);
        let kept = self.bytes(16 * map.c);
        let input = self.value(x);
        let residual_buffer = residual.map_or(Arg::Null, |other| self.value(other).into());
        let once = self.once(map);
        let norm = Norm { gamma, beta, bounds, kept };
        let unmade = residual.is_none() && once.is_none() && self.is_read_in_threes(last);
        let output = match unmade {
            true => input,
            false => self.output(last),
        };
        if unmade {
            (self.data[last.0], self.unmade[last.0]) = (Some(input), Some(norm));
        }
        let mut apply = vec![input.into(), residual_buffer, output.into(), kept.into()];
        apply.extend(self.row_args(map));
        apply.extend(bounds.args());
        let mut measure =
            vec![optional(gamma), optional(beta), optional(bias), Arg::Moving(mean), Arg::Moving(variance)];
        measure.extend([
            Arg::Float(spec.epsilon),
            Arg::Float(correction),
            Arg::Double(spec.momentum),
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
            Arg::Moving(mean),
            Arg::Moving(variance),
            Arg::Float(spec.epsilon),
        ];
        let few = Shape { grid: (map.c.div_ceil(128) as u32, 1, 1), block: (128, 1), shared: 0, cluster: 1 };
        self.put(When::Judging, Action::Kernel { name: "norm_recall".into(), shape: few, args });
        let (shape, suffix) = self.flow(map, Passes::Many, 1 + usize::from(residual.is_some()));
        let when = if once.is_some() { When::Judging } else { When::Always };
        if !unmade {
            self.put(when, Action::Kernel { name: format!("norm_apply_{suffix}"), shape, args: apply });
        }
        self.finish(&nodes, Kind::Norm { x, y: last, residual, norm });
    }

    /// Whether a value is read by a depthwise window of 3x3 alone, whose kernels can make it from a batch norm's input.
    fn is_read_in_threes(&self, id: NodeId) -> bool {
        let Some(next) = self.sole_consumer(id) else { return false };
        let (node, input) = (self.graph.node(next), self.map(id));
        let Op::Conv(spec) = node.op else { return false };
        let depthwise = spec.groups > 1 && spec.groups == input.c && spec.groups == spec.out;
        depthwise && self.fits_three(self.window((spec.kernel, spec.stride, spec.border), input, node.shape))
    }

    pub(super) fn pool_window(&self, id: NodeId, spec: &PoolSpec) -> (NodeId, Window) {
        let node = self.graph.node(id);
        let (mut x, mut border) = (node.inputs[0], spec.border);
        // A padding that was left to its pool.
        if self.data[x.0].is_none()
            && let Op::Pad(padding) = self.graph.node(x).op
        {
            (x, border) = (self.graph.node(x).inputs[0], padding);
        }
        (x, self.window((spec.kernel, spec.stride, border), self.map(x), node.shape))
    }

    pub(super) fn window(
        &self,
        (kernel, stride, border): ((usize, usize), (usize, usize), Border),
        x: Map,
        y: Map,
    ) -> Window {
        Window::new((self.spec.batch, self.spec.layout), (kernel, stride, border), x, y)
    }
}
