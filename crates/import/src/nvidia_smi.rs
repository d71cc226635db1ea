//! Output of `nvidia-smi` during a run: `nvidia-smi dmon`, or `--query-gpu=... --format=csv`.
//!
//! ```text
//! # gpu   pwr gtemp    sm   mem    fb          timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]
//! # Idx     W     C     %     %    MB          2019/03/05 14:12:01.533, 0, 97 %, 10941 MiB, 231.35 W
//!     0   231    64    97    41 10941
//! ```
//!
//! A header may be repeated; `-`, `[N/A]` and `[Not Supported]` mean no value. Without a header, columns are identified by units;
//! without units as well, the file is rejected.

mod columns;

use std::collections::BTreeMap;
use std::path::Path;

use paceline_lab::origin::DeviceUse;
use paceline_record::Bytes;
use serde::Serialize;

use self::columns::{Form, is_dmon_header, is_query_header, is_unit_row};
use super::lines::Lines;
use super::meaning::Meaning;
use super::{ImportError, Imported};

/// Higher device numbers are treated as damage.
const DEVICES: usize = 1024;

/// A device that is used for less of the time than this is idle.
const LOW: f64 = 0.10;

/// Number of bins for utilisation.
const BINS: usize = 1000;

/// How the devices of a machine were used.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Monitor {
    /// Devices in order of their index.
    pub devices: Vec<DeviceUse>,
    /// What was salvaged, guessed or skipped, one sentence each.
    pub warnings: Vec<String>,
}

impl Monitor {
    /// Adds device memory to the ranks of a run on one machine: device N belongs to rank N.
    pub fn attach(&self, run: &mut Imported) {
        run.warnings.extend(self.warnings.iter().cloned());
        let mut strangers = 0;
        for device in self.devices.iter().filter(|device| device.peak_memory.is_some()) {
            match run.ranks.iter_mut().find(|rank| rank.rank.0 == device.index) {
                Some(rank) => rank.peak_device = rank.peak_device.max(device.peak_memory),
                None => strangers += 1,
            }
        }
        if strangers > 0 && run.progress.is_none() {
            run.warnings.push(format!("skipped {strangers} devices of nvidia-smi that belong to no rank"));
        }
        run.devices.clone_from(&self.devices);
        run.warnings.push(
            "nvidia-smi reports the memory of the whole device, whoever uses it; device N is assigned to rank N"
                .into(),
        );
    }
}

impl Monitor {
    /// The result as text: how each device was used, and warnings.
    pub fn render(&self) -> String {
        let mut text = DeviceUse::table(&self.devices).map_or_else(String::new, |table| table.to_string());
        for one in &self.devices {
            if let (Some(mean), Some(low)) = (one.utilisation, one.low) {
                let idle = match low {
                    low if low >= 0.5 => "mostly idle",
                    low if low >= 0.1 => "sometimes idle",
                    _ => "rarely idle",
                };
                text += &format!(
                    "\ndevice {} is {idle}: kernels run {:.0} % of the time, and less than 10 % of the time in {:.0} % of the samples",
                    one.index,
                    100.0 * mean,
                    100.0 * low
                );
            }
        }
        text.push('\n');
        for warning in &self.warnings {
            text += &format!("note: {warning}\n");
        }
        text + "A device counts as in use while any kernel runs, however small: this does not measure efficiency\n"
    }
}

/// Whether a file with this beginning is output of `nvidia-smi`.
pub fn recognise(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let Some(first) = text.lines().find(|line| !line.trim().is_empty()) else { return false };
    is_dmon_header(first) || is_query_header(first) || Form::guess(first).is_some()
}

/// Reads a log of `nvidia-smi`.
pub fn read(path: &Path) -> Result<Monitor, ImportError> {
    let mut lines = Lines::open(path)?;
    let mut reader = Reader::default();
    while let Some(line) = lines.next()? {
        reader.take(line.trim());
    }
    if reader.devices.is_empty() {
        let why = match reader.form {
            Some(_) => "nvidia-smi printed a header but no samples",
            None => {
                "not recognised as nvidia-smi output: no header and no units (leave out noheader or nounits)"
            }
        };
        return Err(ImportError::bad(path, why));
    }
    reader.damaged += lines.passed_over;
    Ok(reader.close())
}

/// Numbers of one device so far.
struct Sums {
    samples: u64,
    peak_memory: Option<u64>,
    memory: (f64, u64),
    utilisation: (f64, u64),
    /// Samples by how much of the time a kernel ran.
    bins: Box<[u64; BINS + 1]>,
    low: u64,
    power: (f64, u64),
    peak_power: f64,
}

