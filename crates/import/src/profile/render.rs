//! A profile as text.

use paceline_lab::{Align, Table, names, words};
use paceline_record::Nanos;

use super::{Profile, Share, Work};

/// A profile on one screen.
pub fn render(profile: &Profile) -> String {
    let mut text = head(profile);
    if !profile.kernels.is_empty() {
        let what = if profile.has_device { "kernels" } else { "operators" };
        text += &list(what, &profile.kernels);
    }
    if !profile.copies.is_empty() {
        text += &list("copies", &profile.copies);
    }
    if !profile.collectives.is_empty() {
        text += &list("collectives", &profile.collectives);
    }
    text += &gaps(profile);
    if !profile.ranges.is_empty() {
        text += &list("ranges", &profile.ranges);
    }
    for warning in &profile.warnings {
        text += &format!("{}\n", words::wrap(&format!("note: {}", words::plain(warning))));
    }
    text
}

fn head(profile: &Profile) -> String {
    let whose = if profile.has_device { "devices" } else { "host (no device in the profile)" };
    let mut text = format!("{}, starting at {}", time(profile.length), time(profile.from));
    if profile.length < profile.whole {
        text += &format!(" of {}", time(profile.whole));
    }
    if profile.stretches > 1 {
        text += &format!(", in {} pieces", profile.stretches);
    }
    text.push('\n');
    if let Some(part) = profile.dominant {
        text += &format!("{}\n", words::wrap(&verdict(part, profile)));
    }
    let all = profile.length.0;
    let parts: Vec<String> = profile
        .breakdown
        .parts()
        .iter()
        .filter(|(_, part)| part.0 as f64 >= 0.0005 * all as f64 && part.0 > 0)
        .map(|(part, time)| format!("{} {}", percent(time.0, all), word(*part)))
        .collect();
    if !parts.is_empty() {
        text += &format!("{}\n", words::wrap(&format!("{whose}: {}", parts.join(", "))));
    }
    for device in &profile.devices {
        let name =
            device.name.as_deref().map_or_else(String::new, |name| format!(" ({})", names::clean(name)));
        let busy = words::or_dash(device.utilisation, |busy| format!("{:.1} %", 100.0 * busy));
        let line = format!("device {}{name}: busy {busy}, {}", device.device, time(device.busy));
        text += &format!("{}\n", words::wrap(&line));
    }
    if let Some(median) = profile.step_median {
        text += &match profile.steps {
            1 => format!("1 step of {}\n", time(median)),
            steps => format!("{steps} steps of {} (median)\n", time(median)),
        };
    }
    text
}

fn word(part: Share) -> &'static str {
    match part {
        Share::Compute => "computation",
        Share::Collective => "exposed communication",
        Share::HostCopies => "exposed copies between host and device",
        Share::DeviceCopies => "copies on the device",
        Share::Idle => "idle",
        Share::Unknown => "unknown",
    }
}

fn verdict(part: Share, profile: &Profile) -> String {
    let copies = profile.breakdown.host_copies.0;
    let all = profile.length.0;
    let taken = match copies as f64 >= 0.0005 * all as f64 && copies > 0 {
        true => format!("; input and output take {}", percent(copies, all)),
        // A profile without any copy may not show them.
        false if profile.copies.is_empty() => String::new(),
        false => "; input and output do not slow it down".into(),
    };
    match part {
        Share::Compute => format!("computation dominates{taken}"),
        Share::Collective => {
            format!("communication dominates: computation does not hide the collectives{taken}")
        }
        Share::HostCopies => {
            "input and output dominate: the device mostly copies from and to the host".into()
        }
        Share::DeviceCopies => format!("copies on the device dominate{taken}"),
        Share::Unknown => "most of the time is unknown: the profile does not show all work".into(),
        Share::Idle => {
            let causes = profile.idle.unwrap_or_default().causes();
            let most = causes.iter().rev().max_by_key(|(time, _)| *time).map_or("", |(_, cause)| *cause);
            let why = match most {
                "start-up and shut-down" => {
                    ", before its first work or after its last: the host sets it up or shuts it down"
                }
                "host late" => {
                    ": the host is late, busy in calls and operators before it launches the next work"
                }
                "waiting in a stream" => " although work is queued: it waits in its stream for other work",
                "nothing queued" => {
                    ": nothing is queued, and the profile shows no activity on the host (Python, input, start-up)"
                }
                "getting a batch" => ": it waits for input while the host gets a batch",
                _ => "; the profile does not show why",
            };
            let idle = match 2 * u128::from(profile.breakdown.idle.unwrap_or_default().0) > u128::from(all) {
                true => "the device is idle most of the time",
                false => "idle time of the device is the largest part",
            };
            format!("{idle}{why}{taken}")
        }
    }
}

fn list(title: &str, rows: &[Work]) -> String {
    let moved = rows.iter().any(|row| row.bytes.is_some());
    let mut header =
        vec![(title, Align::Left), ("count", Align::Right), ("total", Align::Right), ("mean", Align::Right)];
    header.push(("% of time", Align::Right));
    if moved {
        header.extend([("moved", Align::Right), ("GB/s", Align::Right)]);
    }
    let mut table = Table::new(header);
    for (row, name) in rows.iter().zip(names::shorten(rows.iter().map(|row| row.name.as_str()))) {
        let mut cells = vec![name, row.count.to_string(), time(row.total), time(row.mean)];
        cells.push(format!("{:.1} %", 100.0 * row.fraction));
        if moved {
            cells.push(words::or_dash(row.bytes, words::bytes));
            cells.push(words::or_dash(row.bytes_per_s, |rate| format!("{:.2}", rate * 1e-9)));
        }
        table.row(cells);
    }
    format!("\n{table}")
}

fn gaps(profile: &Profile) -> String {
    let causes = profile.idle.unwrap_or_default().causes();
    let all = profile.breakdown.idle.unwrap_or_default();
    if all.is_zero() {
        return String::new();
    }
    let occurring: Vec<String> = causes
        .iter()
        .filter(|(time, _)| time.0 > 0)
        .map(|(length, why)| format!("{} {why}", time(*length)))
        .collect();
    // Causes that no gap has are left out.
    let shown = |at: usize| profile.gaps.iter().any(|gap| !gap.idle.causes()[at].0.is_zero());
    let columns: Vec<usize> = (0..causes.len()).filter(|&at| shown(at)).collect();
    let header = [("gaps", Align::Left), ("at", Align::Right)].into_iter();
    let header = header.chain(columns.iter().map(|&at| (causes[at].1, Align::Right)));
    let mut table = Table::new(header.chain([("on the host", Align::Left)]));
    for gap in &profile.gaps {
        let host = words::or_dash(gap.host.as_deref(), names::clean);
        let cells = columns.iter().map(|&at| time(gap.idle.causes()[at].0));
        table.row([time(gap.length), time(gap.from)].into_iter().chain(cells).chain([host]));
    }
    let line = words::wrap(&format!("idle {}: {}", time(all), occurring.join(", ")));
    format!("\n{line}\n{table}")
}

/// A part of a whole in percent.
pub fn percent(part: u64, all: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64)
}

/// A time with three or four digits.
pub fn time(time: Nanos) -> String {
    match time.0 {
        0 => "0".into(),
        nanos @ 1..1000 => format!("{nanos} ns"),
        nanos @ 1000..1_000_000 => format!("{:.1} us", nanos as f64 * 1e-3),
        nanos @ 1_000_000..1_000_000_000 => format!("{:.2} ms", nanos as f64 * 1e-6),
        nanos => format!("{:.3} s", nanos as f64 * 1e-9),
    }
}
