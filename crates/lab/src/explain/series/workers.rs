//! Where a table has its worker counts, and how many a cell names.

use super::{figure, meaning, same_name};
use crate::explain::figure::Cell;
use crate::explain::meaning::Meaning;
use crate::explain::page::{Form, Grid};

/// The name of the worker column of a transposed table.
pub(super) const HEADER_ROW: &str = "header row";

/// Most workers that a row may have.
const MOST_WORKERS: f64 = 1e7;

/// Most workers that a node may have.
const MOST_ON_A_NODE: f64 = 256.0;

/// Workers of a cell or heading: `4`, `GPU (4)`, `4 GPUs`, `1 (local)`.
pub(super) fn count(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| c.is_ascii_digit())?;
    let before = text[..digits].trim().trim_end_matches(['(', '=', ':', ' ']);
    if !(before.is_empty() || matches!(before, "*" | "**" | "x") || meaning::is_workers(before)) {
        return None;
    }
    let (figure, rest) = figure::number(&text[digits..])?;
    let rest = rest.trim().trim_start_matches(')').trim();
    // 2 x 4, or 2 nodes x 4 GPUs: each of the nodes has as many.
    let times = rest.split_once(['x', '×', '*']).filter(|(nodes, _)| {
        nodes.trim().is_empty() || ["node", "machine", "host"].contains(&nodes.trim().trim_end_matches('s'))
    });
    let each = times.and_then(|(_, each)| figure::number(each.trim())).filter(|(each, rest)| {
        let whole = each.value >= 1.0 && each.value.fract() == 0.0 && each.value <= MOST_ON_A_NODE;
        whole && (rest.trim().is_empty() || meaning::is_workers(rest))
    });
    if let Some((each, _)) = each {
        let all = figure.value * each.value;
        let whole = figure.value >= 1.0 && figure.value.fract() == 0.0 && all <= MOST_WORKERS;
        return whole.then_some(all as u64);
    }
    let rest = rest.trim_matches('*').trim();
    let named =
        rest.is_empty() || rest.starts_with('(') || rest.starts_with('x') || meaning::is_workers(rest);
    let whole = figure.value >= 1.0 && figure.value.fract() == 0.0 && figure.value <= MOST_WORKERS;
    (named && whole).then_some(figure.value as u64)
}

/// Whether worker counts are in the header and measures in the rows.
pub(super) fn is_transposed(grid: &Grid, map: &[(String, Meaning)]) -> bool {
    let counts: Option<Vec<u64>> = grid.header[1..].iter().map(|name| count(name)).collect();
    let rising = counts.is_some_and(|counts| counts.windows(2).all(|pair| pair[0] < pair[1]));
    let below = grid.rows.iter().all(|row| figure::read(&row[0]) == Cell::Words);
    let told = map.iter().any(|(name, meaning)| {
        *meaning == Meaning::Workers && grid.header.iter().any(|heading| same_name(heading, name))
    });
    rising && below && !told
}

pub(super) fn transpose(grid: &Grid) -> Grid {
    let mut header = vec![HEADER_ROW.to_owned()];
    header.extend(grid.rows.iter().map(|row| row[0].clone()));
    let rows = (1..grid.header.len()).map(|at| {
        let mut row = vec![grid.header[at].clone()];
        row.extend(grid.rows.iter().map(|cells| cells[at].clone()));
        row
    });
    Grid { form: grid.form, rows: rows.collect(), header }
}

/// Merges a column of nodes and one of workers per node into their product.
pub(super) fn multiply_nodes(mut grid: Grid, map: &[(String, Meaning)]) -> Grid {
    let find = |is: &dyn Fn(&str) -> bool| {
        let free = |name: &String| !map.iter().any(|(heading, _)| same_name(heading, name));
        grid.header.iter().position(|name| free(name) && is(&name.to_lowercase()))
    };
    let on_each =
        |name: &str| name.contains("per node") || name.contains("/node") || name.contains("per machine");
    let each = find(&|name| on_each(name) && meaning::guess(name, None) == Some(Meaning::Workers));
    let nodes = find(&|name| {
        !on_each(name)
            && ["node", "machine", "host"].iter().any(|word| name.trim_end_matches('s').ends_with(word))
    });
    let Some((nodes, each)) = nodes.zip(each) else { return grid };
    let all = find(&|name| !on_each(name) && meaning::guess(name, None) == Some(Meaning::Workers));
    let product = |row: &Vec<String>| Some((count(&row[nodes])? * count(&row[each])?).to_string());
    if all.is_some_and(|all| all != nodes) {
        return grid;
    }
    let products: Option<Vec<String>> = grid.rows.iter().map(product).collect();
    let Some(products) = products else { return grid };
    grid.header[nodes] = format!("{} x {}", grid.header[nodes], grid.header[each]);
    grid.header.remove(each);
    for (row, product) in grid.rows.iter_mut().zip(products) {
        row[nodes] = product;
        row.remove(each);
    }
    grid
}

pub(super) fn workers_column(grid: &Grid, told: impl Fn(&str) -> Option<Meaning>) -> Option<usize> {
    let columns = 0..grid.header.len();
    if let Some(at) = columns.clone().find(|at| told(&grid.header[*at]) == Some(Meaning::Workers)) {
        return Some(at);
    }
    let counted = |at: &usize| grid.rows.iter().any(|row| count(&row[*at]).is_some());
    let named = columns.clone().find(|at| {
        told(&grid.header[*at]).is_none()
            && meaning::guess(&grid.header[*at], None) == Some(Meaning::Workers)
            && counted(at)
    });
    // A first column without a name that counts up from one.
    let counts: Option<Vec<u64>> = grid.rows.iter().map(|row| count(&row[0])).collect();
    let rising =
        counts.is_some_and(|counts| counts[0] == 1 && counts.windows(2).all(|pair| pair[0] < pair[1]));
    let unnamed = grid.header[0].trim().is_empty() && rising && grid.form != Form::Aligned;
    named.or(unnamed.then_some(0))
}
