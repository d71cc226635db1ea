//! `report.csv`: one row per case, as in RFC 4180. A cell is empty if its number is unknown.
//!
//! Numbers are written so that reading them back gives the same bits. Column names do not change between versions; settings, as
//! `setting_<name>`, come last.

use std::collections::BTreeSet;

use paceline_record::{Bytes, Member, Phase, Rank, Who};

use crate::numbers::memory::Memory;
use crate::numbers::recovery::Recovery;
use crate::numbers::waterfall::Cause;
use crate::{CaseReport, Report};

/// The whole table.
pub fn render(report: &Report) -> String {
    let settings = report.cases.iter().flat_map(|case| case.case.settings.keys());
    let settings: BTreeSet<String> = settings.map(|name| snake(name)).collect();
    let rows: Vec<Row> = report.cases.iter().map(|case| row(case, &settings)).collect();
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    let mut write = |cells: Vec<&str>| writer.write_record(cells).expect("invariant: rows are equally long");
    if let Some(first) = rows.first() {
        write(first.iter().map(|(name, _)| name.as_str()).collect());
    }
    for row in &rows {
        write(row.iter().map(|(_, cell)| cell.as_deref().unwrap_or_default()).collect());
    }
    let bytes = writer.into_inner().expect("invariant: memory can be written to");
    String::from_utf8(bytes).expect("invariant: made of text")
}

/// Names of columns with their cells. The names are the same for every case of a study.
type Row = Vec<(String, Option<String>)>;

fn row(case: &CaseReport, settings: &BTreeSet<String>) -> Row {
    let setting = |column: &String| {
        let mut held = case.case.settings.iter();
        let value = held.find(|(name, _)| snake(name) == *column).map(|(_, value)| value.clone());
        (format!("setting_{column}"), value)
    };
    let mut row = asked(case);
    row.extend(measured(case));
    row.extend(spent(case));
    row.extend(steps_and_ranks(case));
    row.extend(learned(case));
    row.extend(members(case));
    row.extend(settings.iter().map(setting));
    row
}

/// What was run, and how it ended.
fn asked(report: &CaseReport) -> Row {
    let case = &report.case;
    let status = report.status.name();
    vec![
        cell("model", Some(&case.model)),
        cell("engine", case.engine.as_ref()),
        cell("layout", case.layout.as_ref()),
        cell("precision", case.precision.as_ref()),
        cell("update", case.update.as_ref()),
        cell("scaling", case.scaling.as_ref()),
        cell("workers", Some(case.workers)),
        cell("batch_per_worker", case.batch_per_worker),
        cell("global_batch", case.global_batch),
        cell("threads", case.threads),
        cell("input", case.input.as_ref()),
        cell("classes", case.classes),
        cell("epoch_examples", case.epoch_examples),
        cell("status", Some(status)),
        cell("reason", report.reason.as_ref()),
        cell("repeats", Some(report.repeats)),
        cell("examples", report.examples),
        cell("steps", Some(report.steps)),
    ]
}

/// Times, rates and speed-ups.
fn measured(case: &CaseReport) -> Row {
    let rate = case.images_per_s;
    let fixed = case.fixed;
    let mut row = vec![
        number("init_s", case.init_s),
        number("train_s", case.train_s),
        number("paused_s", case.paused_s),
        number("total_s", case.total_s),
        number("images_per_s_median", rate.map(|rate| rate.median)),
        number("images_per_s_mean", rate.map(|rate| rate.mean)),
        number("images_per_s_lo", rate.and_then(|rate| rate.lo)),
        number("images_per_s_hi", rate.and_then(|rate| rate.hi)),
        number("speedup_speed", case.speedup_speed),
        number("speedup_time", case.speedup_time),
        number("speedup_total", case.speedup_total),
        number("efficiency_speed", case.efficiency_speed),
        number("efficiency_time", case.efficiency_time),
        number("fixed_s", fixed.map(|fixed| fixed.seconds)),
        number("fixed_share", fixed.map(|fixed| fixed.fraction)),
        cell("fixed_enough_steps", fixed.map(|fixed| fixed.enough_steps)),
    ];
    for (name, interval) in [
        ("speedup_speed", case.speedup_speed_interval),
        ("speedup_time", case.speedup_time_interval),
        ("speedup_total", case.speedup_total_interval),
        ("efficiency_speed", case.efficiency_speed_interval),
        ("efficiency_time", case.efficiency_time_interval),
    ] {
        row.push(number(&format!("{name}_interval_lo"), interval.map(|interval| interval.lo)));
        row.push(number(&format!("{name}_interval_hi"), interval.map(|interval| interval.hi)));
    }
    row
}

