//! Finds the tables of a text, and the headings above them.
//!
//! Tables are HTML, Markdown (`|`), tab-separated, comma- or semicolon-separated, or aligned by runs of spaces.

use std::rc::Rc;

use super::figure::{self, Cell};
use super::html;

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

/// The tables of a text.
#[derive(Debug, Default)]
pub struct Page {
    /// The tables, in order.
    pub tables: Vec<Found>,
    /// Warnings, one sentence each.
    pub warnings: Vec<String>,
}

/// A table of a page.
#[derive(Debug)]
pub struct Found {
    /// Its first line, from 1.
    pub line: usize,
    /// The headings above it, outermost first.
    pub headings: Rc<[String]>,
    /// Its cells.
    pub grid: Grid,
}

/// How the cells of a table are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By tags or bars.
    Marked,
    /// By tabs, commas, semicolons or spaces, as words of prose may be.
    Plain,
}

/// The cells of each row.
type Rows = Vec<Vec<String>>;

/// Cells as text: a header, and rows of the same length.
#[derive(Clone, Debug)]
pub struct Grid {
    /// How the cells were separated.
    pub form: Form,
    /// The first row; where it has several layers, joined.
    pub header: Vec<String>,
    /// The others.
    pub rows: Vec<Vec<String>>,
}

/// Reads the tables of a text.
pub fn read(text: &str) -> Page {
    let mut reader = Reader::default();
    let (mut rest, mut line) = (text, 1);
    while let Some((before, table, after)) = html::split(rest) {
        reader.plain(before, line);
        line += before.matches('\n').count();
        if let Some(rows) = html::rows(table) {
            let layers = rows.iter().take_while(|row| row.heads).count().max(1);
            let rows: Rows = rows.into_iter().map(|row| row.cells).collect();
            reader.table(rows, layers, Form::Marked, line);
        }
        line += table.matches('\n').count();
        rest = after;
    }
    reader.plain(rest, line);
    reader.page
}

#[derive(Default)]
struct Reader {
    page: Page,
    levels: Vec<usize>,
    headings: Rc<[String]>,
    tables: usize,
    fenced: bool,
}

impl Reader {
    /// Reads a text without HTML tables.
    fn plain(&mut self, text: &str, first: usize) {
        let lines: Vec<&str> = text.lines().collect();
        let mut at = 0;
        while at < lines.len() {
            at += self.take(&lines[at..], first + at);
        }
    }

    /// Takes what is at the start of the lines; returns its number of lines.
    fn take(&mut self, lines: &[&str], number: usize) -> usize {
        let line = lines[0].trim();
        if line.starts_with("```") {
            self.fenced = !self.fenced;
        }
        if line.is_empty() || line.starts_with("```") {
            return 1;
        }
        // In code, `#` is a comment.
        if let Some((level, title)) = heading(line).filter(|_| !self.fenced) {
            self.open(level, &title);
            return 1;
        }
        if let Some(level) = lines.get(1).and_then(|next| underline(next)).filter(|_| !line.contains('|')) {
            self.open(level, line);
            return 2;
        }
        match table(lines) {
            Some((form, rows, taken)) => {
                self.table(rows, 1, form, number);
                taken
            }
            None => 1,
        }
    }

    fn open(&mut self, level: usize, title: &str) {
        let above = self.levels.iter().take_while(|above| **above < level).count();
        self.levels.truncate(above);
        self.levels.push(level);
        let title = clean(title.trim().trim_matches(['#', ' '])).chars().take(LONGEST_HEADING).collect();
        self.headings = self.headings[..above].iter().cloned().chain([title]).collect();
    }

    fn table(&mut self, mut rows: Rows, layers: usize, form: Form, line: usize) {
        let warnings = &mut self.page.warnings;
        self.tables += 1;
        if self.tables > MOST_TABLES {
            if self.tables == MOST_TABLES + 1 {
                warnings
                    .push(format!("tables from line {line} on are skipped: at most {MOST_TABLES} are read"));
            }
            return;
        }
        let columns = rows[0].len();
        if columns > MOST_COLUMNS {
            warnings.push(format!(
                "the table on line {line} has {columns} columns and is skipped: at most {MOST_COLUMNS} are read"
            ));
            return;
        }
        if rows.len() > MOST_ROWS + 1 {
            warnings.push(format!(
                "the table on line {line} has {} rows: only the first {MOST_ROWS} are read",
                rows.len() - 1
            ));
            rows.truncate(MOST_ROWS + 1);
        }
        let ragged = rows.iter().filter(|row| row.len() != columns).count();
        if ragged > 0 {
            warnings.push(format!(
                "the table on line {line} is ragged: {ragged} of its rows have more or fewer cells than its {columns} columns"
            ));
        }
        for row in &mut rows {
            row.resize(columns, String::new());
            row.iter_mut().for_each(|cell| *cell = clean(cell));
        }
        if let Some(grid) = grid(rows, layers, form) {
            self.page.tables.push(Found { line, headings: self.headings.clone(), grid });
        }
    }
}

