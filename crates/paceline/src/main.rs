//! The command line.

mod allreduce;
mod bench;
mod colour;
mod control;
mod data;
mod doctor;
mod eval;
mod explain;
mod hosts;
mod import;
mod load;
mod machine;
mod models;
mod outcome;
mod progress;
mod report;
mod run;
mod screen;
mod settings;
mod train;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use paceline_system::clock;
use paceline_train::{measure, worker};

/// Data-parallel training that tells you where the time went.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a scaling study and report it
    #[command(args_override_self = true)]
    Bench(Box<bench::Options>),
    /// Train one network: data, epochs, tests, checkpoints
    #[command(args_override_self = true)]
    Train(Box<train::Options>),
    /// Say how a running training goes: members, step, images/s, what happened last
    Status(control::StatusOptions),
    /// Ask a running training for another number of workers
    Scale(control::ScaleOptions),
    /// Test a checkpoint on the test pictures of some data
    Eval(eval::Options),
    /// Run a command that trains with PyTorch, follow its ranks, and report where their time went
    #[command(args_override_self = true)]
    Run(run::Options),
    /// Report a study again, or compare several
    Report(report::Options),
    /// Turn other programs' logs and traces into a study
    Import(import::Options),
    /// Explain a study, a trace, a profile, a log, or a table of somebody's runs
    Explain(explain::Options),
    /// Time all-reduces between worker processes or hosts, as nccl-tests does
    Allreduce(allreduce::Options),
    /// Fetch a data set and check it
    Data(data::Options),
    /// List the networks: parameters, tensors, FLOPs, activation bytes
    Models(models::Options),
    /// Say what this machine offers, and what would spoil a measurement on it
    Doctor(doctor::Options),
}

fn main() -> ExitCode {
    let began = clock::now();
    if let Err(error) = outcome::outlive_file_limit() {
        return outcome::exit(Err(error));
    }
    if worker::is_assigned() {
        return match worker::run(began) {
            Ok(worker::Ending::Stopped) => ExitCode::from(worker::STOPPED),
            ended => outcome::exit(ended.map(drop).map_err(Into::into)),
        };
    }
    if let Some(assigned) = paceline_train::hosts::local_assignment() {
        let run = || -> anyhow::Result<()> {
            let (job, meeting) = assigned?;
            hosts::run_local(job, &meeting)
        };
        return outcome::exit(run());
    }
    if measure::is_assigned() {
        return outcome::exit(measure::run().map_err(Into::into));
    }
    if let Err(error) = outcome::end_as_first_process() {
        return outcome::exit(Err(error));
    }
    let command = Cli::command()
        .mut_subcommand("bench", bench::Options::show_defaults)
        .mut_subcommand("train", train::Options::show_defaults)
        .mut_subcommand("allreduce", allreduce::Options::describe);
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    outcome::exit(match cli.command {
        Command::Bench(options) => bench::run(&options),
        Command::Train(options) => train::run(&options),
        Command::Status(options) => control::status(&options),
        Command::Scale(options) => control::scale(&options),
        Command::Eval(options) => eval::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Import(options) => import::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Allreduce(options) => allreduce::run(&options),
        Command::Data(options) => data::run(&options),
        Command::Models(options) => models::run(&options),
        Command::Doctor(options) => doctor::run(&options),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_says_that_report_compares_any_number_of_studies() {
        let help = Cli::command().render_help().to_string();
        assert!(help.contains("Report a study again, or compare several"), "{help}");
    }

    /// Options that an advice names, without their dashes.
    fn options(advice: &str) -> Vec<String> {
        let names = advice.split("--").skip(1);
        let end = |c: char| !c.is_ascii_lowercase() && c != '-';
        names.map(|rest| rest.split(end).next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn every_option_in_an_advice_is_one_of_the_command_that_made_the_study() {
        for name in ["bench", "train"] {
            let cli = Cli::command();
            let command = cli.find_subcommand(name).expect("a command");
            let known: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
            let advice = paceline_lab::every_advice(name);
            let mut named = 0;
            for (advice, option) in advice
                .iter()
                .flat_map(|advice| options(advice).into_iter().map(move |option| (advice, option)))
            {
                assert!(known.contains(&option.as_str()), "{name} has no --{option}: {advice}");
                named += 1;
            }
            assert!(named > 10, "{name}: {named}");
        }
        let cli = Cli::command();
        let run = cli.find_subcommand("run").expect("a command");
        let known: Vec<&str> = run.get_arguments().filter_map(clap::Arg::get_long).collect();
        let advice = paceline_lab::every_advice("run");
        let named: Vec<String> = advice.iter().flat_map(|advice| options(advice)).collect();
        assert!(!named.is_empty() && named.iter().all(|name| known.contains(&name.as_str())), "{named:?}");
        assert!(
            advice.iter().all(|advice| !advice.contains("log.phase")),
            "a script that is followed has no log"
        );
        let others = paceline_lab::every_advice("import");
        assert!(others.iter().all(|advice| options(advice).is_empty()), "{others:?}");
    }
}
