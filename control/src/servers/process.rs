//! How a server process is started, and how it finds what it was started with.
//!
//! Called by `daemon::servers`, and in the server's own process by `openmps`. Must not know why it is started, nor
//! what it says.
//!
//! It gets its connection to the daemon as standard input and server.log as standard output and
//! error, so that it needs no argument, no path and no rights to the directories, whatever user it
//! runs as.
//!
//! A server of another user's begins as root and becomes that user itself: a process that changes its user
//! before it runs its program can be traced by that user while it does so, and its environment read. Of the
//! daemon's environment it gets what a server reads, and nothing else.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use protocol::control_messages::Packet;
use rustix::io::Errno;
use rustix::net::SocketType;
use rustix::process::{DumpableBehavior, Gid, Uid};
use transport::socket::{Connection, SocketError};

use crate::log::Log;
use crate::process_limits;

/// The name that a server has in process lists.
pub const SERVER_NAME: &str = "nvidia-cuda-mps-server";

/// Names the user and group, by numbers, that a server is to be.
const USER_VARIABLE: &str = "OPENMPS_SERVER_USER";

/// Set in a server that waits for the daemon's word on the underlay before it opens the driver.
const UNDERLAY_VARIABLE: &str = "OPENMPS_SERVER_UNDERLAY";

/// Set in a server whose user may have several, of which the daemon passes questions on.
pub const ONE_OF_SEVERAL_VARIABLE: &str = "OPENMPS_SERVER_ONE_OF_SEVERAL";

/// Set in a server that gets one client, and never another.
pub const ONE_CLIENT_VARIABLE: &str = "OPENMPS_SERVER_OF_ONE_CLIENT";

/// The descriptor that a server has of the underlay's pipe directory: above those that it opens until then.
const UNDERLAY_DESCRIPTOR: RawFd = 100;

/// The pipe directory of NVIDIA's MPS for the driver in a server. Only who was handed the descriptor comes to it: its
/// true path leads through a directory of the daemon's user alone.
pub const UNDERLAY_PIPE: &str = "/proc/self/fd/100";

/// Variables of the daemon's that a server gets. Those that begin so are ours, CUDA's and the driver's.
const BEGINNINGS: [&str; 4] = ["OPENMPS_", "CUDA_", "NVIDIA_", "LC_"];
const NAMES: [&str; 7] = [
    "LANG",
    "LD_LIBRARY_PATH",
    "PATH",
    "RUST_BACKTRACE",
    "TMPDIR",
    "TZ",
    "TZDIR",
];

/// What a server gets beside them that runs as the daemon's own user: where the driver keeps what it compiled.
const OF_THE_SAME_USER: [&str; 2] = ["HOME", "XDG_CACHE_HOME"];

fn is_for_servers(name: &str) -> bool {
    let of_the_daemon = [
        crate::startup::notify::READY_VARIABLE,
        crate::files::handed_on::VARIABLE,
        USER_VARIABLE,
        UNDERLAY_VARIABLE,
        ONE_CLIENT_VARIABLE,
        ONE_OF_SEVERAL_VARIABLE,
    ];
    let is_the_daemons = of_the_daemon.contains(&name);
    let begins = BEGINNINGS
        .iter()
        .any(|beginning| name.starts_with(beginning));
    (begins || NAMES.contains(&name)) && !is_the_daemons
}

