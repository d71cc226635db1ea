//! Charts with two axes: lines, bands, points.

use super::figure::{Hue, Sign};
use super::markup::{Px, Tag};
use super::scale::{Axis, Spread};

/// Width of every drawing, in its own units; the page scales it.
pub const WIDTH: f64 = 480.0;

const LEFT: f64 = 46.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 44.0;

/// An empty drawing with a description for screen readers.
pub fn canvas(height: f64, says: &str) -> Tag {
    Tag::new("svg")
        .class("chart")
        .set("viewBox", format_args!("0 0 {} {}", Px(WIDTH), Px(height)))
        .set("role", "img")
        .set("aria-label", says)
        .with(Tag::new("title").text(says))
}

/// Text in a drawing, anchored at its start, middle or end.
pub fn words(x: f64, y: f64, anchor: &str, text: &str) -> Tag {
    Tag::new("text").set("x", Px(x)).set("y", Px(y)).set("text-anchor", anchor).text(text)
}

/// A straight line.
pub fn segment(from: (f64, f64), to: (f64, f64), class: &str) -> Tag {
    Tag::new("line")
        .class(class)
        .set("x1", Px(from.0))
        .set("y1", Px(from.1))
        .set("x2", Px(to.0))
        .set("y2", Px(to.1))
}

/// A point of a line, and its tooltip.
pub type Point = ((f64, f64), String);

/// A drawing on two axes.
pub struct Plot {
    x: Axis,
    y: Axis,
    height: f64,
    body: Vec<Tag>,
    data: Option<String>,
}

impl Plot {
    /// Draws the axes.
    pub fn new(x: Axis, y: Axis, height: f64) -> Self {
        let mut plot = Self { x, y, height, body: Vec::new(), data: None };
        let (bottom, right) = (height - BOTTOM, WIDTH - RIGHT);
        for (value, name) in plot.y.ticks.clone() {
            let (_, y) = plot.place((plot.x.scale.low, value));
            plot.body.push(segment((LEFT, y), (right, y), "grid"));
            plot.body.push(words(LEFT - 8.0, y + 4.0, "end", &name));
        }
        for (value, name) in plot.x.ticks.clone() {
            let (x, _) = plot.place((value, plot.y.scale.low));
            plot.body.push(segment((x, bottom), (x, bottom + 4.0), "axis"));
            plot.body.push(words(x, bottom + 18.0, "middle", &name));
        }
        plot.body.push(segment((LEFT, bottom), (right, bottom), "axis"));
        plot.body.push(words(0.0, 13.0, "start", &plot.y.label).class("unit"));
        plot.body.push(words(right, height - 7.0, "end", &plot.x.label).class("unit"));
        plot
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (width, height) = (WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM);
        (LEFT + width * self.x.scale.at(x), TOP + height * (1.0 - self.y.scale.at(y)))
    }

    fn path(&self, points: impl IntoIterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (number, point) in points.into_iter().enumerate() {
            let (x, y) = self.place(point);
            let letter = if number == 0 { 'M' } else { 'L' };
            path.push_str(&format!("{letter}{} {}", Px(x), Px(y)));
        }
        path
    }

    /// Draws a line through some points, dashed if its sign is.
    pub fn line(&mut self, points: &[(f64, f64)], hue: Hue, sign: Sign) {
        if points.len() > 1 {
            let dashes = if sign == Sign::Dashed { "dashed" } else { "" };
            let class = format!("mark line {} {dashes}", hue.class());
            self.body.push(Tag::new("path").class(&class).set("d", self.path(points.iter().copied())));
        }
    }

    /// Draws a line through some points, and the points.
    pub fn course(&mut self, points: &[Point], hue: Hue, sign: Sign) {
        let line: Vec<_> = points.iter().map(|(point, _)| *point).collect();
        self.line(&line, hue, Sign::Line);
        self.points(points, hue, sign);
    }

    /// Fills the area between two lines.
    pub fn band(&mut self, above: &[(f64, f64)], below: &[(f64, f64)], hue: Hue) {
        let outline = self.path(above.iter().copied().chain(below.iter().rev().copied()));
        let class = format!("mark fill pale {}", hue.class());
        self.body.push(Tag::new("path").class(&class).set("d", outline + "Z"));
    }

