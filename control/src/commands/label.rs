//! `label`: what a client is called in lists.
//!
//! Foreign text: `daemon_interface::label` says what of it is kept. Nothing is decided by it.
//!
//! Called by the table of commands. Must not know who may be found by a label.

use daemon_interface::label;
use serde_json::json;
use transport::socket::overflow_uid;

use super::answer::{Answer, Caller};
use super::line::Arguments;
use super::lookup::clients;
use crate::daemon::Daemon;
use crate::servers::registry::Client;

/// Words that the command takes: a client, and as many as a label can have.
pub(super) const WORDS: usize = 1 + label::MOST;

/// Names all sessions of a process, or one.
pub(super) fn label(daemon: &mut Daemon, caller: Caller, arguments: &Arguments<'_>) -> Answer {
    let Some((name, text)) = arguments.words.split_first() else {
        return Answer::refusal("label takes a client's process id, and what to call it");
    };
    let text = text.join(" ");
    if text.len() > label::MOST {
        return Answer::refusal(format_args!(
            "a label has {} bytes at most, and this one has {}",
            label::MOST,
            text.len()
        ));
    }
    let text = label::of(&text);
    let may_change = daemon.may_change(caller);
    let may =
        |client: &Client| may_change || client.uid == caller.uid && caller.uid != overflow_uid();
    let found = clients(daemon, caller, name);
    let mut last = Answer::refusal(format_args!("Client {name} not found"));
    for (id, session) in found {
        let Some(client) = daemon.client_mut(id, session) else {
            continue;
        };
        if !may(client) {
            return Answer::refusal(format_args!(
                "Client {name} is another user's: that user and root may label it"
            ));
        }
        client.label.clone_from(&text);
        let said = match &text {
            Some(text) => format!("Client {} ({}): {text}", client.pid, client.program),
            None => format!("Client {} ({}) has no label", client.pid, client.program),
        };
        last = Answer::line(said).with_value(json!({
            "client": client.pid,
            "session": session,
            "command": client.program,
            "label": text,
        }));
    }
    last
}
