//! The process between the daemon and NVIDIA's: it starts NVIDIA's control daemon, waits for it, and ends all of it.
//!
//! The daemon has one thread, which must wait for nobody; NVIDIA's programs may hang, and its server outlives a control
//! daemon that is killed. So they have a process of ours above them that may wait, whose orphans they become. Its standard
//! input is a pipe whose other end the daemon and all servers on the underlay hold: it ends when the last of them is gone,
//! however they went, so that servers of a killed daemon serve their clients to the end. Its standard output is
//! a connection to the daemon, which is told how it goes.
//!
//! Started by `underlay` as a process of its own. Must not know servers or clients.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use daemon_interface::process::ProcessStat;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use rustix::time::Timespec;
use serde_json::{Value, json};
use transport::socket::Connection;

/// How long NVIDIA's control daemon may take until it answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How long one command to it may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(2);

/// How long it may take to end when it was asked to, and again when it was told to by a signal.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// How often is looked whether something has come to pass that tells nobody.
const LOOK: Duration = Duration::from_millis(10);

/// Bytes of NVIDIA's logs that are told of a failure.
const TAIL: usize = 600;

/// Why NVIDIA's control daemon does not serve, as the daemon is told in [`SupervisorMessage::Down`].
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// The program does not say what it is.
    #[error("{} -v: {source}", program.display())]
    Version {
        program: PathBuf,
        source: CommandError,
    },
    /// It would be started beneath itself.
    #[error("{} is OpenMPS' own, not NVIDIA's", .0.display())]
    Ours(PathBuf),
    #[error("{} cannot be started: {source}", program.display())]
    Start {
        program: PathBuf,
        source: std::io::Error,
    },
    #[error("its control daemon ended at once, {status}{logs}")]
    Ended { status: ExitStatus, logs: String },
    #[error("its control daemon does not answer within {ANSWERS_WITHIN:?}{logs}")]
    Silent { logs: String },
    /// The last of those who hold the lease has gone.
    #[error("nobody needs it any more")]
    NotNeeded,
}

/// Why a command to NVIDIA's program gave nothing.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error(transparent)]
    Input(#[from] std::io::Error),
    #[error("it cannot be run: {0}")]
    Run(#[source] std::io::Error),
    #[error("it does not end within {COMMAND_WITHIN:?}")]
    Hangs,
    #[error("{status}: {printed}")]
    Failed { status: ExitStatus, printed: String },
}

/// What the supervisor tells the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorMessage {
    /// NVIDIA's control daemon answers.
    Up {
        /// Its process.
        pid: u32,
        /// Its binary version, as it says.
        version: String,
    },
    /// It cannot be had, or has ended.
    Down {
        /// Why.
        why: String,
    },
}

impl SupervisorMessage {
    fn encode(&self) -> Vec<u8> {
        let value = match self {
            Self::Up { pid, version } => json!({ "pid": pid, "version": version }),
            Self::Down { why } => json!({ "why": why }),
        };
        value.to_string().into_bytes()
    }

    /// What was said; `None` of what no supervisor says.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let text = |name: &str| Some(value[name].as_str()?.to_owned());
        if let Some(why) = text("why") {
            return Some(Self::Down { why });
        }
        let pid = value["pid"].as_u64()?;
        Some(Self::Up {
            pid: pid.try_into().ok()?,
            version: text("version")?,
        })
    }
}

