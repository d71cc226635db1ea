//! A profile as text.

use paceline_lab::{Align, Table, names, words};
use paceline_record::Nanos;

use super::{CAUSES, Profile, Share, Work};
use crate::split::Part;

/// A profile on one screen.
pub fn render(profile: &Profile) -> String {
    let mut text = head(profile);
    let kernels = if profile.has_device { "kernels" } else { "operators" };
    for (title, rows) in
        [(kernels, &profile.kernels), ("copies", &profile.copies), ("exchanges", &profile.collectives)]
    {
        text += &list(title, title, rows);
    }
    text += &gaps(profile);
    text += &list("ranges", &time(profile.length), &profile.ranges);
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
    let shares = profile.shares.keys().filter(|share| is_notable(**share, profile));
    let shares: Vec<String> =
        shares.map(|share| format!("{} {}", taken(*share, profile), word(*share))).collect();
    if !shares.is_empty() {
        text += &format!("{}\n", words::wrap(&format!("{whose}: {}", shares.join(", "))));
    }
    for device in &profile.devices {
        let name = device
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
            .map_or_else(String::new, |name| format!(" ({})", names::clean(name)));
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

/// Whether it takes more than rounds to nothing.
fn is_notable(share: Share, profile: &Profile) -> bool {
    let time = profile.time(share).0;
    time > 0 && time as f64 >= 0.0005 * profile.length.0 as f64
}

/// What a share takes of the window.
fn taken(share: Share, profile: &Profile) -> String {
    percent(profile.time(share).0, profile.length.0)
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
    let copies = is_notable(Share::HostCopies, profile);
    let taken = || format!("; copies between host and device take {}", taken(Share::HostCopies, profile));
    let taken = copies.then(taken).unwrap_or_default();
    match part {
        Share::Compute => format!("computation dominates{taken}"),
        Share::Collective => {
            format!("communication dominates: computation does not hide the collectives{taken}")
        }
        Share::HostCopies => {
            "copies between host and device dominate: nothing else runs in the meantime".into()
        }
        Share::DeviceCopies => format!("copies on the device dominate{taken}"),
        Share::Unknown => "most of the time is unknown: the profile does not show all work".into(),
        Share::Idle => {
            let time = |(cause, _): &(Part, &str)| profile.idle.as_ref().map(|idle| idle[cause]);
            let why = match CAUSES.into_iter().rev().max_by_key(time) {
                Some((Part::SetUp, _)) => {
                    ", before its first work or after its last: the host sets it up or shuts it down"
                }
                Some((Part::HostLate, _)) => {
                    ": the host is late, busy in calls and operators before it launches the next work"
                }
                Some((Part::Queued, _)) => {
                    " although work is queued: it does not begin, and the trace does not show what it waits for"
                }
                Some((Part::NothingQueued, _)) => {
                    ": nothing is queued, and no thread that launches work is in a call or an operator (Python, input, \
                     start-up)"
                }
                Some((Part::Loading, _)) => ": it waits for input while the host gets a batch",
                _ => "; the profile does not show why",
            };
            let idle = match profile.time(Share::Idle).0 > profile.length.0 / 2 {
                true => "the device is idle most of the time",
                false => "idle time of the device is the largest part",
            };
            format!("{idle}{why}{taken}")
        }
    }
}

/// A list of work; `whole` is what its fractions are of.
fn list(title: &str, whole: &str, rows: &[Work]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let columns = if rows.iter().any(|row| row.bytes.is_some()) { 6 } else { 4 };
    let share = format!("% of {whole}");
    let numbers = ["count", "total", "mean", &share, "moved", "GB/s"].map(|name| (name, Align::Right));
    let mut table = Table::new([(title, Align::Left)].into_iter().chain(numbers).take(1 + columns));
    let moved = |row: &Work| match row.sized < row.count {
        true => words::or_dash(row.bytes, |bytes| {
            format!("{} in {} of {}", words::bytes(bytes), row.sized, row.count)
        }),
        false => words::or_dash(row.bytes, words::bytes),
    };
    for (row, name) in rows.iter().zip(names::shorten(rows.iter().map(|row| row.name.as_str()))) {
        let cells = [
            name,
            row.count.to_string(),
            time(row.total),
            time(row.mean),
            format!("{:.1} %", 100.0 * row.fraction),
            moved(row),
            words::or_dash(row.bytes_per_s, |rate| format!("{:.2}", rate * 1e-9)),
        ];
        table.row(cells.into_iter().take(1 + columns));
    }
    format!("\n{table}")
}

fn gaps(profile: &Profile) -> String {
    let Some(idle) = &profile.idle else { return String::new() };
    let all = profile.time(Share::Idle);
    if all.is_zero() {
        return String::new();
    }
    let occurring = CAUSES.iter().filter(|(cause, _)| !idle[cause].is_zero());
    let occurring: Vec<String> =
        occurring.map(|(cause, why)| format!("{} {why}", time(idle[cause]))).collect();
    // Causes that no gap has are left out.
    let shown = |(cause, _): &&(Part, &str)| profile.gaps.iter().any(|gap| !gap.idle[cause].is_zero());
    let columns = || CAUSES.iter().filter(shown);
    let header = [("gaps", Align::Left), ("at", Align::Right)].into_iter();
    let header = header.chain(columns().map(|(_, why)| (*why, Align::Right)));
    let mut table = Table::new(header.chain([("on the host", Align::Left)]));
    for gap in &profile.gaps {
        let host = words::or_dash(gap.host.as_deref(), names::clean);
        let cells = columns().map(|(cause, _)| time(gap.idle[cause]));
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
