//! A column of a table as figures with a meaning.

use super::super::figure::{self, Cell, Figure, SPREAD, Unit};
use super::super::layout::{Long, Raw};
use super::super::meaning::{self, Heading, Meaning};
use super::{Column, Ground};
use crate::names;

/// Reads the cells by what the heading and their units say, and notes in `warnings` those that cannot be what they should.
pub fn read(raw: &Raw, long: &Long, warnings: &mut Vec<String>) -> Column {
    let Raw { name, cells, told, under } = raw;
    let read: Vec<Cell> = cells.iter().map(|cell| figure::read(cell)).collect();
    let unit = read.iter().find_map(|cell| if let Cell::Number(_, unit) = cell { *unit } else { None });
    let ratio = read.iter().any(|cell| matches!(cell, Cell::Ratio(..)));
    // Beside each other, `min` and `max` are the ends of a range, not a minute and a measure.
    let has = |name: &str, wanted: &str| meaning::words(name).iter().any(|word| word == wanted);
    let beside = |wanted: &str| long.columns.iter().any(|other| has(&other.name, wanted));
    let ends = has(name, "min") && beside("max") || has(name, "max") && beside("min");
    let spoken = &if ends { name.to_lowercase().replace("min", "minimum") } else { name.clone() };
    let Heading { meaning, qualifier } = meaning::read(spoken, unit);
    let meaning = meaning.filter(|_| !ends);
    // `Speedup (FP32 to AMP)` compares two runs, not two numbers of workers.
    let compares = qualifier.iter().filter(|word| meaning::is_precision(word)).count() > 1;
    let meaning = meaning.filter(|_| !compares);
    let guessed = meaning
        .or_else(|| meaning::read(under.as_ref()?, unit).meaning)
        .filter(|meaning| *meaning != Meaning::Workers);
    let communicates =
        || meaning::words(spoken).iter().any(|word| word == "comm" || word.starts_with("communicat"));
    let guessed = guessed.or_else(|| (ratio && communicates()).then_some(Meaning::CommRatio));
    let meaning = told.or(guessed).map(|meaning| match meaning {
        // In percent, scaling is an efficiency unless it grows.
        Meaning::Speedup
            if unit == Some(Unit::Percent) || meaning::heading_unit(spoken) == Some(Unit::Percent) =>
        {
            let most = (0..cells.len())
                .filter(|row| long.workers[*row].is_some())
                .max_by_key(|row| long.workers[*row]);
            let last = most.and_then(|row| {
                if let Cell::Number(figure, _) = &read[row] { Some(figure.value) } else { None }
            });
            if last.is_some_and(|last| last <= 1.1 || last > 20.0 && last <= 110.0) {
                Meaning::Efficiency
            } else {
                Meaning::Speedup
            }
        }
        other => other,
    });
    // A fraction over one and a half can only be meant in percent, and so are all of its column; one alone may be a slip.
    let numbers = || read.iter().filter(|cell| matches!(cell, Cell::Number(_, None)));
    let over = numbers().filter(|cell| matches!(cell, Cell::Number(figure, _) if figure.value > 1.5)).count();
    let percent = meaning.is_some_and(Meaning::is_fraction) && over > 0 && 2 * over >= numbers().count();
    let unit = unit.or_else(|| meaning::heading_unit(spoken)).or(percent.then_some(Unit::Percent));
    let timed = meaning.is_some_and(Meaning::is_time);
    let rated = meaning.is_some_and(Meaning::is_rate);
    let (mut figures, mut not_understood) = (Vec::new(), Vec::new());
    for (text, cell) in cells.iter().zip(read) {
        // No time is in millions, so `M` means minutes here.
        let cell = if timed { figure::read(&text.to_lowercase()) } else { cell };
        let odd = match &cell {
            Cell::Number(_, Some(Unit::Seconds(_))) => rated,
            Cell::Words => meaning.is_some() && text.trim().starts_with(|c: char| c.is_ascii_digit()),
            _ => false,
        };
        if odd {
            not_understood.push(text);
            figures.push(None);
            continue;
        }
        figures.push(match cell {
            Cell::Number(figure, cell_unit) => Some(scale(figure, cell_unit, unit, meaning)),
            Cell::Ratio(minutes, seconds) if timed => {
                Some(Figure { value: 60.0 * minutes.value + seconds.value, half: seconds.half })
            }
            // The first number of a ratio is its scale, and exact.
            Cell::Ratio(scale, part) if scale.value > 0.0 => Some(part.times(1.0 / scale.value)),
            Cell::NotFinite => {
                warnings.push(format!(
                    "{:?} contains a value that is not a finite number; treated as missing",
                    names::clean(name)
                ));
                None
            }
            _ => None,
        });
    }
    if let [first, others @ ..] = &not_understood[..] {
        let more =
            if others.is_empty() { String::new() } else { format!(" (and {} more cells)", others.len()) };
        warnings.push(format!(
            "{:?} contains {:?}, which is not understood there{more}; treated as missing",
            names::clean(name),
            names::clean(first)
        ));
    }
    let has_spread = ends
        || cells.iter().any(|cell| cell.contains(" .. ") || SPREAD.iter().any(|sign| cell.contains(sign)));
    let ground = if told.is_some() { Ground::Given } else { Ground::Name };
    let has_unit = match meaning {
        Some(Meaning::Memory) => matches!(unit, Some(Unit::Bytes(_))),
        _ => unit.is_some() || ratio,
    };
    let is_ratio = matches!(meaning, Some(Meaning::Speedup | Meaning::Efficiency));
    Column { name: names::clean(name), meaning, ground, has_unit, has_spread, figures, is_ratio, qualifier }
}

fn scale(figure: Figure, own: Option<Unit>, shared: Option<Unit>, meaning: Option<Meaning>) -> Figure {
    match (own.or(shared), meaning) {
        (Some(Unit::Seconds(seconds)), Some(meaning)) if meaning.is_time() => figure.times(seconds),
        (Some(Unit::Bytes(bytes)), Some(Meaning::Memory)) => figure.times(bytes),
        (Some(Unit::Percent), Some(meaning)) if meaning.is_fraction() && own.is_none() => figure.times(0.01),
        _ => figure,
    }
}
