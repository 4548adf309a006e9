//! What is answered where limits are changed or shown: a client's, a line for a device's memory, a refusal.
//!
//! Called by the commands and by `daemon::limit_changes`, which knows what came of a change only later. Must not know how
//! limits are changed.

use std::fmt::Write;
use std::time::Duration;

use protocol::limits;
use serde_json::{Value, json};

use super::answer::Answer;
use crate::daemon::Daemon;
use crate::servers::limits::as_given;
use crate::servers::registry::ServerId;

/// Says that a change does not hold.
pub fn refused_change(why: &str) -> Answer {
    Answer::refusal(format_args!("nothing has changed: {why}"))
}

/// A line and a value for what may be had of a device and what is.
pub(super) fn memory_line(text: &mut String, device: &str, limit: Option<u64>, used: u64) -> Value {
    let over = limit.is_some_and(|limit| used > limit);
    let _ = match limit {
        Some(limit) => write!(text, "  device {device}: {used} of {limit} bytes in use"),
        None => write!(text, "  device {device}: {used} bytes in use, no limit"),
    };
    let _ = writeln!(
        text,
        "{}",
        if over {
            "; allocations fail until less is"
        } else {
            ""
        }
    );
    json!({ "device": device, "limit": limit, "used": used, "over": over })
}

/// A line for how long a kernel may run, where that is limited.
pub(super) fn kernel_time_line(limit: Option<Duration>) -> String {
    match limit {
        Some(limit) => format!("  a kernel: {} at most\n", limits::kernel_time_text(limit)),
        None => String::new(),
    }
}

/// The same in milliseconds.
pub(super) fn kernel_millis(limit: Option<Duration>) -> Option<u64> {
    limit.and_then(|limit| u64::try_from(limit.as_millis()).ok())
}

/// A line for that kernels are fenced, where they are.
pub(super) const fn fenced_line(fenced: bool) -> &'static str {
    if fenced { "  isolation: fenced\n" } else { "" }
}

/// What a client has, after a change or when it was asked for.
pub fn client_limits(daemon: &Daemon, id: ServerId, session: u64, used: &[u64]) -> Answer {
    let server = daemon.registry().servers.get(&id);
    let client = server.and_then(|server| Some((server, server.clients.get(&session)?)));
    let Some((server, client)) = client else {
        return Answer::refusal("the client is gone");
    };
    let limits = &client.limits;
    let mut text = format!(
        "Client {} ({}) of server {}\n  compute: {:.1} %{}, priority {}\n{}{}",
        client.pid,
        client.program,
        server.pid(),
        limits.percentage,
        if limits.reserved { ", reserved" } else { "" },
        limits.priority,
        kernel_time_line(limits.kernel_time),
        fenced_line(limits.fenced)
    );
    let each = (0..).zip(used);
    let memory: Vec<Value> = each
        .map(|(device, &used)| {
            let limit = limits.memory.get(&device).copied();
            memory_line(&mut text, &device.to_string(), limit, used)
        })
        .collect();
    let group = client
        .group
        .and_then(|number| daemon.groups().by_number.get(&number));
    if let Some(group) = group {
        let _ = writeln!(text, "  and what group {} has together", group.name);
    }
    let value = json!({
        "client": client.pid,
        "server": server.pid(),
        "id": client.serial,
        "command": client.program,
        "percentage": as_given(limits.percentage),
        "reserved": limits.reserved,
        "priority": limits.priority,
        "kernel_time": kernel_millis(limits.kernel_time),
        "fenced": limits.fenced,
        "memory": memory,
        "group": group.map(|group| &group.name),
    });
    Answer::text(text).with_value(value)
}
