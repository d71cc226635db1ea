//! Whole texts, from the table to the words.

use super::reconcile::{Fitted, Reconciliation, Verdict};
use super::*;
use crate::explain::audit::{Check, Weight};
use crate::stats::laws::Law;

mod hostile;
mod layouts;
mod readings;
mod reports;

/// Runs of a made-up job: 400 steps of 32 examples divided among the workers at 100 examples/s each, and 12 s that no rate sees.
fn made_up(header: &str, cells: impl Fn(u32) -> String) -> String {
    let rows: Vec<String> = [1, 2, 4, 8, 16].iter().map(|n| format!("{n}\t{}", cells(*n))).collect();
    format!("GPUs\t{header}\n{}\n", rows.join("\n"))
}

fn train_s(n: u32) -> f64 {
    // A little noise, so that there is a spread.
    12.0 + 400.0 * 32.0 / (100.0 * f64::from(n)) + [0.3, -0.2, -0.3, 0.2, 0.0][n.ilog2() as usize]
}

fn fitted(text: &str, options: &Options) -> Fitted {
    let found = explain_text(text, options).expect("a table");
    match found.series.into_iter().next().expect("a series").reconciliation {
        Some(Reconciliation::Fitted(fitted)) => *fitted,
        other => panic!("not fitted: {other:?}"),
    }
}

fn given(context: Context) -> Options {
    Options { context, ..Options::default() }
}

fn assert_planted(fitted: &Fitted) {
    assert!(fitted.fixed.lo < 12.0 && 12.0 < fitted.fixed.hi && fitted.fixed.hi < 13.0, "{:?}", fitted.fixed);
    let batch = fitted.batch.expect("steps are known");
    assert_eq!((batch.expected, batch.consistent), (Some(32), Some(true)));
    let at = fitted.speedups.expect("a row of one worker");
    assert!(
        (at.rate - 16.0).abs() < 0.5
            && at.clock < 7.2
            && (at.without.expect("a fixed time").value - 16.0).abs() < 1.0
            && at.consistent,
        "{at:?}"
    );
    assert_eq!(fitted.work, Work::Divided);
}

#[test]
fn a_planted_fixed_time_is_found_in_two_tables_of_the_same_runs() {
    let clock = made_up("train time (s)", |n| format!("{:.1}", train_s(n)));
    let rate = made_up("examples/s", |_| "100.0".into());
    let text = format!("By the clock:\n\n{clock}\nand by the hook\n\n{rate}");
    let options = given(Context { steps: Some(400), ..Context::default() });
    let found = explain_text(&text, &options).expect("tables");
    assert_eq!((found.series.len(), &found.series[0].understood.lines[..]), (1, &[3, 12][..]));
    assert!(found.series[0].understood.column(Meaning::RatePerWorker).is_some());
    assert_planted(&fitted(&text, &options));
    let apart = format!("## ResNet-50\n\n{clock}\n## VGG-16\n\n{rate}");
    let found = explain_text(&apart, &options).expect("tables");
    assert_eq!(found.series.len(), 2, "other headings, other runs");
    assert!(found.series.iter().all(|series| series.reconciliation.is_none()));
}

#[test]
fn the_same_is_found_if_everything_is_given() {
    let text = made_up("a\tb", |n| format!("{:.1}\t{:.1}", train_s(n), 100.0 * f64::from(n)));
    let map = [("GPUs", Meaning::Workers), ("a", Meaning::TrainTime), ("b", Meaning::RateGlobal)];
    let map = map.map(|(name, meaning)| (name.to_owned(), meaning)).to_vec();
    let context = Context { steps: Some(400), examples: Some(12_800), ..Context::default() };
    let told = Options { map, work: Some(Work::Divided), context, ..Options::default() };
    let fit = fitted(&text, &told);
    assert_planted(&fit);
    assert_eq!(fit.as_told, Some(true));
    assert_eq!(
        fitted(&text, &Options { context: Context { examples: Some(20_000), ..context }, ..told }).as_told,
        Some(false)
    );
}

#[test]
fn growing_work_is_distinguished_from_divided_work() {
    // Each worker does 128 s of work; 16 of them wait 2 s on each other.
    let text = made_up("train time (s)\texamples/s per GPU", |n| {
        format!(
            "{:.1}\t{:.2}",
            12.0 + 128.0 + f64::from(n) / 8.0,
            100.0 * 128.0 / (128.0 + f64::from(n) / 8.0)
        )
    });
    let found = explain_text(&text, &Options::default()).expect("a table");
    assert_eq!(found.series[0].work, Some(Work::PerWorker));
    let last = found.series[0].rows.last().expect("rows").by_clock.expect("a clock");
    assert!((last - 16.0 * 140.125 / 142.0).abs() < 0.05, "{last}");
}

