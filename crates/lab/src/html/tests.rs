use paceline_record::{Case, Phase};
use roxmltree::{Document, Node};

mod figures;

use super::*;
use crate::fixture::{self, Plan, report_on, study};
use crate::numbers::law::{Law, Laws};
use crate::numbers::speedup::Interval;
use crate::stats::laws::{self, Point};
use crate::words;

/// The part of a page that says something; it is well-formed XML.
fn body(page: &str) -> &str {
    let (from, to) = (page.find("<main>").expect("a begin"), page.find("</main>").expect("an end"));
    &page[from..to + "</main>".len()]
}

fn parse(page: &str) -> Document<'_> {
    Document::parse(body(page)).expect("well-formed")
}

fn drawn<'a>(document: &'a Document<'a>, name: &str) -> Vec<Node<'a, 'a>> {
    document.descendants().filter(|node| node.attribute("data-figure") == Some(name)).collect()
}

fn has_class(node: &Node<'_, '_>, class: &str) -> bool {
    node.attribute("class").is_some_and(|classes| classes.split_whitespace().any(|one| one == class))
}

fn marks<'a>(node: &Node<'a, 'a>) -> Vec<Node<'a, 'a>> {
    node.descendants().filter(|node| has_class(node, "mark")).collect()
}

fn text(node: &Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
}

const FIGURES: [&str; 7] =
    ["speedup", "efficiency", "step-times", "phases", "waterfall", "overlap", "memory"];

/// The rows of a table's body.
fn rows(table: &Node<'_, '_>) -> Vec<Vec<String>> {
    let inside = |node: &Node<'_, '_>| node.parent_element().is_some_and(|p| p.has_tag_name("tbody"));
    let rows = table.descendants().filter(|node| node.has_tag_name("tr") && inside(node));
    rows.map(|row| row.children().map(|cell| text(&cell)).collect()).collect()
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let page = render(&fixture::report());
    for foreign in ["http:", "https:", "src=", "url(", "@import", "<link", "eval(", "innerHTML", "fetch("] {
        assert!(!page.contains(foreign), "the page has {foreign}");
    }
    let scripts: Vec<&str> = page.split("<script>").skip(1).collect();
    assert_eq!(scripts.len(), 1, "and one script, which the policy names");
    let script = scripts[0].split("</script>").next().expect("an end");
    assert!(page.contains(&format!("script-src &#39;{}&#39;", digest(script))));
    assert_eq!(
        digest("alert(1)"),
        "sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=",
        "as any browser has it"
    );
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
}

#[test]
fn every_figure_with_data_is_drawn_with_marks_and_says_what_to_see() {
    let page = render(&fixture::report());
    let document = parse(&page);
    for name in FIGURES {
        let found = drawn(&document, name);
        let groups = if name == "waterfall" { 4 } else { 2 };
        assert_eq!(found.len(), groups, "{name}: one for each of two groups that finished");
        for figure in found {
            let caption = figure.children().find(|node| node.has_tag_name("figcaption")).expect("a caption");
            assert!(text(&caption).len() > 30);
            for svg in figure.descendants().filter(|node| node.has_tag_name("svg")) {
                assert!(!marks(&svg).is_empty(), "{name} has no marks");
                assert!(svg.first_element_child().is_some_and(|title| title.has_tag_name("title")));
                assert_eq!(svg.attribute("role"), Some("img"));
            }
        }
    }
}

#[test]
fn one_worker_alone_has_no_speedup_to_draw() {
    let page = render(&report_on(&[Plan::calm("resnet50", 1)]));
    let document = parse(&page);
    let drawn = FIGURES.map(|name| drawn(&document, name).len());
    assert_eq!(drawn, [0, 0, 1, 1, 0, 0, 1]);
    assert!(page.contains("<h1>resnet50 on 1 worker</h1>"));
}

