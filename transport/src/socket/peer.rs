//! Who is at the other end of a connection, by the kernel's word: SO_PEERCRED and SO_PEERPIDFD.
//!
//! The daemon tells its clients apart by it. Nothing that a peer says counts here. Must not know who is allowed what.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::connection::Connection;
use super::error::{SocketError, system};

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
                self.as_fd().as_raw_fd(),
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
