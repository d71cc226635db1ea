//! Makes tables long: one row per run, with its number of workers, what distinguishes it from other runs, and its measures.
//!
//! Tables have their workers in a column (`GPUs`; `nodes` and `GPUs per node`), in words of a column (`2 x V100`), or in their header
//! (`1 GPU | 2 GPUs | 8 GPUs`), which is turned.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use super::figure::{self, Cell};
use super::meaning::{self, Counts, Meaning};
use super::page::Grid;
use super::series::Column;
use crate::names;

/// The name of the workers in a table that has them in its header.
pub const HEADER: &str = "header";

/// Most workers that a row may have.
const MOST_WORKERS: u64 = 10_000_000;

/// Most workers under a heading in the singular.
const MOST_OF_ONE: u64 = 2048;

/// Headings of columns that distinguish nothing.
const NOTES: &str = "note notes comment comments remark remarks log logs link links config script command download date url timestamp \
    commit passed status";

/// A table with one row per run.
#[derive(Debug)]
pub struct Long {
    /// Heading of the workers.
    pub counted_by: String,
    /// Workers of each row; `None` if its cell does not count them.
    pub workers: Vec<Option<u64>>,
    /// What distinguishes a row from others with as many workers, as many parts for each.
    pub labels: Vec<Vec<String>>,
    /// The measures and settings.
    pub columns: Vec<Raw>,
    /// Other counts: their headings, and their numbers in each row.
    pub others: Vec<(String, Vec<Option<u64>>)>,
}

/// A column as text.
#[derive(Debug)]
pub struct Raw {
    /// Its heading.
    pub name: String,
    /// Its cells, one per row.
    pub cells: Vec<String>,
    /// Its meaning, if given.
    pub told: Option<Meaning>,
    /// Where its own heading has no measure: the heading that may have one.
    pub under: Option<String>,
}

/// A number of workers in a text.
struct Count {
    value: u64,
    /// What is counted, if a word says it.
    of: Option<Counts>,
    /// The rest of the text.
    rest: String,
}

/// Meanings that were given to headings.
pub type Told<'a> = &'a dyn Fn(&str) -> Option<Meaning>;

/// Makes a table long; an error says what is missing.
pub fn long(grid: &Grid, told: Told) -> Result<Long, String> {
    if let Some(workers) = in_columns(grid, told) {
        return Ok(rows(grid, workers, told));
    }
    turned(grid, told).ok_or_else(|| {
        let names: Vec<String> =
            grid.header.iter().take(8).map(|name| format!("{:?}", names::clean(name))).collect();
        format!(
            "none of the columns {} is the number of workers; name it with --map COLUMN=workers",
            names.join(", ")
        )
    })
}

