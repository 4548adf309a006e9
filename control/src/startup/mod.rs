//! Becoming the daemon: in the foreground, or in the background with a parent that ends only when
//! the daemon answers.
//!
//! In the background the program runs itself again. The second process detaches, sets everything up
//! and reports through the socket that it has as standard input; the first passes on what it says.
//!
//! Called by `lib` for the actions that start a daemon. Must not know what the daemon does once it runs.

mod confinement;
mod error;
pub mod notify;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use error::{BackgroundError, SetUpError};
use notify::READY_VARIABLE;
use transport::socket::Connection;

use crate::command_line::arguments::Options;
use crate::daemon::Daemon;
use crate::files::directories::Directories;
use crate::files::instance::Instance;
use crate::host::{DAEMON_NAME, HostProgram};
use crate::process_limits;

/// What the background process says when all is well.
const READY: &[u8] = b"ready";

/// Runs as the daemon, or starts it.
pub fn daemon(options: Options, host: HostProgram) -> ExitCode {
    if options.foreground {
        return match set_up(options, host) {
            Ok(daemon) => {
                notify::notify_service_manager("READY=1\nSTATUS=Serving");
                daemon.run()
            }
            Err(error) => fail(&error),
        };
    }
    if std::env::var_os(READY_VARIABLE).is_some() {
        return background(options, host);
    }
    match start_background(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn set_up(options: Options, host: HostProgram) -> Result<Daemon, SetUpError> {
    let directories = Directories::from_environment()?;
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
    process_limits::raise()?;
    let instance = Instance::claim(directories, options.foreground)?;
    confinement::confine(&instance.control_log, host, instance.takes_anothers_place())?;
    Ok(Daemon::new(instance, options, host)?)
}

/// The process that was asked for a daemon.
fn start_background(options: Options) -> Result<(), BackgroundError> {
    let (ours, theirs) = Connection::pair().map_err(BackgroundError::Connection)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(DAEMON_NAME)
        .arg("-d")
        .args(options.arguments())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env(READY_VARIABLE, "1");
    let mut child = command.spawn()?;
    // The command holds the other end too; the child's death must end the connection.
    drop(command);
    match ours.receive() {
        Ok((bytes, _)) if bytes == READY => Ok(()),
        Ok((bytes, _)) => {
            let _ = child.wait();
            let why = String::from_utf8_lossy(&bytes).into_owned();
            Err(BackgroundError::Refused(why))
        }
        Err(_) => {
            let ended = child.wait()?;
            Err(BackgroundError::Ended(ended))
        }
    }
}

/// The process that becomes the daemon.
fn background(options: Options, host: HostProgram) -> ExitCode {
    let Ok(stdin) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    let parent = Connection::from_fd(stdin);
    let detached = rustix::process::setsid()
        .map_err(SetUpError::Detach)
        .and_then(|_| set_up(options, host))
        .and_then(|daemon| {
            // Hold no directory busy.
            rustix::process::chdir("/").map_err(SetUpError::WorkingDirectory)?;
            Ok(daemon)
        });
    match detached {
        Ok(daemon) => {
            let _ = parent.send(READY, &[]);
            drop(parent);
            notify::notify_service_manager("READY=1\nSTATUS=Serving");
            daemon.run()
        }
        Err(error) => {
            let _ = parent.send(error.to_string().as_bytes(), &[]);
            ExitCode::FAILURE
        }
    }
}
