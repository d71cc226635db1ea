use super::*;
use crate::finding::SHOWN;
use crate::{CaseReport, Finding, fixture};

#[test]
fn learning_is_a_table_if_any_case_has_it() {
    let text = render_report(
        &fixture::report_on(&fixture::learning_plans()),
        Screen { width: 160, ..Screen::PLAIN },
    );
    let learned = text.split("\n\n").find(|part| part.starts_with("Learning")).expect("a table");
    insta::assert_snapshot!(learned, @r"
    Learning
    case      workers  batch   lr  epochs  train s  s/epoch  images/s  by time  train %  test %  95 % interval  test loss  memory MB  eval s  saving s
    resnet50        1     64  0.1    3.00    12.34     4.11     678.7     1.00     67.2    67.0   66.1 .. 67.9     0.6667        110    0.60      0.06
    resnet50        2    128  0.1    3.00     7.04     2.35    1276.0     1.75     67.2    66.5   65.6 .. 67.4     0.6667        106    0.60      0.06
    resnet50        4    256  0.1    3.00     4.03     1.34    2553.5     3.06     57.8    58.0   57.0 .. 59.0     0.6667        103    0.60      0.06
    ");
    let plain = render_report(&fixture::report(), Screen::PLAIN);
    assert!(!plain.contains("s/epoch"), "{plain}");
}

#[test]
fn findings_beyond_the_first_few_are_counted() {
    let mut report = fixture::report();
    let one = Finding {
        kind: crate::finding::Kind::StartUp,
        case: 0,
        text: "something".into(),
        advice: "do something".into(),
        lost_s: Some(1.0),
        fraction: Some(0.1),
        size: 0.0,
    };
    report.findings = vec![one; SHOWN + 3];
    let text = render_report(&report, Screen::PLAIN);
    assert_eq!(text.matches("do something").count(), SHOWN, "{text}");
    assert!(text.contains("3 smaller ones"), "{text}");
    report.findings.truncate(SHOWN);
    assert!(!render_report(&report, Screen::PLAIN).contains("smaller ones"));
}

#[test]
fn nothing_that_others_wrote_steers_the_terminal() {
    let mut report = fixture::report();
    let evil = || "evil\u{1b}[31m".to_owned();
    for case in &mut report.cases {
        (case.case.model, case.case.engine, case.reason) = (evil(), Some(evil()), Some(evil()));
        case.origin = Some(crate::origin::Origin { notes: vec![evil()], ..crate::origin::Origin::new(None) });
    }
    report.explained.iter_mut().for_each(|group| group.key.model = evil());
    report.findings.iter_mut().for_each(|finding| (finding.text, finding.advice) = (evil(), evil()));
    assert!(!render_report(&report, Screen::PLAIN).contains('\u{1b}'));
    assert!(
        !render_report(&report, Screen { colours: Colours::Ansi, ..Screen::PLAIN }).contains("evil\u{1b}")
    );
}

#[test]
fn what_happened_to_members_comes_after_the_findings() {
    let case = CaseReport::of(&[crate::fixture::elastic::eventful_run()]);
    let report = Report::new(&crate::fixture::study(std::slice::from_ref(&case.case)), vec![case]);
    let text = render_report(&report, Screen::PLAIN);
    insta::assert_snapshot!(text.split_once("Findings\n").expect("findings").1, @r"
      1. resnet50: with 3 workers, 1 kill cost 13 % of the workers' time (1.73 worker-seconds); most of
         it (87 %) was starting replacements; steps with fewer workers than before a loss took 0.45 s
         longer in all
         every loss was planted with --faults: without faults this time would not be lost

    resnet50, 3 workers: members
    - members: 1 lost, 1 left, 1 joined; 4 rosters, 2.78 members on average
    - losses cost 1.73 worker-seconds (13.49 % of the members' time): 1.50 starting replacements, 0.20
      waiting and doing lost work again, 0.03 of unfinished steps
    - changes of the roster took 0.130 s of the run: 0.010 s to notice losses, 0.020 s until a new
      roster held, 0.100 s to do 64 images again
    - steps with fewer members than before a loss took 0.45 s longer in all

    time s  step  member  what happened                                  cost, worker-s
      1.08    10       1  lost: signal 9 (SIGKILL) (planted: kill=1@10)            0.23
      1.10     -       3  started in place of member 1                             1.50
      2.60    20       3  joined                                                      -
      3.60    30       2  left in good order                                          -
    ");
    assert!(text.contains("members changed; counted"), "{text}");
    let markdown = crate::markdown::render(&report);
    assert!(
        markdown.contains("| 1.08 | 10 | 1 | lost: signal 9 (SIGKILL) (planted: kill=1@10) | 0.23 |"),
        "{markdown}"
    );
}

#[test]
fn no_line_is_broken_inside_a_ratio() {
    let mut table = Table::new(
        [Column::words("case")].into_iter().chain((0..9).map(|_| Column::numbers("comp. : comm."))),
    );
    table.row(vec!["1"; 10]);
    let section = Section::new(Topic::Cases, "Results").tables([table]);
    for width in 30..60 {
        let text = render(std::slice::from_ref(&section), Screen { width, ..Screen::PLAIN });
        let (_, names) = text.split_once("left out: ").expect("narrow");
        let broken = |line: &str| line.matches("comp.").count() != line.matches("comm.").count();
        assert!(!names.lines().any(broken) && names.is_ascii(), "{width}: {text}");
    }
}