#[test]
fn either_orientation_gives_the_same_numbers() {
    let upright = "| GPUs | Training time (min) | images/s |\n|-|-|-|\n| 1 | 10 | 1 000.5 |\n| 2 | 5.5 | 1 800 |\n| 4 | - | n/a |\n";
    let turned = "| | GPU (1) | GPU(2) | 4 GPUs |\n|-|-|-|-|\n| Training time (min) | 10 | 5.5 | - |\n| images/s | 1 000.5 | 1 800 | n/a |\n";
    let read =
        |text: &str| explain_text(text, &Options::default()).expect("a table").series.remove(0).understood;
    let (a, b) = (read(upright), read(turned));
    assert_eq!((a.workers, &a.columns), (b.workers, &b.columns));
    let seconds: Vec<Option<f64>> =
        a.columns[0].figures.iter().map(|figure| figure.map(|figure| figure.value)).collect();
    assert_eq!(seconds, [Some(600.0), Some(330.0), None]);
}

#[test]
fn words_in_rows_distinguish_series() {
    let text = "model,GPUs,images/s\nresnet50,1,100\nresnet50,2,190\nvgg16,1,50\nvgg16,2,80\n";
    let found = explain_text(text, &Options::default()).expect("a table");
    let titles: Vec<&str> = found.series.iter().map(|series| series.understood.title.as_str()).collect();
    assert_eq!(titles, ["resnet50", "vgg16"]);
    assert_eq!(found.series[1].rows[1].by_rate, Some(1.6));
}

#[test]
fn laws_are_chosen_with_enough_points_and_not_with_few() {
    let amdahl = |n: f64| 100.0 * n / (1.0 + 0.05 * (n - 1.0));
    let table = |sizes: &[u32]| -> String {
        let rows = sizes.iter().map(|n| format!("{n},{:.1}\n", amdahl(f64::from(*n))));
        format!("GPUs,images/s\n{}", rows.collect::<String>())
    };
    let laws = |sizes: &[u32]| {
        explain_text(&table(sizes), &Options::default()).expect("a table").series.remove(0).laws.remove(0)
    };
    let many = laws(&[1, 2, 4, 8, 16, 32]);
    assert_eq!(many.best.as_ref().map(|fit| fit.name), Some("Amdahl"));
    let next = many.next.expect("a forecast");
    assert_eq!(next.workers, 64);
    assert!((next.throughput.value / amdahl(64.0) - 1.0).abs() < 0.01);
    let few = laws(&[1, 2, 4]);
    assert!(few.best.is_none() && few.unfit.is_some() && few.next.is_none());
}

#[test]
fn a_map_corrects_and_a_wrong_one_is_refused() {
    let text = "GPUs,speed,pace\n1,100,3\n2,150,2\n4,160,1\n";
    let told = |name: &str, meaning| Options { map: vec![(name.into(), meaning)], ..Options::default() };
    let read = |options: &Options| explain_text(text, options).expect("a table").series.remove(0).understood;
    assert_eq!(read(&Options::default()).columns[1].meaning, None);
    assert_eq!(read(&told("PACE", Meaning::TotalTime)).columns[1].meaning, Some(Meaning::TotalTime));
    let corrected = read(&told("speed", Meaning::RatePerWorker));
    assert_eq!(corrected.rate().expect("a rate").1[2].map(|rate| rate.value), Some(640.0));
    let wrong = explain_text(text, &told("colour", Meaning::Loss));
    assert_eq!(wrong, Err(ExplainError::NoColumn("colour".into())));
}

#[test]
fn what_the_table_does_not_show_is_listed() {
    let unknown = |text: &str| {
        explain_text(text, &Options::default()).expect("a table").series.remove(0).unknown.join("\n")
    };
    assert!(unknown("GPUs,images/s\n1,10\n2,19\n").contains("there is no clock"));
    assert!(unknown("GPUs,time (s)\n1,10\n2,6\n").contains("no rate"));
    assert!(unknown("GPUs,time (s)\n2,10\n4,6\n").contains("no row for one worker"));
    assert!(!unknown("GPUs,images/s\n1,10 ± 0.3\n2,19 ± 0.4\n").contains("without a spread"));
    assert!(unknown("GPUs,time (s)\n1,10\n2,10.2\n").contains("--work"));
}

#[test]
fn given_examples_turn_a_clock_into_a_rate() {
    let options = given(Context { examples: Some(1000), ..Context::default() });
    let found = explain_text("GPUs,time (s)\n1,10\n2,5\n", &options).expect("a table");
    assert_eq!(found.series[0].rows[1].rate, Some(200.0));
}

