//! Why a group cannot be made, kept, taken over or removed. Operators read it as the answer of a command, or as the reason
//! why a daemon does not start. Given by `groups` and `daemon::groups`. Must not know commands.

use std::path::PathBuf;

use rustix::io::Errno;
use transport::socket::PATH_MAX;

use super::MAX_GROUPS;
use crate::files::claim_error::BindError;
use crate::files::error::FileError;

/// What is wrong with a group.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupError {
    #[error("there are {MAX_GROUPS} groups already")]
    TooMany,
    #[error("no memory to count what a group has taken: {0}")]
    Usage(#[source] transport::memory::MemoryError),
    #[error(
        "the path of the group's socket has {length} bytes, more than the {PATH_MAX} that \
         the system takes; choose a shorter name or pipe directory: {}",
        path.display()
    )]
    PathTooLong { path: PathBuf, length: usize },
    #[error("cannot wait for clients of a group: {0}")]
    Watch(#[source] Errno),
    #[error("cannot wait for a former server: {0}")]
    WatchServer(#[source] Errno),
    #[error("there is no such group")]
    Unknown,
    #[error("{0} is in use: its clients must have left before it is removed")]
    InUse(String),
    /// A file of it cannot be read, believed or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its socket cannot be made.
    #[error(transparent)]
    Socket(#[from] BindError),
}
