//! Why a group of cases that differ only in workers has its speed-ups.

use crate::numbers::waterfall::{Cause, Part, Waterfall};
use crate::section::{Section, Topic};
use crate::words::{self, digits};
use crate::{Column, Explained, Table};

/// The least difference from one worker, as a fraction of its cost, of which percentages are given: those of a smaller one
/// are mostly noise.
const LEAST: f64 = 0.05;

/// The speed-ups reconciled, the laws, and the cost of an image by cause; `None` if there is none of it.
pub fn section(place: usize, group: &Explained) -> Option<Section> {
    let more = group.speedups.iter().filter(|speedup| speedup.workers > 1);
    let sentences: Vec<String> = more.filter_map(words::reconcile).chain(words::laws(&group.laws)).collect();
    let falls = &group.waterfalls;
    if sentences.is_empty() && falls.is_empty() {
        return None;
    }
    let mut section =
        Section::new(Topic::Group(place), format!("{}: what more workers cost", group.key.label()));
    if !falls.is_empty() {
        section = section
            .say(
                "Worker-milliseconds per image by cause, and as a percentage of the difference from one worker. Causes that \
                 make no difference are left out.",
            )
            .tables([waterfall(falls)]);
    }
    Some(section.list(sentences))
}

/// Columns for each number of workers; the more workers, the longer a narrow terminal keeps them.
fn waterfall(falls: &[Waterfall]) -> Table {
    let columns = falls.iter().enumerate().flat_map(|(place, fall)| {
        let [interval, fraction, value] = [0.0, 1000.0, 2000.0].map(|keep| keep + place as f64);
        [
            Column::numbers(format!("{} workers, ms per image", fall.workers))
                .short(format!("{} workers", fall.workers))
                .keep(value),
            Column::interval().keep(interval),
            Column::numbers(format!("% of the difference to {} workers", fall.workers))
                .short("% of diff.")
                .keep(fraction),
        ]
    });
    let mut table = Table::new([Column::words("cause")].into_iter().chain(columns));
    let whole = |name: &str, of: &dyn Fn(&Waterfall) -> [String; 3]| {
        [name.to_owned()].into_iter().chain(falls.iter().flat_map(of)).collect::<Vec<_>>()
    };
    let end = |seconds: f64| [format!("{:.3}", 1e3 * seconds), String::new(), String::new()];
    table.row(whole("1 worker", &|fall| end(fall.from_s)));
    for cause in Cause::all() {
        let part = |fall: &Waterfall| fall.parts.iter().copied().find(|part| part.cause == cause);
        let counts = |part: Part| (1e3 * part.seconds).abs() >= 0.0005;
        if !falls.iter().filter_map(part).any(counts) {
            continue;
        }
        table.row(whole(cause.name(), &|fall| {
            part(fall).map_or_else(Default::default, |part| cells(fall, part))
        }));
    }
    table.row(whole("difference", &|fall| {
        let difference = fall.to_s - fall.from_s;
        [signed_ms(difference), String::new(), percent(fall, difference)]
    }));
    table.row(whole("total", &|fall| end(fall.to_s)));
    table
}

fn cells(fall: &Waterfall, part: Part) -> [String; 3] {
    let interval = part.lo.zip(part.hi).map(|(lo, hi)| format!("{} .. {}", signed_ms(lo), signed_ms(hi)));
    [signed_ms(part.seconds), interval.unwrap_or_default(), percent(fall, part.seconds)]
}

/// A part of the difference c(N) - c(1) in percent; a dash where that is too small to be divided by, or negative.
fn percent(fall: &Waterfall, seconds: f64) -> String {
    let difference = fall.to_s - fall.from_s;
    digits((difference >= LEAST * fall.from_s).then(|| 100.0 * seconds / difference), 1)
}

fn signed_ms(seconds: f64) -> String {
    match digits(Some(1e3 * seconds), 3) {
        text if seconds > 0.0 => format!("+{text}"),
        text => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fall(to_s: f64) -> Waterfall {
        let part = |(cause, seconds)| Part { cause, seconds, lo: None, hi: None };
        let rest = to_s - 1.0 - 0.3;
        let parts = [(Cause::Computation, 0.3), (Cause::Communication, rest)];
        Waterfall { workers: 2, from_s: 1.0, to_s, parts: parts.map(part).into() }
    }

    #[test]
    fn percentages_are_of_the_difference_and_sum_to_it() {
        assert_eq!(
            waterfall(&[fall(1.5)]).to_string(),
            "cause                  2 workers  % of diff.\n\
             1 worker                1000.000\n\
             slower computation      +300.000        60.0\n\
             exposed communication   +200.000        40.0\n\
             difference              +500.000       100.0\n\
             total                   1500.000\n"
        );
    }

    #[test]
    fn a_small_or_negative_difference_has_no_percentages() {
        for to_s in [1.04, 0.9] {
            let text = waterfall(&[fall(to_s)]).to_string();
            assert!(!text.contains('%') && text.contains("+300.000"), "{text}");
        }
    }
}
