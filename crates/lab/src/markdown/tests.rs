use super::*;
use crate::Machine;
use crate::fixture::{self, Plan};
use crate::numbers::law::{Law, Laws};
use crate::stats::laws::{self, Parameter, Point};

/// A report whose fits do not depend on how they are made.
fn pinned() -> Report {
    let mut report = fixture::report();
    for case in &mut report.cases {
        if let Some(steady) = &mut case.steady {
            steady.mser_step = Some(7);
            steady.mser_disagrees = case.case.workers == 4;
            steady.outliers = 1;
        }
    }
    for group in report.explained.iter_mut().filter(|group| !group.speedups.is_empty()) {
        let points = [1.0, 2.0, 3.0].map(|x| Point { x, y: 0.4 + x });
        let mut fit = laws::fit(laws::Law::Clock, &points).expect("a line");
        fit.parameters = vec![Parameter { name: "a", value: 0.4, lo: 0.3, hi: 0.5, at_bound: false }];
        group.laws = Laws { clock: Some(Law { fit, curve: Vec::new() }), ..Laws::default() };
    }
    report
}

#[test]
fn the_report_reads_from_what_failed_to_the_command() {
    insta::assert_snapshot!(render(&pinned()), @r"
    # Scaling study

    Paceline 0.1.0, 2026-11-16 08:33:34 UTC, on abacus

    ## Unfinished cases

    - vgg_19, 1 worker, failed: rank 0 died in step 3<br>of a cold

    ## Result

    - mobilenet_v2, 4 workers: 3.03x \[3.03 .. 3.04\] by images/s, 3.09x for the whole run; the rest went to waiting for stragglers (50 %), exposed communication (33 %), slower computation (17 %)
    - resnet50, 4 workers: 3.03x \[3.03 .. 3.04\] by images/s, 3.09x for the whole run; the rest went to waiting for stragglers (50 %), exposed communication (33 %), slower computation (17 %)

    ## Findings

    1. **mobilenet_v2: 4 workers spend 11 % of their time (3.60 worker-seconds) waiting for late ranks, 100 % of it for rank 1.** Rank 1 is slower than the others: check its cores and what else runs on them.
    2. **resnet50: 4 workers spend 11 % of their time (3.60 worker-seconds) waiting for late ranks, 100 % of it for rank 1.** Rank 1 is slower than the others: check its cores and what else runs on them.
    3. **mobilenet_v2: 4 workers spend 8 % of their time (2.40 worker-seconds) in exposed communication.** Try --update sharded, a larger --batch, --accumulate, or --compress bf16.
    4. **resnet50: 4 workers spend 8 % of their time (2.40 worker-seconds) in exposed communication.** Try --update sharded, a larger --batch, --accumulate, or --compress bf16.
    5. **mobilenet_v2: 4 workers spend 5 % of their time (1.66 worker-seconds) outside steady steps: the run is too short for its fixed costs.** More workers do not reduce it; run longer: with at least 64 steps, fixed costs take at most 5 % of the run.
    6. **resnet50: 4 workers spend 5 % of their time (1.66 worker-seconds) outside steady steps: the run is too short for its fixed costs.** More workers do not reduce it; run longer: with at least 64 steps, fixed costs take at most 5 % of the run.
    7. **mobilenet_v2: 2 workers spend 6 % of their time (0.72 worker-seconds) warming up (extra time of the first steps).** More workers do not reduce it; run longer: with at least 79 steps, fixed costs take at most 5 % of the run.
    8. **resnet50: 2 workers spend 6 % of their time (0.72 worker-seconds) warming up (extra time of the first steps).** More workers do not reduce it; run longer: with at least 79 steps, fixed costs take at most 5 % of the run.

    ## Results

    weak scaling (the batch per worker is the same for any number of workers), batch 64 per worker, 1 thread per worker, synthetic:cifar10, 32x32, cpu, nhwc, fp32

    | case | workers | init s | train s | total s | images/s (95 % interval) | speed-up by images/s (95 % interval) | speed-up by time (95 % interval) | speed-up of the whole run (95 % interval) | efficiency by images/s % (95 % interval) | efficiency by time % (95 % interval) | comp. : comm. | exchange ms per step | update ms per step | peak memory MB per worker |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | mobilenet_v2 | 1 | 0.05 | 6.02 | 6.07 | 678.6 (677.6 .. 679.8) | 1.00 | 1.00 | 1.00 | 100.0 | 100.0 | 10 : 0.00 | 0.00 | 4.00 | 110 |
    | mobilenet_v2 | 2 | 0.05 | 6.38 | 6.43 | 1276.0 (1274.3 .. 1278.2) | 1.88 (1.88 .. 1.88) | 1.89 (1.88 .. 1.89) | 1.89 (1.88 .. 1.89) | 94.0 (93.8 .. 94.2) | 94.4 (94.2 .. 94.6) | 10 : 0.52 | 5.00 | 4.00 | 106 |
    | mobilenet_v2 | 4 | 0.05 | 7.82 | 7.87 | 2059.4 (2057.1 .. 2062.1) | 3.03 (3.03 .. 3.04) | 3.08 (3.07 .. 3.09) | 3.09 (3.08 .. 3.09) | 75.9 (75.7 .. 76.0) | 77.0 (76.8 .. 77.1) | 10 : 2.47 | 25.00 | 4.00 | 103 |
    | resnet50 | 1 | 0.05 | 6.02 | 6.07 | 678.6 (677.6 .. 679.8) | 1.00 | 1.00 | 1.00 | 100.0 | 100.0 | 10 : 0.00 | 0.00 | 4.00 | 110 |
    | resnet50 | 2 | 0.05 | 6.38 | 6.43 | 1276.0 (1274.3 .. 1278.2) | 1.88 (1.88 .. 1.88) | 1.89 (1.88 .. 1.89) | 1.89 (1.88 .. 1.89) | 94.0 (93.8 .. 94.2) | 94.4 (94.2 .. 94.6) | 10 : 0.52 | 5.00 | 4.00 | 106 |
    | resnet50 | 4 | 0.05 | 7.82 | 7.87 | 2059.4 (2057.1 .. 2062.1) | 3.03 (3.03 .. 3.04) | 3.08 (3.07 .. 3.09) | 3.09 (3.08 .. 3.09) | 75.9 (75.7 .. 76.0) | 77.0 (76.8 .. 77.1) | 10 : 2.47 | 25.00 | 4.00 | 103 |
    | vgg_19 | 1 | failed: rank 0 died in step 3 |  |  |  |  |  |  |  |  |  |  |  |  |

    ### Phases

    Mean milliseconds per step of one rank.

    | case | workers | copy_in | forward | backward | comm_wait | comm_cpu | update | other | hidden communication % |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | mobilenet_v2 | 1 | 0.200 | 28.83 | 67.26 | 0.00 | 0.000 | 4.000 | 0.050 | - |
    | mobilenet_v2 | 2 | 0.200 | 29.13 | 67.96 | 3.00 | 2.000 | 4.000 | 0.050 | 71 |
    | mobilenet_v2 | 4 | 0.200 | 30.33 | 70.76 | 20.00 | 5.000 | 4.000 | 0.050 | 55 |
    | resnet50 | 1 | 0.200 | 28.83 | 67.26 | 0.00 | 0.000 | 4.000 | 0.050 | - |
    | resnet50 | 2 | 0.200 | 29.13 | 67.96 | 3.00 | 2.000 | 4.000 | 0.050 | 71 |
    | resnet50 | 4 | 0.200 | 30.33 | 70.76 | 20.00 | 5.000 | 4.000 | 0.050 | 55 |

    ### Steps

    | case | workers | steps | repeats | median ms | 95th ms | 99th ms | variation % | outliers | steady state |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
    | mobilenet_v2 | 1 | 60 | 1 | 94.30 | 95.05 | 95.12 | 0.54 | 1 | warm-up, steady from step 2 |
    | mobilenet_v2 | 2 | 60 | 1 | 100.30 | 101.05 | 101.12 | 0.51 | 1 | warm-up, steady from step 2 |
    | mobilenet_v2 | 4 | 60 | 1 | 124.30 | 125.05 | 125.12 | 0.41 | 1 | warm-up, steady from step 2; MSER-5 would start at step 7 |
    | resnet50 | 1 | 60 | 1 | 94.30 | 95.05 | 95.12 | 0.54 | 1 | warm-up, steady from step 2 |
    | resnet50 | 2 | 60 | 1 | 100.30 | 101.05 | 101.12 | 0.51 | 1 | warm-up, steady from step 2 |
    | resnet50 | 4 | 60 | 1 | 124.30 | 125.05 | 125.12 | 0.41 | 1 | warm-up, steady from step 2; MSER-5 would start at step 7 |

    ## mobilenet_v2: what more workers cost

    Worker-milliseconds per image by cause, and as a percentage of the difference from one worker. Causes that make no difference are left out.

    | cause | 2 workers, ms per image (95 % interval) | % of the difference to 2 workers | 4 workers, ms per image (95 % interval) | % of the difference to 4 workers |
    | --- | ---: | ---: | ---: | ---: |
    | 1 worker | 1.582 |  | 1.582 |  |
    | slower computation | +0.016 (+0.012 .. +0.019) | 16.7 | +0.078 (+0.075 .. +0.081) | 16.7 |
    | exposed communication | +0.062 (+0.062 .. +0.063) | 66.7 | +0.156 (+0.156 .. +0.156) | 33.3 |
    | waiting for stragglers | +0.016 (+0.016 .. +0.016) | 16.7 | +0.234 (+0.234 .. +0.234) | 50.0 |
    | difference | +0.094 | 100.0 | +0.469 | 100.0 |
    | total | 1.675 |  | 2.050 |  |

    - 2 workers: 1.88x by images/s times 94.3 / 94.0 (% of training time at the steady rate, 2 workers / 1 worker) = 1.89x by training time; 1.89x for the whole run
    - 4 workers: 3.03x by images/s times 95.4 / 94.0 (% of training time at the steady rate, 4 workers / 1 worker) = 3.08x by training time; 3.09x for the whole run
    - 0.40 s of every run (95 % interval 0.30 .. 0.50) do not shrink as workers are added

    ## resnet50: what more workers cost

    Worker-milliseconds per image by cause, and as a percentage of the difference from one worker. Causes that make no difference are left out.

    | cause | 2 workers, ms per image (95 % interval) | % of the difference to 2 workers | 4 workers, ms per image (95 % interval) | % of the difference to 4 workers |
    | --- | ---: | ---: | ---: | ---: |
    | 1 worker | 1.582 |  | 1.582 |  |
    | slower computation | +0.016 (+0.012 .. +0.019) | 16.7 | +0.078 (+0.075 .. +0.081) | 16.7 |
    | exposed communication | +0.062 (+0.062 .. +0.063) | 66.7 | +0.156 (+0.156 .. +0.156) | 33.3 |
    | waiting for stragglers | +0.016 (+0.016 .. +0.016) | 16.7 | +0.234 (+0.234 .. +0.234) | 50.0 |
    | difference | +0.094 | 100.0 | +0.469 | 100.0 |
    | total | 1.675 |  | 2.050 |  |

    - 2 workers: 1.88x by images/s times 94.3 / 94.0 (% of training time at the steady rate, 2 workers / 1 worker) = 1.89x by training time; 1.89x for the whole run
    - 4 workers: 3.03x by images/s times 95.4 / 94.0 (% of training time at the steady rate, 4 workers / 1 worker) = 3.08x by training time; 3.09x for the whole run
    - 0.40 s of every run (95 % interval 0.30 .. 0.50) do not shrink as workers are added

    ## Command and machine

    ```
    paceline bench --workers '1,2,4'
    ```

    - processor: Abacus 9000
    - cores: 4
    - memory: 16000 MB
    - kernel: 6.1.0
    - engine: cpu: beads
    ");
}

#[test]
fn weak_and_strong_cases_never_share_a_table() {
    let mut plans = vec![Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)];
    let weak = render(&fixture::report_on(&plans));
    assert!(weak.contains("## Results\n\nweak scaling (") && !weak.contains("strong"), "{weak}");
    plans.truncate(1);
    let mut report = fixture::report_on(&[plans[0].clone(), plans[0].clone()]);
    report.explained.truncate(1);
    report.explained[0].cases = vec![0];
    let mut strong = report.explained[0].clone();
    strong.key.scaling = Some("strong".into());
    strong.cases = vec![1];
    report.explained.push(strong);
    let both = render(&report);
    for name in ["Results", "Phases", "Steps"] {
        let lines = both.lines().filter(|line| line.contains(&format!("# {name}, ")));
        assert_eq!(lines.collect::<Vec<_>>().len(), 2, "{both}");
    }
    let rows = both.lines().filter(|line| line.starts_with("| resnet50 | 1 |"));
    assert_eq!(rows.count(), 6, "three tables for each of the two");
}

