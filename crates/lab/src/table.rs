//! Aligned columns of text.

use std::fmt;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table that is as wide as its cells need.
#[derive(Clone, Debug)]
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with this header and no rows.
    pub fn new<S: Into<String>>(header: impl IntoIterator<Item = (S, Align)>) -> Self {
        let (names, align) = header.into_iter().map(|(name, align)| (plain(name.into()), align)).unzip();
        Self { align, rows: vec![names] }
    }

    /// The names of the columns, and their alignment.
    pub fn header(&self) -> impl Iterator<Item = (&str, Align)> {
        self.rows.iter().take(1).flatten().map(String::as_str).zip(self.align.iter().copied())
    }

    /// The rows below the header.
    pub fn rows(&self) -> impl Iterator<Item = &[String]> {
        self.rows.iter().skip(1).map(Vec::as_slice)
    }

    /// Adds a row. If it has fewer cells than the header, its last cell may extend to the right.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| plain(cell.into())).collect());
    }
}

/// Foreign text must not break a line or control a terminal.
fn plain(cell: String) -> String {
    if cell.contains(char::is_control) { cell.replace(char::is_control, " ") } else { cell }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.align.len();
        let mut widths = vec![0; columns];
        for row in &self.rows {
            let fixed = if row.len() < columns { row.len() - 1 } else { columns };
            for (width, cell) in widths.iter_mut().zip(&row[..fixed]) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for (index, cell) in row.iter().enumerate() {
                let width = widths[index];
                let gap = if index == 0 { "" } else { "  " };
                let runs_on = index + 1 == row.len() && row.len() < columns;
                match self.align[index] {
                    Align::Right if !runs_on => line.push_str(&format!("{gap}{cell:>width$}")),
                    _ => line.push_str(&format!("{gap}{cell:<width$}")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new([("name", Align::Left), ("n", Align::Right)]);
        table.row(["resnet50", "1"]);
        table.row(["vgg", "1000"]);
        assert_eq!(table.to_string(), "name         n\nresnet50     1\nvgg       1000\n");
    }

    #[test]
    fn no_cell_breaks_its_line_or_steers_a_terminal() {
        let mut table = Table::new([("a\u{1b}[2J", Align::Left)]);
        table.row(["x\ny"]);
        assert_eq!(table.to_string(), "a [2J\nx y\n");
    }

    #[test]
    fn a_short_row_runs_on_and_widens_nothing() {
        let mut table = Table::new([("a", Align::Left), ("b", Align::Right), ("c", Align::Right)]);
        table.row(["x", "1", "2"]);
        table.row(["y", "a reason that is long"]);
        assert_eq!(table.to_string(), "a  b  c\nx  1  2\ny  a reason that is long\n");
    }
}