#[test]
fn a_study_of_which_nothing_finished_draws_nothing() {
    let mut report = report_on(&[Plan::calm("resnet50", 2)]);
    let case = report.cases[0].case.clone();
    let error = crate::LabError::NoStudy { path: "nowhere".into() };
    report = Report::new(&study(std::slice::from_ref(&case)), vec![CaseReport::unreadable(&case, &error)]);
    let page = render(&report);
    let document = parse(&page);
    assert!(FIGURES.iter().all(|name| drawn(&document, name).is_empty()));
    assert!(page.contains("no case finished") && page.contains("nowhere is not a study"));
    parse(&render(&Report::new(&study(&[]), Vec::new())));
}

#[test]
fn hostile_names_are_escaped() {
    let hostile = "</title><script>alert('\u{1b}[31m')</script>\"&";
    let plans = [Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)];
    let mut runs: Vec<crate::Run> = plans.iter().map(Plan::run).collect();
    for run in &mut runs {
        let case = &mut run.launcher.header.case;
        case.model = hostile.into();
        case.engine = Some(hostile.into());
    }
    runs[1].launcher.over = Some((paceline_record::Outcome::Failed, Some(hostile.into())));
    let cases: Vec<Case> = runs.iter().map(|run| run.case().clone()).collect();
    let mut asked = study(&cases);
    asked.command = vec!["bench".into(), hostile.into()];
    asked.machine.cpu = Some(hostile.into());
    let page = render(&Report::new(
        &asked,
        runs.iter().map(|run| CaseReport::of(std::slice::from_ref(run))).collect(),
    ));
    let document = parse(&page);
    assert!(!body(&page).contains("<script") && !page.contains('\u{1b}'));
    let shown = hostile.replace('\u{1b}', "\u{fffd}");
    let headings = document.descendants().filter(|node| node.has_tag_name("h2"));
    assert!(headings.map(|node| text(&node)).any(|name| name == shown));
}

#[test]
fn the_table_holds_the_numbers_of_the_report() {
    let report = fixture::report();
    let page = render(&report);
    let document = parse(&page);
    let table = document.descendants().find(|node| node.has_tag_name("table")).expect("a table");
    let rows = rows(&table);
    assert_eq!(rows[0], ["mobilenet_v2"]);
    let (four, case) = (&rows[3], &report.cases[2]);
    let rate = case.images_per_s.expect("done");
    let phases = case.phases_s.as_ref().expect("done");
    let a_step = |seconds: f64| format!("{:.2}", 1e3 * seconds / 4.0 / case.steps as f64);
    let with = |value: String, interval: Option<Interval>, factor: f64, places: usize| {
        let Interval { lo, hi } = interval.expect("compared");
        format!("{value}{:.places$} .. {:.places$}", factor * lo, factor * hi)
    };
    let ratio =
        |value: Option<f64>, interval| with(format!("{:.2}", value.expect("compared")), interval, 1.0, 2);
    let percent = |value: Option<f64>, interval| {
        with(format!("{:.1}", 100.0 * value.expect("compared")), interval, 100.0, 1)
    };
    let expected = [
        "4".to_owned(),
        format!("{:.2}", case.init_s.expect("done")),
        format!("{:.2}", case.train_s.expect("done")),
        format!("{:.2}", case.total_s.expect("done")),
        format!("{:.1}{:.1} .. {:.1}", rate.mean, rate.lo.expect("many steps"), rate.hi.expect("many steps")),
        ratio(case.speedup_speed, case.speedup_speed_interval),
        ratio(case.speedup_time, case.speedup_time_interval),
        ratio(case.speedup_total, case.speedup_total_interval),
        percent(case.efficiency_speed, case.efficiency_speed_interval),
        percent(case.efficiency_time, case.efficiency_time_interval),
        format!("10 : {:.2}", case.communication_ratio.expect("done")),
        a_step(phases[&Phase::CommWait] + phases[&Phase::CommCpu]),
        a_step(phases[&Phase::Update]),
        format!("{:.0}", 1e-6 * case.peak_memory_bytes.expect("told").per_worker.0 as f64),
    ];
    assert_eq!(four[..], expected);
    assert_eq!(rows.last().expect("rows")[..], ["1", "failed: rank 0 died in step 3"]);
}

