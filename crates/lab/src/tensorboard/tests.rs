use std::collections::BTreeMap;

use super::*;
use crate::fixture::{self, Plan};

/// What follows a key.
enum Held<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message.
fn fields(mut message: &[u8]) -> Vec<(u8, Held<'_>)> {
    let mut fields = Vec::new();
    while let Some((&key, rest)) = message.split_first() {
        message = rest;
        let mut take = |length: usize| {
            let (taken, rest) = message.split_at(length);
            message = rest;
            taken
        };
        let mut varint = || {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let byte = take(1)[0];
                value |= u64::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    break;
                }
            }
            value
        };
        let held = match key & 7 {
            0 => Held::Number(varint()),
            1 => Held::Number(u64::from_le_bytes(take(8).try_into().expect("eight"))),
            2 => {
                let length = varint() as usize;
                Held::Bytes(take(length))
            }
            5 => Held::Number(u32::from_le_bytes(take(4).try_into().expect("four")).into()),
            form => panic!("form {form}"),
        };
        fields.push((key >> 3, held));
    }
    fields
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    wall_time: f64,
    step: u64,
    version: String,
    values: BTreeMap<String, f32>,
}

fn scalar(message: &[u8]) -> (String, f32) {
    let (mut tag, mut value) = (String::new(), f32::NAN);
    for field in fields(message) {
        match field {
            (1, Held::Bytes(name)) => tag = String::from_utf8(name.into()).expect("a name"),
            (2, Held::Number(bits)) => value = f32::from_bits(bits as u32),
            (number, _) => panic!("field {number} of a value"),
        }
    }
    (tag, value)
}

/// The events of a file.
fn read(file: &[u8]) -> Vec<Event> {
    let event = |record: &[u8]| {
        let mut event = Event::default();
        for field in fields(record) {
            match field {
                (1, Held::Number(bits)) => event.wall_time = f64::from_bits(bits),
                (2, Held::Number(step)) => event.step = step,
                (3, Held::Bytes(version)) => event.version = String::from_utf8_lossy(version).into(),
                (5, Held::Bytes(summary)) => {
                    let values = fields(summary).into_iter().map(|field| match field {
                        (1, Held::Bytes(value)) => scalar(value),
                        (number, _) => panic!("field {number} of a summary"),
                    });
                    event.values = values.collect();
                }
                (number, _) => panic!("field {number} of an event"),
            }
        }
        event
    };
    tfrecord::tests::read(file).into_iter().map(event).collect()
}

fn rank_log(plan: &Plan) -> RankLog {
    plan.run().ranks.remove(0)
}

#[test]
fn every_step_of_a_short_run_is_a_point() {
    let log = rank_log(&Plan::calm("resnet50", 2));
    let events = read(&render(&log));
    assert_eq!(events.len(), 1 + log.steps.len());
    assert_eq!(events[0].version, "brain.Event:2");
    let tags: Vec<&str> = events[1].values.keys().map(String::as_str).collect();
    assert_eq!(
        tags,
        [
            "examples_per_s",
            "loss",
            "phase/backward_ms",
            "phase/comm_cpu_ms",
            "phase/comm_wait_ms",
            "phase/copy_in_ms",
            "phase/forward_ms",
            "phase/other_ms",
            "phase/update_ms",
            "step_ms"
        ]
    );
    for (event, step) in events[1..].iter().zip(&log.steps) {
        assert_eq!(event.step, step.step.0);
        assert_eq!(event.wall_time, 946_684_800.0 + step.end.seconds());
        assert_eq!(event.values["loss"], step.loss.expect("a loss"));
        assert_eq!(event.values["phase/forward_ms"], (1e3 * step.phases[Phase::Forward].seconds()) as f32);
        let phases: f32 =
            event.values.iter().filter(|(tag, _)| tag.starts_with("phase/")).map(|(_, ms)| ms).sum();
        assert!((phases / event.values["step_ms"] - 1.0).abs() < 1e-5, "phases tile the step");
    }
}