/// Runs this process as the supervisor that [`super::Underlay`] starts: the arguments are NVIDIA's control daemon, the
/// directory that is to go in the end, and what that daemon is started with. The environment is its.
#[must_use]
pub fn main(arguments: &[OsString]) -> ExitCode {
    let is_ours = rustix::net::sockopt::socket_type(std::io::stdout()) == Ok(SocketType::SEQPACKET);
    let (true, [program, whole, options @ ..]) = (is_ours, arguments) else {
        eprintln!(
            "openmps: the underlay is started by the daemon: openmps control --underlay=auto"
        );
        return ExitCode::FAILURE;
    };
    match Supervisor::new(program, whole) {
        Ok(mut supervisor) => {
            let is_well = supervisor.run(options);
            supervisor.end();
            if is_well {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("openmps: the underlay cannot be watched: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Supervisor {
    program: PathBuf,
    whole: PathBuf,
    /// At its end when nobody needs the underlay any more.
    lease: OwnedFd,
    daemon: Connection,
    control: Option<Child>,
    /// A Ctrl-C or a service manager's signal is the daemon's to hear.
    _signals: UnixStream,
}

impl Supervisor {
    fn new(program: &OsStr, whole: &OsStr) -> std::io::Result<Self> {
        let (signals, written) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        written.set_nonblocking(true)?;
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
            signal_hook::low_level::pipe::register(signal.as_raw(), written.try_clone()?)?;
        }
        // What NVIDIA's leaves behind becomes this process's.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let _ = rustix::thread::set_name(c"openmps-underlay");
        Ok(Self {
            program: program.into(),
            whole: whole.into(),
            lease: std::io::stdin().as_fd().try_clone_to_owned()?,
            daemon: Connection::from_fd(std::io::stdout().as_fd().try_clone_to_owned()?),
            control: None,
            _signals: signals,
        })
    }

    /// From the start until nobody needs it. Whether all was well.
    fn run(&mut self, options: &[OsString]) -> bool {
        let word = match self.start(options) {
            Ok(word) => word,
            Err(error) => {
                let why = error.to_string();
                self.send(&SupervisorMessage::Down { why });
                return false;
            }
        };
        self.send(&word);
        let Some(ended) = self.watch() else {
            return true;
        };
        // Its server may go on without it, and those who are its clients.
        let why = format!("its control daemon has ended, {ended}{}", self.tail());
        self.send(&SupervisorMessage::Down { why });
        wait(&self.lease, None, None);
        false
    }

    fn send(&self, word: &SupervisorMessage) {
        // A daemon that is gone need not know.
        let _ = self.daemon.try_send(&word.encode(), &[]);
    }

    /// Starts NVIDIA's control daemon and waits until it answers.
    fn start(&mut self, options: &[OsString]) -> Result<SupervisorMessage, ServeError> {
        let version = self.version()?;
        let failed = |source| ServeError::Start {
            program: self.program.clone(),
            source,
        };
        let errors = File::create(self.log("stderr")).map_err(failed)?;
        let control = Command::new(&self.program)
            .args(options)
            // Some of its versions end at the end of their standard input.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .map_err(failed)?;
        let pid = control.id();
        let control = self.control.insert(control);
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            if let Ok(Some(ended)) = control.try_wait() {
                return Err(ServeError::Ended {
                    status: ended,
                    logs: tail(&self.whole),
                });
            }
            let socket = self.whole.join("pipe/control");
            let answers = socket.exists()
                && ask(&self.program, "get_default_active_thread_percentage").is_ok();
            if answers {
                return Ok(SupervisorMessage::Up { pid, version });
            }
            if Instant::now() >= deadline {
                let logs = tail(&self.whole);
                return Err(ServeError::Silent { logs });
            }
            if wait(&self.lease, None, Some(LOOK)) {
                return Err(ServeError::NotNeeded);
            }
        }
    }

    /// What the program says that it is.
    fn version(&self) -> Result<String, ServeError> {
        let mut command = Command::new(&self.program);
        let said = bounded(command.arg("-v").stdin(Stdio::null())).map_err(|source| {
            ServeError::Version {
                program: self.program.clone(),
                source,
            }
        })?;
        if said.contains("OpenMPS") {
            return Err(ServeError::Ours(self.program.clone()));
        }
        let (_, version) = said.split_once("Binary version:").unwrap_or_default();
        let version = version.split_whitespace().next().unwrap_or_default();
        let known = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
        Ok(if known { version } else { "unknown" }.to_owned())
    }

    /// Waits until nobody needs the underlay (`None`) or NVIDIA's control daemon has ended.
    fn watch(&mut self) -> Option<String> {
        let control = self.control.as_mut()?;
        let pidfd = Pid::from_raw(control.id().cast_signed())
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        let Some(pidfd) = pidfd else {
            return Some("and cannot be watched".to_owned());
        };
        if wait(&self.lease, Some(&pidfd), None) {
            return None;
        }
        let ended = control.wait();
        Some(ended.map_or_else(|error| error.to_string(), |ended| ended.to_string()))
    }

    /// Ends NVIDIA's processes, and removes their files.
    fn end(&mut self) {
        if let Some(mut control) = self.control.take()
            && !matches!(control.try_wait(), Ok(Some(_)))
        {
            let _ = ask(&self.program, "quit");
            // Its end of input is a word too.
            drop(control.stdin.take());
            if ended_within(&mut control, ENDS_WITHIN).is_none()
                && let Some(pid) = Pid::from_raw(control.id().cast_signed())
                && rustix::process::kill_process(pid, Signal::TERM).is_ok()
            {
                ended_within(&mut control, ENDS_WITHIN);
            }
        }
        end_all_children();
        let parts = ["pipe", "log"].map(|name| self.whole.join(name));
        let gone = parts.iter().try_for_each(std::fs::remove_dir_all);
        if let Err(error) = gone.and_then(|()| std::fs::remove_dir(&self.whole)) {
            eprintln!("openmps: cannot remove {}: {error}", self.whole.display());
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.whole.join("log").join(name)
    }

    fn tail(&self) -> String {
        tail(&self.whole)
    }
}

/// Waits until nobody holds the lease any more, which it says, until a process has ended, or so long. What somebody writes
/// into the lease's pipe is nothing.
fn wait(lease: &OwnedFd, process: Option<&OwnedFd>, most: Option<Duration>) -> bool {
    let deadline = most.map(|most| Instant::now() + most);
    loop {
        let mut asked = vec![PollFd::new(lease, PollFlags::empty())];
        asked.extend(process.map(|process| PollFd::new(process, PollFlags::IN)));
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match rustix::event::poll(&mut asked, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) => return !asked[0].revents().is_empty(),
            // Without a look at it, nobody can be known to need it.
            Err(_) => return true,
        }
    }
}

/// The last that NVIDIA's programs wrote, in one line.
fn tail(whole: &Path) -> String {
    let mut told = String::new();
    for name in ["stderr", "control.log", "server.log"] {
        let text = std::fs::read(whole.join("log").join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL)..]).into_owned();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let lines: Vec<&str> = lines.collect();
        if !lines.is_empty() {
            let last = &lines[lines.len().saturating_sub(3)..];
            told += &format!("; its {name}: {}", last.join(" | "));
        }
    }
    told
}

