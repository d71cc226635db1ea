//! Intervals that printed digits allow, for positive numbers.

use super::figure::Figure;

/// Relative tolerance for floating-point error.
pub const ARITHMETIC: f64 = 1e-9;

/// The range of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Its value by the printed digits.
    pub value: f64,
    lo: f64,
    hi: f64,
}

impl From<Figure> for Span {
    fn from(figure: Figure) -> Self {
        Self { value: figure.value, lo: figure.lo().max(0.0), hi: figure.hi() }
    }
}

impl std::ops::Add for Span {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { value: self.value + other.value, lo: self.lo + other.lo, hi: self.hi + other.hi }
    }
}

impl std::ops::Sub for Span {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { value: self.value - other.value, lo: self.lo - other.hi, hi: self.hi - other.lo }
    }
}

impl std::ops::Mul for Span {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self { value: self.value * other.value, lo: self.lo * other.lo, hi: self.hi * other.hi }
    }
}

impl std::ops::Div for Span {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        Self { value: self.value / other.value, lo: self.lo / other.hi, hi: self.hi / other.lo }
    }
}

/// How a printed number compares with the recomputed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The digits allow it.
    Agrees,
    /// Its last digits were dropped instead of rounded.
    CutOff,
    /// Half a unit of its last digit beyond what the digits allow: rounding twice does that.
    Unclear,
    /// The digits do not allow it.
    Contradicts,
}

impl Span {
    /// An exact number.
    pub fn exact(value: f64) -> Self {
        Self { value, lo: value, hi: value }
    }

    /// Its smallest and largest possible values.
    pub fn ends(self) -> (f64, f64) {
        (self.lo, self.hi)
    }

    fn meets(self, lo: f64, hi: f64) -> bool {
        let slack = ARITHMETIC * (self.hi.abs() + hi.abs());
        lo <= self.hi + slack && hi >= self.lo - slack
    }

    /// Compares a printed number with this one.
    pub fn matches(self, printed: Figure) -> Match {
        if self.meets(printed.lo(), printed.hi()) {
            Match::Agrees
        } else if self.meets(printed.value, printed.value + 2.0 * printed.half) {
            Match::CutOff
        } else if self.meets(printed.value - 2.0 * printed.half, printed.value + 2.0 * printed.half) {
            Match::Unclear
        } else {
            Match::Contradicts
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_digits_forbid_is_a_contradiction() {
        let tens = Figure { value: 41.0, half: 0.5 };
        let one = Figure { value: 26.7, half: 0.05 };
        let quotient = Span::from(tens) / Span::from(one);
        let printed = |value: f64| Figure { value, half: 0.005 };
        assert_eq!(quotient.matches(printed(1.54)), Match::Agrees);
        assert_eq!(quotient.matches(printed(1.56)), Match::Agrees, "41.49 / 26.65");
        assert_eq!(quotient.matches(printed(1.565)), Match::Unclear);
        assert_eq!(quotient.matches(printed(1.57)), Match::Contradicts);
        let exact = Span::exact(51.496);
        assert_eq!(exact.matches(printed(51.50)), Match::Agrees);
        assert_eq!(exact.matches(printed(51.49)), Match::CutOff);
        assert_eq!(exact.matches(printed(51.48)), Match::Contradicts, "51.49 at least, cut off");
    }
}
