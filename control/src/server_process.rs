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
use rustix::process::DumpableBehavior;
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
        .env_remove(crate::notify::VARIABLE)
        .env_remove("LISTEN_FDS")
        .env_remove("LISTEN_PID")
        .env_remove("LISTEN_FDNAMES")
        // A Ctrl-C meant for a foreground daemon is not for its servers: the daemon ends them.
        .process_group(0);
    if rustix::process::geteuid().is_root() && uid != 0 {
        // Supplementary groups go with the change of user.
        command.uid(uid);
        command.gid(gid.unwrap_or_else(|| group_of(uid)));
    }
    let child = command.spawn()?;
    // A server runs as its clients' user, and has none to give.
    Ok((child, ours.refuse_descriptors()))
}

/// The group of a user who has not come as a client, by the system's list of users; nobody's group if
/// it is not there. Never root's.
fn group_of(uid: u32) -> u32 {
    const NOBODY: u32 = 65_534;
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    group_in(&users, uid).unwrap_or(NOBODY)
}

fn group_in(users: &str, uid: u32) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let number: u32 = fields.next()?.parse().ok()?;
        let group: u32 = fields.next()?.parse().ok()?;
        (number == uid && group != 0).then_some(group)
    })
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
    let connection = Connection::from_fd(stdin);
    hide(&connection);
    let log = Log::from_file(File::from(std::io::stdout().as_fd().try_clone_to_owned()?));
    // What tools look for; the name of the file that runs would be "exe".
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
    Ok((connection, log))
}

/// Keeps a server that runs as its clients' user out of their hands: else they could open its files,
/// among them the ledgers that other groups' and users' servers share, or trace it. The daemon can,
/// being another user who may do anything.
fn hide(daemon: &Connection) {
    let own = rustix::process::geteuid().as_raw();
    if daemon.peer().is_ok_and(|peer| peer.uid != own) {
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_come_from_the_list_of_users_and_are_never_roots() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nodd line\nada:x:1000:1001::/home/ada:\nbob:x:7:0::/:\n";
        assert_eq!(group_in(users, 1000), Some(1001));
        assert_eq!(group_in(users, 7), None);
        assert_eq!(group_in(users, 8), None);
    }
}