/// The number of workers at the start of a cell: `4`, `4 GPUs`, `8x V100`, `2 nodes x 4 GPUs`, `GPU (4)`, `GPU=1,BS=96`.
fn count(text: &str) -> Option<Count> {
    let text = text.trim();
    let whole = |text: &str| -> Option<(u64, usize)> {
        let (figure, rest) = figure::number(text)?;
        let fits = figure.value >= 1.0 && figure.value.fract() == 0.0 && figure.value <= MOST_WORKERS as f64;
        fits.then_some((figure.value as u64, text.len() - rest.len()))
    };
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        let name = text.find(|c: char| !c.is_alphabetic()).filter(|end| *end > 0)?;
        let of = meaning::counts(&text[..name])?;
        let after = text[name..].trim_start().strip_prefix(['(', '=', ':'])?.trim_start();
        let (value, used) = whole(after)?;
        let rest = after[used..].trim_start_matches([')', ',', ';', ' ']).to_owned();
        return Some(Count { value, of: Some(of), rest });
    }
    let (first, used) = whole(text)?;
    let (of, after) = noun(&text[used..]);
    // `1 of 4`: some of them.
    if of.is_none() && after.trim_start().starts_with("of ") {
        return None;
    }
    // `80GB A100`, `101% of a core` and `4xlarge` count something else; `4xA10G` are devices.
    let glued = after.starts_with(|c: char| c.is_alphabetic() || c == '%');
    let times = after.strip_prefix(['x', 'X']).map(str::trim_start);
    let counts = times.is_some_and(|rest| !rest.starts_with(char::is_lowercase) || meaning::is_device(rest));
    if of.is_none() && glued && !counts {
        return None;
    }
    // Each of the nodes has as many.
    let times = after.trim_start().strip_prefix(['x', '×', '*', 'X']).filter(|_| of != Some(Counts::Devices));
    if let Some((each, used, after)) = times.and_then(|times| {
        let times = times.trim_start();
        whole(times).map(|(each, used)| (each, used, times))
    }) {
        // Without a word for what is counted, it may be a size.
        let (devices, rest) = noun(&after[used..]);
        let value = first.checked_mul(each).filter(|value| *value <= MOST_WORKERS)?;
        return Some(Count { value, of: devices.or(of.map(|_| Counts::Devices)), rest: rest.trim().into() });
    }
    let after = after.trim_start();
    // `8x V100` counts devices.
    let product =
        after.strip_prefix(['x', '×', '*']).map(str::trim_start).filter(|rest| meaning::is_device(rest));
    let of = of.or_else(|| product.map(|_| Counts::Devices));
    let rest = after
        .strip_prefix(['x', '×'])
        .filter(|rest| !rest.starts_with(char::is_alphanumeric))
        .unwrap_or(after);
    Some(Count { value: first, of, rest: rest.trim().into() })
}

/// A text without a remark in brackets at its start.
fn remark_off(text: &str) -> String {
    if text.starts_with(['(', '[']) { String::new() } else { text.to_owned() }
}

/// What the first word of a text counts, and the rest.
fn noun(text: &str) -> (Option<Counts>, &str) {
    let start = text.trim_start_matches([' ', '-', '_']);
    let end = start.find(|c: char| !c.is_alphabetic()).unwrap_or(start.len());
    match meaning::counts(&start[..end]).filter(|_| end > 0) {
        Some(of) => (Some(of), &start[end..]),
        None => (None, text),
    }
}

/// A number of workers anywhere in a heading: `fp32 8 GPUs`.
fn count_in(heading: &str) -> Option<Count> {
    let starts = heading.char_indices().filter(|(at, _)| {
        heading[..*at]
            .chars()
            .next_back()
            .is_none_or(|before| !before.is_alphanumeric() && !matches!(before, '.' | ','))
    });
    starts.map(|(at, _)| (at, &heading[at..])).find_map(|(at, text)| {
        let found = count(text).filter(|found| found.of.is_some())?;
        let compares =
            ["vs", "over", "per", "than", "to"].iter().any(|word| heading[..at].trim_end().ends_with(word));
        let rest = format!("{} {}", heading[..at].trim_end_matches(['(', '-', ' ', ',', ':']), found.rest);
        (!compares).then(|| Count { rest: rest.trim().to_owned(), ..found })
    })
}

/// Workers of each row, and the columns that they come from.
struct Counted {
    name: String,
    workers: Vec<Option<u64>>,
    rests: Vec<String>,
    used: Vec<usize>,
    /// Other columns that count.
    others: Vec<usize>,
}

