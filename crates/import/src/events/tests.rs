use std::path::PathBuf;

use paceline_lab::tensorboard;
use paceline_record::log::{RankLog, WorkerHeader};
use paceline_record::{Nanos, Phase, Rank, RankHeader, Step, StepRecord};

use super::*;
use crate::sample::{file_of, sample};

/// A log of our own, of a rank of two.
fn log(rank: u32, steps: u64) -> RankLog {
    let mut begin = Nanos(45_000_000);
    let step = |number: u64| {
        let mut step = StepRecord::open(Step(number), begin);
        let scale = 1_000_000 + 1_000 * (number * 7_919 % 11);
        for (phase, time) in [(Phase::Forward, 27), (Phase::Backward, 63), (Phase::CommWait, 4)] {
            step.book(phase, Nanos(time * scale));
        }
        step.end = begin + step.phases.total() + Nanos(50_000);
        step.examples = 64;
        step.loss = Some(2.3 * 0.98_f32.powi(number as i32));
        begin = step.end;
        step
    };
    RankLog {
        steps: (0..steps).map(step).collect(),
        ..RankLog::empty(WorkerHeader::Rank(RankHeader::new(Rank(rank), 2)))
    }
}

/// A field of a message.
fn field(number: u8, form: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | form];
    if form == 2 {
        assert!(bytes.len() < 128);
        field.push(bytes.len() as u8);
    }
    field.extend(bytes);
    field
}

fn event(step: u8, value: &[Vec<u8>]) -> Vec<u8> {
    let summary = field(1, 2, &value.concat());
    [field(1, 1, &1e9_f64.to_le_bytes()), field(2, 0, &[step]), field(5, 2, &summary)].concat()
}

fn tensor(parts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    vec![field(1, 2, b"loss"), field(8, 2, &parts.concat())]
}

fn file(events: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    tfrecord::append(&field(3, 2, b"brain.Event:2"), &mut file);
    events.iter().for_each(|event| tfrecord::append(event, &mut file));
    file
}

fn read_bytes(bytes: &[u8]) -> Result<Series, ImportError> {
    read(file_of(bytes).path())
}

#[test]
fn scalars_come_in_every_form_that_tensorflow_writes() {
    let one = |kind: u8, part: Vec<u8>| tensor(&[field(1, 0, &[kind]), field(2, 2, &[]), part]);
    let forms = [
        vec![field(1, 2, b"loss"), field(2, 5, &1.5_f32.to_le_bytes())],
        one(1, field(4, 2, &1.5_f32.to_le_bytes())),
        one(1, field(5, 2, &1.5_f32.to_le_bytes())),
        one(1, field(5, 5, &1.5_f32.to_le_bytes())),
        one(2, field(4, 2, &1.5_f64.to_le_bytes())),
        one(2, field(6, 2, &1.5_f64.to_le_bytes())),
        one(2, field(6, 1, &1.5_f64.to_le_bytes())),
        one(19, field(4, 2, &0x3e00_u16.to_le_bytes())),
        one(19, field(13, 2, &[0x80, 0x7c])),
        one(19, field(13, 0, &[0x80, 0x7c])),
        one(14, field(4, 2, &0x3fc0_u16.to_le_bytes())),
        one(14, field(13, 2, &[0xc0, 0x7f])),
    ];
    let events: Vec<_> = forms.iter().zip(0..).map(|(form, step)| event(step, form)).collect();
    let series = read_bytes(&file(&events)).expect("an event file");
    assert_eq!(series.warnings, [""; 0]);
    let found: Vec<_> = series.by_name["loss"].iter().map(|point| (point.step, point.value)).collect();
    assert_eq!(found, (0..forms.len() as u64).map(|step| (step, 1.5)).collect::<Vec<_>>());
    let whole = read_bytes(&file(&[event(0, &one(9, field(10, 2, &[7])))])).expect("an event file");
    assert_eq!(whole.by_name["loss"][0].value, 7.0);
}

#[test]
fn tensors_of_more_than_one_number_and_texts_are_no_scalars() {
    let shape = field(2, 2, &field(2, 2, &field(1, 0, &[3])));
    let three = tensor(&[field(1, 0, &[1]), shape, field(5, 2, &1.5_f32.to_le_bytes())]);
    let text = tensor(&[field(1, 0, &[7]), field(8, 2, b"hello")]);
    let series = read_bytes(&file(&[event(1, &three), event(2, &text)])).expect("an event file");
    assert!(series.is_empty());
}

#[test]
fn our_own_files_come_back_as_the_same_rates_and_times() {
    for (steps, covered) in [(60, 1), (2500, 3)] {
        let log = log(0, steps);
        let file = file_of(tensorboard::render(&log));
        let run = import(&[(file.path(), None)]).expect("our own file");
        let found = &run.progress.as_ref().expect("rates").points;
        assert_eq!(found.len(), log.steps.len().div_ceil(covered));
        assert_eq!(run.case.batch_per_worker, Some(64));
        // The first point of an event file may cover any number of steps: as many as the next is assumed.
        for (found, written) in found.iter().zip(log.steps.chunks(covered)).skip(1) {
            let last = &written[written.len() - 1];
            assert_eq!(
                (found.step, found.loss, found.covers),
                (last.step.0, last.loss, written.len() as u64)
            );
            let seconds = last.end.since(written[0].begin).seconds();
            assert!((found.seconds.expect("times") / seconds - 1.0).abs() < 1e-5, "{found:?} {seconds}");
        }
    }
}

