//! SOCK_SEQPACKET sockets that carry descriptors, and who is at the other end.
//!
//! Descriptors sent over a stream socket are lost when a read crosses a packet's boundary, hence
//! packets. Everything is close-on-exec. Who a peer is comes from the kernel, never from what it
//! says. Knows nothing of what the packets mean.
//!
//! A descriptor can be a trap: the last close of one can wait for as long as its sender chose
//! (SO_LINGER), and whoever closes a socket closes what is in its queue. So a socket that strangers can
//! reach says what it does with descriptors: it has the kernel refuse them ([`Listener::refuse_descriptors`]),
//! or it is closed where nobody waits.

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::ffi::{c_int, c_uint, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::closer;

/// The longest packet in bytes. The kernel would take more; the facts of 32 devices are far less.
pub const PACKET_MAX: usize = 64 << 10;

/// The most descriptors in a packet: a session's four, the client's socket and pidfd, and two spare.
pub const DESCRIPTORS_MAX: usize = 8;

/// The longest path in bytes: `sun_path` has 108, one of them for the end.
pub const PATH_MAX: usize = 107;

/// The number by which the kernel calls users that are not of this user namespace: it is nobody's, and
/// whoever has it has nothing in common with others that have it.
#[must_use]
pub fn overflow_uid() -> u32 {
    static UID: OnceLock<u32> = OnceLock::new();
    *UID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
        text.trim().parse().unwrap_or(65_534)
    })
}

/// Whether a user has no number in our user namespace: then the namespace was made by somebody who could
/// give us other files altogether, and nobody in it is that user.
#[must_use]
pub fn is_from_outside(uid: u32) -> bool {
    let map = || std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    uid == overflow_uid() && !has_all_users(&map())
}

/// Whether a user namespace has every user of the machine.
fn has_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Lets this process have as many descriptors as the machine allows: each client costs its daemon and
/// its server some.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}

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
    /// Whoever listens at a path may not be a daemon ([`crate::daemon`]), and why not.
    NoDaemon(PathBuf, String),
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
            Self::NoDaemon(path, why) => {
                write!(f, "nothing was sent to {}: {why}", path.display())
            }
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

    /// Whether it says that a path is not for this user, or what is there not to be spoken to.
    #[must_use]
    pub fn not_permitted(&self) -> bool {
        matches!(
            self,
            Self::Path(_, _, Errno::ACCESS | Errno::PERM) | Self::NoDaemon(..)
        )
    }

    /// Whether it says that nobody listens at a path.
    #[must_use]
    pub fn nobody_there(&self) -> bool {
        matches!(self, Self::Path(_, _, Errno::NOENT | Errno::CONNREFUSED))
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> SocketError {
    move |errno| SocketError::System(what, errno)
}

fn address(path: &Path) -> Result<SocketAddrUnix, SocketError> {
    if path.as_os_str().len() > PATH_MAX {
        return Err(SocketError::PathTooLong(path.to_owned()));
    }
    SocketAddrUnix::new(path)
        .map_err(|errno| SocketError::Path("name socket", path.to_owned(), errno))
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("make a socket"))
}

/// What becomes of descriptors that come over a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// They are received. The peer is one of ours, and sends none that are traps.
    Trusted,
    /// They are received. The peer is anybody, so the socket is closed where nobody waits.
    Taken,
    /// The kernel refuses them, so that none can be in the queue.
    Refused,
    /// They are not taken, and the kernel cannot refuse them (Linux before 6.16): each packet is looked at
    /// before it is received, and the socket is closed where nobody waits.
    Unwanted,
}

