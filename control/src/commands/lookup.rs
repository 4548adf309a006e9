//! Servers as commands name them, and what is said of those that a caller may not know of.

use std::fmt::Display;

use super::answer::{Answer, Caller};
use crate::daemon::Daemon;
use crate::servers::registry::{Server, ServerId};

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
pub(super) fn not_found(pid: impl Display) -> Answer {
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
        .and_then(|pid| daemon.registry.by_pid(pid))
        .filter(|id| daemon.sees(caller, *id))
        .ok_or_else(|| not_found(text))
}

pub(super) fn with_server(
    daemon: &mut Daemon,
    caller: Caller,
    argument: Option<&str>,
    answer: impl FnOnce(&mut Server) -> Answer,
) -> Answer {
    match server(daemon, caller, argument) {
        Ok(id) => match daemon.registry.servers.get_mut(&id) {
            Some(server) => answer(server),
            None => not_found(argument.unwrap_or("0")),
        },
        Err(refusal) => refusal,
    }
}
