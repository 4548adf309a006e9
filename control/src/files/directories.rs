//! The two directories, for pipes and for logs, and the names in them.
//!
//! Owns what CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY mean. Called by the daemon and by all that look for one. Must not
//! know what is written there, nor open anything.

use std::env::VarError;
use std::path::{Path, PathBuf};

/// An environment variable that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    /// It holds bytes that are no text.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// It names a relative directory, and where from cannot be told.
    #[error("{name}={}: {source}", path.display())]
    NotAbsolute {
        /// The variable.
        name: &'static str,
        /// What it holds.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Where the daemon meets its clients and where it writes its logs. Absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// CUDA_MPS_PIPE_DIRECTORY
    pub pipe: PathBuf,
    /// CUDA_MPS_LOG_DIRECTORY
    pub log: PathBuf,
}

/// Where daemon and clients meet, unless they are told another place.
pub const DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";

/// The pipe directory that the environment names. An empty variable names none, for the daemon as for
/// clients.
#[must_use]
pub fn named_pipe_directory() -> Option<PathBuf> {
    named("CUDA_MPS_PIPE_DIRECTORY")
}

fn named(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

fn absolute(name: &'static str, path: PathBuf) -> Result<PathBuf, VariableError> {
    std::path::absolute(&path).map_err(|source| VariableError::NotAbsolute { name, path, source })
}

/// A variable's text, `None` if it is unset.
///
/// # Errors
/// When it is not UTF-8.
pub fn text_variable(name: &'static str) -> Result<Option<String>, VariableError> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(VariableError::NotUtf8(name)),
    }
}

impl Directories {
    /// The directories that the environment names, or their defaults.
    ///
    /// # Errors
    /// When a relative one cannot be completed.
    pub fn from_environment() -> Result<Self, VariableError> {
        let pipe = named_pipe_directory().unwrap_or_else(|| DEFAULT_PIPE_DIRECTORY.into());
        let log = named("CUDA_MPS_LOG_DIRECTORY").unwrap_or_else(|| "/var/log/nvidia-mps".into());
        Ok(Self {
            pipe: absolute("CUDA_MPS_PIPE_DIRECTORY", pipe)?,
            log: absolute("CUDA_MPS_LOG_DIRECTORY", log)?,
        })
    }

    /// The socket that clients and commands connect to.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.pipe.join("control")
    }

    /// The file whose lock says that a daemon runs.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.pipe.join("control_lock")
    }

    /// The file with the daemon's process id.
    #[must_use]
    pub fn pid(&self) -> PathBuf {
        self.pipe.join("nvidia-cuda-mps-control.pid")
    }

    /// The daemon's log.
    #[must_use]
    pub fn control_log(&self) -> PathBuf {
        self.log.join("control.log")
    }

    /// A socket as `control` that only the daemon's own user may connect to.
    #[must_use]
    pub fn privileged_socket(&self) -> PathBuf {
        self.pipe.join("control_privileged")
    }

    /// The FIFO that lines of server.log may be written to.
    #[must_use]
    pub fn log_pipe(&self) -> PathBuf {
        self.pipe.join("log")
    }

    /// The directory of a group: with it alone, a client is one of the group.
    #[must_use]
    pub fn group(&self, name: &str) -> PathBuf {
        self.groups().join(name)
    }

    /// The directories of groups.
    #[must_use]
    pub fn groups(&self) -> PathBuf {
        self.pipe.join("groups")
    }

    /// What a daemon keeps of groups for the next one.
    #[must_use]
    pub fn group_state(&self) -> PathBuf {
        self.pipe.join("group_state")
    }

    /// What a daemon is to give back to its devices.
    #[must_use]
    pub fn compute_modes(&self) -> PathBuf {
        self.pipe.join("compute_modes.json")
    }

    /// The structured log.
    #[must_use]
    pub fn events(&self) -> PathBuf {
        self.log.join("events.jsonl")
    }

    /// The servers' log.
    #[must_use]
    pub fn server_log(&self) -> PathBuf {
        self.log.join("server.log")
    }
}

/// Whether a path that is none is a list of absolute ones: a process is the client of one daemon.
#[must_use]
pub fn is_path_list(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let mut parts = text.split([',', ':']);
    !path.exists() && parts.clone().count() > 1 && parts.all(|part| part.starts_with('/'))
}
