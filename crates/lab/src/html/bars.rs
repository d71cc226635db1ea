//! Horizontal bar charts.

use super::chart::{WIDTH, canvas, segment, words};
use super::figure::Hue;
use super::markup::{Px, Tag};
use super::scale::Axis;

const FOOT: f64 = 42.0;

/// Widths of the columns beside the bars.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Names, on the left.
    pub names: f64,
    /// Values, on the right.
    pub values: f64,
}

/// A bar, from one value to another.
pub struct Bar {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Its colour.
    pub hue: Hue,
    /// Its tooltip.
    pub says: String,
}

/// A row of bars.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Upper edge.
    pub top: f64,
    /// Height.
    pub height: f64,
}

/// A horizontal bar chart under construction.
pub struct Bars {
    axis: Axis,
    columns: Columns,
    foot: f64,
    body: Vec<Tag>,
}

impl Bars {
    /// An empty drawing.
    pub fn new(axis: Axis, columns: Columns) -> Self {
        Self { axis, columns, foot: 4.0, body: Vec::new() }
    }

    fn place(&self, value: f64) -> f64 {
        let width = WIDTH - self.columns.names - self.columns.values;
        self.columns.names + width * self.axis.scale.at(value)
    }

    /// Leaves room.
    pub fn skip(&mut self, height: f64) {
        self.foot += height;
    }

    /// Adds a heading over the bars that follow.
    pub fn heading(&mut self, text: &str) {
        self.body.push(words(0.0, self.foot + 14.0, "start", text).class("heading"));
        self.foot += 22.0;
    }

    /// Adds a row.
    pub fn row(&mut self, height: f64) -> Row {
        let row = Row { top: self.foot, height };
        self.foot += height;
        row
    }

    /// Writes a name to the left of a row.
    pub fn name(&mut self, row: Row, text: &str) {
        self.body.push(words(self.columns.names - 8.0, row.top + row.height / 2.0 + 4.0, "end", text));
    }

    /// Writes a value to the right of a row.
    pub fn value(&mut self, row: Row, text: &str) {
        self.body.push(words(WIDTH, row.top + row.height / 2.0 + 4.0, "end", text).class("value"));
    }

    /// Draws a bar into a row, unless it is too thin to be seen.
    pub fn bar(&mut self, row: Row, bar: &Bar) {
        let (from, to) = (self.place(bar.from.min(bar.to)), self.place(bar.from.max(bar.to)));
        if to - from < 0.05 {
            return;
        }
        let rect = Tag::new("rect")
            .class(&format!("mark fill {}", bar.hue.class()))
            .set("x", Px(from))
            .set("y", Px(row.top))
            .set("width", Px(to - from))
            .set("height", Px(row.height));
        self.body.push(rect.with(Tag::new("title").text(&bar.says)));
    }

    /// Draws a bar with its interval, and writes its value beside it.
    pub fn measure(&mut self, row: Row, bar: &Bar, within: Option<(f64, f64)>, value: &str) {
        self.bar(row, bar);
        if let Some((lo, hi)) = within {
            self.whisker(row, lo, hi);
        }
        self.value(row, value);
    }

    /// Draws an interval over a row.
    fn whisker(&mut self, row: Row, low: f64, high: f64) {
        let (from, to, middle) = (self.place(low), self.place(high), row.top + row.height / 2.0);
        let bar = |x: f64| format!("M{} {}V{}", Px(x), Px(middle - 4.0), Px(middle + 4.0));
        let path = format!("{}{}M{} {}H{}", bar(from), bar(to), Px(from), Px(middle), Px(to));
        self.body.push(Tag::new("path").class("mark line whisker ink").set("d", path));
    }

    /// Draws a thin line at a value from the foot of one row to the top of the next.
    pub fn join(&mut self, value: f64, above: Row, below: Row) {
        let x = self.place(value);
        self.body.push(segment((x, above.top + above.height), (x, below.top), "join"));
    }

    /// Draws a dashed line at a value from the top of one row to the foot of another.
    pub fn rule(&mut self, value: f64, (first, last): (Row, Row), hue: Hue) {
        let x = Px(self.place(value));
        let path = format!("M{x} {}V{}", Px(first.top - 3.0), Px(last.top + last.height + 3.0));
        let class = format!("mark line dashed {}", hue.class());
        self.body.push(Tag::new("path").class(&class).set("d", path));
    }

    /// The drawing, with its axis below.
    pub fn render(self, says: &str) -> Tag {
        let mut drawing = canvas(self.foot + FOOT, says);
        for (value, name) in &self.axis.ticks {
            let x = self.place(*value);
            drawing.push(segment((x, 0.0), (x, self.foot + 4.0), "grid"));
            drawing.push(words(x, self.foot + 18.0, "middle", name));
        }
        let right = WIDTH - self.columns.values;
        drawing.push(words(right, self.foot + 36.0, "end", &self.axis.label).class("unit"));
        drawing.with_all(self.body)
    }
}
