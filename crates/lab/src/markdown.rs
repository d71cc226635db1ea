//! `report.md`: the report in GitHub's Markdown. Rendering only: nothing is computed here except units.
//!
//! Cases with different scaling (weak, strong) are in different tables, and each table says which it is.

use std::fmt::Write as _;

use paceline_record::Phase;

use crate::numbers::recovery::MOST_EVENTS;
use crate::numbers::waterfall::{Cause, Part, Waterfall};
use crate::words::{megabytes, or_dash};
use crate::{Align, CaseReport, Explained, Machine, Report, Status, Table, words};

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut page = Page { text: format!("# Scaling study\n\n{}\n", escape(&words::made(report))), report };
    for sentence in words::under_way(report).into_iter().chain(words::loaded(report)) {
        page.paragraph(&format!("\n{}.", escape(&sentence)));
    }
    page.findings();
    let mut scalings: Vec<Option<&str>> = Vec::new();
    for group in &report.explained {
        let scaling = group.key.scaling.as_deref();
        if !scalings.contains(&scaling) {
            scalings.push(scaling);
        }
    }
    for scaling in scalings {
        page.scaling(scaling);
    }
    page.members();
    page.sources();
    page.unfinished();
    page.origin();
    page.text
}

/// A case, and the group it belongs to.
struct Row<'a> {
    case: &'a CaseReport,
    label: String,
}

impl Row<'_> {
    /// The cells that every row begins with.
    fn name(&self) -> [String; 2] {
        [escape(&self.label), self.case.case.workers.to_string()]
    }

    /// Steps of all ranks together.
    fn rank_steps(&self) -> f64 {
        self.case.steps as f64 * self.case.workers_on_average()
    }

    /// Mean milliseconds per step of one rank in these phases.
    fn step_ms(&self, phases: &[Phase]) -> Option<f64> {
        let times = self.case.phases_s.as_ref()?;
        // Only the first phase has to be known.
        times.get(phases.first()?)?;
        let seconds: f64 = phases.iter().filter_map(|phase| times.get(phase)).sum();
        (self.case.steps > 0).then(|| 1e3 * seconds / self.rank_steps())
    }
}

/// The page under construction.
struct Page<'a> {
    text: String,
    report: &'a Report,
}

impl<'a> Page<'a> {
    fn heading(&mut self, level: &str, text: &str) {
        self.text.push_str(&format!("\n{level} {text}\n\n"));
    }

    fn paragraph(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn list<S: AsRef<str>>(&mut self, sentences: impl IntoIterator<Item = S>) {
        for sentence in sentences {
            self.text.push_str(&format!("- {}\n", sentence.as_ref()));
        }
    }

    /// Adds a table. Cells are already escaped.
    fn table(&mut self, header: &[(String, Side)], rows: &[Vec<String>]) {
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            cells.fold(String::from("|"), |line, cell| format!("{line} {cell} |")) + "\n"
        };
        self.text.push_str(&line(&mut header.iter().map(|(name, _)| name.as_str())));
        self.text.push_str(&line(&mut header.iter().map(|(_, side)| side.rule())));
        for row in rows {
            self.text.push_str(&line(&mut row.iter().map(String::as_str)));
        }
    }

    fn findings(&mut self) {
        self.heading("##", "Findings");
        let findings = &self.report.findings;
        if findings.is_empty() {
            self.paragraph("None.");
        }
        for (number, finding) in findings.iter().enumerate() {
            let text = escape(&finding.text);
            self.paragraph(&format!("{}. **{text}.** {}.", number + 1, capitalise(&finding.advice)));
        }
    }

