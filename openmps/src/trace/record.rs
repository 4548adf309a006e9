//! `openmps trace -o PATTERN`: a program run as `openmps run` does, whose client library records; or [clients](super::clients) that
//! run anyway.
//!
//! Called by `trace`. Must not record itself: client libraries do, or the daemon's servers.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use control::directories::{DEFAULT_PIPE_DIRECTORY, named_pipe_directory};
use trace::name_pattern::{self, Facts};

use super::clients::{self, RecordingRequest};
use crate::run;

// By default a group is called as its type, and so is that of what `openmps run` takes.
#[derive(Debug, clap::Args)]
#[group(id = "record")]
pub struct Arguments {
    /// Where each process writes its time line: %p is its number, %h the host, %q{NAME} a variable of its
    /// environment, %% a percent sign
    #[arg(
        short,
        long,
        value_name = "PATTERN",
        default_value = "openmps-trace.%p.json"
    )]
    output: String,
    /// Write over a file that is there, where the pattern names but one
    #[arg(short, long)]
    force: bool,
    /// Record every client of the daemon in place of a program: those that run, and those that come until Ctrl-C
    #[arg(long, visible_alias = "all", conflicts_with_all = ["pid", "program"])]
    all_processes: bool,
    /// Record the client of this process id in place of a program, until Ctrl-C or its end
    #[arg(long, value_name = "PID", conflicts_with = "program", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// With --all-processes or --pid: end after so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "program", value_parser = seconds)]
    seconds: Option<Duration>,
    /// The daemon's pipe directory, in place of CUDA_MPS_PIPE_DIRECTORY
    #[arg(long, value_name = "DIR")]
    pipe_directory: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present_any = ["all_processes", "pid"]
    )]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse().map_err(|_| anyhow!("a number of seconds"))?;
    match seconds > 0.0 {
        true => Duration::try_from_secs_f64(seconds).map_err(|_| anyhow!("that is too long")),
        false => bail!("more than 0 seconds"),
    }
}

/// What this process knows of those to come.
struct Here;

impl Facts for Here {
    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn host(&self) -> String {
        host_name()
    }

    fn variable(&self, name: &str) -> Option<String> {
        // The program's processes may have others: which of them have none is for their logs.
        Some(std::env::var(name).unwrap_or_default())
    }
}

/// The machine's or container's name.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.unwrap_or_default().trim().to_owned()
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let pattern = &arguments.output;
    let name = name_pattern::expand(pattern, &Here)
        .with_context(|| format!("-o {pattern} names no file"))?;
    let path = PathBuf::from(name);
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Where a variable names the folder, the processes may have others.
    if !folder.is_dir() && !pattern.contains("%q") {
        bail!("there is no folder {} for -o {pattern}", folder.display());
    }
    // With several clients it is the beginning of their names.
    let is_one = !arguments.all_processes
        && !name_pattern::tells_processes_apart(pattern)
        && !pattern.contains("%q");
    if is_one && path.exists() {
        if !arguments.force {
            bail!(
                "{} is there already: give another name, one with %p in it, or --force to write over it",
                path.display()
            );
        }
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    if arguments.program.is_empty() {
        let named = arguments.pipe_directory.clone();
        let named = named.or_else(named_pipe_directory);
        let directory = named.unwrap_or_else(|| DEFAULT_PIPE_DIRECTORY.into());
        return clients::record(&RecordingRequest {
            socket: &directory.join("control"),
            pid: arguments.pid,
            time: arguments.seconds,
            pattern,
            force: arguments.force,
        });
    }
    let absolute = absolute(pattern)?;
    let program = run::Arguments {
        pipe_directory: arguments.pipe_directory.clone(),
        program: arguments.program.clone(),
    };
    run::run_with(&program, &[("OPENMPS_TRACE", OsStr::new(&absolute))])
}

/// The pattern from the root on: the program may change its folder.
fn absolute(pattern: &str) -> Result<String> {
    if pattern.starts_with('/') {
        return Ok(pattern.to_owned());
    }
    let here = std::env::current_dir().context("the current folder is gone")?;
    let here = here
        .to_str()
        .context("the current folder's name is no text: name the file from the root on")?;
    Ok(format!("{}/{pattern}", here.replace('%', "%%")))
}