#[test]
fn a_fixed_time_not_distinguishable_from_zero_is_not_claimed() {
    let fit = |table: &str| {
        let found = explain_text(table, &Options::default()).expect("a table");
        let Some(Reconciliation::Fitted(fit)) = &found.series[0].reconciliation else { panic!("{table}") };
        ((**fit).clone(), render(&found))
    };
    let denies =
        ["leaves out", "Without the fixed time", "the run is too short", "from 5", "agree within 5 % from"];
    // The clock is as good as the rate, give or take some noise.
    let (even, text) = fit("GPUs,time (s),images/s\n1,103.9,100\n2,50.2,200\n4,25.9,400\n8,12.6,800\n");
    assert!(even.verdict == Verdict::None && even.enough.is_none(), "{even:?}");
    assert!(even.speedups.is_some_and(|at| at.consistent && at.without.is_none()));
    assert!(
        text.contains("not distinguishable from zero") && text.contains("no fixed time is needed"),
        "{text}"
    );
    assert_eq!(denies.iter().find(|words| text.contains(**words)), None, "{text}");
    // Whole minutes: the digits allow nearly anything.
    let (rounded, text) = fit("GPUs,time (min),images/s\n1,10,160\n2,5,310\n4,3,600\n8,2,1100\n");
    assert_eq!(rounded.verdict, Verdict::None);
    assert!(text.contains("rounding limits this") && text.contains("could be the reason"), "{text}");
    assert_eq!(denies.iter().find(|words| text.contains(**words)), None, "{text}");
    // Runs that are shorter than their rates allow.
    let (negative, text) = fit("GPUs,time (s),images/s\n1,100.0,100\n2,49.2,200\n4,23.8,400\n8,11.5,800\n");
    assert_eq!(negative.verdict, Verdict::Negative);
    assert!(
        text.contains("is negative") && !text.contains("the fixed time is not distinguishable from zero"),
        "{text}"
    );
    assert_eq!(denies.iter().find(|words| text.contains(**words)), None, "{text}");
}

#[test]
fn digits_widen_the_interval_of_rows_that_lie_on_a_line_by_chance() {
    let interval = |table: &str| {
        let found = explain_text(table, &Options::default()).expect("a table");
        let Some(Reconciliation::Fitted(fit)) = &found.series[0].reconciliation else { panic!("{table}") };
        fit.fixed.hi - fit.fixed.lo
    };
    let coarse = interval("GPUs,time (s),images/s\n1,120,100\n2,70,200\n4,45,400\n");
    let fine = interval("GPUs,time (s),images/s\n1,120.00,100.00\n2,70.00,200.00\n4,45.00,400.00\n");
    // Half a second over three rows, whose weights are at most one: about 1.96 * 0.5 / sqrt(3) to either side.
    assert!((0.8..3.0).contains(&coarse), "{coarse}");
    assert!((fine - coarse / 100.0).abs() < 1e-6, "{fine}");
    let text =
        render(&explain_text("GPUs,time (s)\n1,120\n2,70\n4,45\n", &Options::default()).expect("a table"));
    assert!(text.contains("T = fixed + b / N: fixed 20.0 s (95 % interval 19."), "{text}");
    let text =
        render(&explain_text("GPUs,time (s)\n1,100\n2,50\n4,25\n", &Options::default()).expect("a table"));
    assert!(text.contains("not distinguishable from zero"), "{text}");
}

#[test]
fn workers_go_by_many_names() {
    for (header, cells) in [
        ("world size,images/s", "1,100\n2,190\n8,700\n"),
        ("ranks,images/s", "1,100\n2,190\n8,700\n"),
        ("cards,images/s", "1,100\n2,190\n8,700\n"),
        ("devices,images/s", "1,100\n2,190\n8,700\n"),
        ("nodes x gpus,images/s", "1x1,100\n1 x 2,190\n2x4,700\n"),
        ("setup,images/s", "1 node x 1 GPU,100\n1 node x 2 GPUs,190\n2 nodes x 4 GPUs,700\n"),
        ("nodes,GPUs per node,images/s", "1,1,100\n1,2,190\n2,4,700\n"),
        ("GPUs,images/s", "1x V100,100\n2x V100,190\n8x V100,700\n"),
    ] {
        let told =
            if header.starts_with("setup") { vec![("setup".into(), Meaning::Workers)] } else { Vec::new() };
        let options = Options { map: told, ..Options::default() };
        let found = explain_text(&format!("{header}\n{cells}"), &options);
        let found = found.unwrap_or_else(|error| panic!("{header}: {error}"));
        assert_eq!(found.series[0].understood.workers, [1, 2, 8], "{header}");
    }
}

