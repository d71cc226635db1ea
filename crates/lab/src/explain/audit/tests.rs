//! Tables of our own with planted slips.

use super::{Check, Slip, Weight};
use crate::explain::series::Context;
use crate::explain::{Options, explain_text, render};

fn slips(text: &str) -> Vec<Slip> {
    let found = explain_text(text, &Options::default()).expect("a table");
    render(&found);
    found.series.into_iter().flat_map(|series| series.audit.slips).collect()
}

fn contradictions(text: &str) -> Vec<(Check, String)> {
    let grave = slips(text).into_iter().filter(|slip| slip.weight == Weight::Contradiction);
    grave.map(|slip| (slip.check, slip.place)).collect()
}

#[test]
fn an_epoch_ten_times_too_long_is_found() {
    let text = "| | GPU (1) | GPU (2) | GPU (4) |\n|-|-|-|-|\n| Training time (s) | 4000.0 | 2104.0 | 1113.3 |\n| Time per epoch (s) | 200.00 | 105.20 | 556.65 |\n| Epochs | 20 | 20 | 20 |\n";
    let found = slips(text);
    assert_eq!(found[0].check, Check::EpochTime);
    assert!((found[0].computed.expect("a value") - 55.665).abs() < 1e-9);
    assert_eq!(found[0].likely.as_deref(), Some("ten times too large"));
    assert_eq!(contradictions(&text.replace("556.65", "55.67")), []);
    assert_eq!(contradictions(&text.replace("556.65", "55.66")), [], "55.665 lies between");
}

#[test]
fn digits_that_were_dropped_are_no_contradiction() {
    let text = "epochs,GPUs,train time (s),epoch time (s)\n7,1,1000.00,142.85\n7,2,600.00,85.71\n";
    let found = slips(text);
    assert_eq!(
        (found.len(), found[0].check, found[0].weight),
        (1, Check::CutOff, Weight::Remark),
        "{found:?}"
    );
}

#[test]
fn a_speed_up_that_its_rates_do_not_give_is_found() {
    let text = "Workers\timages/s\tSpeedup\n1\t30.2\t1\n2\t55\t1.87\n4\t101\t3.34\n8\t190\t6.29\n";
    assert_eq!(contradictions(text), [(Check::Speedup, "Speedup, 2 workers".into())]);
    assert_eq!(
        contradictions(&text.replace("1.87", "1.83")),
        [],
        "54.5 / 30.25 is 1.80, 55.5 / 30.15 is 1.84"
    );
}

#[test]
fn a_speed_up_is_measured_by_what_it_was_computed_from() {
    // By the total, not by the training time.
    let text =
        "GPUs,init (s),train (s),total (s),speedup\n1,10,100,110,1.00\n2,10,52,62,1.77\n4,10,27,37,2.97\n";
    assert_eq!(contradictions(text), []);
    assert_eq!(contradictions(&text.replace("62,1.77", "66,1.77"))[0].0, Check::TotalTime);
    let odd = text.replace("1.77", "7.00").replace("2.97", "0.40");
    assert_eq!(contradictions(&odd), [], "it was computed from something else");
}

#[test]
fn an_efficiency_is_held_against_its_speed_up() {
    let text = "GPUs,speedup,efficiency\n1,1.00,100 %\n2,1.80,90 %\n4,3.00,57 %\n8,5.00,62 %\n";
    let found = slips(text);
    assert_eq!((found.len(), found[0].check), (1, Check::Efficiency));
    assert_eq!(found[0].computed, Some(0.75));
    assert_eq!(found[0].likely.as_deref(), Some("two digits are swapped"));
    assert_eq!(slips(&text.replace("57 %", "0.31"))[0].likely, None);
}

#[test]
fn a_wait_that_moves_to_another_call_is_named() {
    let text = "| Workers | total time | allreduce time | fetch time | update time |\n|-|-|-|-|-|\n| 1 | 6.0s | - | - | 5.0s |\n| 2 | 7.0s | 1.0s | 5.1s | 0.5s |\n";
    let wait = slips(text).into_iter().find(|slip| slip.check == Check::Wait).expect("a wait");
    assert!(wait.how.contains("asynchronous device") && wait.place == "update time");
    assert!(slips(&text.replace("0.5s", "4.9s")).iter().all(|slip| slip.check != Check::Wait));
}

