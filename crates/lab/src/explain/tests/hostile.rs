//! Input that nobody should send: a clear error or a warning, never a panic.

use proptest::prelude::*;

use super::*;

fn run(text: &str) -> Result<Explanation, ExplainError> {
    let found = explain_text(text, &Options::default());
    if let Ok(found) = &found {
        render(found);
        serde_json::to_string(found).expect("numbers and words");
    }
    found
}

#[test]
fn what_is_no_table_is_refused_with_a_reason() {
    assert_eq!(run(""), Err(ExplainError::Empty));
    assert_eq!(run(" \n\t\n"), Err(ExplainError::Empty));
    assert_eq!(run("GIF89a\0\u{1}\u{2}"), Err(ExplainError::NotText));
    assert_eq!(run(&"\u{fffd}".repeat(40)), Err(ExplainError::NotText));
    assert!(matches!(run("Only words, and more of them.\nNothing else."), Err(ExplainError::NoTable(_))));
    assert!(matches!(run("| a | b | c |\n|-|-|-|\n| x | 1 | 2 |"), Err(ExplainError::NotUnderstood(_))));
    assert!(matches!(run(&"x".repeat(LONGEST + 1)), Err(ExplainError::TooLong { .. })));
}

#[test]
fn huge_and_ragged_tables_are_read_as_far_as_they_go() {
    let row = |n: usize| format!("{n},{}\n", 10 * n);
    let long = format!("GPUs,images/s\n{}", (1..=20_000).map(row).collect::<String>());
    let found = run(&long).expect("a table");
    assert!(found.warnings[0].contains("20000 rows"));
    assert_eq!(found.series[0].rows.len(), page::MOST_ROWS);
    let wide = vec!["7"; 10_000].join(",");
    assert!(run(&format!("{wide}\n{wide}\n")).is_err());
    let ragged = run("| GPUs | images/s |\n|-|-|\n| 1 | 10 | 3 |\n| 2 |\n| 4 | 35 |").expect("a table");
    assert!(ragged.warnings[0].contains("ragged"));
    assert_eq!(ragged.series[0].rows[1].rate, None);
}

#[test]
fn long_texts_of_other_things_are_read_once() {
    // Each of these would take hours if every line looked at all that follow.
    for line in ["a, b\n", "-\t-\n", "|-|\n", "x  y\n", "batch 1 steps\n", "\ta\tb\n"] {
        let _ = run(&line.repeat((1 << 20) / line.len()));
    }
    let tables = "GPUs,images/s\n1,10\n2,19\n\n".repeat(2000);
    assert!(run(&tables).expect("tables").warnings[0].contains("500 are read"));
    let rows: String = (0..5000).map(|n| format!("model{n}x,1,10\nmodel{n}x,2,19\n")).collect();
    let found = run(&format!("name,GPUs,images/s\n{rows}")).expect("a table");
    assert!(found.warnings[0].contains("5000 series") && found.series.len() == MOST_SERIES);
}

#[test]
fn numbers_that_are_none_are_left_out() {
    let found =
        run("GPUs,images/s,time (s)\n1,NaN,0\n2,inf,-5\n4,1e999,1e-320\n0,1,1\n-3,1,1\n99999999999,1,1\n")
            .expect("a table");
    assert_eq!(found.series[0].understood.workers, [1, 2, 4]);
    assert!(found.warnings.iter().any(|warning| warning.contains("not a finite number")));
    assert!(found.warnings.iter().any(|warning| warning.contains("skipped 3 rows")), "{:?}", found.warnings);
    assert!(
        found.series[0]
            .rows
            .iter()
            .all(|row| row.by_rate.is_none() && row.by_clock.is_none_or(f64::is_finite))
    );
}

#[test]
fn letters_of_any_script_do_no_harm() {
    let found = run("﻿| ГПУ | GPUs | изображений/s |\n|-|-|-|\n| один | 1 | 10 |\n| два | 2 | 19 |\n")
        .expect("a table");
    assert!(!found.series[0].understood.comparable, "one and two may be different things");
}

