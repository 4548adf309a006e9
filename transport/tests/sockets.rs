//! Packets, descriptors, limits, and who is at the other end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transport::memory::Sealed;
use transport::socket::{
    Connection, DESCRIPTORS_MAX, Listener, PACKET_MAX, PATH_MAX, SocketError, poll,
};

/// A folder of this test's own, removed when it is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("openmps-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn packets_keep_their_bounds_and_descriptors_arrive() {
    let (one, other) = Connection::pair().unwrap();
    let memory = Sealed::create("test", 4096).unwrap();
    one.send(b"first", &[memory.as_fd(), memory.as_fd()])
        .unwrap();
    one.send(b"second", &[]).unwrap();
    let (bytes, fds) = other.receive().unwrap();
    assert_eq!((&bytes[..], fds.len()), (&b"first"[..], 2));
    for fd in fds {
        let flags = rustix::io::fcntl_getfd(&fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        Sealed::from_fd(fd, 4096).unwrap();
    }
    let (bytes, fds) = other.receive().unwrap();
    assert_eq!((&bytes[..], fds.len()), (&b"second"[..], 0));
    assert!(other.try_receive().unwrap().is_none());
    let long = vec![7; PACKET_MAX];
    one.send(&long, &[]).unwrap();
    assert_eq!(other.receive().unwrap().0, long);
}

#[test]
fn limits_hold_on_both_sides() {
    let (one, other) = Connection::pair().unwrap();
    let memory = Sealed::create("test", 4096).unwrap();
    let many = vec![memory.as_fd(); DESCRIPTORS_MAX + 1];
    assert!(matches!(one.send(&[], &[]), Err(SocketError::Length)));
    assert!(matches!(
        one.send(&vec![0; PACKET_MAX + 1], &[]),
        Err(SocketError::Length)
    ));
    assert!(matches!(
        one.send(b"x", &many),
        Err(SocketError::Descriptors(_))
    ));
    // A peer that does not keep to them.
    let raw: OwnedFd = one.into();
    rustix::net::send(
        &raw,
        &vec![0; PACKET_MAX + 1],
        rustix::net::SendFlags::empty(),
    )
    .unwrap();
    assert!(matches!(other.receive(), Err(SocketError::Length)));
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    send_descriptors(&raw, &many);
    assert!(matches!(other.receive(), Err(SocketError::Descriptors(_))));
    // Other tests of this process have descriptors too, but not so many.
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(
        after < before + DESCRIPTORS_MAX,
        "{before} descriptors became {after}"
    );
    drop(raw);
    assert!(matches!(other.receive(), Err(SocketError::Closed)));
}

fn send_descriptors(to: &OwnedFd, fds: &[BorrowedFd<'_>]) {
    let mut space = [std::mem::MaybeUninit::uninit(); 256];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)));
    let bytes = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(to, &bytes, &mut control, rustix::net::SendFlags::empty())
        .expect("the kernel takes them");
}

#[test]
fn the_end_of_a_connection_is_seen_by_everybody() {
    let (one, other) = Connection::pair().unwrap();
    let copy = one.try_clone().unwrap();
    drop(one);
    assert!(!other.is_closed());
    drop(copy);
    assert!(other.is_closed());
    assert!(matches!(other.send(b"x", &[]), Err(SocketError::Closed)));
    assert!(matches!(other.try_receive(), Err(SocketError::Closed)));
    assert_eq!(poll(&[other.as_fd()], None).unwrap(), [true]);
}

#[test]
fn waiting_has_limits() {
    let (one, _other) = Connection::pair().unwrap();
    let began = Instant::now();
    one.set_receive_timeout(Some(Duration::from_millis(30)))
        .unwrap();
    assert!(one.receive().unwrap_err().would_wait());
    assert_eq!(
        poll(&[one.as_fd()], Some(Duration::from_millis(30))).unwrap(),
        [false]
    );
    assert!(began.elapsed() >= Duration::from_millis(60));
    while one.try_send(&[0; 1000], &[]).is_ok() {}
    assert!(one.try_send(&[0; 1000], &[]).unwrap_err().would_wait());
}

#[test]
fn a_listener_tells_who_connected() {
    let folder = Folder::new("sockets");
    let path = folder.0.join("control");
    assert!(
        Connection::connect(&path)
            .unwrap_err()
            .is_nobody_listening()
    );
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let connector = path.clone();
    let client = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        Connection::connect_within(connector, Some(Duration::from_secs(5))).unwrap()
    });
    let accepted = listener.accept().unwrap();
    let client = client.join().unwrap();
    let peer = accepted.peer().unwrap();
    assert_eq!(peer.pid.cast_unsigned(), std::process::id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    // This process has not ended.
    assert_eq!(
        poll(&[peer.pidfd.as_fd()], Some(Duration::ZERO)).unwrap(),
        [false]
    );
    accepted.send(b"hello", &[]).unwrap();
    assert_eq!(client.receive().unwrap().0, b"hello");
    let second = Listener::bind(&path).unwrap_err().to_string();
    assert!(second.contains("control"), "{second}");
    drop(listener);
    assert!(
        Connection::connect(&path)
            .unwrap_err()
            .is_nobody_listening()
    );
}

#[test]
fn a_path_that_is_too_long_is_said_to_be() {
    let folder = Folder::new("paths");
    let room = PATH_MAX - folder.0.as_os_str().len() - 1;
    let fits = folder.0.join("p".repeat(room));
    let listener = Listener::bind(&fits).unwrap();
    Connection::connect(&fits).unwrap();
    drop(listener);
    let long = folder.0.join("p".repeat(room + 1));
    for error in [
        Listener::bind(&long).unwrap_err(),
        Connection::connect(&long).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("108 bytes") && text.contains("107"), "{text}");
        assert!(text.contains(long.to_str().unwrap()), "{text}");
    }
}