#[test]
fn a_long_run_is_thinned_to_means() {
    let mut log = rank_log(&Plan { steps: 2500, ..Plan::calm("resnet50", 1) });
    log.steps[5].loss = None;
    let events = read(&render(&log));
    assert_eq!(events.len() - 1, 834, "three steps a point");
    let (second, steps) = (&events[2], &log.steps[3..6]);
    assert_eq!(second.step, 5);
    assert_eq!(second.values["loss"], log.steps[4].loss.expect("a loss"), "the last that is known");
    let seconds = steps[2].end.since(steps[0].begin).seconds();
    assert_eq!(second.values["step_ms"], (1e3 * seconds / 3.0) as f32);
    assert_eq!(second.values["examples_per_s"], (192.0 / seconds) as f32);
    let last = events.last().expect("events");
    assert_eq!((last.step, last.values["loss"]), (2499, log.steps[2499].loss.expect("a loss")));
}

#[test]
fn what_is_not_known_has_no_point() {
    let mut log = rank_log(&Plan::calm("resnet50", 1));
    log.steps.truncate(1);
    log.steps[0].loss = None;
    assert!(!read(&render(&log))[1].values.contains_key("loss"));
    log.steps.clear();
    assert_eq!(read(&render(&log)).len(), 1, "the version alone");
}

#[test]
fn a_file_is_named_by_case_and_rank_and_when_its_run_began() {
    let name = |started| file_name("resnet50-w2", "rank 1", started);
    let expected = |began: u64| {
        PathBuf::from(format!("tensorboard/resnet50-w2/rank-1/events.out.tfevents.{began}.paceline"))
    };
    assert_eq!(name(None), expected(946_684_800));
    let started = Started { at: Nanos(7), unix: Nanos(1_794_818_014_900_000_000) };
    assert_eq!(name(Some(started)), expected(1_794_818_014));
}

#[test]
fn points_have_the_date_that_the_launcher_noted() {
    let mut run = Plan::calm("resnet50", 2).run();
    let times = |run: &Run, rank: usize| -> Vec<f64> {
        read(&render_rank(run, &run.ranks[rank])).iter().map(|event| event.wall_time).collect()
    };
    let undated = times(&run, 0);
    assert_eq!(undated[1], 946_684_800.0 + run.ranks[0].steps[0].end.seconds());
    run.launcher.header.started =
        Some(Started { at: Nanos(2_000_000_000), unix: Nanos(1_794_818_014_000_000_000) });
    for rank in [0, 1] {
        let dated = times(&run, rank);
        let first = 1_794_818_012.0 + run.ranks[rank].steps[0].end.seconds();
        assert!((dated[1] - first).abs() < 1e-6, "{} {first}", dated[1]);
        assert_eq!(dated.len(), undated.len());
    }
}

#[test]
fn learning_is_in_the_file_of_rank_0_at_its_steps() {
    let mut run = fixture::learning_plans()[1].run();
    run.ranks[0].evaluations[1].loss = None;
    let told = |rank: usize, tag: &str| -> Vec<(u64, f32)> {
        let events = read(&render_rank(&run, &run.ranks[rank]));
        assert!(events[1..].windows(2).all(|pair| pair[0].step <= pair[1].step), "in the order of steps");
        events.iter().filter_map(|event| Some((event.step, *event.values.get(tag)?))).collect()
    };
    assert_eq!(told(0, "accuracy/test"), [(19, 0.4433), (39, 0.5542), (59, 0.665)]);
    assert_eq!(told(0, "loss/test"), [(19, 2.0), (59, 2.0 / 3.0)], "what is not known has no point");
    let epoch = |first: usize| {
        let correct: u64 = run.ranks[0].steps[first..first + 20].iter().filter_map(|step| step.correct).sum();
        correct as f32 / (20 * 64) as f32
    };
    assert_eq!(told(0, "accuracy/train"), [(19, epoch(0)), (39, epoch(20)), (59, epoch(40))]);
    let steps = &run.ranks[0].steps[20..40];
    let mean = steps.iter().map(|step| f64::from(step.loss.expect("a loss"))).sum::<f64>() / 20.0;
    assert!((f64::from(told(0, "loss/train")[1].1) - mean).abs() < 1e-6);
    assert_eq!(told(0, "loss").len(), 60, "steps are told as ever");
    for tag in ["accuracy/test", "accuracy/train", "loss/test", "loss/train"] {
        assert_eq!(told(1, tag), [], "{tag}");
    }
}
