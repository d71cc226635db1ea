//! Which part of a trace is looked at.

use paceline_record::Nanos;

use crate::trace::{Kind, Name, Trace};

/// From one moment of a trace to another.
pub type Window = (Nanos, Nanos);

/// Names that a message lists.
const NAMES: usize = 8;

/// Finds the window that a user asks for: seconds since the trace's begin (`from`, `to`), or from the first begin to the
/// last end of the ranges of a name; both together narrow each other. A name is first taken as it is, then as a part of
/// one, in any case. The error says what to ask for instead.
pub fn cut(trace: &Trace, from: Option<f64>, to: Option<f64>, range: Option<&str>) -> Result<Window, String> {
    let whole = trace.extent().ok_or("the profile is empty")?;
    let (begin, end) = match range {
        Some(name) => find(trace, name)?,
        None => whole,
    };
    let length = whole.1.since(whole.0).seconds();
    let moment = |seconds: f64| match seconds.is_finite() && seconds >= 0.0 {
        true => Ok(Nanos(whole.0.0.saturating_add((seconds * 1e9).round() as u64))),
        false => Err(format!("{seconds} s is no time in a profile of {length:.3} s")),
    };
    let begin = from.map(moment).transpose()?.map_or(begin, |from| from.max(begin));
    let end = to.map(moment).transpose()?.map_or(end, |to| to.min(end));
    if begin >= end {
        return Err(format!("the window is empty: the profile lasts {length:.3} s"));
    }
    Ok((begin, end))
}

fn find(trace: &Trace, name: &str) -> Result<Window, String> {
    let texts = || (0..trace.names.len()).map(|at| trace.names.text(Name(at as u32)));
    let exact: Vec<bool> = texts().map(|text| text == name).collect();
    let wanted = name.to_lowercase();
    let part: Vec<bool> = texts().map(|text| text.to_lowercase().contains(&wanted)).collect();
    let ranges = || trace.slices.iter().filter(|slice| matches!(slice.kind, Kind::Range | Kind::Operator));
    let span = |chosen: &[bool]| {
        let chosen = ranges().filter(|slice| chosen[slice.name.0 as usize]);
        chosen.map(|slice| (slice.begin, slice.end)).reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
    };
    span(&exact).or_else(|| span(&part)).ok_or_else(|| {
        let mut names: Vec<&str> = Vec::new();
        for slice in ranges().filter(|slice| slice.kind == Kind::Range) {
            let text = trace.names.text(slice.name);
            if names.len() <= NAMES && !names.contains(&text) {
                names.push(text);
            }
        }
        let more = if names.len() > NAMES { ", ..." } else { "" };
        names.truncate(NAMES);
        match names.is_empty() {
            true => format!("no range is called {name:?}: the profile has none"),
            false => format!("no range is called {name:?}; there are {}{more}", names.join(", ")),
        }
    })
}
