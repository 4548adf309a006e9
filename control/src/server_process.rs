//! How a server process is started, and how it finds what it was started with.
//!
//! It gets its connection to the daemon as standard input and server.log as standard output and
//! error, so that it needs no argument, no path and no rights to the directories, whatever user it
//! runs as.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::net::SocketType;
use transport::socket::Connection;

use crate::log::Log;

/// The name that a server has in process lists.
pub const SERVER_NAME: &str = "nvidia-cuda-mps-server";

/// Starts a server for a user. `command` is how this program is run as a server.
///
/// # Errors
/// What the system says.
pub fn start(
    mut command: Command,
    uid: u32,
    gid: Option<u32>,
    log: &Log,
) -> std::io::Result<(Child, Connection)> {
    let (ours, theirs) = Connection::pair().map_err(std::io::Error::other)?;
    command
        .arg0(SERVER_NAME)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(log.try_clone_file()?))
        .stderr(Stdio::from(log.try_clone_file()?))
        .env_remove(crate::start::READY_VARIABLE)
        // A Ctrl-C meant for a foreground daemon is not for its servers: the daemon ends them.
        .process_group(0);
    let us = rustix::process::geteuid();
    if us.is_root() && uid != 0 {
        command.uid(uid);
        if let Some(gid) = gid {
            command.gid(gid);
        }
    }
    let child = command.spawn()?;
    Ok((child, ours))
}

/// Takes what [`start`] gave to this process.
///
/// # Errors
/// When this process was not started as a server.
pub fn adopt() -> std::io::Result<(Connection, Log)> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    if rustix::net::sockopt::socket_type(&stdin).ok() != Some(SocketType::SEQPACKET) {
        return Err(std::io::Error::other(
            "a server is started by its daemon: nvidia-cuda-mps-control -d",
        ));
    }
    let log = Log::from_file(File::from(std::io::stdout().as_fd().try_clone_to_owned()?));
    // What tools look for; the name of the file that runs would be "exe".
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
    Ok((Connection::from_fd(stdin), log))
}
