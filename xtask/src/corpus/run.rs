//! Running a program: under one daemon of our own or on the machine's driver, with a time limit.
//!
//! Called by `corpus`. Must not judge what was printed: that is compared there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::program::Program;
use crate::daemon::Daemon;
use crate::shell::{end_within, root};

/// How a program ended.
#[derive(Debug)]
pub enum ProgramOutcome {
    Failed(String),
    NotBuilt(String),
    NotRun,
    Passed,
    Skipped(String),
}

/// Runs programs one after another.
#[derive(Debug)]
pub struct Runner {
    /// None: the machine's own driver.
    daemon: Option<Daemon>,
    /// One whose servers have several devices, for programs that want them; and how many.
    several: Option<(u32, Daemon)>,
    libraries: PathBuf,
    /// Where the programs' outputs go.
    outputs: PathBuf,
}

impl Runner {
    /// On this machine's driver; `libraries` has the shared runtime.
    pub fn native(libraries: PathBuf) -> Result<Self> {
        Self::new(libraries, None)
    }

    /// Under a daemon of its own.
    pub fn under_openmps(libraries: PathBuf) -> Result<Self> {
        Self::new(libraries, Some(Daemon::start()?))
    }

    fn new(libraries: PathBuf, daemon: Option<Daemon>) -> Result<Self> {
        let place = if daemon.is_some() {
            "openmps"
        } else {
            "native"
        };
        let outputs = root().join("target/corpus/outputs").join(place);
        fs::create_dir_all(&outputs)?;
        Ok(Self {
            daemon,
            several: None,
            libraries,
            outputs,
        })
    }

    /// Runs a program to its end or its limit. `recorded` is what it printed on NVIDIA's driver.
    pub fn run(
        &mut self,
        program: &Program,
        path: &Path,
        recorded: Option<&String>,
    ) -> (ProgramOutcome, Duration) {
        let start = Instant::now();
        let outcome = match self.try_run(program, path, recorded) {
            Ok(()) => ProgramOutcome::Passed,
            Err(error) => ProgramOutcome::Failed(format!("{error:#}")),
        };
        (outcome, start.elapsed())
    }

    /// The daemon for a program that wants so many devices, if programs run under one.
    fn daemon_with(&mut self, devices: u32) -> Result<Option<&mut Daemon>> {
        if devices <= 1 || self.daemon.is_none() {
            return Ok(self.daemon.as_mut());
        }
        if self.several.as_ref().is_none_or(|(has, _)| *has != devices) {
            self.several = Some((devices, Daemon::with_devices(devices)?));
        }
        Ok(self.several.as_mut().map(|(_, daemon)| daemon))
    }

    fn try_run(&mut self, program: &Program, path: &Path, recorded: Option<&String>) -> Result<()> {
        let (out, err) = (
            self.outputs.join(&program.name),
            self.outputs.join(program.name.clone() + ".err"),
        );
        let mut daemon = self.daemon_with(program.devices)?;
        let mut command = match &mut daemon {
            Some(daemon) => daemon.client(path)?,
            None => Command::new(path),
        };
        let mut child = command
            .env("LD_LIBRARY_PATH", &self.libraries)
            .envs(
                program
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()
            .context("cannot start it")?;
        let status = end_within(&mut child, program.limit)?;
        let printed = String::from_utf8_lossy(&fs::read(&out)?).into_owned();
        let said = String::from_utf8_lossy(&fs::read(&err)?).into_owned();
        if let Some(daemon) = self.daemon_with(program.devices)? {
            ensure!(daemon.runs(), "the daemon is gone");
        }
        let Some(status) = status else {
            bail!("no end within {} s", program.limit.as_secs());
        };
        let last = printed.lines().last().unwrap_or_default();
        if !status.success() || last != "PASS" {
            let errors = said.lines().last().unwrap_or_default();
            bail!("{status}: {last} {errors}");
        }
        match recorded {
            Some(recorded) => same_lines(&printed, recorded),
            None => Ok(()),
        }
    }
}

fn same_lines(printed: &str, recorded: &str) -> Result<()> {
    let (mut ours, mut theirs) = (printed.lines(), recorded.lines());
    loop {
        match (ours.next(), theirs.next()) {
            (None, None) => return Ok(()),
            (ours, theirs) if ours == theirs => {}
            (ours, theirs) => bail!(
                "prints `{}`, on NVIDIA's driver `{}`",
                ours.unwrap_or_default(),
                theirs.unwrap_or_default()
            ),
        }
    }
}
