//! `openmps trace`: time lines: tables of them, and several as one.

mod files;
mod merge;
mod tables;

use std::process::ExitCode;

use anyhow::Result;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Prints nvprof's tables of time lines: how often and how long each kernel, copy and call ran
    Summary(tables::Arguments),
    /// Makes one time line of several, on one clock
    Merge(merge::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Command::Summary(arguments) => tables::run(arguments),
        Command::Merge(arguments) => merge::run(arguments),
    }
}
