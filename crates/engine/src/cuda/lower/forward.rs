//! The instructions of forward, in training and in evaluation.

use super::*;

impl Lowering<'_> {
    pub(super) fn forward(&mut self, unit: &Unit) {
        let (y, batch, map) = (unit.y, self.spec.batch, self.map(unit.y));
        let count = self.count(y);
        match unit.kind {
            Kind::Product(ref product) => self.lower_product(y, product),
            Kind::Depthwise { x, window, kernel, .. } => {
                let window = self.window(&window);
                let (source, dest) = (self.value(x), self.output(y));
                let front = self.unmade[x.0];
                if let Some(front) = front {
                    self.buffers.touch(front.kept, 0);
                }
                let args = vec![Arg::Window(window), source.into(), Arg::Param(kernel), dest.into()];
                let action = self.slide(window, args, front);
                self.put(When::Always, action);
            }
            Kind::Bias { x, bias, bounds } => {
                let value = self.value(x);
                self.buffers.assign(y, value);
                let (shape, block) = self.rows(map, Passes::Many);
                let mut args = vec![value.into(), bias.map_or(Arg::Null, Arg::Param)];
                args.extend(self.row_args(map));
                args.extend(bounds.args());
                self.put(When::Always, Action::Kernel { name: format!("bias_apply_{block}"), shape, args });
            }
            Kind::Norm(ref layer) => self.lower_norm(y, layer),
            Kind::Bound { x, bounds } => {
                let (a, out) = (self.value(x), self.output(y));
                let action = self.sweep(Sweep::Bound(bounds), [a, a, out], count);
                self.put(When::Always, action);
            }
            Kind::MaxPool { x, window } => {
                let (source, dest) = (self.value(x), self.output(y));
                let winners = self.bytes(count);
                self.kept[self.unit] = Kept::Buffer(winners);
                let window = Arg::Window(self.window(&window));
                let args = vec![window, source.into(), dest.into(), winners.into()];
                let action = self.spread("max_pool", count, map.c, args);
                self.put(When::Always, action);
            }
            Kind::AvgPool { x, window } => {
                let (source, dest) = (self.value(x), self.output(y));
                let args = vec![Arg::Window(self.window(&window)), source.into(), dest.into()];
                let action = self.spread("avg_pool", count, map.c, args);
                self.put(When::Always, action);
            }
            Kind::GlobalPool { x } => {
                let (source, dest) = (self.value(x), self.output(y));
                let mut args = vec![source.into(), dest.into()];
                args.extend(self.map_args(self.map(x)));
                let action = self.spread("mean_pool", count, map.c, args);
                self.put(When::Always, action);
            }
            Kind::Add { inputs } => {
                let [a, b] = inputs.map(|x| self.value(x));
                let out = self.output(y);
                let action = self.sweep(Sweep::Sum, [a, b, out], count);
                self.put(When::Always, action);
            }
            Kind::Concat { ref inputs } => {
                let to = self.output(y);
                let mut channel = 0;
                for &x in inputs {
                    let part = Part { map: self.map(x), whole: map, channel };
                    let from = self.value(x);
                    let action = self.stretch(from, to, part, Toward::Output);
                    self.put(When::Always, action);
                    channel += part.map.c;
                }
            }
            Kind::Dropout { x, rate, seed } => {
                let (from, to) = (self.value(x), self.output(y));
                let action = self.dropout(from, to, count, rate, seed);
                self.put(When::Training, action);
                let action = self.sweep(Sweep::Copy, [from, from, to], count);
                self.put(When::Evaluation, action);
            }
            Kind::Flatten { x } => {
                let from = self.value(x);
                if self.lies_flat(x) {
                    self.buffers.assign(y, from);
                } else {
                    let vector = self.output(y);
                    let action = self.turn(from, vector, self.map(x), Toward::Output);
                    self.put(When::Always, action);
                }
            }
            Kind::Pad { x, border } => {
                let (from, to) = (self.value(x), self.output(y));
                let padding = Padding { inner: self.map(x), outer: map, border };
                let action = self.pad(from, to, padding, Toward::Output);
                self.put(When::Always, action);
            }
            Kind::CrossEntropy { x } => {
                let (logits, grad) = (self.value(x), self.like(x));
                self.kept[self.unit] = Kept::Buffer(grad);
                let losses = self.bytes(8 * batch);
                for (when, grad, smoothing, evaluates) in [
                    (When::Training, grad.into(), self.spec.label_smoothing, 0),
                    (When::Evaluation, Arg::Null, 0.0, 1),
                ] {
                    let args = vec![
                        logits.into(),
                        Arg::Labels,
                        grad,
                        Arg::Int(batch as i32),
                        Arg::Int(self.map(x).len() as i32),
                        Arg::Float(smoothing),
                        Arg::Int(evaluates),
                        Arg::Control,
                        losses.into(),
                        self.counters(1),
                        Arg::Score,
                    ];
                    let shape = Shape { grid: (batch as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
                    self.put(when, Action::Kernel { name: "cross_entropy".into(), shape, args });
                }
            }
            Kind::SquaredError { x, target } => {
                let (output, target) = (self.value(x), self.value(target));
                let grad = self.like(x);
                self.kept[self.unit] = Kept::Buffer(grad);
                let each = self.map(x).len();
                let blocks = (batch * each).div_ceil(2048).clamp(1, 1024);
                let parts = self.bytes(4 * blocks);
                for (when, grad, evaluates) in
                    [(When::Training, grad.into(), 0), (When::Evaluation, Arg::Null, 1)]
                {
                    let args = vec![
                        output.into(),
                        target.into(),
                        grad,
                        Arg::Int(batch as i32),
                        Arg::Long(each as i64),
                        Arg::Int(evaluates),
                        Arg::Control,
                        parts.into(),
                        self.counters(1),
                        Arg::Score,
                    ];
                    let shape = Shape { grid: (blocks as u32, 1, 1), block: (256, 1), shared: 0, cluster: 1 };
                    self.put(when, Action::Kernel { name: "squared_error".into(), shape, args });
                }
            }
        }
    }
}
