//! A study in a file: `study.toml` says the same as the options of the command line, under the same names.
//!
//! ```toml
//! models = ["mobilenet_v2", "resnet50"]
//! workers = [1, 2, 4]
//! update = ["allreduce", "sharded"]
//! examples = 6400
//! fresh = true
//! ```

use std::fs;
use std::path::Path;

use clap::{Args, Command};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, Deserializer, Error};

use super::options::{Options, StudyOptions};
use crate::outcome::Usage;
use crate::settings::Settings;
use crate::values::Fill;

/// Adds what a file says to options of the command line, which win over it.
pub fn fill(options: &mut Options, path: &Path) -> Result<(), Usage> {
    let text = fs::read_to_string(path)
        .map_err(|error| Usage::because(format!("cannot read {}", path.display()), error))?;
    let file = read(&text).map_err(|fault| Usage::new(fault.describe(path, &text)))?;
    options.settings.fill(file.settings);
    options.study.fill(file.study);
    Ok(())
}

/// What a file says.
struct File {
    settings: Settings,
    study: StudyOptions,
}

/// What is wrong with a file, and at which byte.
struct Fault {
    why: String,
    at: Option<usize>,
}

impl Fault {
    fn describe(&self, path: &Path, text: &str) -> String {
        let line = self.at.and_then(|at| text.get(..at)).map(|before| 1 + before.matches('\n').count());
        let line = line.map_or_else(String::new, |line| format!(", line {line}"));
        format!("{}{line}: {}", path.display(), self.why)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let why = error.message().trim().replace('\n', ", ");
        Self { why, at: error.span().map(|span| span.start) }
    }
}

fn read(text: &str) -> Result<File, Fault> {
    let table = rename(DeTable::parse(text)?)?;
    let settings = Settings {
        work: group(&table)?,
        learning: group(&table)?,
        computing: group(&table)?,
        elastic: group(&table)?,
        hosts: group(&table)?,
    };
    settings.check_length().map_err(|error| Fault { why: error.to_string(), at: None })?;
    Ok(File { settings, study: group(&table)? })
}

/// One group of options; keys of others are theirs to read.
fn group<T: DeserializeOwned>(table: &Spanned<DeTable<'_>>) -> Result<T, Error> {
    T::deserialize(Deserializer::from(table.clone()))
}

/// Keys are named as options, with either dashes or underscores. Others are refused.
fn rename(table: Spanned<DeTable<'_>>) -> Result<Spanned<DeTable<'_>>, Fault> {
    let known = Options::augment_args(Command::new("bench"));
    let known: Vec<String> = known
        .get_arguments()
        .map(|argument| argument.get_id().as_str().replace('_', "-"))
        .filter(|name| name != "config")
        .collect();
    let span = table.span();
    let mut renamed = DeTable::new();
    for (key, value) in table.into_inner() {
        let name = key.get_ref().replace('_', "-");
        if !known.contains(&name) {
            let why = format!("unknown key '{}'; the keys are {}", key.get_ref(), known.join(", "));
            return Err(Fault { why, at: Some(key.span().start) });
        }
        renamed.insert(Spanned::new(key.span(), name.into()), value);
    }
    Ok(Spanned::new(span, renamed))
}
