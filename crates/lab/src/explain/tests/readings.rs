//! Layouts that were once read wrongly, each on a table like the real one.

use super::*;

fn read(text: &str) -> Explanation {
    explain_text(text, &Options::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Titles, numbers of workers and contradictions of each series.
fn told(text: &str) -> Vec<(String, Vec<u64>, usize)> {
    let all = read(text).series.into_iter().map(|series| {
        let grave = series.audit.slips.iter().filter(|slip| slip.weight == Weight::Contradiction).count();
        (series.understood.title, series.understood.workers, grave)
    });
    all.collect()
}

#[test]
fn columns_of_two_precisions_are_two_series_and_their_ratio_is_no_speed_up() {
    let text = "| **GPUs** | **Throughput - FP32** | **Throughput - mixed precision** | **Throughput speedup (FP32 to mixed precision)** | **FP32 Strong Scaling** | **Mixed Precision Strong Scaling** | **Mixed Precision Training Time (90E)** | **FP32 Training Time (90E)** |\n|-|-|-|-|-|-|-|-|\n| 1 | 361 img/s | 1180 img/s | 3.27 x | 1.0 x | 1.0 x | ~30 hours | ~95 hours |\n| 8 | 2796 img/s | 8740 img/s | 3.13 x | 7.75 x | 7.41 x | ~4 hours | ~12 hours |\n| 16 | 5510 img/s | 16300 img/s | 2.96 x | 15.26 x | 13.81 x | ~2 hours | ~6 hours |\n";
    let found = read(text);
    let titles: Vec<&str> = found.series.iter().map(|series| series.understood.title.as_str()).collect();
    assert_eq!(titles, ["fp32", "mixed"]);
    for series in &found.series {
        assert_eq!(series.audit.follows.len(), 1, "{:?}", series.audit);
        assert!(series.audit.slips.iter().all(|slip| slip.weight == Weight::Remark), "{:?}", series.audit);
        let columns =
            series.understood.columns.iter().filter(|column| column.meaning == Some(Meaning::Speedup));
        assert_eq!(columns.count(), 1);
    }
    let fp32 = found.series[0].rows[1].by_rate.expect("a rate");
    assert!((fp32 - 2796.0 / 361.0).abs() < 1e-9);
}

#[test]
fn rows_of_several_batches_or_frameworks_are_not_one_series() {
    let batches = "| GPUs | batch | images/s |\n|-|-|-|\n| 1 | 32 | 100 |\n| 1 | 64 | 130 |\n| 8 | 32 | 700 |\n| 8 | 64 | 950 |\n";
    assert_eq!(told(batches), [("batch 32".into(), vec![1, 8], 0), ("batch 64".into(), vec![1, 8], 0)]);
    let frameworks = "| | GPUs | images/s |\n|-|-|-|\n| Caffe | 1 | 100 |\n| | 2 | 180 |\n| MXNet | 1 | 120 |\n| | 2 | 230 |\n";
    assert_eq!(told(frameworks), [("Caffe".into(), vec![1, 2], 0), ("MXNet".into(), vec![1, 2], 0)]);
    let other = "| Model | GPUs | images/s |\n|-|-|-|\n| A | 8 | 1000 |\n| B | 16 | 700 |\n| C | 32 | 90 |\n";
    let found = read(other);
    assert!(!found.series[0].understood.comparable && found.series[0].rows.is_empty());
    assert!(render(&found).contains("no two rows differ only in the number of workers"));
}

#[test]
fn some_of_the_workers_are_no_number_of_workers() {
    let text =
        "| case | workers | images/s |\n|-|-|-|\n| a | 1 | 100 |\n| a | 1 of 4 | 90 |\n| a | 2 | 190 |\n";
    assert_eq!(told(text)[0].1, [1, 2]);
}

#[test]
fn nodes_beside_gpus_are_not_workers() {
    let total = "| node_num | gpu_num | samples/s | speedup |\n|-|-|-|-|\n| 1 | 1 | 352.72 | 1 |\n| 1 | 8 | 2625.38 | 7.44 |\n| 2 | 16 | 4895.27 | 13.88 |\n| 4 | 32 | 9348.17 | 26.50 |\n";
    assert_eq!(told(total), [("Table".into(), vec![1, 8, 16, 32], 0)]);
    let each = "| nodes | GPUs | samples/s |\n|-|-|-|\n| 1 | 8 | 100 |\n| 2 | 8 | 190 |\n| 4 | 8 | 360 |\n";
    assert_eq!(told(each)[0].1, [8, 16, 32]);
    let series = read(each).series.remove(0);
    assert_eq!(series.understood.counted_by, "nodes x GPUs");
    assert!(series.doubt.is_none());
}

#[test]
fn workers_in_the_header_are_read_across() {
    let text = "| model | 1 GPU | 2 GPUs | 8 GPUs |\n|-|-|-|-|\n| ResNet-50 | 300 img/s | 590 img/s | 2250 img/s |\n| VGG-16 | 190 img/s | 350 img/s | 1200 img/s |\n";
    let found = read(text);
    let workers: Vec<&[u64]> = found.series.iter().map(|series| &series.understood.workers[..]).collect();
    assert_eq!(workers, [[1, 2, 8], [1, 2, 8]]);
    assert_eq!(found.series[0].rows[2].by_rate, Some(7.5));
    // Without a unit, nobody knows what the numbers are.
    let error = explain_text(&text.replace(" img/s", ""), &Options::default()).expect_err("no measure");
    assert!(error.to_string().contains("--map"), "{error}");
    let map = vec![("model".to_owned(), Meaning::RateGlobal)];
    let given =
        explain_text(&text.replace(" img/s", ""), &Options { map, ..Options::default() }).expect("given");
    assert_eq!(given.series[1].rows[1].by_rate, Some(350.0 / 190.0));
}

#[test]
fn prose_and_dumps_say_nothing_about_runs() {
    let text = "Training requires two steps: 1. prepare the data. It saves checkpoints every 10 epochs with a batch of 8.\n\nrunning on GPU: 3\n\n```\nGPU_COUNT=501\nOMPI_COMM_WORLD_SIZE=501\nSLURM_NPROCS  501\nNODES  12\n```\n\n| GPUs | images/s |\n|-|-|\n| 1 | 10 |\n| 2 | 19 |\n";
    let found = read(text);
    assert_eq!(found.series.len(), 1);
    assert_eq!(found.series[0].understood.context, Context::default());
    assert_eq!(found.series[0].understood.workers, [1, 2]);
}

#[test]
fn an_efficiency_above_110_percent_is_a_reason_to_doubt() {
    let text = "| nodes | samples/s |\n|-|-|\n| 1 | 100 |\n| 2 | 700 |\n| 4 | 2900 |\n";
    let found = read(text);
    let series = &found.series[0];
    assert!(series.doubt.is_some() && series.laws.is_empty() && series.reconciliation.is_none());
    let page = render(&found);
    assert!(page.contains("2 workers would be 7.0 times as fast as 1") && !page.contains("%"), "{page}");
    // Unless the table says so itself.
    let printed = "| nodes | samples/s | speedup |\n|-|-|-|\n| 1 | 100 | 1.00 |\n| 2 | 230 | 2.30 |\n| 4 | 450 | 4.50 |\n";
    assert!(read(printed).series[0].doubt.is_none());
}

#[test]
fn agreement_is_claimed_only_where_something_follows() {
    let page = |text: &str| render(&read(text));
    let alone = page("GPUs,images/s\n1,10\n2,19\n4,36\n");
    assert!(!alone.contains("agree") && !alone.contains("Audit"), "{alone}");
    let follows = page("GPUs,images/s,speedup\n1,10.0,1.00\n2,19.0,1.90\n4,36.0,3.60\n");
    assert!(follows.contains("found to agree: speedup"), "{follows}");
}

#[test]
fn a_ratio_that_is_not_one_on_one_worker_is_relative_to_something_else() {
    let text = "GPUs,images/s,speedup\n1,10.0,0.81\n2,19.0,1.54\n4,36.0,2.92\n";
    let series = read(text).series.remove(0);
    assert_eq!(series.understood.columns[1].meaning, None);
    assert!(series.audit.slips.is_empty());
}

#[test]
fn words_that_describe_the_workers_do_not_separate_rows_if_speed_ups_follow_over_them() {
    let text = "| Configuration | GPUs | Time | Speedup |\n|-|-|-|-|\n| Single GPU | 1 | 12.0h | 1.00x |\n| Multi-GPU | 2 | 6.5h | 1.85x |\n| Multi-node | 4 | 3.5h | 3.43x |\n";
    assert_eq!(told(text), [("Table".into(), vec![1, 2, 4], 0)]);
    let alone = text.replace("1.85x", "-").replace("3.43x", "-");
    assert!(!read(&alone).series[0].understood.comparable);
}

#[test]
fn one_table_of_a_page_can_be_chosen() {
    let text = "GPUs,time (s)\n1,10\n2,6\n\nGPUs,time (s)\n1,100\n2,60\n";
    let with = |line: usize| explain_text(text, &Options { tables: vec![line], ..Options::default() });
    let lines: Vec<Vec<usize>> =
        with(5).expect("a table").series.into_iter().map(|series| series.understood.lines).collect();
    assert_eq!(lines, [[5]]);
    assert_eq!(with(2).expect_err("no table").to_string(), "no table begins on line 2; tables begin on 1, 5");
}

#[test]
fn a_column_of_fractions_is_in_percent_as_a_whole() {
    let text = "ranks,time_s,comm_s,comm_share\n1,5.439,0.005,0.1\n2,3.388,0.005,0.1\n4,3.269,0.344,10.5\n8,2.695,1.265,46.9\n";
    assert_eq!(told(text), [("Table".into(), vec![1, 2, 4, 8], 0)]);
    let share = read(text).series.remove(0).understood.columns[2].figures[0].expect("a number");
    assert!((share.value - 0.001).abs() < 1e-12);
}

#[test]
fn html_tables_are_read_like_others() {
    let html = "<h2>Scaling</h2>\n<table><thead><tr><th>GPUs</th><th>images/s</th><th>Speedup</th></tr></thead><tbody><tr><td>1</td><td>100.0</td><td>1.00</td></tr><tr><td>2</td><td>190.0</td><td>1.90</td></tr>\n<tr><td>4</td><td><b>360.0</b></td><td>3.06&nbsp;</td></tr><tr><td>8</td><td>640.0</td><td>6.40</td></tr></tbody></table>";
    assert_eq!(told(html), [("Scaling".into(), vec![1, 2, 4, 8], 1)]);
}

/// The meanings of the columns of the first series.
fn meanings(text: &str) -> Vec<Option<Meaning>> {
    read(text).series[0].understood.columns.iter().map(|column| column.meaning).collect()
}

#[test]
fn a_size_or_a_product_name_is_no_number_of_workers() {
    for text in [
        "| Size | Time (ms) |\n|-|-|\n| 200 x 400 | 20.91 |\n| 400 x 800 | 80.1 |\n| 800 x 1200 | 230.2 |\n",
        "| | 1024x1024 | 2048x2048 |\n|-|-|-|\n| time (s) | 1.0 | 7.9 |\n",
        "| Device | images/s |\n|-|-|\n| 3070 | 100 |\n| 3080 | 130 |\n",
    ] {
        let error = explain_text(text, &Options::default()).expect_err("no workers");
        assert!(error.to_string().contains("is the number of workers"), "{text}: {error}");
    }
}

#[test]
fn times_and_percentiles_are_not_taken_for_fractions_parts_or_totals() {
    let phases =
        "case,workers,load,forward,comm_wait,update\na,1,0.1,17.4,36.47,0.4\na,2,0.1,17.5,30.2,0.4\n";
    let error = explain_text(phases, &Options::default()).expect_err("no unit, no meaning");
    assert!(error.to_string().contains("\"comm_wait\""), "{error}");
    let steps = "workers,steps,median ms,95th ms,99th ms,Latency 90%\n1,60,50.1,51.0,52.0,51.0\n2,60,51.1,52.0,53.0,51.0\n";
    assert!(explain_text(steps, &Options::default()).is_err());
    let tokens = "GPUs,Tokens (M),time (m)\n1,2,10\n2,2,6\n";
    assert_eq!(meanings(tokens), [None, Some(Meaning::TotalTime)]);
    assert_eq!(
        meanings("cores,zone-cycles/cpu_second,time (s)\n1,5,10\n2,5,6\n"),
        [None, Some(Meaning::TotalTime)]
    );
}

#[test]
fn runs_of_several_kinds_on_as_many_workers_are_not_repeats_of_one() {
    let text = "| Mode | Workers | Time, s | Speedup |\n|-|-|-|-|\n| seq | 1 | 10.00 | 1.00 |\n| omp | 8 | 2.00 | 5.00 |\n| tbb | 8 | 1.60 | 6.25 |\n| stl | 8 | 1.90 | 5.26 |\n";
    let found = read(text);
    assert!(found.series.iter().all(|series| !series.understood.comparable), "{found:?}");
    assert_eq!(told(text).iter().map(|(_, _, slips)| slips).sum::<usize>(), 0);
}

#[test]
fn runs_of_other_lengths_or_batches_are_not_compared() {
    let text = |epochs: u32, batch: u32| {
        format!("GPUs,epochs,micro batch size,time (h)\n1,{epochs},{batch},10.0\n4,1,4,3.0\n8,1,4,1.6\n")
    };
    assert!(!read(&text(3, 8)).series[0].understood.comparable);
    assert!(!read(&text(1, 8)).series[0].understood.comparable);
    assert!(read(&text(1, 4)).series[0].understood.comparable);
    let grows = "GPUs,global batch,images/s\n1,32,100\n4,128,380\n8,256,700\n";
    assert!(read(grows).series[0].understood.comparable, "a batch may grow with the workers");
}

#[test]
fn ratios_of_something_else_are_not_speed_ups() {
    for heading in ["gain from SHARP", "Length Scaling Factor", "Speedup with CP/without CP"] {
        let text = format!("GPUs,images/s,{heading}\n1,100,1.0x\n2,190,1.1x\n4,360,1.2x\n");
        assert_eq!(meanings(&text)[1], None, "{heading}");
    }
    // Relative to a serial run: the efficiency on one thread says so.
    let serial =
        "threads,time (s),speedup,efficiency\n1,70.2,1.0,103.4%\n4,40.1,1.8,45.3%\n8,23.8,3.2,40.1%\n";
    assert_eq!(meanings(serial), [Some(Meaning::TotalTime), None, None]);
}

#[test]
fn a_printed_speed_up_is_not_doubted_and_both_cells_are_named_where_either_may_be_wrong() {
    let printed = "threads,speedup\n1,1.00\n2,2.40\n4,4.90\n";
    assert!(read(printed).series[0].doubt.is_none());
    let either = "GPUs,images/s,speedup\n1,100.0,1.00\n2,190.0,1.90\n4,360.0,3.60\n8,640.0,4.60\n";
    let slips = read(either).series.remove(0).audit.slips;
    assert_eq!(slips[0].how, "640.0 / 100.0, if images/s, 8 workers, is right");
}

#[test]
fn a_line_that_describes_nothing_is_not_told() {
    let text = "threads,time (s)\n1,10.0\n2,30.0\n4,5.0\n8,60.0\n";
    let page = render(&read(text));
    assert!(!page.contains("T = fixed") && !page.contains("inf"), "{page}");
}

#[test]
fn entities_of_html_are_letters_and_a_table_around_a_table_is_not_one() {
    let entities = "<table><tr><th>GPUs<th>images&#47;sec<th>speed&#8209;up<th>efficiency&#x20;&#37;<tr><td>1<td>100<td>1.00&thinsp;<td>100&#37;<tr><td>2<td>190<td>1.90<td>95&#37;<tr><td>4<td>350<td>3.50<td>87.5&#37;</table>";
    let series = read(entities).series.remove(0);
    assert_eq!(series.audit.follows, ["speed-up", "efficiency %"]);
    assert_eq!(series.rows[2].by_rate, Some(3.5));
    let table = "<table><tr><th>GPUs<th>img/s<tr><td>1<td>100<tr><td>2<td>190<tr><td>4<td>350</table>";
    let nested = format!("<table><tr><td>nested{table}</td></tr><tr><td>{table}</td></tr></table>");
    assert_eq!(told(&nested), vec![("Table".into(), vec![1, 2, 4], 0); 2]);
    let odd = "<table><tr><th>GPUs<th>R&D img/s &amp;lt;<tr><td>1<td>100<tr><td>2<td>190</table>";
    assert_eq!(read(odd).series[0].understood.columns[0].name, "R&D img/s &lt;");
}

#[test]
fn a_series_is_named_by_what_distinguishes_it_and_a_long_name_shows_that_it_is_cut() {
    let text = "model,engine,data,GPUs,images/s\nresnet50,cpu,cifar,1,10\nresnet50,cpu,cifar,2,19\nvgg16,cpu,cifar,1,5\nvgg16,cpu,cifar,2,8\n";
    let titles: Vec<String> = told(text).into_iter().map(|(title, ..)| title).collect();
    assert_eq!(titles, ["resnet50", "vgg16"]);
    let name = format!(
        "images/s of a network {}with many layers",
        "that has a long name and was trained ".repeat(2)
    );
    let found = read(&format!("GPUs,{name}\n1,10\n2,10\n4,11\n"));
    let shown = &found.series[0].understood.columns[0].name;
    assert!(shown.contains("...") && shown.ends_with("many layers"), "{shown}");
    let map = vec![(shown.clone(), Meaning::RateGlobal)];
    let given =
        explain_text(&format!("GPUs,{name}\n1,10\n2,10\n4,11\n"), &Options { map, ..Options::default() });
    assert_eq!(given.expect("a name as it is shown").series[0].rows[2].by_rate, Some(1.1));
}

#[test]
fn rows_that_belong_to_no_series_are_told() {
    let text = "state,GPUs,images/s\ncalm,1,10\ncalm,2,19\nbusy,4,30\n";
    let found = read(text);
    assert_eq!(found.series[0].understood.workers, [1, 2]);
    assert_eq!(
        found.warnings,
        ["line 1: left out 1 row, from which no other differs only in workers (busy)"]
    );
}

#[test]
fn a_level_of_confidence_is_no_unit_and_what_is_hidden_is_no_share() {
    let text = "| GPUs | img/s (95 % interval) | speed-up (95 % interval) | hidden communication % |\n|-|-|-|-|\n| 1 | 100.0 (99 .. 101) | 1.00 | - |\n| 16 | 1500.0 (1490 .. 1510) | 15.00 (14.8 .. 15.2) | 74 |\n| 32 | 2850.0 (2800 .. 2900) | 28.50 (28.0 .. 29.0) | 74 |\n";
    let series = read(text).series.remove(0);
    let meanings: Vec<Option<Meaning>> =
        series.understood.columns.iter().map(|column| column.meaning).collect();
    assert_eq!(meanings, [Some(Meaning::RateGlobal), Some(Meaning::Speedup), None]);
    assert_eq!(series.audit.follows, ["speed-up (95 % interval)"]);
}

#[test]
fn a_rate_is_called_computed_from_the_clock_only_if_the_digits_allow_it() {
    let related = |rates: [f64; 4]| {
        let rows = [(1, 10.16), (2, 10.19), (4, 10.21), (8, 10.24)].into_iter().zip(rates);
        let rows: String = rows.map(|((n, clock), rate)| format!("{n},{clock:.2},{rate:.1}\n")).collect();
        read(&format!("GPUs,train time (s),images/s\n{rows}")).series.remove(0).reconciliation
    };
    let computed = related([1259.9, 2512.4, 5013.5, 10002.0]);
    assert!(matches!(computed, Some(Reconciliation::Same { examples: 12_800.0, .. })), "{computed:?}");
    let apart = related([1259.9, 2519.4, 5018.5, 10012.0]);
    assert!(!matches!(apart, Some(Reconciliation::Same { .. })), "{apart:?}");
}

#[test]
fn a_whole_that_is_a_little_longer_than_its_parts_has_others() {
    let text = "GPUs,init time (s),train time (s),total time (s)\n1,0.05,100.00,100.05\n2,0.05,51.00,51.05\n4,0.05,26.00,26.09\n8,0.05,13.50,13.61\n";
    assert!(read(text).series[0].audit.slips.is_empty());
    assert_eq!(told(&text.replace("26.09", "25.09"))[0].2, 1, "a whole is not shorter");
}

#[test]
fn a_column_given_as_a_setting_distinguishes_runs() {
    let text = "GPUs,blocks,images/s\n1,4,10\n2,4,19\n1,8,7\n2,8,13\n";
    let map = vec![("blocks".to_owned(), Meaning::Setting)];
    let found = explain_text(text, &Options { map, ..Options::default() }).expect("a table");
    let titles: Vec<&str> = found.series.iter().map(|series| series.understood.title.as_str()).collect();
    assert_eq!(titles, ["blocks 4", "blocks 8"]);
}

#[test]
fn a_size_that_equals_the_number_of_workers_is_no_count() {
    let text = "input,GPUs,images/s\n32x32,1,10\n32x32,8,75\n32x32,32,280\n";
    assert_eq!(told(text), [("32x32".into(), vec![1, 8, 32], 0)]);
    let cards = "hardware,GPUs,images/s\nRTX 3090,1,10\n2x RTX 3090,2,19\n4x RTX 3090,4,36\n";
    assert_eq!(told(cards), [("RTX 3090".into(), vec![1, 2, 4], 0)]);
}

#[test]
fn a_second_count_that_does_not_grow_with_the_first_separates_runs() {
    let nodes = "| #Nodes | #GPUs | Runtime |\n|-|-|-|\n| 1 | 1 | 2:22:01 |\n| 1 | 2 | 1:14:46 |\n| 1 | 3 | 0:51:27 |\n| 2 | 1 | 1:25:00 |\n| 3 | 1 | 1:00:08 |\n";
    assert_eq!(told(nodes), [("#Nodes 1".into(), vec![1, 2, 3], 0)]);
    let hybrid = "nprocs,nthreads,time (s)\n1,8,10.1\n2,4,10.4\n4,2,11.0\n8,1,12.5\n";
    assert!(read(hybrid).series.iter().all(|series| series.rows.is_empty()));
    let named = "procs,workers,time (s)\n2,1,10.0\n3,2,5.2\n5,4,2.7\n";
    assert_eq!(told(named)[0].1, [1, 2, 4], "the one called so");
}

#[test]
fn a_number_with_a_unit_counts_no_workers() {
    let text = "| GPU | GPU Numbers | images/s |\n|-|-|-|\n| 80GB A100 | 1 | 10 |\n| 80GB A100 | 8 | 75 |\n";
    assert_eq!(told(text), [("80GB A100".into(), vec![1, 8], 0)]);
    let machines = "machine,images/s\n1xA10G,10\n4xA10G,38\n";
    assert_eq!(told(machines)[0].1, [1, 4]);
    let error = explain_text(
        "| load | images/s |\n|-|-|\n| 101% of a core | 10 |\n| 102% of a core | 20 |\n",
        &Options::default(),
    );
    assert!(error.is_err(), "{error:?}");
}

#[test]
fn a_serial_time_and_a_range_are_no_clock_and_the_only_time_is_one() {
    let meanings = |header: &str| -> Vec<Option<Meaning>> {
        let text = format!("threads,{header}\n1,10.1,10.0,9.9\n2,5.2,10.1,5.1\n4,2.7,9.9,2.6\n");
        read(&text).series[0].understood.columns.iter().map(|column| column.meaning).collect()
    };
    assert_eq!(meanings("T_parallel_s,T_serial_s,x"), [Some(Meaning::TotalTime), None, None]);
    assert_eq!(meanings("time_sec,time_min,time_max"), [Some(Meaning::TotalTime), None, None]);
    assert_eq!(meanings("Time (µs),Time (%),Grad Acc"), [Some(Meaning::TotalTime), None, None]);
}

#[test]
fn ratios_of_methods_and_printed_ratios_that_nothing_confirms_are_doubted() {
    let methods = "Processes,MyBcast (s),MPI_Bcast (s),Speedup Ratio\n2,0.239036,0.020914,11.43x\n4,0.711881,0.041010,17.36x\n8,1.381668,0.190880,7.24x\n";
    assert!(!render(&read(methods)).contains("11.43x  "), "no efficiency of 571 %");
    let alone = "Cores,Speedup\n4,5.87\n8,11.6\n16,23.0\n";
    assert!(read(alone).series[0].doubt.is_some());
    let versus = "threads,time (s),speedup_vs_naive\n1,10.0,1.00\n2,5.2,8.57\n";
    assert_eq!(read(versus).series[0].understood.columns[1].meaning, None);
}

#[test]
fn rows_that_differ_only_in_their_trial_are_repetitions() {
    let rows: String = [1, 2, 4]
        .iter()
        .flat_map(|n| (1..=3).map(move |trial| format!("{n},{trial},{}\n", 120 / n + trial)))
        .collect();
    let found = read(&format!("threads,trial,time (s)\n{rows}"));
    assert_eq!(found.series.len(), 1);
    let page = render(&found);
    assert!(
        page.contains("several rows for one worker") && !page.contains("no number has a spread"),
        "{page}"
    );
}

#[test]
fn rates_of_other_units_are_not_called_examples() {
    let page = |header: &str| render(&read(&format!("threads,{header}\n1,10.0\n2,19.0\n4,36.0\n")));
    assert!(page("files/s").contains("units/s") && page("images/s").contains("examples/s"));
    assert!(explain_text("threads,Throughput (mol/ms)\n1,10.0\n2,19.0\n", &Options::default()).is_err());
}
