//! Servers as commands name them, and what is said of those that a caller may not know of.
//!
//! Called by commands that name a server or a client. Must not change either.

use std::fmt::Display;

use super::answer::{Answer, Caller};
use crate::daemon::Daemon;
use crate::servers::registry::{Client, Server, ServerId};

/// What is said to who may not do what changes things.
pub(super) fn not_allowed(caller: Caller, what: &str) -> Answer {
    if caller.group.is_some() {
        return Answer::refusal(format_args!(
            "{what} is for root, and not through a group's socket"
        ));
    }
    Answer::refusal(format_args!(
        "{what} is for root and user {} only",
        rustix::process::geteuid().as_raw()
    ))
}

/// What every command says of a server that is not there, or that the caller may not see.
pub(super) fn server_not_found(pid: impl Display) -> Answer {
    Answer::refusal(format_args!("Server {pid} not found"))
}

/// The server that an argument names, if the caller may know of it.
pub(super) fn server(
    daemon: &Daemon,
    caller: Caller,
    argument: Option<&str>,
) -> Result<ServerId, Answer> {
    let text = argument.unwrap_or("0");
    text.parse()
        .ok()
        .and_then(|pid| daemon.registry().by_pid(pid))
        .filter(|id| daemon.may_see_server(caller, *id))
        .ok_or_else(|| server_not_found(text))
}

pub(super) fn with_server(
    daemon: &mut Daemon,
    caller: Caller,
    argument: Option<&str>,
    answer: impl FnOnce(&mut Server) -> Answer,
) -> Answer {
    match server(daemon, caller, argument) {
        Ok(id) => daemon
            .with_server(id, answer)
            .unwrap_or_else(|| server_not_found(argument.unwrap_or("0"))),
        Err(refusal) => refusal,
    }
}

/// As [`with_server`], for what changes the settings of a server, which are those of all contexts of its user.
pub(super) fn with_settings_of(
    daemon: &mut Daemon,
    caller: Caller,
    argument: Option<&str>,
    change: impl FnOnce(&mut Server) -> Answer,
) -> Answer {
    let answer = with_server(daemon, caller, argument, change);
    if let Ok(id) = server(daemon, caller, argument) {
        daemon.share_settings(id);
    }
    answer
}

/// A client by its server and session.
pub(super) type Named = (ServerId, u64);

/// The clients that a text names, of those that the caller may see: by its process id, of which there may be several; by its
/// server's and its number there, as `ps` has them; or as `session/` and a number, as `openmps top --json` has it.
pub(super) fn clients(daemon: &Daemon, caller: Caller, text: &str) -> Vec<Named> {
    enum NamedClient {
        Pid(u64),
        Serial(u32, u64),
        Session(u64),
    }
    let number = |text: &str| text.parse::<u64>().ok();
    let wanted = match text.split_once('/') {
        Some(("session", session)) => number(session).map(NamedClient::Session),
        Some((server, serial)) => server
            .parse()
            .ok()
            .zip(number(serial))
            .map(|(server, serial)| NamedClient::Serial(server, serial)),
        // 0 is whoever cannot be seen from here: it names nobody.
        None => number(text).filter(|&pid| pid != 0).map(NamedClient::Pid),
    };
    let Some(wanted) = wanted else {
        return Vec::new();
    };
    let is_wanted = |server: &Server, session: u64, client: &Client| match wanted {
        NamedClient::Pid(pid) => u64::try_from(client.pid) == Ok(pid),
        NamedClient::Serial(pid, serial) => server.pid() == pid && client.serial == serial,
        NamedClient::Session(wanted) => session == wanted,
    };
    let mut found = Vec::new();
    for (&id, server) in &daemon.registry().servers {
        for (&session, client) in &server.clients {
            if daemon.sees_client(caller, client) && is_wanted(server, session, client) {
                found.push((id, session));
            }
        }
    }
    found
}
