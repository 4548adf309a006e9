//! Why something with a socket failed: one enum for listeners and connections, with the questions that callers ask.
//!
//! Made here and in listeners and connections; the daemon, servers and clients ask it. Must not know what was sent.

use std::path::PathBuf;

use rustix::io::Errno;

use super::limits::{DESCRIPTORS_MAX, PACKET_MAX, PATH_MAX};

/// Why something with a socket failed.
#[derive(Debug)]
pub enum SocketError {
    /// The path is longer than an address can hold.
    PathTooLong(PathBuf),
    /// The kernel refused; what we tried, and its error.
    System(&'static str, Errno),
    /// As `System`, with the path.
    Path(&'static str, PathBuf, Errno),
    /// The other end is gone.
    Closed,
    /// A packet, sent or received, is empty or longer than [`PACKET_MAX`].
    Length,
    /// A packet, sent or received, has more than [`DESCRIPTORS_MAX`] descriptors, or the process had
    /// none left to receive them. The bytes of a received one: it is gone, and somebody may wait for
    /// what it asked for.
    Descriptors(Vec<u8>),
    /// Descriptors came where none are taken. The connection is shut down.
    Unwanted,
}

impl std::fmt::Display for SocketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PathTooLong(path) => write!(
                f,
                "socket path has {} bytes, more than the {PATH_MAX} that fit an address: {}",
                path.as_os_str().len(),
                path.display()
            ),
            Self::System(what, errno) => write!(f, "{what}: {errno}"),
            Self::Path(what, path, errno) => write!(f, "{what} {}: {errno}", path.display()),
            Self::Closed => f.write_str("the other end of the socket is gone"),
            Self::Length => write!(f, "packet empty or longer than {PACKET_MAX} bytes"),
            Self::Descriptors(_) => write!(
                f,
                "packet with more than {DESCRIPTORS_MAX} descriptors, or none left to receive them"
            ),
            Self::Unwanted => f.write_str("packet with descriptors, which are not taken here"),
        }
    }
}

impl std::error::Error for SocketError {}

impl SocketError {
    /// Whether it says that nothing can be done without waiting, or that a set time was over.
    #[must_use]
    pub fn would_wait(&self) -> bool {
        matches!(
            self,
            Self::System(_, Errno::AGAIN) | Self::Path(_, _, Errno::AGAIN)
        )
    }

    /// Whether it says that a path is not for this user.
    #[must_use]
    pub fn not_permitted(&self) -> bool {
        matches!(self, Self::Path(_, _, Errno::ACCESS | Errno::PERM))
    }

    /// Whether it says that nobody listens at a path.
    #[must_use]
    pub fn is_nobody_listening(&self) -> bool {
        matches!(self, Self::Path(_, _, Errno::NOENT | Errno::CONNREFUSED))
    }
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::System(what, errno)
}
