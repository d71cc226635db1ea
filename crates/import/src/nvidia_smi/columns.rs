//! The columns of nvidia-smi's output.

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// The number of a device.
    Device,
    /// A unique name of a device.
    DeviceId,
    /// Percent of time in which a kernel ran.
    Utilisation,
    /// Memory in use, in mebibytes.
    Mebibytes,
    /// Power.
    Watts,
}

use Column::*;

/// A column by the name that nvidia-smi gives it.
fn named(name: &str) -> Option<Column> {
    match name.trim() {
        "index" | "gpu" => Some(Device),
        "uuid" | "gpu_uuid" | "pci.bus_id" | "gpu_bus_id" => Some(DeviceId),
        "sm" | "utilization.gpu" => Some(Utilisation),
        "fb" | "memory.used" => Some(Mebibytes),
        "pwr" | "power.draw" | "power.draw.instant" => Some(Watts),
        _ => None,
    }
}

/// What the columns of rows hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Form(Vec<Option<Column>>);

/// The cells of a line: between commas or, without any, between spaces.
fn split(line: &str) -> Vec<&str> {
    match line.contains(',') {
        true => line.split(',').map(str::trim).collect(),
        false => line.split_whitespace().collect(),
    }
}

impl Form {
    /// Columns by a header, that of `dmon` after `#` or that of `--query-gpu`; `None` if the line is none.
    pub fn of_header(line: &str) -> Option<Self> {
        let of_dmon = line.trim_start().strip_prefix('#');
        let column = |cell: &str| named(cell.split('[').next().unwrap_or_default());
        let form = Self(split(of_dmon.unwrap_or(line)).into_iter().map(column).collect());
        let whole = if of_dmon.is_some() { form.has(Device) } else { line.contains(',') };
        (whole && form.tells()).then_some(form)
    }

    /// Columns identified by the units of a row without a header; `None` if no cell has a unit.
    pub fn guess(line: &str) -> Option<Self> {
        let cells = split(line);
        let ends = |unit: &str, cell: &str| {
            cell.strip_suffix(unit).is_some_and(|rest| rest.trim().parse::<f64>().is_ok())
        };
        let only = |unit: &str| cells.iter().filter(|cell| ends(unit, cell)).count() == 1;
        let first = |unit: &str| cells.iter().position(|cell| ends(unit, cell));
        let index = cells.iter().position(|cell| cell.parse::<u32>().is_ok());
        let column = |(place, cell): (usize, &&str)| match cell {
            _ if index == Some(place) => Some(Device),
            _ if first(" %") == Some(place) => Some(Utilisation),
            _ if ends(" MiB", cell) && only(" MiB") => Some(Mebibytes),
            _ if first(" W") == Some(place) => Some(Watts),
            _ if cell.starts_with("GPU-") => Some(DeviceId),
            _ => None,
        };
        let form = Self(cells.iter().enumerate().map(column).collect());
        (line.contains(',') && form.tells()).then_some(form)
    }

    pub fn has(&self, column: Column) -> bool {
        self.0.contains(&Some(column))
    }

    fn tells(&self) -> bool {
        [Utilisation, Mebibytes, Watts].into_iter().any(|column| self.has(column))
    }

    /// The cells of a row; `None` if their number differs from the columns.
    pub fn cells<'a>(&self, line: &'a str) -> Option<Vec<(Option<Column>, &'a str)>> {
        let cells = split(line);
        (cells.len() == self.0.len()).then(|| self.0.iter().copied().zip(cells).collect())
    }
}
