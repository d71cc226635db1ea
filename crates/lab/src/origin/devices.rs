//! How devices were used during a run, sampled from outside.

use paceline_record::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Table, words};

/// How one device was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Its index.
    pub index: u32,
    /// Number of samples.
    pub samples: u64,
    /// Peak memory in use; `None` if unknown.
    pub peak_memory: Option<Bytes>,
    /// Mean memory in use.
    pub mean_memory: Option<Bytes>,
    /// Mean fraction of time in which a kernel ran.
    pub utilisation: Option<f64>,
    /// 95th percentile of that fraction.
    pub utilisation_p95: Option<f64>,
    /// Fraction of samples in which kernels ran for less than a tenth of the time.
    pub low: Option<f64>,
    /// Mean power in watts.
    pub power: Option<f64>,
    /// Highest power in watts.
    pub peak_power: Option<f64>,
}

impl DeviceUse {
    /// A table of how devices were used; `None` without devices.
    pub fn table(devices: &[Self]) -> Option<Table> {
        let mut table = Table::of_numbers(
            "device, by nvidia-smi",
            &[
                "samples",
                "mean use %",
                "p95 %",
                "% under 10 % use",
                "mean memory",
                "peak memory",
                "mean W",
                "peak W",
            ],
        );
        let percent = |part: Option<f64>| words::or_dash(part, |part| format!("{:.1}", 100.0 * part));
        for one in devices {
            table.row([
                format!("device {}", one.index),
                one.samples.to_string(),
                percent(one.utilisation),
                percent(one.utilisation_p95),
                percent(one.low),
                words::or_dash(one.mean_memory, words::bytes),
                words::or_dash(one.peak_memory, words::bytes),
                words::or_dash(one.power, |watts| format!("{watts:.0}")),
                words::or_dash(one.peak_power, |watts| format!("{watts:.0}")),
            ]);
        }
        (!devices.is_empty()).then_some(table)
    }
}
