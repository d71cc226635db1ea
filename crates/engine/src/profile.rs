//! Times of units, as both engines keep them.

use paceline_record::{LayerTime, Nanos};

use crate::outline::Unit;

/// Times of one unit, all calls together.
#[derive(Clone, Copy, Default)]
pub(crate) struct UnitTime {
    pub calls: u64,
    pub forward: Nanos,
    pub backward: Nanos,
}

/// The times of units under their names.
pub(crate) fn layers(units: &[Unit], times: &[UnitTime]) -> Vec<LayerTime> {
    let layer = |(unit, time): (&Unit, &UnitTime)| LayerTime {
        name: unit.name.clone(),
        calls: time.calls,
        forward: time.forward,
        backward: time.backward,
        forward_flops: unit.forward_flops,
        backward_flops: unit.backward_flops,
    };
    units.iter().zip(times).map(layer).collect()
}
