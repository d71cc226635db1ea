//! Printed numbers: a value, and the range that its last digit allows.

use serde::Serialize;

/// Longest cell that is read as a number.
const LONGEST: usize = 200;

/// Spellings of "none" in tables.
const NONE: [&str; 12] = ["", "-", "--", "—", "–", "n/a", "na", "n.a.", "none", "null", "?", "..."];

/// Signs before a spread.
pub const SPREAD: [&str; 3] = ["±", "+/-", "+-"];

/// A printed number. The true value is within half a unit of the last digit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// As printed.
    pub value: f64,
    /// Half a unit of the last printed digit.
    pub half: f64,
}

impl Figure {
    /// An exact number, such as a count.
    pub fn exact(value: f64) -> Self {
        Self { value, half: 0.0 }
    }

    /// Its smallest possible value.
    pub fn lo(self) -> f64 {
        self.value - self.half
    }

    /// Its largest possible value.
    pub fn hi(self) -> f64 {
        self.value + self.half
    }

    /// The number in another unit.
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, half: self.half * factor.abs() }
    }

    /// The number as printed: as many digits as it had.
    pub fn print(self) -> String {
        if self.half <= 0.0 {
            return format!("{}", self.value);
        }
        let digits = (-(2.0 * self.half).log10()).round().clamp(0.0, 12.0);
        format!("{:.*}", digits as usize, self.value)
    }
}

/// The unit after a number, or in a heading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// A time unit, in seconds.
    Seconds(f64),
    /// A hundredth.
    Percent,
    /// `x`: a factor.
    Times,
    /// A rate per second.
    PerSecond,
    /// A memory unit, in bytes.
    Bytes(f64),
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Empty, or a sign for it.
    Blank,
    /// A number, and its unit if printed.
    Number(Figure, Option<Unit>),
    /// Two numbers with a colon between.
    Ratio(Figure, Figure),
    /// NaN or infinity.
    NotFinite,
    /// Anything else.
    Words,
}

/// Reads a cell.
pub fn read(text: &str) -> Cell {
    let text = text.trim().trim_matches(|c: char| matches!(c, '*' | '`' | '"' | '~' | '≈')).trim();
    let lower = text.to_lowercase();
    if NONE.contains(&lower.as_str()) {
        return Cell::Blank;
    }
    if text.len() > LONGEST {
        return Cell::Words;
    }
    if ["nan", "inf", "+inf", "-inf", "infinity", "-infinity", "∞", "-∞"].contains(&lower.as_str()) {
        return Cell::NotFinite;
    }
    // `M` is a million and `m` a minute, so keep the case until they are distinguished.
    let Some((figure, rest)) = number(text) else { return Cell::Words };
    let (power, rest) = magnitude(rest.trim_start()).unwrap_or((0, rest));
    let figure = figure.times(10f64.powi(power));
    let rest = &rest.to_lowercase();
    if !figure.value.is_finite() || !figure.half.is_finite() {
        return Cell::NotFinite;
    }
    let rest = rest.trim();
    if let Some(right) = rest.strip_prefix(':').and_then(|rest| number(rest.trim())) {
        let seconds = right.1.strip_prefix(':').and_then(number).filter(|(_, rest)| rest.trim().is_empty());
        // 1:30:05 are hours, minutes and seconds.
        return match seconds {
            Some((seconds, _)) => {
                let value = 3600.0 * figure.value + 60.0 * right.0.value + seconds.value;
                Cell::Number(Figure { value, half: seconds.half }, Some(Unit::Seconds(1.0)))
            }
            None if right.1.trim().is_empty() => Cell::Ratio(figure, right.0),
            None => Cell::Words,
        };
    }
    for sign in SPREAD {
        if let Some((spread, unit)) = rest.strip_prefix(sign).and_then(|rest| number(rest.trim())) {
            return with_unit(Figure { half: spread.value.abs(), ..figure }, unit);
        }
    }
    with_unit(figure, rest)
}

fn with_unit(figure: Figure, rest: &str) -> Cell {
    let rest = rest.trim();
    if rest.is_empty() {
        return Cell::Number(figure, None);
    }
    match unit(rest) {
        Some(Unit::Percent) => Cell::Number(figure.times(0.01), Some(Unit::Percent)),
        Some(unit) => Cell::Number(figure, Some(unit)),
        None if let Some(duration) = duration(figure, rest) => {
            Cell::Number(duration, Some(Unit::Seconds(1.0)))
        }
        // A remark in brackets, or the name of what is counted.
        None if rest.starts_with(['(', '[']) || counts(rest) => Cell::Number(figure, None),
        None => Cell::Words,
    }
}

