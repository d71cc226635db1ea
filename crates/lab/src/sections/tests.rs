use super::*;
use crate::fixture::{self, Plan};
use crate::section::Level;
use crate::terminal::{self, Screen};
use crate::{Finding, html, markdown};

/// A training: the same plans, under another command.
fn training(plans: &[Plan]) -> Report {
    let mut report = fixture::report_on(plans);
    report.command = vec!["train".into(), "resnet50".into()];
    report
}

/// The names of all columns that a report shows, by the title of their section.
fn columns(report: &Report) -> Vec<(String, Vec<String>)> {
    let shown = |section: Section| {
        let tables = section.blocks.iter().filter_map(|block| match block {
            Block::Table(table) => Some(table.without_empty()),
            _ => None,
        });
        let names = tables
            .flat_map(|table| table.columns().iter().map(|column| column.name.clone()).collect::<Vec<_>>());
        (section.title, names.collect())
    };
    of(report, Medium::Page).into_iter().map(shown).collect()
}

/// Reports of several kinds, with many columns and long names.
fn reports() -> Vec<Report> {
    let elastic = CaseReport::of(&[fixture::elastic::eventful_run()]);
    let elastic = Report::new(&fixture::study(std::slice::from_ref(&elastic.case)), vec![elastic]);
    let many: Vec<Plan> = [1, 2, 4, 8, 16].map(|workers| Plan::calm("mobilenet_v2", workers)).into();
    let mut named = fixture::report();
    for group in &mut named.explained {
        group.key.variant =
            "bucket-mb 25, compress bf16, global-batch 4096, overlap no, precision bf16".into();
    }
    named.findings = vec![
        Finding {
            kind: crate::Kind::StartUp,
            case: 0,
            text: "a sentence that is as long as some are ".repeat(6),
            advice: "and advice that is not much shorter than that ".repeat(4),
            lost_s: Some(1.0),
            fraction: Some(0.1),
            size: 0.0,
        };
        3
    ];
    vec![
        fixture::report(),
        fixture::report_on(&fixture::learning_plans()),
        training(&fixture::learning_plans()[..1]),
        fixture::report_on(&many),
        elastic,
        fixture::hosts::Story { third: true, ..Default::default() }.report(),
        named,
    ]
}

#[test]
fn no_printed_line_is_wider_than_the_terminal() {
    for report in reports() {
        for width in [80, 100, 120, 200] {
            let text = terminal::render_report(&report, Screen { width, ..Screen::PLAIN });
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}\n{text}");
            }
        }
    }
}

#[test]
fn a_narrow_terminal_says_what_it_leaves_out_and_the_page_has_it() {
    let report = fixture::report();
    let text = terminal::render_report(&report, Screen { width: 80, ..Screen::PLAIN });
    assert!(text.contains("left out: init s, ") && text.contains("(report.html has all columns)"), "{text}");
    let wide = terminal::render_report(&report, Screen { width: 400, ..Screen::PLAIN });
    assert!(!wide.contains("left out: "), "{wide}");
}

#[test]
fn a_narrow_terminal_keeps_step_times_and_the_speedup_with_its_interval() {
    let plans = [1, 2, 4].map(|workers| Plan::calm("mobilenet_v2", workers));
    let mut report = fixture::report_on(&plans);
    for group in &mut report.explained {
        group.key.variant = "compress bf16, global-batch 4096, precision bf16".into();
    }
    for case in &mut report.cases {
        let steady = case.steady.as_mut().expect("steps");
        (steady.mser_disagrees, steady.mser_step) = (true, Some(30));
    }
    for width in [80, 100] {
        let cases = Cases::new(&report, report.explained.iter().collect());
        let steps = results::steps(&cases).fit(width);
        assert!(steps.lines[0].contains("median ms  "), "{:?}", steps.lines);
        assert!(steps.lines[0].contains("steady state"), "{:?}", steps.lines);
        let results = results::cases(&cases).fit(width);
        assert!(results.lines[0].contains("images/s  speed-up  95 % interval"), "{:?}", results.lines);
    }
}

#[test]
fn a_training_is_called_one_and_shows_what_it_learned_first() {
    let [one, two, _] = fixture::learning_plans();
    for plan in [one, two] {
        let report = training(&[plan]);
        assert_eq!(kind(&report), "Training");
        let titles: Vec<String> = columns(&report).into_iter().map(|(title, _)| title).collect();
        assert_eq!(titles[..4], ["Result", "Findings", "Learning", "Speed"]);
        let pages = [
            terminal::render_report(&report, Screen { width: 300, ..Screen::PLAIN }),
            markdown::render(&report),
            html::render(&report).split_once("What the numbers mean").expect("definitions").0.to_owned(),
        ];
        for page in pages {
            for absent in ["caling study", "peed-up", "fficiency", "by time"] {
                assert!(!page.contains(absent), "{absent}: {page}");
            }
            assert!(page.contains("Learning"), "{page}");
        }
    }
}

