//! A timeline as text.

use paceline_lab::{Align, Table, names, words};

use super::Timeline;
use crate::profile::{percent, time};

/// Rows of each table.
const ROWS: usize = 10;

impl Timeline {
    /// What the trace is, its threads, and the names that took most.
    pub fn render(&self) -> String {
        let count = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let slices: u64 = self.threads.iter().map(|thread| thread.slices).sum();
        let mut text = format!(
            "Chrome trace, {}: {}, {}, {}\n",
            time(self.span),
            count(self.processes, "process").replace("processs", "processes"),
            count(self.threads.len(), "thread"),
            count(slices as usize, "slice"),
        );
        text += "steps, computation, exchange and waiting are not looked for in it\n";
        let mut threads = Table::new([
            ("process", Align::Left),
            ("thread", Align::Left),
            ("slices", Align::Right),
            ("busy", Align::Right),
            ("% of trace", Align::Right),
        ]);
        for thread in self.threads.iter().take(ROWS) {
            let share = percent(thread.busy.0, self.span.0);
            let (process, name) = (thread.process.clone(), thread.thread.clone());
            threads.row([process, name, thread.slices.to_string(), time(thread.busy), share]);
        }
        text += &format!("\n{threads}{}", more(self.threads.len(), "threads"));
        let busy: u64 = self.threads.iter().map(|thread| thread.busy.0).fold(0, u64::saturating_add);
        let mut table = Table::new([
            ("name", Align::Left),
            ("count", Align::Right),
            ("by itself", Align::Right),
            ("% of busy", Align::Right),
            ("with nested", Align::Right),
        ]);
        let shown = &self.names[..self.names.len().min(ROWS)];
        for (named, name) in shown.iter().zip(names::shorten(shown.iter().map(|named| named.name.as_str()))) {
            let share = percent(named.own.0, busy);
            table.row([name, named.count.to_string(), time(named.own), share, time(named.total)]);
        }
        text += &format!("\n{table}{}", more(self.names.len(), "names"));
        let others = self.others;
        let other =
            format!("{others} asynchronous events, instants, counters, flows or samples are not shown");
        let others = (others > 0).then_some(&other).into_iter();
        for note in others.chain(&self.warnings) {
            text += &format!("{}\n", words::wrap(&format!("note: {}", words::plain(note))));
        }
        text
    }
}

fn more(all: usize, what: &str) -> String {
    if all > ROWS { format!("and {} more {what}\n", all - ROWS) } else { String::new() }
}