#[test]
fn summed_memory_and_falling_accuracy_are_remarked_on() {
    let text = "GPUs,time (s),memory (MB),test accuracy\n1,100,900,0.80\n2,55,1800,0.75\n4,30,3600,0.6\n";
    let context = Context { batch: Some(16), ..Context::default() };
    let options = Options { context, ..Options::default() };
    let found = explain_text(text, &options).expect("a table").series.remove(0).audit.slips;
    let checks: Vec<Check> = found.iter().map(|slip| slip.check).collect();
    assert_eq!(checks, [Check::Memory, Check::Accuracy]);
    assert!(found[1].how.contains("global batch of 64"), "{}", found[1].how);
}

#[test]
fn an_efficiency_without_a_speed_up_is_held_against_rates_or_times() {
    let text = "gpus,images/s,efficiency\n1,100,100%\n2,190,95%\n4,300,91%\n8,560,70%\n";
    assert_eq!(contradictions(text), [(Check::Efficiency, "efficiency, 4 workers".into())]);
    assert_eq!(slips(text)[0].computed, Some(0.75));
    assert_eq!(contradictions(&text.replace("91%", "75%")), []);
    // Of the same work for each worker, the times alone give it.
    let weak = "gpus,step time (ms),efficiency\n1,100,100%\n2,110,91%\n4,125,80%\n8,130,77%\n";
    assert_eq!(contradictions(weak), []);
    assert_eq!(contradictions(&weak.replace("80%", "60%")).len(), 1);
    let other = text.replace("95%", "80%").replace("70%", "60%");
    assert_eq!(contradictions(&other), [], "no row follows: it was computed from something else");
}

#[test]
fn the_rate_of_all_workers_is_held_against_that_of_each() {
    let text = "gpus,images/s per gpu,images/s\n1,100,100\n2,95,190\n4,90,300\n";
    assert_eq!(contradictions(text), [(Check::Rate, "images/s, 4 workers".into())]);
    assert_eq!(contradictions(&text.replace("300", "362")), [], "90.49 x 4 is 361.96");
}

#[test]
fn a_step_is_held_against_its_batch_and_the_rate() {
    let text = "gpus,images/s,step time (ms),batch size\n1,100,320,32\n2,190,337,64\n4,350,3660,128\n";
    let found = slips(text);
    assert_eq!(found[0].check, Check::StepTime);
    assert_eq!(found[0].likely.as_deref(), Some("ten times too large"));
    assert_eq!(contradictions(&text.replace("3660", "366")), []);
    assert_eq!(contradictions(&text.replace("3660", "370")), [], "both are measured");
    let each = text.replace(",64", ",32").replace(",128", ",32");
    assert_eq!(contradictions(&each).len(), 1, "the batch of one worker does as well");
    let loaded = "gpus,images/s,step time (ms),batch size\n1,80,320,32\n2,150,337,64\n4,270,366,128\n";
    assert_eq!(contradictions(loaded), [], "a rate may hold more than steps");
}

#[test]
fn a_fraction_of_communication_is_compared_with_its_time() {
    let text = "gpus,total time,comm time,communication\n1,100.0,0,0%\n2,60.0,12.0,20.0%\n4,40.0,16.0,60.0%\n8,30.0,15.0,50.0%\n";
    assert_eq!(contradictions(text), [(Check::CommTime, "communication, 4 workers".into())]);
    let page = render(&explain_text(text, &Options::default()).expect("a table"));
    assert!(page.contains("printed 0.600, recomputed 0.400 (16.0 / 40.0"), "{page}");
    assert_eq!(slips(text)[0].computed, Some(0.4));
    assert_eq!(contradictions(&text.replace("60.0%", "40.0%")), []);
}

