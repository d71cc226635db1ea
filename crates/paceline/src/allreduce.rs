//! `paceline allreduce`: how fast workers exchange, in the terms of nccl-tests.

use anyhow::Result;
use clap::Args;
use paceline_lab::{Align, Table, words};
use paceline_record::Bytes;
use paceline_train::measure::{self, Row};

use crate::machine;
use crate::outcome::{self, print, say};
use crate::values::YesNo;

/// Options of `paceline allreduce`.
#[derive(Args)]
pub struct Options {
    /// Worker processes; several numbers make several tables [default: 2, 4, ... up to the cores]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Vec<u32>,
    /// Bytes of each worker, as 94M or 4K,1M; 4K..256M doubles from one to the other
    #[arg(long, value_name = "SIZES", default_value = "4K..256M", value_parser = parse_sizes)]
    sizes: Sizes,
    /// Whether each worker keeps to a core of its own: yes or no
    #[arg(long, value_name = "yes|no", default_value = "yes")]
    pin: YesNo,
}

/// Sizes to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes(Vec<Bytes>);

/// Measures and prints a table for each number of workers.
pub fn run(options: &Options) -> Result<()> {
    let program = outcome::own_program()?;
    let cores = machine::cores();
    let workers = if options.workers.is_empty() {
        default_workers(machine::granted())
    } else {
        options.workers.clone()
    };
    for world in workers {
        if world as usize > cores {
            let on = words::cores(cores as u32);
            say(&format!("warning: {world} workers on {on} take turns; times include the waiting"));
        }
        let rows = measure::all_reduce(&program, world, &options.sizes.0, options.pin.0)?;
        let heading = format!("\nall-reduce (sum, float) between {world} processes of this machine\n");
        print(&format!("{heading}{}", render(&rows)))?;
    }
    print(
        "\nalgbw is size over time, busbw is algbw times 2 (N - 1) / N. memcpy is a private copy of the size by all\n\
         processes at once: it reads and writes as much as a rank of the all-reduce, and also fetches what it overwrites.\n",
    )
}

fn default_workers(cores: usize) -> Vec<u32> {
    let powers = (1..=10).map(|power| 1u32 << power).take_while(|&world| world as usize <= cores);
    let powers: Vec<u32> = powers.collect();
    if powers.is_empty() { vec![2] } else { powers }
}

fn render(rows: &[Row]) -> Table {
    let mut table = Table::new([
        ("size B", Align::Right),
        ("values", Align::Right),
        ("time us", Align::Right),
        ("least us", Align::Right),
        ("algbw GB/s", Align::Right),
        ("busbw GB/s", Align::Right),
        ("wrong", Align::Right),
        ("memcpy GB/s", Align::Right),
    ]);
    for Row { reduced, copied } in rows {
        table.row([
            reduced.bytes.0.to_string(),
            (reduced.bytes.0 / 4).to_string(),
            format!("{:.1}", reduced.time.0 as f64 / 1e3),
            format!("{:.1}", reduced.fastest.0 as f64 / 1e3),
            format!("{:.2}", reduced.algbw),
            format!("{:.2}", reduced.busbw),
            reduced.wrong.to_string(),
            format!("{:.2}", copied.bandwidth),
        ]);
    }
    table
}

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    if let Some((first, last)) = text.split_once("..") {
        let (first, last) = (parse_size(first)?, parse_size(last)?);
        if first > last {
            return Err(format!("{first} bytes are more than {last}; put the smaller size first"));
        }
        let doubled = std::iter::successors(Some(first), |size| size.checked_mul(2));
        return Ok(Sizes(doubled.take_while(|&size| size <= last).map(Bytes).collect()));
    }
    text.split(',').map(|part| parse_size(part).map(Bytes)).collect::<Result<_, _>>().map(Sizes)
}

fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; use bytes, or K, M, G behind a number, as 94M");
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1u64),
    };
    let size = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)?;
    if size < 4 { Err("a size is at least the 4 bytes of one value".into()) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_lists_or_doublings() {
        let sizes = |text| parse_sizes(text).map(|sizes| sizes.0.iter().map(|b| b.0).collect::<Vec<_>>());
        assert_eq!(sizes("4K..32K"), Ok(vec![4096, 8192, 16384, 32768]));
        assert_eq!(sizes("4,1M"), Ok(vec![4, 1 << 20]));
        for wrong in ["", "K", "3", "8K..4K", "4T", "-4", "99999999999999G"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }
}