#[test]
fn memory_is_printed_in_a_unit_that_it_fills() {
    let found = explain_text("GPUs,images/s,memory\n1,100,3.2 GiB\n2,190,3.4 GiB\n", &Options::default());
    let text = render(&found.expect("a table"));
    assert!(text.contains("3.44 GB .. 3.65 GB") && !text.contains("3435973"), "{text}");
}

#[test]
fn an_error_about_a_text_without_a_table_says_what_to_do() {
    let error = |text: &str| explain_text(text, &Options::default()).expect_err("no table").to_string();
    assert!(error("only words").starts_with("no table found in a text that begins with \"only words\""));
    assert!(error(&"words ".repeat(10_000)).len() < 300);
    let unnamed =
        "none of the columns \"a\", \"b\" is the number of workers; name it with --map COLUMN=workers";
    assert!(error("a,b\n1,2\n3,4\n").contains(unnamed));
    let spaced = explain_text("GPUs images/s\n1 100\n2 190\n4 370\n", &Options::default());
    assert_eq!(spaced.expect("numbers below a header").series[0].understood.workers, [1, 2, 4]);
}

#[test]
fn a_law_with_the_lowest_criterion_that_is_far_off_does_not_fit() {
    // The Keras table of MXNet: linear, which the criterion prefers, does not come near.
    let text = "GPUs,images/s\n1,372.82\n2,617.32\n4,1165.12\n8,1435.06\n16,1450.43\n";
    let found = explain_text(text, &Options::default()).expect("a table");
    let laws = &found.series[0].laws[0];
    assert_eq!(laws.best.as_ref().map(|best| (best.law, best.is_rough())), Some((Law::Linear, true)));
    assert_eq!(laws.next, None);
    let page = render(&found);
    assert!(page.contains("no law fits the points") && !page.contains("workers would give"), "{page}");
}

#[test]
fn clocks_that_neither_work_describes_leave_the_work_unknown() {
    let work = |text: &str| explain_text(text, &Options::default()).expect("a table").series.remove(0);
    let noisy = work(
        "gpus,total time,examples/s\n1,100,500\n2,52,1000\n4,40,2000\n8,90,4000\n16,25,8000\n32,60,16000\n",
    );
    assert_eq!(noisy.work, None);
    assert!(noisy.unknown.iter().any(|unknown| unknown.contains("--work")) && noisy.reconciliation.is_none());
    // As uneven, but a fixed time of 20 s makes it so.
    let fixed = work("gpus,total time,examples/s\n1,100,500\n2,60,1000\n4,40,2000\n8,30,4000\n16,25,8000\n");
    assert_eq!(fixed.work, Some(Work::Divided));
}

#[test]
fn a_time_of_a_step_alone_gives_speed_ups() {
    let text = "gpus,step time (ms)\n1,100\n2,110\n4,125\n8,150\n16,200\n";
    let with = |text: &str, batch| {
        explain_text(text, &given(Context { batch, ..Context::default() })).expect("a table")
    };
    let found = with(text, None);
    assert_eq!((found.series[0].work, found.series[0].rows[4].by_clock), (Some(Work::PerWorker), Some(8.0)));
    assert!(!found.series[0].laws.is_empty() && render(&found).contains("--work divided"));
    let rate = with(text, Some(32)).series[0].rows[4].rate.expect("the batch is told");
    assert!((rate - 2560.0).abs() < 1e-9, "{rate}");
    assert_eq!(with("gpus,step time (ms)\n1,100\n2,55\n", None).series[0].work, Some(Work::Divided));
    let rated = with("gpus,images/s,step time (ms)\n1,100,320\n2,190,337\n", None);
    assert_eq!(rated.series[0].rows[1].by_clock, None, "the rate says it already");
}

#[test]
fn without_one_worker_speed_ups_are_over_the_fewest() {
    let text = "gpus,samples/s\n8,800\n16,1500\n32,2900\n64,5500\n128,10000\n256,18000\n";
    let found = explain_text(text, &Options::default()).expect("a table");
    let series = &found.series[0];
    let last = series.rows[5];
    assert_eq!((last.over, last.by_rate, last.serial()), (8, Some(22.5), None));
    assert!((last.efficiency(22.5) - 0.703_125).abs() < 1e-12 && !series.laws.is_empty());
    let page = render(&found);
    assert!(page.contains("relative to 8 workers, the fewest here") && page.contains("70.3 %"), "{page}");
    let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("--map \"samples/s\"=rate-per-worker"), "{page}");
    // Rates that hardly grow may be of all or of each.
    let open = explain_text("gpus,samples/s\n8,800\n16,810\n", &Options::default()).expect("a table");
    assert!(open.series[0].rows[1].by_rate.is_none());
    assert!(open.series[0].unknown.iter().any(|asked| asked.contains("--map \"samples/s\"=rate-global")));
}
