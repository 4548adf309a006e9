//! Why the daemon does not start, or cannot do what somebody needs: servers, views.
//!
//! Given by the files of `daemon`; `startup` prints the first, logs and answers have the others. Must not know
//! sockets.

use protocol::limits::LimitError;
use rustix::io::Errno;

use crate::compute_mode::{ModeError, UnknownMode};
use crate::files::directories::VariableError;
use crate::groups::error::GroupError;
use crate::servers::contexts::ContextsError;
use crate::servers::limits::SettingError;
use crate::servers::placement::Isolation;
use crate::underlay::UnderlayError;

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The kernel tells nothing of descriptors or signals.
    #[error("cannot wait for events: {0}")]
    Events(#[source] std::io::Error),
    /// How long logs may become is no size.
    #[error("OPENMPS_LOG_BYTES: {0}")]
    LogBytes(#[source] LimitError),
    /// How far apart clients are to be kept is not known.
    #[error("OPENMPS_ISOLATION={0} is none of {names}", names = Isolation::NAMES)]
    Isolation(String),
    /// A variable is no text.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// A limit in the environment cannot be read.
    #[error(transparent)]
    Limits(#[from] SettingError),
    /// What is to run beneath servers cannot be had.
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    /// Users' clients cannot have so many contexts.
    #[error(transparent)]
    Contexts(#[from] ContextsError),
    /// No clients are taken over.
    #[error(
        "--standby is of servers that wait to take clients over, which --failover lets them do"
    )]
    Standby,
    /// Groups of the daemon before cannot be taken over.
    #[error(transparent)]
    Groups(#[from] GroupError),
    /// The devices' compute modes cannot be set.
    #[error(transparent)]
    Modes(#[from] SetModesError),
}

/// Why devices are not in the compute modes that were asked for.
#[derive(Debug, thiserror::Error)]
pub enum SetModesError {
    /// None has one.
    #[error("no device has a compute mode that could be set")]
    NoDevice,
    /// Nobody can tell which devices there are.
    #[error("cannot set compute modes: {0}")]
    Open(#[source] ModeError),
    /// OPENMPS_COMPUTE_MODE names none.
    #[error(transparent)]
    Unknown(#[from] UnknownMode),
    /// OPENMPS_COMPUTE_MODE is no text.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// One cannot be set, or what they were cannot be kept.
    #[error(transparent)]
    Mode(#[from] ModeError),
}

/// Why there is no server for a client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartServerError {
    #[error("cannot start a server: {0}")]
    System(#[from] std::io::Error),
    /// No server is to be without the underlay.
    #[error(
        "NVIDIA's MPS cannot run beneath this server, and --underlay=nvidia-mps allows none without: {why}{}",
        last.as_ref().map_or_else(String::new, |last| format!("; the last time: {last}"))
    )]
    NoUnderlay {
        why: String,
        /// Why there was none before, if that was something else.
        last: Option<String>,
    },
    /// Others of its kind did not live.
    #[error("the server ends as soon as it starts; see server.log")]
    EndsAtOnce,
}

/// Why no process looks at the devices.
#[derive(Debug, thiserror::Error)]
#[error("cannot look at the devices: {0}")]
pub(super) struct ScanError(#[from] std::io::Error);

impl From<Errno> for ScanError {
    fn from(error: Errno) -> Self {
        Self(error.into())
    }
}
