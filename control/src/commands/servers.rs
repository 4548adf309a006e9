//! Commands that start, list and end servers.
//!
//! Called by the table of commands. Must not start a process: `daemon::servers` does.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::answer::{Answer, Awaited, Caller};
use super::clients::takeovers_value;
use super::faults;
use super::line::Arguments;
use super::lookup::{server, server_not_found};
use crate::daemon::Daemon;
use crate::servers::registry::{Server, State};

pub(super) fn start_server(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let uid = arguments
        .value("-uid")
        .and_then(|uid| uid.parse::<u32>().ok());
    let Some(uid) = uid else {
        return Answer::refusal("A user id (UID) is required to start a new server");
    };
    if uid != caller.uid && !daemon.may_change(caller) {
        return Answer::refusal("start_server for another user is for root only");
    }
    if let Some(other) = daemon.server_in_the_way_of(uid) {
        if daemon.shut_down_if_idle(other) {
            return Answer::repeated_after(Awaited::Gone(other));
        }
        return Answer::refusal(
            "another user's server has clients; this user's starts when they have left \
             (a daemon started with -M serves all at once)",
        );
    }
    match daemon.start_for_user(uid) {
        Ok(id) => match daemon.registry().servers.get(&id) {
            Some(server) if server.state == State::Initializing => {
                Answer::pending_until(Awaited::Ready(id))
            }
            _ => Answer::nothing(),
        },
        Err(error) => Answer::refusal(error),
    }
}

pub(super) fn shutdown_server(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    match server(daemon, caller, arguments.word(0)) {
        Ok(id) => {
            daemon.context_was_shut_down(id);
            daemon.standby_was_shut_down(id);
            daemon.shut_down_server(id, arguments.has("-f"), None);
            Answer::pending_until(Awaited::Gone(id))
        }
        Err(refusal) => refusal,
    }
}

pub(super) fn quit(daemon: &mut Daemon, _: Caller, arguments: &Arguments<'_>) -> Answer {
    let grace = match arguments.value("-t").map(str::parse::<u32>) {
        None => None,
        Some(Ok(seconds)) => Some(Duration::from_secs(seconds.into())),
        Some(Err(_)) => return Answer::refusal("quit -t takes a number of seconds"),
    };
    daemon.quit(grace);
    Answer::pending_until(Awaited::AllGone)
}

pub(super) fn upgrade(daemon: &mut Daemon, _: Caller, _: &Arguments<'_>) -> Answer {
    match daemon.begin_upgrade() {
        Ok(()) => Answer::pending_until(Awaited::Replaced),
        Err(error) => Answer::refusal(error),
    }
}

pub(super) fn get_server_list(daemon: &mut Daemon, caller: Caller, _: &Arguments<'_>) -> Answer {
    let mut text = String::new();
    let mut list = Vec::new();
    for (id, server) in &daemon.registry().servers {
        if !daemon.may_see_server(caller, *id) {
            continue;
        }
        // Who reads the text knows of servers that have clients, or that clients come to.
        if !server.key.is_standby() {
            let _ = writeln!(text, "{}", server.pid());
        }
        list.push(json!({
            "pid": server.pid(),
            "uid": server.uid,
            "status": status(server),
            "clients": server.clients.len(),
            "underlay": server.underlay.is_some(),
            "takeovers": takeovers_value(&server.takeovers),
        }));
    }
    Answer::text(text).with_value(Value::from(list))
}

const fn status(server: &Server) -> &'static str {
    match server.state {
        State::Initializing => "INITIALIZING",
        State::Active if server.key.is_standby() => "STANDBY",
        State::Active => "ACTIVE",
        State::Fault | State::HandingOver => "FAULT",
        State::Stopping => "STOPPING",
    }
}

pub(super) fn get_server_status(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let id = match server(daemon, caller, arguments.word(0)) {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let Some(server) = daemon.registry().servers.get(&id) else {
        return server_not_found(arguments.word(0).unwrap_or("0"));
    };
    let status = status(server);
    // Of its clients, those that have gone too, the last that had one.
    let mut faults = daemon.faults_seen_by(caller).rev();
    let fault = faults.find(|one| one.server == server.pid());
    let value = json!({
        "pid": server.pid(),
        "status": status,
        "underlay": server.underlay.is_some(),
        "fault": fault.map(faults::value),
    });
    Answer::line(status).with_value(value)
}

pub(super) fn underlay(daemon: &mut Daemon, caller: Caller, _: &Arguments<'_>) -> Answer {
    let (text, value) = daemon.describe_underlay();
    if !daemon.may_change(caller) {
        // The numbers of others' servers are not for everybody, nor are the machine's paths.
        let (mode, state) = (&value["mode"], &value["state"]);
        let words = [mode, state].map(|word| word.as_str().unwrap_or_default());
        return Answer::line(words.join(": ")).with_value(json!({ "mode": mode, "state": state }));
    }
    Answer::line(text).with_value(value)
}
