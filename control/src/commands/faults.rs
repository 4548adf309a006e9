//! The command `faults`: the last faults of clients' contexts, who had them and whose they were.
//!
//! Called by the table of commands. Must not know how faults come about.

use std::fmt::Write;

use serde_json::{Value, json};

use super::answer::{Answer, Caller};
use super::line::Arguments;
use crate::daemon::Daemon;
use crate::servers::faults::ClientFault;

/// Lists those of clients that the caller might see, the last one last. Where their clients have gone they stay in the list
/// until there were many more.
pub(super) fn faults(daemon: &mut Daemon, caller: Caller, _: &Arguments<'_>) -> Answer {
    let mut text = String::new();
    let mut list = Vec::new();
    for one in daemon.faults_seen_by(caller) {
        if text.is_empty() {
            let _ = writeln!(
                text,
                "{:<25}{:<10}{:<10}{:<10}{:<7}{:<15}",
                "TIME", "SERVER", "PID", "GUILT", "ERROR", "COMMAND"
            );
        }
        let ClientFault { fault, program, .. } = one;
        let time = format!("{:.0}", fault.time);
        let (guilt, code) = (fault.guilt.word(), fault.code);
        let _ = writeln!(
            text,
            "{time:<25}{:<10}{:<10}{guilt:<10}{code:<7}{program:<15}",
            one.server, one.pid
        );
        list.push(value(one));
    }
    Answer::text(text).with_value(Value::from(list))
}

/// A fault with who had it.
pub(super) fn value(one: &ClientFault) -> Value {
    let mut value = one.fault.value();
    if let Value::Object(fields) = &mut value {
        let who = json!({
            "number": one.number,
            "server": one.server,
            "pid": one.pid,
            "session": one.session,
            "uid": one.uid,
            "command": one.program,
            "label": one.label,
            "pod": one.pod,
        });
        if let Value::Object(who) = who {
            fields.extend(who);
        }
    }
    value
}