#[test]
fn rates_of_the_workers_of_a_run_add_up_in_their_common_steps() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut paths: Vec<PathBuf> = Vec::new();
    for log in [log(0, 60), log(1, 59)] {
        let path = folder.path().join(tensorboard::file_name("case", &log.header.who().to_string(), None));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("room for it");
        std::fs::write(&path, tensorboard::render(&log)).expect("room for it");
        paths.push(path);
    }
    let files: Vec<_> = paths.iter().map(|path| (path.as_path(), None)).collect();
    let run = import(&files).expect("our own files");
    assert_eq!((run.case.workers, run.case.batch_per_worker), (2, Some(64)));
    let found = &run.progress.as_ref().expect("rates").points;
    let alone = &import(&files[..1]).expect("our own file").progress.expect("rates").points;
    assert_eq!((found.len(), found[7].loss, found[7].seconds), (59, alone[7].loss, alone[7].seconds));
    assert_eq!(found[7].examples_per_s, alone[7].examples_per_s.map(|rate| 2.0 * rate));
}

#[test]
fn a_damaged_file_gives_what_comes_before_the_damage() {
    let scalar = [field(1, 2, b"loss"), field(2, 5, &1.5_f32.to_le_bytes())];
    let events: Vec<_> = (0..4).map(|step| event(step, &scalar)).collect();
    let whole = file(&events);
    let record = (whole.len() - file(&[]).len()) / 4;
    let mut damaged = whole.clone();
    damaged[whole.len() - record - 10] ^= 1;
    let series = read_bytes(&damaged).expect("some of it");
    assert_eq!(series.by_name["loss"].len(), 2);
    assert!(
        series.warnings[0].contains("wrong checksum at byte")
            && series.warnings[0].contains("3 records before")
    );
    let series = read_bytes(&whole[..whole.len() - 1]).expect("some of it");
    assert_eq!(series.by_name["loss"].len(), 3);
    assert!(series.warnings[0].contains("is truncated"));
    let broken = read_bytes(&file(&[vec![0x0b], event(1, &scalar)])).expect("an event file");
    assert_eq!(
        (broken.by_name["loss"].len(), broken.warnings[0].as_str()),
        (1, "skipped 1 records that are not events")
    );
}

#[test]
fn what_is_no_event_file_is_one_clear_error() {
    let why = |bytes: &[u8]| read_bytes(bytes).expect_err("not an event file").to_string();
    assert!(why(b"").ends_with("not an event file: it does not start with a complete record"));
    assert!(why(b"{\"traceEvents\": []}").ends_with("it does not start with a complete record"));
    let of_version = |version: &[u8]| {
        let mut file = Vec::new();
        tfrecord::append(&field(3, 2, version), &mut file);
        file
    };
    assert!(
        why(&of_version(b"brain.Event:7"))
            .ends_with("event file version 7; only versions 1 and 2 are supported")
    );
    assert!(why(&of_version(b"something")).ends_with("its first record has no version"));
    assert!(recognise(&of_version(b"brain.Event:7")) && !recognise(&of_version(b"something")));
    assert!(!recognise(b"") && !recognise(b"[\n{\"ph\": \"B\"}"));
    assert!(read(Path::new("/nowhere/at/all")).is_err());
}

#[test]
fn real_files_hold_what_an_independent_count_finds() {
    // Points, sum of steps, sum of values: printed by peers/totals_logs.py.
    const COUNTS: [(&str, &str, &str, usize, u64, f64); 4] = [
        (
            "workers_1",
            "events.out.tfevents.1794725961.vm.359.0",
            "examples_per_sec",
            120,
            7260,
            12409.889465332031,
        ),
        ("workers_1", "events.out.tfevents.1794725961.vm.359.0", "loss", 120, 7260, 142.05251121520996),
        (
            "workers_2",
            "events.out.tfevents.1794725961.vm.359.1",
            "examples_per_sec",
            120,
            7260,
            11524.161281585693,
        ),
        ("workers_2", "events.out.tfevents.1794725961.vm.359.1", "loss", 120, 7260, 142.05251121520996),
    ];
    for (folder, file, tag, points, steps, values) in COUNTS {
        let Some(path) = sample(&format!("tensorboard/{folder}/{file}")) else { return };
        let series = read(&path).expect("a real file");
        assert_eq!(series.warnings, [""; 0]);
        let found = &series.by_name[tag];
        assert_eq!((found.len(), found.iter().map(|point| point.step).sum::<u64>()), (points, steps));
        let sum: f64 = found.iter().map(|point| point.value).sum();
        assert!((sum / values - 1.0).abs() < 1e-12, "{tag}: {sum} {values}");
        let run = import(&[(&path, None)]).expect("a real file");
        let told = &run.progress.as_ref().expect("rates").points;
        assert!(told.len() == points && told.iter().all(|point| point.loss.is_some()));
    }
}
