//! A daemon that a cell of the fault matrix may spoil, and the programs under it.
//!
//! Used by the matrix alone. Must not know which wrong is done.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a word is waited for: a driver may take a second to tell of a fault, and a busy machine many more.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whose daemon and server a cell has.
#[derive(Clone, Debug)]
pub enum Sharing {
    /// OpenMPS, by its program, on one of its engines.
    OpenMps {
        /// The program.
        openmps: PathBuf,
        /// `soft` or `nvidia`.
        engine: &'static str,
        /// Whether all clients ask to be fenced.
        fenced: bool,
        /// Whether another server takes over the clients of one that ends.
        failover: bool,
    },
    /// NVIDIA's MPS, which is on the path.
    NvidiaMps,
}

impl Sharing {
    /// Its name in the table.
    pub fn name(&self) -> String {
        let Self::OpenMps {
            engine,
            fenced,
            failover,
            ..
        } = self
        else {
            return "NVIDIA MPS".into();
        };
        let parts = [
            (*engine == "soft", ", software GPU"),
            (*fenced, ", fenced"),
            (*failover, ", failover"),
        ];
        let parts = parts.iter().filter(|(is, _)| *is).map(|(_, name)| *name);
        std::iter::once("OpenMPS").chain(parts).collect()
    }
}

/// A daemon in a folder of its own; dropping it ends daemon and servers.
#[derive(Debug)]
pub(super) struct Scene {
    sharing: Sharing,
    /// The program `faults`.
    program: PathBuf,
    folder: TempDir,
    daemon: Child,
}