#[test]
fn the_page_says_what_the_report_says() {
    let mut report = fixture::report();
    report.missing = 2;
    let page = render(&report);
    let shown = text(&parse(&page).root_element());
    for finding in &report.findings {
        assert!(
            shown.contains(&finding.text) && shown.contains(&finding.advice.replace('`', "")),
            "{}",
            finding.text
        );
    }
    let sentences = report.explained.iter().flat_map(|group| &group.speedups).filter(|s| s.workers > 1);
    for sentence in sentences.filter_map(words::reconcile).chain(words::steady(&report.cases[0])) {
        assert!(shown.contains(&sentence), "{sentence}");
    }
    for said in [
        "rank 0 died in step 3\nof a cold",
        "paceline bench --workers '1,2,4'",
        "Abacus 9000",
        "2 of 9 cases are left",
    ] {
        assert!(shown.contains(said), "{said}");
    }
    report.findings.clear();
    assert!(render(&report).contains(words::no_findings(&report)));
}

#[test]
fn bars_of_a_rank_fill_the_run() {
    let page = render(&report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 2)]));
    let document = parse(&page);
    let number = |node: &Node<'_, '_>, name: &str| -> f64 {
        node.attribute(name).and_then(|value| value.parse().ok()).expect("a number")
    };
    let mut rows: Vec<(f64, f64)> = Vec::new();
    for mark in marks(&drawn(&document, "phases")[0]) {
        let (y, width) = (number(&mark, "y"), number(&mark, "width"));
        match rows.last_mut() {
            Some(row) if row.0 == y => row.1 += width,
            _ => rows.push((y, width)),
        }
    }
    assert_eq!(rows.len(), 3);
    for (_, width) in &rows {
        assert!((width / rows[0].1 - 1.0).abs() < 1e-3 && *width > 300.0, "{rows:?}");
    }
}

#[test]
fn a_waterfall_shows_every_cause_that_counts() {
    let report = fixture::report();
    let fall = report.explained[0].waterfalls.last().expect("four workers");
    let page = render(&report);
    let document = parse(&page);
    let drawing = drawn(&document, "waterfall")[0];
    let unit = unit::Unit::of_time(fall.to_s);
    let shown: Vec<String> =
        drawing.descendants().filter(|node| node.has_tag_name("text")).map(|node| text(&node)).collect();
    for part in fall.parts.iter().filter(|part| part.seconds.abs() > 1e-6) {
        assert!(shown.iter().any(|text| text == part.cause.name()), "{:?}", part.cause);
        assert!(shown.contains(&unit.show_signed(part.seconds)), "{:?}", part.cause);
    }
    for end in [fall.from_s, fall.to_s] {
        assert!(shown.contains(&unit.show(end)));
    }
}

#[test]
fn the_best_law_is_drawn_where_there_is_one() {
    let mut report = fixture::report();
    let lines = |report: &Report| {
        let page = render(report);
        marks(&drawn(&parse(&page), "speedup")[0]).len()
    };
    let before = lines(&report);
    let points = [1.0, 2.0, 4.0, 8.0].map(|x| Point { x, y: 600.0 * x / (1.0 + 0.1 * (x - 1.0)) });
    let fit = laws::fit(laws::Law::Usl, &points).expect("a law");
    let law = Law { fit, curve: vec![(1.0, 600.0), (4.0, 2000.0), (8.0, 3000.0)] };
    report.explained[0].laws = Laws { throughput: vec![law], best: Some("USL".into()), ..Laws::default() };
    assert_eq!(lines(&report), before + 1);
    assert!(render(&report).contains("USL fits images/s best"));
}

#[test]
fn of_many_groups_the_first_is_open_and_all_are_listed() {
    let names = ["a", "b", "c", "d", "e"];
    let page = render(&report_on(&names.map(|name| Plan::calm(name, 1))));
    let document = parse(&page);
    let count = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
    let groups: Vec<_> = document
        .descendants()
        .filter(|node| node.has_tag_name("details") && has_class(node, "section"))
        .filter(|node| node.descendants().any(|inside| inside.has_tag_name("svg")))
        .collect();
    let open: Vec<bool> = groups.iter().map(|group| group.has_attribute("open")).collect();
    assert_eq!((count("nav"), open), (1, vec![true, false, false, false, false]));
    let links = document
        .descendants()
        .filter(|node| node.has_tag_name("a") && node.ancestors().any(|above| above.has_tag_name("nav")));
    assert_eq!(links.clone().count(), 5);
    for link in links {
        let target = link.attribute("href").and_then(|href| href.strip_prefix('#'));
        assert!(document.descendants().any(|node| node.attribute("id") == target));
    }
    assert!(page.contains("<h1>5 networks on 1 worker</h1>"));
}

