//! Everything that CI and a developer run, tools included.
//!
//! Owns the command line; each subcommand's work is in the file of its name, which knows no arguments but its own.

mod ci;
mod corpus;
mod coverage;
mod daemon;
mod delays;
mod development_build;
mod fetch;
mod fuzz;
mod images;
mod import_cycles;
mod kernels;
mod kubernetes;
mod line_coverage;
mod links;
mod minimum_rust;
mod miri;
mod mpi;
mod package;
mod parts;
mod platforms;
mod process_tree;
mod python;
mod reviewed;
mod runtimes;
mod safety_comments;
mod shell;
mod skipped;
mod slurm;
mod test_program;
mod toolkit;
mod variables;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "What CI and developers run")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Builds everything and runs every test: unit, whole-process, loom, fuzz smoke, documentation, and
    /// programs in CUDA C++, with MPI, and in Python
    Test {
        /// Run the CUDA programs with runtimes of other releases too, from 11.8 to 13.5
        #[arg(long)]
        all_toolkits: bool,
        /// Only what a developer wants between edits: unit tests, formatting, papers
        #[arg(long, conflicts_with_all = ["all_toolkits", "platforms", "strict"])]
        quick: bool,
        /// Run what `platforms` runs too
        #[arg(long)]
        platforms: bool,
        /// Fail if any part is skipped, as on a machine that should have everything
        #[arg(long)]
        strict: bool,
    },
    /// Runs real containers: Docker Compose, podman, CDI, Cloudpods' daemon, Kubernetes, Slurm, packages
    Platforms {
        /// Only tests whose name contains this
        #[arg(default_value = "")]
        filter: String,
        /// Seconds that all may take: what would take longer than is left is skipped
        #[arg(long, value_name = "SECONDS")]
        within: Option<u64>,
        /// Fail if any of them is skipped
        #[arg(long)]
        strict: bool,
        /// Runs the one of this name in this process, and writes to this file how it ended
        #[arg(long, hide = true)]
        answer: Option<PathBuf>,
    },
    /// What CI runs: formatting, clippy and cargo-deny, then `test`, with those of `platforms` that this
    /// machine allows
    Ci,
    /// Runs the loom models of the ring and its bell
    Loom,
    /// Runs unit tests in Miri
    Miri {
        /// Only crates whose name contains this
        #[arg(default_value = "")]
        filter: String,
    },
    /// Runs the crates' tests with delays by chance where threads meet, which finds races
    Delays {
        /// Only crates whose name contains this
        #[arg(default_value = "")]
        filter: String,
        /// How often
        #[arg(long, default_value_t = 1)]
        rounds: u32,
    },
    /// Compares the lines of each crate that its own unit tests run with xtask/line-coverage.txt
    LineCoverage {
        /// Only crates whose name contains this
        #[arg(default_value = "")]
        filter: String,
        /// Write the file instead
        #[arg(long)]
        update: bool,
    },
    /// Runs each fuzz target for a while, or one of them for a night: `fuzz --sessions 1000000`
    Fuzz {
        /// Whole sessions with a live server, so many, and no other target
        #[arg(long, conflicts_with_all = ["seconds", "filter"])]
        sessions: Option<u64>,
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Only targets whose name contains this
        #[arg(default_value = "")]
        filter: String,
    },
    /// Builds and runs the CUDA programs of tests/programs
    Corpus(corpus::Arguments),
    /// Runs one program with CUDA's runtimes of every release
    Runtimes,
    /// Builds and runs the MPI programs of tests/mpi
    Mpi,
    /// Runs the Python programs of tests/python
    Python {
        /// Only programs whose name contains this
        #[arg(default_value = "")]
        filter: String,
    },
    /// Runs twenty classic kernels on the software GPU, by PoCL and in plain Rust, and prints a table
    Kernels(kernels::Arguments),
    /// Makes the container images in target/images, from scratch
    Images(images::Arguments),
    /// Runs a one-node cluster of Kubernetes 1.20 and pods with shares of a GPU on it
    Kubernetes,
    /// Runs jobs with shares of a GPU under a real Slurm
    Slurm,
    /// Prints the files of each crate that name each other in a circle
    Cycles,
    /// Adds the foreign crates of today's lock files to supply-chain/reviewed.txt, as not yet reviewed
    Reviewed,
    /// Makes a .deb and a Python wheel in target/packages
    Package(package::Arguments),
    /// Writes docs/coverage.md and docs/nvml-functions.md from their tables
    Coverage,
    /// Checks that links and paths in the documents, and in comments, name what is in the tree
    Links,
    /// Runs one of cargo's test programs, for so long at most
    #[command(hide = true)]
    TestProgram {
        /// The program and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        words: Vec<OsString>,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().task {
        Task::Test { quick: true, .. } => ci::quick(),
        Task::Test {
            quick: false,
            all_toolkits,
            platforms,
            strict,
        } => {
            let within = platforms.then_some(platforms::NO_LIMIT);
            let result = ci::test(all_toolkits, within);
            for (is_asked, option, what) in [
                (
                    all_toolkits,
                    "--all-toolkits",
                    "CUDA's runtimes of other releases",
                ),
                (
                    platforms,
                    "--platforms",
                    "containers, Kubernetes, Slurm, packages",
                ),
            ] {
                if !is_asked {
                    println!("not asked for: {what} ({option})");
                }
            }
            skipped::finish(strict, result)
        }
        Task::Platforms {
            filter,
            within,
            strict,
            answer: None,
        } => {
            let within = within.map_or(platforms::NO_LIMIT, Duration::from_secs);
            skipped::finish(strict, platforms::platforms(&filter, within))
        }
        Task::Platforms {
            filter,
            answer: Some(answer),
            ..
        } => platforms::one(&filter, &answer),
        Task::Ci => skipped::finish(false, ci::all()),
        Task::Loom => ci::loom(),
        Task::Delays { filter, rounds } => delays::delays(&filter, rounds),
        Task::LineCoverage { filter, update } => line_coverage::line_coverage(&filter, update),
        Task::Miri { filter } => miri::miri(&filter),
        Task::Fuzz {
            sessions: Some(count),
            ..
        } => fuzz::sessions(count),
        Task::Fuzz {
            seconds, filter, ..
        } => fuzz::run(seconds, &filter),
        Task::Cycles => import_cycles::print(),
        Task::Reviewed => reviewed::write(),
        Task::Corpus(arguments) => skipped::finish(false, corpus::corpus(&arguments)),
        Task::Runtimes => runtimes::runtimes(),
        Task::Mpi => mpi::mpi(),
        Task::Python { filter } => skipped::finish(false, python::python(&filter)),
        Task::Kernels(arguments) => kernels::kernels(&arguments),
        Task::Images(arguments) => images::images(&arguments),
        Task::Kubernetes => skipped::finish(
            false,
            platforms::platforms("kubernetes", platforms::NO_LIMIT),
        ),
        Task::Slurm => skipped::finish(false, platforms::platforms("slurm", platforms::NO_LIMIT)),
        Task::Package(arguments) => package::package(&arguments),
        Task::Coverage => coverage::write(),
        Task::Links => links::check(),
        Task::TestProgram { words } => test_program::run(&words),
    }
}