/// Gives NVIDIA's control daemon a command.
fn ask(program: &Path, command: &str) -> Result<String, CommandError> {
    let (reader, mut writer) = std::io::pipe()?;
    // It fits into the pipe.
    writer.write_all(format!("{command}\n").as_bytes())?;
    drop(writer);
    bounded(Command::new(program).stdin(reader))
}

/// Runs a command that may hang, and gives what it printed if it ended well.
fn bounded(command: &mut Command) -> Result<String, CommandError> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(CommandError::Run)?;
    let Some(ended) = ended_within(&mut child, COMMAND_WITHIN) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(CommandError::Hangs);
    };
    let mut said = vec![0; 4096];
    let mut length = 0;
    if let Some(mut out) = child.stdout.take()
        // What it started may have its output still.
        && rustix::io::ioctl_fionbio(&out, true).is_ok()
    {
        length = out.read(&mut said).unwrap_or(0);
    }
    let said = String::from_utf8_lossy(&said[..length]).into_owned();
    match ended.success() {
        true => Ok(said),
        false => Err(CommandError::Failed {
            status: ended,
            printed: said.trim().to_owned(),
        }),
    }
}

fn ended_within(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + within;
    let pid = Pid::from_raw(child.id().cast_signed())?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
    loop {
        if let Ok(Some(ended)) = child.try_wait() {
            return Some(ended);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        match &pidfd {
            Some(pidfd) => drop(transport::socket::poll(&[pidfd.as_fd()], Some(left))),
            None => std::thread::sleep(LOOK.min(left)),
        }
    }
}

/// Kills whatever process is a child of this one, orphans that it was given among them, until there is none. One that the
/// kernel holds is not waited for.
fn end_all_children() {
    let deadline = Instant::now() + ENDS_WITHIN;
    while Instant::now() < deadline {
        for pid in children() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        loop {
            // Of any process group: NVIDIA's server has its own.
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(LOOK);
    }
}

fn children() -> Vec<Pid> {
    let own = std::process::id();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = ProcessStat::of(pid.try_into().ok()?)?;
        (stat.parent == own).then(|| Pid::from_raw(pid))?
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_through() {
        for word in [
            SupervisorMessage::Up {
                pid: 77,
                version: "13000".into(),
            },
            SupervisorMessage::Down {
                why: "a \"reason\"\n".into(),
            },
        ] {
            assert_eq!(SupervisorMessage::decode(&word.encode()), Some(word));
        }
        for junk in ["", "{}", "[1]", r#"{"pid":-1,"version":"1"}"#] {
            assert_eq!(SupervisorMessage::decode(junk.as_bytes()), None);
        }
    }

    #[test]
    fn a_command_that_fails_or_hangs_is_told() {
        let run = |line: &str| bounded(Command::new("sh").args(["-c", line]).stdin(Stdio::null()));
        assert_eq!(run("echo 100.0").unwrap(), "100.0\n");
        let failed = run("echo gone; exit 3").unwrap_err().to_string();
        assert!(failed.contains("gone"), "{failed}");
        assert!(matches!(run("exec sleep 60"), Err(CommandError::Hangs)));
        // What it left behind may keep its output.
        assert_eq!(run("echo done; sleep 5 &").unwrap(), "done\n");
    }

    #[test]
    fn the_end_of_its_logs_is_told_in_one_line() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(tail(root.path()), "");
        std::fs::create_dir(root.path().join("log")).unwrap();
        std::fs::write(root.path().join("log/control.log"), "1\n2\n\n3\n4\n").unwrap();
        assert_eq!(tail(root.path()), "; its control.log: 2 | 3 | 4");
    }
}
