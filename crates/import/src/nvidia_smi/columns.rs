//! The columns of nvidia-smi's output.

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Index,
    /// A unique name of the device.
    Id,
    /// Percent of time in which a kernel ran.
    Utilisation,
    /// Memory in use, in mebibytes.
    Memory,
    /// Watts.
    Power,
    Other,
}

/// The layout of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Form {
    columns: Vec<Column>,
    commas: bool,
}

/// Whether a line names the columns of `dmon`.
pub(super) fn is_dmon_header(line: &str) -> bool {
    let names = |name: &str| line.split([' ', ',', '#']).any(|word| word == name);
    line.trim_start().starts_with('#') && names("gpu") && ["pwr", "sm", "fb", "mem"].into_iter().any(names)
}

/// Whether a line holds the units under such names.
pub(super) fn is_unit_row(line: &str) -> bool {
    line.starts_with('#') && !is_dmon_header(line)
}

/// Whether a line names the columns of `--query-gpu`.
pub(super) fn is_query_header(line: &str) -> bool {
    let known = |cell: &str| {
        let name = cell.split('[').next().unwrap_or_default().trim();
        ["utilization.", "memory.", "power.", "temperature.", "clocks.", "pci."]
            .iter()
            .any(|start| name.starts_with(start))
            || ["index", "uuid", "gpu_uuid", "timestamp", "name"].contains(&name)
    };
    line.contains(',') && line.split(',').filter(|cell| known(cell)).count() >= 2
}

impl Form {
    pub fn of_dmon(line: &str) -> Self {
        let words = line.split([' ', ',', '#', '\t']).filter(|word| !word.is_empty());
        let column = |word| match word {
            "gpu" => Column::Index,
            "sm" => Column::Utilisation,
            "fb" => Column::Memory,
            "pwr" => Column::Power,
            _ => Column::Other,
        };
        Self { columns: words.map(column).collect(), commas: line.contains(',') }
    }

    pub fn of_query(line: &str) -> Self {
        let name = |cell: &str| cell.split('[').next().unwrap_or_default().trim().to_owned();
        let column = |cell: &str| match name(cell).as_str() {
            "index" => Column::Index,
            "uuid" | "gpu_uuid" | "pci.bus_id" => Column::Id,
            "utilization.gpu" => Column::Utilisation,
            "memory.used" => Column::Memory,
            "power.draw" | "power.draw.instant" | "power.draw.average" => Column::Power,
            _ => Column::Other,
        };
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
        let column = |(place, cell): (usize, &&str)| {
            if index == Some(place) {
                Column::Index
            } else if first(" %") == Some(place) {
                Column::Utilisation
            } else if ends(" MiB", cell) && only(" MiB") {
                Column::Memory
            } else if first(" W") == Some(place) {
                Column::Power
            } else if cell.starts_with("GPU-") {
                Column::Id
            } else {
                Column::Other
            }
        };
        let form = Self { columns: cells.iter().enumerate().map(column).collect(), commas: true };
        let told =
            [Column::Utilisation, Column::Memory, Column::Power].into_iter().any(|column| form.has(column));
        (cells.len() > 1 && told).then_some(form)
    }

    pub fn has(&self, column: Column) -> bool {
        self.columns.contains(&column)
    }

    /// The cells of a row; `None` if their number differs from the columns.
    pub fn cells<'a>(&self, line: &'a str) -> Option<Vec<(Column, &'a str)>> {
        let cells: Vec<&str> = match self.commas {
            true => line.split(',').map(str::trim).collect(),
            false => line.split_whitespace().collect(),
        };
        (cells.len() == self.columns.len()).then(|| self.columns.iter().copied().zip(cells).collect())
    }
}