/// The workers of a table that has them in a column, or in two.
fn in_columns(grid: &Grid, told: Told) -> Option<Counted> {
    let cells = |at: usize| grid.rows.iter().map(move |row| count(&row[at]));
    let counting = |at: usize| {
        2 * cells(at).flatten().count() >= grid.rows.iter().filter(|row| !row[at].is_empty()).count()
    };
    let distinct = |at: usize| cells(at).flatten().map(|count| count.value).collect::<BTreeSet<_>>().len();
    let one = |at: usize| Counted {
        name: grid.header[at].clone(),
        workers: filled(grid, at).into_iter().map(|cell| Some(count(cell)?.value)).collect(),
        rests: cells(at)
            .map(|count| count.map_or_else(String::new, |count| remark_off(&count.rest)))
            .collect(),
        used: vec![at],
        others: Vec::new(),
    };
    let columns = 0..grid.header.len();
    if let Some(at) = columns.clone().find(|at| told(&grid.header[*at]) == Some(Meaning::Workers)) {
        return Some(one(at));
    }
    let free = |at: &usize| told(&grid.header[*at]).is_none();
    // `Device` over 3070 and 3080 names products.
    let small = |at: usize| {
        let plural = meaning::words(&grid.header[at])
            .iter()
            .any(|word| word.ends_with('s') || word.starts_with("num"));
        plural || cells(at).flatten().all(|count| count.value <= MOST_OF_ONE)
    };
    let of = |wanted: Counts| -> Vec<usize> {
        columns
            .clone()
            .filter(free)
            .filter(|at| meaning::counted(&grid.header[*at]) == Some(wanted) && counting(*at) && small(*at))
            .collect()
    };
    let (devices, each, nodes) = (of(Counts::Devices), of(Counts::OnEach), of(Counts::Nodes));
    let says = |at: usize, names: &str| {
        meaning::words(&grid.header[at]).iter().any(|word| meaning::among(names, word))
    };
    let others = |used: &[usize]| -> Vec<usize> {
        nodes.iter().chain(&each).chain(&devices).copied().filter(|at| used != [*at]).collect()
    };
    let device = devices
        .iter()
        .find(|at| says(**at, "total"))
        .or(devices.iter().find(|at| says(**at, "worker workers") && distinct(**at) > 1))
        .or(devices.iter().find(|at| distinct(**at) > 1))
        .or(devices.first())
        .copied();
    if let (Some(&nodes), Some(on)) = (nodes.first(), each.first().copied().or(device)) {
        let (all, on_each) = (one(nodes), one(on));
        let pairs: Vec<(u64, u64)> =
            all.workers.iter().zip(&on_each.workers).filter_map(|(a, b)| (*a).zip(*b)).collect();
        let different = |of: &dyn Fn(&(u64, u64)) -> u64| pairs.iter().map(of).collect::<BTreeSet<_>>().len();
        let runs = pairs.iter().collect::<BTreeSet<_>>().len();
        let (totals, products) =
            (different(&|pair| pair.1), different(&|pair| pair.0.saturating_mul(pair.1)));
        // `GPUs` beside `nodes` may be all of them, or those of a node: then equal numbers mean different runs, or there are more nodes.
        let more = pairs.iter().any(|(nodes, devices)| nodes > devices);
        let each_differs = totals < runs && products == runs && different(&|pair| pair.0) > 1;
        if !each.is_empty() || more || each_differs {
            let product = |(nodes, each): (&Option<u64>, &Option<u64>)| {
                nodes.as_ref()?.checked_mul(each.as_ref().copied()?)
            };
            return Some(Counted {
                name: format!("{} x {}", grid.header[nodes], grid.header[on]),
                workers: all.workers.iter().zip(&on_each.workers).map(product).collect(),
                rests: on_each.rests,
                used: vec![nodes, on],
                others: others(&[]),
            });
        }
        return Some(Counted { used: vec![nodes, on], others: others(&[on]), ..on_each });
    }
    if let Some(at) = device.or(nodes.first().copied()).or(each.first().copied()) {
        return Some(Counted { others: others(&[at]), ..one(at) });
    }
    // Cells that say what they count.
    let named = columns.clone().filter(free).find(|at| {
        distinct(*at) > 1 && cells(*at).all(|count| count.is_some_and(|count| count.of.is_some()))
    })?;
    Some(one(named))
}