#[test]
fn a_title_follows_what_the_study_is() {
    let [one, two] = [1, 2].map(|workers| Plan::calm("resnet50", workers));
    let mut report = fixture::report_on(&[one.clone(), two]);
    assert_eq!(kind(&report), "Scaling study");
    report.command = vec!["import".into()];
    assert_eq!(kind(&report), "Imported runs");
    assert_eq!(kind(&fixture::report_on(&[one])), "Benchmark");
}

#[test]
fn no_column_is_without_a_value_and_one_worker_alone_has_no_speedup() {
    let shown = columns(&fixture::report_on(&[Plan::calm("resnet50", 1)]));
    let results = &shown.iter().find(|(title, _)| title == "Results").expect("results").1;
    assert!(results.iter().any(|name| name == "images/s"), "{results:?}");
    assert!(
        !results.iter().any(|name| name.contains("speed-up") || name.contains("efficiency")),
        "{results:?}"
    );
    let shown = columns(&fixture::report());
    let results = &shown.iter().find(|(title, _)| title == "Results").expect("results").1;
    assert!(results.iter().any(|name| name == "speed-up by images/s"), "{results:?}");
}

#[test]
fn details_follow_their_chapter() {
    let sections = of(&fixture::report(), Medium::Page);
    let levels: Vec<(&str, Level)> =
        sections.iter().map(|section| (section.title.as_str(), section.level)).collect();
    let titles: Vec<&str> = levels.iter().map(|(title, _)| *title).collect();
    assert_eq!(
        titles[..4],
        ["Unfinished cases", "Result", "Findings", "Results"],
        "what matters most is first"
    );
    assert_eq!(levels[3], ("Results", Level::Chapter));
    assert_eq!(levels[4..6], [("Phases", Level::Detail), ("Steps", Level::Detail)]);
}

#[test]
fn a_training_that_went_on_with_other_workers_is_one_table_and_no_study_of_scaling() {
    let mut cases = crate::training::tests::resumed(&[0, 8]).cases;
    let later = &mut cases[1].case;
    (later.workers, later.scaling, later.global_batch) = (2, Some("strong".into()), Some(64));
    later.settings.extend([("shards", "2"), ("shards-before", "1")].map(|(a, b)| (a.into(), b.into())));
    let asked: Vec<Case> = cases.iter().map(|case| case.case.clone()).collect();
    let mut report = Report::new(&fixture::study(&asked), cases);
    report.command = vec!["train".into(), "resnet50".into()];
    let names: Vec<String> = report.explained.iter().map(|group| group.key.label()).collect();
    assert_eq!(names, ["resnet50", "resnet50, from step 8"]);
    let titles: Vec<String> = columns(&report).into_iter().map(|(title, _)| title).collect();
    for title in ["Speed", "Phases", "Steps"] {
        assert_eq!(titles.iter().filter(|it| it.starts_with(title)).count(), 1, "{titles:?}");
    }
    let text = terminal::render_report(&report, Screen { width: 300, ..Screen::PLAIN });
    let page = html::render(&report);
    let page = page.split_once("What the numbers mean").expect("definitions").0;
    assert!(!text.contains("scaling"), "{text}");
    assert!(!page.contains("weak and strong") && !page.contains("scaling</h2>"), "{page}");
}

#[test]
fn where_no_case_finished_there_is_no_table_of_results() {
    let mut run = fixture::learning_plans()[0].run();
    run.launcher.over = Some((paceline_record::Outcome::Interrupted, Some("stopped".into())));
    let case = CaseReport::of(&[run]);
    let mut report = Report::new(&fixture::study(std::slice::from_ref(&case.case)), vec![case]);
    report.command = vec!["train".into(), "resnet50".into()];
    let text = terminal::render_report(&report, Screen::PLAIN);
    let page = html::render(&report);
    let page = page.split_once("What the numbers mean").map_or(page.as_str(), |(before, _)| before);
    for text in [text.as_str(), page] {
        assert!(
            !text.contains("Results") && !text.contains("peed-up") && !text.contains("left out"),
            "{text}"
        );
        assert!(text.contains("interrupted") && text.contains("stopped"), "{text}");
    }
}
