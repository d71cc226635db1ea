//! Loss, accuracy and learning rate over the steps of a training, runs that were resumed joined.

use super::{Axis, Entry, Figure, Hue, LOOKS, Plot, Point, Sign, Tag, digits, panel, panels};
use crate::numbers::course::Course;
use crate::numbers::learning::Test;
use crate::training::{Stretch, trainings};
use crate::{CaseReport, Report, words};

/// A loss that varies by more than this factor is drawn on a logarithmic axis.
const WIDE: f64 = 30.0;

/// What a panel shows: of the steps, and of the tests. A `%` in its name belongs to the axis alone.
struct Measure {
    label: &'static str,
    factor: f64,
    steps: fn(&Course) -> &[Option<f64>],
    test: fn(&Test) -> Option<f64>,
}

const MEASURES: [Measure; 3] = [
    Measure { label: "loss", factor: 1.0, steps: |course| &course.loss, test: |test| test.loss },
    Measure {
        label: "accuracy, %",
        factor: 100.0,
        steps: |course| &course.accuracy,
        test: |test| test.accuracy,
    },
    Measure { label: "learning rate", factor: 1.0, steps: |course| &course.learning_rate, test: |_| None },
];

impl Measure {
    fn name(&self) -> &'static str {
        self.label.trim_end_matches(", %")
    }
}

/// A training and its style.
struct Line<'a> {
    report: &'a Report,
    stretches: Vec<Stretch>,
    steps: Hue,
    tests: Hue,
    sign: Sign,
}

impl<'a> Line<'a> {
    fn parts(&self) -> impl Iterator<Item = (&'a CaseReport, &'a Course, Stretch)> {
        let report = self.report;
        self.stretches.iter().filter_map(move |&stretch| {
            let case = &report.cases[stretch.case];
            Some((case, case.course.as_ref()?, stretch))
        })
    }

    fn name(&self) -> String {
        self.parts().last().map_or_else(|| words::workers(1_u32), |(case, ..)| case.workers_said())
    }

    /// The steps' values in unbroken lines, over the middle of each point's steps. An unknown value ends a line.
    fn steps(&self, measure: &Measure) -> Vec<Vec<(f64, f64)>> {
        let mut lines = vec![Vec::new()];
        for (_, course, stretch) in self.parts() {
            for (place, value) in (measure.steps)(course).iter().enumerate() {
                let first = course.first_step + course.every * place as u64;
                let end = (first + course.every).min(course.first_step + course.steps);
                if stretch.to.is_some_and(|to| first >= to) {
                    break;
                }
                match value {
                    Some(value) => lines
                        .last_mut()
                        .expect("invariant: there is a line")
                        .push(((first + end) as f64 / 2.0, measure.factor * value)),
                    None => lines.push(Vec::new()),
                }
            }
        }
        lines.retain(|line: &Vec<_>| !line.is_empty());
        lines
    }

    fn tests(&self, measure: &Measure) -> Vec<Point> {
        let mut points = Vec::new();
        for (_, course, stretch) in self.parts() {
            let counts = |test: &&Test| stretch.to.is_none_or(|to| test.steps <= to);
            for test in course.tests.iter().filter(counts) {
                let Some(value) = (measure.test)(test).map(|value| measure.factor * value) else { continue };
                let says = format!(
                    "{}, test after {} steps: {} {}",
                    self.name(),
                    test.steps,
                    measure.name(),
                    digits(value)
                );
                points.push(((test.steps as f64, value), says));
            }
        }
        points
    }

    /// Where it was resumed.
    fn joints(&self) -> impl Iterator<Item = f64> {
        self.stretches.iter().skip(1).map(|stretch| stretch.from as f64)
    }
}

/// Draws the figure if the study is of trainings.
pub fn training(report: &Report) -> Option<Tag> {
    let trainings = trainings(report);
    let alone = trainings.len() == 1;
    let line = |(stretches, (steps, sign)): (Vec<Stretch>, (Hue, Sign))| {
        let tests = if alone { Hue::Vermilion } else { steps };
        Line { report, stretches, steps, tests, sign }
    };
    let lines: Vec<Line<'_>> = trainings.into_iter().zip(LOOKS).map(line).collect();
    let courses = || lines.iter().flat_map(|line| line.parts()).map(|(_, course, _)| course);
    let end = courses().map(|course| course.first_step + course.steps).max()? as f64;
    let drawn: Vec<Tag> = MEASURES.iter().filter_map(|measure| draw(&lines, measure, end)).collect();
    if drawn.is_empty() {
        return None;
    }
    let tested = courses().any(|course| !course.tests.is_empty());
    let mut legend: Vec<Entry> = match alone {
        true => vec![(Sign::Line, Hue::Blue, "training".into())],
        false => lines.iter().map(|line| (Sign::Line, line.steps, line.name())).collect(),
    };
    if tested && alone {
        legend.push((Sign::Circle, Hue::Vermilion, "test".into()));
    }
    let joints: Vec<String> =
        lines.iter().flat_map(|line| line.joints()).map(|step| format!("{step:.0}")).collect();
    if !joints.is_empty() {
        legend.push((Sign::Dashed, Hue::Grey, "resumed".into()));
    }
    let every = courses().map(|course| course.every).max()?;
    let mut caption = match every {
        1 => "Each step, before its update, over all workers.".to_owned(),
        _ => format!("Means of up to {every} neighbouring steps, before their updates, over all workers."),
    };
    if tested && !alone {
        caption += " Points are tests.";
    }
    if !joints.is_empty() {
        caption += &format!(" Resumed at step {}.", joints.join(" and "));
    }
    let title = "Training".into();
    Some(Figure { name: "training", title, caption, legend, body: panels(drawn) }.render())
}

fn draw(lines: &[Line<'_>], measure: &Measure, end: f64) -> Option<Tag> {
    let steps: Vec<_> = lines.iter().map(|line| line.steps(measure)).collect();
    let tests: Vec<_> = lines.iter().map(|line| line.tests(measure)).collect();
    let of_steps = steps.iter().flatten().flatten().map(|(_, value)| *value);
    let values: Vec<f64> = of_steps.chain(tests.iter().flatten().map(|((_, value), _)| *value)).collect();
    let (low, high) =
        (values.iter().copied().min_by(f64::total_cmp)?, values.iter().copied().max_by(f64::total_cmp)?);
    let y = match low > 0.0 && high > WIDE * low && measure.label == "loss" {
        true => Axis::log(low, high, measure.label),
        false => Axis::linear(low.min(0.0), high, 5, measure.label),
    };
    let mut plot = Plot::new(Axis::exact(0.0, end, 5, "step"), y, 220.0);
    for joint in lines.iter().flat_map(|line| line.joints()) {
        plot.rule(joint, Hue::Grey);
    }
    for ((line, steps), tests) in lines.iter().zip(&steps).zip(&tests) {
        for points in steps {
            match points[..] {
                [only] => {
                    let says = format!("{}: {} {}", line.name(), measure.name(), digits(only.1));
                    plot.points(&[(only, says)], line.steps, Sign::Circle);
                }
                _ => plot.line(points, line.steps, Sign::Line),
            }
        }
        plot.points(tests, line.tests, line.sign);
    }
    let drawing = plot.render(&format!("{} over the steps of the training", measure.name()));
    Some(panel(measure.name(), "", drawing))
}
