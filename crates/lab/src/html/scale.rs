//! Linear and logarithmic scales, with ticks at round numbers.

/// From this ratio of its ends on, a logarithmic axis is marked at powers of ten.
const LONG: f64 = 1000.0;

/// How values spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Equal differences have equal distances.
    Linear,
    /// Equal ratios have equal distances.
    Log,
}

/// A scale that maps values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    spread: Spread,
    /// The value at its begin.
    pub low: f64,
    /// The value at its end.
    pub high: f64,
}

impl Scale {
    /// A scale between two values. Equal ends are moved apart.
    pub fn new(spread: Spread, low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        Self { spread, low, high }
    }

    /// How values spread over it.
    pub fn spread(&self) -> Spread {
        self.spread
    }

    /// Position of a value: 0 at the start of the axis, 1 at its end.
    pub fn at(&self, value: f64) -> f64 {
        match self.spread {
            Spread::Linear => (value - self.low) / (self.high - self.low),
            Spread::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }
}

/// An axis: a scale, its ticks and its label.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Where values lie.
    pub scale: Scale,
    /// Marked values and what is written there.
    pub ticks: Vec<(f64, String)>,
    /// What it shows, with its unit.
    pub label: String,
}

impl Axis {
    /// A linear axis that covers at least these values and ends at round numbers, with about as many ticks as asked for.
    pub fn linear(low: f64, high: f64, room: u32, label: impl Into<String>) -> Self {
        let scale = Scale::new(Spread::Linear, low, high);
        let step = round_step((scale.high - scale.low) / f64::from(room));
        let (first, last) = ((scale.low / step + 1e-9).floor(), (scale.high / step - 1e-9).ceil());
        let places = (-step.log10().floor()).max(0.0) as usize;
        let tick = |number: i64| {
            let value = number as f64 * step;
            (value, format!("{:.places$}", value + 0.0))
        };
        Self {
            scale: Scale::new(Spread::Linear, first * step, last * step),
            ticks: (first as i64..=last as i64).map(tick).collect(),
            label: label.into(),
        }
    }

    /// The same, but ending exactly at the values.
    pub fn exact(low: f64, high: f64, room: u32, label: impl Into<String>) -> Self {
        let round = Self::linear(low, high, room, label);
        let scale = Scale::new(Spread::Linear, low, high);
        let within = |(value, _): &(f64, String)| (scale.low..=scale.high).contains(value);
        Self { scale, ticks: round.ticks.into_iter().filter(within).collect(), label: round.label }
    }

    /// A logarithmic axis between powers of two, or of ten where it is long.
    pub fn log(low: f64, high: f64, label: impl Into<String>) -> Self {
        if high > LONG * low {
            return Self::decades(low, high, label);
        }
        let (first, last) = ((low.log2() + 1e-9).floor() as i32, (high.log2() - 1e-9).ceil() as i32);
        let every = ((last - first) / 8 + 1) as usize;
        let powers = (first..=last).step_by(every).map(|power| 2f64.powi(power));
        Self {
            scale: Scale::new(Spread::Log, 2f64.powi(first), 2f64.powi(last)),
            ticks: powers.map(|value| (value, value.to_string())).collect(),
            label: label.into(),
        }
    }
}

impl Axis {
    fn decades(low: f64, high: f64, label: impl Into<String>) -> Self {
        let (first, last) = ((low.log10() + 1e-9).floor() as i32, (high.log10() - 1e-9).ceil() as i32);
        let every = ((last - first) / 6 + 1) as usize;
        // There is room for five digits.
        let name = |power: i32| match power {
            -3..=4 => 10f64.powi(power).to_string(),
            _ => format!("1e{power}"),
        };
        Self {
            scale: Scale::new(Spread::Log, 10f64.powi(first), 10f64.powi(last)),
            ticks: (first..=last).step_by(every).map(|power| (10f64.powi(power), name(power))).collect(),
            label: label.into(),
        }
    }
}

/// The smallest step of 1, 2 or 5 times a power of ten that is not below the given one.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|digit| digit * power >= 0.999 * least);
    digit.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_axis_covers_what_it_was_made_for_and_is_marked_where_its_values_are(
            exponent in -6..7i32,
            low in -10.0..10.0f64,
            width in 1e-3..20.0f64,
            room in 2..8u32,
        ) {
            let unit = 10f64.powi(exponent);
            let (low, high) = (low * unit, (low + width) * unit);
            for axis in [Axis::linear(low, high, room, "x"), Axis::exact(low, high, room, "x")] {
                let inside = |value: f64| (-1e-6..=1.0 + 1e-6).contains(&axis.scale.at(value));
                prop_assert!(inside(low) && inside(high), "{axis:?}");
                prop_assert!(axis.scale.at(low) < axis.scale.at(high));
                prop_assert!(axis.ticks.iter().all(|(value, _)| inside(*value)), "{axis:?}");
                let step = round_step((high - low) / f64::from(room));
                for (value, name) in &axis.ticks {
                    let said: f64 = name.parse().expect("a number");
                    prop_assert!((said - value).abs() < 1e-6 * step, "{name} at {value}");
                }
            }
            let axis = Axis::log(low.abs().max(1e-3), low.abs().max(1e-3) + width * unit, "x");
            prop_assert!(axis.scale.at(low.abs().max(1e-3)) >= -1e-6);
            prop_assert!(axis.scale.at(low.abs().max(1e-3) + width * unit) <= 1.0 + 1e-6);
        }
    }

    #[test]
    fn axes_end_at_round_numbers() {
        let axis = Axis::linear(0.0, 3.46, 4, "x");
        let names: Vec<&str> = axis.ticks.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["0", "1", "2", "3", "4"]);
        assert_eq!((axis.scale.low, axis.scale.high), (0.0, 4.0));
        let fine = Axis::linear(1.52, 1.61, 4, "x");
        assert_eq!(fine.ticks.first().map(|(_, name)| name.as_str()), Some("1.50"));
        assert!(fine.scale.at(1.61) <= 1.0 && fine.ticks.len() <= 6);
        let exact = Axis::exact(0.0, 103.0, 6, "x");
        assert_eq!(exact.scale.at(103.0), 1.0);
        assert_eq!(exact.ticks.last().map(|(_, name)| name.as_str()), Some("100"));
    }

    #[test]
    fn a_logarithmic_axis_is_marked_at_powers_of_two() {
        let axis = Axis::log(1.0, 64.0, "x");
        assert_eq!(axis.scale.at(8.0), 0.5);
        assert_eq!(axis.ticks.len(), 7);
        assert_eq!(Axis::log(0.5, 3.0, "x").ticks[0].1, "0.5");
        let long = Axis::log(3e-5, 40.0, "x");
        let names: Vec<&str> = long.ticks.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["1e-5", "0.001", "0.1", "10"]);
        assert!(long.scale.at(3e-5) > 0.0 && long.scale.at(40.0) < 1.0);
    }

    #[test]
    fn a_scale_of_one_value_still_has_room() {
        for value in [0.0, -3.0, 7.0] {
            assert!(Axis::linear(value, value, 4, "x").scale.at(value).is_finite());
        }
    }
}