/// `1h 2m 3s` in seconds: a number with a unit of time, and what follows it.
fn duration(first: Figure, rest: &str) -> Option<Figure> {
    let (name, after) = rest.split_at(rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len()));
    let Some(Unit::Seconds(seconds)) = unit(name) else { return None };
    let scaled = first.times(seconds);
    if after.trim().is_empty() {
        return Some(scaled);
    }
    let (next, tail) = number(after.trim_start())?;
    let rest = duration(next, tail.trim())?;
    Some(Figure { value: scaled.value + rest.value, half: rest.half })
}

/// Whether words name what is counted.
fn counts(words: &str) -> bool {
    let word = words.trim_end_matches('s');
    [
        "gpu", "worker", "node", "proces", "device", "image", "example", "sample", "step", "epoch", "core",
        "rank",
    ]
    .contains(&word)
}

/// The unit that a text names.
pub fn unit(text: &str) -> Option<Unit> {
    let text = text.trim().trim_matches(|c: char| matches!(c, '(' | ')' | '[' | ']' | '.'));
    let per_second = ["/s", "/sec", "/second", "per sec", "per second", "per s", "/s)"];
    if per_second.iter().any(|end| text.ends_with(end)) {
        return Some(Unit::PerSecond);
    }
    Some(match text {
        "s" | "sec" | "secs" | "second" | "seconds" => Unit::Seconds(1.0),
        "ms" | "msec" | "millisecond" | "milliseconds" => Unit::Seconds(1e-3),
        "us" | "µs" | "μs" => Unit::Seconds(1e-6),
        "ns" => Unit::Seconds(1e-9),
        "m" | "min" | "mins" | "minute" | "minutes" => Unit::Seconds(60.0),
        "h" | "hr" | "hrs" | "hour" | "hours" => Unit::Seconds(3600.0),
        "%" | "percent" | "pct" | "percentage" => Unit::Percent,
        "x" | "×" | "times" | "fold" => Unit::Times,
        "byte" | "bytes" => Unit::Bytes(1.0),
        "kb" => Unit::Bytes(1e3),
        "mb" => Unit::Bytes(1e6),
        "gb" => Unit::Bytes(1e9),
        "kib" => Unit::Bytes(1024.0),
        "mib" => Unit::Bytes(1024.0 * 1024.0),
        "gib" => Unit::Bytes(1024.0 * 1024.0 * 1024.0),
        _ => return None,
    })
}

/// The number at the start of a text, and the rest. Thousands may be separated by commas, points, spaces,
/// apostrophes or underscores; a lone comma or point is a decimal one unless exactly three digits follow a comma.
pub fn number(text: &str) -> Option<(Figure, &str)> {
    let body = text.strip_prefix(['+', '-', '−']).unwrap_or(text);
    let sign = if text.starts_with(['-', '−']) { -1.0 } else { 1.0 };
    let run = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (mut groups, mut marks) = (Vec::new(), Vec::new());
    let mut rest = body;
    loop {
        let digits = run(rest);
        if digits == 0 && !(groups.is_empty() && rest.starts_with('.')) {
            break;
        }
        groups.push(&rest[..digits]);
        rest = &rest[digits..];
        let Some(mark) = rest.chars().next().filter(|c| ",.'_ \u{a0}\u{202f}".contains(*c)) else { break };
        let after = &rest[mark.len_utf8()..];
        let next = run(after);
        let thousands = next == 3 && groups[0].len() <= 3 && !marks.contains(&'.');
        if next == 0 || !(thousands || matches!(mark, ',' | '.')) {
            break;
        }
        marks.push(mark);
        rest = after;
    }
    let decimal = decimal_mark(&groups, &marks)?;
    let digits: String = groups.concat();
    let decimals = if decimal { groups.last()?.len() } else { 0 };
    if digits.is_empty() || digits.len() > 40 {
        return None;
    }
    let (exponent, rest) = exponent(rest);
    let whole: f64 = format!("{digits}e{}", exponent - decimals as i32).parse().ok()?;
    Some((Figure { value: sign * whole, half: 0.5 * 10f64.powi(exponent - decimals as i32) }, rest))
}

/// Whether the last mark is a decimal mark; `None` if the marks do not form a number.
fn decimal_mark(groups: &[&str], marks: &[char]) -> Option<bool> {
    let Some(&last) = marks.last() else { return Some(false) };
    let full = |groups: &[&str]| groups.iter().skip(1).all(|group| group.len() == 3);
    let others = &marks[..marks.len() - 1];
    let decimal = match last {
        '.' => others.iter().all(|mark| *mark != '.') || !full(groups),
        ',' => {
            let grouped = full(groups) && !groups[0].is_empty() && !groups[0].starts_with('0');
            !others.contains(&',') && (others.contains(&'.') || !grouped)
        }
        _ => false,
    };
    let whole = if decimal { &groups[..groups.len() - 1] } else { groups };
    let same = others.windows(2).all(|pair| pair[0] == pair[1]);
    (same && full(whole) && (!decimal || !others.contains(&last))).then_some(decimal)
}