    /// Shades the drawing from one value to another, and names the part.
    pub fn shade(&mut self, from: f64, to: f64, name: &str) {
        let (left, top) = self.place((from, self.y.scale.high));
        let (right, bottom) = self.place((to, self.y.scale.low));
        let shade = Tag::new("rect")
            .class("mark shade")
            .set("x", Px(left))
            .set("y", Px(top))
            // Two of ten thousand steps must still be visible.
            .set("width", Px((right - left).max(1.5)))
            .set("height", Px(bottom - top));
        self.body.push(shade.with(Tag::new("title").text(name)));
    }

    /// Draws points, each with a tooltip.
    pub fn points(&mut self, points: &[Point], hue: Hue, sign: Sign) {
        for (point, says) in points {
            let (x, y) = self.place(*point);
            let shape = match sign {
                Sign::Square => square(x, y),
                Sign::Triangle => {
                    let corners = [(x, y - 7.5), (x + 7.0, y + 5.0), (x - 7.0, y + 5.0)];
                    Tag::new("polygon").set("points", join(corners))
                }
                _ => Tag::new("circle").set("cx", Px(x)).set("cy", Px(y)).set("r", 3.25),
            };
            let class = format!("mark fill dot {}", hue.class());
            self.body.push(shape.class(&class).with(Tag::new("title").text(says)));
        }
    }

    /// Draws an interval around a point.
    pub fn whisker(&mut self, x: f64, low: f64, high: f64, hue: Hue) {
        let (middle, top) = self.place((x, high));
        let (_, bottom) = self.place((x, low));
        let class = format!("mark line whisker {}", hue.class());
        let bar = |y: f64| format!("M{} {}H{}", Px(middle - 5.0), Px(y), Px(middle + 5.0));
        let path = format!("{}{}M{} {}V{}", bar(top), bar(bottom), Px(middle), Px(top), Px(bottom));
        self.body.push(Tag::new("path").class(&class).set("d", path));
    }

    /// Draws a dashed line from top to bottom.
    pub fn rule(&mut self, x: f64, hue: Hue) {
        let (at, top) = self.place((x, self.y.scale.high));
        let (_, bottom) = self.place((x, self.y.scale.low));
        let path = format!("M{} {}V{}", Px(at), Px(top), Px(bottom));
        let class = format!("mark line dashed {}", hue.class());
        self.body.push(Tag::new("path").class(&class).set("d", path));
    }

    /// Marks a value above the upper edge with an arrow there, and with words beside it.
    pub fn arrow(&mut self, x: f64, says: &str, label: Option<&str>) {
        let (x, y) = self.place((x, self.y.scale.high));
        let corners = [(x, y - 8.0), (x + 4.5, y), (x - 4.5, y)];
        let arrow = Tag::new("polygon").class("mark fill arrow vermilion").set("points", join(corners));
        self.body.push(arrow.with(Tag::new("title").text(says)));
        if let Some(label) = label {
            let (at, anchor) = if x < WIDTH / 2.0 { (x + 8.0, "start") } else { (x - 8.0, "end") };
            self.body.push(words(at, y - 5.0, anchor, label).class("arrow"));
        }
    }

    /// Hands what is drawn to the page's script, which can then draw a part of it.
    pub fn carry(&mut self, data: String) {
        self.data = Some(data);
    }

    /// The drawing. It says where its frame lies and what its axes show, so that its marks can be read back.
    pub fn render(self, says: &str) -> Tag {
        let ends = |axis: &Axis| match axis.scale.spread() {
            Spread::Linear => format!("{} {}", axis.scale.low, axis.scale.high),
            Spread::Log => format!("{} {} log", axis.scale.low, axis.scale.high),
        };
        let frame = [LEFT, TOP, WIDTH - RIGHT, self.height - BOTTOM].map(|edge| Px(edge).to_string());
        let mut drawing = canvas(self.height, says)
            .set("data-frame", frame.join(" "))
            .set("data-x", ends(&self.x))
            .set("data-y", ends(&self.y));
        if let Some(data) = self.data {
            drawing = drawing.set("data-steps", data);
        }
        drawing.with_all(self.body)
    }
}

fn square(x: f64, y: f64) -> Tag {
    Tag::new("rect").set("x", Px(x - 4.5)).set("y", Px(y - 4.5)).set("width", 9).set("height", 9)
}

/// The corners of a triangle as an attribute.
fn join(corners: [(f64, f64); 3]) -> String {
    corners.map(|(x, y)| format!("{},{}", Px(x), Px(y))).join(" ")
}