    /// Everything about the cases with one kind of scaling.
    fn scaling(&mut self, scaling: Option<&str>) {
        let report = self.report;
        let groups = report.explained.iter().filter(|group| group.key.scaling.as_deref() == scaling);
        let groups: Vec<&Explained> = groups.collect();
        let rows = |group: &&'a Explained| {
            let label = group.key.label();
            group.cases.iter().map(move |&place| (place, label.clone())).collect::<Vec<_>>()
        };
        let mut places: Vec<(usize, String)> = groups.iter().flat_map(rows).collect();
        places.sort_by_key(|&(place, _)| place);
        let done: Vec<Row<'_>> = places
            .into_iter()
            .map(|(place, label)| Row { case: &report.cases[place], label })
            .filter(|row| row.case.status == Status::Done)
            .collect();
        if done.is_empty() {
            return;
        }
        let (name, meaning) = match scaling {
            Some("weak") => {
                ("weak scaling".into(), "the batch per worker is the same for any number of workers")
            }
            Some("strong") => {
                ("strong scaling".into(), "the global batch is the same for any number of workers")
            }
            Some(other) => (format!("{} scaling", escape(other)), "as the source of the study calls it"),
            None => ("unknown scaling".into(), "the source of the study does not say"),
        };
        self.heading("##", &format!("Results, {name}"));
        self.paragraph(&format!("{}: {meaning}.\n", capitalise(&name)));
        self.summary(&done);
        self.learning(&done, &name);
        self.heading("###", &format!("Phases, {name}"));
        self.paragraph("Mean milliseconds per step of one rank.\n");
        self.phases(&done);
        self.heading("###", &format!("Steps, {name}"));
        self.steps(&done);
        for group in groups {
            self.explain(group, &name);
        }
    }

    fn summary(&mut self, rows: &[Row<'_>]) {
        let numbers = [
            "workers",
            "init s",
            "train s",
            "total s",
            "images/s",
            "95 % interval",
            "speed-up by images/s",
            "efficiency by images/s %",
            "speed-up by time",
            "efficiency by time %",
            "computation : communication",
            "exchange ms per step",
            "update ms per step",
            "peak memory MB",
        ];
        let cells = |row: &Row<'_>| {
            let case = row.case;
            let rate = case.images_per_s;
            let interval = rate.and_then(|rate| rate.lo.zip(rate.hi));
            let numbers = [
                number(case.init_s, 2),
                number(case.train_s, 2),
                number(case.total_s, 2),
                number(rate.map(|rate| rate.mean), 1),
                or_dash(interval, |(lo, hi)| format!("{lo:.1} .. {hi:.1}")),
                number(case.speedup_speed, 2),
                number(case.efficiency_speed.map(|fraction| 100.0 * fraction), 1),
                number(case.speedup_time, 2),
                number(case.efficiency_time.map(|fraction| 100.0 * fraction), 1),
                or_dash(case.communication_ratio, |ratio| format!("10 : {ratio:.2}")),
                number(row.step_ms(&[Phase::CommWait, Phase::CommCpu]), 3),
                number(row.step_ms(&[Phase::Update]), 3),
                or_dash(case.peak_memory_bytes, |memory| megabytes(memory.per_worker)),
            ];
            row.name().into_iter().chain(numbers).collect()
        };
        self.table(&columns("network", numbers), &rows.iter().map(cells).collect::<Vec<_>>());
    }

    /// Loss and accuracy, if any case has them.
    fn learning(&mut self, rows: &[Row<'_>], scaling: &str) {
        let cells = |row: &Row<'_>| {
            let cells = words::learning(row.case)?.map(|cell| or_dash(cell, |text| escape(&text)));
            Some([escape(&row.label)].into_iter().chain(cells).collect())
        };
        let rows: Vec<Vec<String>> = rows.iter().filter_map(cells).collect();
        if !rows.is_empty() {
            self.heading("###", &format!("Learning, {scaling}"));
            self.table(&columns("network", words::LEARNING.map(|(name, _)| name)), &rows);
        }
    }

    fn phases(&mut self, rows: &[Row<'_>]) {
        let within = |phase: &Phase| !matches!(phase, Phase::Launch | Phase::Init | Phase::Tail);
        let occurs =
            |phase: &Phase| rows.iter().any(|row| row.step_ms(&[*phase]).is_some_and(|ms| ms != 0.0));
        let shown: Vec<Phase> = Phase::ALL.into_iter().filter(within).filter(occurs).collect();
        let header =
            columns("network", ["workers"].into_iter().chain(shown.iter().map(|phase| phase.name())));
        let cells = |row: &Row<'_>| {
            let times = shown.iter().map(|&phase| number(row.step_ms(&[phase]), 3));
            row.name().into_iter().chain(times).collect()
        };
        self.table(&header, &rows.iter().map(cells).collect::<Vec<_>>());
    }

    fn steps(&mut self, rows: &[Row<'_>]) {
        let numbers =
            ["workers", "steps", "repeats", "median ms", "95th ms", "99th ms", "variation %", "outliers"];
        let mut header = columns("network", numbers);
        header.push(("steady state".into(), Side::Left));
        let cells = |row: &Row<'_>| {
            let case = row.case;
            let spread = case.dispersion;
            let numbers = [
                case.steps.to_string(),
                case.repeats.to_string(),
                number(spread.map(|spread| 1e3 * spread.p50_s), 2),
                number(spread.map(|spread| 1e3 * spread.p95_s), 2),
                number(spread.map(|spread| 1e3 * spread.p99_s), 2),
                number(spread.and_then(|spread| spread.cv).map(|cv| 100.0 * cv), 2),
                or_dash(case.steady, |steady| steady.outliers.to_string()),
                or_dash(words::steady(case), |text| escape(&text)),
            ];
            row.name().into_iter().chain(numbers).collect()
        };
        self.table(&header, &rows.iter().map(cells).collect::<Vec<_>>());
    }

    /// Why a group has the speed-ups it has.
    fn explain(&mut self, group: &Explained, scaling: &str) {
        let more = group.speedups.iter().filter(|speedup| speedup.workers > 1);
        let measures: Vec<String> = more.map(|speedup| escape(&words::reconcile(speedup))).collect();
        let laws: Vec<String> = words::laws(&group.laws).iter().map(|law| escape(law)).collect();
        if measures.is_empty() && laws.is_empty() && group.waterfalls.is_empty() {
            return;
        }
        self.heading("###", &format!("{}, {scaling}: why", escape(&group.key.label())));
        self.list(measures.iter().chain(&laws));
        if !group.waterfalls.is_empty() {
            let blank = if measures.is_empty() && laws.is_empty() { "" } else { "\n" };
            self.paragraph(&format!(
                "{blank}Worker-milliseconds per image by cause, with 95 % intervals where known, and as a percentage of the \
                 difference from one worker. Causes that make no difference are left out.\n"
            ));
            self.waterfall(&group.waterfalls);
        }
    }

    fn waterfall(&mut self, falls: &[Waterfall]) {
        let names = falls.iter().flat_map(|fall| {
            [format!("{} workers, ms per image", fall.workers), "% of the difference".into()]
        });
        let first = ("cause".into(), Side::Left);
        let header: Vec<_> = [first].into_iter().chain(names.map(|name| (name, Side::Right))).collect();
        let ends = |name: &str, of: fn(&Waterfall) -> f64| {
            let cells = falls.iter().flat_map(|fall| [format!("{:.3}", 1e3 * of(fall)), String::new()]);
            [name.to_owned()].into_iter().chain(cells).collect()
        };
        let mut rows: Vec<Vec<String>> = vec![ends("one worker", |fall| fall.from_s)];
        for cause in Cause::ALL {
            let parts = || falls.iter().flat_map(|fall| &fall.parts).filter(|part| part.cause == cause);
            if parts().all(|part| (1e3 * part.seconds).abs() < 0.0005) {
                continue;
            }
            let cells = falls.iter().zip(parts()).flat_map(|(fall, part)| {
                let fraction = part.seconds / (fall.to_s - fall.from_s);
                let fraction = fraction.is_finite().then_some(100.0 * fraction);
                [with_interval(part), number(fraction, 1)]
            });
            rows.push([cause.name().to_owned()].into_iter().chain(cells).collect());
        }
        rows.push(ends("total", |fall| fall.to_s));
        self.table(&header, &rows);
    }

    /// A table of plain text.
    fn plain_table(&mut self, table: &Table) {
        let side = |align| if align == Align::Left { Side::Left } else { Side::Right };
        let header: Vec<_> = table.header().map(|(name, align)| (escape(name), side(align))).collect();
        let rows: Vec<Vec<String>> =
            table.rows().map(|row| row.iter().map(|cell| escape(cell)).collect()).collect();
        self.table(&header, &rows);
    }

    /// What happened to the members of elastic cases.
    fn members(&mut self) {
        for group in &self.report.explained {
            for case in group.cases.iter().filter_map(|&place| self.report.cases.get(place)) {
                let sentences = words::recovery(case);
                if sentences.is_empty() {
                    continue;
                }
                let workers = words::workers(case.case.workers);
                self.heading("##", &escape(&format!("{}, {workers}: members", group.key.label())));
                self.list(sentences.iter().map(|sentence| escape(sentence)));
                if let Some(table) = words::event_table(case, MOST_EVENTS) {
                    self.text.push('\n');
                    self.plain_table(&table);
                }
            }
        }
    }

    /// What the sources of imported cases say beyond their steps.
    fn sources(&mut self) {
        for group in &self.report.explained {
            for case in group.cases.iter().filter_map(|&place| self.report.cases.get(place)) {
                let Some(origin) = &case.origin else { continue };
                let from =
                    origin.format.map_or_else(String::new, |format| format!(", from {}", format.name()));
                let title = format!("{}, {}{from}", group.key.label(), words::workers(case.case.workers));
                self.heading("##", &escape(&title));
                let notes = origin.notes.iter().map(|note| format!("note: {note}"));
                self.list(origin.sentences().into_iter().chain(notes).map(|sentence| escape(&sentence)));
                for table in words::origin_tables(case) {
                    self.text.push('\n');
                    self.plain_table(&table);
                }
            }
        }
    }

    fn unfinished(&mut self) {
        let report = self.report;
        let bad: Vec<&CaseReport> = report.cases.iter().filter(|case| case.reason.is_some()).collect();
        if !bad.is_empty() {
            self.heading("##", "Cases that are not done");
            let header = ["network", "update", "workers", "status", "steps", "reason"];
            let header = header.map(|name| (name.into(), Side::Left));
            let cells = |case: &&CaseReport| {
                let status = match case.status {
                    Status::Done => "partly done",
                    status => status.name(),
                };
                let reason = case.reason.as_deref().unwrap_or_default();
                vec![
                    escape(&case.case.model),
                    or_dash(case.case.update.as_deref(), escape),
                    case.case.workers.to_string(),
                    status.into(),
                    case.steps.to_string(),
                    escape(reason.trim()),
                ]
            };
            self.table(&header, &bad.iter().map(cells).collect::<Vec<_>>());
        }
        if report.missing > 0 {
            self.paragraph(&format!("\nCases that have not run yet: {}.", report.missing));
        }
    }

    /// The machine and the command.
    fn origin(&mut self) {
        self.heading("##", "Machine and command");
        let Machine { cpu, cores, memory, kernel, engine } = &self.report.machine;
        let facts = [
            ("processor", cpu.clone()),
            ("cores", cores.map(|cores| cores.to_string())),
            ("memory", memory.map(|bytes| format!("{} MB", megabytes(bytes)))),
            ("kernel", kernel.clone()),
            ("engine", engine.clone()),
        ];
        let known = facts.into_iter().filter_map(|(name, fact)| Some((name, fact?)));
        self.list(known.map(|(name, fact)| format!("{name}: {}", escape(&fact))));
        let command = words::command(&self.report.command);
        // A fence must be longer than any run of backticks inside it.
        let fence = "`".repeat(command.split(|c| c != '`').map(str::len).max().unwrap_or(0).max(2) + 1);
        let _ = writeln!(self.text, "\n{fence}\n{command}\n{fence}");
    }
}

