//! Descriptors that come over a socket (SCM_RIGHTS): what becomes of them.
//!
//! Sockets that strangers can reach refuse them by SO_PASSRIGHTS where the kernel can. Called by connections and
//! listeners. Must not know what the descriptors are for.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags};

/// What becomes of descriptors that come over a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
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
pub(super) fn pass_rights(fd: &OwnedFd, pass: bool) -> Result<(), Errno> {
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
pub(super) fn refuse_rights(fd: &OwnedFd) -> Rights {
    match pass_rights(fd, false) {
        Ok(()) => Rights::Refused,
        Err(_) => Rights::Unwanted,
    }
}

/// Whether a socket's next packet carries more than bytes, or is there at all where all carry who sent them.
/// What it carries is not opened here.
pub(super) fn has_control(fd: &OwnedFd, flags: RecvFlags) -> Result<bool, Errno> {
    // With no room for any, the kernel says that there was something.
    let looked = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(fd, &mut [], &mut RecvAncillaryBuffer::default(), flags)
    })?;
    Ok(looked.flags.contains(ReturnFlags::CTRUNC))
}