/// Joins the layers of a header: those that are marked as such, and rows of words below a header with gaps.
fn grid(mut rows: Rows, layers: usize, form: Form) -> Option<Grid> {
    let numbers =
        |row: &Vec<String>| row.iter().any(|cell| !matches!(figure::read(cell), Cell::Words | Cell::Blank));
    let layers = layers.min(rows.len().saturating_sub(1)).max(1);
    let mut body = rows.split_off(layers);
    let mut header = rows.remove(0);
    let join = |header: &mut Vec<String>, below: Vec<String>| {
        let mut group = String::new();
        for (name, below) in header.iter_mut().zip(below) {
            // A gap continues the group to its left.
            if !name.is_empty() {
                group.clone_from(name);
            }
            *name = match (below.is_empty() || below == group, name.is_empty() && below.is_empty()) {
                (_, true) => String::new(),
                (true, _) => group.clone(),
                (false, _) => format!("{group} {below}").trim().to_owned(),
            };
        }
    };
    rows.into_iter().for_each(|row| join(&mut header, row));
    let layered = |header: &[String], body: &[Vec<String>]| {
        let gaps =
            header.iter().skip(1).any(String::is_empty) || header.windows(2).any(|pair| pair[0] == pair[1]);
        let below = body
            .first()
            .is_some_and(|row| !numbers(row) && row.iter().filter(|cell| !cell.is_empty()).count() > 1);
        gaps && below && body.iter().skip(1).any(numbers)
    };
    while layered(&header, &body) {
        join(&mut header, body.remove(0));
    }
    body.retain(|row| row.iter().any(|cell| !cell.is_empty()));
    (!body.is_empty()).then_some(Grid { form, header, rows: body })
}

/// A cell or a heading without marks and links.
pub fn clean(text: &str) -> String {
    let text = html::strip(text);
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find('[') {
        let link = rest[at..].find("](").and_then(|middle| {
            let close = rest[at + middle..].find(')')?;
            Some((&rest[at + 1..at + middle], &rest[at + middle + close + 1..]))
        });
        let Some((label, after)) = link else { break };
        out.push_str(rest[..at].trim_end_matches('!'));
        out.push_str(label);
        rest = after;
    }
    out.push_str(rest);
    out.replace("**", "").replace("__", "").replace('`', "").trim().to_owned()
}

fn heading(line: &str) -> Option<(usize, String)> {
    if let Some(level) = line.strip_prefix("<h").and_then(|rest| rest.chars().next()?.to_digit(10)) {
        return (1..=6).contains(&level).then(|| (level as usize, html::strip(line)));
    }
    let level = line.len() - line.trim_start_matches('#').len();
    let title = line[level..].strip_prefix(' ')?;
    ((1..=6).contains(&level) && !title.trim().is_empty()).then(|| (level, title.to_owned()))
}

fn underline(line: &str) -> Option<usize> {
    let line = line.trim_end();
    let all = |mark: char| line.len() >= 3 && line.chars().all(|c| c == mark);
    if all('=') { Some(1) } else { all('-').then_some(2) }
}

/// The table at the start of the lines, its form, and its number of lines.
fn table(lines: &[&str]) -> Option<(Form, Rows, usize)> {
    if let Some((rows, taken)) = markdown(lines) {
        return Some((Form::Marked, rows, taken));
    }
    let plain = [tabs, separated, aligned, spaced].into_iter().find_map(|read| read(lines));
    plain.map(|(rows, taken)| (Form::Plain, rows, taken))
}

fn is_rule(line: &str) -> bool {
    line.contains('-') && line.chars().all(|c| matches!(c, '-' | '|' | ':' | '+' | '=' | ' ' | '\t'))
}

fn markdown(lines: &[&str]) -> Option<(Rows, usize)> {
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
    gather(lines, belongs, cells, |_| true)
}

fn tabs(lines: &[&str]) -> Option<(Rows, usize)> {
    let cells = |line: &str| line.split('\t').map(|cell| cell.trim().into()).collect();
    // In indented text, nothing precedes the tab.
    let indented = |rows: &[Vec<String>]| rows.iter().all(|row| row[0].is_empty());
    let belongs = |line: &str| line.trim_end().contains('\t');
    gather(lines, belongs, cells, |rows| !indented(rows))
}

fn separated(lines: &[&str]) -> Option<(Rows, usize)> {
    let mark = [';', ','].into_iter().find(|&mark| {
        let count = |line: &str| split_quoted(line, mark).len();
        count(lines[0]) > 1 && lines.get(1).is_some_and(|next| count(next) == count(lines[0]))
    })?;
    let likely = |rows: &[Vec<String>]| {
        // `NUMA node0 CPU(s): 0,2,4` names a list of numbers; it heads nothing.
        let is_list = |row: &[String]| {
            row[0].contains(':') && row[1..].iter().all(|cell| matches!(figure::read(cell), Cell::Number(..)))
        };
        if is_list(&rows[0]) {
            return false;
        }
        let even = rows.iter().filter(|row| row.len() == rows[0].len()).count();
        // Many fields, as many in each line and some of them numbers, are no prose.
        let numbers =
            rows.iter().skip(1).flatten().any(|cell| matches!(figure::read(cell), Cell::Number(..)));
        even == rows.len() && rows[0].len() > 3 && numbers || 2 * even >= rows.len() && mostly_numbers(rows)
    };
    let cells = |line: &str| split_quoted(line, mark);
    // A number alone is a row with missing cells.
    let belongs = |line: &str| line.contains(mark) || matches!(figure::read(line), Cell::Number(..));
    gather(lines, belongs, cells, likely)
}

