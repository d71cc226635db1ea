//! HTML and SVG elements as text. All text and attributes are escaped, so that no name from a study becomes markup.

use std::fmt::{self, Display, Write};

/// An element whose children are already rendered.
#[derive(Clone, Debug)]
pub struct Tag {
    name: &'static str,
    attributes: String,
    inner: String,
}

impl Tag {
    /// An element without attributes or children.
    pub fn new(name: &'static str) -> Self {
        Self { name, attributes: String::new(), inner: String::new() }
    }

    /// Sets an attribute.
    pub fn set(mut self, name: &str, value: impl Display) -> Self {
        let _ = write!(self.attributes, " {name}=\"");
        escape(&value.to_string(), &mut self.attributes);
        self.attributes.push('"');
        self
    }

    /// Sets its class.
    pub fn class(self, class: &str) -> Self {
        self.set("class", class)
    }

    /// Adds text.
    pub fn text(mut self, text: impl Display) -> Self {
        escape(&text.to_string(), &mut self.inner);
        self
    }

    /// Adds a child.
    pub fn with(mut self, child: Tag) -> Self {
        self.push(child);
        self
    }

    /// Adds children.
    pub fn with_all(mut self, children: impl IntoIterator<Item = Tag>) -> Self {
        for child in children {
            self.push(child);
        }
        self
    }

    /// The element as one that has neither content nor an end.
    pub fn void(&self) -> String {
        format!("<{}{}>", self.name, self.attributes)
    }

    /// Adds a child in place.
    pub fn push(&mut self, child: Tag) {
        let _ = write!(self.inner, "{child}");
    }
}

impl Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, attributes, inner } = self;
        write!(f, "<{name}{attributes}>{inner}</{name}>")
    }
}

/// A length or position in a drawing, rounded to a hundredth.
#[derive(Clone, Copy, Debug)]
pub struct Px(pub f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let finite = if self.0.is_finite() { self.0 } else { 0.0 };
        // Adding zero turns a negative zero into a plain one.
        write!(f, "{}", (finite * 100.0).round() / 100.0 + 0.0)
    }
}

fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        match c {
            '&' => into.push_str("&amp;"),
            '<' => into.push_str("&lt;"),
            '>' => into.push_str("&gt;"),
            '"' => into.push_str("&quot;"),
            '\'' => into.push_str("&#39;"),
            '\n' | '\t' => into.push(c),
            // Not allowed in HTML or XML: a colour code in a worker's output must not break the page.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => into.push('\u{fffd}'),
            c => into.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_never_become_markup() {
        let tag = Tag::new("p").set("title", "\"><b>").text("<script>&'\u{1b}[31m");
        assert_eq!(
            tag.to_string(),
            "<p title=\"&quot;&gt;&lt;b&gt;\">&lt;script&gt;&amp;&#39;\u{fffd}[31m</p>"
        );
    }

    #[test]
    fn lengths_are_short() {
        let shown = [1.0, 0.005, -0.001, 33.333_333].map(|length| Px(length).to_string());
        assert_eq!(shown, ["1", "0.01", "0", "33.33"]);
    }
}
