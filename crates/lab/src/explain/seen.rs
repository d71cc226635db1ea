//! Error text for input without a table: what it looks like, and what to do.

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
        return "this is HTML or XML, which is not supported: copy the table as Markdown or CSV".into();
    }
    if text.contains("![") || text.contains("<img") {
        return "its numbers are in pictures, which are not supported: write them as a table".into();
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    let quoted: String = first.chars().take(QUOTED).collect();
    let more = if first.chars().count() > QUOTED { "..." } else { "" };
    let words = first.split_whitespace().count();
    let advice = match (lines, words) {
        (1, _) => "a table has a header and at least one row below it",
        (_, 1) => "a table has at least two columns, one of them the number of workers",
        _ => {
            "separate columns with |, tabs, commas, semicolons, or at least two spaces, and put a header above them"
        }
    };
    format!("{lines} lines that begin with {quoted:?}{more}; {advice}")
}

fn describe_json(text: &str) -> String {
    let advice = "for a table, use CSV with one row per number of workers; for a trace or log, its keys are not those of a \
                  supported program";
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(object)) => {
            let more = if object.len() > KEYS { ", ..." } else { "" };
            let keys: Vec<&str> = object.keys().take(KEYS).map(String::as_str).collect();
            format!("this is a JSON object with the keys {}{more}; {advice}", keys.join(", "))
        }
        Ok(serde_json::Value::Array(list)) => {
            format!("this is a JSON list of {} items; {advice}", list.len())
        }
        _ => format!("this starts like JSON but is not valid (truncated, or one object per line); {advice}"),
    }
}
