//! Numbers as they are printed: units chosen by size, about three digits.

use paceline_record::Bytes;

/// A unit for display.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// What a value in the base unit is multiplied by.
    pub factor: f64,
}

impl Unit {
    /// A suitable unit for a time in seconds.
    pub fn of_time(seconds: f64) -> Self {
        match seconds.abs() {
            s if s >= 1.0 => Self { name: "s", factor: 1.0 },
            s if s >= 1e-3 => Self { name: "ms", factor: 1e3 },
            _ => Self { name: "µs", factor: 1e6 },
        }
    }

    /// A suitable unit for an amount of memory.
    pub fn of_memory(bytes: Bytes) -> Self {
        match bytes.0 {
            0..10_000_000_000 => Self { name: "MB", factor: 1e-6 },
            _ => Self { name: "GB", factor: 1e-9 },
        }
    }

    /// A value in this unit, with its name.
    pub fn show(&self, value: f64) -> String {
        format!("{} {}", digits(value * self.factor), self.name)
    }

    /// The same with its sign.
    pub fn show_signed(&self, value: f64) -> String {
        let shown = digits((value * self.factor).abs());
        let sign = match shown.chars().all(|c| matches!(c, '0' | '.')) {
            true => "",
            false if value < 0.0 => "\u{2212}",
            false => "+",
        };
        format!("{sign}{shown} {}", self.name)
    }
}

/// A number with about three digits.
pub fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.places$}")
}

/// A fraction in percent.
pub fn percent(fraction: f64) -> String {
    format!("{:.0} %", 100.0 * fraction)
}

/// The 95 % interval of a value, in brackets after it; nothing where it has none.
pub fn within(ends: Option<(f64, f64)>, show: impl Fn(f64) -> String) -> String {
    ends.map_or_else(String::new, |(lo, hi)| format!(" (95 % interval {} .. {})", show(lo), show(hi)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_about_three_digits_and_a_sign_only_where_it_means_something() {
        assert_eq!([0.1234, 1.234, 12.34, 123.4].map(digits), ["0.123", "1.23", "12.3", "123"]);
        let ms = Unit::of_time(0.004);
        assert_eq!(
            [0.004, -0.004, 1e-9].map(|s| ms.show_signed(s)),
            ["+4.00 ms", "\u{2212}4.00 ms", "0.000 ms"]
        );
        assert_eq!(Unit::of_memory(Bytes(2_500_000_000)).show(2.5e9), "2500 MB");
    }
}
