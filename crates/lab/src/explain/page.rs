//! Splits a text into headings, paragraphs and tables.
//!
//! Tables are Markdown (`|`), tab-separated, comma- or semicolon-separated, or aligned by runs of spaces.

use std::rc::Rc;

use super::figure::{self, Cell};

/// Most columns of a table that is read.
pub const MOST_COLUMNS: usize = 256;
/// Most rows of a table that is read.
pub const MOST_ROWS: usize = 10_000;

/// Most tables of a text that are read.
pub const MOST_TABLES: usize = 500;
/// Longest line that may belong to a table, in bytes.
const LONGEST_LINE: usize = 1 << 16;
/// Lines that are inspected to recognise a table.
const BEGINNING: usize = 8;
/// Letters of a heading that are kept.
const LONGEST_HEADING: usize = 100;

/// A text split into blocks.
#[derive(Debug, Default)]
pub struct Page {
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
    /// Warnings, one sentence each.
    pub warnings: Vec<String>,
}

/// A piece of a page.
#[derive(Debug)]
pub struct Block {
    /// Its first line, from 1.
    pub line: usize,
    /// The headings above it, outermost first.
    pub headings: Rc<[String]>,
    /// What it is.
    pub content: Content,
}

/// What a piece is.
#[derive(Debug)]
pub enum Content {
    /// A paragraph, or an item of a list.
    Paragraph(String),
    /// A table.
    Table(Grid),
}

/// How the cells of a table are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By bars.
    Markdown,
    /// By tabs.
    Tabs,
    /// By this character.
    Separated(char),
    /// By two or more spaces, or by single ones if all cells are numbers.
    Aligned,
}

/// Cells as text: a header, and rows of the same length.
#[derive(Clone, Debug)]
pub struct Grid {
    /// How the cells were separated.
    pub form: Form,
    /// The first row.
    pub header: Vec<String>,
    /// The others.
    pub rows: Vec<Vec<String>>,
}

/// Splits a text.
pub fn read(text: &str) -> Page {
    let lines: Vec<&str> = text.lines().collect();
    let mut reader = Reader::default();
    let mut at = 0;
    while at < lines.len() {
        at += reader.take(&lines[at..], at + 1);
    }
    reader.end_paragraph();
    reader.page
}

#[derive(Default)]
struct Reader {
    page: Page,
    levels: Vec<usize>,
    headings: Rc<[String]>,
    tables: usize,
    paragraph: Option<(usize, String)>,
}

impl Reader {
    /// Takes the block at the start of the lines; returns its number of lines.
    fn take(&mut self, lines: &[&str], number: usize) -> usize {
        let line = lines[0].trim();
        if line.is_empty() || line.starts_with("```") {
            self.end_paragraph();
            return 1;
        }
        if let Some((level, title)) = heading(line) {
            self.end_paragraph();
            self.open(level, title);
            return 1;
        }
        if let Some(level) = lines.get(1).and_then(|next| underline(next)).filter(|_| !line.contains('|')) {
            self.end_paragraph();
            self.open(level, line);
            return 2;
        }
        if let Some((grid, taken)) = table(lines) {
            self.end_paragraph();
            self.table(grid, number);
            return taken;
        }
        let item = ["- ", "* ", "+ "].iter().find_map(|mark| line.strip_prefix(mark));
        if item.is_some() {
            self.end_paragraph();
        }
        let text = item.unwrap_or(line);
        match &mut self.paragraph {
            Some((_, paragraph)) => {
                paragraph.push('\n');
                paragraph.push_str(text);
            }
            None => self.paragraph = Some((number, text.into())),
        }
        1
    }

    fn open(&mut self, level: usize, title: &str) {
        let above = self.levels.iter().take_while(|above| **above < level).count();
        self.levels.truncate(above);
        self.levels.push(level);
        let title = title.trim().trim_matches(['#', '*', '`', ' ']).chars().take(LONGEST_HEADING).collect();
        self.headings = self.headings[..above].iter().cloned().chain([title]).collect();
    }

    fn push(&mut self, line: usize, content: Content) {
        self.page.blocks.push(Block { line, headings: self.headings.clone(), content });
    }

    fn end_paragraph(&mut self) {
        if let Some((line, text)) = self.paragraph.take() {
            self.push(line, Content::Paragraph(text));
        }
    }

    fn table(&mut self, mut grid: Grid, line: usize) {
        let warnings = &mut self.page.warnings;
        self.tables += 1;
        if self.tables > MOST_TABLES {
            if self.tables == MOST_TABLES + 1 {
                warnings
                    .push(format!("tables from line {line} on are skipped: at most {MOST_TABLES} are read"));
            }
            return;
        }
        if grid.header.len() > MOST_COLUMNS {
            warnings.push(format!(
                "the table on line {line} has {} columns and is skipped: at most {MOST_COLUMNS} are read",
                grid.header.len()
            ));
            return;
        }
        if grid.rows.len() > MOST_ROWS {
            warnings.push(format!(
                "the table on line {line} has {} rows: only the first {MOST_ROWS} are read",
                grid.rows.len()
            ));
            grid.rows.truncate(MOST_ROWS);
        }
        let columns = grid.header.len();
        let ragged = grid.rows.iter().filter(|row| row.len() != columns).count();
        if ragged > 0 {
            warnings.push(format!(
                "the table on line {line} is ragged: {ragged} of its rows have more or fewer cells than its {columns} columns"
            ));
            grid.rows.iter_mut().for_each(|row| row.resize(columns, String::new()));
        }
        self.push(line, Content::Table(grid));
    }
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let level = line.len() - line.trim_start_matches('#').len();
    let title = line[level..].strip_prefix(' ')?;
    ((1..=6).contains(&level) && !title.trim().is_empty()).then_some((level, title))
}