/// Whether a column has more words than numbers.
fn is_worded(grid: &Grid, at: usize) -> bool {
    let cells = || grid.rows.iter().map(|row| figure::read(&row[at]));
    cells().filter(|cell| *cell == Cell::Words).count()
        > cells().filter(|cell| matches!(cell, Cell::Number(..) | Cell::Ratio(..))).count()
}

/// The cells of a column, where a gap repeats what stands above it.
fn filled(grid: &Grid, at: usize) -> Vec<&str> {
    let mut cells = Vec::new();
    for row in &grid.rows {
        let above = cells.last().copied().unwrap_or("");
        cells.push(if row[at].is_empty() { above } else { row[at].as_str() });
    }
    cells
}

fn rows(grid: &Grid, counted: Counted, told: Told) -> Long {
    let Counted { name, workers, rests, used, others } = counted;
    let mut labels: Vec<Vec<String>> = rests.into_iter().map(|rest| vec![rest]).collect();
    let mut columns = Vec::new();
    for at in (0..grid.header.len()).filter(|at| !used.contains(at)) {
        let heading = &grid.header[at];
        let (told, worded) = (told(heading), is_worded(grid, at));
        let labels_runs = told.map_or(worded, |told| told == Meaning::Setting);
        if !labels_runs {
            let cells = grid.rows.iter().map(|row| row[at].clone()).collect();
            columns.push(Raw { name: heading.clone(), cells, told, under: None });
            continue;
        }
        if told.is_none() && meaning::words(heading).iter().any(|word| meaning::among(NOTES, word)) {
            continue;
        }
        if !worded {
            let cells = grid.rows.iter().map(|row| row[at].as_str());
            let named =
                |cell: &str| if cell.is_empty() { String::new() } else { format!("{heading} {cell}") };
            labels.iter_mut().zip(cells).for_each(|(label, cell)| label.push(named(cell)));
            continue;
        }
        // `2x RTX 3090` beside 2 GPUs is an RTX 3090, if that makes rows alike: `32x32` beside 32 GPUs is a size.
        let whole: Vec<String> = filled(grid, at).into_iter().map(str::to_owned).collect();
        let rest = whole.iter().zip(&workers).map(|(cell, workers)| {
            let repeats = count(cell).filter(|count| Some(count.value) == *workers);
            repeats.map_or_else(|| without(cell, *workers), |count| count.rest)
        });
        let rest: Vec<String> = rest.collect();
        let kinds = |cells: &[String]| cells.iter().collect::<HashSet<_>>().len();
        let cells = if kinds(&rest) < kinds(&whole) { rest } else { whole };
        labels.iter_mut().zip(cells).for_each(|(label, cell)| label.push(cell));
    }
    let counts = |at: &usize| {
        let counts = filled(grid, *at).into_iter().map(|cell| Some(count(cell)?.value)).collect();
        (grid.header[*at].clone(), counts)
    };
    Long { counted_by: name, workers, labels, columns, others: others.iter().map(counts).collect() }
}

/// A cell without the number of workers, if it is a product such as `64x8`.
fn without(cell: &str, workers: Option<u64>) -> String {
    let is = |text: &str| text.trim().parse().ok() == workers && workers.is_some();
    match cell.split_once(['x', '×', '*']) {
        Some((one, other)) if is(one) => other.trim().to_owned(),
        Some((one, other)) if is(other) => one.trim().to_owned(),
        _ => cell.to_owned(),
    }
}

