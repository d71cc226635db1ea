use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};

use paceline_record::log::{LauncherWriter, RankLog, RankWriter, WorkerHeader, rank_file};
use paceline_record::{BucketRecord, Bytes, Exit, Phase};
use tempfile::TempDir;

use super::*;
use crate::fixture::{MS, Plan};

/// Moments of the fixture, moved on to where a machine's clock would stand.
const CLOCK: u64 = 7_000_000_000_123;

fn moment(at: Nanos) -> Nanos {
    Nanos(at.0 + CLOCK)
}

/// Two exchanges of a step that overlap, for which rank 1 is late.
fn buckets(rank: u32, end: u64) -> Vec<BucketRecord> {
    let bucket = |begun: u64, ended: u64| BucketRecord {
        bytes: Bytes(1000),
        begun: Nanos(if rank == 1 { begun + MS } else { begun }),
        last_arrival: Nanos(begun + MS),
        last_rank: Rank(1),
        ended: Nanos(ended),
        waited_late: Nanos(2001),
        waited_transfer: Nanos(3000),
        cpu: Nanos(4000),
        moved: Bytes(2000),
    };
    vec![bucket(end - 20 * MS, end - 10 * MS), bucket(end - 15 * MS, end - 5 * MS)]
}

/// The logs of a run in the folder of a case.
fn save(plan: &Plan, parent: &TempDir) -> (String, PathBuf) {
    let run = plan.run();
    let name = format!("{}-w{}", plan.model, plan.workers);
    let folder = parent.path().join(&name);
    fs::create_dir(&folder).expect("a folder");
    let mut launcher = LauncherWriter::create(&folder, &run.launcher.header).expect("a log");
    let mut tell = |event| launcher.append(&event).expect("a line");
    for (log, late) in run.ranks.iter().zip(0..) {
        let WorkerHeader::Rank(header) = &log.header else { unreachable!("a plan has ranks") };
        let mut writer = RankWriter::create(&folder, header).expect("a log");
        let mut append = |event| writer.append(&event).expect("a line");
        append(RankEvent::Main { at: moment(log.main.expect("a begin")), pid: 1 });
        for step in &log.steps {
            let (begin, end) = (moment(step.begin), moment(step.end));
            let buckets = if plan.workers > 1 { buckets(late, end.0) } else { Vec::new() };
            append(RankEvent::Step(StepRecord { begin, end, buckets, ..step.clone() }));
        }
        tell(LauncherEvent::Spawn {
            rank: Rank(log.header.who().number()),
            at: Nanos(CLOCK + u64::from(late)),
        });
    }
    let last_reap = moment(run.launcher.last_reap.expect("an end"));
    for log in &run.ranks {
        tell(LauncherEvent::Reap {
            rank: Rank(log.header.who().number()),
            at: last_reap,
            exit: Exit::Code(0),
        });
    }
    tell(LauncherEvent::Over { outcome: Outcome::Done, reason: None });
    (name, folder)
}

fn draw_within(budget: usize, cases: &[(String, PathBuf)]) -> Value {
    let mut bytes = Vec::new();
    write_within(budget, cases, &mut bytes).expect("a string takes all");
    serde_json::from_slice(&bytes).expect("JSON")
}

fn draw(cases: &[(String, PathBuf)]) -> Value {
    draw_within(MOST, cases)
}

fn events(timeline: &Value) -> &[Value] {
    timeline["traceEvents"].as_array().expect("a list")
}

fn nanos(value: &Value) -> u64 {
    (1e3 * value.as_f64().expect("a number")).round() as u64
}

/// A slice of a timeline.
#[derive(Clone, Debug)]
struct Slice {
    cat: String,
    name: String,
    begin: u64,
    end: u64,
    args: Value,
}

