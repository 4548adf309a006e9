//! A control daemon for one command's own use, in a folder of its own, gone when the command ends.
//!
//! Called by `run`, `report` and `demo`; others start this binary by its `own_program`. Must not know what runs
//! under it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

/// How long a daemon may take to accept, and to leave when asked.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running control daemon; dropping it ends the daemon, its server, and removes its folder.
#[derive(Debug)]
pub struct PrivateDaemon {
    folder: TempDir,
    child: Child,
}

impl PrivateDaemon {
    /// Starts a daemon in the foreground as a child. `configure` may add environment and redirect
    /// its output.
    pub fn start(configure: impl FnOnce(&mut Command)) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("openmps-")
            .tempdir()
            .context("cannot make a folder for a private daemon")?;
        let mut command = Command::new(own_program()?);
        command.args(["control", "-f"]).stdin(Stdio::null());
        set_directories(&mut command, folder.path());
        // That is for the programs: a daemon would count anew what it leaves, and they would choose again.
        command.env_remove("CUDA_VISIBLE_DEVICES");
        configure(&mut command);
        let child = command.spawn().context("cannot start the control daemon")?;
        let mut daemon = Self { folder, child };
        daemon.wait_until_it_accepts()?;
        Ok(daemon)
    }

    /// The daemon's folder; the command may keep files of its own in it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its pipe directory.
    pub fn pipe(&self) -> PathBuf {
        pipe_directory(self.folder.path())
    }

    /// Where its servers write their log.
    pub fn server_log(&self) -> PathBuf {
        self.folder.path().join("log/server.log")
    }

    /// Makes a program a client of this daemon.
    pub fn make_client(&self, command: &mut Command) {
        set_directories(command, self.folder.path());
    }

    /// Takes the daemon's standard output, if `configure` asked for a pipe.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    fn wait_until_it_accepts(&mut self) -> Result<()> {
        let socket = pipe_directory(self.folder.path()).join("control");
        let deadline = Instant::now() + PATIENCE;
        while daemon_interface::connect(&socket, None).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the control daemon ended at once ({status})");
            }
            if Instant::now() > deadline {
                bail!("the control daemon does not accept on {}", socket.display());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for PrivateDaemon {
    fn drop(&mut self) {
        // SIGTERM is the daemon's `quit`. It may have had its own Ctrl-C already.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                self.child.kill().ok();
                self.child.wait().ok();
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// This very program, also where it was moved or deleted since.
pub fn own_program() -> Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    let path = std::fs::read_link(link).context("cannot find this program's own file")?;
    Ok(if path.exists() { path } else { link.to_owned() })
}

fn pipe_directory(folder: &Path) -> PathBuf {
    folder.join("pipe")
}

fn set_directories(command: &mut Command, folder: &Path) {
    command
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe_directory(folder))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"));
}
