//! What would spoil a measurement, and what a study could ask for.

use paceline_record::{Bytes, Nanos};

use super::super::facts::{Busy, Count, Facts, Limit, Need, Spin};
use super::super::probe::GAP;
use super::{Check, Finding, Section, gigabytes, judge, percent, plural};

/// Load for each core above which others are at work.
const LOAD: f64 = 0.3;

/// Fractions of the cores' time that others may take: the first is worth a note, the second a warning. The kernel counts in
/// ticks of 10 ms, so that half a second on two cores tells 1 % from nothing.
const BUSY: (f64, f64) = (0.03, 0.10);

/// The same for time that a hypervisor takes.
const STOLEN: (f64, f64) = (0.005, 0.02);

/// The same for time lost in gaps, on the worst core: all ranks wait for the slowest.
const LOST: (f64, f64) = (0.002, 0.01);

/// A gap this long is another process's turn on the core.
const TURN: Nanos = Nanos(2_000_000);

/// A core that computes at less of its highest frequency is held back.
const SLOW_CORE: f64 = 0.6;

/// A clock read without a system call takes some 20 to 50 ns.
const SLOW_CLOCK: Nanos = Nanos(200);

pub fn measurement(facts: &Facts) -> Vec<Check> {
    let (speed, activity, probe) = (&facts.speed, &facts.activity, &facts.probe);
    let spins = probe.spins.as_deref().filter(|spins| !spins.is_empty());
    let named = [
        ("governor", speed.governors.as_deref().map(governor)),
        ("boost", speed.boost.map(boost)),
        ("frequency", spins.zip(speed.highest_khz).and_then(|(spins, highest)| frequency(spins, highest))),
        ("heat", speed.heat.map(heat)),
        ("quota", facts.processor.quota.map(quota)),
        ("throttling", throttling(facts)),
        ("load", load(facts)),
        ("others", activity.busy.map(|busy| others(busy, activity.busiest.as_deref().unwrap_or_default()))),
        ("stolen time", activity.stolen.map(stolen)),
        ("jitter", spins.map(jitter)),
        ("clock", probe.clock.as_deref().zip(probe.reading).map(|(source, reading)| clock(source, reading))),
    ];
    named
        .into_iter()
        .map(|(what, finding)| judge(Section::Measurement, what, finding, |finding| finding))
        .collect()
}

fn governor(governors: &[String]) -> Finding {
    let value = governors.join(", ");
    if value == "performance" {
        return Finding::ok(value);
    }
    Finding::warning(
        value,
        "Cores change their speed with what they did last: cpupower frequency-set -g performance",
    )
}

fn boost(on: bool) -> Finding {
    if !on {
        return Finding::ok("off");
    }
    Finding::note(
        "on",
        "One busy core runs faster than all together, which makes speed-ups look small. To switch it off: \
         echo 0 > /sys/devices/system/cpu/cpufreq/boost, or echo 1 > .../intel_pstate/no_turbo",
    )
}

fn frequency(spins: &[Spin], highest: u64) -> Option<Finding> {
    let slowest = spins.iter().filter_map(|spin| spin.khz).min()?;
    let gigahertz = |khz: u64| format!("{:.2} GHz", khz as f64 * 1e-6);
    let value = format!("{} under load, at most {}", gigahertz(slowest), gigahertz(highest));
    Some(if (slowest as f64) < SLOW_CORE * highest as f64 {
        Finding::warning(
            value,
            "Something holds the cores back: a power limit, heat, the governor, or their number.",
        )
    } else {
        Finding::ok(value)
    })
}

fn heat(count: Count) -> Finding {
    match count {
        Count { now: 1.., .. } => Finding::warning(
            format!("slowed {} just now", plural(count.now as usize, "time")),
            "The processor is too hot to keep its speed: see to its cooling, or lower its frequency.",
        ),
        Count { total: 1.., .. } => Finding::note(
            format!("slowed {} since the start", plural(count.total as usize, "time")),
            "Long studies may run hot. Look for step times that grow.",
        ),
        _ => Finding::ok("never slowed"),
    }
}

fn quota(limit: Limit<f64>) -> Finding {
    match limit {
        Limit::Unlimited => Finding::ok("none"),
        Limit::At(cores) if (cores - cores.round()).abs() > 0.01 || cores < 0.99 => Finding::warning(
            format!("{cores:.2} cores"),
            "Not a whole number of cores: workers that fill them are stopped in turns. Grant whole cores.",
        ),
        Limit::At(cores) => Finding::ok(plural(cores.round() as usize, "core")),
    }
}

fn throttling(facts: &Facts) -> Option<Finding> {
    Some(match facts.speed.throttled {
        Some(Count { now: 1.., .. }) => Finding::warning(
            "stopped by the quota just now",
            "Something else in this control group uses its time: end it, or raise the quota.",
        ),
        Some(Count { total: total @ 1.., .. }) => Finding::note(
            format!("stopped {} before", plural(total as usize, "time")),
            "Keep workers times threads at or below the quota.",
        ),
        Some(_) => Finding::ok("none"),
        None if facts.processor.quota == Some(Limit::Unlimited) => Finding::ok("none"),
        None => return None,
    })
}