/// Where time and memory went.
fn spent(case: &CaseReport) -> Row {
    let phase = |phase: Phase| {
        number(
            &format!("phase_{phase}_s"),
            case.phases_s.as_ref().and_then(|times| times.get(&phase).copied()),
        )
    };
    let cost = |cause: Cause| {
        let parts = case.cost.as_ref().map(|cost| &cost.parts);
        let part = parts.and_then(|parts| parts.iter().find(|part| part.cause == cause));
        number(&format!("cost_{}_s", column(cause)), part.map(|part| part.seconds))
    };
    let bytes =
        |name, memory: Option<Memory>, of: fn(Memory) -> Bytes| cell(name, memory.map(|memory| of(memory).0));
    let mut row: Row = Phase::ALL.map(phase).into();
    row.extend([
        number("off_core_s", case.off_core.as_ref().map(|off| off.seconds)),
        number("comm_wait_late_rank_s", case.comm_wait_split_s.map(|split| split.late_rank)),
        number("comm_wait_transfer_s", case.comm_wait_split_s.map(|split| split.transfer)),
        number("comm_busy_s", case.comm_busy_s),
        number("overlap", case.overlap),
        number("communication_share", case.communication_fraction),
        number("communication_ratio", case.communication_ratio),
        number("computation_s", case.computation_s),
        number("cost_s", case.cost.as_ref().map(|cost| cost.seconds)),
    ]);
    row.extend(Cause::ALL.map(cost));
    row.extend([
        bytes("peak_memory_per_worker_bytes", case.peak_memory_bytes, |memory| memory.per_worker),
        bytes("peak_memory_total_bytes", case.peak_memory_bytes, |memory| memory.total),
        bytes("planned_memory_per_worker_bytes", case.planned_memory_bytes, |memory| memory.per_worker),
        bytes("planned_memory_total_bytes", case.planned_memory_bytes, |memory| memory.total),
    ]);
    row
}

/// Spread of steps and ranks, and the steady state.
fn steps_and_ranks(case: &CaseReport) -> Row {
    let (late, spread, steady) = (case.straggler, case.dispersion, case.steady);
    let slowest = spread.and_then(|spread| spread.slowest);
    vec![
        cell("straggler_rank", late.and_then(|late| rank(late.who))),
        number("straggler_share", late.map(|late| late.fraction)),
        number("straggler_steps_share", late.map(|late| late.steps_fraction)),
        number("straggler_work_ratio", late.and_then(|late| late.work_ratio)),
        number("step_p50_s", spread.map(|spread| spread.p50_s)),
        number("step_p95_s", spread.map(|spread| spread.p95_s)),
        number("step_p99_s", spread.map(|spread| spread.p99_s)),
        number("step_cv", spread.and_then(|spread| spread.cv)),
        cell("slowest_rank", slowest.and_then(|slowest| rank(slowest.who))),
        number("slowest_over_median", slowest.map(|slowest| slowest.over_median)),
        cell("steady_from_step", steady.map(|steady| steady.from_step)),
        cell("steady_verdict", steady.map(|steady| steady.verdict.name())),
        number("steady_slowdown_factor", steady.and_then(|steady| Some(steady.slowdown?.factor))),
        number("steady_slowdown_lost_s", steady.and_then(|steady| steady.slowdown?.lost_s)),
        cell("steady_slowdown_from_step", steady.and_then(|steady| Some(steady.slowdown?.from_step))),
        cell(
            "steady_slowdown_compared_steps",
            steady.and_then(|steady| Some(steady.slowdown?.compared_steps)),
        ),
        cell("steady_mser_step", steady.and_then(|steady| steady.mser_step)),
        cell("steady_mser_disagrees", steady.map(|steady| steady.mser_disagrees)),
        cell("steady_outliers", steady.map(|steady| steady.outliers)),
        number("loss_first", case.loss_first),
        number("loss_last", case.loss_last),
    ]
}