fn aligned(lines: &[&str]) -> Option<(Rows, usize)> {
    let cells = |line: &str| -> Vec<String> {
        line.trim().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(Into::into).collect()
    };
    let columns = cells(lines[0]).len();
    let belongs = |line: &str| is_rule(line) || cells(line).len() == columns;
    gather(lines, belongs, cells, mostly_numbers)
}

/// Columns separated by single spaces: only numbers below a header of as many words are certainly a table.
fn spaced(lines: &[&str]) -> Option<(Rows, usize)> {
    let cells = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    let columns = cells(lines[0]).len();
    let numbers = |row: &Vec<String>| row.iter().all(|cell| !matches!(figure::read(cell), Cell::Words));
    let likely = |rows: &[Vec<String>]| rows.len() > 2 && !numbers(&rows[0]) && rows[1..].iter().all(numbers);
    gather(lines, |line| cells(line).len() == columns, cells, likely)
}

/// The rows in the first lines, as far as lines belong to the table. Whether it is a table is decided from its
/// beginning, so that other long text is skipped quickly.
fn gather(
    lines: &[&str],
    belongs: impl Fn(&str) -> bool,
    cells: impl Fn(&str) -> Vec<String>,
    likely: impl Fn(&[Vec<String>]) -> bool,
) -> Option<(Rows, usize)> {
    let held = |most: usize| {
        lines.iter().take(most).take_while(|line| line.len() <= LONGEST_LINE && belongs(line)).count()
    };
    let read = |taken: usize| -> Rows {
        lines[..taken].iter().filter(|line| !is_rule(line)).map(|line| cells(line)).collect()
    };
    let first = read(held(BEGINNING));
    if first.len() < 2 || first[0].len() < 2 || !likely(&first) {
        return None;
    }
    let taken = held(lines.len());
    Some((read(taken), taken))
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
        read(text).tables.into_iter().map(|found| found.grid).collect()
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
            "text\n<table>\n<tr><th>GPUs</th><th>time</th></tr>\n<tr><td>1<td>10.5</tr><tr><td>2</td><td> 6 </td></tr></table> more",
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
    fn a_list_of_numbers_behind_a_name_is_no_table() {
        let text = "NUMA node0 CPU(s):   0,4,8,12,16,20\nNUMA node1 CPU(s):   1,5,9,13,17,21\n";
        assert!(grids(text).is_empty());
    }

    #[test]
    fn a_table_stands_under_its_headings_and_prose_stays_prose() {
        let text = "Title\n=====\n\n## A\n\nOne, two, three,\nfour, five, six.\n\n\tindented = code\n\tmore = code\n\n### B\nn,s\n1,2\n## C\n- item one\n- item two";
        let page = read(text);
        let [table] = &page.tables[..] else { panic!("{page:?}") };
        assert_eq!(*table.headings, ["Title", "A", "B"]);
        assert_eq!(table.line, 13);
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
        assert!(page.tables.is_empty());
    }

    #[test]
    fn a_row_that_is_too_short_does_not_end_a_table() {
        let grids = grids("GPUs,images/s\n1,100\n2\n4,300,5,6\n");
        assert_eq!(grids[0].rows, [["1", "100"], ["2", ""], ["4", "300"]]);
    }

    #[test]
    fn layers_of_a_header_are_joined() {
        let header = |text: &str| grids(text)[0].header.clone();
        assert_eq!(
            header(
                "| GPUs | fp32 | | amp | |\n|-|-|-|-|-|\n| | time | rate | time | rate |\n| 1 | 2 | 3 | 4 | 5 |"
            ),
            ["GPUs", "fp32 time", "fp32 rate", "amp time", "amp rate"]
        );
        let html = "<table><tr><th rowspan=2>GPUs</th><th colspan='2'>fp32</th></tr><tr><th>time</th><th>rate</th></tr>\
                    <tr><td>1</td><td>2</td><td>3</td></tr></table>";
        assert_eq!(header(html), ["GPUs", "fp32 time", "fp32 rate"]);
    }

    #[test]
    fn marks_and_links_are_taken_off_cells() {
        assert_eq!(clean("**[ResNet](a/b.md)** `x`<br>y<sup>[1](#f)</sup> &times; 2"), "ResNet x y × 2");
        assert_eq!(clean("a [b] c"), "a [b] c");
    }

    #[test]
    fn bars_and_quotes_may_stand_in_cells() {
        assert_eq!(grids("| a \\| b | c |\n|--|--|\n| 1 | 2 |")[0].header, ["a | b", "c"]);
        assert_eq!(grids("\"a, \"\"b\"\"\",c\n1,2")[0].header, ["a, \"b\"", "c"]);
    }
}