#[test]
fn a_study_of_sixty_four_ranks_stays_small() {
    let plans = [1, 8, 64].map(|workers| Plan { steps: 1000, ..Plan::calm("resnet50", workers) });
    let page = render(&report_on(&plans));
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    assert!(marks(&drawn(&parse(&page), "phases")[0]).len() >= 73 * 5);
}

#[test]
fn what_was_learned_has_a_table_and_a_line_for_each_case() {
    let report = report_on(&fixture::learning_plans());
    let page = render(&report);
    let document = parse(&page);
    let labelled = |node: &Node<'_, '_>| node.attribute("aria-label") == Some("Learning");
    let table = document.descendants().find(labelled).expect("a table");
    let rows = rows(&table);
    assert_eq!(rows[0], ["resnet50"]);
    let expected = "4 256 0.1 3.00 4.03 1.34 2553.5 3.06 57.8 58.057.0_.._59.0 0.6667 103 0.60 0.06";
    assert_eq!(rows[3].join(" "), expected.replace('_', " "), "the interval stands with its value");
    let figure = drawn(&document, "accuracy")[0];
    let drawings: Vec<_> = figure.descendants().filter(|node| node.has_tag_name("svg")).collect();
    assert_eq!(drawings.len(), 2, "over epochs and over time");
    for drawing in drawings {
        assert_eq!(marks(&drawing).iter().filter(|mark| has_class(mark, "line")).count(), 3);
        assert_eq!(
            marks(&drawing).iter().filter(|mark| has_class(mark, "dot")).count(),
            9,
            "three tests each"
        );
    }
    let shown = text(&figure);
    assert!(
        shown.contains("over epochs")
            && shown.contains("4 workers: 58.0\u{a0}% (95\u{a0}% interval 57.0 .. 59.0)")
    );
    let plain = render(&fixture::report());
    assert!(!plain.contains("Learning") && drawn(&parse(&plain), "accuracy").is_empty());
}

#[test]
fn a_network_without_classes_shows_its_loss_and_many_tests_are_thinned() {
    let [mut plan, ..] = fixture::learning_plans();
    plan = Plan { steps: 1000, eval: Some((1, 1.0)), epoch: None, ..plan };
    let mut run = plan.run();
    run.ranks[0].evaluations.iter_mut().for_each(|test| test.correct = None);
    let report = Report::new(&study(&[plan.case()]), vec![CaseReport::of(&[run])]);
    let page = render(&report);
    let document = parse(&page);
    let figure = drawn(&document, "accuracy")[0];
    let dots = marks(&figure).into_iter().filter(|mark| has_class(mark, "dot")).count();
    assert_eq!(dots, 2 * 200);
    let shown = text(&figure);
    assert!(
        shown.contains("Test loss") && shown.contains("over steps") && shown.contains("a loss of 0.0020")
    );
}

#[test]
fn members_that_come_and_go_are_drawn_and_listed_with_what_happened() {
    let case = CaseReport::of(&[fixture::elastic::eventful_run()]);
    let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
    let page = render(&report);
    let document = parse(&page);
    let figure = drawn(&document, "members");
    assert_eq!(figure.len(), 1);
    assert!(marks(&figure[0]).len() >= 3, "two lines and a loss");
    let tables = document.descendants().filter(|node| node.has_tag_name("table")).map(|node| rows(&node));
    let events = tables.into_iter().find(|rows| rows.iter().any(|row| row.len() == 5)).expect("a table");
    assert_eq!(events[0][2..4], ["1".to_owned(), "lost: signal 9 (SIGKILL) (planted: kill=1@10)".into()]);
    assert_eq!(events[1][3], "started in place of member 1");
    assert!(page.contains("member 3, recovery") || page.contains("member 0, recovery"), "bars by member");
    let calm = CaseReport::of(&[fixture::elastic::calm_run()]);
    let calm = render(&Report::new(&study(std::slice::from_ref(&calm.case)), vec![calm]));
    assert!(drawn(&parse(&calm), "members").is_empty());
}

