//! Tables: what their columns are called, and which of them there is room for. Every form of a report renders the same table.

use std::fmt;

use textwrap::core::display_width;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Space between columns.
const GAP: usize = 2;

/// The least width that the first column keeps where there is little room.
const NARROWEST: usize = 16;

/// The least width of a column whose cells are broken into lines.
const LEAST_WRAPPED: usize = 26;

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its full name.
    pub name: String,
    short: Option<String>,
    /// The heading that it shares with its neighbours, and its name below it.
    pub heading: Option<[&'static str; 2]>,
    /// Its alignment.
    pub align: Align,
    keep: f64,
    /// Whether it is the interval of the column before it.
    pub is_interval: bool,
    wraps: bool,
}

impl Column {
    /// A column of words.
    pub fn words(name: impl Into<String>) -> Self {
        Self::from((name, Align::Left))
    }

    /// A column of numbers.
    pub fn numbers(name: impl Into<String>) -> Self {
        Self::from((name, Align::Right))
    }

    /// The 95 % intervals of the column before it.
    pub fn interval() -> Self {
        Self { is_interval: true, ..Self::numbers("95 % interval") }
    }

    /// Its name on a terminal, if that is shorter.
    pub fn short(mut self, name: impl Into<String>) -> Self {
        self.short = Some(plain(name.into()));
        self
    }

    /// The heading that it shares with its neighbours, and its name below it; for pages with headers of two lines.
    pub fn under(mut self, heading: &'static str, name: &'static str) -> Self {
        self.heading = Some([heading, name]);
        self
    }

    /// How much it matters: where there is no room, the column with the least is left out first; of equals, the last.
    pub fn keep(mut self, keep: f64) -> Self {
        self.keep = keep;
        self
    }

    /// Breaks its cells into lines where there is little room; only for the last column.
    pub fn wrapping(mut self) -> Self {
        self.wraps = true;
        self
    }

    /// Keeps it however little room there is.
    pub fn always(self) -> Self {
        self.keep(f64::INFINITY)
    }
}

impl<S: Into<String>> From<(S, Align)> for Column {
    fn from((name, align): (S, Align)) -> Self {
        let name = plain(name.into());
        Self { name, short: None, heading: None, align, keep: 1.0, is_interval: false, wraps: false }
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its cells, from the left.
    pub cells: Vec<String>,
    /// Whether its last cell extends to the right, over columns that it has no cells for.
    pub runs_on: bool,
}

impl Row {
    /// How many of its cells stay within their columns.
    fn fixed(&self) -> usize {
        self.cells.len().saturating_sub(usize::from(self.runs_on))
    }
}

/// A table that is as wide as its cells need.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
    by_name: bool,
}

/// What of a table fits, and the columns that do not.
pub struct Fitted {
    /// The lines; the first is the header.
    pub lines: Vec<String>,
    /// The columns that are left out for lack of room.
    pub left_out: Vec<Column>,
}

impl Table {
    /// A table with this header and no rows.
    pub fn new<C: Into<Column>>(header: impl IntoIterator<Item = C>) -> Self {
        Self { columns: header.into_iter().map(Into::into).collect(), rows: Vec::new(), by_name: false }
    }

    /// The same with other words in its header.
    pub fn reworded(mut self, reword: fn(&str) -> String) -> Self {
        for column in &mut self.columns {
            column.name = reword(&column.name);
            column.short = column.short.as_deref().map(reword);
        }
        self
    }

    /// A table of numbers behind a column of words.
    pub fn of_numbers(words: &str, numbers: &[&str]) -> Self {
        let numbers = numbers.iter().map(|name| Column::numbers(*name));
        Self::new([Column::words(words)].into_iter().chain(numbers))
    }

    /// Marks rows with the same first cell as belonging together: a page shows that cell once, above them.
    pub fn by_name(mut self) -> Self {
        self.by_name = true;
        self
    }

    /// Whether rows with the same first cell belong together.
    pub fn is_by_name(&self) -> bool {
        self.by_name
    }

