//! The instructions of backward, in reverse order of the units.
//!
//! The gradient of a value is a list of one or two buffers that are still to be added up, which the kernel that reads them
//! may do. Several values may share a buffer (a sum hands the same gradient to all its inputs). A buffer that is shared, or
//! still read on the second stream, is not overwritten.

use paceline_model::{NodeId, ParamId, Shape as Map};

use super::action::{Action, Arg, LAG, Step, Track, Window};
use super::driver::Shape;
use super::lower::{
    Copied, Copying, Front, Kept, Lowering, Padding, Part, Passes, Pick, Sweep, Threads, Toward, even_part,
    value_bytes,
};
use super::product::Direction;
use crate::outline::{Bounds, Kind, Norm, Product, Unit};
use crate::plan::Buffer;

struct Reverse<'a, 'g> {
    lowering: &'a mut Lowering<'g>,
    grads: Vec<Vec<Buffer>>,
    /// Until when each buffer is read on the second stream.
    busy: Vec<(Buffer, usize)>,
    /// The factors of batch norms that the backward of the next layer has computed, by the batch norm's output.
    factors_of: Vec<Option<Buffer>>,
    /// The gradients of picked pixels so far.
    picked: Vec<Option<Buffer>>,
}

/// Emits backward, which follows forward in time.
pub(super) fn lower(lowering: &mut Lowering) -> Vec<Step> {
    let outline = lowering.outline;
    let nodes = lowering.graph.nodes.len();
    let (factors_of, picked) = (vec![None; nodes], vec![None; lowering.picks.len()]);
    let mut reverse =
        Reverse { grads: vec![Vec::new(); nodes], busy: Vec::new(), factors_of, picked, lowering };
    for (index, unit) in outline.units.iter().enumerate().rev() {
        if outline.wanted[unit.y.0] {
            reverse.lowering.unit = index;
            reverse.lower(unit);
            reverse.lowering.buffers.now += 1;
        }
    }
    std::mem::take(&mut reverse.lowering.steps)
}

impl Reverse<'_, '_> {
    fn push(&mut self, track: Track, action: Action) {
        let step = Step { unit: self.lowering.unit, time: self.lowering.buffers.now, track, action };
        self.lowering.steps.push(step);
    }

    fn main(&mut self, action: Action) {
        self.push(Track::Main, action);
    }

    /// Keeps buffers for an instruction on the second stream.
    fn keep_for_side(&mut self, buffers: &[Buffer]) {
        for &buffer in buffers {
            self.lowering.buffers.touch(buffer, LAG);
            self.busy.push((buffer, self.lowering.buffers.now + LAG));
        }
    }

    fn count(&self, id: NodeId) -> usize {
        self.lowering.count(id)
    }

    fn wants(&self, x: NodeId) -> bool {
        self.lowering.outline.wanted[x.0]
    }

    /// Whether a buffer that was just taken may be overwritten.
    fn free(&self, buffer: Buffer) -> bool {
        let now = self.lowering.buffers.now;
        !self.grads.iter().any(|list| list.contains(&buffer))
            && !self.busy.iter().any(|&(busy, until)| busy == buffer && until >= now)
    }

    /// One of these that may be overwritten, or a new buffer for the gradient of a node.
    fn room(&mut self, id: NodeId, among: &[Buffer]) -> Buffer {
        match among.iter().copied().find(|&buffer| self.free(buffer)) {
            Some(buffer) => buffer,
            None => self.lowering.like(id),
        }
    }

    fn sum(&mut self, id: NodeId, [a, b]: [Buffer; 2]) -> Buffer {
        let out = self.room(id, &[a, b]);
        let action = self.lowering.sweep(Sweep::Sum, [a, b, out], self.count(id));
        self.main(action);
        out
    }

    /// The parts of the gradient of a unit's output, which only this unit uses from now on.
    fn take_parts(&mut self, y: NodeId) -> Vec<Buffer> {
        let parts = std::mem::take(&mut self.grads[y.0]);
        assert!(!parts.is_empty(), "invariant: every value reaches the loss");
        for &part in &parts {
            self.lowering.buffers.touch(part, 0);
        }
        parts
    }

