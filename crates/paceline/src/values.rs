//! Values of options: each is read the same way from the command line and from a file.

use std::fmt::Display;
use std::str::FromStr;

use paceline_train::Bounds;
use paceline_train::data::MAX_SIDE;
use serde::de::{Deserialize, Deserializer, Error};

/// One value, or several: with commas between them on the command line, as a list in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct List<T>(pub Vec<T>);

impl<T: FromStr<Err: Display>> FromStr for List<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = |word: &str| word.parse().map_err(|error: T::Err| error.to_string());
        text.split(',').map(read).collect::<Result<_, _>>().map(Self)
    }
}

/// What a file may hold for one value.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Scalar {
    Choice(bool),
    Whole(i64),
    Number(f64),
    Text(String),
}

impl Scalar {
    fn read<T: FromStr<Err: Display>, E: Error>(self) -> Result<T, E> {
        let text = match self {
            Self::Choice(true) => "yes".into(),
            Self::Choice(false) => "no".into(),
            Self::Whole(number) => number.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        };
        text.parse().map_err(|error: T::Err| E::custom(error))
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged, expecting = "expected a value or a list of values")]
enum Scalars {
    One(Scalar),
    Many(Vec<Scalar>),
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let scalars = match Scalars::deserialize(deserializer)? {
            Scalars::One(scalar) => vec![scalar],
            Scalars::Many(scalars) if scalars.is_empty() => return Err(Error::custom("the list is empty")),
            Scalars::Many(scalars) => scalars,
        };
        scalars.into_iter().map(Scalar::read).collect::<Result<_, _>>().map(Self)
    }
}

/// Reads one value of a file.
pub fn one<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Scalar::deserialize(deserializer)?.read().map(Some)
}

/// Reads names of a file.
pub fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    List::deserialize(deserializer).map(|List(names)| names)
}

/// Options of a file that the command line did not give.
pub trait Fill {
    /// Takes the file's value, unless one was given.
    fn fill(&mut self, file: Self);
}

impl<T> Fill for Option<T> {
    fn fill(&mut self, file: Self) {
        *self = self.take().or(file);
    }
}

impl<T> Fill for Vec<T> {
    fn fill(&mut self, file: Self) {
        if self.is_empty() {
            *self = file;
        }
    }
}

impl Fill for bool {
    fn fill(&mut self, file: Self) {
        *self |= file;
    }
}

/// Implements [`Fill`] for a group of options. It must name every one of them, so that none is forgotten.
macro_rules! fill_all {
    ($group:ident { $($option:ident),* $(,)? }) => {
        impl Fill for $group {
            fn fill(&mut self, file: Self) {
                let $group { $($option),* } = file;
                $(self.$option.fill($option);)*
            }
        }
    };
}
pub(crate) use fill_all;

/// Whether a job is elastic, and within which bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhetherElastic {
    /// It is not, though it may have been.
    No,
    /// It is, within the usual bounds.
    Yes,
    /// It is, within these.
    Within(Bounds),
}

impl FromStr for WhetherElastic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "yes" => Ok(Self::Yes),
            "no" => Ok(Self::No),
            _ => text.parse().map(Self::Within),
        }
    }
}

/// A time in seconds, from none to a month.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds(pub f64);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('s').unwrap_or(text);
        match number.parse() {
            Ok(seconds) if (0.0..=2_592_000.0).contains(&seconds) => Ok(Self(seconds)),
            _ => Err(format!("'{text}' is not a time in seconds, as 60")),
        }
    }
}

/// A whole number within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int<const LEAST: u64, const MOST: u64>(pub u64);

impl<const LEAST: u64, const MOST: u64> FromStr for Int<LEAST, MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: Option<u64> = text.parse().ok();
        number
            .filter(|number| (LEAST..=MOST).contains(number))
            .map(Self)
            .ok_or_else(|| format!("'{text}' is not a whole number from {LEAST} to {MOST}"))
    }
}

/// Defines a number that must be within limits.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident($kind:ty), $within:expr, $help:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name(pub $kind);

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let is_within: fn($kind) -> bool = $within;
                let number: Option<$kind> = text.parse().ok();
                let number = number.filter(|&number| is_within(number));
                number.map(Self).ok_or_else(|| format!("'{text}' is not {}", $help))
            }
        }
    };
}

number!(
    /// A number of epochs; 0 for none.
    Epochs(f64), |epochs| (0.0..=1e6).contains(&epochs), "a number of epochs, 0 or above, as 5 or 0.5"
);
number!(
    /// A number of epochs above 0.
    SomeEpochs(f64), |epochs| epochs > 0.0 && epochs <= 1e6, "a number of epochs above 0, as 5 or 0.5"
);
number!(
    /// A learning rate or a penalty.
    Rate(f32), |rate| rate.is_finite() && rate >= 0.0, "a number, 0 or above, as 0.01"
);
number!(
    /// A part of a whole.
    Fraction(f32), |fraction| (0.0..1.0).contains(&fraction), "a number from 0 up to but not including 1, as 0.1"
);
number!(
    /// A size in MB.
    Megabytes(f64), |size| size > 0.0 && size <= 1e6, "a number of MB above 0, as 25"
);

/// A choice between yes and no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YesNo(pub bool);

impl FromStr for YesNo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "yes" => Ok(Self(true)),
            "no" => Ok(Self(false)),
            _ => Err(format!("'{text}' is neither yes nor no; use yes or no")),
        }
    }
}

/// Height and width of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |text: &str| text.parse().ok().filter(|side| (1..=MAX_SIDE).contains(side));
        text.split_once('x')
            .and_then(|(height, width)| Some(Self { height: side(height)?, width: side(width)? }))
            .ok_or_else(|| format!("a size is HxW, as 224x224, with sides from 1 to {MAX_SIDE}"))
    }
}

impl From<Size> for (usize, usize) {
    fn from(size: Size) -> Self {
        (size.height, size.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_two_sides_and_nothing_else() {
        assert_eq!("224x192".parse(), Ok(Size { height: 224, width: 192 }));
        for bad in ["", "224", "224x", "x224", "0x32", "32x32x3", "-1x5", "99999x1", "32*32"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_have_limits_and_say_them() {
        assert_eq!("1,1024".parse::<List<Int<1, 1024>>>(), Ok(List(vec![Int(1), Int(1024)])));
        let said = "8,1025".parse::<List<Int<1, 1024>>>().expect_err("too many");
        assert_eq!(said, "'1025' is not a whole number from 1 to 1024");
        for bad in ["", "-1", "nan", "inf", "1.5"] {
            assert!(bad.parse::<Fraction>().is_err(), "{bad}");
        }
        assert!("0".parse::<SomeEpochs>().is_err() && "0".parse::<Epochs>().is_ok());
    }

    #[test]
    fn a_file_says_the_same_as_the_command_line() {
        #[derive(serde::Deserialize)]
        struct File {
            workers: List<Int<1, 9>>,
            rate: List<Rate>,
            overlap: List<YesNo>,
        }
        let read = |text: &str| toml::from_str::<File>(text);
        let File { workers, rate, overlap } =
            read("workers = 2\nrate = [0.1, 1]\noverlap = [true, \"no\"]").expect("a good file");
        assert_eq!(workers, "2".parse().expect("a list"));
        assert_eq!(rate, "0.1,1".parse().expect("a list"));
        assert_eq!(overlap, "yes,no".parse().expect("a list"));
        for bad in ["0", "[]", "{ a = 1 }", "[[1]]", "1979-05-27"] {
            assert!(read(&format!("rate = 1\noverlap = true\nworkers = {bad}")).is_err(), "{bad}");
        }
    }
}
