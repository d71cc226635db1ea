//! What `paceline bench` can be asked for.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Command};
use paceline_lab::sections::Rows;
use paceline_train::{Job, Simulation, devices};
use serde::Deserialize;

use crate::machine;
use crate::settings::Settings;
use crate::values::{Fill, Int, List, fill_all};

/// Options of `paceline bench`. Several values with commas between them make several cases, and several such options the
/// product of all.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// A file that says the same as these options, as `workers = [1, 2]`; options given here win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub study: StudyOptions,
    #[command(flatten)]
    pub settings: Settings,
}

/// Options of a study, beside the settings of its jobs.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct StudyOptions {
    /// Networks (see `paceline models`) [default: mobilenet_v2 resnet50]
    #[arg(value_name = "MODEL")]
    #[serde(deserialize_with = "crate::values::names")]
    pub models: Vec<String>,
    /// What stays fixed when workers are added: weak, --batch on each worker; strong, --global-batch on all together
    /// [default: strong if --global-batch is given, else weak]
    #[arg(long, value_name = "weak|strong")]
    pub scaling: Option<List<ScalingKind>>,
    /// Run each case so many times, all runs in an order drawn from --seed [default: 1]
    #[arg(long, value_name = "K")]
    #[serde(deserialize_with = "crate::values::one")]
    pub repeat: Option<Int<1, 10_000>>,
    /// The machine of --engine simulated, as straggler=1:1.5,bandwidth=2; an unknown key is answered with all of them
    #[arg(long, value_name = "KEY=VALUE,...")]
    #[serde(deserialize_with = "crate::values::one")]
    pub simulate: Option<Simulation>,
    /// Let one worker exchange with itself, to see what an exchange costs without waiting for others
    #[arg(long)]
    pub exchange_alone: bool,
    /// Time each layer and print the slowest, or all of them
    #[arg(long, value_name = "ROWS|all", num_args = 0..=1, require_equals = true, default_missing_value = "20")]
    #[serde(deserialize_with = "crate::values::one")]
    pub profile: Option<LayerRows>,
    /// Folder of the study; one that was interrupted resumes there [default: study-N here]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Start over: replace the study that the folder holds
    #[arg(long)]
    pub fresh: bool,
    /// Print report.json to standard output, and nothing else
    #[arg(long)]
    pub json: bool,
}

fill_all!(StudyOptions { models, scaling, repeat, simulate, exchange_alone, profile, out, fresh, json });

/// What stays fixed when workers are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingKind {
    /// The batch of each worker.
    Weak,
    /// The batch of all together.
    Strong,
}

impl FromStr for ScalingKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "weak" => Ok(Self::Weak),
            "strong" => Ok(Self::Strong),
            _ => Err(format!("'{text}' is neither weak nor strong")),
        }
    }
}

/// How many layers a profile shows.
#[derive(Clone, Copy, Debug)]
pub struct LayerRows(pub Rows);

impl FromStr for LayerRows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self(Rows::All)),
            _ => {
                let rows = text.parse().map(Rows::Top).map(Self);
                rows.map_err(|_| format!("'{text}' is neither a number of layers nor all"))
            }
        }
    }
}

impl Options {
    /// Adds the defaults to a command's help.
    pub fn show_defaults(command: Command) -> Command {
        let own = [
            ("workers", "1, 2, 4 ... up to the cores, or the GPUs".to_owned()),
            ("global_batch", "with --scaling strong, 64 times the most workers".to_owned()),
            ("steps", Job::new("").steps.to_string()),
            ("threads", "cores / the most workers, the same for every case".to_owned()),
        ];
        Settings::show_defaults(command, &own)
    }

    /// How often each case runs.
    pub fn repeats(&self) -> u32 {
        self.study.repeat.map_or(1, |repeat| repeat.0 as u32)
    }

    /// Numbers of workers where none are given: the powers of two up to the cores; where only GPUs compute, up to those.
    pub fn usual_workers(&self) -> Vec<Int<1, 1024>> {
        let engines = self.settings.computing.engine.as_ref();
        let most = match engines.is_some_and(|List(engines)| engines.iter().all(|engine| engine == "cuda")) {
            // A machine without any is told so when the engine is opened.
            true => devices().unwrap_or(1).max(1),
            false => machine::granted(),
        };
        let most = match self.settings.hosts.hosts {
            // Each host has its part of the cores.
            Some(hosts) if self.settings.hosts.local => {
                return vec![Int((most as u64 / u64::from(hosts.max)).max(1))];
            }
            Some(_) => return vec![Int(most as u64)],
            None => most,
        };
        (0..10).map(|power| Int(1 << power)).take_while(|workers| workers.0 as usize <= most).collect()
    }
}
