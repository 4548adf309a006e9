//! Why there is no underlay: what is said to the operator who asked for one, and, where servers must not be without, to
//! their clients. Given by `underlay`; `daemon::underlay` logs it and tells servers.

use std::path::PathBuf;

use rustix::io::Errno;

use super::variables::{
    CONNECTIONS_VARIABLE, DIRECTORY_VARIABLE, MOST_CONNECTIONS, PROGRAM, PROGRAM_VARIABLE,
};
use crate::files::directories::VariableError;
use crate::files::error::{FileError, ProgramError};

/// Why what the operator asks for cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UnderlayError {
    /// The variable names no mode.
    #[error("OPENMPS_UNDERLAY={text} is none of {names}")]
    Mode {
        /// What it holds.
        text: String,
        /// Those that there are.
        names: &'static str,
    },
    /// The variable is no number of connections.
    #[error("{CONNECTIONS_VARIABLE}={0} is not a number from 1 to {MOST_CONNECTIONS}")]
    Connections(String),
    /// No server is to be without, and there is none.
    #[error("--underlay=nvidia-mps: {0}")]
    Required(#[source] NoProgram),
    /// A variable is no text.
    #[error(transparent)]
    Variable(#[from] VariableError),
}

/// Why none of NVIDIA's programs can be run beneath servers.
#[derive(Debug, thiserror::Error)]
pub enum NoProgram {
    /// Servers have no GPU of NVIDIA's.
    #[error("servers here run on the software GPU")]
    SoftwareGpu,
    /// The one that the operator named may not be run.
    #[error("{PROGRAM_VARIABLE}: {0}")]
    Named(#[source] ProgramError),
    /// The one that the operator named is this one.
    #[error("{PROGRAM_VARIABLE}: {} is OpenMPS' own", .0.display())]
    Ours(PathBuf),
    /// There is one that may not be run.
    #[error(transparent)]
    Refused(#[from] ProgramError),
    /// There is none where it is looked for.
    #[error("there is no {PROGRAM} of NVIDIA's in {0}; {PROGRAM_VARIABLE} names one elsewhere")]
    NotFound(String),
}

/// Why a run has no directories of its own.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The variable names a relative path.
    #[error("{DIRECTORY_VARIABLE}={} is not an absolute path", .0.display())]
    NotAbsolute(PathBuf),
    /// They cannot be made where they should be.
    #[error("{0}; {DIRECTORY_VARIABLE} names another directory for it")]
    Make(#[source] MakeError),
}

/// Why directories cannot be made in a place.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Sockets have short paths.
    #[error(
        "{}: sockets in it would have paths of {longest} bytes, and {most} is the most",
        path.display(),
        most = transport::socket::PATH_MAX
    )]
    PathTooLong {
        /// NVIDIA's pipe directory.
        path: PathBuf,
        /// Bytes of the longest path.
        longest: usize,
    },
    /// What was made cannot be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// NVIDIA's pipe directory.
        path: PathBuf,
        /// What the system says.
        source: Errno,
    },
    /// All names are taken.
    #[error("{} is full", .0.display())]
    Full(PathBuf),
    /// Somebody else could change it, or the system refuses.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a run is not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// It has no directories.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Nobody would watch it.
    #[error("its supervisor cannot be started: {0}")]
    Supervisor(#[from] std::io::Error),
}
