//! The command line.

mod allreduce;
mod bench;
mod colour;
mod doctor;
mod machine;
mod models;
mod outcome;
mod progress;
mod size;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use paceline_train::{clock, measure, worker};

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
    Bench(Box<bench::Options>),
    /// Time all-reduces between worker processes, as nccl-tests does
    Allreduce(allreduce::Options),
    /// List the networks: parameters, tensors, FLOPs, activation bytes
    Models(models::Options),
    /// Say what this machine offers, and what would spoil a measurement on it
    Doctor(doctor::Options),
}

fn main() -> ExitCode {
    let began = clock::now();
    if worker::is_assigned() {
        return outcome::exit(worker::run(began).map_err(Into::into));
    }
    if measure::is_assigned() {
        return outcome::exit(measure::run().map_err(Into::into));
    }
    outcome::exit(match Cli::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Allreduce(options) => allreduce::run(&options),
        Command::Models(options) => models::run(&options),
        Command::Doctor(options) => doctor::run(&options),
    })
}
