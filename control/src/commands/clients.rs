//! Commands that list clients and end them.
//!
//! Called by the table of commands. Must not end a client itself: its server is told, and the answer waits.

use std::fmt::Write;

use cuda_abi::CUresult;
use protocol::control_messages::Takeovers;
use protocol::limits::FENCED;
use serde_json::{Value, json};

use super::answer::{Answer, Awaited, Caller};
use super::line::Arguments;
use super::lookup::server;
use crate::daemon::Daemon;
use crate::servers::faults::Fault;

pub(super) fn get_client_list(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let id = match server(daemon, caller, arguments.word(0)) {
        Ok(id) => id,
        Err(refusal) => return refusal,
    };
    let mut text = String::new();
    let mut list = Vec::new();
    for client in daemon.clients_seen_by(caller, id) {
        let _ = writeln!(text, "{}", client.pid);
        list.push(json!({
            "pid": client.pid,
            "id": client.serial,
            "uid": client.uid,
            "command": client.program,
        }));
    }
    Answer::text(text).with_value(Value::from(list))
}

pub(super) fn ps(daemon: &mut Daemon, caller: Caller, arguments: &Arguments<'_>) -> Answer {
    let only = match arguments.value("-p") {
        Some(pid) => match server(daemon, caller, Some(pid)) {
            Ok(id) => Some(id),
            // Twice, and an empty line: as scripts see it from NVIDIA's.
            Err(refusal) => {
                return Answer {
                    text: format!("{0}{0}\n", refusal.text),
                    value: Some(json!({ "error": refusal.text.trim_end() })),
                    ..refusal
                };
            }
        },
        None => None,
    };
    let servers: Vec<_> = daemon
        .registry()
        .servers
        .iter()
        .filter(|(id, server)| daemon.may_see_server(caller, **id) && !server.key.is_standby())
        .collect();
    if servers.is_empty() {
        // Exits 0: nothing is wrong where nobody has come yet.
        return Answer::line("Server not found").with_value(json!([]));
    }
    // Columns more than NVIDIA's, where there is something to be in them.
    let shown = || {
        let each = servers.iter();
        each.flat_map(|(id, _)| daemon.clients_seen_by(caller, **id))
    };
    let fenced = shown().any(|client| client.limits.fenced);
    let labelled = shown().any(|client| client.label.is_some());
    let faulted = shown().any(|client| client.fault.is_some());
    let taken_over = shown().any(|client| client.takeovers.count > 0);
    let row = |text: &mut String, fields: [&str; 6], more: [&str; 4]| {
        let [isolation, label, fault, takeovers] = more;
        let [pid, id, server, device, namespace, command] = fields;
        let _ = write!(
            text,
            "{pid:<10}{id:<10}{server:<15}{device:<26}{namespace:<15}{command:<15}"
        );
        if fenced {
            let _ = write!(text, " {isolation:<10}");
        }
        if labelled {
            let _ = write!(text, " {label:<15}");
        }
        if faulted {
            let _ = write!(text, " {fault:<15}");
        }
        if taken_over {
            let _ = write!(text, " {takeovers:<15}");
        }
        text.push('\n');
    };
    let mut text = String::new();
    let mut list = Vec::new();
    for (id, server) in &servers {
        if only.is_some_and(|only| only != **id) {
            continue;
        }
        for client in daemon.clients_seen_by(caller, **id) {
            if text.is_empty() {
                row(
                    &mut text,
                    ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"],
                    ["ISOLATION", "LABEL", "FAULT", "TAKEN OVER"],
                );
            }
            let fault = client.fault.as_ref();
            let word = fault.map(|fault| format!("{} {}", fault.guilt, fault.code));
            let of = client.takeovers;
            let takeovers = format!(
                "{} {}/{}/{}",
                of.count, of.untouched, of.repeated, of.failed
            );
            for device in &server.devices {
                row(
                    &mut text,
                    [
                        &client.pid.to_string(),
                        &client.serial.to_string(),
                        &server.pid().to_string(),
                        super::devices::short(&device.uuid),
                        &client.namespace.to_string(),
                        &client.program,
                    ],
                    [
                        if client.limits.fenced { FENCED } else { "-" },
                        client.label.as_deref().unwrap_or("-"),
                        word.as_deref().unwrap_or("-"),
                        if of.count > 0 { &takeovers } else { "-" },
                    ],
                );
                list.push(json!({
                    "pid": client.pid,
                    "id": client.serial,
                    "server": server.pid(),
                    "uid": client.uid,
                    "device": device.uuid,
                    "namespace": client.namespace,
                    "command": client.program,
                    "label": client.label,
                    "fault": fault.map(Fault::value),
                    "fenced": client.limits.fenced,
                    "takeovers": takeovers_value(&client.takeovers),
                }));
            }
        }
    }
    Answer::text(text).with_value(Value::from(list))
}

/// What was taken over, as commands show it for programs.
pub(super) fn takeovers_value(takeovers: &Takeovers) -> Value {
    json!({
        "count": takeovers.count,
        "untouched": takeovers.untouched,
        "repeated": takeovers.repeated,
        "failed": takeovers.failed,
    })
}

/// Prints 0 when the client's work has ended and its memory is free, else a line that says why not
/// and a CUDA error number on its own: tools read the last line.
pub(super) fn terminate_client(
    daemon: &mut Daemon,
    caller: Caller,
    arguments: &Arguments<'_>,
) -> Answer {
    let failed = |text: String| {
        let code = CUresult::ERROR_INVALID_VALUE.0;
        let why = text.lines().next_back().unwrap_or("");
        let value = json!({ "error": why, "result": code });
        Answer {
            exit: 1,
            ..Answer::text(format!("{text}{code}\n")).with_value(value)
        }
    };
    let Ok(id) = server(daemon, caller, arguments.word(0)) else {
        let pid = arguments.word(0).unwrap_or("0");
        return failed(format!("Server {pid} not found\nServer {pid} not found!\n"));
    };
    let word = arguments.word(1).unwrap_or("0");
    let sessions = match word.parse::<i32>() {
        // 0 is whoever cannot be seen from here: it names nobody.
        Ok(pid) if pid != 0 => daemon.terminate(id, pid, caller),
        _ => Vec::new(),
    };
    match sessions.last() {
        Some(&session) => Answer {
            text: "0\n".into(),
            ..Answer::pending_until(Awaited::Ended(session))
        }
        .with_value(json!({ "result": 0 })),
        None => failed(format!("Invalid process {word}!\n")),
    }
}