fn underline(line: &str) -> Option<usize> {
    let line = line.trim_end();
    let all = |mark: char| line.len() >= 3 && line.chars().all(|c| c == mark);
    if all('=') { Some(1) } else { all('-').then_some(2) }
}

/// The table at the start of the lines, and its number of lines.
fn table(lines: &[&str]) -> Option<(Grid, usize)> {
    markdown(lines)
        .or_else(|| tabs(lines))
        .or_else(|| separated(lines))
        .or_else(|| aligned(lines))
        .or_else(|| spaced(lines))
}

fn is_rule(line: &str) -> bool {
    line.contains('-') && line.chars().all(|c| matches!(c, '-' | '|' | ':' | '+' | '=' | ' ' | '\t'))
}

fn markdown(lines: &[&str]) -> Option<(Grid, usize)> {
    let starts = |line: &str| line.trim_start().starts_with(['|', '+']);
    let ruled = lines.get(1).is_some_and(|next| is_rule(next) && next.contains('|'));
    let drawn = starts(lines[0]) && lines.get(1).is_some_and(|next| starts(next));
    if !(lines[0].contains('|') && ruled || drawn) {
        return None;
    }
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim();
        let line = line.strip_prefix('|').unwrap_or(line);
        let line = line.strip_suffix('|').filter(|line| !line.ends_with('\\')).unwrap_or(line);
        let line = line.replace("\\|", "\u{1}");
        line.split('|').map(|cell| cell.replace('\u{1}', "|").trim().into()).collect()
    };
    let belongs = |line: &str| line.contains('|') || starts(line) && is_rule(line);
    gather(lines, belongs, cells, |_| true).map(|found| found.grid(Form::Markdown))
}

fn tabs(lines: &[&str]) -> Option<(Grid, usize)> {
    let cells = |line: &str| line.split('\t').map(|cell| cell.trim().into()).collect();
    // In indented text, nothing precedes the tab.
    let indented = |rows: &[Vec<String>]| rows.iter().all(|row| row[0].is_empty());
    let belongs = |line: &str| line.trim_end().contains('\t');
    gather(lines, belongs, cells, |rows| !indented(rows)).map(|found| found.grid(Form::Tabs))
}

fn separated(lines: &[&str]) -> Option<(Grid, usize)> {
    let mark = [';', ','].into_iter().find(|&mark| {
        let count = |line: &str| split_quoted(line, mark).len();
        count(lines[0]) > 1 && lines.get(1).is_some_and(|next| count(next) == count(lines[0]))
    })?;
    let likely = |rows: &[Vec<String>]| {
        let even = rows.iter().filter(|row| row.len() == rows[0].len()).count();
        2 * even >= rows.len() && mostly_numbers(rows)
    };
    let cells = |line: &str| split_quoted(line, mark);
    // A number alone is a row with missing cells.
    let belongs = |line: &str| line.contains(mark) || matches!(figure::read(line), Cell::Number(..));
    let found = gather(lines, belongs, cells, likely);
    found.map(|found| found.grid(Form::Separated(mark)))
}

fn aligned(lines: &[&str]) -> Option<(Grid, usize)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(Into::into).collect()
    };
    let columns = cells(lines[0]).len();
    let belongs = |line: &str| is_rule(line) || cells(line).len() == columns;
    gather(lines, belongs, cells, mostly_numbers).map(|found| found.grid(Form::Aligned))
}

/// Columns separated by single spaces: only numbers below a header of as many words are certainly a table.
fn spaced(lines: &[&str]) -> Option<(Grid, usize)> {
    let cells = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    let columns = cells(lines[0]).len();
    let numbers = |row: &Vec<String>| row.iter().all(|cell| !matches!(figure::read(cell), Cell::Words));
    let likely = |rows: &[Vec<String>]| rows.len() > 2 && !numbers(&rows[0]) && rows[1..].iter().all(numbers);
    gather(lines, |line| cells(line).len() == columns, cells, likely).map(|found| found.grid(Form::Aligned))
}

