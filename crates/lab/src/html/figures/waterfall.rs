//! From the cost of an image on one worker to that on N, cause by cause.

use super::{Axis, Bar, Bars, Columns, Figure, Hue, Row, Sign, Tag, Unit, within};
use crate::numbers::waterfall::{Part, Waterfall};

const ROW: f64 = 16.0;
const GAP: f64 = 8.0;

const MORE: Hue = Hue::Vermilion;
const LESS: Hue = Hue::Green;

/// Average width of a letter in a wide font.
const CHARACTER: f64 = 8.4;

/// Draws a waterfall.
pub fn waterfall(fall: &Waterfall) -> Tag {
    let unit = Unit::of_time(fall.from_s.max(fall.to_s));
    // A part that would be printed as zero has no bar.
    let shows = |part: &&Part| (unit.factor * part.seconds).abs() >= 5e-4;
    let causes: Vec<&Part> = fall.parts.iter().filter(shows).collect();
    let (low, high) = range(fall, &causes);
    let label = match low {
        0.0 => format!("worker-{} per image", unit.name),
        _ => format!("worker-{} per image; does not start at 0", unit.name),
    };
    let axis = Axis::linear(unit.factor * low, unit.factor * high, 4, label);
    let longest = causes.iter().map(|part| part.cause.name().len()).max().unwrap_or(0).max(10);
    let columns = Columns { names: 8.0 + CHARACTER * longest as f64, values: 76.0 };
    let from = axis.scale.low;
    let mut drawing = Drawing { bars: Bars::new(axis, columns), from, unit, last: None };
    drawing.end("1 worker", fall.from_s);
    let mut reached = fall.from_s;
    for part in &causes {
        drawing.step(part, reached);
        reached += part.seconds;
    }
    drawing.end(&format!("{} workers", fall.workers), fall.to_s);
    let caption = format!(
        "An image costs {} of worker time on one worker and {} on {}. {}",
        unit.show(fall.from_s),
        unit.show(fall.to_s),
        fall.workers,
        most(&causes, unit)
    );
    let title = format!("From 1 worker to {}", fall.workers);
    let mut legend = vec![(Sign::Area, Hue::Blue, "cost of an image".into())];
    if causes.iter().any(|part| part.seconds > 0.0) {
        legend.push((Sign::Area, MORE, "costs more".into()));
    }
    if causes.iter().any(|part| part.seconds < 0.0) {
        legend.push((Sign::Area, LESS, "costs less".into()));
    }
    let body = drawing.bars.render(&format!("{title}. {caption}"));
    Figure { name: "waterfall", title, caption, legend, body }.render()
}

fn most(causes: &[&Part], unit: Unit) -> String {
    let most = causes.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds)).filter(|most| most.seconds > 0.0);
    let most = most.map(|most| {
        format!("The largest part is {} ({}). ", most.cause.name(), unit.show_signed(most.seconds))
    });
    most.unwrap_or_default() + "The bars in between sum to the difference; whiskers are 95 % intervals."
}

struct Drawing {
    bars: Bars,
    /// Where the axis begins, and with it the bars of both ends.
    from: f64,
    unit: Unit,
    /// The row above.
    last: Option<Row>,
}

impl Drawing {
    fn row(&mut self, name: &str, begins: f64) -> Row {
        let row = self.bars.row(ROW);
        self.bars.skip(GAP);
        self.bars.name(row, name);
        if let Some(above) = self.last.replace(row) {
            self.bars.join(self.unit.factor * begins, above, row);
        }
        row
    }

    fn end(&mut self, name: &str, seconds: f64) {
        let row = self.row(name, seconds);
        let shown = self.unit.show(seconds);
        let to = self.unit.factor * seconds;
        let bar = Bar { from: self.from, to, hue: Hue::Blue, says: format!("{name}: {shown}") };
        self.bars.measure(row, &bar, None, &shown);
    }

    fn step(&mut self, part: &Part, from: f64) {
        let row = self.row(part.cause.name(), from);
        let (shown, factor) = (self.unit.show_signed(part.seconds), self.unit.factor);
        let to = from + part.seconds;
        let hue = if part.seconds > 0.0 { MORE } else { LESS };
        let interval = part.lo.zip(part.hi);
        let spread = within(interval, |end| self.unit.show_signed(end));
        let says = format!("{}: {shown}{spread}", part.cause.name());
        let ends = interval.map(|(lo, hi)| (factor * (from + lo), factor * (from + hi)));
        let bar = Bar { from: factor * from, to: factor * to, hue, says };
        self.bars.measure(row, &bar, ends, &shown);
    }
}

/// The visible range of the cost: from zero, unless that would make the causes too small to see.
fn range(fall: &Waterfall, causes: &[&Part]) -> (f64, f64) {
    let (mut low, mut high, mut reached) = (fall.from_s, fall.from_s, fall.from_s);
    for part in causes {
        for end in [part.lo, part.hi, Some(part.seconds)].into_iter().flatten().map(|end| reached + end) {
            (low, high) = (low.min(end), high.max(end));
        }
        reached += part.seconds;
    }
    let from = low - 0.25 * (high - low);
    (if from > 0.5 * high { from } else { 0.0 }, high)
}
