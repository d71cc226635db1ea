//! What a run means: from the run logs of a study to its numbers, tables and files.
//!
//! ```text
//! case folder -> Run (the logs) -> CaseReport (the numbers) -> Report (all cases, explained) -> tables, pages, files
//! ```

mod case;
pub mod compare;
pub mod csv;
mod error;
pub mod explain;
mod finding;
#[cfg(test)]
mod fixture;
mod folder;
pub mod hosts;
pub mod html;
pub mod markdown;
pub mod membership;
pub mod names;
pub mod numbers;
pub mod origin;
mod report;
pub mod run;
pub mod section;
pub mod sections;
pub mod stats;
mod status;
mod study;
mod table;
pub mod tensorboard;
pub mod terminal;
pub mod tfrecord;
pub mod timeline;
pub mod training;
pub mod words;

pub use case::{CaseReport, Straggler};
pub use error::LabError;
pub use finding::{Finding, Kind, every_advice};
pub use folder::{CaseLogs, Followed, Held, Placed, StudyFolder, write_whole};
pub use report::{Explained, Key, Report};
pub use run::Run;
pub use status::{SoFar, Status};
pub use study::{Machine, Planned, Study};
pub use table::{Align, Column, Table};

/// Version of `study.json` and `report.json`.
pub const SCHEMA: u32 = 2;
