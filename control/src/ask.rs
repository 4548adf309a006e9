//! The command-line client: one connection to the daemon for each command.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use transport::handshake::{Hello, Packet, Purpose, VERSION, fingerprint};
use transport::socket::{Connection, SocketError};

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
    /// The daemon refused, in its words.
    #[error("{0}")]
    Refused(String),
    /// The daemon answered something else.
    #[error("the daemon's answer was not understood")]
    Answer,
}

impl From<SocketError> for AskError {
    fn from(error: SocketError) -> Self {
        if error.nobody_there() {
            Self::NoDaemon
        } else {
            Self::Socket(error)
        }
    }
}

/// Has one command carried out. Gives its output and its exit status.
///
/// # Errors
/// When there is no daemon at the socket, or it went away.
pub fn ask(socket: &Path, line: &str) -> Result<(String, u8), AskError> {
    let connection = Connection::connect(socket)?;
    let hello = Packet::Hello(Hello {
        version: VERSION,
        fingerprint: fingerprint(),
        features: 0,
        purpose: Purpose::Command {
            line: line.to_owned(),
        },
    });
    connection.send(&hello.encode(), &[])?;
    let mut output = String::new();
    loop {
        let (bytes, _) = connection.receive()?;
        match Packet::decode(&bytes) {
            Ok(Packet::CommandOutput { exit, last, text }) => {
                output.push_str(&text);
                if last {
                    return Ok((output, exit));
                }
            }
            Ok(Packet::Refused { text, .. }) => return Err(AskError::Refused(text)),
            _ => return Err(AskError::Answer),
        }
    }
}

/// Carries out one command and prints what came of it.
pub fn command(socket: &Path, line: &str) -> ExitCode {
    match ask(socket, line) {
        Ok((output, exit)) => {
            let _ = std::io::stdout().write_all(output.as_bytes());
            ExitCode::from(exit)
        }
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
        match ask(socket, &String::from_utf8_lossy(&line)) {
            Ok((output, status)) => {
                let _ = std::io::stdout().write_all(output.as_bytes());
                if status != 0 {
                    exit = ExitCode::from(status);
                }
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    exit
}