/// Slices by the names of their process and track.
fn slices(timeline: &Value) -> BTreeMap<(String, String), Vec<Slice>> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let (mut processes, mut threads) = (BTreeMap::new(), BTreeMap::new());
    let mut slices: BTreeMap<_, Vec<Slice>> = BTreeMap::new();
    for event in events(timeline) {
        let (pid, tid) = (event["pid"].as_u64(), event["tid"].as_u64());
        match (event["ph"].as_str(), event["name"].as_str()) {
            (Some("M"), Some("process_name")) => {
                let known = processes.insert(pid, text(&event["args"]["name"]));
                assert_eq!(known, None, "a process has one name");
            }
            (Some("M"), Some("thread_name")) => {
                let known = threads.insert(tid, (pid, text(&event["args"]["name"])));
                assert_eq!(known, None, "tracks have numbers of their own");
            }
            (Some("X"), Some(name)) => {
                let begin = nanos(&event["ts"]);
                let slice = Slice {
                    cat: text(&event["cat"]),
                    name: name.into(),
                    begin,
                    end: begin + nanos(&event["dur"]),
                    args: event["args"].clone(),
                };
                assert_eq!(threads[&tid].0, pid);
                slices.entry((processes[&pid].clone(), threads[&tid].1.clone())).or_default().push(slice);
            }
            _ => {}
        }
    }
    slices
}

/// Slices of a rank's track.
fn track(timeline: &Value, process: &str, thread: &str) -> Vec<Slice> {
    slices(timeline).remove(&(process.into(), thread.into())).unwrap_or_default()
}

fn of(slices: &[Slice], cat: &str) -> Vec<Slice> {
    slices.iter().filter(|slice| slice.cat == cat).cloned().collect()
}

#[test]
fn slices_of_a_track_nest_or_do_not_overlap() {
    let parent = TempDir::new().expect("a folder");
    let cases = [1, 2, 4].map(|workers| save(&Plan::calm("resnet50", workers), &parent));
    let drawn = slices(&draw(&cases));
    let names: Vec<String> = drawn.keys().map(|(process, thread)| format!("{process} {thread}")).collect();
    assert_eq!(
        names[..4],
        [
            "resnet50-w1 rank 0 steps",
            "resnet50-w2 rank 0 exchange",
            "resnet50-w2 rank 0 exchange 2",
            "resnet50-w2 rank 0 steps"
        ]
    );
    assert_eq!(names.len(), 1 + 3 * 6);
    for (name, slices) in drawn {
        let mut open: Vec<Slice> = Vec::new();
        let mut begin = 0;
        for slice in slices.into_iter().filter(|slice| slice.cat != "run") {
            assert!(begin <= slice.begin, "{name:?} {slice:?}");
            begin = slice.begin;
            open.retain(|outer| outer.end > slice.begin);
            assert!(open.iter().all(|outer| slice.end <= outer.end), "{name:?} {slice:?} {open:?}");
            open.push(slice);
        }
    }
}

#[test]
fn steps_are_as_long_as_in_the_log_and_their_phases_sum_to_it() {
    let parent = TempDir::new().expect("a folder");
    let case = save(&Plan::calm("resnet50", 2), &parent);
    let timeline = draw(std::slice::from_ref(&case));
    let log = RankLog::read(&case.1, Rank(0)).expect("a log");
    let slices = track(&timeline, "resnet50-w2 rank 0", "steps");
    let steps = of(&slices, "step");
    assert_eq!(steps.len(), log.steps.len());
    for (drawn, step) in steps.iter().zip(&log.steps) {
        assert_eq!((drawn.begin, drawn.end), (step.begin.0 - CLOCK, step.end.0 - CLOCK));
        assert_eq!(drawn.name, format!("step {}", step.step));
        assert_eq!(drawn.args["examples"], 64);
        let inside = |slice: &&Slice| drawn.begin <= slice.begin && slice.end <= drawn.end;
        let phases = of(&slices, "phase");
        let phases: Vec<&Slice> = phases.iter().filter(inside).collect();
        let names: Vec<&str> = phases.iter().map(|phase| phase.name.as_str()).collect();
        let order = ["copy_in", "forward", "backward", "comm_cpu", "comm_wait", "update", "other"];
        assert_eq!(names, order, "{step:?}");
        for (phase, time) in step.phases.iter() {
            let slice = phases.iter().find(|slice| slice.name == phase.name()).expect("a slice");
            assert_eq!(slice.end - slice.begin, time.0);
        }
        let all: u64 = phases.iter().map(|phase| phase.end - phase.begin).sum();
        assert_eq!(all, drawn.end - drawn.begin);
    }
    assert!(steps.windows(2).all(|pair| pair[0].end == pair[1].begin), "without a gap");
}

