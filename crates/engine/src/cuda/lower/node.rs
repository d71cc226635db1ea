//! The instructions of one node, or of the layers that start with it.

use super::*;

impl Lowering<'_> {
    pub(super) fn lower(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let batch = self.spec.batch;
        match node.op {
            Op::Input => {
                let values = batch * node.shape.pixels() * self.wide;
                let buffer = self.bytes(values * value_bytes(self.spec.precision));
                self.data[id.0] = Some(buffer);
            }
            Op::Conv(spec) => {
                let x = node.inputs[0];
                let input = self.map(x);
                if spec.groups > 1 && spec.groups == input.c && spec.groups == spec.out {
                    let window = self.window((spec.kernel, spec.stride, spec.border), input, node.shape);
                    let (source, dest) = (self.value(x), self.output(id));
                    let front = self.unmade[x.0];
                    if let Some(norm) = front {
                        self.touch(norm.kept, 0);
                    }
                    let args =
                        vec![Arg::Window(window), source.into(), Arg::Param(self.kernel(id)), dest.into()];
                    let action = self.slide(window, args, front);
                    self.put(When::Always, action);
                    self.finish(&[id], Kind::Depthwise { x, y: id, window, front });
                } else {
                    let wide = if x == NodeId(0) { self.wide } else { input.c };
                    let product = Product {
                        batch,
                        input: Map::new(input.h, input.w, wide),
                        output: node.shape,
                        kernel: spec.kernel,
                        stride: spec.stride,
                        border: spec.border,
                        groups: spec.groups,
                        layout: self.spec.layout,
                        precision: self.spec.precision,
                    };
                    self.lower_product(id, product, false);
                }
                self.lower_bias(id);
            }
            Op::ConvTranspose(spec) => {
                let product = Product {
                    batch,
                    input: node.shape,
                    output: self.map(node.inputs[0]),
                    kernel: spec.kernel,
                    stride: spec.stride,
                    border: Border::even(spec.crop),
                    groups: 1,
                    layout: self.spec.layout,
                    precision: self.spec.precision,
                };
                self.lower_product(id, product, true);
                self.lower_bias(id);
            }
            Op::Dense(_) => {
                let product = Product {
                    batch,
                    input: self.map(node.inputs[0]),
                    output: node.shape,
                    kernel: (1, 1),
                    stride: (1, 1),
                    border: Border::default(),
                    groups: 1,
                    layout: self.spec.layout,
                    precision: self.spec.precision,
                };
                self.lower_product(id, product, false);
                self.lower_bias(id);
            }
            Op::BatchNorm(spec) => self.lower_norm(id, &spec),
            Op::Relu | Op::Relu6 => {
                let (x, bounds) = (node.inputs[0], Bounds::of(node.op));
                let (a, out) = (self.value(x), self.output(id));
                let action = self.sweep(2, [a, a, out], batch * node.shape.len(), bounds);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Bound { x, y: id, bounds });
            }
            Op::MaxPool(spec) => {
                let (x, window) = self.pool_window(id, &spec);
                let (source, dest) = (self.value(x), self.output(id));
                let winners = self.bytes(batch * node.shape.len());
                let args = vec![Arg::Window(window), source.into(), dest.into(), winners.into()];
                let action = self.spread("max_pool", batch * node.shape.len(), node.shape.c, args);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Pool { x, y: id, window, winners: Some(winners) });
            }
            Op::AvgPool(spec) => {
                let (x, window) = self.pool_window(id, &spec);
                let (source, dest) = (self.value(x), self.output(id));
                let args = vec![Arg::Window(window), source.into(), dest.into()];
                let action = self.spread("avg_pool", batch * node.shape.len(), node.shape.c, args);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Pool { x, y: id, window, winners: None });
            }
            Op::GlobalAvgPool => {
                let x = node.inputs[0];
                let (source, dest) = (self.value(x), self.output(id));
                let mut args = vec![source.into(), dest.into()];
                args.extend(self.map_args(self.map(x)));
                let action = self.spread("mean_pool", batch * node.shape.len(), node.shape.c, args);
                self.put(When::Always, action);
                self.finish(&[id], Kind::GlobalPool { x, y: id });
            }
            Op::Add => {
                let inputs = node.inputs.clone();
                let (a, b) = (self.value(inputs[0]), self.value(inputs[1]));
                let out = self.output(id);
                let action = self.sweep(1, [a, b, out], batch * node.shape.len(), Bounds::NONE);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Add { y: id, inputs });
            }
            Op::Concat => {
                let inputs = node.inputs.clone();
                let to = self.output(id);
                let mut channel = 0;
                for &x in &inputs {
                    let from = self.value(x);
                    let action = self.stretch(from, to, self.map(x), (node.shape, channel), false);
                    self.put(When::Always, action);
                    channel += self.map(x).c;
                }
                self.finish(&[id], Kind::Concat { y: id, inputs });
            }
            Op::Dropout { rate } => {
                let x = node.inputs[0];
                let seed = mix(self.spec.seed ^ mix(id.0 as u64));
                let (from, to) = (self.value(x), self.output(id));
                let count = batch * node.shape.len();
                let action = self.dropout(from, to, count, rate, seed);
                self.put(When::Training, action);
                let action = self.sweep(0, [from, from, to], count, Bounds::NONE);
                self.put(When::Judging, action);
                self.finish(&[id], Kind::Dropout { x, y: id, rate, seed });
            }
            Op::Flatten => {
                let x = node.inputs[0];
                let map = self.value(x);
                if !self.nchw() || self.map(x).pixels() == 1 {
                    self.data[id.0] = Some(map);
                } else {
                    let vector = self.output(id);
                    let action = self.turn(map, vector, self.map(x), false);
                    self.put(When::Always, action);
                }
                self.finish(&[id], Kind::Flatten { x, y: id });
            }
            Op::Pad(border) => {
                let x = node.inputs[0];
                // What a ReLU lets through never loses to a zero of the padding, nor is it moved by one.
                if let Some(next) = self.sole_consumer(id)
                    && let Op::MaxPool(pool) = self.graph.node(next).op
                    && pool.border == Border::default()
                    && matches!(self.graph.node(x).op, Op::Relu | Op::Relu6)
                {
                    return;
                }
                let (from, to) = (self.value(x), self.output(id));
                let action = self.pad(from, to, (self.map(x), node.shape, border), false);
                self.put(When::Always, action);
                self.finish(&[id], Kind::Pad { x, y: id, border });
            }
            Op::SoftmaxCrossEntropy => {
                let x = node.inputs[0];
                let (logits, grad) = (self.value(x), self.like(x));
                let losses = self.bytes(8 * batch);
                for (when, grad, smoothing, judged) in [
                    (When::Training, grad.into(), self.spec.label_smoothing, 0),
                    (When::Judging, Arg::Null, 0.0, 1),
                ] {
                    let args = vec![
                        logits.into(),
                        Arg::Labels,
                        grad,
                        Arg::Int(batch as i32),
                        Arg::Int(self.map(x).len() as i32),
                        Arg::Float(smoothing),
                        Arg::Int(judged),
                        Arg::Control,
                        losses.into(),
                        self.counters(1),
                        Arg::Judgement,
                    ];
                    let shape = Shape { grid: (batch as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
                    self.put(when, Action::Kernel { name: "cross_entropy".into(), shape, args });
                }
                self.finish(&[id], Kind::Loss { x, grad });
            }
            Op::MeanSquaredError => {
                let x = node.inputs[0];
                let (output, target) = (self.value(x), self.value(node.inputs[1]));
                let grad = self.like(x);
                let each = self.map(x).len();
                let blocks = (batch * each).div_ceil(2048).clamp(1, 1024);
                let parts = self.bytes(4 * blocks);
                for (when, grad, judged) in [(When::Training, grad.into(), 0), (When::Judging, Arg::Null, 1)]
                {
                    let args = vec![
                        output.into(),
                        target.into(),
                        grad,
                        Arg::Int(batch as i32),
                        Arg::Long(each as i64),
                        Arg::Int(judged),
                        Arg::Control,
                        parts.into(),
                        self.counters(1),
                        Arg::Judgement,
                    ];
                    let shape = Shape { grid: (blocks as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
                    self.put(when, Action::Kernel { name: "squared_error".into(), shape, args });
                }
                self.finish(&[id], Kind::Loss { x, grad });
            }
        }
    }
}