impl Scene {
    /// Starts a daemon, one whose disk is full if that is asked for: its logs lie where nothing can be written.
    /// The options are OpenMPS's.
    pub(super) fn start(
        sharing: &Sharing,
        program: &Path,
        options: &[&str],
        is_disk_full: bool,
    ) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("mps")
            .tempdir()
            .expect("a folder in /tmp");
        for part in ["pipe", "log"] {
            std::fs::create_dir(folder.path().join(part)).expect("a folder of ours");
        }
        if is_disk_full {
            for log in ["control.log", "server.log", "events.jsonl"] {
                symlink("/dev/full", folder.path().join("log").join(log)).expect("a new name");
            }
        }
        let mut command = control(sharing);
        set(&mut command, sharing, folder.path());
        if let Sharing::OpenMps { failover, .. } = sharing {
            command.args(options);
            if *failover && !options.contains(&"--failover") {
                command.arg("--failover");
            }
        }
        let daemon = command
            .arg("-f")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let scene = Self {
            sharing: sharing.clone(),
            program: program.to_owned(),
            folder,
            daemon,
        };
        let until = Instant::now() + PATIENCE;
        while scene.control("get_server_list").is_none() {
            assert!(Instant::now() < until, "the daemon does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        scene
    }

    /// Gives the daemon a command; what it said, if it did it.
    pub(super) fn control(&self, line: &str) -> Option<String> {
        let mut command = control(&self.sharing);
        set(&mut command, &self.sharing, self.folder.path());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut input = child.stdin.take()?;
        // A daemon that is gone reads nothing, and the status says so.
        writeln!(input, "{line}").ok();
        drop(input);
        let output = child.wait_with_output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    /// The process of the first server.
    pub(super) fn server(&self) -> Option<i32> {
        let asked = self.control("get_server_list")?;
        asked.split_whitespace().next()?.parse().ok()
    }

    /// The server that has a client: there may be an earlier one, which takes no more.
    pub(super) fn server_of(&self, client: i32) -> Option<i32> {
        let servers = self.control("get_server_list")?;
        let client = client.to_string();
        let mut servers = servers.split_whitespace();
        let its = servers.find(|server| {
            let clients = self.control(&format!("get_client_list {server}"));
            clients.is_some_and(|clients| clients.split_whitespace().any(|word| word == client))
        });
        its?.parse().ok()
    }

    /// The daemon's process.
    pub(super) fn daemon(&self) -> i32 {
        Pid::from_child(&self.daemon).as_raw_nonzero().get()
    }

    /// What the logs have; nothing if the disk is full.
    pub(super) fn log(&self) -> String {
        ["control.log", "server.log"]
            .iter()
            .map(|name| self.folder.path().join("log").join(name))
            // The end of /dev/full never comes.
            .filter(|path| path.symlink_metadata().is_ok_and(|file| file.is_file()))
            .filter_map(|path| std::fs::read(path).ok())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .collect()
    }

    /// Starts the program as a client.
    pub(super) fn client(&self, words: &[&str]) -> Client {
        self.client_in(&[], words)
    }

    /// Starts it as a client whose kernels may run for half a second.
    pub(super) fn limited_client(&self, words: &[&str]) -> Client {
        self.client_in(&[("OPENMPS_KERNEL_TIME_LIMIT", "500ms")], words)
    }

    fn client_in(&self, environment: &[(&str, &str)], words: &[&str]) -> Client {
        let mut command = match &self.sharing {
            Sharing::OpenMps {
                openmps, fenced, ..
            } => {
                let mut command = Command::new(openmps);
                command.args(["run", "--"]).arg(&self.program);
                if *fenced {
                    command.env("OPENMPS_ISOLATION", "fenced");
                }
                command
            }
            Sharing::NvidiaMps => Command::new(&self.program),
        };
        set(&mut command, &self.sharing, self.folder.path());
        let mut child = command
            .args(words)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let output = child.stdout.take().expect("it is piped");
        let (send, lines) = channel();
        // Ends with the program's output.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Client {
            input: child.stdin.take(),
            child,
            lines,
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let server = self.server();
        self.control("quit -t 1");
        let until = Instant::now() + Duration::from_secs(5);
        while matches!(self.daemon.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if matches!(self.daemon.try_wait(), Ok(None)) {
            self.daemon.kill().ok();
            self.daemon.wait().ok();
            // The daemon had it as its child, and has not ended it.
            if let Some(server) = server {
                signal(server, Signal::KILL);
            }
        }
    }
}

/// A program under the daemon; dropping it kills it.
#[derive(Debug)]
pub(super) struct Client {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Client {
    /// Its process.
    pub(super) fn pid(&self) -> i32 {
        Pid::from_child(&self.child).as_raw_nonzero().get()
    }

    /// Says a line to it.
    pub(super) fn tell(&mut self) {
        if let Some(input) = &mut self.input {
            // It may have ended.
            writeln!(input, "go").ok();
        }
    }

    /// Its next line, or why none came: `killed` or `crashed SIGNAL` if a signal ended it, `ended` with its status if it
    /// ended otherwise, `silent` if it says nothing.
    pub(super) fn next(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => return line,
            Err(RecvTimeoutError::Timeout) => return "silent".into(),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Ok(Some(status)) = self.child.try_wait() {
                return match status.signal() {
                    Some(libc::SIGKILL) => "killed".into(),
                    Some(signal) => format!("crashed {signal}"),
                    None => format!("ended {status}"),
                };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        "silent".into()
    }

    /// Its last line, if it has ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.lines.try_recv() {
            Ok(line) if line == "running" => None,
            Ok(line) => Some(line),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(self.next()),
        }
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Its last line, or how it ended without one.
    pub(super) fn last(&mut self) -> String {
        self.tell();
        loop {
            let line = self.next();
            if !["ready", "running", "in the middle"].contains(&&*line) {
                return line;
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Sends a process a signal until it is gone: the first SIGSEGV from outside only takes a handler away, where
/// there is one for faults of instructions.
pub(super) fn end_by(pid: i32, which: Signal) {
    let until = Instant::now() + PATIENCE;
    // A zombie has no memory any more.
    let lives = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        status.is_ok_and(|text| text.contains("VmRSS"))
    };
    while lives() && Instant::now() < until {
        signal(pid, which);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a process of the scene a signal, if it is still there.
pub(super) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        kill_process(pid, signal).ok();
    }
}

fn control(sharing: &Sharing) -> Command {
    match sharing {
        Sharing::OpenMps { openmps, .. } => {
            let mut command = Command::new(openmps);
            command.arg("control");
            command
        }
        Sharing::NvidiaMps => Command::new("nvidia-cuda-mps-control"),
    }
}

fn set(command: &mut Command, sharing: &Sharing, folder: &Path) {
    command
        .env("CUDA_MPS_PIPE_DIRECTORY", folder.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", folder.join("log"))
        .env("HOME", folder);
    if let Sharing::OpenMps { engine, .. } = sharing {
        // A small device is soon full.
        command
            .env("OPENMPS_ENGINE", engine)
            .env("OPENMPS_SOFT_MEMORY", "1G");
    }
}