#[test]
fn the_frame_around_the_steps_tiles_the_run() {
    let parent = TempDir::new().expect("a folder");
    let plan = Plan::calm("resnet50", 2);
    let timeline = draw(&[save(&plan, &parent)]);
    for rank in ["resnet50-w2 rank 0", "resnet50-w2 rank 1"] {
        let slices = track(&timeline, rank, "steps");
        let frame = of(&slices, "run");
        let names: Vec<&str> = frame.iter().map(|slice| slice.name.as_str()).collect();
        assert_eq!(names, ["launch", "init", "tail"]);
        let steps = of(&slices, "step");
        assert_eq!((frame[0].begin, frame[0].end), (0, 5 * MS));
        assert_eq!((frame[1].begin, frame[1].end), (5 * MS, steps[0].begin));
        let end = steps.last().expect("steps").end;
        assert_eq!((frame[2].begin, frame[2].end), (end, end + 8 * MS));
    }
}

#[test]
fn an_exchange_is_drawn_on_the_common_clock() {
    let parent = TempDir::new().expect("a folder");
    let case = save(&Plan::calm("resnet50", 2), &parent);
    let timeline = draw(std::slice::from_ref(&case));
    let bucket = RankLog::read(&case.1, Rank(0)).expect("a log").steps[3].buckets[0];
    let exchanges = |rank: &str| track(&timeline, &format!("resnet50-w2 rank {rank}"), "exchange");
    let (early, late) = (exchanges("0"), exchanges("1"));
    let third = of(&early, "exchange")[3].clone();
    assert_eq!((third.begin, third.end), (bucket.begun.0 - CLOCK, bucket.ended.0 - CLOCK));
    assert_eq!(third.args["bytes"], 1000);
    assert_eq!(third.args["waited_late_us"], 2.001);
    assert_eq!(third.args["last_rank"], 1);
    let wait = of(&early, "late")[3].clone();
    assert_eq!(wait.name, "waiting for rank 1");
    assert_eq!(wait.end, of(&late, "exchange")[3].begin, "it ends when rank 1 begins");
    assert!(of(&late, "late").is_empty(), "nobody waits for itself");
}

#[test]
fn the_budget_is_kept_and_shared_by_all_ranks() {
    let parent = TempDir::new().expect("a folder");
    let long = Plan { steps: 400, ..Plan::calm("vgg_19", 4) };
    let cases = [save(&Plan { steps: 5, ..Plan::calm("resnet50", 1) }, &parent), save(&long, &parent)];
    let all = events(&draw(&cases)).len();
    assert_eq!(draw(&cases)["otherData"]["left_out"], json!([]));
    for budget in [all, all - 1, all / 2, 500, 60, 0] {
        let timeline = draw_within(budget, &cases);
        let drawn = events(&timeline).len();
        let unused = budget.min(all).checked_sub(drawn).expect("within the budget");
        assert!(unused < 80 + budget / 20, "{drawn} of {budget}");
        let about = &timeline["otherData"];
        let kept: usize = slices(&timeline).values().map(|slices| of(slices, "step").len()).sum();
        assert_eq!((&about["steps_kept"], &about["steps_total"]), (&json!(kept), &json!(1605)));
    }
    let timeline = draw_within(500, &cases);
    let steps = |name: &str| of(&track(&timeline, name, "steps"), "step");
    assert_eq!(steps("resnet50-w1 rank 0").len(), 5, "a short run is whole");
    let kept: Vec<usize> = (0..4).map(|rank| steps(&format!("vgg_19-w4 rank {rank}")).len()).collect();
    assert!((5..15).contains(&kept[0]) && kept.iter().all(|&rank| rank == kept[0]), "{kept:?}");
    assert_eq!(steps("vgg_19-w4 rank 2")[0].name, "step 0");
    let first = &timeline["otherData"]["left_out"][0];
    let told = json!({ "case": "vgg_19-w4", "rank": 0, "steps_kept": kept[0], "steps_total": 400 });
    assert_eq!(*first, told);
}

