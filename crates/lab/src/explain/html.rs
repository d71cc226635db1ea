//! Tables in HTML: enough of it for what people publish.

/// Most cells that one cell may cover, and most rows of a table.
const MOST_COVERED: usize = 64;
const MOST_ROWS: usize = super::page::MOST_ROWS + 1;

/// Most bytes of an entity.
const LONGEST_ENTITY: usize = 12;

/// A row of a table.
#[derive(Debug)]
pub struct Row {
    /// Its cells; one that covers several stands in each.
    pub cells: Vec<String>,
    /// Whether all of its own cells are `th`.
    pub heads: bool,
}

/// The text before the first table, the table, and the text after it.
pub fn split(text: &str) -> Option<(&str, &str, &str)> {
    let first = find(text, "<table")?;
    let length = find(&text[first..], "</table").unwrap_or(text.len() - first);
    let end = text[first + length..].find('>').map_or(text.len(), |close| first + length + close + 1);
    // A table around another only arranges the page.
    let mut from = first;
    while let Some(inner) = find(&text[from + 1..first + length], "<table") {
        from += 1 + inner;
    }
    Some((&text[..from], &text[from..end], &text[end..]))
}

fn find(text: &str, tag: &str) -> Option<usize> {
    let (bytes, tag) = (text.as_bytes(), tag.as_bytes());
    (0..bytes.len().checked_sub(tag.len())? + 1)
        .find(|&at| bytes[at] == b'<' && bytes[at..at + tag.len()].eq_ignore_ascii_case(tag))
}

/// The rows of a table; `None` if there are fewer than two, or only one column.
pub fn rows(table: &str) -> Option<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    // Cells that reach into the rows below: column, rows left, text.
    let mut reaching: Vec<(usize, usize, String)> = Vec::new();
    for row in pieces(table, "<tr").take(MOST_ROWS) {
        let mut own: Vec<(usize, usize, bool, String)> = Vec::new();
        for (head, cell) in cells(row) {
            let tag = &cell[..cell.find('>').unwrap_or(cell.len())];
            let text = cell.get(tag.len() + 1..).unwrap_or_default().to_owned();
            own.push((attribute(tag, "colspan"), attribute(tag, "rowspan"), head, text));
        }
        let heads = !own.is_empty() && own.iter().all(|(_, _, head, _)| *head);
        let (mut cells, mut own) = (Vec::new(), own.into_iter());
        let mut below = Vec::new();
        loop {
            if let Some(at) = reaching.iter().position(|(column, ..)| *column == cells.len()) {
                let (column, left, text) = reaching.swap_remove(at);
                cells.push(text.clone());
                below.extend((left > 1).then_some((column, left - 1, text)));
            } else if let Some((wide, high, _, text)) = own.next() {
                for _ in 0..wide {
                    below.extend((high > 1).then_some((cells.len(), high - 1, text.clone())));
                    cells.push(text.clone());
                }
            } else {
                break;
            }
        }
        reaching.extend(below);
        if !cells.is_empty() {
            rows.push(Row { cells, heads });
        }
    }
    (rows.len() > 1 && rows[0].cells.len() > 1).then_some(rows)
}

/// What follows each tag, up to the next of its kind.
fn pieces<'a>(text: &'a str, tag: &'a str) -> impl Iterator<Item = &'a str> {
    let mut rest = find(text, tag).map(|at| &text[at + tag.len()..]);
    std::iter::from_fn(move || {
        let now = rest?;
        let next = find(now, tag);
        rest = next.map(|at| &now[at + tag.len()..]);
        Some(&now[..next.unwrap_or(now.len())])
    })
}

/// The cells of a row, and whether each is a heading.
fn cells(row: &str) -> impl Iterator<Item = (bool, &str)> {
    pieces(row, "<t").filter_map(|piece| match piece.as_bytes().first()? {
        b'h' | b'H' if !piece[1..].starts_with(['e', 'E']) => Some((true, piece)),
        b'd' | b'D' => Some((false, piece)),
        _ => None,
    })
}

fn attribute(tag: &str, name: &str) -> usize {
    let value = tag.to_lowercase().split(name).nth(1).and_then(|rest| {
        let rest = rest.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    });
    value.unwrap_or(1).clamp(1, MOST_COVERED)
}

/// A text without tags and entities; footnotes are dropped.
pub fn strip(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('<') {
        let tag = &rest[at + 1..];
        // Not every `<` opens a tag.
        let Some(end) = tag
            .find('>')
            .filter(|_| tag.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '!'))
        else {
            out.push_str(&rest[..at + 1]);
            rest = tag;
            continue;
        };
        out.push_str(&rest[..at]);
        let name = tag[..end].to_lowercase();
        rest = &tag[end + 1..];
        if name.starts_with("br") || name.starts_with("/p") || name.starts_with("/div") {
            out.push(' ');
        }
        if name == "sup"
            && let Some(close) = rest.find("</sup>")
        {
            rest = &rest[close..];
        }
    }
    out.push_str(rest);
    let plain = decode(&out).replace(['\u{2010}', '\u{2011}'], "-").replace('\u{ad}', "");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A text with letters in place of entities; what is no entity stays.
fn decode(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.bytes().take(LONGEST_ENTITY).position(|letter| letter == b';');
        let found = end.and_then(|end| Some((entity(&rest[1..end])?, end + 1)));
        let (letter, used) = found.unwrap_or(('&', 1));
        out.push(letter);
        rest = &rest[used..];
    }
    out + rest
}

/// The letter that an entity stands for.
fn entity(name: &str) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let code = match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => number.parse(),
        };
        return char::from_u32(code.ok()?).map(|letter| if letter.is_control() { ' ' } else { letter });
    }
    Some(match name {
        "nbsp" | "thinsp" | "ensp" | "emsp" => ' ',
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        "times" => '×',
        "plusmn" => '±',
        "minus" => '−',
        "ndash" => '–',
        "mdash" => '—',
        "asymp" => '≈',
        "micro" => 'µ',
        "shy" => '\u{ad}',
        _ => return None,
    })
}
