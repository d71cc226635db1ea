//! The header of a benchmark's log.

use std::collections::BTreeMap;

use paceline_record::Case;

/// What is read of a header.
const KEYS: [&str; 8] =
    ["Model", "Dataset", "Batch size", "Devices", "Data format", "Optimizer", "Variables", "AllReduce"];

/// The second line of the batch, which has no key.
const PER_DEVICE: &str = "per device";

/// The longest value that is kept, except that of the devices.
const LONGEST: usize = 200;

/// What the header of a run says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header(BTreeMap<&'static str, String>);

impl Header {
    /// Reads a line, whatever a logger put in front of it; false if it is not part of the header. The first value counts,
    /// because every process prints a header.
    pub(super) fn read(&mut self, line: &str) -> bool {
        let keyed = KEYS.into_iter().find_map(|key| Some((key, value_of(line, key)?)));
        let told = keyed.or_else(|| Some((PER_DEVICE, bare_count(line)?)));
        let Some((key, value)) = told.filter(|(key, value)| *key == "Devices" || value.len() < LONGEST)
        else {
            return false;
        };
        let key = if key == "Batch size" && value.ends_with(PER_DEVICE) { PER_DEVICE } else { key };
        self.0.entry(key).or_insert_with(|| value.into());
        true
    }

    /// Adds what another process printed, and this one did not.
    pub(super) fn add(&mut self, other: Self) {
        for (key, value) in other.0 {
            self.0.entry(key).or_insert(value);
        }
    }

    /// Whether it names the network.
    pub(super) fn has_model(&self) -> bool {
        self.0.contains_key("Model")
    }

    /// Whether it has lines that only this benchmark prints: pages name a model, a dataset and a batch, too.
    pub(super) fn is_own(&self) -> bool {
        ["Model", "Devices", "Variables"].iter().all(|key| self.0.contains_key(key))
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Number of devices, under Horovod those of all processes: as listed, or the global batch over the batch per device.
    pub(super) fn devices(&self) -> Option<u32> {
        let listed = self.text("Devices").map(|list| list.matches('\'').count() as u64 / 2);
        let shared = || {
            let (all, one) = (count(self.text("Batch size")?)?, count(self.text(PER_DEVICE)?)?);
            (one > 0 && all % one == 0).then(|| all / one)
        };
        u32::try_from(listed.filter(|&devices| devices > 0).or_else(shared)?).ok()
    }

    /// Whether each device has a process of its own.
    pub(super) fn is_horovod(&self) -> bool {
        self.text("Devices").is_some_and(|list| list.contains("horovod/"))
            || self.text("Variables") == Some("horovod")
    }

    /// The case, as far as the header describes it.
    pub(super) fn case(&self) -> Case {
        let devices = self.devices().unwrap_or(1).max(1);
        let batch = self.text(PER_DEVICE).and_then(count);
        let shared = self.text("Batch size").and_then(count).map(|batch| batch / u64::from(devices));
        let nccl = self.text("AllReduce").is_some_and(|how| how.contains("nccl"));
        let update = self.text("Variables").map(|variables| match variables {
            "horovod" => "allreduce",
            "replicated" | "distributed_all_reduce" | "collective_all_reduce" if nccl => "allreduce",
            other => other,
        });
        let settings = [("data", "Dataset"), ("optimizer", "Optimizer")];
        Case {
            model: self.text("Model").unwrap_or_default().into(),
            engine: Some("tensorflow".into()),
            layout: self.text("Data format").map(str::to_lowercase),
            update: update.map(Into::into),
            workers: devices,
            batch_per_worker: batch.or(shared).filter(|&batch| batch > 0),
            settings: settings
                .into_iter()
                .filter_map(|(name, key)| Some((name.into(), self.text(key)?.into())))
                .collect(),
            ..Case::default()
        }
    }
}

/// The value of a key at the beginning of a line, or behind what a logger put there.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (before, after) = line.split_once(key)?;
    let value = after.strip_prefix(':')?.trim();
    (is_prefix(before) && !value.is_empty()).then_some(value)
}

/// The count of a line such as `             64 per device`.
fn bare_count(line: &str) -> Option<&str> {
    let rest = line.trim_end().strip_suffix(PER_DEVICE)?.trim_end();
    let number = rest.rsplit([' ', '\t', ']', ':']).next()?;
    (is_prefix(rest.strip_suffix(number)?) && count(number).is_some()).then_some(number)
}

/// Whether that is nothing, or ends like what loggers and launchers put before a line.
fn is_prefix(text: &str) -> bool {
    let text = text.trim_end();
    text.is_empty() || text.ends_with([']', ':', '>', '|'])
}

/// A number of images; old versions divide and print `64.0`.
fn count(text: &str) -> Option<u64> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (0.0..1e9).contains(&number).then_some(number as u64)
}
