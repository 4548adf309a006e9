//! Why there is no daemon: the line that whoever started it reads, and the process that waits for one in the background.
//!
//! Given by `startup` alone. Must not know what the daemon does once it runs.

use std::process::ExitStatus;

use rustix::io::Errno;
use transport::socket::SocketError;

use super::confinement::ConfineError;
use crate::daemon::error::DaemonError;
use crate::files::claim_error::InstanceError;
use crate::files::directories::VariableError;
use crate::process_limits::ResourceError;

/// Why this process does not become the daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum SetUpError {
    #[error("cannot detach from the terminal: {0}")]
    Detach(#[source] Errno),
    #[error("cannot leave for /: {0}")]
    WorkingDirectory(#[source] Errno),
    #[error(transparent)]
    Directories(#[from] VariableError),
    #[error(transparent)]
    Resources(#[from] ResourceError),
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error(transparent)]
    Confinement(#[from] ConfineError),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// Why there is no daemon in the background.
#[derive(Debug, thiserror::Error)]
pub(super) enum BackgroundError {
    #[error("cannot start the daemon: {0}")]
    Connection(#[source] SocketError),
    #[error("cannot start the daemon: {0}")]
    Process(#[from] std::io::Error),
    #[error("cannot start the daemon: it ended early, {0}")]
    Ended(ExitStatus),
    /// It says itself why not: a [`SetUpError`], come through a socket.
    #[error("{0}")]
    Refused(String),
}