    fn take(&mut self, y: NodeId) -> Buffer {
        match self.take_parts(y)[..] {
            [one] => one,
            [a, b, ..] => self.sum(y, [a, b]),
            [] => unreachable!("invariant: there is a part"),
        }
    }

    /// Adds a part to the gradient of a value.
    fn give(&mut self, x: NodeId, part: Buffer) {
        if !self.wants(x) {
            return;
        }
        if let [a, b] = self.grads[x.0][..] {
            self.grads[x.0].clear();
            self.lowering.buffers.touch(a, 0);
            self.lowering.buffers.touch(b, 0);
            let sum = self.sum(x, [a, b]);
            self.grads[x.0].push(sum);
        }
        self.grads[x.0].push(part);
    }

    /// A new buffer for a part of the gradient of a value; `None` if the gradient is not needed.
    fn part(&mut self, x: NodeId) -> Option<Buffer> {
        self.wants(x).then(|| self.lowering.like(x))
    }

    fn lower(&mut self, unit: &Unit) {
        let y = unit.y;
        match unit.kind {
            Kind::CrossEntropy { x } | Kind::SquaredError { x, .. } => {
                let grad = self.lowering.recall();
                self.give(x, grad);
            }
            Kind::Product(Product { x, kernel, transposed, .. }) => {
                let dy = self.take(y);
                let Kept::Product(product, copied) = self.lowering.kept[self.lowering.unit] else {
                    unreachable!("invariant: forward kept it")
                };
                let value = match copied {
                    Some(copied) => self.lowering.buffers.touch(copied.buffer, 0),
                    None => self.lowering.value(x),
                };
                self.keep_for_side(&[dy, value]);
                // A transposed convolution's own output is the input of the convolution that it undoes.
                let (x_side, y_side) = if transposed { (dy, value) } else { (value, dy) };
                let direction = Direction::Filter;
                self.push(Track::Side, Action::Product { product, direction, x: x_side, kernel, y: y_side });
                if !self.wants(x) {
                    return;
                }
                let whole = match copied {
                    None => self.lowering.like(x),
                    Some(Copied { map, .. }) => self.lowering.values(self.lowering.spec.batch * map.len()),
                };
                let (direction, x_side, y_side) =
                    if transposed { (Direction::Forward, dy, whole) } else { (Direction::Data, whole, dy) };
                self.main(Action::Product { product, direction, x: x_side, kernel, y: y_side });
                match copied.map(|copied| copied.how) {
                    None => self.give(x, whole),
                    Some(Copying::Picked(number)) => self.put_back(number, whole),
                    Some(Copying::Bordered(padding)) => {
                        let dx = self.lowering.like(x);
                        let action = self.lowering.pad(whole, dx, padding, Toward::Input);
                        self.main(action);
                        self.give(x, dx);
                    }
                }
            }
            Kind::Bias { x, bias, bounds } => {
                let mut dy = self.take(y);
                let count = self.count(y);
                let bounded = bounds != Bounds::NONE;
                if bounded && !self.free(dy) {
                    let copy = self.lowering.like(y);
                    let action = self.lowering.sweep(Sweep::Copy, [dy, dy, copy], count);
                    self.main(action);
                    dy = copy;
                }
                let map = self.lowering.map(y);
                let value = self.lowering.value(y);
                let (shape, suffix) = self.lowering.rows(map, Passes::One);
                let parts = self.lowering.bytes(8 * map.c * shape.grid.1 as usize);
                let mut args = vec![if bounded { value.into() } else { Arg::Null }, dy.into()];
                args.extend(self.lowering.row_args(map));
                args.extend(bounds.args());
                args.extend([bias.map_or(Arg::Null, Arg::Grad), Arg::AddsGradients, parts.into()]);
                args.push(self.lowering.counters(shape.grid.0 as usize));
                self.main(Action::Kernel { name: format!("bias_sums_{suffix}"), shape, args });
                self.give(x, dy);
            }
            Kind::Depthwise { x, ref window, kernel, .. } => {
                let dy = self.take(y);
                let input = self.lowering.value(x);
                let window = self.lowering.window(window);
                if self.lowering.fits_three(window) {
                    self.depthwise_three(x, window, [input, dy], kernel);
                    return;
                }
                self.depthwise_sums(window, [input, dy], kernel);
                if let Some(dx) = self.part(x) {
                    let args = vec![Arg::Window(window), dy.into(), Arg::Param(kernel), dx.into()];
                    let channels = window.channels as usize;
                    let action = self.lowering.spread("depthwise_back", self.count(x), channels, args);
                    self.main(action);
                    self.give(x, dx);
                }
            }
            Kind::Norm(Norm { x, residual, bounds, gamma, beta, .. }) => {
                let parts_of_dy = self.take_parts(y);
                let (dy, more) = (parts_of_dy[0], parts_of_dy.get(1).copied());
                let map = self.lowering.map(x);
                let kept = self.lowering.recall();
                let input = self.lowering.value(x);
                let hidden = residual.is_some() && bounds != Bounds::NONE;
                let output = hidden.then(|| self.lowering.value(y));
                let passed = (hidden || more.is_some()).then(|| self.room(y, &parts_of_dy));
                let grad = passed.unwrap_or(dy);
                if let Some(residual) = residual {
                    self.give(residual, grad);
                }
                let dx = self.room(x, &[grad]);
                let optional = |buffer: Option<Buffer>| buffer.map_or(Arg::Null, Arg::from);
                let mut args =
                    vec![input.into(), optional(output), dy.into(), optional(more), optional(passed)];
                let mut rest = self.lowering.row_args(map).to_vec();
                rest.extend(bounds.args());
                let bounds_and_rows = rest.clone();
                rest.extend([gamma, beta].map(|param| param.map_or(Arg::Null, Arg::Grad)));
                rest.push(Arg::AddsGradients);
                if let Some((shape, suffix)) = self.lowering.once(map) {
                    args.extend([dx, kept].map(Arg::from));
                    args.extend(rest);
                    self.main(Action::Kernel { name: format!("norm_back_once_{suffix}"), shape, args });
                } else {
                    let factors = match self.factors_of[y.0] {
                        Some(factors) => {
                            assert!(more.is_none(), "invariant: the window behind is its only reader");
                            self.lowering.buffers.touch(factors, 0)
                        }
                        None => {
                            let factors = self.lowering.bytes(8 * map.c);
                            let runs = 2 + usize::from(output.is_some()) + usize::from(more.is_some());
                            let (shape, suffix) = self.lowering.flow(map, Passes::One, runs);
                            let parts = self.lowering.bytes(8 * map.c * shape.grid.1 as usize);
                            args.extend([kept, factors].map(Arg::from));
                            args.extend(rest);
                            args.extend([parts.into(), self.lowering.counters(shape.grid.0 as usize)]);
                            self.main(Action::Kernel { name: format!("norm_sums_{suffix}"), shape, args });
                            factors
                        }
                    };
                    let (shape, suffix) = self.lowering.flow(map, Passes::Many, 2);
                    let mut args = vec![input.into(), Arg::Int(i32::from(passed.is_some())), grad.into()];
                    args.extend([dx, kept, factors].map(Arg::from));
                    args.extend(bounds_and_rows);
                    self.main(Action::Kernel { name: format!("norm_input_{suffix}"), shape, args });
                }
                self.give(x, dx);
            }
            Kind::Bound { x, bounds } => {
                let dy = self.take(y);
                if self.wants(x) {
                    let out = self.room(y, &[dy]);
                    let value = self.lowering.value(y);
                    let action = self.lowering.sweep(Sweep::Unbound(bounds), [dy, value, out], self.count(y));
                    self.main(action);
                    self.give(x, out);
                }
            }
            Kind::MaxPool { x, ref window } => {
                let dy = self.take(y);
                let winners = self.lowering.recall();
                self.pool_back(x, self.lowering.window(window), dy, Some(winners));
            }
            Kind::AvgPool { x, ref window } => {
                let dy = self.take(y);
                self.pool_back(x, self.lowering.window(window), dy, None);
            }
            Kind::GlobalPool { x } => {
                let dy = self.take(y);
                if let Some(dx) = self.part(x) {
                    let map = self.lowering.map(x);
                    let mut args = vec![dy.into(), dx.into()];
                    args.extend(self.lowering.map_args(map));
                    let action = self.lowering.spread("mean_back", self.count(x), map.c, args);
                    self.main(action);
                    self.give(x, dx);
                }
            }
            Kind::Add { inputs } => {
                let dy = self.take(y);
                for x in inputs {
                    self.give(x, dy);
                }
            }
            Kind::Concat { ref inputs } => {
                let dy = self.take(y);
                let whole = self.lowering.map(y);
                let mut channel = 0;
                for &x in inputs {
                    let map = self.lowering.map(x);
                    if let Some(dx) = self.part(x) {
                        let part = Part { map, whole, channel };
                        let action = self.lowering.stretch(dy, dx, part, Toward::Input);
                        self.main(action);
                        self.give(x, dx);
                    }
                    channel += map.c;
                }
            }
            Kind::Dropout { x, rate, seed } => {
                let dy = self.take(y);
                if self.wants(x) {
                    let out = self.room(y, &[dy]);
                    let action = self.lowering.dropout(dy, out, self.count(y), rate, seed);
                    self.main(action);
                    self.give(x, out);
                }
            }
            Kind::Flatten { x } => {
                let dy = self.take(y);
                if self.lowering.lies_flat(x) {
                    self.give(x, dy);
                } else if let Some(dx) = self.part(x) {
                    let action = self.lowering.turn(dy, dx, self.lowering.map(x), Toward::Input);
                    self.main(action);
                    self.give(x, dx);
                }
            }
            Kind::Pad { x, border } => {
                let dy = self.take(y);
                if let Some(dx) = self.part(x) {
                    let padding =
                        Padding { inner: self.lowering.map(x), outer: self.lowering.map(y), border };
                    let action = self.lowering.pad(dy, dx, padding, Toward::Input);
                    self.main(action);
                    self.give(x, dx);
                }
            }
        }
    }