#[test]
fn why_a_case_failed_comes_before_everything_else_with_its_last_words_and_logs() {
    let mut report = fixture::report();
    let failed = report.cases.iter_mut().find(|case| case.status != crate::Status::Done);
    failed.expect("one").files = vec!["a case/rank-0.stderr".into(), "a case/launcher.jsonl".into()];
    let page = render(&report);
    let place = |text: &str| body(&page).find(text).unwrap_or_else(|| panic!("there is no {text}"));
    assert!(place("rank 0 died in step 3\nof a cold") < place("<h2>Findings</h2>"));
    assert!(place("href=\"./a%20case/rank-0.stderr\"") < place("<h2>Findings</h2>"));
    assert!(place("class=\"verdict\"") < place("rank 0 died in step 3"));
}

#[test]
fn the_page_links_to_the_other_files_of_its_folder() {
    let mut report = report_on(&[Plan::calm("resnet50", 64)]);
    report.cases[0].files = (0..65).map(|rank| format!("resnet50-w64/rank-{rank}.jsonl")).collect();
    let page = render(&report);
    let document = parse(&page);
    let links: Vec<&str> = document.descendants().filter_map(|node| node.attribute("href")).collect();
    for file in ["timeline.json", "report.csv", "report.md", "report.json", "resnet50-w64/rank-0.jsonl"] {
        assert!(links.contains(&format!("./{file}").as_str()), "{file}");
    }
    assert!(page.contains("and 53 more") && links.len() < 20);
}

#[test]
fn a_profile_is_a_folded_table_of_the_slowest_layers() {
    let mut report = report_on(&[Plan::calm("resnet50", 1)]);
    assert!(!render(&report).contains(": layers"));
    let layer = |number: u64| paceline_record::LayerTime {
        name: format!("conv{number}"),
        calls: 10,
        forward: paceline_record::Nanos(number * 1_000_000),
        backward: paceline_record::Nanos(0),
        forward_flops: 1,
        backward_flops: 2,
    };
    report.cases[0].layers = (1..=30).map(layer).collect();
    let page = render(&report);
    let document = parse(&page);
    let folded = document
        .descendants()
        .find(|node| node.has_tag_name("details") && text(node).contains("resnet50, 1 worker: layers"));
    let rows = rows(&folded.expect("a section"));
    assert_eq!((rows.len(), rows[0][0].as_str()), (21, "conv30"));
    assert!(rows[20][0].starts_with("10 more"), "{:?}", rows[20]);
}

#[test]
fn beside_a_finding_whose_loss_is_not_known_nothing_is_said_about_it() {
    let mut report = crate::fixture::report();
    report.findings.truncate(1);
    (report.findings[0].lost_s, report.findings[0].fraction) = (None, None);
    let page = render(&report);
    let document = parse(&page);
    let loss = document.descendants().find(|node| node.attribute("class") == Some("loss")).expect("a column");
    assert_eq!(loss.descendants().filter_map(|node| node.text()).collect::<String>(), "");
}

#[test]
fn a_panel_of_one_repeat_does_not_carry_the_verdict_of_all() {
    let plan = Plan::calm("resnet50", 1);
    let case = CaseReport::of(&[plan.run(), plan.run()]);
    let report = Report::new(&study(std::slice::from_ref(&case.case)), vec![case]);
    let page = render(&report);
    let document = parse(&page);
    let panel =
        document.descendants().find(|node| node.attribute("class") == Some("panel")).expect("a panel");
    let title: String =
        panel.first_element_child().expect("a title").descendants().filter_map(|node| node.text()).collect();
    assert!(title.ends_with(": first of 2 repeats"), "{title}");
}
