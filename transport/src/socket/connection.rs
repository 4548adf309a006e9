//! One end of a connection: packets with descriptors, sent, received, and what is left in the queue closed.
//!
//! Knows nothing of what the packets mean.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};

use super::address::{address, socket};
use super::error::{SocketError, system};
use super::limits::{DESCRIPTORS_MAX, PACKET_MAX, PASSED_MAX};
use super::passed_descriptors::{Rights, has_control, pass_rights, refuse_rights};
use crate::background_close;

/// What came in one packet.
pub type Received = (Vec<u8>, Vec<OwnedFd>);

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Taken out where the connection ends, and nowhere else.
    fd: ManuallyDrop<OwnedFd>,
    rights: Rights,
}

impl Connection {
    pub(super) const fn with_rights(fd: OwnedFd, rights: Rights) -> Self {
        Self {
            fd: ManuallyDrop::new(fd),
            rights,
        }
    }

    /// Connects to a listener.
    ///
    /// # Errors
    /// [`SocketError::PathTooLong`], or what the kernel says; see [`SocketError::is_nobody_listening`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        Self::connect_within(path, None)
    }

    /// As [`Connection::connect`], but waits no longer than `most` for a listener that is too busy
    /// to take us; the same bound then holds for each [`Connection::send`].
    ///
    /// # Errors
    /// As there; see [`SocketError::would_wait`].
    pub fn connect_within(
        path: impl AsRef<Path>,
        most: Option<Duration>,
    ) -> Result<Self, SocketError> {
        let path = path.as_ref();
        let address = address(path)?;
        let fd = socket(SocketFlags::CLOEXEC)?;
        rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Send, most)
            .map_err(system("set a socket"))?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&fd, &address))
            .map_err(|errno| SocketError::Path("connect to", path.to_owned(), errno))?;
        Ok(Self::from_fd(fd))
    }

    /// Two ends of one connection.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn pair() -> Result<(Self, Self), SocketError> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(system("make a pair of sockets"))?;
        Ok((Self::from_fd(one), Self::from_fd(other)))
    }

    /// Takes a connected SEQPACKET socket, inherited or received, whose peer is one of ours.
    #[must_use]
    pub const fn from_fd(fd: OwnedFd) -> Self {
        Self::with_rights(fd, Rights::Trusted)
    }

    /// Takes a connected SEQPACKET socket over which anybody may send descriptors from now on.
    #[must_use]
    pub fn from_stranger(fd: OwnedFd) -> Self {
        // Where the kernel does not know the option, they come anyhow.
        let _ = pass_rights(&fd, true);
        Self::with_rights(fd, Rights::Taken)
    }

    /// Closes this end, of which another process of ours has a copy: should that process be gone, what has
    /// come since is closed with it, and that may wait.
    pub fn close_own_end(self) {
        let fd = OwnedFd::from(self);
        background_close::run(move || drop(fd));
    }

    /// Takes no descriptors from the peer from now on.
    #[must_use]
    pub fn refuse_descriptors(mut self) -> Self {
        self.rights = refuse_rights(&self.fd);
        self
    }

    /// Another descriptor of the same end. The connection ends when the last of them is closed.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> Result<Self, SocketError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&*self.fd, 0).map_err(system("copy a socket"))?;
        Ok(Self::with_rights(fd, self.rights))
    }

    /// Bounds how long [`Connection::receive`] waits; `None` is for ever.
    ///
    /// # Errors
    /// When the kernel refuses the time.
    pub fn set_receive_timeout(&self, most: Option<Duration>) -> Result<(), SocketError> {
        rustix::net::sockopt::set_socket_timeout(
            &*self.fd,
            rustix::net::sockopt::Timeout::Recv,
            most,
        )
        .map_err(system("set a socket"))
    }

    /// Sends one packet, and copies of descriptors with it.
    ///
    /// # Errors
    /// When it exceeds the limits or the other end is gone.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL)
    }

    /// As [`Connection::send`], if there is room without waiting.
    ///
    /// # Errors
    /// As there; see [`SocketError::would_wait`].
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), SocketError> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), SocketError> {
        // An empty packet looks like the connection's end.
        if bytes.is_empty() || bytes.len() > PACKET_MAX {
            return Err(SocketError::Length);
        }
        if fds.len() > DESCRIPTORS_MAX {
            return Err(SocketError::Descriptors(Vec::new()));
        }
        let sent = rustix::io::retry_on_intr(|| {
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Errno::INVAL);
            }
            rustix::net::sendmsg(&*self.fd, &[IoSlice::new(bytes)], &mut control, flags)
        });
        match sent {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(SocketError::Closed),
            Err(errno) => Err(SocketError::System("send a packet", errno)),
        }
    }

    /// Waits for a packet.
    ///
    /// # Errors
    /// When it exceeds the limits, the other end is gone, or a set time is over.
    pub fn receive(&self) -> Result<Received, SocketError> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC)
    }

    /// Takes a packet if one is there.
    ///
    /// # Errors
    /// When it exceeds the limits or the other end is gone.
    pub fn try_receive(&self) -> Result<Option<Received>, SocketError> {
        match self.receive_with(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT) {
            Err(error) if error.would_wait() => Ok(None),
            other => other.map(Some),
        }
    }

    fn receive_with(&self, flags: RecvFlags) -> Result<Received, SocketError> {
        if self.rights == Rights::Unwanted && self.next_has_control(flags)? {
            // Not received: to close them again could wait.
            let _ = rustix::net::shutdown(&*self.fd, Shutdown::Both);
            return Err(SocketError::Unwanted);
        }
        let mut bytes = vec![0; PACKET_MAX];
        // Room for all that can come: what there is none for the kernel closes, on this thread.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(
                &*self.fd,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                flags,
            )
        });
        let received = received.map_err(not_received)?;
        // Taken out before anything is refused, so that they are closed.
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        bytes.truncate(received.bytes);
        let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
        let refused = if is_cut || fds.len() > DESCRIPTORS_MAX {
            SocketError::Descriptors(bytes)
        } else if received.flags.contains(ReturnFlags::TRUNC) {
            SocketError::Length
        } else if bytes.is_empty() {
            SocketError::Closed
        } else {
            bytes.shrink_to_fit();
            return Ok((bytes, fds));
        };
        if self.rights == Rights::Taken {
            background_close::close(fds);
        }
        Err(refused)
    }

    /// Whether the next packet carries more than bytes. It stays in the queue, and nothing of it is opened
    /// here. False at the connection's end.
    fn next_has_control(&self, flags: RecvFlags) -> Result<bool, SocketError> {
        has_control(&self.fd, flags | RecvFlags::PEEK).map_err(not_received)
    }

    /// Ends what the peer can send, and says whether its queue is empty, and so stays.
    fn is_drained(&self) -> bool {
        // From then on every packet carries who sent it, so that one is told from the connection's end.
        rustix::net::shutdown(&*self.fd, Shutdown::Read).is_ok()
            && rustix::net::sockopt::set_socket_passcred(&*self.fd, true).is_ok()
            && matches!(self.next_has_control(RecvFlags::DONTWAIT), Ok(false))
    }

    /// Ends the connection in both directions, for whoever has a copy of its ends too.
    pub fn hang_up(&self) {
        let _ = rustix::net::shutdown(&*self.fd, Shutdown::Both);
    }

    /// Whether the other end is gone, now. Packets that wait are left alone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let mut fds = [PollFd::new(&*self.fd, PollFlags::empty())];
        let now = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match rustix::event::poll(&mut fds, Some(&now)) {
            // Asked for or not, these are always told. On SEQPACKET sockets HUP means both
            // directions, that is, all descriptors of the other end are closed.
            Ok(1..) => fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            _ => false,
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let waits = match self.rights {
            Rights::Trusted | Rights::Refused => false,
            Rights::Taken | Rights::Unwanted => !self.is_drained(),
        };
        // SAFETY: nobody uses it after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        if waits {
            // Not closed with what is in it: a process that was just forked may have a copy, and would then
            // be the one that waits.
            background_close::run(move || {
                while matches!(has_control(&fd, RecvFlags::DONTWAIT), Ok(true)) {}
            });
        }
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        let mut connection = ManuallyDrop::new(connection);
        // SAFETY: the connection is not dropped, and nobody uses it after this.
        unsafe { ManuallyDrop::take(&mut connection.fd) }
    }
}

