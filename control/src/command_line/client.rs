//! The command-line client: one connection to the daemon for each command.
//!
//! Called by the prompt, by `lib`, and by tools of `openmps` that ask a daemon. Must not know a command's meaning:
//! a line goes, an answer comes.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use daemon_interface::{ConnectError, Untrusted};
use protocol::control_messages::{FEATURE_REMARK, Hello, Packet, Purpose, VERSION, fingerprint};
use transport::socket::SocketError;

/// What scripts look for.
pub const NO_DAEMON: &str = "Cannot find MPS control daemon process";

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens.
    #[error("{NO_DAEMON}")]
    NoDaemon,
    /// The connection failed.
    #[error("{0}")]
    Socket(SocketError),
    /// Somebody listens who may not be a daemon.
    #[error("{0}")]
    Untrusted(Untrusted),
    /// The daemon refused, in its words.
    #[error("{0}")]
    Refused(String),
    /// The daemon answered something else.
    #[error("the daemon's answer was not understood")]
    Answer,
}

impl From<SocketError> for AskError {
    fn from(error: SocketError) -> Self {
        if error.is_nobody_listening() {
            Self::NoDaemon
        } else {
            Self::Socket(error)
        }
    }
}

impl From<ConnectError> for AskError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Socket(error) => error.into(),
            ConnectError::Untrusted(error) => Self::Untrusted(error),
        }
    }
}

/// What a command came to.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// For standard output.
    output: String,
    /// For standard error: lines.
    remarks: String,
    /// The exit status.
    exit: u8,
}

impl Reply {
    /// Prints it, and gives the exit status.
    pub(crate) fn print(&self) -> u8 {
        let _ = std::io::stdout().write_all(self.output.as_bytes());
        eprint!("{}", self.remarks);
        self.exit
    }
}

/// Has one command carried out. Gives its output and its exit status.
///
/// # Errors
/// When there is no daemon at the socket, or it went away.
pub fn ask(socket: &Path, line: &str) -> Result<(String, u8), AskError> {
    ask_with_remark(socket, line).map(|said| (said.output, said.exit))
}

/// As [`ask`], with what is for people only.
///
/// # Errors
/// As [`ask`].
pub(crate) fn ask_with_remark(socket: &Path, line: &str) -> Result<Reply, AskError> {
    let connection = daemon_interface::connect(socket, None)?;
    let hello = Packet::Hello(Hello {
        version: VERSION,
        fingerprint: fingerprint(),
        features: FEATURE_REMARK,
        purpose: Purpose::Command {
            line: line.to_owned(),
        },
    });
    connection.send(&hello.encode(), &[])?;
    let mut said = Reply::default();
    loop {
        let (bytes, _) = connection.receive()?;
        match Packet::decode(&bytes) {
            Ok(Packet::CommandOutput { exit, last, text }) => {
                said.output.push_str(&text);
                if last {
                    said.exit = exit;
                    return Ok(said);
                }
            }
            Ok(Packet::Remark { text }) => {
                said.remarks.push_str(&text);
                said.remarks.push('\n');
            }
            Ok(Packet::Refused { text, .. }) => return Err(AskError::Refused(text)),
            _ => return Err(AskError::Answer),
        }
    }
}

/// Carries out one command and prints what came of it.
pub fn command(socket: &Path, line: &str) -> ExitCode {
    match ask_with_remark(socket, line) {
        Ok(said) => ExitCode::from(said.print()),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Carries out each line of standard input; the last one may lack its newline. The exit status says
/// whether any of them failed.
pub fn lines(socket: &Path) -> ExitCode {
    let mut exit = ExitCode::SUCCESS;
    for line in std::io::stdin().lock().split(b'\n') {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                eprintln!("standard input: {error}");
                return ExitCode::FAILURE;
            }
        };
        match ask_with_remark(socket, &String::from_utf8_lossy(&line)) {
            Ok(said) => match said.print() {
                0 => {}
                status => exit = ExitCode::from(status),
            },
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    exit
}
