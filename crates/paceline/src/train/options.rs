//! What `paceline train` can be asked for.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Command};
use paceline_train::{Every, Job, Length};

use crate::settings::Settings;
use crate::values::Epochs;

/// Options of `paceline train`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The network (see `paceline models`)
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    pub model: Option<String>,
    /// Resume from a checkpoint, or from the newest of a training's folder. Options you don't give keep their values from
    /// the checkpoint; the number of workers, the strategy, the length and the learning rate may change. More workers than
    /// shards cut each step into more shards, and so does --shards: weights then differ from those of the training as it was
    #[arg(long, value_name = "PATH", conflicts_with = "fresh")]
    pub resume: Option<PathBuf>,
    /// With --resume, where this machine cannot compute as the training did: go on with its own instruction set; weights
    /// then differ in the last digits
    #[arg(long, requires = "resume")]
    pub new_numerics: bool,
    /// Write a checkpoint after every so many epochs, and at the end; 0 for the end alone
    #[arg(long, value_name = "E")]
    pub checkpoint_every: Option<Epochs>,
    /// Keep the last so many checkpoints
    #[arg(long, value_name = "K")]
    pub keep: Option<NonZeroUsize>,
    /// Folder of the run [default: study-N here; with --resume, the training's own]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Start over: replace what the folder holds
    #[arg(long)]
    pub fresh: bool,
    /// Print report.json to standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub settings: Settings,
}

impl Options {
    /// Adds the defaults to a command's help.
    pub fn show_defaults(command: Command) -> Command {
        let job = Job::training("");
        let mut own = vec![("workers", job.workers.to_string()), ("threads", "cores / workers".to_owned())];
        if let Length::Epochs(epochs) = job.length {
            own.push(("epochs", epochs.to_string()));
        }
        own.extend(job.milestones.eval.map(|every| ("eval_every", every.0.to_string())));
        if let Some(saving) = job.milestones.saving {
            own.push(("checkpoint_every", saving.every.0.to_string()));
            own.push(("keep", saving.keep.to_string()));
        }
        Settings::show_defaults(command, &own)
    }

    /// When the job is tested and saved.
    pub fn set_milestones(&self, job: &mut Job) {
        if let Some(epochs) = self.settings.learning.eval_every {
            job.milestones.eval = Some(Every(epochs.0));
        }
        if let Some(saving) = &mut job.milestones.saving {
            saving.every = self.checkpoint_every.map_or(saving.every, |epochs| Every(epochs.0));
            saving.keep = self.keep.unwrap_or(saving.keep);
        }
    }
}
