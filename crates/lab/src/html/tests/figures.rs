use super::*;
use crate::numbers::series::Series;
use crate::numbers::speedup::Interval;

/// Where the values of a drawing's axes lie, by what the drawing says of itself.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
    edges: Vec<f64>,
}

impl Frame {
    fn of(svg: &Node<'_, '_>) -> Self {
        let numbers = |name: &str| -> Vec<f64> {
            let text = svg.attribute(name).expect("an attribute");
            text.split(' ').map(|number| number.parse().expect("a number")).collect()
        };
        let (x, y) = (numbers("data-x"), numbers("data-y"));
        Self { x: (x[0], x[1]), y: (y[0], y[1]), edges: numbers("data-frame") }
    }

    /// Values of the points of a path.
    fn values(&self, path: &str) -> Vec<(f64, f64)> {
        let points = path.split(['M', 'L', 'Z']).filter(|point| !point.is_empty());
        let value = |point: &str| {
            let (x, y) = point.split_once(' ').expect("two numbers");
            let (x, y): (f64, f64) = (x.parse().expect("a number"), y.parse().expect("a number"));
            let (left, top) = (self.edges[0], self.edges[1]);
            let (right, down) = ((x - left) / (self.edges[2] - left), (y - top) / (self.edges[3] - top));
            (self.x.0 + right * (self.x.1 - self.x.0), self.y.1 - down * (self.y.1 - self.y.0))
        };
        points.map(value).collect()
    }
}

fn drawings<'a>(figure: &Node<'a, 'a>) -> Vec<Node<'a, 'a>> {
    figure.descendants().filter(|node| node.has_tag_name("svg")).collect()
}

fn line<'a>(svg: &Node<'a, 'a>) -> &'a str {
    let line = marks(svg).into_iter().find(|mark| has_class(mark, "line")).expect("a line");
    line.attribute("d").expect("a path")
}

/// Sets step times in place of those of a fixture.
fn set_times(report: &mut Report, times: &[&[f64]]) {
    for (case, times) in report.cases.iter_mut().zip(times) {
        let times = times.to_vec();
        case.step_times =
            Some(Series { every: 1, median_s: times.clone(), least_s: times.clone(), most_s: times });
        case.step_detail = case.step_times.clone();
    }
}

/// Checks that every step is drawn at its place, or marked where it lies above the axis.
fn check_steps(report: &Report) {
    let page = render(report);
    let document = parse(&page);
    let panels = drawings(&drawn(&document, "step-times")[0]);
    assert_eq!(panels.len(), report.cases.len());
    for (svg, case) in panels.iter().zip(&report.cases) {
        let frame = Frame::of(svg);
        let arrows: Vec<String> =
            marks(svg).iter().filter(|mark| has_class(mark, "arrow")).map(text).collect();
        let times = &case.step_times.as_ref().expect("set").median_s;
        let mut above = 0;
        for (step, ((x, y), seconds)) in frame.values(line(svg)).into_iter().zip(times).enumerate() {
            let (ms, pixel) = (1e3 * seconds, (frame.y.1 - frame.y.0) / 118.0);
            assert!((x - step as f64 - 0.5).abs() < 0.01 * times.len() as f64);
            if ms > frame.y.1 {
                above += 1;
                let time = unit::Unit::of_time(*seconds).show(*seconds);
                assert!(arrows.contains(&format!("step {step}: {time}")), "step {step}, {arrows:?}");
                assert!((y - frame.y.1).abs() < 0.02 * pixel, "it goes up to the edge");
            } else {
                assert!((y - ms).abs() < 0.02 * pixel, "step {step}: {ms} ms is drawn at {y}");
            }
        }
        assert_eq!(above, arrows.len());
    }
}

#[test]
fn a_step_far_above_the_others_is_marked_with_its_time_and_hides_none() {
    let mut report = report_on(&[Plan::calm("resnet50", 1)]);
    set_times(&mut report, &[&[0.294, 0.0425, 0.0431, 0.0419, 0.0425, 0.199, 0.0428]]);
    check_steps(&report);
    let page = render(&report);
    assert!(
        page.contains(">294 ms</text>") && page.contains("\u{25b2} lies above the axis"),
        "its time is said"
    );
    let document = parse(&page);
    let frame = Frame::of(&drawings(&drawn(&document, "step-times")[0])[0]);
    assert!(frame.y.1 < 250.0, "the others can be told apart");
}

