//! The frame around a drawing: title, caption and legend.

use super::markup::Tag;

/// Colours by meaning; the style sheet defines them for both themes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hue {
    /// The first measure; backward.
    Blue,
    /// Forward; what is hidden.
    Sky,
    /// The second measure; update; what costs less.
    Green,
    /// Work for the exchange.
    Orange,
    /// Waiting; what costs more.
    Vermilion,
    /// Input; the third measure.
    Purple,
    /// Evaluation and checkpoints.
    Yellow,
    /// Recovery from lost workers.
    Crimson,
    /// Start-up, tail, and what is given: the ideal, a plan.
    Grey,
    /// Time outside every phase.
    Ink,
}

impl Hue {
    /// Its class in the style sheet.
    pub fn class(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The mark of a legend entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// A filled area.
    Area,
    /// A paler one.
    Pale,
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// Points: a circle.
    Circle,
    /// Points: a square.
    Square,
    /// Points: a triangle.
    Triangle,
}

/// An entry of a legend.
pub type Entry = (Sign, Hue, String);

/// A drawing with title, caption and legend.
pub struct Figure {
    /// Identifier in the page.
    pub name: &'static str,
    /// Its title.
    pub title: String,
    /// What it shows, in a sentence or two.
    pub caption: String,
    /// What its colours mean.
    pub legend: Vec<Entry>,
    /// The drawing, or its panels.
    pub body: Tag,
}

impl Figure {
    /// The element.
    pub fn render(self) -> Tag {
        // Keep percent signs with their numbers.
        let said = self.caption.replace(" %", "\u{a0}%");
        let caption =
            Tag::new("figcaption").with(Tag::new("b").text(self.title)).with(Tag::new("span").text(said));
        let mut figure = Tag::new("figure").set("data-figure", self.name).with(caption);
        if !self.legend.is_empty() {
            let alike = |a: &Entry, b: &Entry| hides(a) == hides(b);
            let alone = |entry: &Entry| self.legend.iter().filter(|other| alike(entry, other)).count() == 1;
            let entries = self.legend.iter().map(|entry| {
                let shown = render_entry(entry);
                // Entries that share a colour cannot be told apart by it.
                if alone(entry) { shown.set("data-hides", hides(entry)) } else { shown }
            });
            figure.push(Tag::new("ul").class("legend").with_all(entries));
        }
        figure.with(self.body)
    }
}

/// Drawings side by side.
pub fn panels(panels: impl IntoIterator<Item = Tag>) -> Tag {
    Tag::new("div").class("panels").with_all(panels)
}

/// One of several drawings, below its name and more words.
pub fn panel(name: &str, words: &str, drawing: Tag) -> Tag {
    let title = Tag::new("p").with(Tag::new("b").text(name)).text(words);
    Tag::new("div").class("panel").with(title).with(drawing)
}

/// Selects the marks of an entry, for the script that can hide them.
fn hides((sign, hue, _): &Entry) -> String {
    match (sign, hue) {
        (Sign::Pale, Hue::Grey) => ".mark.shade".into(),
        (Sign::Pale, hue) => format!(".mark.pale.{}", hue.class()),
        (_, hue) => format!(".mark.{}:not(.pale)", hue.class()),
    }
}

fn render_entry((sign, hue, text): &Entry) -> Tag {
    let (class, glyph) = match sign {
        Sign::Area => ("area", ""),
        Sign::Pale => ("area pale", ""),
        Sign::Line => ("rule", ""),
        Sign::Dashed => ("rule dashed", ""),
        Sign::Circle => ("", "\u{25cf}"),
        Sign::Square => ("", "\u{25a0}"),
        Sign::Triangle => ("", "\u{25b2}"),
    };
    let sign =
        Tag::new("i").class(&format!("{} {class}", hue.class())).set("aria-hidden", "true").text(glyph);
    Tag::new("li").with(sign).text(text)
}