fn exponent(rest: &str) -> (i32, &str) {
    let power = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '-' && c != '+').unwrap_or(text.len());
        text[..end].parse::<i32>().ok().filter(|power| power.abs() < 300).map(|power| (power, end))
    };
    if let Some((power, end)) = rest.strip_prefix(['e', 'E']).and_then(power) {
        return (power, &rest[1 + end..]);
    }
    magnitude(rest).unwrap_or((0, rest))
}

/// A thousand, a million or a milliard by its letter, and what follows: 12.3k or 12.3ktokens/s, but neither 12.3kb nor 4 K80.
fn magnitude(rest: &str) -> Option<(i32, &str)> {
    let letter = rest.chars().next()?;
    let power = match letter {
        'k' | 'K' => 3,
        'M' => 6,
        'G' => 9,
        _ => return None,
    };
    let after = &rest[letter.len_utf8()..];
    let pieces = ["tok", "im", "sample", "ex", "seq"];
    let named = after.ends_with("/s") && pieces.iter().any(|piece| after.starts_with(piece));
    (named || !after.starts_with(char::is_alphanumeric)).then_some((power, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> (f64, f64) {
        match read(text) {
            Cell::Number(figure, _) => (figure.value, figure.half),
            other => panic!("{text:?} is read as {other:?}"),
        }
    }

    #[test]
    fn numbers_are_read_with_what_their_digits_allow() {
        let near = |text: &str, expected: f64, half: f64| {
            let (value, allowed) = value(text);
            assert!((value - expected).abs() < 1e-9 * expected.abs().max(1.0), "{text}: {value}");
            assert!((allowed - half).abs() < 1e-12, "{text}: {allowed}");
        };
        near("41", 41.0, 0.5);
        near("1.50", 1.5, 0.005);
        near("2,386,084", 2_386_084.0, 0.5);
        near("15 860.5", 15_860.5, 0.05);
        near("1.234,5", 1234.5, 0.05);
        near("3,5", 3.5, 0.05);
        near("1'234", 1234.0, 0.5);
        near("12.3k", 12_300.0, 50.0);
        near("12.3 K", 12_300.0, 50.0);
        near("0.0044M", 4400.0, 50.0);
        near("1.4 M tokens/s", 1.4e6, 5e4);
        near("1.4Mtokens/s", 1.4e6, 5e4);
        near("1.5m", 1.5, 0.05);
        near("2G", 2e9, 5e8);
        near("1.5e3", 1500.0, 50.0);
        near(".5", 0.5, 0.05);
        near("-3", -3.0, 0.5);
        near("191 ± 2", 191.0, 2.0);
        near("18%", 0.18, 0.005);
        near("66.7 %", 0.667, 0.0005);
        near("1 (local)", 1.0, 0.5);
        near("8 GPUs", 8.0, 0.5);
        near("1h 2m 3s", 3723.0, 0.5);
        near("1:30:05", 5405.0, 0.5);
        near("**5.65 images/s**", 5.65, 0.005);
    }

    #[test]
    fn units_and_ratios_are_told_apart() {
        assert!(matches!(read("6.1s"), Cell::Number(_, Some(Unit::Seconds(1.0)))));
        assert!(matches!(read("20 ms"), Cell::Number(_, Some(Unit::Seconds(_)))));
        assert!(matches!(read("1.82x"), Cell::Number(_, Some(Unit::Times))));
        assert!(matches!(read("168 images/s"), Cell::Number(_, Some(Unit::PerSecond))));
        assert!(matches!(read("9.5 GiB"), Cell::Number(_, Some(Unit::Bytes(_)))));
        assert!(matches!(read("10: 3"), Cell::Ratio(..)));
        for none in ["", "-", "n/a", " — "] {
            assert_eq!(read(none), Cell::Blank);
        }
        for odd in ["NaN", "inf", "1e299999", "-∞"] {
            assert!(matches!(read(odd), Cell::NotFinite | Cell::Words), "{odd}");
        }
        for words in ["4 K80", "7B", "resnet50", "1.2.3.4", "cpu=4,memory=8192Mi", "(32, 32, 3)", "1,2,3"] {
            assert_eq!(read(words), Cell::Words, "{words}");
        }
    }

    #[test]
    fn figures_print_as_they_stood() {
        for text in ["41", "1.50", "304.02"] {
            let Cell::Number(figure, _) = read(text) else { panic!("{text} is a number") };
            assert_eq!(figure.print(), text);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,40}") {
            read(&text);
        }

        #[test]
        fn what_looks_like_a_number_is_read_without_a_panic(text in "[-+0-9.,' _e:%ksmh±(]{0,24}") {
            if let Cell::Number(figure, _) = read(&text) {
                proptest::prop_assert!(figure.value.is_finite() && figure.half >= 0.0);
            }
        }
    }
}