#[test]
fn what_steers_a_terminal_is_not_printed() {
    let found = run("GPUs,\u{1b}[31mimages/s\n1,10\n2,19\n").expect("a table");
    assert!(!crate::explain::render(&found).contains('\u{1b}'));
}

const SEEDS: [&str; 6] = [
    "<table><tr><th rowspan=2>GPUs<th colspan=2>fp32</tr><tr><th>time<th>images/s</tr><tr><td>1<td>10 s<td>5</tr><tr><td>2<td>6 s<td>9</table>\n",
    "| nodes | GPUs per node | batch | fp32 images/s | amp images/s | speedup |\n|-|-|-|-|-|-|\n| 1 | 1 | 32 | 10 | 20 | 1 |\n| 1 | 2 | 64 | 19 | 38 | 1.9 |\n| 2 | 2 | 128 | 36 | 70 | 3.6 |\n",
    "| Workers | total time | allreduce time | fetch time | update |\n|-|-|-|-|-|\n| 1 | 6.0s | - | - | 5.0s |\n| 2 | 7.0s | 1.0s | 5.1s | 0.5s |\n",
    "Steps set to 400, epochs - 3, CIFAR-10.\n\nGPUs\tInit time(s)\tTrain time(s)\tTotal time(s)\tSpeedup\n1\t5\t100\t105\t1\n2\t6\t55\t61\t1.8\n4\t7\t30\t37\t3.3\n\nGPUs\tExamples/s\n1\t99\n2\t98\n4\t97\n",
    "| | GPU (1) | GPU (2) |\n|-|-|-|\n| Time per epoch | 2 | 1 |\n| images/s | 1 | 2 |\n| accuracy | 50% | 0.4 |\n| memory | 1 GB | 2 GB |\n",
    "n;speedup;efficiency;communication\n1;1;100%;0%\n2;1,9;95%;10: 1\n3;2,5;83%;20%\n4;3;75%;9\n5;3,4;68%;-\n6;3,7;62%;1e9\n",
];

proptest! {
    #[test]
    fn mutated_tables_never_panic(seed in 0..SEEDS.len(), edits in prop::collection::vec((any::<usize>(), 0..7u8, "\\PC{0,3}"), 1..12)) {
        let mut letters: Vec<char> = SEEDS[seed].chars().collect();
        for (at, kind, insert) in edits {
            let at = at % letters.len().max(1);
            match kind {
                0 => drop(letters.drain(at..(at + 3).min(letters.len()))),
                1 => letters.splice(at..at, insert.chars()).for_each(drop),
                2 => letters.splice(at..at, "\t|,\n".chars()).for_each(drop),
                3 => letters.splice(at..at, "0".chars()).for_each(drop),
                4 => letters.splice(at..at, "e308".chars()).for_each(drop),
                5 => letters.splice(at..at, "-".chars()).for_each(drop),
                _ => letters.truncate(at.max(1)),
            }
        }
        let _ = run(&letters.into_iter().collect::<String>());
    }

    #[test]
    fn any_text_never_panics(text in "[ -~\\n\\t|,;0-9.:%-]{0,200}") {
        let _ = run(&text);
    }
}

#[test]
fn a_million_is_no_minute() {
    let text = "gpus,throughput\n1,1.2k\n2,2.3k\n4,0.0044M\n";
    let read = |text: &str| explain_text(text, &Options::default()).expect("a table");
    assert_eq!(read(text).series[0].rows[2].rate, Some(4400.0));
    let minutes = read(&text.replace("0.0044M", "0.0044m"));
    assert_eq!(minutes.series[0].rows[2].rate, None, "no rate is in minutes");
    assert!(minutes.warnings[0].contains("\"0.0044m\", which is not understood"), "{:?}", minutes.warnings);
    let time = read("gpus,total time\n1,10M\n2,6M\n");
    assert_eq!(time.series[0].understood.columns[0].figures[0].map(|time| time.value), Some(600.0));
    assert!(time.warnings.is_empty() && read(&text.replace("0.0044M", "OOM")).warnings.is_empty());
}
