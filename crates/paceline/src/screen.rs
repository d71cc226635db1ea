//! What standard output and standard error can show.

use std::env;
use std::io::{IsTerminal, stderr, stdout};
use std::os::fd::AsFd;

use paceline_lab::terminal::{Colours, Screen};

use crate::colour;

/// Lines are never made narrower than this: a table would lose its meaning.
const NARROWEST: usize = 40;

/// Standard output: its colours, and its width, which the environment's `COLUMNS` can set.
pub fn screen() -> Screen {
    look_at(stdout())
}

/// The same for standard error.
pub fn error_screen() -> Screen {
    look_at(stderr())
}

fn look_at(stream: impl IsTerminal + AsFd) -> Screen {
    let colours = if colour::wanted(stream.is_terminal()) { Colours::Ansi } else { Colours::None };
    let terminal = rustix::termios::tcgetwinsize(&stream).ok().map(|size| usize::from(size.ws_col));
    let asked = env::var("COLUMNS").ok();
    Screen { colours, width: width(asked.as_deref(), terminal) }
}

/// The width that is asked for, or that of the terminal, or that of something that is none.
fn width(asked: Option<&str>, terminal: Option<usize>) -> usize {
    let asked = asked.and_then(|columns| columns.parse().ok());
    // A terminal that does not know its width says 0.
    let known = [asked, terminal].into_iter().flatten().find(|&width| width > 0);
    known.map_or(Screen::PLAIN.width, |width| width.max(NARROWEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_the_one_asked_for_or_the_terminals_or_100() {
        assert_eq!(width(Some("120"), Some(80)), 120);
        assert_eq!(width(Some("wide"), Some(80)), 80);
        assert_eq!(width(Some("0"), Some(0)), 100);
        assert_eq!(width(None, None), 100);
        assert_eq!(width(Some("3"), None), NARROWEST);
    }
}