/// Why nothing was received.
const fn not_received(errno: Errno) -> SocketError {
    match errno {
        Errno::CONNRESET | Errno::NOTCONN => SocketError::Closed,
        errno => SocketError::System("receive a packet", errno),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::background_close::tests::Trap;

    const SOON: Duration = Duration::from_secs(30);

    /// Does something that must not wait for the traps, which would take an hour.
    fn at_once<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, is_done) = channel();
        std::thread::spawn(move || done.send(act()));
        is_done.recv_timeout(SOON).expect("it waits for a trap")
    }

    /// A connection whose other end is a stranger's.
    fn strange(rights: Rights) -> (Connection, Connection) {
        let (mut ours, theirs) = Connection::pair().unwrap();
        ours.rights = rights;
        (ours, theirs)
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn where_none_are_taken_descriptors_end_the_connection_and_cost_no_time() {
        let (ours, theirs) = strange(Rights::Unwanted);
        theirs.send(b"by the book", &[]).unwrap();
        let trap = Trap::new();
        let peer = trap.send(&theirs).unwrap();
        let received = at_once(move || {
            let first = ours.receive().map(|(bytes, _)| bytes);
            (first, ours.try_receive(), ours)
        });
        assert_eq!(received.0.as_deref().unwrap(), b"by the book");
        assert!(matches!(received.1, Err(SocketError::Unwanted)));
        assert!(
            matches!(theirs.send(b"more", &[]), Err(SocketError::Closed)),
            "it is disconnected, whoever still has it"
        );
        at_once(move || drop(received));
        drop(peer);
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn what_is_left_in_a_queue_is_closed_where_nobody_waits() {
        for rights in [Rights::Unwanted, Rights::Taken] {
            let (ours, theirs) = strange(rights);
            // An empty packet looks like the end; it is not.
            rustix::net::send(&theirs, &[], SendFlags::empty()).unwrap();
            let peer = Trap::new().send(&theirs).unwrap();
            at_once(move || drop(ours));
            drop(peer);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn what_comes_with_a_packet_that_is_refused_is_closed_where_nobody_waits() {
        let long = vec![0; PACKET_MAX + 1];
        for (bytes, count) in [
            (&b"x"[..], DESCRIPTORS_MAX + 1),
            (&b"x"[..], PASSED_MAX),
            (&long[..], 1),
            (&[], 1),
        ] {
            let (ours, theirs) = strange(Rights::Taken);
            let (trap, peer) = Trap::new().into_parts();
            let traps = vec![trap.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&traps)));
            let bytes = &[IoSlice::new(bytes)];
            rustix::net::sendmsg(&theirs, bytes, &mut control, SendFlags::empty()).unwrap();
            drop(trap);
            let received = at_once(move || ours.receive());
            assert!(received.is_err());
            drop(peer);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls on sockets that Miri does not know")]
    fn an_empty_queue_is_closed_at_once() {
        let (ours, theirs) = strange(Rights::Taken);
        theirs.send(b"read", &[]).unwrap();
        ours.receive().unwrap();
        drop(ours);
        assert!(theirs.is_closed());
    }
}
