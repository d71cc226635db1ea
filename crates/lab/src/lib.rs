//! What a run means: from the run logs of a study to its numbers, tables and files.
//!
//! ```text
//! case folder -> Run (the logs) -> CaseReport (the numbers) -> Report (all cases, compared) -> tables, report.json
//! ```

mod case;
mod error;
mod folder;
mod report;
pub mod run;
pub mod stats;
mod study;
mod table;
pub mod terminal;

pub use case::{CaseReport, CommWaitSplit, Memory, Rate, Steady};
pub use error::LabError;
pub use folder::StudyFolder;
pub use report::Report;
pub use run::Run;
pub use study::{Machine, Planned, Study};
pub use table::{Align, Table};

/// Version of `study.json` and `report.json`.
pub const SCHEMA: u32 = 1;