/// Lets descriptors come over a socket, and over those that a listening one accepts, or has the kernel
/// refuse them.
fn pass_rights(fd: &OwnedFd, pass: bool) -> Result<(), Errno> {
    const SO_PASSRIGHTS: c_int = 83;
    const SOL_SOCKET: c_int = 1;
    unsafe extern "C" {
        // libc's, which std links; rustix does not have the option.
        fn setsockopt(
            socket: c_int,
            level: c_int,
            name: c_int,
            value: *const c_void,
            length: c_uint,
        ) -> c_int;
    }
    let value = c_int::from(pass);
    // SAFETY: `value` is readable for its size, and the kernel reads no more than that.
    let result = unsafe {
        setsockopt(
            fd.as_raw_fd(),
            SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const value).cast(),
            size_of::<c_int>() as c_uint,
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    Ok(())
}

/// Has the kernel refuse descriptors, or says that it cannot.
fn refuse_rights(fd: &OwnedFd) -> Rights {
    match pass_rights(fd, false) {
        Ok(()) => Rights::Refused,
        Err(_) => Rights::Unwanted,
    }
}

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
        let listens = rustix::net::sockopt::socket_acceptconn(&fd) == Ok(true)
            && rustix::net::sockopt::socket_type(&fd) == Ok(SocketType::SEQPACKET);
        if count != 1 || !listens {
            let what =
                "take the service manager's socket, which must be one that listens for packets";
            return Some(Err(SocketError::System(what, Errno::INVAL)));
        }
        let flags = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
            .and_then(|()| rustix::io::ioctl_fionbio(&fd, true));
        Some(match flags {
            Ok(()) => Ok(Self {
                fd,
                rights: Rights::Trusted,
            }),
            Err(errno) => Err(SocketError::System("set a socket", errno)),
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
            Ok(fd) => Ok(Some(Connection::new(fd, self.rights))),
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

/// What came in one packet.
pub type Received = (Vec<u8>, Vec<OwnedFd>);

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    /// Taken out where the connection ends, and nowhere else.
    fd: ManuallyDrop<OwnedFd>,
    rights: Rights,
}

/// Who is at the other end, by the kernel's word.
#[derive(Debug)]
pub struct Peer {
    /// Its process id in our namespace, or 0 if it has none there.
    pub pid: i32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its effective group when it connected.
    pub gid: u32,
    /// Becomes readable when the process ends.
    pub pidfd: OwnedFd,
}

impl Peer {
    /// A number that no other process ever has while the machine runs, where the kernel gives one (Linux
    /// 6.9): it tells processes apart that have no process id here.
    #[must_use]
    pub fn identity(&self) -> Option<u64> {
        // Before pidfs, all descriptors of processes were of one inode.
        const PIDFS: u64 = 0x5049_4446;
        let kind = rustix::fs::fstatfs(&self.pidfd).ok()?.f_type;
        let is_pidfs = u64::try_from(kind).is_ok_and(|kind| kind == PIDFS);
        is_pidfs
            .then(|| rustix::fs::fstat(&self.pidfd).ok())?
            .map(|facts| facts.st_ino)
    }
}

impl Connection {
    const fn new(fd: OwnedFd, rights: Rights) -> Self {
        Self {
            fd: ManuallyDrop::new(fd),
            rights,
        }
    }

    /// Connects to a listener.
    ///
    /// # Errors
    /// [`SocketError::PathTooLong`], or what the kernel says; see [`SocketError::nobody_there`].
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
        Self::new(fd, Rights::Trusted)
    }

    /// Takes a connected SEQPACKET socket over which anybody may send descriptors from now on.
    #[must_use]
    pub fn from_stranger(fd: OwnedFd) -> Self {
        // Where the kernel does not know the option, they come anyhow.
        let _ = pass_rights(&fd, true);
        Self::new(fd, Rights::Taken)
    }

    /// Closes this end, of which another process of ours has a copy: should that process be gone, what has
    /// come since is closed with it, and that may wait.
    pub fn give_away(self) {
        let fd = OwnedFd::from(self);
        closer::run(move || drop(fd));
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
        Ok(Self::new(fd, self.rights))
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
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
        if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > DESCRIPTORS_MAX {
            bytes.truncate(received.bytes);
            return Err(SocketError::Descriptors(bytes));
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(SocketError::Length);
        }
        if received.bytes == 0 {
            return Err(SocketError::Closed);
        }
        bytes.truncate(received.bytes);
        bytes.shrink_to_fit();
        Ok((bytes, fds))
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

    /// Who is at the other end.
    ///
    /// # Errors
    /// When the process is gone already, or cannot be seen from here (pid 0) by a kernel before 6.5.
    pub fn peer(&self) -> Result<Peer, SocketError> {
        const SO_PEERPIDFD: c_int = 77;
        let [pid, uid, gid] = self.credentials()?;
        let pid = pid.cast_signed();
        let pidfd = match self.option::<1>(SO_PEERPIDFD) {
            // SAFETY: the kernel just made this descriptor (close-on-exec) for us alone.
            Ok([fd]) => unsafe { OwnedFd::from_raw_fd(fd.cast_signed()) },
            Err(Errno::NOPROTOOPT) => {
                let known = rustix::process::Pid::from_raw(pid).ok_or(SocketError::System(
                    "ask for a peer in another pid namespace, which needs Linux 6.5",
                    Errno::SRCH,
                ))?;
                rustix::process::pidfd_open(known, rustix::process::PidfdFlags::empty())
                    .map_err(system("open a peer's process"))?
            }
            Err(errno) => return Err(SocketError::System("open a peer's process", errno)),
        };
        Ok(Peer {
            pid,
            uid,
            gid,
            pidfd,
        })
    }

    /// The user at the other end, by the kernel's word: who connected, or who began to listen.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn peer_user(&self) -> Result<u32, SocketError> {
        let [_, uid, _] = self.credentials()?;
        Ok(uid)
    }

    /// The peer's process, user and group: struct ucred, read here because a pid of 0 is no
    /// `rustix::process::Pid`.
    fn credentials(&self) -> Result<[u32; 3], SocketError> {
        const SO_PEERCRED: c_int = 17;
        self.option::<3>(SO_PEERCRED)
            .map_err(system("ask for a peer"))
    }

    /// Reads a socket option of `N` 32-bit words.
    fn option<const N: usize>(&self, name: c_int) -> Result<[u32; N], Errno> {
        const SOL_SOCKET: c_int = 1;
        unsafe extern "C" {
            // libc's, which std links; rustix has neither of the two options in a usable form.
            fn getsockopt(
                socket: c_int,
                level: c_int,
                name: c_int,
                value: *mut c_void,
                length: *mut c_uint,
            ) -> c_int;
        }
        let mut value = [0u32; N];
        let bytes = size_of::<[u32; N]>() as c_uint;
        let mut length = bytes;
        // SAFETY: `value` is writable for `length` bytes, and the kernel writes no more than that.
        let result = unsafe {
            getsockopt(
                self.fd.as_raw_fd(),
                SOL_SOCKET,
                name,
                value.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
        }
        if length == bytes {
            Ok(value)
        } else {
            Err(Errno::INVAL)
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
            closer::run(
                move || {
                    while matches!(has_control(&fd, RecvFlags::DONTWAIT), Ok(true)) {}
                },
            );
        }
    }
}

/// Whether a socket's next packet carries more than bytes, or is there at all where all carry who sent them.
/// What it carries is not opened here.
fn has_control(fd: &OwnedFd, flags: RecvFlags) -> Result<bool, Errno> {
    // With no room for any, the kernel says that there was something.
    let looked = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(fd, &mut [], &mut RecvAncillaryBuffer::default(), flags)
    })?;
    Ok(looked.flags.contains(ReturnFlags::CTRUNC))
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

/// Waits until at least one descriptor is readable or at its end, or `most` is over (`None`: never),
/// and says which ones are.
///
/// # Errors
/// When the kernel refuses.
pub fn poll(fds: &[BorrowedFd<'_>], most: Option<Duration>) -> Result<Vec<bool>, SocketError> {
    let mut asked: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let deadline = most.map(|most| std::time::Instant::now() + most);
    loop {
        let left = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            rustix::time::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match rustix::event::poll(&mut asked, left.as_ref()) {
            Ok(_) => return Ok(asked.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(SocketError::System("wait for descriptors", errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::closer::tests::Trap;

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
    fn an_empty_queue_is_closed_at_once() {
        let (ours, theirs) = strange(Rights::Taken);
        theirs.send(b"read", &[]).unwrap();
        ours.receive().unwrap();
        drop(ours);
        assert!(theirs.is_closed());
    }

    #[test]
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

    #[test]
    fn who_has_no_number_here_is_from_outside_of_a_namespace() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(!has_all_users("0 1000 1\n1 100000 65536\n"));
        assert!(!has_all_users(""));
        assert!(!is_from_outside(0) && !is_from_outside(1000));
    }

    fn folder_of(path: &Path) -> std::fs::File {
        std::fs::File::open(path).unwrap()
    }
}
