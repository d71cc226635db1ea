//! A study in a file: `study.toml` says the same as the options of the command line, under the same names.
//!
//! ```toml
//! models = ["mobilenet_v2", "resnet50"]
//! workers = [1, 2, 4]
//! update = ["allreduce", "sharded"]
//! examples = 6400
//! fresh = true
//! ```

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};
use toml::Value;

use super::options::Options;
use crate::outcome::Usage;

/// Options that mean the same thing: one on the command line is said instead of the other in the file.
const INSTEAD: [&[&str]; 2] = [&["steps", "examples", "epochs"], &["batch", "global_batch"]];

/// Adds what a file says to options that were given on the command line, which win over it.
pub fn read(
    path: &Path,
    given: &ArgMatches,
    words: impl Iterator<Item = OsString>,
) -> Result<Options, Usage> {
    let refuse = |why: &str| Usage::new(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refuse(&error.to_string()))?;
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| refuse(error.to_string().trim()))?;
    let command = Options::augment_args(Command::new("study"));
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let mut all: Vec<OsString> = vec!["study".into()];
    let mut wanted = all.clone();
    for (name, value) in &table {
        let (id, said) = argument(&command, name, value).map_err(|why| refuse(&why))?;
        let instead = INSTEAD.iter().filter(|group| group.contains(&id.as_str())).copied().flatten();
        if !is_given(&id) && !instead.clone().any(|other| is_given(other)) {
            wanted.extend(said.iter().cloned());
        }
        all.extend(said);
    }
    // What the file says must make sense by itself, or the blame would fall on the command line.
    command.clone().try_get_matches_from(&all).map_err(|error| refuse(&reason(&error)))?;
    wanted.extend(words);
    let mut matches = command.try_get_matches_from(&wanted).map_err(|error| Usage::new(reason(&error)))?;
    Options::from_arg_matches_mut(&mut matches).map_err(|error| Usage::new(reason(&error)))
}

/// The option that a key names, and what one would say for it on the command line.
fn argument(command: &Command, name: &str, value: &Value) -> Result<(String, Vec<OsString>), String> {
    let id = name.replace('-', "_");
    let known = command.get_arguments().find(|argument| argument.get_id() == id.as_str());
    let argument = known.filter(|_| id != "config").ok_or_else(|| {
        let names = command.get_arguments().map(|argument| argument.get_id().as_str().replace('_', "-"));
        let names: Vec<String> = names.filter(|name| name != "config").collect();
        format!("unknown key '{name}'; use {}", names.join(", "))
    })?;
    let words = words(value).ok_or_else(|| format!("'{name}' is neither a value nor a list of values"))?;
    let is_flag = matches!(argument.get_action(), ArgAction::SetTrue);
    let said = match (argument.get_long(), value) {
        (None, _) => words.into_iter().map(OsString::from).collect(),
        (Some(long), Value::Boolean(true)) if is_flag => vec![format!("--{long}").into()],
        (Some(_), Value::Boolean(false)) if is_flag => Vec::new(),
        (Some(_), _) if is_flag => return Err(format!("'{name}' is true or false")),
        (Some(long), _) => vec![format!("--{long}={}", words.join(",")).into()],
    };
    Ok((id, said))
}

/// A value, or several, as words.
fn words(value: &Value) -> Option<Vec<String>> {
    let word = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(true) => Some("yes".into()),
        Value::Boolean(false) => Some("no".into()),
        _ => None,
    };
    match value {
        Value::Array(values) => values.iter().map(word).collect(),
        value => Some(vec![word(value)?]),
    }
}

/// What clap has to say, without its advice on the command line.
fn reason(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error: ").replace('\n', " ")
}
