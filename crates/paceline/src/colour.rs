//! Colours on a terminal.

use std::env;
use std::ffi::OsStr;

/// A colour of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// All is well.
    Green,
    /// Worth knowing.
    Cyan,
    /// Take care.
    Yellow,
}

/// Whether to colour: on a terminal, unless `NO_COLOR` is set to anything (<https://no-color.org>).
pub fn wanted(is_terminal: bool) -> bool {
    is_terminal && allowed(env::var_os("NO_COLOR").as_deref())
}

fn allowed(no_color: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty)
}

/// Text in a colour.
pub fn paint(colour: Colour, text: &str) -> String {
    let code = match colour {
        Colour::Green => 32,
        Colour::Cyan => 36,
        Colour::Yellow => 33,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_counts_when_it_is_set_and_not_empty() {
        assert!(allowed(None));
        assert!(allowed(Some(OsStr::new(""))));
        assert!(!allowed(Some(OsStr::new("0"))));
        assert!(!wanted(false));
    }

    #[test]
    fn painted_text_ends_in_plain() {
        assert_eq!(paint(Colour::Yellow, "warning"), "\x1b[33mwarning\x1b[0m");
    }
}
