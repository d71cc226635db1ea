//! What `paceline run` makes of the logs that processes write which are followed.

mod following;

use std::fs;

use following::{Place, assert_phases_sum, case, flat, said};

#[test]
fn a_late_rank_is_named_and_every_ranks_phases_sum_to_its_time() {
    let place = Place::with("rank 0 2; rank 1 2; echo trained; finish");
    let output = place.run("-- sh train.sh");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"trained\n"[..]), "{}", said(&output));
    let said = flat(&output);
    assert!(said.contains("100 % of it for rank 1") && said.ends_with("Report: run-1/report.html"), "{said}");
    assert!(said.contains("ms per step, by rank"), "{said}");
    let report = place.report("run-1");
    let case = case(&report, 2);
    assert_eq!(
        (&case["status"], &case["steps"], &case["model"]),
        (&"done".into(), &30.into(), &"net".into())
    );
    assert_eq!((&case["straggler"]["rank"], &case["straggler"]["share"]), (&1.into(), &1.0.into()));
    let split = &case["comm_wait_split_s"];
    assert!((split["late_rank"].as_f64().expect("a time") - 0.09).abs() < 1e-9, "{split}");
    assert!((split["transfer"].as_f64().expect("a time") - 0.06).abs() < 1e-9, "{split}");
    assert_phases_sum(case);
    let phases = &case["phases_s"];
    assert!(
        phases["copy_in"].is_null() && phases["eval"] == 0.0,
        "untold is unknown, the rest is zero: {phases}"
    );
    let mut files: Vec<String> = fs::read_dir(place.path("run-1"))
        .expect("a study")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"))
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "net-w2",
            "report.csv",
            "report.html",
            "report.json",
            "report.md",
            "study.json",
            "tensorboard",
            "timeline.json"
        ]
    );
    let timeline = fs::read_to_string(place.path("run-1/timeline.json")).expect("a timeline");
    assert!(timeline.contains("bucket 0"), "exchanges are drawn");
    // Nothing of the logs is written again: the report is the same.
    let again = std::process::Command::new(assert_cmd::cargo::cargo_bin!("paceline"))
        .args(["report", "run-1", "--json"])
        .current_dir(place.folder.path())
        .output()
        .expect("it runs");
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).expect("JSON");
    assert_eq!(&again["cases"], &report["cases"]);
}

#[test]
fn a_rank_may_be_the_command_itself() {
    // Its process seems to have started when the command was told of its run.
    let place = Place::with("BEGIN_MS=10; rank 0 1; finish");
    let output = place.run("-- sh train.sh");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report = place.report("run-1");
    let case = case(&report, 1);
    assert_eq!((&case["status"], &case["steps"]), (&"done".into(), &30.into()), "{}", case["reason"]);
    assert_phases_sum(case);
}

#[test]
fn what_most_of_each_step_goes_to_is_named_though_start_up_takes_most_of_the_run() {
    let place = Place::with("BEGIN_MS=4000; rank 0 2; rank 1 2; LASTS=4.5; finish");
    let output = place.run("-- sh train.sh");
    assert!(flat(&output).contains("100 % of it for rank 1"), "{}", said(&output));
}

#[test]
fn a_sweep_is_a_scaling_study() {
    let place = Place::with("for r in $(seq 0 $(($1 - 1))); do rank $r $1; done; finish");
    let output = place.run("--workers-sweep 1,2 --repeat 2 --out study -- sh train.sh {workers}");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report = place.report("study");
    assert_eq!(
        (case(&report, 1)["repeats"].as_u64(), case(&report, 2)["repeats"].as_u64()),
        (Some(2), Some(2))
    );
    let speedup = case(&report, 2)["speedup_speed"].as_f64().expect("one worker is there");
    assert!((speedup - 2.0).abs() < 1e-6, "steps take 10 ms with any number: {speedup}");
    assert!(said(&output).contains("2 workers: 2.00x"), "{}", said(&output));
    // Nobody told that the script trains on images.
    let texts = ["report.md", "report.html"].map(|name| fs::read_to_string(place.path("study").join(name)));
    for text in texts.map(|text| text.expect("a report")).into_iter().chain([said(&output)]) {
        let text = text.split("<script>").next().expect("a page").split("</style>").last().expect("a page");
        assert!(text.contains("examples/s") && !text.to_lowercase().contains("image"), "{text}");
    }
}