    /// The gradient of a pool's input, by the places of its maxima where it has some.
    fn pool_back(&mut self, x: NodeId, window: Window, dy: Buffer, winners: Option<Buffer>) {
        let Some(dx) = self.part(x) else { return };
        let args = vec![Arg::Window(window), dy.into(), winners.map_or(Arg::Null, Arg::from), dx.into()];
        let by_two = winners.is_some() && window.stride == [2, 2] && self.lowering.fits_three(window);
        let action = if by_two {
            self.lowering.slide_back_by_two("pool_three_back_by_2", window, args)
        } else {
            self.lowering.spread("pool_back", self.count(x), self.lowering.map(x).c, args)
        };
        self.main(action);
        self.give(x, dx);
    }

    /// Adds a part to the gradient of picked pixels. With the last part, the sum goes to the value that they were picked from.
    fn put_back(&mut self, number: usize, part: Buffer) {
        let Pick { x, window, users, .. } = self.lowering.picks[number];
        let channels = window.channels as usize;
        if let Some(before) = self.picked[number].replace(part) {
            let [h, w] = window.output.map(|side| side as usize);
            let values = window.batch as usize * h * w * channels;
            self.lowering.buffers.touch(before, 0);
            let action = self.lowering.sweep(Sweep::Sum, [before, part, part], values);
            self.main(action);
        }
        self.lowering.picks[number].users = users - 1;
        if users == 1 {
            let dx = self.lowering.like(x);
            let args = vec![Arg::Window(window), part.into(), Arg::Null, dx.into()];
            let action = self.lowering.spread("pool_back", self.count(x), channels, args);
            self.main(action);
            self.give(x, dx);
        }
    }

