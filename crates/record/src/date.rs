//! Dates, for people.

use crate::Nanos;

const DAY: u64 = 24 * 60 * 60;

/// The date of a moment since the beginning of 1970, in UTC, as RFC 3339 writes it: `2026-11-16T08:33:34Z`.
pub fn date(unix: Nanos) -> String {
    let seconds = unix.0 / 1_000_000_000;
    let (year, month, day) = civil(seconds / DAY);
    let of_day = seconds % DAY;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days since 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms"). Years are counted from March on, so that a leap day is the last of its year, and in eras of 400 years, all
/// of the same length.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    // Days from 0000-03-01 to 1970-01-01.
    let days = days + 719_468;
    let of_era = days % ERA;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * (days / ERA) + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_the_dates_that_gnu_date_gives_them() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (946_684_800, "2000-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_794_818_014, "2026-11-16T08:33:34Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (18_446_744_073, "2554-07-21T23:34:33Z"),
        ] {
            assert_eq!(date(Nanos(seconds * 1_000_000_000)), expected);
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut last = civil(0);
        for days in 1..=146_097 {
            let (year, month, day) = civil(days);
            let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
            let february = if leap { 29 } else { 28 };
            let length =
                |month: u64| [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month as usize - 1];
            let next = match last {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == length(month) => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
            assert_eq!((year, month, day), next);
            last = next;
        }
    }
}
