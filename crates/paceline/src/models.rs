//! `paceline models`: the zoo in a table.

use anyhow::Result;
use clap::Args;
use paceline_lab::{Align, Table};
use paceline_model::{ModelError, Summary, summarize, zoo};

use crate::outcome::{self, print, say};
use crate::values::Size;

/// Options of `paceline models`.
#[derive(Args)]
pub struct Options {
    /// Classes of the head
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    classes: u32,
    /// Size of the pictures [default: each network's own]
    #[arg(long, value_name = "HxW")]
    input: Option<Size>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the zoo. Networks that do not admit the size are listed with the reason.
pub fn run(options: &Options) -> Result<()> {
    let mut rows: Vec<Row> = zoo::NAMES
        .into_iter()
        .map(|name| Row {
            name,
            summary: zoo::build(name, options.input.map(Into::into), options.classes as usize)
                .map(|graph| summarize(&graph)),
        })
        .collect();
    if rows.iter().all(|row| row.summary.is_err()) {
        rows.swap_remove(0).summary?;
    }
    if options.json { print_json(&rows) } else { print(&render(&rows).to_string()) }
}

struct Row {
    name: &'static str,
    summary: Result<Summary, ModelError>,
}

fn print_json(rows: &[Row]) -> Result<()> {
    let mut admitted = Vec::new();
    for row in rows {
        match &row.summary {
            Ok(summary) => admitted.push(summary),
            Err(reason) => say(&format!("warning: {} is left out: {reason}", row.name)),
        }
    }
    outcome::print_json(&admitted)
}

fn render(rows: &[Row]) -> Table {
    let mut table = Table::new([
        ("model", Align::Left),
        ("input", Align::Right),
        ("trainable", Align::Right),
        ("parameters", Align::Right),
        ("tensors", Align::Right),
        ("forward GFLOP", Align::Right),
        ("backward GFLOP", Align::Right),
        ("activations MB", Align::Right),
    ]);
    for row in rows {
        match &row.summary {
            Ok(summary) => table.row([
                summary.name.clone(),
                summary.input.clone(),
                thousands(summary.params_trainable),
                thousands(summary.params_total),
                summary.tensors_trainable.to_string(),
                format!("{:.3}", summary.flops_forward as f64 * 1e-9),
                format!("{:.3}", summary.flops_backward as f64 * 1e-9),
                format!("{:.1}", summary.activation_bytes as f64 * 1e-6),
            ]),
            Err(reason) => table.row([row.name.to_owned(), reason.to_string()]),
        }
    }
    table
}

/// A number with a comma after every three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (23555082, "23,555,082")] {
            assert_eq!(thousands(number), text);
        }
    }
}
