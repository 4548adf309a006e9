//! The structured log: a line of JSON for each thing that happened, with who, what and why.
//!
//! `control.log` and `server.log` speak to the tools that know NVIDIA's; `events.jsonl` speaks to
//! everybody else. It is the daemon's alone: what servers have to say, they say to the daemon.
//!
//! Called by the daemon where something happens. Must not know which file a line goes to.

use serde_json::{Map, Value, json};

use super::quota::LeftOut;
use crate::servers::registry::{Client, Server};

/// What a server's events begin with.
pub(crate) fn of_server(server: &Server) -> Value {
    json!({ "server": server.pid(), "uid": server.uid })
}

/// What a client's events begin with.
pub(crate) fn of_client(server: &Server, client: &Client) -> Value {
    json!({
        "server": server.pid(),
        "client": client.pid,
        "uid": client.uid,
        "program": client.program,
    })
}

pub(crate) fn line(what: &str, who: Value, more: Value) -> String {
    let mut line = Map::new();
    let now = jiff::Timestamp::now();
    line.insert("time".into(), json!(format!("{now:.3}")));
    line.insert("event".into(), json!(what));
    for part in [who, more] {
        if let Value::Object(fields) = part {
            line.extend(fields);
        }
    }
    format!("{}\n", Value::from(line))
}

/// The event that there were more than are in the log.
pub(crate) fn left_out_event(left_out: &LeftOut) -> String {
    line(
        "log.left_out",
        json!({ "about": left_out.about.to_string() }),
        json!({ "events": left_out.lines, "seconds": left_out.during.as_secs() }),
    )
}
