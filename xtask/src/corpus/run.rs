//! Running a program: under one daemon of our own or on the machine's driver, with a time limit.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::program::Program;
use crate::shell::{cargo, root, run};
use crate::toolkit::Toolkit;

/// How long the daemon may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between looks at a running program.
const INTERVAL: Duration = Duration::from_millis(5);

/// How a program ended.
#[derive(Debug)]
pub enum Outcome {
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
    libraries: PathBuf,
    /// Where the programs' outputs go.
    outputs: PathBuf,
}

impl Runner {
    pub fn native(toolkit: &Toolkit) -> Result<Self> {
        Self::new(toolkit, None)
    }

    pub fn under_openmps(toolkit: &Toolkit) -> Result<Self> {
        run(cargo().args(["build", "--package", "openmps"]))?;
        Self::new(toolkit, Some(Daemon::start()?))
    }

    fn new(toolkit: &Toolkit, daemon: Option<Daemon>) -> Result<Self> {
        let place = if daemon.is_some() {
            "openmps"
        } else {
            "native"
        };
        let outputs = root().join("target/corpus/outputs").join(place);
        fs::create_dir_all(&outputs)?;
        Ok(Self {
            daemon,
            libraries: toolkit.libraries(),
            outputs,
        })
    }

    /// Runs a program to its end or its limit. `recorded` is what it printed on NVIDIA's driver.
    pub fn run(
        &mut self,
        program: &Program,
        path: &Path,
        recorded: Option<&String>,
    ) -> (Outcome, Duration) {
        let start = Instant::now();
        let outcome = match self.try_run(program, path, recorded) {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        (outcome, start.elapsed())
    }

    fn try_run(&mut self, program: &Program, path: &Path, recorded: Option<&String>) -> Result<()> {
        let (out, err) = (
            self.outputs.join(&program.name),
            self.outputs.join(program.name.clone() + ".err"),
        );
        let mut command = match &mut self.daemon {
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
        if let Some(daemon) = &mut self.daemon {
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

/// Waits for a child, and ends it at the limit: then None.
fn end_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(INTERVAL);
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

/// A control daemon in a folder of its own; dropping it ends it.
#[derive(Debug)]
struct Daemon {
    openmps: PathBuf,
    folder: PathBuf,
    child: Child,
}

impl Daemon {
    fn start() -> Result<Self> {
        // Not under target/: a socket's path may have 107 bytes.
        let folder = std::env::temp_dir().join(format!("openmps-corpus-{}", std::process::id()));
        let openmps = root().join("target/debug/openmps");
        let child = Self::spawn(&openmps, &folder)?;
        let mut daemon = Self {
            openmps,
            folder,
            child,
        };
        daemon.wait_until_it_answers()?;
        Ok(daemon)
    }

    fn spawn(openmps: &Path, folder: &Path) -> Result<Child> {
        fs::create_dir_all(folder)?;
        Command::new(openmps)
            .args(["control", "-f"])
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the control daemon")
    }

    fn control(&self, command: &str) -> bool {
        Command::new(&self.openmps)
            .args(["control", command])
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder.join("pipe"))
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.control("get_server_list") {
            ensure!(self.runs(), "the control daemon ended at once");
            ensure!(
                Instant::now() < deadline,
                "the control daemon does not answer"
            );
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    }

    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// A command that runs a program as this daemon's client; starts the daemon again if the last
    /// program was its end.
    fn client(&mut self, program: &Path) -> Result<Command> {
        if !self.runs() {
            self.child = Self::spawn(&self.openmps, &self.folder)?;
            self.wait_until_it_answers()?;
        }
        let mut command = Command::new(&self.openmps);
        command
            .args(["run", "--"])
            .arg(program)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder.join("pipe"));
        Ok(command)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.control("quit");
        if !matches!(end_within(&mut self.child, PATIENCE), Ok(Some(_))) {
            eprintln!("xtask: the control daemon did not quit");
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}
