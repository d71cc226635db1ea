//! The header of a benchmark's log.

use std::collections::BTreeMap;

use paceline_record::Case;

/// What the header of a run says; what it leaves out is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The network.
    pub model: Option<String>,
    /// The data.
    pub dataset: Option<String>,
    /// Images per step on all devices.
    pub global_batch: Option<u64>,
    /// Images per step on each device.
    pub device_batch: Option<u64>,
    /// Steps asked for.
    pub batches: Option<u64>,
    /// Number of devices; under Horovod those of all processes.
    pub devices: Option<u32>,
    /// Order of dimensions.
    pub data_format: Option<String>,
    /// The optimiser.
    pub optimizer: Option<String>,
    /// How variables are kept and updated.
    pub variables: Option<String>,
    /// How gradients are summed, if stated.
    pub all_reduce: Option<String>,
    horovod_devices: bool,
}

impl Header {
    /// Reads a line; false if it is not part of the header. The first value counts, because every process prints a header.
    pub(super) fn read(&mut self, line: &str) -> bool {
        if let Some(batch) = line.trim().strip_suffix("per device").filter(|_| line.starts_with(' ')) {
            set(&mut self.device_batch, count(batch));
            return true;
        }
        let Some((key, value)) = line.split_once(':') else { return false };
        let value = value.trim();
        let text = || Some(value.to_owned()).filter(|value| !value.is_empty() && value.len() < 200);
        match key {
            "Model" => set(&mut self.model, text()),
            "Dataset" => set(&mut self.dataset, text()),
            "Batch size" => match value.strip_suffix("per device") {
                Some(batch) => set(&mut self.device_batch, count(batch)),
                None => set(&mut self.global_batch, count(value.trim_end_matches("global"))),
            },
            "Num batches" => set(&mut self.batches, count(value)),
            "Devices" => {
                self.horovod_devices |= value.contains("horovod/");
                set(
                    &mut self.devices,
                    Some(value.matches('\'').count() as u32 / 2).filter(|&devices| devices > 0),
                );
            }
            "Data format" => set(&mut self.data_format, text()),
            "Optimizer" => set(&mut self.optimizer, text()),
            "Variables" => set(&mut self.variables, text()),
            "AllReduce" => set(&mut self.all_reduce, text()),
            _ => return false,
        }
        true
    }

    /// Number of devices: as listed, or the global batch over the batch per device.
    pub(super) fn device_count(&self) -> Option<u32> {
        let shared = || {
            let (all, one) = self.global_batch.zip(self.device_batch)?;
            (one > 0 && all % one == 0).then(|| u32::try_from(all / one).ok())?
        };
        self.devices.or_else(shared).filter(|&devices| devices > 0)
    }

    /// Whether each device has a process of its own.
    pub(super) fn is_horovod(&self) -> bool {
        self.horovod_devices || self.variables.as_deref() == Some("horovod")
    }

    /// The case, as far as the header describes it.
    pub(super) fn case(&self) -> Case {
        let devices = self.device_count().unwrap_or(1);
        let shared = self.global_batch.map(|batch| batch / u64::from(devices));
        let nccl = self.all_reduce.as_deref().is_some_and(|how| how.contains("nccl"));
        let update = self.variables.as_deref().map(|variables| match variables {
            "horovod" => "allreduce",
            "replicated" | "distributed_all_reduce" | "collective_all_reduce" if nccl => "allreduce",
            other => other,
        });
        let settings = [("data", &self.dataset), ("optimizer", &self.optimizer)];
        let settings: BTreeMap<String, String> =
            settings.into_iter().filter_map(|(key, value)| Some((key.into(), value.clone()?))).collect();
        Case {
            model: self.model.clone().unwrap_or_default(),
            engine: Some("tensorflow".into()),
            layout: self.data_format.as_deref().map(str::to_lowercase),
            update: update.map(Into::into),
            workers: devices,
            batch_per_worker: self.device_batch.or(shared).filter(|&batch| batch > 0),
            settings,
            ..Case::default()
        }
    }
}

fn set<T>(field: &mut Option<T>, value: Option<T>) {
    if field.is_none() {
        *field = value;
    }
}

/// A number of images; old versions divide and print `64.0`.
fn count(text: &str) -> Option<u64> {
    let number: f64 = text.trim().parse().ok()?;
    (0.0..1e9).contains(&number).then_some(number as u64)
}
