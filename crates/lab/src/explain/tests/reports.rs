//! Reports from the field, where their texts are at hand: the slips that people know of must be found, and no others be made up.

use std::fs;
use std::path::Path;

use super::*;

/// The explanation of the report whose file name begins like this, if it is there.
fn report(number: &str, context: Context) -> Option<Explanation> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["../../../shared/seeds", "../../../../shared/seeds"].map(|folder| root.join(folder));
    let folder = folders.into_iter().find(|folder| folder.is_dir())?;
    let mut files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let file =
        files.find(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(number)))?;
    let found = explain_text(&fs::read_to_string(file).ok()?, &given(context)).expect("tables");
    render(&found);
    Some(found)
}

fn contradictions(found: &Explanation) -> Vec<(Check, String, Option<f64>)> {
    let all = found.series.iter().flat_map(|series| &series.audit.slips);
    let grave = all.filter(|slip| slip.weight == Weight::Contradiction);
    grave.map(|slip| (slip.check, slip.place.clone(), slip.printed.map(|figure| figure.value))).collect()
}

fn assert_lab_11(fitted: &Fitted) {
    let close = |a: f64, b: f64| assert!((a - b).abs() < 0.05, "{a} {b}");
    close(fitted.fixed.value, 8.8);
    close(fitted.fixed.lo, 6.1);
    close(fitted.fixed.hi, 11.6);
    let batch = fitted.batch.expect("500 steps");
    close(batch.examples.value, 62.6);
    close(batch.standard_error, 0.8);
    assert_eq!((batch.expected, batch.consistent), (Some(64), Some(true)));
    assert!((fitted.r2.expect("times differ") - 0.999).abs() < 5e-4);
    let at = fitted.speedups.expect("one worker");
    let without = at.without.expect("a fixed time");
    close(without.value, 29.8);
    close(at.rate, 30.1);
    close(at.clock, 11.6);
    assert!(at.consistent && at.workers == 32 && without.lo < 29.8 && without.hi.is_some_and(|hi| hi > 30.1));
    let enough = fitted.enough.expect("a fixed time");
    assert!((15_000.0..16_500.0).contains(&enough.steps.expect("steps")), "{enough:?}");
}

/// Lab 11: Horovod, resnet_v2_101, CIFAR-10, 2018. The figures are its own.
const LAB_11: &str =
    "GPUs,Train time(s),Examples/s\n1,163,202\n2,93,191\n4,47,193\n8,30,191\n16,19,193\n32,14,190\n";

#[test]
fn the_figures_of_lab_11_reconcile_if_the_steps_are_given() {
    assert_lab_11(&fitted(LAB_11, &given(Context { steps: Some(500), ..Context::default() })));
    let unknown = fitted(LAB_11, &Options::default());
    assert!(unknown.batch.is_none() && (unknown.examples.value / 500.0 - 62.6).abs() < 0.05);
}

#[test]
fn the_text_of_lab_11_reconciles_if_the_steps_are_given() {
    let Some(found) = report("001", Context { steps: Some(500), ..Context::default() }) else { return };
    assert_eq!(found.series.len(), 1, "two tables of the same runs");
    let Some(Reconciliation::Fitted(fitted)) = &found.series[0].reconciliation else { panic!("not fitted") };
    assert_lab_11(fitted);
    assert_eq!(fitted.work, Work::Divided);
    // 163 / 93 is 1.75, at most 1.77.
    assert_eq!(contradictions(&found), [(Check::Speedup, "Speedup (train), 2 workers".into(), Some(1.72))]);
}

#[test]
fn the_slips_of_the_keras_tables_are_found() {
    // Of CIFAR-10 there are 50,000 training images, and each run had 100 epochs.
    let context = Context { epochs: Some(100), examples: Some(5_000_000), ..Context::default() };
    let Some(found) = report("003", context) else { return };
    let slips = contradictions(&found);
    let epochs: Vec<_> = slips.iter().filter(|(check, ..)| *check == Check::EpochTime).collect();
    assert_eq!(epochs.len(), 1, "{slips:?}");
    assert_eq!(epochs[0].2, Some(304.02));
    let examples: Vec<_> = slips.iter().filter(|(check, ..)| *check == Check::Examples).collect();
    assert!(
        examples.len() == 3 && examples.iter().all(|(_, _, needed)| *needed == Some(60_000.0)),
        "{examples:?}"
    );
    assert_eq!(slips.len(), 4, "{slips:?}");
}

#[test]
fn the_slips_of_the_ftlib_tables_are_found() {
    let Some(found) = report("004", Context::default()) else { return };
    assert_eq!(contradictions(&found), [(Check::Speedup, "Speedup Ratio, 2 workers".into(), Some(1.57))]);
    let waits =
        found.series.iter().flat_map(|series| &series.audit.slips).filter(|slip| slip.check == Check::Wait);
    assert_eq!(waits.count(), 3, "apply_gradients on one worker, in each of the tables");
}
