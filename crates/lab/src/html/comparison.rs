//! Several studies on one page, each compared with the first.

use super::bars::{Bar, Bars, Columns};
use super::figure::{Figure, Hue, Sign};
use super::markup::Tag;
use super::scale::Axis;
use super::unit::digits;
use super::{page, section};
use crate::compare::{self, Compared, Comparison};
use crate::{Report, words};

/// Colours of the studies, in turn; that of the first is the one that the others are compared with.
const HUES: [Hue; 7] = [Hue::Grey, Hue::Blue, Hue::Vermilion, Hue::Green, Hue::Purple, Hue::Orange, Hue::Sky];

/// Most studies whose bars are drawn; the tables have all.
const DRAWN: usize = HUES.len();

/// The page of a comparison of studies with these names, the first of which all others were compared with.
pub fn render_comparison(studies: &[Report], comparisons: &[Comparison], names: &[String]) -> String {
    let title = match names {
        [first, other] => format!("{first} and {other}"),
        [first, others @ ..] => format!("{first} and {} others", others.len()),
        [] => "No studies".into(),
    };
    let header = Tag::new("header")
        .with(Tag::new("p").class("kind").text("Comparison of studies"))
        .with(Tag::new("h1").text(&title))
        .with_all(studies.iter().zip(names).flat_map(|(study, name)| about(study, name)));
    let tables = comparisons.iter().zip(names.iter().skip(1)).flat_map(|(comparison, name)| {
        let pair = [names[0].clone(), name.clone()];
        compare::sections(comparison, &pair).iter().map(section::render).collect::<Vec<_>>()
    });
    let figure = figure(comparisons, names).map(|figure| Tag::new("section").with(figure));
    let main = Tag::new("main").with(header).with_all(figure).with_all(tables);
    page(&Tag::new("title").text(format_args!("{title} \u{b7} Paceline")), &main)
}

/// What made a study, when and where, and what disturbed it.
fn about(study: &Report, name: &str) -> Vec<Tag> {
    let made = Tag::new("p").class("facts").text(format_args!("{name}: {}", words::made(study)));
    let notices = words::notices(study).into_iter();
    let notices = notices.map(|notice| Tag::new("p").class("notice").text(format_args!("{name}: {notice}")));
    [made].into_iter().chain(notices).collect()
}

/// A case of the first study and what the others made of it.
struct Case<'a> {
    name: String,
    before: f64,
    /// By study; `None` if it did not finish there.
    after: Vec<Option<&'a Compared>>,
}

/// The cases of the first study that any other has, by name.
fn cases(comparisons: &[Comparison]) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (study, comparison) in comparisons.iter().enumerate() {
        for compared in &comparison.cases {
            let name = format!("{}, {}", compared.name, words::workers(compared.workers));
            let place = cases.iter().position(|case| case.name == name && case.before == compared.before);
            let place = place.unwrap_or_else(|| {
                cases.push(Case { name, before: compared.before, after: vec![None; comparisons.len()] });
                cases.len() - 1
            });
            cases[place].after[study] = Some(compared);
        }
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

/// Images per second by case and study.
fn figure(comparisons: &[Comparison], names: &[String]) -> Option<Tag> {
    let cases = cases(comparisons);
    let end = |compared: &&Compared| compared.after.max(compared.hi.unwrap_or(0.0) * compared.before);
    let rates = cases.iter().flat_map(|case| case.after.iter().flatten().map(end).chain([case.before]));
    let most = rates.max_by(f64::total_cmp)?;
    let axis = Axis::linear(0.0, most, 4, "images/s");
    let mut bars = Bars::new(axis, Columns { names: 14.0, values: 118.0 });
    for case in &cases {
        bars.heading(&case.name);
        let row = bars.row(14.0);
        let says = format!("{}: {} images/s", names[0], digits(case.before));
        let bar = Bar { from: 0.0, to: case.before, hue: HUES[0], says };
        bars.measure(row, &bar, None, &digits(case.before));
        for (place, compared) in case.after.iter().enumerate().take(DRAWN - 1) {
            let Some(Compared { after, ratio, lo, hi, .. }) = compared else { continue };
            bars.skip(3.0);
            let row = bars.row(14.0);
            let interval = lo.zip(*hi).map_or_else(String::new, |(lo, hi)| format!(" [{lo:.3} .. {hi:.3}]"));
            let says = format!("{}: {} images/s, {ratio:.3}x{interval}", names[place + 1], digits(*after));
            let bar = Bar { from: 0.0, to: *after, hue: HUES[place + 1], says };
            let ends = lo.zip(*hi).map(|(lo, hi)| (lo * case.before, hi * case.before));
            bars.measure(row, &bar, ends, &format!("{} ({ratio:.2}x)", digits(*after)));
        }
        bars.skip(8.0);
    }
    let legend = names.iter().zip(HUES).map(|(name, hue)| (Sign::Area, hue, name.clone())).collect();
    let more = match names.len().saturating_sub(DRAWN) {
        0 => String::new(),
        more => format!(" {more} more studies are in the tables below."),
    };
    let caption = format!(
        "In brackets: times the images/s of {}; whiskers are the 95 % interval of that ratio.{more}",
        names[0]
    );
    let body = bars.render(&format!("Images/s by case and study. {caption}"));
    let title = "Images/s by case and study".into();
    Some(Figure { name: "comparison", title, caption, legend, body }.render())
}

#[cfg(test)]
mod tests {
    use paceline_record::Load;

    use super::*;
    use crate::fixture::{Plan, report_on};

    #[test]
    fn every_study_is_drawn_beside_the_first_and_has_its_table() {
        let study = |compute: f64| {
            report_on(&[1, 2].map(|workers| Plan { compute, ..Plan::calm("resnet50", workers) }))
        };
        let mut studies = [study(90.0), study(80.0), study(90.0)];
        let load = Load { cores: 4, busy_cores: Some(3.0), stolen_cores: None, quota_cores: None };
        studies[1].cases[0].load = Some(load);
        let comparisons = compare::compare_all(&studies);
        assert_eq!(comparisons.len(), 2);
        let names = ["old", "fast", "<again>"].map(String::from);
        let page = render_comparison(&studies, &comparisons, &names);
        let (from, to) = (page.find("<main>").expect("a begin"), page.find("</main>").expect("an end"));
        let document = roxmltree::Document::parse(&page[from..to + 7]).expect("well-formed");
        let count = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
        assert_eq!((count("rect"), count("table")), (6, 2), "two cases of three studies");
        assert!(page.contains("resnet50, 2 workers") && page.contains("&lt;again&gt;"));
        assert!(page.contains("faster") && page.contains("no difference seen"));
        assert!(page.contains("old: Paceline 0.1.0, 2026-11-16 08:33:34 UTC, on abacus"), "{page}");
        assert!(page.contains("fast: Other programs used up to 3.0 of 4 cores"), "{page}");
        assert!(page.contains("fast: ") && page.contains(" images/s, 1.1"), "ratios are said");
    }

    #[test]
    fn studies_with_nothing_in_common_draw_nothing() {
        let studies = [report_on(&[Plan::calm("resnet50", 1)]), report_on(&[Plan::calm("vgg_19", 2)])];
        let page = render_comparison(&studies, &compare::compare_all(&studies), &["a".into(), "b".into()]);
        assert!(!page.contains("<figure") && page.contains("no case in common"));
    }
}