#[test]
fn what_a_broken_run_left_is_drawn() {
    let parent = TempDir::new().expect("a folder");
    let (name, folder) = save(&Plan::calm("resnet50", 4), &parent);
    let append = |rank: u32, text: &str| {
        let file = OpenOptions::new().append(true).open(folder.join(rank_file(Rank(rank))));
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a longer log");
    };
    append(0, "{\"step\":{\"step\":60,\"beg");
    append(1, "no event at all\n");
    fs::remove_file(folder.join(rank_file(Rank(2)))).expect("a log");
    let launcher = fs::read_to_string(folder.join("launcher.jsonl")).expect("a log");
    let kept: Vec<&str> = launcher.lines().take(5).collect();
    fs::write(folder.join("launcher.jsonl"), kept.join("\n") + "\n").expect("a log");
    let gone = ("gone".to_owned(), parent.path().join("gone"));
    let timeline = draw(&[gone, (name, folder)]);
    let steps = |rank: u32| of(&track(&timeline, &format!("resnet50-w4 rank {rank}"), "steps"), "step").len();
    assert_eq!([0, 1, 2, 3].map(steps), [60, 60, 0, 60]);
    let labels = events(&timeline).iter().filter(|event| event["name"] == "process_labels");
    let labels: Vec<&Value> = labels.map(|event| &event["args"]["labels"]).collect();
    assert_eq!(labels, ["failed: its launcher is gone"; 3]);
}

#[test]
fn phases_longer_than_their_step_are_cut_and_say_so() {
    let mut step = StepRecord::open(paceline_record::Step(0), Nanos(1000));
    step.book(Phase::Forward, Nanos(600));
    step.book(Phase::Backward, Nanos(700));
    step.end = Nanos(2000);
    let mut pen = Pen::new(1, Nanos(0));
    pen.step(Some(Rank(0)), &step);
    let drawn: Vec<Value> = pen.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(drawn.len(), 3, "nothing is left for other");
    assert_eq!((&drawn[2]["ts"], &drawn[2]["dur"]), (&json!(1.6), &json!(0.4)));
    assert_eq!(drawn[2]["args"]["booked_us"], 0.7);
    assert_eq!(drawn[0]["args"]["loss"], Value::Null);
}

#[test]
fn members_have_tracks_of_their_own_with_rosters_as_instants() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    crate::fixture::elastic::write(&crate::fixture::elastic::eventful_run(), folder.path());
    let mut out = Vec::new();
    write(&[("case".into(), folder.path().into())], &mut out).expect("a timeline");
    let text = String::from_utf8(out).expect("text");
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let events = whole["traceEvents"].as_array().expect("a list");
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    let processes: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "process_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert_eq!(processes, ["case member 0", "case member 1", "case member 2", "case member 3"]);
    assert_eq!((named("roster 0 of 3 workers"), named("roster 1 of 2 workers")), (3, 2));
    assert_eq!((named("end: signal 9 (SIGKILL)"), named("left"), named("recovery")), (1, 1, 2));
}
