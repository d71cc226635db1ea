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