#[test]
fn a_rate_that_the_clock_gave_is_held_against_it() {
    let rows = |images: f64| -> String {
        let row = |(n, time): &(u32, f64)| format!("{n},{time},{:.2}\n", images / time);
        [(1, 200.0), (2, 110.0), (4, 62.5), (8, 40.0)].iter().map(row).collect()
    };
    let text = format!("GPUs,epoch time (s),images/s\n{}", rows(50_000.0));
    assert_eq!(contradictions(&text), []);
    let one_off = text.replace("454.55", "545.45");
    assert_eq!(contradictions(&one_off), [(Check::Rate, "images/s, 2 workers".into())]);
    let noisy = text.replace("454.55", "457.00");
    assert_eq!(contradictions(&noisy), [], "rate and time may have been measured one by one");
}

#[test]
fn rates_are_compared_with_given_examples() {
    let table = "gpus,time per epoch,images/s\n1,50,1200\n2,26,2300\n4,13.5,4400\n";
    let with = |text: &str, examples: u64| {
        let context = Context { examples: Some(examples), epochs: Some(1), ..Context::default() };
        let options = Options { context, ..Options::default() };
        explain_text(text, &options).expect("a table").series.remove(0).audit.slips
    };
    let found = with(table, 50_000);
    assert_eq!((found.len(), found[0].check), (1, Check::Examples), "{found:?}");
    assert_eq!(found[0].printed.map(|needed| needed.value), Some(59_500.0));
    assert_eq!(with(table, 60_000), []);
    assert_eq!(with(&table.replace("time per epoch", "total time"), 50_000).len(), 1);
    // A rate of its own does not see the start-up.
    let startup = "gpus,time per epoch,images/s\n1,51.7,1200\n2,36,2300\n4,21.4,4400\n";
    assert_eq!(with(startup, 50_000), []);
    let steps = "GPUs,epoch time (s),it/s\n1,200.0,3.90\n2,200.0,3.90\n4,200.0,3.90\n";
    assert_eq!(with(steps, 50_000), [], "steps are no examples");
}

#[test]
fn parts_that_exceed_the_total_are_remarked_on() {
    let header = "| Workers | total time | allreduce time | copy time |\n|-|-|-|-|\n";
    let found = slips(&format!("{header}| 1 | 5.0s | - | - |\n| 2 | 9.0s | 6.0s | 4.0s |\n"));
    assert_eq!((found.len(), found[0].weight), (1, Weight::Remark), "{found:?}");
    assert!(
        found[0].how.contains("together 10.00 s on 2 workers, longer than the total time of 9.0 s"),
        "{found:?}"
    );
    assert_eq!(slips(&format!("{header}| 1 | 5.0s | - | - |\n| 2 | 9.0s | 2.0s | 4.0s |\n")), []);
}

#[test]
fn a_fraction_of_communication_that_explains_too_little_is_remarked_on() {
    let text = "Workers,images/s,communication\n1,100,0%\n2,160,20%\n4,200,25%\n";
    let found = slips(text);
    assert_eq!((found.len(), found[0].weight), (1, Weight::Remark), "{found:?}");
    assert!(found[0].how.contains("only 67 %"), "{found:?}");
    let ratio = "Workers,images/s,computation/communication\n1,100,-\n2,160,10: 2\n4,307,10: 3\n";
    assert_eq!(slips(ratio), []);
}

#[test]
fn a_slip_accuses_the_one_cell_that_explains_all_that_fails() {
    let text = "gpus,images/s,speedup,efficiency\n1,100.0,1.00,100.0%\n2,190.0,1.90,95.0%\n4,360.0,3.60,90.0%\n8,640.0,6.40,80.0%\n16,1120.0,11.20,70.0%\n";
    assert_eq!(contradictions(text), []);
    for (from, to, place) in [
        ("3.60", "3.06", "speedup, 4 workers"),
        ("360.0", "630.0", "images/s, 4 workers"),
        ("90.0%", "80.0%", "efficiency, 4 workers"),
        ("1,100.0,", "1,110.0,", "images/s, 1 worker"),
    ] {
        let found = contradictions(&text.replacen(from, to, 1));
        let places: Vec<&str> = found.iter().map(|(_, place)| place.as_str()).collect();
        assert_eq!(places, [place], "{from} -> {to}");
    }
    // Relative to something else, a ratio is one nowhere.
    let other = text.replace("1.00,", "0.90,").replace("100.0%", "90.0%");
    assert_eq!(contradictions(&other), []);
}
