//! What else the machine does before a run: measured for the record, and told once.

use paceline_lab::words;
use paceline_record::Load;
use paceline_system::load;
use paceline_system::tree::Tree;
use paceline_train::Job;

/// Looks before each run of a study.
#[derive(Default)]
pub struct Watch {
    told: bool,
}

impl Watch {
    /// What the machine does now, and a warning if that will disturb the job and none has been given yet. A simulated machine
    /// does nothing else.
    pub fn look(&mut self, job: &Job) -> (Option<Load>, Option<String>) {
        if job.engine == "simulated" {
            return (None, None);
        }
        let load = load::measure(&Tree::new("/"));
        let disturbs = load.and_then(|load| words::load(&job.case(), &load)).filter(|_| !self.told);
        self.told |= disturbs.is_some();
        let warning = disturbs.map(|what| {
            format!("warning: {what}: measured times will include that; `paceline doctor` says more")
        });
        (load, warning)
    }
}