#[test]
fn panels_side_by_side_share_an_axis() {
    let mut report = report_on(&[Plan::calm("resnet50", 1), Plan::calm("resnet50", 4)]);
    set_times(&mut report, &[&[0.05, 0.04, 0.042], &[0.021, 0.011, 0.012]]);
    check_steps(&report);
    let page = render(&report);
    let document = parse(&page);
    let frames: Vec<_> = drawings(&drawn(&document, "step-times")[0]).iter().map(Frame::of).collect();
    assert_eq!(frames[0].y, frames[1].y);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(40))]

    #[test]
    fn every_step_is_drawn_at_its_place_or_marked(
        times in proptest::collection::vec(0.01f64..0.2, 2..30),
        slow in proptest::collection::vec((0usize..30, 0.5f64..20.0), 0..4),
    ) {
        let mut times = times;
        for (place, seconds) in slow {
            let place = place % times.len();
            times[place] = seconds;
        }
        let mut report = report_on(&[Plan::calm("resnet50", 1)]);
        set_times(&mut report, &[&times]);
        let series = report.cases[0].step_times.as_ref().expect("set");
        let mut sorted = series.median_s.clone();
        sorted.sort_by(f64::total_cmp);
        // Axes in seconds are checked by the property of the axis itself.
        proptest::prop_assume!(sorted[sorted.len() / 2] < 1.0);
        check_steps(&report);
    }
}

#[test]
fn one_or_two_worker_counts_are_bars_and_more_are_a_line() {
    let lines = |counts: &[u32]| {
        let plans: Vec<Plan> = counts.iter().map(|&workers| Plan::calm("resnet50", workers)).collect();
        let page = render(&report_on(&plans));
        let document = parse(&page);
        ["speedup", "efficiency"].map(|name| {
            let marks = marks(&drawn(&document, name)[0]);
            let count = |of: &dyn Fn(&Node<'_, '_>) -> bool| marks.iter().filter(|mark| of(mark)).count();
            let dots = count(&|mark| has_class(mark, "dot"));
            (dots, count(&|mark| mark.has_tag_name("rect") && !has_class(mark, "dot")))
        })
    };
    assert_eq!(lines(&[1, 2]), [(0, 3), (0, 2)]);
    assert_eq!(lines(&[1, 2, 4]), [(9, 0), (6, 0)]);
}

#[test]
fn several_groups_are_drawn_together_before_each_alone() {
    let run = |update: &str, workers: u32| {
        let mut run = Plan::calm("resnet50", workers).run();
        run.launcher.header.case.update = Some(update.into());
        CaseReport::of(&[run])
    };
    let variants = ["allreduce", "sharded"];
    let cases: Vec<CaseReport> =
        variants.into_iter().flat_map(|update| [1, 2, 4].map(|workers| run(update, workers))).collect();
    let asked: Vec<Case> = cases.iter().map(|case| case.case.clone()).collect();
    let page = render(&Report::new(&study(&asked), cases));
    let document = parse(&page);
    let overlay = drawn(&document, "overlay");
    assert_eq!(overlay.len(), 1);
    assert!(overlay[0].range().start < drawn(&document, "speedup")[0].range().start);
    let panels = drawings(&overlay[0]);
    let dots = |svg| marks(svg).iter().filter(|mark| has_class(mark, "dot")).count();
    assert_eq!(panels.iter().map(dots).collect::<Vec<_>>(), [6, 6], "images/s and speed-up");
    let legend = text(&overlay[0]);
    assert!(legend.contains("resnet50, sharded") && legend.contains("ideal"));
    let other = render(&report_on(&[Plan::calm("resnet50", 1), Plan::calm("mobilenet_v2", 1)]));
    let document = parse(&other);
    let bars = marks(&drawn(&document, "overlay")[0]).into_iter().filter(|mark| mark.has_tag_name("rect"));
    assert_eq!(bars.count(), 2);
    let alone = render(&report_on(&[Plan::calm("resnet50", 1)]));
    assert!(drawn(&parse(&alone), "overlay").is_empty());
}

