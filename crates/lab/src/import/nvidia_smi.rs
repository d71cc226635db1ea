//! What `nvidia-smi` prints while a run goes on: `nvidia-smi dmon`, or `--query-gpu=... --format=csv`.
//!
//! ```text
//! # gpu   pwr gtemp    sm   mem    fb          timestamp, index, utilization.gpu [%], memory.used [MiB], power.draw [W]
//! # Idx     W     C     %     %    MB          2019/03/05 14:12:01.533, 0, 97 %, 10941 MiB, 231.35 W
//!     0   231    64    97    41 10941
//! ```
//!
//! A header may come again, `-`, `[N/A]` and `[Not Supported]` stand for nothing. Without a header, units tell columns apart;
//! without units as well, nothing does.

mod columns;

use std::collections::BTreeMap;
use std::path::Path;

use paceline_record::Bytes;

use self::columns::{Column, Form, is_dmon_header, is_query_header, is_unit_row};
use super::lines::Lines;
use super::{ImportError, Imported};

/// More devices than a machine has are taken for damage.
const DEVICES: usize = 1024;

/// How one device was used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceUse {
    /// Its index.
    pub index: u32,
    /// Samples that tell of it.
    pub samples: u64,
    /// The most memory in use; `None` where it is not told.
    pub peak_memory: Option<Bytes>,
    /// Mean share of time in which a kernel ran, from 0 to 1.
    pub utilisation: Option<f64>,
    /// Share of samples in which any kernel ran.
    pub active: Option<f64>,
    /// Mean power in watts.
    pub power: Option<f64>,
    /// Highest power in watts.
    pub peak_power: Option<f64>,
}

/// How the devices of a machine were used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Monitor {
    /// Devices in order of their index.
    pub devices: Vec<DeviceUse>,
    /// What was salvaged, guessed or left out: a sentence each.
    pub warnings: Vec<String>,
}

impl Monitor {
    /// Tells the ranks of a run of one machine what memory they held: device 0 is rank 0's.
    pub fn attach(&self, run: &mut Imported) {
        run.warnings.extend(self.warnings.iter().cloned());
        let mut strangers = 0;
        for device in self.devices.iter().filter(|device| device.peak_memory.is_some()) {
            match run.ranks.iter_mut().find(|rank| rank.rank.0 == device.index) {
                Some(rank) => rank.peak_device = rank.peak_device.max(device.peak_memory),
                None => strangers += 1,
            }
        }
        if strangers > 0 {
            run.warnings.push(format!("{strangers} devices of nvidia-smi belong to no rank: left out"));
        }
        run.warnings.push(
            "nvidia-smi tells the memory of a whole device, whoever held it: device N is taken for rank N's"
                .into(),
        );
    }
}

/// Whether a file that begins so is what `nvidia-smi` prints.
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
            Some(_) => "nvidia-smi printed a header and no samples",
            None => {
                "nothing of nvidia-smi: it has no header, and cells without units (leave out noheader or nounits)"
            }
        };
        return Err(ImportError::bad(path, why));
    }
    reader.damaged += lines.passed_over;
    Ok(reader.close())
}

/// Numbers of one device so far.
#[derive(Default)]
struct Sums {
    samples: u64,
    peak_memory: Option<u64>,
    utilisation: (f64, u64),
    active: u64,
    power: (f64, u64),
    peak_power: f64,
}

#[derive(Default)]
struct Reader {
    form: Option<Form>,
    guessed: bool,
    devices: BTreeMap<u32, Sums>,
    /// Devices that are named and not numbered, in the order in which they occur.
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
        let text = |column| cells.iter().find(|(known, _)| *known == column).map(|&(_, cell)| cell);
        let index = match (text(Column::Index), text(Column::Id)) {
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
        if let Some(mebibytes) = number(Column::Memory) {
            let bytes = (mebibytes * f64::from(1 << 20)) as u64;
            sums.peak_memory = sums.peak_memory.max(Some(bytes));
        }
        if let Some(percent) = number(Column::Utilisation) {
            sums.utilisation = (sums.utilisation.0 + percent / 100.0, sums.utilisation.1 + 1);
            sums.active += u64::from(percent > 0.0);
        }
        if let Some(watts) = number(Column::Power) {
            sums.power = (sums.power.0 + watts, sums.power.1 + 1);
            sums.peak_power = sums.peak_power.max(watts);
        }
    }

    fn close(self) -> Monitor {
        let mut warnings = Vec::new();
        if self.guessed {
            warnings.push("nvidia-smi printed no header: columns are taken by their units".into());
        }
        let has = |column| self.form.as_ref().is_some_and(|form| form.has(column));
        if !has(Column::Index) {
            warnings.push(match self.named.len() {
                0 => "nvidia-smi does not tell devices apart: all samples are taken for one".into(),
                _ => "nvidia-smi does not number devices: numbered in the order in which they occur".into(),
            });
        }
        if self.damaged > 0 {
            warnings.push(format!("{} lines of nvidia-smi cannot be read: passed over", self.damaged));
        }
        let mean = |(sum, count): (f64, u64)| (count > 0).then(|| sum / count as f64);
        let devices = self.devices.iter().map(|(&index, sums)| DeviceUse {
            index,
            samples: sums.samples,
            peak_memory: sums.peak_memory.map(Bytes),
            utilisation: mean(sums.utilisation),
            active: mean((sums.active as f64, sums.utilisation.1)),
            power: mean(sums.power),
            peak_power: (sums.power.1 > 0).then_some(sums.peak_power),
        });
        Monitor { devices: devices.collect(), warnings }
    }
}

#[cfg(test)]
mod tests;