    /// Its columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The rows below the header.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Adds a row. If it has fewer cells than the header, its last cell may extend to the right.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| plain(cell.into())).collect();
        let runs_on = cells.len() < self.columns.len();
        self.rows.push(Row { cells, runs_on });
    }

    /// The same without columns in which no row has a value.
    pub fn without_empty(&self) -> Self {
        let mut whole = self.rows.iter().filter(|row| !row.runs_on).peekable();
        if whole.peek().is_none() {
            return self.clone();
        }
        let rows: Vec<&Row> = whole.collect();
        let filled =
            |at: usize| at == 0 || rows.iter().any(|row| !matches!(row.cells[at].as_str(), "" | "-"));
        self.select(&(0..self.columns.len()).map(filled).collect::<Vec<_>>())
    }

    /// The same with only the columns that are marked. A cell that runs on stays.
    fn select(&self, shown: &[bool]) -> Self {
        let row = |row: &Row| {
            let last = row.cells.len().wrapping_sub(1);
            let stays = |at: usize| shown[at] || (row.runs_on && at == last);
            let cells = row.cells.iter().enumerate().filter(|&(at, _)| stays(at));
            Row { cells: cells.map(|(_, cell)| cell.clone()).collect(), runs_on: row.runs_on }
        };
        let columns = self.columns.iter().zip(shown).filter(|&(_, &shown)| shown);
        Self {
            columns: columns.map(|(column, _)| column.clone()).collect(),
            rows: self.rows.iter().map(row).collect(),
            by_name: self.by_name,
        }
    }

    /// Aligned lines of at most this width. Columns that matter least are left out until the rest fits; only cells of a column
    /// that wraps are broken.
    pub fn fit(&self, width: usize) -> Fitted {
        let filled = self.without_empty();
        let mut widths = filled.widths();
        for (width, _) in widths.iter_mut().zip(&filled.columns).filter(|(_, column)| column.wraps) {
            *width = (*width).min(LEAST_WRAPPED);
        }
        let mut shown = vec![true; widths.len()];
        let taken = |shown: &[bool], first: usize| {
            let widths = widths.iter().zip(shown).skip(1).filter(|&(_, &shown)| shown);
            first + widths.map(|(width, _)| GAP + width).sum::<usize>()
        };
        let mut first = widths.first().copied().unwrap_or(0);
        if taken(&shown, first) > width {
            first = first.min((2 * width / 5).max(NARROWEST));
        }
        let mut left_out = Vec::new();
        while taken(&shown, first) > width {
            let can_go = (1..widths.len()).filter(|&at| shown[at] && filled.columns[at].keep.is_finite());
            let keep = |at: &usize| filled.columns[*at].keep;
            let Some(least) = can_go.min_by(|a, b| keep(a).total_cmp(&keep(b)).then(b.cmp(a))) else { break };
            let with_interval = filled.columns.get(least + 1).is_some_and(|next| next.is_interval);
            for at in
                [Some(least), (with_interval && shown[least + 1]).then_some(least + 1)].into_iter().flatten()
            {
                shown[at] = false;
                left_out.push(at);
            }
        }
        left_out.sort_unstable();
        let left_out = left_out.into_iter().map(|at| filled.columns[at].clone()).collect();
        let mut table = filled.select(&shown);
        for row in &mut table.rows {
            let fixed = row.fixed();
            row.cells[..fixed].iter_mut().take(1).for_each(|name| *name = clip(name, first));
        }
        table.wrap_last(width);
        let widths = table.widths();
        for row in &mut table.rows {
            let fixed = row.fixed();
            let before: usize = widths[..fixed].iter().map(|width| width + GAP).sum();
            row.cells[fixed..].iter_mut().for_each(|cell| *cell = cut(cell, width.saturating_sub(before)));
        }
        Fitted { lines: table.lines().iter().map(|line| clip(line, width)).collect(), left_out }
    }

    /// Breaks the cells of the last column, if it wraps, into rows of their own.
    fn wrap_last(&mut self, width: usize) {
        let last = self.columns.len().saturating_sub(1);
        if !self.columns.last().is_some_and(|column| column.wraps) {
            return;
        }
        let before: usize = self.widths()[..last].iter().map(|width| width + GAP).sum();
        let room = width.saturating_sub(before).max(1);
        let rows = std::mem::take(&mut self.rows);
        self.rows = rows
            .into_iter()
            .flat_map(|row| {
                if row.runs_on {
                    return vec![row];
                }
                let lines = textwrap::wrap(&row.cells[last], room);
                let lines = lines.iter().enumerate().map(|(number, line)| {
                    let mut cells =
                        if number == 0 { row.cells.clone() } else { vec![String::new(); last + 1] };
                    cells[last] = line.to_string();
                    Row { cells, runs_on: false }
                });
                lines.collect()
            })
            .collect();
    }

    fn widths(&self) -> Vec<usize> {
        let head =
            self.columns.iter().map(|column| display_width(column.short.as_ref().unwrap_or(&column.name)));
        let mut widths: Vec<usize> = head.collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(&row.cells[..row.fixed()]) {
                *width = (*width).max(display_width(cell));
            }
        }
        widths
    }

    fn lines(&self) -> Vec<String> {
        let widths = self.widths();
        let names = self.columns.iter().map(|column| column.short.as_ref().unwrap_or(&column.name).clone());
        let head = Row { cells: names.collect(), runs_on: false };
        let line = |row: &Row| {
            let mut line = String::new();
            for (index, cell) in row.cells.iter().enumerate() {
                let gap = " ".repeat(if index == 0 { 0 } else { GAP });
                let runs_on = row.runs_on && index + 1 == row.cells.len();
                let align = self.columns.get(index).map_or(Align::Left, |column| column.align);
                let width = widths.get(index).map_or(0, |width| width.saturating_sub(display_width(cell)));
                let space = " ".repeat(width);
                match align {
                    Align::Right if !runs_on => line.extend([&gap, &space, cell.as_str()]),
                    _ => line.extend([&gap, cell.as_str(), &space]),
                }
            }
            line.trim_end().to_owned()
        };
        [&head].into_iter().chain(&self.rows).map(line).collect()
    }
}

/// Foreign text must not break a line or control a terminal.
fn plain(cell: String) -> String {
    if cell.contains(char::is_control) { cell.replace(char::is_control, " ") } else { cell }
}

/// What a text that is too long has in place of what it loses.
const CUT: &str = "..";

/// A text of at most this width; what is too long loses its end.
fn cut(text: &str, width: usize) -> String {
    match display_width(text) <= width {
        true => text.to_owned(),
        false => take(text.chars(), width.saturating_sub(CUT.len())) + CUT,
    }
}

/// A text of at most this width; what is too long loses its middle, because names differ at their ends.
fn clip(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let half = width.saturating_sub(CUT.len()).div_ceil(2);
    let head = take(text.chars(), half);
    let tail = take(text.chars().rev(), width.saturating_sub(CUT.len() + display_width(&head)));
    format!("{head}{CUT}{}", tail.chars().rev().collect::<String>())
}

/// The first letters, as many as fit.
fn take(letters: impl Iterator<Item = char>, width: usize) -> String {
    let mut text = String::new();
    for letter in letters {
        text.push(letter);
        if display_width(&text) > width {
            text.pop();
            break;
        }
    }
    text
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.without_empty().lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests;
