//! `paceline allreduce`: how fast workers or hosts exchange, in the terms of nccl-tests.

use anyhow::Result;
use clap::{Args, Command};
use paceline_comm::measure::{AllReduceRow, CopyRow};
use paceline_lab::{Align, Table, words};
use paceline_record::Bytes;
use paceline_train::hosts::HostCount;
use paceline_train::measure;

use crate::hosts::{HostSettings, Place};
use crate::machine;
use crate::outcome::{self, Usage, print, say};
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
    /// Whether each worker keeps to a core of its own: yes or no [default: yes]
    #[arg(long, value_name = "yes|no")]
    pin: Option<YesNo>,
    #[command(flatten)]
    hosts: HostSettings,
}

impl Options {
    /// Says what the options of several hosts mean here.
    pub fn describe(command: Command) -> Command {
        let hosts = "Measure between so many hosts, with one worker and the same command on each; the first one's sizes count";
        command.mut_arg("hosts", |arg| arg.help(hosts).value_name("N"))
    }
}

/// Sizes to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes(Vec<Bytes>);

/// Measures and prints a table for each number of workers.
pub fn run(options: &Options) -> Result<()> {
    let mut hosts = options.hosts.clone();
    let place = hosts.begin()?;
    if let Some(count) = hosts.hosts {
        return run_between(count, options, &hosts, place);
    }
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
        let rows =
            measure::all_reduce(&program, world, &options.sizes.0, options.pin.is_none_or(|pin| pin.0))?;
        let heading = format!("\nall-reduce (sum, float) between {world} processes of this machine\n");
        let (reduced, copied): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.reduced, row.copied)).unzip();
        print(&format!("{heading}{}", render(&reduced, Some(&copied), None)))?;
    }
    print(
        "\nalgbw is size over time, busbw is algbw times 2 (N - 1) / N. memcpy is a private copy of the size by all\n\
         processes at once: it reads and writes as much as a rank of the all-reduce, and also fetches what it overwrites.\n",
    )
}

/// Measures between hosts, and prints the table on the first.
fn run_between(
    HostCount { min, max: hosts }: HostCount,
    options: &Options,
    settings: &HostSettings,
    place: Place,
) -> Result<()> {
    if !options.workers.is_empty() {
        return Err(
            Usage::new("between hosts there is one worker on each; leave --workers or --hosts out").into()
        );
    }
    if options.pin.is_some() {
        return Err(Usage::new("between hosts no worker keeps to a core; leave --pin or --hosts out").into());
    }
    if min < hosts {
        let reason = format!("--hosts {min}:{hosts} is for hosts that come and go; say one number");
        return Err(Usage::new(reason).into());
    }
    if hosts < 2 {
        return Err(Usage::new("an all-reduce between hosts needs at least 2; use --hosts 2").into());
    }
    let (meeting, _note) = settings.meet(place)?.expect("invariant: hosts were asked for");
    let Some(rows) = measure::between_hosts(&meeting, hosts, &options.sizes.0)? else {
        return print(&format!("{} took part; the table is with the first host\n", meeting.name));
    };
    let (reduced, library): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.reduced, row.library)).unzip();
    let library: Option<Vec<AllReduceRow>> = library.into_iter().collect();
    let more = match &library {
        Some(_) => " MPI_Allreduce is the library's own (sum);\nof it is its time over ours.",
        None => "",
    };
    print(&format!(
        "\nall-reduce (mean, float) between {hosts} hosts{}\n{}\nalgbw is size over time, busbw is algbw times 2 (N - 1) / N.{more}\n",
        if options.hosts.local { ", all on this machine" } else { "" },
        render(&reduced, None, library.as_deref()),
    ))
}

fn default_workers(cores: usize) -> Vec<u32> {
    let powers = (1..=10).map(|power| 1u32 << power).take_while(|&world| world as usize <= cores);
    let powers: Vec<u32> = powers.collect();
    if powers.is_empty() { vec![2] } else { powers }
}

fn render(rows: &[AllReduceRow], copied: Option<&[CopyRow]>, library: Option<&[AllReduceRow]>) -> Table {
    let columns = ["size B", "values", "time us", "least us", "algbw GB/s", "busbw GB/s", "wrong"];
    let columns = columns.into_iter().chain(copied.map(|_| "memcpy GB/s"));
    let columns = columns.chain(library.into_iter().flat_map(|_| ["MPI_Allreduce us", "of it"]));
    let mut table = Table::new(columns.map(|name| (name, Align::Right)));
    for (place, row) in rows.iter().enumerate() {
        let cells = [
            row.bytes.0.to_string(),
            (row.bytes.0 / 4).to_string(),
            format!("{:.1}", row.time.0 as f64 / 1e3),
            format!("{:.1}", row.fastest.0 as f64 / 1e3),
            format!("{:.2}", row.algbw),
            format!("{:.2}", row.busbw),
            row.wrong.to_string(),
        ];
        let copied = copied.map(|copied| format!("{:.2}", copied[place].bandwidth));
        let library = library.map(|library| library[place].time.0 as f64);
        let library = library.into_iter().flat_map(|time| {
            [format!("{:.1}", time / 1e3), format!("{:.2}", time / (row.time.0 as f64).max(1.0))]
        });
        table.row(cells.into_iter().chain(copied).chain(library));
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