#[test]
fn a_failed_run_of_a_sweep_gives_its_status_and_the_others_are_reported() {
    let script = "for r in $(seq 0 $(($1 - 1))); do rank $r $1; done; finish; [ $1 = 2 ] && exit 4; exit 0";
    let place = Place::with(script);
    let output = place.run("--workers-sweep 1,2,3 --out study -- sh train.sh {workers}");
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let report = place.report("study");
    let status = |workers| case(&report, workers)["status"].as_str().expect("a status").to_owned();
    assert_eq!([status(1), status(2), status(3)], ["done", "failed", "done"]);
    assert_eq!(case(&report, 2)["reason"], "the command ended with exit code 4");
    assert!(case(&report, 2)["speedup_speed"].is_f64(), "its ranks told all of their steps");
}

#[test]
fn single_runs_are_collected_and_an_equal_one_is_replaced() {
    let place = Place::with("for r in $(seq 0 $(($1 - 1))); do rank $r $1 ${2:-30}; done; finish");
    for words in ["1", "2", "2 20"] {
        let output = place.run(&format!("--out all -- sh train.sh {words}"));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    let report = place.report("all");
    assert_eq!(
        (case(&report, 1)["steps"].as_u64(), case(&report, 2)["steps"].as_u64()),
        (Some(30), Some(20))
    );
    assert!(case(&report, 2)["speedup_speed"].is_f64());
}

#[test]
fn a_lost_rank_is_named_and_what_all_ranks_told_is_reported() {
    let place = Place::with("rank 0 2 30; rank 1 2 25 lost; finish; exit 1");
    let output = place.run("-- sh train.sh");
    assert_eq!(output.status.code(), Some(1));
    let report = place.report("run-1");
    let case = case(&report, 2);
    let reason = case["reason"].as_str().expect("a reason");
    assert_eq!(
        reason,
        "the command ended with exit code 1; rank 1 failed or was killed after 25 logged steps"
    );
    assert_eq!((&case["status"], &case["steps"]), (&"failed".into(), &25.into()));
    assert_phases_sum(case);
    let said = flat(&output);
    assert!(said.contains("net, 2 workers, failed: the command ended with exit code 1"), "{said}");
    assert!(
        said.contains("between 25 and 30 steps") && !said.contains("run the same command again"),
        "{said}"
    );
}

#[test]
fn a_rank_that_says_nothing_at_all_leaves_the_others_logs() {
    let place = Place::with("rank 0 2; : > \"$(field out)/rank-1.jsonl\"; finish; kill -9 $$");
    let output = place.run("-- sh train.sh");
    let report = place.report("run-1");
    let case = case(&report, 2);
    assert_eq!(case["status"], "failed", "{}", said(&output));
    assert!(
        case["reason"].as_str().expect("a reason").ends_with("rank 1 was lost in its first steps"),
        "{case}"
    );
    assert!(case["images_per_s"].is_null(), "what one of two ranks did is not what both did");
    assert!(place.path("run-1/net-w2/rank-0.jsonl").exists());
}

#[test]
fn trainings_of_one_command_are_cases_of_their_own() {
    let place = Place::with("rank 0 1; BEGIN_MS=400 rank 0 1 40; LASTS=1 finish");
    let output = place.run("-- sh train.sh");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report = place.report("run-1");
    let cases = report["cases"].as_array().expect("cases");
    let steps: Vec<_> = cases.iter().map(|case| case["steps"].as_u64()).collect();
    assert_eq!(steps, [Some(30), Some(40)]);
    assert_eq!(cases[1]["settings"]["training"], "2");
    cases.iter().for_each(assert_phases_sum);
    let total: f64 = cases.iter().filter_map(|case| case["total_s"].as_f64()).sum();
    // The second begins where the first ended: no moment of the command counts twice.
    let init = cases[1]["init_s"].as_f64().expect("a begin");
    assert!((init - 0.075).abs() < 1e-6, "from 325 ms to 400 ms: {init}");
    assert!(total > 1.0, "{total}");
}

#[test]
fn steps_that_were_not_measured_are_estimated_and_said_to_be() {
    let place = Place::with("rank 0 2 60 tenth; rank 1 2 60 tenth; LASTS=0.8 finish");
    let output = place.run("--sample 1/10 -- sh train.sh");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(flat(&output).contains("the phases of 12 of 120 steps were measured"), "{}", said(&output));
    let report = place.report("run-1");
    let case = case(&report, 2);
    assert_phases_sum(case);
    let forward = case["phases_s"]["forward"].as_f64().expect("a time");
    assert!((forward - 60.0 * 0.007).abs() < 1e-4, "2 and 5 ms a step: {forward}");
    assert_eq!(case["straggler"]["rank"], 1);
}

#[test]
fn notes_of_ranks_are_in_the_report() {
    let place = Place::with("rank 0 2 30 note; rank 1 2; finish");
    let output = place.run("-- sh train.sh");
    assert!(said(&output).contains("- rank 0: a word of warning"), "{}", said(&output));
    assert_eq!(place.report("run-1")["cases"][0]["notes"][0], "rank 0: a word of warning");
    let page = fs::read_to_string(place.path("run-1/report.html")).expect("a page");
    assert!(page.contains("a word of warning"));
}

#[test]
fn with_json_only_report_json_is_written() {
    let place = Place::with("rank 0 1; finish");
    let output = place.run("--json --out study -- sh train.sh");
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), ""));
    assert!(place.path("study/report.json").exists() && !place.path("study/report.html").exists());
}

