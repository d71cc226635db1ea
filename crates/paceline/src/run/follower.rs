//! What a Python process is given to be followed: files that Python finds by itself, and where to write.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use paceline_record::Nanos;
use serde::Serialize;
use tempfile::TempDir;

/// The files of the package, as they were when this program was built.
const FILES: &[(&str, &str)] = &[
    ("__init__.py", include_str!("../../python/__init__.py")),
    ("clock.py", include_str!("../../python/clock.py")),
    ("collectives.py", include_str!("../../python/collectives.py")),
    ("ddp.py", include_str!("../../python/ddp.py")),
    ("files.py", include_str!("../../python/files.py")),
    ("follow.py", include_str!("../../python/follow.py")),
    ("hooks.py", include_str!("../../python/hooks.py")),
    ("lightning.py", include_str!("../../python/lightning.py")),
    ("listener.py", include_str!("../../python/listener.py")),
    ("log.py", include_str!("../../python/log.py")),
    ("machine.py", include_str!("../../python/machine.py")),
    ("recorder.py", include_str!("../../python/recorder.py")),
    ("roots.py", include_str!("../../python/roots.py")),
    ("scheduling.py", include_str!("../../python/scheduling.py")),
    ("sitecustomize.py", include_str!("../../python/sitecustomize.py")),
    ("step.py", include_str!("../../python/step.py")),
    ("study.py", include_str!("../../python/study.py")),
    ("training.py", include_str!("../../python/training.py")),
    ("transformers.py", include_str!("../../python/transformers.py")),
];

/// What Python runs by itself when it starts.
const STARTER: &str = "sitecustomize.py";

/// The package in a folder of its own, for as long as this lives.
pub struct Follower {
    folder: TempDir,
}

/// What a process has to know.
#[derive(Serialize)]
pub struct Task<'a> {
    /// Folder that ranks write their logs to.
    pub out: &'a Path,
    /// The moment before the command was started.
    pub spawn: Nanos,
    /// Every so many steps are measured.
    pub sample: u32,
    /// What to call the network; the script's own name if `None`.
    pub model: Option<&'a str>,
    /// Samples a step on each worker, if the data does not tell.
    pub batch: Option<u64>,
}

impl Follower {
    /// Writes the package down.
    pub fn write() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("paceline-").tempdir()?;
        let package = folder.path().join("paceline");
        fs::create_dir(&package)?;
        for (name, text) in FILES {
            fs::write(package.join(name), text)?;
        }
        let starter = FILES.iter().find(|(name, _)| *name == STARTER);
        let (_, starter) = starter.expect("invariant: it is one of them");
        fs::write(folder.path().join(STARTER), starter)?;
        Ok(Self { folder })
    }

    /// What a command is started with beside the environment that it would have anyway.
    pub fn environment(&self, task: &Task<'_>) -> serde_json::Result<Vec<(&'static str, OsString)>> {
        let mut path = self.folder.path().as_os_str().to_owned();
        if let Some(before) = std::env::var_os("PYTHONPATH").filter(|before| !before.is_empty()) {
            path.push(":");
            path.push(before);
        }
        // A path that is no text cannot be said.
        let task = serde_json::to_string(task)?;
        Ok(vec![("PYTHONPATH", path), ("PACELINE_RUN", task.into())])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_file_of_the_package_is_left_out() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let there: BTreeSet<String> = fs::read_dir(package)
            .expect("the package")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("a plain name"))
            .filter(|name| name.ends_with(".py"))
            .collect();
        let taken: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(there, taken);
    }
}