/// Alignment of a column.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

impl Side {
    const fn rule(self) -> &'static str {
        match self {
            Self::Left => "---",
            Self::Right => "---:",
        }
    }
}

fn columns<'a>(first: &str, numbers: impl IntoIterator<Item = &'a str>) -> Vec<(String, Side)> {
    let numbers = numbers.into_iter().map(|name| (name.to_owned(), Side::Right));
    [(first.to_owned(), Side::Left)].into_iter().chain(numbers).collect()
}

/// Escapes foreign text so that it appears literally, on one line.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.replace("\r\n", "\n").chars() {
        match character {
            '\n' | '\r' => escaped.push_str("<br>"),
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '|' | '*' | '`' | '[' | ']' | '~' | '$' => escaped.extend(['\\', character]),
            _ => escaped.push(character),
        }
    }
    escaped
}

fn capitalise(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn number(value: Option<f64>, digits: usize) -> String {
    or_dash(value, |value| {
        let text = format!("{value:.digits$}");
        let zero = text.trim_start_matches(['-', '0', '.']).is_empty();
        if zero { text.trim_start_matches('-').into() } else { text }
    })
}

fn with_interval(part: &Part) -> String {
    let ms = |seconds: f64| match number(Some(1e3 * seconds), 3) {
        text if seconds > 0.0 => format!("+{text}"),
        text => text,
    };
    let interval = part.lo.zip(part.hi).map(|(lo, hi)| format!(" ({} .. {})", ms(lo), ms(hi)));
    ms(part.seconds) + &interval.unwrap_or_default()
}

#[cfg(test)]
mod tests;
