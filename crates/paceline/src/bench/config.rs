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

/// Adds what a file says to options that were given on the command line, which win over it.
pub fn read(path: &Path, given: &ArgMatches) -> Result<Options, Usage> {
    let refuse = |why: &str| Usage::new(format!("{}: {why}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| refuse(&error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| refuse(error.to_string().trim()))?;
    let command = Options::augment_args(Command::new("study"));
    let mut arguments: Vec<OsString> = vec!["study".into()];
    for (name, value) in &table {
        let id = name.replace('-', "_");
        let known = command.get_arguments().find(|argument| argument.get_id() == id.as_str());
        let argument = known.filter(|_| id != "config").ok_or_else(|| {
            let names = command.get_arguments().map(|argument| argument.get_id().as_str().replace('_', "-"));
            let names: Vec<String> = names.filter(|name| name != "config").collect();
            refuse(&format!("unknown key '{name}'; use {}", names.join(", ")))
        })?;
        if given.value_source(&id) == Some(ValueSource::CommandLine) {
            continue;
        }
        let takes_value = !matches!(argument.get_action(), ArgAction::SetTrue);
        let words = words(value).ok_or_else(|| refuse(&format!("'{name}' is neither a value nor a list")))?;
        match (argument.get_long(), value) {
            (None, _) => arguments.extend(words.into_iter().map(OsString::from)),
            (Some(_), Value::Boolean(false)) if !takes_value => {}
            (Some(long), Value::Boolean(true)) if !takes_value => arguments.push(format!("--{long}").into()),
            (Some(_), _) if !takes_value => return Err(refuse(&format!("'{name}' is true or false"))),
            (Some(long), _) => arguments.push(format!("--{long}={}", words.join(",")).into()),
        }
    }
    // Its own values must make sense before those of the command line are laid over them.
    let mut matches = command.clone().try_get_matches_from(&arguments).map_err(|error| refuse(&reason(&error)))?;
    let file = Options::from_arg_matches_mut(&mut matches).map_err(|error| refuse(&reason(&error)))?;
    let mut options = file;
    options.update_from_given(given).map_err(|error| Usage::new(reason(&error)))?;
    Ok(options)
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