/// Cells of a line of a table, as GitHub splits it.
fn cells(line: &str) -> usize {
    let mut escaped = false;
    let bars = line.chars().filter(|&c| {
        let bar = c == '|' && !escaped;
        escaped = c == '\\' && !escaped;
        bar
    });
    bars.count() - 1
}

#[test]
fn every_row_has_as_many_cells_as_its_header_whatever_the_names_hold() {
    let mut report = fixture::report();
    for case in &mut report.cases {
        case.case.model = "a|b\nc".into();
        if case.status == crate::Status::Failed {
            case.reason = Some("pipe | and\r\nline\\|".into());
        }
    }
    for group in &mut report.explained {
        group.key.model = "a|b\nc\\".into();
    }
    let text = render(&report);
    let tables = text.split("\n\n").filter(|part| part.starts_with('|'));
    let mut rows = 0;
    for table in tables {
        let columns = cells(table.lines().next().expect("a header"));
        for line in table.lines() {
            assert_eq!(cells(line), columns, "{line}");
            rows += 1;
        }
    }
    assert!(rows > 30, "{text}");
    assert!(text.contains(r"pipe \| and<br>line\\\|"), "{text}");
}

#[test]
fn a_report_without_anything_is_still_a_page() {
    let mut report = fixture::report_on(&[]);
    report.missing = 2;
    report.machine = Machine::default();
    report.command = vec!["bench".into(), "--data".into(), "images:my pictures`".into()];
    let text = render(&report);
    assert!(text.contains("None: no case finished."), "{text}");
    assert!(text.contains("2 of 2 cases are left"), "{text}");
    assert!(text.contains("```\npaceline bench --data 'images:my pictures`'\n```\n"), "{text}");
}

