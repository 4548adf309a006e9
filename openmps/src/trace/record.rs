//! `openmps trace -o PATTERN -- PROGRAM…`: a program run as `openmps run` does, whose client library records.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use trace::name_pattern::{self, Facts};

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
    #[command(flatten)]
    run: run::Arguments,
}

/// What this process knows of those to come.
struct Here;

impl Facts for Here {
    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn host(&self) -> String {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
        name.unwrap_or_default().trim().to_owned()
    }

    fn variable(&self, name: &str) -> Option<String> {
        // The program's processes may have others: which of them have none is for their logs.
        Some(std::env::var(name).unwrap_or_default())
    }
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
    if !name_pattern::tells_processes_apart(pattern) && !pattern.contains("%q") && path.exists() {
        if !arguments.force {
            bail!(
                "{} is there already: give another name, one with %p in it, or --force to write over it",
                path.display()
            );
        }
        std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    let absolute = absolute(pattern)?;
    run::run_with(&arguments.run, &[("OPENMPS_TRACE", OsStr::new(&absolute))])
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
