//! `openmps trace`: time lines: of a program that it runs, of clients that run anyway, tables of them, and several as one.
//!
//! Called by `main`. Must not know a file's form.

mod client_files;
mod clients;
mod files;
mod merge;
mod progress;
mod record;
mod tables;

use std::process::ExitCode;

use anyhow::Result;

#[derive(Debug, clap::Args)]
#[group(id = "trace")]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = HELP
)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    record: record::Arguments,
}

const HELP: &str = "\
  openmps trace -o output.%p -- PROGRAM…     records a program and those that it starts
  openmps trace --all-processes -o output.%p records every client of the daemon, until Ctrl-C
  openmps trace --pid 1234 -o out.json       records one client that runs already
  openmps trace summary output.*             how often and how long each kernel, copy and call ran
  openmps trace merge -o all.json output.*   all of them as one

Files open in Perfetto, chrome://tracing and TensorBoard.";

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Prints nvprof's tables of time lines: how often and how long each kernel, copy and call ran
    Summary(tables::Arguments),
    /// Makes one time line of several, on one clock
    Merge(merge::Arguments),
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.command {
        Some(Command::Summary(arguments)) => tables::run(arguments),
        Some(Command::Merge(arguments)) => merge::run(arguments),
        None => record::run(&arguments.record),
    }
}
