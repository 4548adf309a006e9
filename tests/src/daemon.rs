//! A daemon for one test, in a folder of its own, and programs run under it.
//!
//! Called by tests of whole processes. Must not know what a program under it does.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long anything that should happen soon may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The `openmps` binary, built on first use.
pub fn openmps() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    crate::watchdog::watch();
    PROGRAM.get_or_init(|| build("openmps", "openmps"))
}

/// The test program of `src/bin/probe.rs`, built on first use.
pub fn probe() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build("tests", "probe"))
}

/// Another test program of `src/bin`, built on first use.
pub fn program(name: &str) -> PathBuf {
    crate::watchdog::watch();
    build("tests", name)
}

/// Builds a program of the workspace as the tests were built. For development the software GPU is optimised too, as
/// it is what tests wait for.
fn build(package: &str, program: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("in the workspace");
    let (profile, folder) = match cfg!(debug_assertions) {
        true => ("dev", "target/debug"),
        false => ("release", "target/release"),
    };
    let path = root.join(folder).join(program);
    // `cargo xtask test` builds all programs before, with the features of all crates; with its own alone, as here, this
    // one would be built again, and replaced below the parts that run it.
    if cfg!(debug_assertions) && std::env::var_os("OPENMPS_PROGRAMS_ARE_BUILT").is_some() {
        assert!(path.exists(), "{} is not built", path.display());
        return path;
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", package, "--bin", program])
        .args(["--profile", profile])
        .current_dir(root)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "{program} does not build");
    path
}

/// Gives the daemon of a pipe directory a command and returns what it said.
pub fn control_at(pipe: &Path, arguments: &[&str]) -> Output {
    Command::new(openmps())
        .arg("control")
        .args(arguments)
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .stdin(Stdio::null())
        .output()
        .expect("the control command runs")
}

/// A running control daemon; dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct Daemon {
    folder: TempDir,
    child: Child,
}

impl Daemon {
    /// Starts a daemon with one software device.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a daemon with some environment.
    pub fn start_with(environment: &[(&str, &str)]) -> Self {
        Self::start_as(&[], environment)
    }

    /// Starts a daemon with more arguments, and some environment.
    pub fn start_as(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("mps")
            .tempdir()
            .expect("a folder in /tmp");
        let child = command_in(&folder, arguments, environment)
            .spawn()
            .expect("the daemon starts");
        let daemon = Self { folder, child };
        daemon.wait_until_it_answers();
        daemon
    }

    /// Ends the daemon with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }

    /// Starts a daemon again in the same folder.
    pub fn restart(&mut self) {
        self.restart_as(&[], &[]);
    }

    /// Starts a daemon again in the same folder, with more arguments and some environment.
    pub fn restart_as(&mut self, arguments: &[&str], environment: &[(&str, &str)]) {
        self.child = command_in(&self.folder, arguments, environment)
            .spawn()
            .expect("the daemon starts");
        self.wait_until_it_answers();
    }

    /// Runs a daemon in the same folder that is not to start, and returns what it says.
    pub fn refused(&self, arguments: &[&str], environment: &[(&str, &str)]) -> String {
        let output = command_in(&self.folder, arguments, environment)
            .stderr(Stdio::piped())
            .output()
            .expect("the daemon starts");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Sends the daemon a signal, and waits for its end.
    pub fn signal(&mut self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
        self.wait();
    }

    /// Waits for the end of a daemon that was told to quit.
    pub fn wait(&mut self) {
        eventually("the daemon ends", || {
            let ended = self.child.try_wait().expect("it is a child");
            ended.is_some()
        });
    }

    fn wait_until_it_answers(&self) {
        eventually("the daemon answers", || {
            self.control(&["get_server_list"]).status.success()
        });
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets other users come to its sockets.
    pub fn open_to_others(&self) {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(self.folder.path(), mode).expect("a folder of ours");
    }

    /// Puts a copy of a program where other users can run it.
    pub fn copy_for_others(&self, program: &Path) -> PathBuf {
        let copy = self
            .folder
            .path()
            .join(program.file_name().expect("a program"));
        if !copy.exists() {
            // A link costs nothing, where both lie in one file system.
            fs::hard_link(program, &copy)
                .or_else(|_| fs::copy(program, &copy).map(drop))
                .expect("room for a copy");
        }
        copy
    }

    /// The pipe directory.
    pub fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    /// What the server has logged so far.
    pub fn server_log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log/server.log")).unwrap_or_default()
    }

    /// What the daemon has logged so far.
    pub fn control_log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log/control.log")).unwrap_or_default()
    }