/// Starts a server for a user. `command` is how this program is run as a server. One that is to be on the underlay waits
/// for [`send_underlay`]; of one that sends no descriptors none are taken.
///
/// # Errors
/// What the system says.
pub fn start(
    mut command: Command,
    (uid, gid): (u32, Option<u32>),
    log: &Log,
    is_on_underlay: bool,
    sends_descriptors: bool,
) -> std::io::Result<(Child, Connection)> {
    let (ours, theirs) = Connection::pair().map_err(std::io::Error::other)?;
    let own: Vec<(OsString, Option<OsString>)> = command
        .get_envs()
        .map(|(name, value)| (name.to_owned(), value.map(ToOwned::to_owned)))
        .collect();
    command
        .arg0(SERVER_NAME)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(log.try_clone_file()?))
        .stderr(Stdio::from(log.try_clone_file()?))
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| {
            let name = name.to_str();
            name.is_some_and(is_for_servers)
        }))
        // A Ctrl-C meant for a foreground daemon is not for its servers: the daemon ends them.
        .process_group(0);
    if is_on_underlay {
        command.env(UNDERLAY_VARIABLE, "1");
    }
    for (name, value) in own {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let is_another = rustix::process::geteuid().is_root() && uid != 0;
    if is_another {
        let gid = gid.unwrap_or_else(|| group_of(uid));
        command.env(USER_VARIABLE, format!("{uid}:{gid}"));
    } else {
        for name in OF_THE_SAME_USER {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
    }
    let child = command.spawn()?;
    // A server runs as its clients' user, and has none to give but what its clients' memory is kept by, or is shared with clients
    // of others of its user.
    let connection = match sends_descriptors {
        true => Connection::from_stranger(ours.into()),
        false => ours.refuse_descriptors(),
    };
    Ok((child, connection))
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

/// The user and group that [`connect_to_daemon`] will make of this process, if it is to be another.
#[must_use]
pub fn user_to_be() -> Option<(u32, u32)> {
    parse_user(std::env::var_os(USER_VARIABLE)?.to_str()?)
}

/// Takes what [`start`] gave to this process, and becomes the user that it is to be. To be called before
/// there is another thread.
///
/// # Errors
/// When this process was not started as a server, or cannot become that user.
pub fn connect_to_daemon() -> std::io::Result<(Connection, Log)> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned()?;
    if rustix::net::sockopt::socket_type(&stdin).ok() != Some(SocketType::SEQPACKET) {
        return Err(std::io::Error::other(
            "a server is started by its daemon: nvidia-cuda-mps-control -d",
        ));
    }
    let connection = Connection::from_fd(stdin);
    if let Some(user) = std::env::var_os(USER_VARIABLE) {
        let user = user.to_str().and_then(parse_user);
        let (uid, gid) = user.ok_or_else(|| {
            std::io::Error::other(format!("{USER_VARIABLE} names no user and group"))
        })?;
        become_user(uid, gid).map_err(|error| {
            std::io::Error::other(format!("cannot become user {uid} of group {gid}: {error}"))
        })?;
    }
    process_limits::survive_file_size_limit()?;
    let log = Log::from_file(File::from(std::io::stdout().as_fd().try_clone_to_owned()?))?;
    // What tools look for; the name of the file that runs would be "exe".
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
    Ok((connection, log))
}

/// Tells a server that waits for it where the underlay is, or why there is none; then it ends.
///
/// # Errors
/// When it does not listen.
pub fn send_underlay(
    server: &Connection,
    underlay: Result<&Underlay, &str>,
) -> Result<(), SocketError> {
    let text = underlay.err().unwrap_or_default().to_owned();
    let fds = underlay.ok();
    let fds = fds.map(|lent| [lent.directory.as_fd(), lent.lease.as_fd()]);
    let fds = fds.as_ref().map_or(&[][..], |fds| fds);
    server.try_send(&Packet::Underlay { text }.encode(), fds)
}

/// What a server has of the underlay.
#[derive(Debug)]
pub struct Underlay {
    /// The pipe directory of NVIDIA's MPS.
    pub directory: OwnedFd,
    /// As long as somebody has it open, that MPS runs.
    pub lease: OwnedFd,
}

/// Why a server that is to be on the underlay is not.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveUnderlayError {
    /// The daemon is gone.
    #[error("the daemon has not said where the underlay is: {0}")]
    Daemon(#[source] SocketError),
    /// There is none, as the daemon says.
    #[error("there is no underlay: {0}")]
    None(String),
    /// This process has no room for the descriptor.
    #[error("no descriptor for the underlay: {0}")]
    Descriptor(#[source] Errno),
    /// Something else has the number that the driver was told.
    #[error("descriptor {UNDERLAY_DESCRIPTOR} is taken")]
    Taken,
}

/// Waits for [`send_underlay`], in a server that is to be on the underlay. What it gives is to be kept as long as the server
/// uses the driver.
///
/// # Errors
/// Why there is no underlay.
pub fn receive_underlay(daemon: &Connection) -> Result<Option<Underlay>, ReceiveUnderlayError> {
    if std::env::var_os(UNDERLAY_VARIABLE).is_none() {
        return Ok(None);
    }
    let (bytes, fds) = daemon.receive().map_err(ReceiveUnderlayError::Daemon)?;
    let text = match Packet::decode(&bytes) {
        Ok(Packet::Underlay { text }) => text,
        Ok(Packet::Shutdown { .. }) => "the server is to end".to_owned(),
        _ => "the daemon said something out of place".to_owned(),
    };
    let (true, Ok([directory, lease])) = (text.is_empty(), <[OwnedFd; 2]>::try_from(fds)) else {
        return Err(ReceiveUnderlayError::None(text));
    };
    // The driver finds it by its number, which the environment has had from the start.
    let directory = rustix::io::fcntl_dupfd_cloexec(&directory, UNDERLAY_DESCRIPTOR)
        .map_err(ReceiveUnderlayError::Descriptor)?;
    match directory.as_raw_fd() {
        UNDERLAY_DESCRIPTOR => Ok(Some(Underlay { directory, lease })),
        _ => Err(ReceiveUnderlayError::Taken),
    }
}

/// A user and a group, neither of them root's or the number that stands for none.
fn parse_user(text: &str) -> Option<(u32, u32)> {
    let (uid, gid) = text.split_once(':')?;
    let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
    (uid != 0 && uid != u32::MAX && gid != u32::MAX).then_some((uid, gid))
}

/// Gives up root's rights for good, and keeps this process out of that user's hands: else its clients' user
/// could open its files, among them the accounts that other groups' and users' servers share, or trace it.
/// The daemon can, being another user who may do anything.
fn become_user(uid: u32, gid: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match rustix::thread::set_thread_groups(&[]) {
        // A user namespace can forbid it: then there are none to be given up.
        Ok(()) | Err(Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    // These change one thread, and there is one.
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    rustix::thread::set_no_new_privs(true)?;
    // The change of user sets it to what fs.suid_dumpable says.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    if rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok() {
        return Err(Errno::PERM);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_what_it_reads_of_the_environment() {
        for name in ["OPENMPS_ENGINE", "CUDA_VISIBLE_DEVICES", "LC_ALL", "TZ"] {
            assert!(is_for_servers(name), "{name}");
        }
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "HOME",
            "LD_PRELOAD",
            "NOTIFY_SOCKET",
            "LISTEN_FDS",
            USER_VARIABLE,
            UNDERLAY_VARIABLE,
            crate::startup::notify::READY_VARIABLE,
        ] {
            assert!(!is_for_servers(name), "{name}");
        }
    }

    #[test]
    fn the_path_of_the_underlay_is_that_of_its_descriptor() {
        assert_eq!(
            UNDERLAY_PIPE,
            format!("/proc/self/fd/{UNDERLAY_DESCRIPTOR}")
        );
    }

    #[test]
    fn a_server_becomes_nobody_by_mistake() {
        assert_eq!(parse_user("1000:100"), Some((1000, 100)));
        for text in [
            "",
            "1000",
            "0:100",
            "4294967295:1",
            "1:4294967295",
            "-1:1",
            "a:b",
        ] {
            assert_eq!(parse_user(text), None, "{text}");
        }
    }

    #[test]
    fn groups_come_from_the_list_of_users_and_are_never_roots() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\nodd line\nada:x:1000:1001::/home/ada:\nbob:x:7:0::/:\n";
        assert_eq!(group_in(users, 1000), Some(1001));
        assert_eq!(group_in(users, 7), None);
        assert_eq!(group_in(users, 8), None);
    }
}
