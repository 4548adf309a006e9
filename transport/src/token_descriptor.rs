//! Descriptors that stand for something of a server's, which learns when the last copy of one is closed.
//!
//! Such a descriptor is one end of a pair of sockets, whose other end the server keeps. The token of what it
//! stands for lies in it to be looked at, by whoever has a copy; nothing can be sent back. Called by the server's
//! descriptors of physical memory and by clients that are handed one. Must not know what tokens name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use crate::socket::{Connection, SocketError};

/// 256 bits.
pub type Token = [u64; 4];

/// What the bytes in a descriptor begin with; the token follows.
const MAGIC: [u8; 8] = *b"OMPSphys";

/// Bytes in a descriptor.
const LENGTH: usize = MAGIC.len() + size_of::<Token>();

fn bytes_of(token: Token) -> Vec<u8> {
    let words = token.into_iter().flat_map(u64::to_le_bytes);
    MAGIC.into_iter().chain(words).collect()
}

fn token_of(bytes: &[u8]) -> Option<Token> {
    let words = bytes.strip_prefix(&MAGIC)?;
    let words: Vec<u64> = words
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    words.try_into().ok().filter(|_| bytes.len() == LENGTH)
}

/// Makes a descriptor of a token: the server's end, of which poll tells a hang-up when the last copy of the
/// other is closed, and the descriptor itself.
///
/// # Errors
/// When the process has no descriptor left, and the like.
pub fn make(token: Token) -> Result<(OwnedFd, OwnedFd), SocketError> {
    let (ours, theirs) = Connection::pair()?;
    ours.try_send(&bytes_of(token), &[])?;
    let ours = OwnedFd::from(ours);
    // Whoever has a copy can send nothing: neither bytes that take room nor the descriptor itself, which
    // would then never be closed.
    rustix::net::shutdown(&ours, Shutdown::Read)
        .map_err(|errno| SocketError::System("close a socket's direction", errno))?;
    Ok((ours, theirs.into()))
}

/// The token in a descriptor, if it is one of these. It stays there.
#[must_use]
pub fn read_token(fd: BorrowedFd<'_>) -> Option<Token> {
    let mut bytes = [0; LENGTH + 1];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let read: Result<(usize, usize), Errno> = rustix::net::recv(fd, &mut bytes[..], flags);
    token_of(bytes.get(..read.ok()?.0)?)
}

/// Gives a descriptor to a client over the socket of its session, without waiting.
///
/// # Errors
/// When the client does not read what it asked for, or is gone.
pub fn send(to: &Connection, token: Token, descriptor: &OwnedFd) -> Result<(), SocketError> {
    to.try_send(&bytes_of(token), &[descriptor.as_fd()])
}

/// Takes the descriptor that [`send`] gave.
///
/// # Errors
/// When something else came, or the server is gone.
pub fn receive(from: &Connection, token: Token) -> Result<OwnedFd, SocketError> {
    let (bytes, fds) = from.receive()?;
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([descriptor]) if token_of(&bytes) == Some(token) => Ok(descriptor),
        _ => Err(SocketError::Length),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::socket::poll;

    const TOKEN: Token = [1, u64::MAX, 3, 4];

    fn hung_up(ours: &OwnedFd) -> bool {
        use rustix::event::{PollFd, PollFlags};
        let mut fds = [PollFd::new(ours, PollFlags::empty())];
        let now = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
            && fds[0].revents().contains(PollFlags::HUP)
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes descriptors of a kind that Miri does not know")]
    fn the_last_copy_says_that_it_is_gone() {
        let (ours, theirs) = make(TOKEN).unwrap();
        let copy = theirs.try_clone().unwrap();
        assert_eq!(read_token(theirs.as_fd()), Some(TOKEN));
        assert_eq!(
            read_token(copy.as_fd()),
            Some(TOKEN),
            "as often as one likes"
        );
        assert!(!hung_up(&ours));
        drop(theirs);
        assert!(!hung_up(&ours), "one is left");
        // On its way to somebody it is open too.
        let (from, to) = Connection::pair().unwrap();
        send(&from, TOKEN, &copy).unwrap();
        drop(copy);
        assert!(!hung_up(&ours));
        let copy = receive(&to, TOKEN).unwrap();
        assert_eq!(read_token(copy.as_fd()), Some(TOKEN));
        drop(copy);
        assert!(poll(&[ours.as_fd()], Some(Duration::from_secs(20))).unwrap()[0]);
        assert!(hung_up(&ours));
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes descriptors of a kind that Miri does not know")]
    fn nothing_can_be_sent_back_and_what_is_none_is_known() {
        let (ours, theirs) = make(TOKEN).unwrap();
        let holder = Connection::from_fd(theirs);
        assert!(holder.try_send(b"x", &[holder.as_fd()]).is_err());
        assert_eq!(read_token(holder.as_fd()), Some(TOKEN));
        drop(holder);
        assert!(hung_up(&ours));
        for path in ["/proc/self/exe", "/dev/null"] {
            let other = std::fs::File::open(path).unwrap();
            assert_eq!(read_token(other.as_fd()), None);
        }
        let (one, other) = Connection::pair().unwrap();
        assert_eq!(read_token(other.as_fd()), None, "nothing is in it");
        let mut long = bytes_of(TOKEN);
        long.push(0);
        one.send(&long, &[]).unwrap();
        assert_eq!(read_token(other.as_fd()), None, "more than a token");
        let (bytes, _) = other.receive().unwrap();
        assert_eq!(bytes, long, "and it is still there");
        one.send(&bytes_of([5; 4]), &[one.as_fd()]).unwrap();
        assert!(receive(&other, TOKEN).is_err(), "another's");
    }
}