    /// A command that will be a client of this daemon, with our library on its path.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(openmps());
        command
            .args(["run", "--"])
            .arg(program)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe())
            .env("HOME", self.folder.path());
        command
    }

    /// One of openmps' own commands, as the daemon's operator gives them.
    pub fn tool(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(openmps());
        command
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", self.pipe());
        command
    }

    /// The test program with one of its tasks, as a client of this daemon.
    pub fn probe(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(probe());
        command.args(arguments);
        command
    }

    /// Gives the daemon a command and returns what it said.
    pub fn control(&self, arguments: &[&str]) -> Output {
        control_at(&self.pipe(), arguments)
    }

    /// What the daemon prints for a command, which it is to carry out.
    pub fn control_output(&self, arguments: &[&str]) -> String {
        let output = self.control(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    }

    /// The process of the only server.
    pub fn server(&self) -> u32 {
        let output = self.control(&["get_server_list"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("one server, not {text:?}"))
    }

    /// Clients of the only server.
    pub fn clients(&self) -> Vec<u32> {
        let output = self.control(&["get_client_list", &self.server().to_string()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines()
            .map(|line| line.trim().parse().expect("digits only"))
            .collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Clients that a failed test left behind do not hold it up.
        self.control(&["quit", "-t", "1"]);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                self.child.kill().ok();
                self.child.wait().ok();
                if !std::thread::panicking() {
                    panic!("the daemon does not quit");
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn command_in(folder: &TempDir, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    // Under nohup SIGHUP is ignored, and so it would be in the daemon, which keeps to that. What is handled here is
    // not passed on.
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default())
        .expect("SIGHUP may be handled");
    let mut command = Command::new(openmps());
    command
        .args(["control", "-f"])
        .args(arguments)
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"))
        // What servers keep for later ones is no other test's.
        .env("HOME", folder.path())
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Whether a process is there, and no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.starts_with('Z'));
    state == Some(false)
}

/// Waits until something is true.
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !check() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command to its end and returns its output; its failure is the test's.
pub fn succeed(command: &mut Command) -> String {
    let deadline = Instant::now() + PATIENCE;
    let output = loop {
        match command.stdin(Stdio::null()).output() {
            // A program that this test has just written, while another test's thread was between fork and exec and so
            // has it open for writing too.
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            output => break output.expect("the program starts"),
        }
    };
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out.into_owned()
}

/// As [`threads_and_files`], once they stay as many: what a server closes, it closes on a thread of its own.
pub fn settled_threads_and_files(process: u32) -> (usize, usize) {
    let mut last = threads_and_files(process);
    eventually("a process is at rest", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = threads_and_files(process);
        std::mem::replace(&mut last, now) == now
    });
    last
}

/// How many threads and open files a process has. Those that close descriptors do not count: they come with the
/// first that was left in a socket, a few at most, and stay.
pub fn threads_and_files(process: u32) -> (usize, usize) {
    let list = |what| {
        fs::read_dir(format!("/proc/{process}/{what}"))
            .into_iter()
            .flatten()
    };
    let counts = |thread: &PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name != "closer\n")
    };
    let threads = list("task").filter_map(|thread| Some(thread.ok()?.path()));
    (threads.filter(counts).count(), list("fd").count())
}
