//! Sizes of pictures on the command line.

use paceline_train::data::MAX_SIDE;

/// Height and width.
pub type Size = (usize, usize);

/// Parses `HxW`.
pub fn parse(text: &str) -> Result<Size, String> {
    let side = |text: &str| text.parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
    text.split_once('x')
        .and_then(|(h, w)| Some((side(h)?, side(w)?)))
        .ok_or_else(|| format!("a size is HxW, as 224x224, with sides from 1 to {MAX_SIDE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_two_sides_and_nothing_else() {
        assert_eq!(parse("224x192"), Ok((224, 192)));
        for bad in ["", "224", "224x", "x224", "0x32", "32x32x3", "-1x5", "99999x1", "32*32"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