fn load(facts: &Facts) -> Option<Finding> {
    // Load counts the whole machine, not our part of it.
    let cores = facts.processor.online.as_ref().map(Vec::len).or(facts.processor.usable())?;
    let load = facts.activity.load?;
    let value = format!("{load:.2} on {}", plural(cores, "hardware thread"));
    Some(if load > LOAD * cores as f64 {
        Finding::warning(value, "Over the last minute others were at work: end them, then wait for a minute.")
    } else {
        Finding::ok(value)
    })
}

fn others(busy: f64, busiest: &[Busy]) -> Finding {
    let value = format!("{} of the cores' time", percent(busy));
    if busy <= BUSY.0 {
        return Finding::ok(value);
    }
    let names: Vec<String> =
        busiest.iter().map(|process| format!("{} ({:.1} cores)", process.name, process.cores)).collect();
    let advice = match names.as_slice() {
        [] => "Other processes, not visible from here, use these cores.".into(),
        names => format!("Others use these cores: {}. End them first.", names.join(", ")),
    };
    if busy > BUSY.1 { Finding::warning(value, advice) } else { Finding::note(value, advice) }
}

fn stolen(fraction: f64) -> Finding {
    let value = percent(fraction);
    let advice =
        "The hypervisor gives these cores to other machines: ask for cores of your own, or repeat elsewhere.";
    match fraction {
        fraction if fraction > STOLEN.1 => Finding::warning(value, advice),
        fraction if fraction > STOLEN.0 => Finding::note(value, advice),
        _ => Finding::ok(value),
    }
}

fn jitter(spins: &[Spin]) -> Finding {
    let worst = spins.iter().max_by(|one, other| one.lost.total_cmp(&other.lost));
    let lost = worst.map_or(0.0, |spin| spin.lost);
    let longest = spins.iter().map(|spin| spin.longest).max().unwrap_or_default();
    let value = match longest {
        longest if longest > GAP => format!("{} lost, longest gap {}", percent(lost), write_time(longest)),
        longest => format!("none lost, longest gap {}", write_time(longest)),
    };
    let on =
        worst.filter(|_| spins.len() > 1).map_or(String::new(), |spin| format!(" (core {} most)", spin.core));
    let advice = "Cores were taken away from a thread that did nothing else, and every rank waits for the slowest: end \
                  other processes, keep a core free for the system, isolate cores.";
    if lost > LOST.1 || longest > TURN {
        Finding::warning(value + &on, advice)
    } else if lost > LOST.0 {
        Finding::note(value + &on, advice)
    } else {
        Finding::ok(value)
    }
}

fn write_time(time: Nanos) -> String {
    match time.0 {
        0..1_000 => format!("{} ns", time.0),
        1_000..1_000_000 => format!("{} us", time.0 / 1_000),
        _ => format!("{:.1} ms", time.0 as f64 * 1e-6),
    }
}

fn clock(source: &str, reading: Nanos) -> Finding {
    let value = format!("{source}, {} a reading", write_time(reading));
    if reading > SLOW_CLOCK {
        return Finding::warning(
            value,
            "Slow readings weigh on short layers: boot with clocksource=tsc if the processor's counter is stable.",
        );
    }
    match source {
        "tsc" | "arch_sys_counter" => Finding::ok(value),
        _ => Finding::note(value, "Not the processor's own counter, but quick enough."),
    }
}

pub fn study(facts: &Facts) -> Vec<Check> {
    let most = facts.processor.workers();
    let workers =
        most.map(|most| Finding::ok(format!("up to {most}, a core each: --workers {}", write_workers(most))));
    let mut checks = vec![judge(Section::Study, "workers", workers, |finding| finding)];
    let needs = facts.needs.as_deref().zip(most).map(|(needs, most)| memory(facts, needs, most));
    checks.push(judge(Section::Study, "memory for them", needs.flatten(), |finding| finding));
    checks
}

/// Powers of two, and the largest number.
fn write_workers(most: usize) -> String {
    let mut numbers: Vec<usize> = (0..).map(|power| 1 << power).take_while(|&number| number < most).collect();
    numbers.push(most);
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

fn memory(facts: &Facts, needs: &[Need], most: usize) -> Option<Finding> {
    let largest = needs.iter().max_by_key(|need| need.worker)?;
    let left = facts.memory.left()?;
    let all = largest.worker.0.saturating_mul(most as u64);
    let value = format!(
        "{} of {} for {} on {}",
        gigabytes(Bytes(all)),
        gigabytes(left),
        largest.model,
        plural(most, "worker")
    );
    let fit = left.0 / largest.worker.0.max(1);
    if all > left.0 {
        let advice =
            format!("Not enough: use a smaller --batch, or at most {}.", plural(fit as usize, "worker"));
        return Some(Finding::warning(value, advice));
    }
    let shared = largest.shared.map(|shared| shared.0.saturating_mul(most as u64));
    match (facts.memory.largest_file, shared) {
        (Some(Limit::At(file)), Some(shared)) if most > 1 && shared > file.0 => Some(Finding::warning(
            value,
            format!("Shared memory may have only {}: ulimit -f unlimited", gigabytes(file)),
        )),
        _ => Some(Finding::ok(value)),
    }
}