#[test]
fn speedups_and_efficiencies_are_drawn_with_their_intervals() {
    let plans = [1, 2, 4].map(|workers| Plan { noise: 0.1, ..Plan::calm("resnet50", workers) });
    let report = report_on(&plans);
    let page = render(&report);
    let document = parse(&page);
    let within = |name: &str, factor: f64, of: fn(&CaseReport) -> [Option<Interval>; 3]| {
        let svg = drawings(&drawn(&document, name)[0])[0];
        let frame = Frame::of(&svg);
        let whiskers = marks(&svg).into_iter().filter(|mark| has_class(mark, "whisker"));
        // A whisker is two bars and a line between them: M x y H x M x y H x M x top V bottom.
        let ends = whiskers.map(|mark| {
            let path = mark.attribute("d").expect("a path");
            let (at, bottom) = path.rsplit_once('V').expect("a line down");
            let (_, top) = at.rsplit_once('M').expect("where it begins");
            let x = top.split(' ').next().expect("a place");
            let values = frame.values(&format!("M{top}M{x} {bottom}"));
            (values[1].1, values[0].1)
        });
        let drawn: Vec<(f64, f64)> = ends.collect();
        let known: Vec<Interval> = report.cases.iter().flat_map(of).flatten().collect();
        assert!(known.len() >= 4 && known.iter().all(|interval| interval.lo < interval.hi));
        assert_eq!(drawn.len(), known.len(), "{name}");
        for Interval { lo, hi } in known {
            let near = |(low, high): &(f64, f64)| {
                (low - factor * lo).abs() < 2e-3 * frame.y.1 && (high - factor * hi).abs() < 2e-3 * frame.y.1
            };
            assert!(drawn.iter().any(near), "{name}: {lo} .. {hi} is not among {drawn:?}");
        }
    };
    within("speedup", 1.0, |case| {
        [case.speedup_speed_interval, case.speedup_time_interval, case.speedup_total_interval]
    });
    within("efficiency", 100.0, |case| [case.efficiency_speed_interval, case.efficiency_time_interval, None]);
}

#[test]
fn the_runs_of_a_resumed_training_are_one_line() {
    let [plan, ..] = fixture::learning_plans();
    let run = |first: u64, steps: usize| {
        let mut run = plan.run();
        for rank in &mut run.ranks {
            rank.steps.truncate(steps);
            for (k, step) in rank.steps.iter_mut().enumerate() {
                step.step = paceline_record::Step(first + k as u64);
                step.loss = Some(10.0 - (first + k as u64) as f32);
                step.learning_rate = Some(0.1);
            }
            rank.evaluations.truncate(1);
            rank.evaluations.iter_mut().for_each(|test| test.steps = first + steps as u64);
        }
        if first > 0 {
            run.launcher.header.case.settings.insert("resumed-at".into(), first.to_string());
        }
        CaseReport::of(&[run])
    };
    let cases = vec![run(0, 6), run(4, 5)];
    let asked: Vec<Case> = cases.iter().map(|case| case.case.clone()).collect();
    let report = Report::new(&study(&asked), cases);
    let page = render(&report);
    let document = parse(&page);
    let figure = drawn(&document, "training");
    assert_eq!(figure.len(), 1);
    let panels = drawings(&figure[0]);
    assert_eq!(panels.len(), 3, "loss, accuracy and learning rate");
    let frame = Frame::of(&panels[0]);
    let lines: Vec<_> = marks(&panels[0])
        .into_iter()
        .filter(|mark| has_class(mark, "line") && !has_class(mark, "dashed"))
        .collect();
    assert_eq!(lines.len(), 1, "each step once");
    let points = frame.values(lines[0].attribute("d").expect("a path"));
    assert_eq!(points.len(), 9);
    for (step, (x, loss)) in points.into_iter().enumerate() {
        assert!(
            (x - step as f64 - 0.5).abs() < 0.01 && (loss - 10.0 + step as f64).abs() < 0.01,
            "{step}: {x}, {loss}"
        );
    }
    assert!(text(&figure[0]).contains("Resumed at step 4."));
    let verdict = words::verdict(&report);
    assert!(verdict.len() == 1 && verdict[0].contains("test accuracy"), "the last run tells: {verdict:?}");
    assert!(
        verdict[0].contains(" since it was resumed at step 4"),
        "its time is not that of all: {verdict:?}"
    );
    assert!(drawn(&document, "overlay").is_empty(), "its parts are not compared");
}