impl Default for Sums {
    fn default() -> Self {
        Self {
            samples: 0,
            peak_memory: None,
            memory: (0.0, 0),
            utilisation: (0.0, 0),
            bins: Box::new([0; BINS + 1]),
            low: 0,
            power: (0.0, 0),
            peak_power: 0.0,
        }
    }
}

impl Sums {
    /// 95th percentile of that fraction.
    fn p95(&self) -> Option<f64> {
        let all = self.utilisation.1;
        let enough = all - all / 20;
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            all > 0 && seen >= enough
        };
        self.bins.iter().position(reaches).map(|bin| bin as f64 / BINS as f64)
    }
}

#[derive(Default)]
struct Reader {
    form: Option<Form>,
    guessed: bool,
    devices: BTreeMap<u32, Sums>,
    /// Named devices without numbers, in order of appearance.
    named: Vec<String>,
    damaged: u64,
}

impl Reader {
    fn take(&mut self, line: &str) {
        if line.is_empty() || is_unit_row(line) {
            return;
        }
        if is_dmon_header(line) {
            self.form = Some(Form::of_dmon(line));
            return;
        }
        if is_query_header(line) {
            self.form = Some(Form::of_query(line));
            return;
        }
        if self.form.is_none() {
            self.form = Form::guess(line);
            self.guessed = self.form.is_some();
        }
        let read = self.form.as_ref().and_then(|form| form.cells(line));
        let Some(cells) = read else {
            self.damaged += 1;
            return;
        };
        let text = |column| cells.iter().find(|(known, _)| *known == Some(column)).map(|&(_, cell)| cell);
        let index = match (text(Meaning::Device), text(Meaning::DeviceId)) {
            (Some(index), _) => index.parse().ok(),
            (None, Some(id)) => {
                self.named.iter().position(|known| known == id).map(|place| place as u32).or_else(|| {
                    (self.named.len() < DEVICES).then(|| {
                        self.named.push(id.into());
                        self.named.len() as u32 - 1
                    })
                })
            }
            (None, None) => Some(0),
        };
        let Some(index) = index.filter(|&index| (index as usize) < DEVICES) else {
            self.damaged += 1;
            return;
        };
        let number = |column| {
            let text = text(column)?.split_whitespace().next()?;
            text.parse::<f64>().ok().filter(|number| (0.0..1e12).contains(number))
        };
        let sums = self.devices.entry(index).or_default();
        sums.samples += 1;
        if let Some(mebibytes) = number(Meaning::Mebibytes) {
            let bytes = (mebibytes * f64::from(1 << 20)) as u64;
            sums.peak_memory = sums.peak_memory.max(Some(bytes));
            sums.memory = (sums.memory.0 + bytes as f64, sums.memory.1 + 1);
        }
        if let Some(percent) = number(Meaning::Utilisation) {
            let share = (percent / 100.0).min(1.0);
            sums.utilisation = (sums.utilisation.0 + share, sums.utilisation.1 + 1);
            sums.bins[(share * BINS as f64).round() as usize] += 1;
            sums.low += u64::from(share < LOW);
        }
        if let Some(watts) = number(Meaning::Watts) {
            sums.power = (sums.power.0 + watts, sums.power.1 + 1);
            sums.peak_power = sums.peak_power.max(watts);
        }
    }

    fn close(self) -> Monitor {
        let mut warnings = Vec::new();
        if self.guessed {
            warnings.push("nvidia-smi printed no header: columns are identified by their units".into());
        }
        let has = |column| self.form.as_ref().is_some_and(|form| form.has(column));
        if !has(Meaning::Device) {
            warnings.push(match self.named.len() {
                0 => "nvidia-smi does not identify devices: all samples count as one device".into(),
                _ => "nvidia-smi does not number devices: they are numbered in order of appearance".into(),
            });
        }
        if self.damaged > 0 {
            warnings.push(format!("skipped {} unreadable lines of nvidia-smi", self.damaged));
        }
        let mean = |(sum, count): (f64, u64)| (count > 0).then(|| sum / count as f64);
        let devices = self.devices.iter().map(|(&index, sums)| DeviceUse {
            index,
            samples: sums.samples,
            peak_memory: sums.peak_memory.map(Bytes),
            mean_memory: mean(sums.memory).map(|bytes| Bytes(bytes as u64)),
            utilisation: mean(sums.utilisation),
            utilisation_p95: sums.p95(),
            low: mean((sums.low as f64, sums.utilisation.1)),
            power: mean(sums.power),
            peak_power: (sums.power.1 > 0).then_some(sums.peak_power),
        });
        Monitor { devices: devices.collect(), warnings }
    }
}

#[cfg(test)]
mod tests;
