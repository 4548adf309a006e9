//! A socket's path as the kernel's address, and a socket of the only kind that we use.
//!
//! Listeners and connections begin here. Must not know who listens.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::error::{SocketError, system};
use super::limits::PATH_MAX;

pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, SocketError> {
    if path.as_os_str().len() > PATH_MAX {
        return Err(SocketError::PathTooLong(path.to_owned()));
    }
    SocketAddrUnix::new(path)
        .map_err(|errno| SocketError::Path("name socket", path.to_owned(), errno))
}

pub(super) fn socket(flags: SocketFlags) -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(system("make a socket"))
}
