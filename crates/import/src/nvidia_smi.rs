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

use self::columns::{Column, Form};
use super::lines::Lines;
use super::{ImportError, Imported};

/// Higher device numbers are treated as damage.
const DEVICES: usize = 1024;

/// A device that is used for fewer percent of the time is idle.
const LOW: u8 = 10;

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
    Form::of_header(first).or_else(|| Form::guess(first)).is_some()
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

/// Samples of one number so far.
#[derive(Default)]
struct Sum {
    count: u64,
    sum: f64,
    most: f64,
}

impl Sum {
    fn add(&mut self, number: f64) {
        *self = Self { count: self.count + 1, sum: self.sum + number, most: self.most.max(number) };
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    fn most(&self) -> Option<f64> {
        (self.count > 0).then_some(self.most)
    }
}

/// Samples of one device so far.
#[derive(Default)]
struct Samples {
    count: u64,
    mebibytes: Sum,
    watts: Sum,
    percent: Sum,
    /// Samples by whole percents of use.
    by_percent: BTreeMap<u8, u64>,
}

impl Samples {
    fn read(&self, index: u32) -> DeviceUse {
        let all = self.percent.count;
        let bytes = |mebibytes: f64| Bytes((mebibytes * f64::from(1 << 20)) as u64);
        let mut seen = 0;
        let p95 = self.by_percent.iter().find(|(_, count)| {
            seen += **count;
            seen >= all - all / 20
        });
        let low: u64 = self.by_percent.range(..LOW).map(|(_, count)| count).sum();
        DeviceUse {
            index,
            samples: self.count,
            peak_memory: self.mebibytes.most().map(bytes),
            mean_memory: self.mebibytes.mean().map(bytes),
            utilisation: self.percent.mean().map(|percent| percent / 100.0),
            utilisation_p95: p95.map(|(&percent, _)| f64::from(percent) / 100.0),
            low: (all > 0).then(|| low as f64 / all as f64),
            power: self.watts.mean(),
            peak_power: self.watts.most(),
        }
    }
}

#[derive(Default)]
struct Reader {
    form: Option<Form>,
    guessed: bool,
    devices: BTreeMap<u32, Samples>,
    /// Named devices without numbers, in order of appearance.
    named: Vec<String>,
    damaged: u64,
}

impl Reader {
    fn take(&mut self, line: &str) {
        let header = Form::of_header(line);
        // Under the names of `dmon` stand their units.
        if header.is_some() || line.is_empty() || line.starts_with('#') {
            self.form = header.or(self.form.take());
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
        let index = match (text(Column::Device), text(Column::DeviceId)) {
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
        let samples = self.devices.entry(index).or_default();
        samples.count += 1;
        number(Column::Mebibytes).into_iter().for_each(|mebibytes| samples.mebibytes.add(mebibytes));
        number(Column::Watts).into_iter().for_each(|watts| samples.watts.add(watts));
        if let Some(percent) = number(Column::Utilisation) {
            samples.percent.add(percent.min(100.0));
            *samples.by_percent.entry(percent.min(100.0) as u8).or_default() += 1;
        }
    }

    fn close(self) -> Monitor {
        let mut warnings = Vec::new();
        if self.guessed {
            warnings.push("nvidia-smi printed no header: columns are identified by their units".into());
        }
        let has = |column| self.form.as_ref().is_some_and(|form| form.has(column));
        if !has(Column::Device) {
            warnings.push(match self.named.len() {
                0 => "nvidia-smi does not identify devices: all samples count as one device".into(),
                _ => "nvidia-smi does not number devices: they are numbered in order of appearance".into(),
            });
        }
        if self.damaged > 0 {
            warnings.push(format!("skipped {} unreadable lines of nvidia-smi", self.damaged));
        }
        let devices = self.devices.iter().map(|(&index, samples)| samples.read(index));
        Monitor { devices: devices.collect(), warnings }
    }
}

#[cfg(test)]
mod tests;
