//! Finds the training steps among the ranges that a program named.
//!
//! A range is a step if its name, split into words and numbers, is a word for a step, preceded only by words that
//! mean training, and followed by at most a number, or a number of a total: `step 12`, `ProfilerStep#4`,
//! `train_step`, `Iteration 3/100`, `batch_7`. `optimizer step` and `eval step 3` are not: they contain another word.
//!
//! If a program names ranges in several such ways, or on several threads, the way and thread that
//! cover the most time are used, so that the outermost win. A range inside another one is not counted. Numbers are
//! those in the names if they grow from step to step; otherwise steps are counted from 0.

use std::collections::BTreeMap;

use paceline_record::Nanos;

use crate::trace::{Kind, Slice, StepRange, Trace};

const STEP: [&str; 7] = ["step", "iteration", "iter", "batch", "minibatch", "profilerstep", "trainstep"];
const TRAINING: [&str; 4] = ["train", "training", "global", "the"];

/// A range and the number in its name.
type Numbered<'trace> = (&'trace Slice, Option<u64>);

/// Steps among the slices of `trace` that `closed` lets through, in order of their begin.
pub fn find(trace: &Trace, closed: impl Fn(usize) -> bool) -> Vec<StepRange> {
    let forms: Vec<Option<Form>> = trace.names.texts().map(form).collect();
    let mut ways: BTreeMap<(u32, &str), Vec<Numbered<'_>>> = BTreeMap::new();
    for (at, slice) in trace.slices.iter().enumerate() {
        if slice.kind == Kind::Range
            && closed(at)
            && let Some(Form { way, number }) = &forms[slice.name.0 as usize]
        {
            ways.entry((slice.track, way)).or_default().push((slice, *number));
        }
    }
    let way = ways.into_values().map(outermost).max_by_key(|way| {
        way.iter().fold(0_u64, |sum, (slice, _)| sum.saturating_add(slice.end.since(slice.begin).0))
    });
    let way = way.unwrap_or_default();
    let numbers: Option<Vec<u64>> = way.iter().map(|(_, number)| *number).collect();
    let numbers = numbers.filter(|numbers| numbers.is_sorted_by(|a, b| a < b));
    let step = |(at, (slice, _)): (usize, &Numbered<'_>)| StepRange {
        number: numbers.as_ref().map_or(at as u64, |numbers| numbers[at]),
        begin: slice.begin,
        end: slice.end,
    };
    way.iter().enumerate().map(step).collect()
}

/// Sorted, without those that begin before the previous one has ended.
fn outermost(mut way: Vec<Numbered<'_>>) -> Vec<Numbered<'_>> {
    way.sort_by_key(|(slice, _)| (slice.begin, std::cmp::Reverse(slice.end)));
    let mut end = Nanos(0);
    way.retain(|(slice, _)| {
        let free = slice.begin >= end;
        if free {
            end = slice.end;
        }
        free
    });
    way
}

/// A step's name: its pattern and its number.
#[derive(Debug, PartialEq)]
struct Form {
    way: String,
    number: Option<u64>,
}

fn form(name: &str) -> Option<Form> {
    // Longer names are not steps, and there may be very many.
    if name.len() > 64 {
        return None;
    }
    let name = name.to_lowercase();
    let words = name.split(|letter: char| !letter.is_alphanumeric());
    let pieces = words.flat_map(split_numbers).collect::<Vec<&str>>();
    let first = pieces.iter().position(|piece| !TRAINING.contains(piece))?;
    let (step, rest) = pieces[first..].split_first()?;
    let number = |piece: &str| piece.parse::<u64>().ok();
    let number = match rest {
        [] => None,
        [own] => Some(number(own)?),
        [own, all] | [own, "of", all] => Some(number(own).filter(|_| number(all).is_some())?),
        _ => return None,
    };
    let words: Vec<&str> = pieces.iter().copied().filter(|piece| piece.parse::<u64>().is_err()).collect();
    STEP.contains(step).then(|| Form { way: words.join(" "), number })
}

/// The letters and the numbers of a word.
fn split_numbers(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let digits = rest.starts_with(|letter: char| letter.is_ascii_digit());
        let end = rest.find(|letter: char| letter.is_ascii_digit() != digits).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(ranges: &[(&str, u64, u64, u32)]) -> Trace {
        let mut trace = Trace::default();
        for &(name, begin, end, track) in ranges {
            let name = trace.names.enter(name);
            trace.slices.push(Slice {
                kind: Kind::Range,
                name,
                begin: Nanos(begin),
                end: Nanos(end),
                track,
                correlation: 0,
                bytes: None,
            });
        }
        trace
    }

    fn steps(ranges: &[(&str, u64, u64, u32)]) -> Vec<(u64, u64, u64)> {
        find(&trace(ranges), |_| true).iter().map(|step| (step.number, step.begin.0, step.end.0)).collect()
    }

    #[test]
    fn names_of_steps_are_told_from_others() {
        for (name, number) in [
            ("step 12", Some(12)),
            ("ProfilerStep#4", Some(4)),
            ("Iteration 3/100", Some(3)),
            ("iter3", Some(3)),
            ("train_step", None),
            ("Training Step: 9 of 10", Some(9)),
            ("batch_7", Some(7)),
        ] {
            assert_eq!(form(name).map(|form| form.number), Some(number), "{name}");
        }
        for name in [
            "optimizer step",
            "eval step 3",
            "Optimizer.step#SGD.step",
            "stepping",
            "12",
            "",
            "step 1 2 3",
            "epoch 3",
            "step 99999999999999999999999",
            "schritt 3",
            "\u{e9}tape 3",
        ] {
            assert_eq!(form(name), None, "{name}");
        }
    }

    #[test]
    fn the_outermost_way_of_naming_steps_wins() {
        let ranges = [
            ("iteration 5", 0, 10, 0),
            ("step 1", 1, 4, 0),
            ("iteration 6", 10, 20, 0),
            ("iteration 5", 1, 9, 1),
        ];
        assert_eq!(steps(&ranges), [(5, 0, 10), (6, 10, 20)]);
    }

    #[test]
    fn a_step_within_a_step_is_not_counted_again() {
        assert_eq!(steps(&[("train_step", 0, 10, 0), ("train_step", 2, 5, 0)]), [(0, 0, 10)]);
    }

    #[test]
    fn numbers_that_begin_again_in_each_epoch_are_counted_on() {
        assert_eq!(
            steps(&[("batch 0", 0, 1, 0), ("batch 1", 1, 2, 0), ("batch 0", 2, 3, 0)]),
            [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
        );
    }
}
