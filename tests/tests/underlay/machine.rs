//! A machine with a driver and an MPS of our making, and what is seen of them.
//!
//! Called by the tests beside it. Must not know what a test wants.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::daemon::{Daemon, is_alive, openmps};
use tests::fake_driver;

pub(crate) const MPS: &str = env!("CARGO_BIN_EXE_nvidia_mps");

/// A machine with a driver and an MPS.
pub(crate) struct Machine {
    pub(crate) folder: tempfile::TempDir,
}

impl Machine {
    /// With the definitions of the driver's text.
    pub(crate) fn new(definitions: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        let machine = Self { folder };
        fake_driver::compile(machine.folder.path(), definitions);
        // By another process: what this one has written, a fork of another test's may have open.
        let copied = Command::new("cp").arg(MPS).arg(machine.program()).status();
        assert!(copied.unwrap().success());
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.path("nvidia-cuda-mps-control")
    }

    pub(crate) fn behave(&self, how: &str) {
        std::fs::write(self.path("behaviour"), how).unwrap();
    }

    /// A daemon on this machine.
    pub(crate) fn daemon(&self, arguments: &[&str], more: &[(&str, &str)]) -> Daemon {
        Daemon::start_as(arguments, &self.environment(more))
    }

    pub(crate) fn environment<'a>(&self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = [
            ("OPENMPS_ENGINE", "nvidia".to_owned()),
            ("OPENMPS_DRIVER", self.shown("libcuda.so.1")),
            ("OPENMPS_NVIDIA_MPS", self.shown("nvidia-cuda-mps-control")),
            ("OPENMPS_UNDERLAY_DIRECTORY", self.shown("underlay")),
        ];
        // For the test's life.
        let own = own.map(|(name, value)| (name, &*value.leak()));
        own.into_iter().chain(more.iter().copied()).collect()
    }

    pub(crate) fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// What NVIDIA's programs were started with.
    pub(crate) fn record(&self) -> Vec<Process> {
        let text = std::fs::read_to_string(self.path("record")).unwrap_or_default();
        text.lines().map(Process::read).collect()
    }

    pub(crate) fn daemons(&self) -> Vec<Process> {
        let mut all = self.record();
        all.retain(|process| process.role == "daemon");
        all
    }

    /// Whether nothing is left of any of them.
    pub(crate) fn is_clean(&self) -> bool {
        self.left().is_empty()
    }

    /// What is left of them: files, and processes with their state.
    pub(crate) fn left(&self) -> Vec<String> {
        let underlay = std::fs::read_dir(self.path("underlay"));
        let files = underlay.into_iter().flatten().flatten();
        let mut left: Vec<String> = files
            .map(|file| file.path().display().to_string())
            .collect();
        for process in self.record().iter().filter(|process| is_alive(process.pid)) {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid));
            left.push(format!("{}: {}", process.role, stat.unwrap_or_default()));
        }
        left
    }
}

/// One of NVIDIA's programs.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) role: String,
    pub(crate) pid: u32,
    pub(crate) arguments: String,
    pub(crate) environment: String,
}

impl Process {
    pub(crate) fn read(line: &str) -> Self {
        let (head, rest) = line.split_once(" [").unwrap();
        let (arguments, environment) = rest.split_once("] ").unwrap();
        let (role, pid) = head.split_once(' ').unwrap();
        Self {
            role: role.to_owned(),
            pid: pid.parse().unwrap(),
            arguments: arguments.to_owned(),
            environment: environment.to_owned(),
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        let mut all = self.environment.split(' ');
        all.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))
    }
}

pub(crate) fn parent_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines();
    let parent = lines.find_map(|line| line.strip_prefix("PPid:"));
    parent.unwrap().trim().parse().unwrap()
}

/// A process's children, those that have ended and wait to be reaped among them.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap();
    let numbers = text
        .split_whitespace()
        .map(|number| number.parse().unwrap());
    numbers.collect()
}

pub(crate) fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

/// A variable of a process's environment.
pub(crate) fn variable_of(pid: u32, name: &str) -> Option<String> {
    let text = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut all = text.split('\0');
    all.find_map(|entry| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

/// What the daemon says of its underlay.
pub(crate) fn underlay(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.control_output(&["underlay", "--json"])).unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn doctor(daemon: &Daemon) -> String {
    let output = Command::new(openmps())
        .arg("doctor")
        .env("CUDA_MPS_PIPE_DIRECTORY", daemon.pipe())
        .output();
    let said = text(&output.unwrap());
    let mut lines = said.lines();
    let line = lines.find(|line| line.contains("underlay"));
    line.unwrap_or_default().to_owned()
}

pub(crate) const BENEATH: &[&str] = &["VERSION=13000", "MPS=1"];

/// A program in the middle of a kernel that does not end.
pub(crate) fn running(daemon: &Daemon, folder: &Path) -> Child {
    let image = folder.join("k.ptx");
    std::fs::write(&image, ".version 7.8\n.visible .entry k() {}").unwrap();
    let mut program = daemon
        .probe(&["kernel", image.to_str().unwrap()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(program.stdout.as_mut().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "running\n", "{}", daemon.server_log());
    program
}

/// A program that has a context and does nothing in it.
pub(crate) fn staying(daemon: &Daemon) -> Child {
    staying_with(daemon, &[])
}

/// As [`staying`], with some environment.
pub(crate) fn staying_with(daemon: &Daemon, environment: &[(&str, &str)]) -> Child {
    let mut program = daemon.probe(&["stay"]);
    program.envs(environment.iter().copied());
    let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
    said_staying(&mut program, daemon);
    program
}

/// Waits until such a program has its context.
pub(crate) fn said_staying(program: &mut Child, daemon: &Daemon) {
    let mut line = String::new();
    let mut said = BufReader::new(program.stdout.as_mut().unwrap());
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "staying\n", "{}", daemon.server_log());
}
