//! Parses numbers exactly.

/// Limit for times and durations: about 146 years.
const FAR: i64 = 1 << 62;

/// Nanoseconds of a token in microseconds: exact to the nanosecond for decimals, which a double could not hold.
pub fn parse_micros(token: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(token).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let rounded = || {
        let nanos = 1e3 * parse_double(token)?;
        (nanos.abs() < FAR as f64).then_some(nanos.round() as i64)
    };
    if !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return rounded();
    }
    let Ok(micros) = whole.parse::<i64>() else { return rounded() };
    let digit = |at: usize| part.as_bytes().get(at).map_or(0, |digit| i64::from(digit - b'0'));
    let part = 100 * digit(0) + 10 * digit(1) + digit(2) + i64::from(digit(3) >= 5);
    let nanos = micros.checked_mul(1000)?.checked_add(if text.starts_with('-') { -part } else { part })?;
    (-FAR + 1..FAR).contains(&nanos).then_some(nanos)
}

/// A whole number that is not negative; `12.0` is one.
pub fn parse_whole(token: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(token).ok()?;
    text.parse().ok().or_else(|| {
        let value = parse_double(token)?;
        (value >= 0.0 && value < (1u64 << 53) as f64 && value.fract() == 0.0).then_some(value as u64)
    })
}

fn parse_double(token: &[u8]) -> Option<f64> {
    let value: f64 = std::str::from_utf8(token).ok()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_keep_their_nanoseconds() {
        let cases: [(&str, i64); 9] = [
            ("4458676522690.655", 4_458_676_522_690_655),
            ("1712195495505583.2", 1_712_195_495_505_583_200),
            ("1.2345", 1235),
            ("1.23449", 1234),
            ("0.0009999", 1),
            ("-3", -3000),
            ("7", 7000),
            ("1.7e15", 1_700_000_000_000_000_000),
            ("5.", 5000),
        ];
        for (token, nanos) in cases {
            assert_eq!(parse_micros(token.as_bytes()), Some(nanos), "{token}");
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for token in [
            "",
            "-",
            ".",
            "NaN",
            "Infinity",
            "1e300",
            "99999999999999999999",
            "4611686018427388",
            "1.2.3",
            "null",
            "0x10",
        ] {
            assert_eq!(parse_micros(token.as_bytes()), None, "{token}");
        }
    }

    #[test]
    fn whole_numbers_may_look_like_doubles() {
        assert_eq!(parse_whole(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_whole(b"12.0"), Some(12));
        assert_eq!(parse_whole(b"1e3"), Some(1000));
        for token in ["-1", "1.5", "NaN", "", "1e30"] {
            assert_eq!(parse_whole(token.as_bytes()), None, "{token}");
        }
    }
}
