//! A socket that programs connect to, made here or passed by a service manager.
//!
//! The daemon has one for itself and one for each group. Must not know what programs say once they are connected.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};

use super::address::{address, socket};
use super::connection::Connection;
use super::error::{SocketError, system};
use super::passed_descriptors::{Rights, refuse_rights};
use super::poll::poll;

/// A socket that clients connect to. The file stays when it is dropped: its owner removes it.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    rights: Rights,
}

impl Listener {
    /// Makes a socket at a path where nothing is yet.
    ///
    /// # Errors
    /// [`SocketError::PathTooLong`], or what the kernel says of the path.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let path = path.as_ref();
        let address = address(path)?;
        let fd = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::bind(&fd, &address)
            .map_err(|errno| SocketError::Path("bind socket", path.to_owned(), errno))?;
        // As many as the kernel allows may wait: a thousand clients can start at once.
        rustix::net::listen(&fd, 4096).map_err(system("listen on a socket"))?;
        Ok(Self {
            fd,
            rights: Rights::Trusted,
        })
    }

    /// Takes no descriptors from those who connect from now on.
    #[must_use]
    pub fn refuse_descriptors(self) -> Self {
        Self {
            rights: refuse_rights(&self.fd),
            ..self
        }
    }

    /// Takes the listening socket that a service manager passed to this process, as sd_listen_fds(3)
    /// says: descriptor 3, if LISTEN_PID is this process and LISTEN_FDS counts one. Gives it once.
    ///
    /// # Errors
    /// When more than one is passed, or what is passed is no listening SEQPACKET socket.
    pub fn inherited() -> Option<Result<Self, SocketError>> {
        const FIRST: std::os::fd::RawFd = 3;
        static TAKEN: OnceLock<()> = OnceLock::new();
        let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        if number("LISTEN_PID") != Some(std::process::id()) {
            return None;
        }
        let count = number("LISTEN_FDS").filter(|count| *count > 0)?;
        if TAKEN.set(()).is_err() {
            return None;
        }
        // SAFETY: whoever set LISTEN_PID to this process opened the descriptor for it, and nobody else
        // here knows of it; it is taken once.
        let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
        if count != 1 {
            let what = "take the service manager's sockets, of which there must be one";
            return Some(Err(SocketError::System(what, Errno::INVAL)));
        }
        Some(Self::from_fd(fd))
    }

    /// Takes a listening SEQPACKET socket that another process made.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, SocketError> {
        let listens = rustix::net::sockopt::socket_acceptconn(&fd) == Ok(true)
            && rustix::net::sockopt::socket_type(&fd) == Ok(SocketType::SEQPACKET);
        if !listens {
            let what = "take a socket of another's, which must be one that listens for packets";
            return Err(SocketError::System(what, Errno::INVAL));
        }
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .and_then(|()| rustix::io::ioctl_fionbio(&fd, true))
            .map_err(|errno| SocketError::System("set a socket", errno))?;
        Ok(Self {
            fd,
            rights: Rights::Trusted,
        })
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// When the process has no descriptor left, and the like.
    pub fn accept(&self) -> Result<Connection, SocketError> {
        loop {
            poll(&[self.as_fd()], None)?;
            if let Some(connection) = self.try_accept()? {
                return Ok(connection);
            }
        }
    }

    /// Takes a client if one is there.
    ///
    /// # Errors
    /// When the process has no descriptor left, and the like.
    pub fn try_accept(&self) -> Result<Option<Connection>, SocketError> {
        let accepted =
            rustix::io::retry_on_intr(|| rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC));
        match accepted {
            Ok(fd) => Ok(Some(Connection::with_rights(fd, self.rights))),
            // The second: a client that gave up in between.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(SocketError::System("accept a connection", errno)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn the_kernel_refuses_them_for_all_who_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let listener = Listener::bind(&path).unwrap().refuse_descriptors();
        if listener.rights == Rights::Unwanted {
            eprintln!("skipped: the kernel has no SO_PASSRIGHTS, which needs Linux 6.16");
            return;
        }
        let theirs = Connection::connect(&path).unwrap();
        let refused = |theirs: &Connection| {
            let sent = theirs.send(b"x", &[folder_of(folder.path()).as_fd()]);
            matches!(sent, Err(SocketError::System(_, Errno::PERM)))
        };
        assert!(refused(&theirs), "before it is accepted");
        let ours = listener.try_accept().unwrap().unwrap();
        assert!(refused(&theirs), "and after");
        let ours = Connection::from_stranger(ours.into());
        assert!(!refused(&theirs), "until they are taken");
        assert_eq!(ours.receive().unwrap().1.len(), 1);
    }

    fn folder_of(path: &Path) -> std::fs::File {
        std::fs::File::open(path).unwrap()
    }
}
