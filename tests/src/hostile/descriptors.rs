//! A descriptor of every kind that a process can pass, and all the places where one can be left.
//!
//! Called by the attacks of `tests/hostile`. Must not know what becomes of a descriptor.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use protocol::control_messages::Purpose;
use protocol::operations::{FILE_PACKET, FileMap, MemInfo};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use transport::socket::Connection;

use super::client::{BareClient, client_greeting, connect, greeting};

/// Bytes of the files.
const BYTES: u64 = 1 << 16;

/// A descriptor to send.
#[derive(Debug)]
pub struct Kind {
    /// What it is.
    pub name: &'static str,
    fd: OwnedFd,
    /// What must stay open beside it.
    beside: Vec<OwnedFd>,
    /// Whether its file is cut to nothing when somebody else has it.
    is_cut: bool,
}

impl Kind {
    fn new(name: &'static str, fd: impl Into<OwnedFd>) -> Self {
        Self {
            name,
            fd: fd.into(),
            beside: Vec::new(),
            is_cut: false,
        }
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What its owner does before it is sent.
    fn prepare(&self) {
        if self.is_cut {
            rustix::fs::ftruncate(&self.fd, BYTES).expect("a file of ours");
        }
    }

    /// What its owner does when it is sent.
    fn was_sent(&self) {
        if self.is_cut {
            rustix::fs::ftruncate(&self.fd, 0).expect("a file of ours");
        }
    }

    /// Closes it on a thread that nobody waits for, since that may take an hour. Gives what must stay open for
    /// that.
    pub fn close(self) -> Vec<OwnedFd> {
        let fd = self.fd;
        std::thread::spawn(move || drop(fd));
        self.beside
    }
}

/// A descriptor that a system call made.
fn made(name: &'static str, number: libc::c_long) -> Kind {
    let number = i32::try_from(number).expect("a descriptor");
    assert!(number >= 0, "{name}: {}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just made it for us, and nobody else knows of it.
    Kind::new(name, unsafe { OwnedFd::from_raw_fd(number) })
}

fn memfd(bytes: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("hostile", flags).expect("a memfd"));
    file.set_len(bytes).expect("room");
    file
}

/// A TCP socket with data that nobody reads, whose last close waits for an hour.
fn lingering() -> Kind {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let mut socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (peer, _) = listener.accept().expect("loopback");
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).expect("a socket");
    rustix::net::sockopt::set_socket_recv_buffer_size(&peer, 4096).expect("a socket");
    let moment = Some(Duration::from_millis(20));
    socket.set_write_timeout(moment).expect("a socket");
    while socket.write(&[0; 4096]).is_ok() {}
    let hour = Some(Duration::from_secs(3600));
    rustix::net::sockopt::set_socket_linger(&socket, hour).expect("a socket");
    Kind {
        beside: vec![peer.into()],
        ..Kind::new("a TCP socket that lingers", socket)
    }
}

/// A Unix socket in whose own queue it lies.
fn cycle() -> Kind {
    let (one, other) = Connection::pair().expect("a pair of sockets");
    other
        .send(b"itself", &[one.as_fd()])
        .expect("room in its queue");
    let fd = one.as_fd().try_clone_to_owned().expect("a descriptor");
    Kind::new("a socket that carries itself", fd)
}

/// One of each kind. Those that this machine refuses are told of through `absent`.
pub fn every_kind(absent: &mut dyn FnMut(&str)) -> Vec<Kind> {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let (one, other) = Connection::pair().expect("a pair of sockets");
    let unix = one.as_fd().try_clone_to_owned().expect("a descriptor");
    let open = |path: &str, flags| {
        rustix::fs::open(path, flags, Mode::empty()).expect("every machine has it")
    };
    let sealed = memfd(BYTES);
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&sealed, seals).expect("a memfd of ours");
    let own = rustix::process::getpid();
    let pidfd = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
    let zero = libc::c_long::from(0_i32);
    // SAFETY: all of these take numbers, and a signal set of this frame's.
    let of_calls = unsafe {
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        [
            made("an eventfd", libc::syscall(libc::SYS_eventfd2, zero, zero)),
            made(
                "a timerfd",
                libc::c_long::from(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)),
            ),
            made(
                "a signalfd",
                libc::c_long::from(libc::signalfd(-1, &raw const none, 0)),
            ),
            made("an epoll", libc::c_long::from(libc::epoll_create1(0))),
            made("an inotify", libc::c_long::from(libc::inotify_init1(0))),
        ]
    };
    let mut kinds = vec![
        lingering(),
        cycle(),
        Kind::new("a pipe's end to read", read),
        Kind::new("a pipe's end to write", write),
        Kind {
            beside: vec![other.as_fd().try_clone_to_owned().expect("a descriptor")],
            ..Kind::new("a Unix socket", unix)
        },
        Kind::new("a memfd", memfd(BYTES)),
        Kind::new("a memfd with all seals", sealed),
        Kind::new("an empty memfd", memfd(0)),
        Kind {
            is_cut: true,
            ..Kind::new("a memfd that is cut", memfd(BYTES))
        },
        Kind::new("a pidfd", pidfd.expect("a process of ours")),
        Kind::new("a path", open("/", OFlags::PATH)),
        Kind::new("a directory", open("/", OFlags::RDONLY)),
        Kind::new("/dev/null", open("/dev/null", OFlags::RDWR)),
        Kind::new("/dev/zero", open("/dev/zero", OFlags::RDWR)),
        Kind::new("a file of /proc", open("/proc/self/maps", OFlags::RDONLY)),
    ];
    kinds.extend(of_calls);
    // SAFETY: the call takes a number.
    let number = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if number >= 0 {
        kinds.push(made("a userfaultfd", number));
    } else {
        absent("this user may make no userfaultfd");
    }
    kinds
}

/// What has been sent to, with descriptors in its queues.
#[derive(Debug, Default)]
pub struct Left {
    _connections: Vec<Connection>,
    _clients: Vec<BareClient>,
}

/// Sends a descriptor wherever one can be sent to the daemon or group of a directory and to its server: in the
/// place of a greeting, behind a greeting, beside a question, as a file to be registered, as one that is never
/// registered, and beside what is no packet at all.
///
/// # Panics
/// If a client that has done nothing yet is refused.
pub fn send_everywhere(directory: &Path, kind: &Kind) -> Left {
    let fds = [kind.fd()];
    kind.prepare();
    // A refusal by the kernel, and the end of the connection, are what should come of it.
    let first = connect(directory);
    first.send(b"x", &fds).ok();
    let second = connect(directory);
    second.send(&client_greeting(), &[]).ok();
    second.send(b"x", &fds).ok();
    let third = connect(directory);
    let line = "get_server_list".to_owned();
    third.send(&greeting(Purpose::Command { line }), &fds).ok();
    kind.was_sent();

    let clients = [FILE_PACKET, b"x"].map(|packet| {
        let client = BareClient::attach(directory)
            .unwrap_or_else(|answer| panic!("{}: {answer:?}", kind.name))
            .with_context();
        kind.prepare();
        client.end.connection().send(packet, &fds).ok();
        // Answered with an address or an error, or with the session's end.
        client.end.call(&map_file(), &[]).ok();
        kind.was_sent();
        client.end.connection().send(packet, &fds).ok();
        client.end.call(&MemInfo { device: 0 }, &[]).ok();
        client
    });
    Left {
        _connections: vec![first, second, third],
        _clients: clients.into(),
    }
}

/// Asks for the file that was sent to be mapped.
pub fn map_file() -> FileMap {
    FileMap {
        bytes: BYTES,
        ..FileMap::default()
    }
}
