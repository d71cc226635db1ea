//! `paceline data`: fetch a data set, check it, and lay it down whole or not at all.

mod cifar10;
mod members;
mod records;
mod source;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Options of `paceline data`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    set: DataSet,
}

#[derive(Subcommand)]
enum DataSet {
    /// CIFAR-10 in its binary version: 60,000 pictures of 32x32 in ten classes, 184 MB
    Cifar10(cifar10::Options),
}

/// Fetches what was asked for.
pub fn run(options: &Options) -> Result<()> {
    match &options.set {
        DataSet::Cifar10(options) => cifar10::run(options),
    }
}
