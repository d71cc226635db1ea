//! The time of each layer.

use std::cmp::Reverse;

use paceline_record::LayerTime;

use crate::Table;
use crate::words::digits;

/// How many layers of a profile are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The slowest layers.
    Top(usize),
    /// Every layer.
    All,
}

/// Layers by time, slowest first: milliseconds per step, GFLOP/s and percentage of all layers.
/// GFLOP/s are nominal: multiplications with padding count although the engine skips them, so small maps may exceed the peak.
pub fn layers(layers: &[LayerTime], rows: Rows) -> Table {
    let mut sorted: Vec<&LayerTime> = layers.iter().collect();
    sorted.sort_by_key(|layer| Reverse(layer.forward + layer.backward));
    let total: f64 = sorted.iter().map(|layer| layer_seconds(layer)).sum();
    let mut table =
        Table::of_numbers("layer", &["forward ms", "backward ms", "nominal GFLOP/s", "% of time"]);
    let shown = match rows {
        Rows::Top(count) => count.min(sorted.len()),
        Rows::All => sorted.len(),
    };
    for layer in &sorted[..shown] {
        let calls = layer.calls.max(1) as f64;
        let flops = calls * (layer.forward_flops + layer.backward_flops) as f64;
        let time = layer_seconds(layer);
        table.row([
            layer.name.clone(),
            format!("{:.3}", 1e3 * layer.forward.seconds() / calls),
            format!("{:.3}", 1e3 * layer.backward.seconds() / calls),
            digits((time > 0.0).then(|| 1e-9 * flops / time), 1),
            digits((total > 0.0).then(|| 100.0 * time / total), 1),
        ]);
    }
    let rest = &sorted[shown..];
    if !rest.is_empty() {
        let percent = 100.0 * rest.iter().map(|layer| layer_seconds(layer)).sum::<f64>() / total;
        table.row([format!("{} more: {percent:.1} %", rest.len())]);
    }
    table
}

fn layer_seconds(layer: &LayerTime) -> f64 {
    (layer.forward + layer.backward).seconds()
}

#[cfg(test)]
mod tests {
    use paceline_record::Nanos;

    use super::*;

    #[test]
    fn layers_come_slowest_first_and_the_rest_is_summed() {
        let layer = |name: &str, ms: u64| LayerTime {
            name: name.into(),
            calls: 10,
            forward: Nanos(ms * 1_000_000),
            backward: Nanos(2 * ms * 1_000_000),
            forward_flops: 1_000_000,
            backward_flops: 2_000_000,
        };
        let all = [layer("conv1", 10), layer("conv2", 30), layer("head", 10)];
        insta::assert_snapshot!(layers(&all, Rows::Top(2)), @r"
        layer  forward ms  backward ms  nominal GFLOP/s  % of time
        conv2       3.000        6.000              0.3       60.0
        conv1       1.000        2.000              1.0       20.0
        1 more: 20.0 %
        ");
        assert_eq!(layers(&all, Rows::All).rows().len(), 3);
        assert!(layers(&[], Rows::All).rows().is_empty());
    }
}