/// Turns a table that has its workers in the header: each row becomes a column.
fn turned(grid: &Grid, told: Told) -> Option<Long> {
    let corner_counts = meaning::words(&grid.header[0]).iter().any(|word| meaning::counts(word).is_some());
    let plain = |heading: &String| count(heading).filter(|count| corner_counts && count.rest.is_empty());
    let heads: Vec<Option<Count>> = grid
        .header
        .iter()
        .enumerate()
        .map(|(at, heading)| count_in(heading).or_else(|| plain(heading)).filter(|_| at > 0))
        .collect();
    let counts: BTreeSet<u64> = heads.iter().flatten().map(|count| count.value).collect();
    if counts.len() < 2 {
        return None;
    }
    let first = heads.iter().position(Option::is_some)?;
    let named: Vec<Vec<&str>> = (0..first).map(|at| filled(grid, at)).collect();
    let mut rests: Vec<&str> = Vec::new();
    for count in heads.iter().flatten() {
        if !rests.contains(&count.rest.as_str()) {
            rests.push(&count.rest);
        }
    }
    let mut columns = Vec::new();
    for (row, cells) in grid.rows.iter().enumerate() {
        let label = named
            .iter()
            .map(|column| column[row])
            .filter(|label| !label.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        for rest in &rests {
            let cell = |wanted: u64| {
                let head = heads.iter().position(|head| {
                    head.as_ref().is_some_and(|head| head.value == wanted && head.rest == *rest)
                });
                head.map_or_else(String::new, |at| cells[at].clone())
            };
            let name = format!("{label} {rest}").trim().to_owned();
            let told = told(&name).or_else(|| told(&label)).or_else(|| told(&grid.header[0]));
            let under = Some(grid.header[..first].join(" "));
            columns.push(Raw { name, cells: counts.iter().map(|count| cell(*count)).collect(), told, under });
        }
    }
    let workers: Vec<Option<u64>> = counts.into_iter().map(Some).collect();
    Some(Long {
        counted_by: HEADER.into(),
        labels: vec![Vec::new(); workers.len()],
        workers,
        columns,
        others: Vec::new(),
    })
}

/// Rows that differ only in workers.
#[derive(Clone)]
pub struct Group {
    /// What distinguishes it from other groups.
    pub name: String,
    /// Its rows.
    pub rows: Vec<usize>,
}

/// Separates rows of different runs: by their labels; then, where numbers of workers repeat, by the settings that repeat least; then
/// where the numbers begin again. What still repeats are runs that were repeated.
pub fn groups(long: &Long, settings: &[&Column]) -> Vec<Group> {
    let counted: Vec<usize> = (0..long.workers.len()).filter(|row| long.workers[*row].is_some()).collect();
    // Named by the parts in which labels differ; if they do not, by the first, which says what the runs are.
    let first = counted.first().map_or(&[][..], |row| &long.labels[*row]);
    let differs: Vec<bool> = (0..first.len())
        .map(|part| counted.iter().any(|row| long.labels[*row][part] != first[part]))
        .collect();
    let name = |label: &[String]| {
        let parts = label.iter().enumerate().filter(|(_, part)| !part.is_empty());
        let telling: Vec<&str> =
            parts.clone().filter(|(at, _)| differs[*at]).map(|(_, part)| part.as_str()).collect();
        match telling.is_empty() {
            true => parts.take(1).map(|(_, part)| part.clone()).collect(),
            false => telling.join(", "),
        }
    };
    let all = Group { name: String::new(), rows: counted.clone() };
    partition(&all, |row| long.labels[row].as_slice(), name)
        .into_iter()
        .flat_map(|group| cross(long, group))
        .flat_map(|group| split(long, settings, group))
        .collect()
}

/// Separates rows by another count that does not grow with the workers: it is of what they are divided into, or of what each has.
fn cross(long: &Long, group: Group) -> Vec<Group> {
    long.others.iter().fold(vec![group], |groups, (heading, counts)| {
        let apart = |group: Group| {
            let both = group.rows.iter().filter_map(|row| long.workers[*row].zip(counts[*row]));
            let both: BTreeSet<(u64, u64)> = both.collect();
            let mut pairs = both.iter().zip(both.iter().skip(1));
            let crosses = pairs.any(|(one, more)| one.0 == more.0 || one.1 > more.1);
            let name =
                |count: Option<u64>| count.map_or_else(String::new, |count| format!("{heading} {count}"));
            if crosses { partition(&group, |row| counts[row], name) } else { vec![group] }
        };
        groups.into_iter().flat_map(apart).collect()
    })
}

/// Parts of a group, by what their rows have in common and its name.
fn partition<K: Copy + Eq + Hash>(
    group: &Group,
    key: impl Fn(usize) -> K,
    name: impl Fn(K) -> String,
) -> Vec<Group> {
    let mut parts: Vec<(K, Vec<usize>)> = Vec::new();
    let mut known: HashMap<K, usize> = HashMap::new();
    for row in &group.rows {
        let key = key(*row);
        let at = *known.entry(key).or_insert(parts.len());
        match parts.get_mut(at) {
            Some((_, rows)) => rows.push(*row),
            None => parts.push((key, vec![*row])),
        }
    }
    let named = |key: K| {
        let names = [group.name.clone(), name(key)];
        names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
    };
    parts.into_iter().map(|(key, rows)| Group { name: named(key), rows }).collect()
}

fn split(long: &Long, settings: &[&Column], group: Group) -> Vec<Group> {
    let counts =
        |group: &Group| group.rows.iter().map(|row| long.workers[*row]).collect::<BTreeSet<_>>().len();
    let mut found = vec![group];
    loop {
        let key = |(setting, divided): (&Column, bool), row: usize| {
            let workers = if divided { long.workers[row].unwrap_or(1) as f64 } else { 1.0 };
            setting.figures[row].map(|figure| (figure.value / workers).to_bits())
        };
        // Rows that repeat a number of workers, and parts, if the groups were separated.
        let judge = |way: Option<(&Column, bool)>| {
            let (mut runs, mut parts, mut scales) = (0, 0, false);
            for group in &found {
                let keyed = group.rows.iter().map(|row| (way.map(|way| key(way, *row)), long.workers[*row]));
                let pairs: HashSet<_> = keyed.collect();
                let values = pairs.iter().map(|(value, _)| value).collect::<HashSet<_>>().len();
                runs += pairs.len();
                parts += values;
                scales |= pairs.len() > values;
            }
            (found.iter().map(|group| group.rows.len()).sum::<usize>() - runs, parts, scales)
        };
        let (repeats, ..) = judge(None);
        // A batch may be that of all workers together.
        let ways = settings.iter().flat_map(|way| {
            let is_batch = way.meaning == Some(Meaning::Batch);
            std::iter::once((*way, false)).chain(is_batch.then_some((*way, true)))
        });
        let judged = ways.map(|way| (judge(Some(way)), way));
        let better = judged.filter(|((left, _, scales), _)| *scales && *left < repeats);
        let Some((_, way)) = better.min_by_key(|((left, parts, _), _)| (*left, *parts)) else { break };
        let each = if way.1 { " per worker" } else { "" };
        let name = |key: Option<u64>| {
            key.map_or_else(String::new, |bits| format!("{}{each} {}", way.0.name, f64::from_bits(bits)))
        };
        found = found.iter().flat_map(|group| partition(group, |row| key(way, row), name)).collect();
    }
    let again = |group: Group| {
        let blocks = blocks(long, &group);
        let whole = blocks.len() > 1
            && blocks
                .iter()
                .all(|block| counts(block) > 1 && long.workers[block.rows[0]] == long.workers[group.rows[0]]);
        if whole { blocks } else { vec![group] }
    };
    found.into_iter().flat_map(again).collect()
}

/// The parts of a group in each of which the number of workers grows.
fn blocks(long: &Long, group: &Group) -> Vec<Group> {
    let mut blocks: Vec<Group> = Vec::new();
    for row in &group.rows {
        match blocks
            .last_mut()
            .filter(|block| block.rows.last().is_some_and(|last| long.workers[*last] < long.workers[*row]))
        {
            Some(block) => block.rows.push(*row),
            None => {
                let name = format!("{} part {}", group.name, blocks.len() + 1).trim().to_owned();
                blocks.push(Group { name, rows: vec![*row] });
            }
        }
    }
    blocks
}
