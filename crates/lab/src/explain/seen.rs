//! What a text without a table looks like, and what to do with it.

/// Keys of an object that are named.
const KEYS: usize = 6;

/// Letters of a line that are quoted.
const QUOTED: usize = 60;

/// What was seen, and what to do.
pub(super) fn describe(text: &str) -> String {
    let text = text.trim();
    let first = text.lines().next().unwrap_or_default().trim();
    if text.starts_with(['{', '[']) {
        return describe_json(text);
    }
    if text.starts_with('<') {
        return "this is HTML or XML, whose tables are not read: copy the table out as Markdown or CSV"
            .into();
    }
    if text.contains("![") || text.contains("<img") {
        return "its numbers are in pictures, which are not read: write them down as a table".into();
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    let quoted: String = first.chars().take(QUOTED).collect();
    let more = if first.chars().count() > QUOTED { "..." } else { "" };
    let words = first.split_whitespace().count();
    let advice = match (lines, words) {
        (1, _) => "a table has a header and at least one row below it",
        (_, 1) => "a table has at least two columns, one of them the number of workers",
        _ => {
            "set columns apart by |, tabs, commas, semicolons, or two spaces or more, with a header above them"
        }
    };
    format!("{lines} lines that begin with {quoted:?}{more}; {advice}")
}

fn describe_json(text: &str) -> String {
    let advice = "as a table it would be CSV, a row for each number of workers; a trace or a log of a program that is read here is \
                  known by its own keys";
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(object)) => {
            let more = if object.len() > KEYS { ", ..." } else { "" };
            let keys: Vec<&str> = object.keys().take(KEYS).map(String::as_str).collect();
            format!("this is a JSON object with the keys {}{more}; {advice}", keys.join(", "))
        }
        Ok(serde_json::Value::Array(list)) => {
            format!("this is a JSON list of {} items; {advice}", list.len())
        }
        _ => format!("this begins like JSON, but is none (torn, or a line for each object); {advice}"),
    }
}