#[test]
fn machines_that_share_a_folder_bring_their_ranks_together() {
    let place = Place::with("rank $1 2; touch begun-$1; LASTS=$2 finish");
    let mut first = place.command("--out shared -- sh train.sh 0 0.6").spawn().expect("it runs");
    place.await_file("begun-0");
    let second = place.run("--out shared -- sh train.sh 1 1.2");
    assert!(first.wait().expect("it ends").success());
    assert!(second.status.success(), "{}", said(&second));
    let report = place.report("shared");
    assert_eq!(case(&report, 2)["straggler"]["rank"], 1, "{}", said(&second));
    assert_phases_sum(case(&report, 2));
    assert!(place.path("shared/net-w2/launcher.jsonl").exists());
    assert!(place.path("shared/net-w2/launcher-1.jsonl").exists());
}

#[test]
fn folders_of_several_machines_are_copied_together() {
    let place = Place::with("rank $1 2; touch begun-$1; LASTS=$2 finish");
    let mut first = place.command("--out a -- sh train.sh 0 0.6").spawn().expect("it runs");
    place.await_file("begun-0");
    let second = place.run("--out b -- sh train.sh 1 0.6");
    assert!(first.wait().expect("it ends").success() && second.status.success());
    assert!(flat(&second).contains("the logs of rank 0 are missing"), "{}", said(&second));
    assert!(!place.path("b/report.json").exists());
    for file in fs::read_dir(place.path("b/net-w2")).expect("a case").flatten() {
        fs::copy(file.path(), place.path("a/net-w2").join(file.file_name())).expect("room");
    }
    let report = std::process::Command::new(assert_cmd::cargo::cargo_bin!("paceline"))
        .args(["report", "a", "--json"])
        .current_dir(place.folder.path())
        .output()
        .expect("it runs");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    assert_eq!(case(&report, 2)["straggler"]["rank"], 1);
}

#[test]
fn an_old_part_is_not_taken_for_one_of_this_run() {
    let place = Place::with("rank $1 2; LASTS=0.5 finish");
    assert!(place.run("--out shared -- sh train.sh 1").status.success());
    let output = place.run("--out shared -- sh train.sh 0");
    assert!(flat(&output).contains("the logs of rank 1 are missing"), "{}", said(&output));
    assert!(!place.path("shared/net-w2/rank-1.jsonl").exists());
}

#[test]
fn a_run_that_is_stopped_is_reported_as_far_as_it_came() {
    let place = Place::with("trap 'exit 143' TERM; rank 0 1; echo ready; while :; do sleep 0.02; done");
    let mut child =
        place.command("-- sh train.sh").stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    let mut byte = [0];
    std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut byte).expect("it is ready");
    std::thread::sleep(std::time::Duration::from_millis(400));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .expect("it lives");
    assert_eq!(child.wait().expect("it ends").code(), Some(143));
    let report = place.report("run-1");
    let case = case(&report, 1);
    assert_eq!(
        (&case["status"], &case["reason"]),
        (&"interrupted".into(), &"stopped by signal 15 (SIGTERM)".into())
    );
    assert!(case["images_per_s"].is_object(), "{case}");
    assert_phases_sum(case);
}