    /// The gradient of a depthwise kernel, on the second stream.
    fn depthwise_sums(&mut self, window: Window, [input, dy]: [Buffer; 2], kernel: ParamId) {
        let lowering = &mut *self.lowering;
        let channels = window.channels as usize;
        let map = Map::new(window.output[0] as usize, window.output[1] as usize, channels);
        let threads = if lowering.nchw() { Threads::WithinChannel } else { Threads::AcrossChannels };
        let (mut shape, suffix) = lowering.rows_of(map, Passes::One, threads);
        shape.grid.2 = (window.kernel[0] * ((window.kernel[1] + 1) / 2)) as u32;
        let parts = lowering.bytes(8 * channels * (shape.grid.1 * shape.grid.2) as usize);
        let counters = lowering.counters((shape.grid.0 * shape.grid.2) as usize);
        let args = vec![
            Arg::Window(window),
            input.into(),
            dy.into(),
            Arg::Grad(kernel),
            Arg::AddsGradients,
            parts.into(),
            counters,
        ];
        self.keep_for_side(&[dy, input, parts]);
        self.push(Track::Side, Action::Kernel { name: format!("depthwise_sums_{suffix}"), shape, args });
    }

    /// All of backward of a depthwise window of 3x3, and the sums of the batch norm in front whose output is not written out.
    fn depthwise_three(&mut self, x: NodeId, window: Window, [input, dy]: [Buffer; 2], kernel: ParamId) {
        let lowering = &mut *self.lowering;
        let front = lowering.unmade[x.0];
        let dx = lowering.like(x);
        let Window { batch, channels, input: [h, w], stride, top, left, .. } = window;
        let channels = channels as usize;
        let (high, wide) = if stride == [1, 1] { (h, w) } else { ((h + top + 1) / 2, (w + left + 1) / 2) };
        // Two channels per thread, which walks along at most 64 places.
        let lines = batch as usize * high as usize * (wide as usize).div_ceil(64);
        let across =
            even_part(channels / 2, 36).unwrap_or_else(|| (channels / 2).next_power_of_two().min(32));
        let (down, slices) = (256 / across, (channels / 2).div_ceil(across));
        let number = (264 / slices).clamp(1, lines.div_ceil(down));
        let sums = if front.is_some() { 11 } else { 9 };
        // Eight steps in flight, with so many pairs of dy and of x each.
        let pairs = if stride == [1, 1] { 3 + 1 } else { 2 + 4 };
        let ring = 8 * pairs * 2 * value_bytes(lowering.spec.precision);
        let parts = lowering.bytes(4 * sums * channels * number);
        let mut args = vec![Arg::Window(window), input.into(), dy.into(), Arg::Param(kernel)];
        args.extend([dx, parts].map(Arg::from));
        args.extend(Front::recipe(front));
        let shape = Shape {
            grid: (slices as u32, number as u32, 1),
            block: (across as u32, down as u32),
            shared: (ring * across * down) as u32,
            cluster: 1,
        };
        let factors = front.map(|front| {
            lowering.buffers.touch(front.kept, 0);
            lowering.bytes(8 * channels)
        });
        self.main(Action::Kernel { name: format!("depthwise_three_back_by_{}", stride[0]), shape, args });
        let param = |param: Option<ParamId>| param.map_or(Arg::Null, Arg::Grad);
        let args = vec![
            parts.into(),
            Arg::Int(number as i32),
            Arg::Int(channels as i32),
            Arg::Grad(kernel),
            Arg::AddsGradients,
            Front::recipe(front)[0],
            factors.map_or(Arg::Null, Arg::from),
            Arg::Long(i64::from(batch) * i64::from(h) * i64::from(w)),
            param(front.and_then(|front| front.layer.gamma)),
            param(front.and_then(|front| front.layer.beta)),
        ];
        let blocks = (9 * channels).div_ceil(32) + front.map_or(0, |_| channels.div_ceil(32));
        let shape = Shape { grid: (blocks as u32, 1, 1), block: (32, 8), shared: 0, cluster: 1 };
        let totals = Action::Kernel { name: "depthwise_three_totals".into(), shape, args };
        if front.is_none() {
            self.keep_for_side(&[parts]);
            self.push(Track::Side, totals);
        } else {
            self.main(totals);
        }
        self.factors_of[x.0] = factors;
        self.give(x, dx);
    }
}
