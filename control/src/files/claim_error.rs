//! Why a process cannot become the daemon of its directories. What it says is the one line that whoever started it reads.
//!
//! Given by `instance`, printed by `startup`. Must not look at files itself.

use std::path::{Path, PathBuf};

use transport::socket::{PATH_MAX, SocketError};

use super::error::FileError;
use super::handed_on::HandedOnError;

/// Why a process cannot be the daemon of its directories.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Another one is. Scripts look for these words.
    #[error("An instance of this daemon is already running")]
    AlreadyRunning,
    /// No socket can have the path.
    #[error(
        "the socket's path has {length} bytes, more than the {PATH_MAX} that the system takes; \
         set CUDA_MPS_PIPE_DIRECTORY to a shorter one: {}",
        path.display()
    )]
    PathTooLong {
        /// The socket's path.
        path: PathBuf,
        /// Its bytes.
        length: usize,
    },
    /// The log directory has the name that the FIFO needs, or is below it.
    #[error(
        "the log directory cannot be {}: {}; set CUDA_MPS_LOG_DIRECTORY to another directory",
        log.display(),
        kept_for_fifo(fifo)
    )]
    LogInFifo {
        /// The log directory.
        log: PathBuf,
        /// The FIFO.
        fifo: PathBuf,
    },
    /// The FIFO's name is a directory's.
    #[error("{}, and that is a directory now: remove it", kept_for_fifo(.0))]
    FifoIsDirectory(PathBuf),
    /// Somebody else could put files in the place of those of root's daemon.
    #[error(
        "{0}; remove it, or set CUDA_MPS_PIPE_DIRECTORY to a directory that only root can write to"
    )]
    NotOnlyRoots(#[source] FileError),
    /// The pipe directory cannot be made.
    #[error("cannot make the pipe directory {}: {source}", path.display())]
    Make {
        /// The pipe directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The lock file cannot be opened.
    #[error("the pipe directory {} is not usable: {source}", path.display())]
    NotUsable {
        /// The pipe directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A log cannot be opened.
    #[error("cannot write the log {}: {source}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A log cannot be opened, and cannot be looked for again later.
    #[error(transparent)]
    NoLog(std::io::Error),
    /// The socket that was inherited is of no use.
    #[error(transparent)]
    Inherited(SocketError),
    /// What the daemon before has handed on cannot be had.
    #[error(transparent)]
    HandedOn(#[from] HandedOnError),
    /// A socket cannot be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A file of the pipe directory cannot be had.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// What has its name stays.
    #[error("cannot replace the socket {}: {source}", path.display())]
    Replace {
        /// The socket's path.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// It cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Why nothing else may have the FIFO's name.
fn kept_for_fifo(path: &Path) -> String {
    format!(
        "the pipe directory holds a FIFO of the daemon's, {}",
        path.display()
    )
}