/// The rows in the first lines, as far as lines belong to the table. Whether it is a table is decided from its
/// beginning, so that other long text is skipped quickly.
fn gather(
    lines: &[&str],
    belongs: impl Fn(&str) -> bool,
    cells: impl Fn(&str) -> Vec<String>,
    likely: impl Fn(&[Vec<String>]) -> bool,
) -> Option<Gathered> {
    let held = |most: usize| {
        lines.iter().take(most).take_while(|line| line.len() <= LONGEST_LINE && belongs(line)).count()
    };
    let read = |taken: usize| -> Vec<Vec<String>> {
        lines[..taken].iter().filter(|line| !is_rule(line)).map(|line| cells(line)).collect()
    };
    let first = read(held(BEGINNING));
    if first.len() < 2 || first[0].len() < 2 || !likely(&first) {
        return None;
    }
    let taken = held(lines.len());
    Some(Gathered { rows: read(taken), lines: taken })
}

/// Rows of cells, the header first, and the number of lines they took.
struct Gathered {
    rows: Vec<Vec<String>>,
    lines: usize,
}

impl Gathered {
    fn grid(mut self, form: Form) -> (Grid, usize) {
        let header = self.rows.remove(0);
        (Grid { form, header, rows: self.rows }, self.lines)
    }
}

/// Fields of a line; a quoted one may contain the separator and doubled quotes (RFC 4180).
fn split_quoted(line: &str, mark: char) -> Vec<String> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.trim().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' => quoted = !quoted,
            _ if letter == mark && !quoted => fields.push(std::mem::take(&mut field).trim().into()),
            _ => field.push(letter),
        }
    }
    fields.push(field.trim().into());
    fields
}

/// Whether at least half of the cells below the header are numbers or empty; prose has commas, too.
fn mostly_numbers(rows: &[Vec<String>]) -> bool {
    let cells = || rows.iter().skip(1).flatten();
    let words = cells().filter(|cell| figure::read(cell) == Cell::Words).count();
    2 * words <= cells().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grids(text: &str) -> Vec<Grid> {
        let blocks = read(text).blocks.into_iter();
        blocks
            .filter_map(|block| if let Content::Table(grid) = block.content { Some(grid) } else { None })
            .collect()
    }

    #[test]
    fn every_form_gives_the_same_cells() {
        let forms = [
            "| GPUs | time |\n|--|:-:|\n| 1 | 10.5 |\n| 2 | 6 |",
            "GPUs | time\n--- | ---\n1 | 10.5\n2 | 6",
            "GPUs\ttime\n1\t10.5\n2\t6\n",
            "GPUs,time\n1,10.5\n2,6",
            "\"GPUs\";\"time\"\r\n1;10.5\r\n2;6\r\n",
            "GPUs  time\n   1  10.5\n   2     6\n",
            "+------+------+\n| GPUs | time |\n+------+------+\n| 1 | 10.5 |\n| 2 | 6 |\n+------+------+",
        ];
        for form in forms {
            let grids = grids(form);
            assert_eq!(grids.len(), 1, "{form}");
            assert_eq!(grids[0].header, ["GPUs", "time"], "{form}");
            assert_eq!(grids[0].rows, [["1", "10.5"], ["2", "6"]], "{form}");
        }
    }

    #[test]
    fn a_table_stands_under_its_headings_and_prose_stays_prose() {
        let text = "Title\n=====\n\n## A\n\nOne, two, three,\nfour, five, six.\n\n\tindented = code\n\tmore = code\n\n### B\nn,s\n1,2\n## C\n- item one\n- item two";
        let page = read(text);
        let table =
            page.blocks.iter().find(|block| matches!(block.content, Content::Table(_))).expect("a table");
        assert_eq!(*table.headings, ["Title", "A", "B"]);
        assert_eq!(table.line, 13);
        let paragraphs = page.blocks.iter().filter(|block| matches!(block.content, Content::Paragraph(_)));
        assert_eq!(paragraphs.count(), 4);
    }

    #[test]
    fn ragged_and_huge_tables_are_warned_of() {
        let page = read("| a | b |\n|--|--|\n| 1 |\n| 1 | 2 | 3 |");
        assert!(page.warnings[0].contains("ragged: 2 of its rows"), "{:?}", page.warnings);
        let page = read("GPUs,images/s\n1,100\n2\n4,300,5,6\n");
        assert!(page.warnings[0].contains("ragged: 2 of its rows"), "{:?}", page.warnings);
        let wide = vec!["1"; 10_000].join("\t");
        let page = read(&format!("{wide}\n{wide}"));
        assert!(page.warnings[0].contains("10000 columns"), "{:?}", page.warnings);
        assert!(page.blocks.is_empty());
    }

    #[test]
    fn a_row_that_is_too_short_does_not_end_a_table() {
        let grids = grids("GPUs,images/s\n1,100\n2\n4,300,5,6\n");
        assert_eq!(grids[0].rows, [["1", "100"], ["2", ""], ["4", "300"]]);
    }

    #[test]
    fn bars_and_quotes_may_stand_in_cells() {
        assert_eq!(grids("| a \\| b | c |\n|--|--|\n| 1 | 2 |")[0].header, ["a | b", "c"]);
        assert_eq!(grids("\"a, \"\"b\"\"\",c\n1,2")[0].header, ["a, \"b\"", "c"]);
    }
}
