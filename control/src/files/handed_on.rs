//! What a daemon hands on to the program that takes its place in the same process: the sockets that it listens at, so that
//! nobody who connects meanwhile is refused, and the command that asked for it, which the next one answers.
//!
//! It travels in the queue of a socket that the next program has as standard input; nothing of it is in the file system.
//! Written by `daemon::upgrade`, taken by `startup`. Must not know why a daemon is replaced.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::net::SocketType;
use transport::socket::{Connection, Listener, SocketError};

/// Set in a program that takes a daemon's place. Its servers do not inherit it.
pub const VARIABLE: &str = "OPENMPS_CONTROL_HANDED_ON";

/// A listening socket, and the path that it has.
const LISTENER: u8 = b'L';
/// The command that asked, and what it is to be told.
const ASKER: u8 = b'A';

/// Why what was handed on cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum HandedOnError {
    /// The variable is set where no daemon was before.
    #[error("{VARIABLE} is set, and standard input comes from no daemon")]
    NoDaemon,
    /// What a socket holds cannot be had.
    #[error("cannot take what the daemon before handed on: {0}")]
    Socket(#[from] SocketError),
}

/// What the daemon before has handed on; nothing in a daemon that takes nobody's place.
#[derive(Debug, Default)]
pub struct HandedOn {
    /// Whether there was one.
    pub is_from_a_daemon: bool,
    listeners: Vec<(PathBuf, Listener)>,
    /// Who asked for the change, and what it is to be told when all is well.
    pub asker: Option<(Connection, String)>,
}

impl HandedOn {
    /// Takes what was handed on to this process.
    ///
    /// # Errors
    /// When the variable says that something was, and it cannot be had.
    pub fn take() -> Result<Self, HandedOnError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(Self::default());
        }
        let stdin = std::io::stdin().as_fd().try_clone_to_owned();
        let stdin = stdin.map_err(|_| HandedOnError::NoDaemon)?;
        if rustix::net::sockopt::socket_type(&stdin) != Ok(SocketType::SEQPACKET) {
            return Err(HandedOnError::NoDaemon);
        }
        Self::read(&Connection::from_fd(stdin))
    }

    fn read(from: &Connection) -> Result<Self, HandedOnError> {
        let mut taken = Self {
            is_from_a_daemon: true,
            ..Self::default()
        };
        loop {
            let (bytes, fds) = match from.try_receive() {
                Ok(Some(received)) => received,
                // That is all: whoever wrote it is no more.
                Ok(None) | Err(SocketError::Closed) => return Ok(taken),
                Err(error) => return Err(error.into()),
            };
            // Another release may hand on more than is known here.
            match (bytes.split_first(), fds.into_iter().next()) {
                (Some((&LISTENER, path)), Some(fd)) => {
                    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
                    taken.listeners.push((path, Listener::from_fd(fd)?));
                }
                (Some((&ASKER, text)), Some(fd)) => {
                    let text = String::from_utf8_lossy(text).into_owned();
                    taken.asker = Some((Connection::from_fd(fd), text));
                }
                _ => {}
            }
        }
    }

    /// Takes the socket that was listened at under a path.
    pub fn listener(&mut self, path: &Path) -> Option<Listener> {
        let at = self.listeners.iter().position(|(its, _)| its == path)?;
        Some(self.listeners.swap_remove(at).1)
    }
}

/// What is handed on, to be filled; then it becomes the next program's standard input.
#[derive(Debug)]
pub struct HandingOn {
    into: Connection,
    out: Connection,
}

impl HandingOn {
    /// Nothing yet.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> Result<Self, SocketError> {
        let (into, out) = Connection::pair()?;
        Ok(Self { into, out })
    }

    /// Adds a socket that is listened at under a path.
    ///
    /// # Errors
    /// When the queue is full.
    pub fn listener(&self, path: &Path, listener: &Listener) -> Result<(), SocketError> {
        self.add(LISTENER, path.as_os_str().as_bytes(), listener)
    }

    /// Adds who asked, and what it is to be told.
    ///
    /// # Errors
    /// As above.
    pub fn asker(&self, asker: impl AsFd, text: &str) -> Result<(), SocketError> {
        self.add(ASKER, text.as_bytes(), asker)
    }

    fn add(&self, what: u8, bytes: &[u8], fd: impl AsFd) -> Result<(), SocketError> {
        let packet = [&[what], bytes].concat();
        self.into.try_send(&packet, &[fd.as_fd()])
    }

    /// The end that the next program is to have.
    pub fn into_stdin(self) -> OwnedFd {
        self.out.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_their_paths_and_who_waits_in_them_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("one"), folder.path().join("other")];
        let handing = HandingOn::new().unwrap();
        for path in &paths {
            let listener = Listener::bind(path).unwrap();
            handing.listener(path, &listener).unwrap();
        }
        let (ours, theirs) = Connection::pair().unwrap();
        handing.asker(&theirs, "done").unwrap();
        handing.add(b'?', b"of a later release", &theirs).unwrap();
        drop(theirs);
        // Comes while nobody is there.
        let early = Connection::connect(&paths[1]).unwrap();

        let mut taken = HandedOn::read(&Connection::from_fd(handing.into_stdin())).unwrap();
        let listener = taken.listener(&paths[1]).unwrap();
        assert!(taken.listener(&paths[1]).is_none(), "it is given once");
        assert!(taken.listener(&paths[0]).is_some());
        assert!(taken.listener(folder.path()).is_none());
        early.send(b"hello", &[]).unwrap();
        let served = listener.try_accept().unwrap().expect("it waits");
        assert_eq!(served.receive().unwrap().0, b"hello");
        let (asker, text) = taken.asker.unwrap();
        asker.send(text.as_bytes(), &[]).unwrap();
        assert_eq!(ours.receive().unwrap().0, b"done");
    }

    #[test]
    fn what_is_no_listening_socket_is_not_taken() {
        let handing = HandingOn::new().unwrap();
        let (one, _other) = Connection::pair().unwrap();
        handing.add(LISTENER, b"/run/control", &one).unwrap();
        let taken = HandedOn::read(&Connection::from_fd(handing.into_stdin()));
        assert!(matches!(taken, Err(HandedOnError::Socket(_))), "{taken:?}");
    }
}