/// Loss and accuracy.
fn learned(case: &CaseReport) -> Row {
    let learned = case.learning.as_ref();
    let train = learned.and_then(|learned| learned.train);
    let mut row = vec![
        number("epochs", learned.and_then(|learned| learned.epochs)),
        number("epoch_s", learned.and_then(|learned| learned.epoch_s)),
        cell("step_examples", learned.map(|learned| learned.step_examples)),
        number("eval_s", learned.map(|learned| learned.eval_s)),
        number("checkpoint_s", learned.map(|learned| learned.checkpoint_s)),
        cell("train_examples", train.map(|train| train.examples)),
        number("train_loss", train.and_then(|train| train.loss)),
        number("train_accuracy", train.and_then(|train| train.accuracy)),
    ];
    let last = learned.and_then(|learned| learned.test);
    let best = learned.and_then(|learned| learned.best);
    for (name, test) in [("test", last), ("best", best)] {
        let part = |part: &str| format!("{name}_{part}");
        row.extend([
            cell(&part("steps"), test.map(|test| test.steps)),
            number(&part("epoch"), test.and_then(|test| test.epoch)),
            number(&part("seconds"), test.map(|test| test.seconds)),
            cell(&part("examples"), test.map(|test| test.examples)),
            number(&part("loss"), test.and_then(|test| test.loss)),
            number(&part("accuracy"), test.and_then(|test| test.accuracy)),
            number(&part("lo"), test.and_then(|test| test.lo)),
            number(&part("hi"), test.and_then(|test| test.hi)),
        ]);
    }
    row
}

const fn rank(who: Who) -> Option<Rank> {
    match who {
        Who::Rank(rank) => Some(rank),
        Who::Member(_) => None,
    }
}

const fn member(who: Who) -> Option<Member> {
    match who {
        Who::Member(member) => Some(member),
        Who::Rank(_) => None,
    }
}

/// What elastic cases have beside the others.
fn members(case: &CaseReport) -> Row {
    let recovery = case.recovery.as_ref();
    let count = |name: &str, of: fn(&Recovery) -> u64| cell(&format!("recovery_{name}"), recovery.map(of));
    let seconds =
        |name: &str, of: fn(&Recovery) -> f64| number(&format!("recovery_{name}"), recovery.map(of));
    let slowest = case.dispersion.and_then(|spread| spread.slowest);
    vec![
        number("mean_workers", case.mean_workers),
        cell("straggler_member", case.straggler.and_then(|late| member(late.who))),
        cell("slowest_member", slowest.and_then(|slowest| member(slowest.who))),
        count("losses", |recovery| recovery.losses),
        count("expulsions", |recovery| recovery.expulsions),
        count("replacements", |recovery| recovery.replacements),
        count("joins", |recovery| recovery.joins),
        count("leaves", |recovery| recovery.leaves),
        count("generations", |recovery| recovery.generations),
        count("hosts_lost", |recovery| recovery.hosts_lost),
        count("hosts_joined", |recovery| recovery.hosts_joined),
        count("hosts_left", |recovery| recovery.hosts_left),
        count("examples_redone", |recovery| recovery.examples_redone),
        seconds("phases_s_detect", |recovery| recovery.phases_s.detect),
        seconds("phases_s_fence", |recovery| recovery.phases_s.fence),
        seconds("phases_s_rebuild", |recovery| recovery.phases_s.rebuild),
        seconds("phases_s_state", |recovery| recovery.phases_s.state),
        seconds("phases_s_redo", |recovery| recovery.phases_s.redo),
        seconds("phases_s_sum", |recovery| recovery.phases_s.sum),
        seconds("worker_s_waiting", |recovery| recovery.worker_s.waiting),
        seconds("worker_s_unfinished", |recovery| recovery.worker_s.unfinished),
        seconds("worker_s_replacing", |recovery| recovery.worker_s.replacing),
        seconds("worker_s_sum", |recovery| recovery.worker_s.sum),
        seconds("share", |recovery| recovery.fraction),
        number("recovery_slower_s", recovery.and_then(|recovery| recovery.slower_s)),
        count("more_events", |recovery| recovery.more_events),
    ]
}

/// A cause as part of a column name.
const fn column(cause: Cause) -> &'static str {
    match cause {
        Cause::StartUp => "start_up",
        Cause::WarmUp => "warm_up",
        Cause::OffCore => "off_core",
        Cause::Computation => "computation",
        Cause::Input => "input",
        Cause::Communication => "communication",
        Cause::Stragglers => "stragglers",
        Cause::Update => "update",
        Cause::Idle => "idle",
        Cause::Evaluation => "evaluation",
        Cause::Recovery => "recovery",
        Cause::Tail => "tail",
        Cause::Other => "other",
    }
}

fn cell(name: &str, value: Option<impl ToString>) -> (String, Option<String>) {
    (name.into(), value.map(|value| value.to_string()))
}

/// A number in the fewest digits that reproduce its bits; empty if it is not finite.
fn number(name: &str, value: Option<f64>) -> (String, Option<String>) {
    cell(name, value.filter(|value| value.is_finite()))
}

/// An option as part of a column name.
fn snake(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests;
