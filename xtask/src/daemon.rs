//! A daemon of the development build for what tests run, in a folder of its own.
//!
//! Used by `corpus`, `mpi`, `python`, `runtimes` and tests of platforms. Must not know which programs become its
//! clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::development_build;
use crate::shell::{INTERVAL, end_within, root};

/// How long the daemon may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A control daemon in a folder of its own; dropping it ends it.
#[derive(Debug)]
pub struct Daemon {
    openmps: PathBuf,
    folder: PathBuf,
    /// How many devices its servers have.
    devices: u32,
    child: Child,
}

impl Daemon {
    /// Builds OpenMPS and starts its daemon, with one device.
    pub fn start() -> Result<Self> {
        Self::with_devices(1)
    }

    /// As [`Daemon::start`], with several devices.
    pub fn with_devices(devices: u32) -> Result<Self> {
        development_build::program("openmps", &["--package", "openmps"])?;
        Self::of_built(devices)
    }

    /// As [`Daemon::with_devices`], of what is built: with other features, most likely.
    pub fn of_built(devices: u32) -> Result<Self> {
        // Not under target/: a socket's path may have 107 bytes.
        let name = format!("openmps-xtask-{}-{devices}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let openmps = root().join("target/debug/openmps");
        let child = Self::spawn(&openmps, &folder, devices)?;
        let mut daemon = Self {
            openmps,
            folder,
            devices,
            child,
        };
        daemon.wait_until_it_answers()?;
        Ok(daemon)
    }

    fn spawn(openmps: &Path, folder: &Path, devices: u32) -> Result<Child> {
        fs::create_dir_all(folder)?;
        Command::new(openmps)
            .args(["control", "-f"])
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"))
            .env("OPENMPS_SOFT_DEVICES", devices.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the control daemon")
    }

    fn control(&self, command: &str) -> Result<String> {
        let output = Command::new(&self.openmps)
            .args(["control", command])
            .env("CUDA_MPS_PIPE_DIRECTORY", self.folder.join("pipe"))
            .stdin(Stdio::null())
            .output()?;
        ensure!(output.status.success(), "{command}: {}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Where programs and containers find it.
    pub fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }

    /// A command of OpenMPS for this daemon.
    pub fn tool(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.openmps);
        command
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe());
        command
    }

    /// How many servers there are.
    pub fn servers(&self) -> Result<usize> {
        Ok(self.control("get_server_list")?.lines().count())
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.servers().is_err() {
            ensure!(self.runs(), "the control daemon ended at once");
            ensure!(
                Instant::now() < deadline,
                "the control daemon does not answer"
            );
            std::thread::sleep(INTERVAL);
        }
        Ok(())
    }

    /// Whether it still does.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// A command that runs a program as this daemon's client; starts the daemon again if the last
    /// program was its end.
    pub fn client(&mut self, program: &Path) -> Result<Command> {
        if !self.runs() {
            self.child = Self::spawn(&self.openmps, &self.folder, self.devices)?;
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
        self.control("quit").ok();
        if !matches!(end_within(&mut self.child, PATIENCE), Ok(Some(_))) {
            eprintln!("xtask: the control daemon did not quit");
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}
