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

/// What tells how a device was used.
const USE: [Column; 3] = [Utilisation, Mebibytes, Watts];

/// The layout of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Form {
    columns: Vec<Option<Column>>,
    commas: bool,
}

/// Whether a line names the columns of `dmon`.
pub(super) fn is_dmon_header(line: &str) -> bool {
    let form = Form::of_dmon(line);
    line.trim_start().starts_with('#') && form.has(Device) && form.tells()
}

/// Whether a line holds the units under such names.
pub(super) fn is_unit_row(line: &str) -> bool {
    line.starts_with('#') && !is_dmon_header(line)
}

/// Whether a line names the columns of `--query-gpu`.
pub(super) fn is_query_header(line: &str) -> bool {
    line.contains(',') && Form::of_query(line).tells()
}

impl Form {
    pub fn of_dmon(line: &str) -> Self {
        let words = line.split([' ', ',', '#', '\t']).filter(|word| !word.is_empty());
        Self { columns: words.map(named).collect(), commas: line.contains(',') }
    }

    pub fn of_query(line: &str) -> Self {
        let column = |cell: &str| named(cell.split('[').next().unwrap_or_default());
        Self { columns: line.split(',').map(column).collect(), commas: true }
    }

    /// Columns identified by the units of a row without a header; `None` if no cell has a unit.
    pub fn guess(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
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
        let form = Self { columns: cells.iter().enumerate().map(column).collect(), commas: true };
        (cells.len() > 1 && form.tells()).then_some(form)
    }

    pub fn has(&self, column: Column) -> bool {
        self.columns.contains(&Some(column))
    }

    fn tells(&self) -> bool {
        USE.into_iter().any(|column| self.has(column))
    }

    /// The cells of a row; `None` if their number differs from the columns.
    pub fn cells<'a>(&self, line: &'a str) -> Option<Vec<(Option<Column>, &'a str)>> {
        let cells: Vec<&str> = match self.commas {
            true => line.split(',').map(str::trim).collect(),
            false => line.split_whitespace().collect(),
        };
        (cells.len() == self.columns.len()).then(|| self.columns.iter().copied().zip(cells).collect())
    }
}