#[test]
fn learning_is_a_table_if_any_case_has_it() {
    let text = render(&fixture::report_on(&fixture::learning_plans()));
    let table = text.split("## Learning\n\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    insta::assert_snapshot!(table.expect("a table"), @r"
    | case | workers | global batch | lr | epochs | training time s | s per epoch | images/s | speed-up by time | train accuracy % | test accuracy % (95 % interval) | test loss | peak memory MB per worker | eval s | checkpoint s |
    | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
    | resnet50 | 1 | 64 | 0.1 | 3.00 | 12.34 | 4.11 | 678.7 | 1.00 | 67.2 | 67.0 (66.1 .. 67.9) | 0.6667 | 110 | 0.60 | 0.06 |
    | resnet50 | 2 | 128 | 0.1 | 3.00 | 7.04 | 2.35 | 1276.0 | 1.75 | 67.2 | 66.5 (65.6 .. 67.4) | 0.6667 | 106 | 0.60 | 0.06 |
    | resnet50 | 4 | 256 | 0.1 | 3.00 | 4.03 | 1.34 | 2553.5 | 3.06 | 57.8 | 58.0 (57.0 .. 59.0) | 0.6667 | 103 | 0.60 | 0.06 |
    ");
    assert!(!render(&fixture::report()).contains("Learning"));
}

#[test]
fn code_in_an_advice_is_code() {
    assert_eq!(render_advice("run `paceline doctor`, *now*"), "run `paceline doctor`, \\*now\\*");
}
