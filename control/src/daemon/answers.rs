//! Answers to commands, and those that wait: for a server to be ready or gone, for clients to end, for limits to hold.
//!
//! Called by the event loop, and by whatever an answer has waited for. Must not know what is in an answer.

use std::time::{Duration, Instant};

use transport::socket::Connection;

use super::Daemon;
use super::pending::PendingAnswer;
use crate::commands::{self, Answer, Awaited, Caller};

/// How long the answer to `terminate_client` waits for the client's work to end.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// What is said of a change that nobody has answered in time: it may hold later.
pub(super) const NO_ANSWER: &str = "the server has not answered yet";

/// Commands that may wait for something at a time.
const MAX_PENDING_ANSWERS: usize = 1024;

impl Daemon {
    /// Gives an answer, now or when what it waits for has come to pass.
    pub(crate) fn answer(
        &mut self,
        connection: Connection,
        caller: Caller,
        line: &str,
        mut answer: Answer,
    ) {
        match answer.until.take() {
            Some(until) if self.pending.len() < MAX_PENDING_ANSWERS => {
                let deadline = matches!(until, Awaited::Ended(_) | Awaited::Changed(_));
                self.pending.push(PendingAnswer {
                    connection,
                    until,
                    again: answer.again.then(|| (caller, line.to_owned())),
                    deadline: deadline.then(|| Instant::now() + ENDED_WITHIN),
                    answer,
                });
            }
            Some(Awaited::Changed(_)) => {
                answer.fail(NO_ANSWER);
                send_answer(&connection, &answer);
            }
            _ => send_answer(&connection, &answer),
        }
    }

    /// Gives the answers that wait for this, or says why it will never come to pass.
    pub(crate) fn resolve_answers(
        &mut self,
        which: impl Fn(Awaited) -> bool,
        failed: Option<&str>,
    ) {
        let (now, later) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| which(pending.until));
        self.pending = later;
        for mut pending in now {
            if let Some(failed) = failed {
                pending.answer.fail(failed);
            }
            match pending.again.take() {
                Some((caller, line)) if failed.is_none() => {
                    let answer = commands::run(self, caller, &line);
                    self.answer(pending.connection, caller, &line, answer);
                }
                _ => send_answer(&pending.connection, &pending.answer),
            }
        }
    }

    /// Gives an answer in place of one that waits for this.
    pub(crate) fn answer_with(&mut self, until: Awaited, answer: &Answer) {
        let waiting = |pending: &mut PendingAnswer| pending.until == until;
        for mut pending in self.pending.extract_if(.., waiting).collect::<Vec<_>>() {
            for line in answer.text.lines() {
                self.log(line);
            }
            pending.answer = Answer {
                as_json: pending.answer.as_json,
                ..answer.clone()
            };
            send_answer(&pending.connection, &pending.answer);
        }
    }

    /// Answers the command that had this daemon take another's place.
    pub(super) fn answer_who_asked_for_this_daemon(&mut self) {
        if let Some((connection, text)) = self.instance.take_asker() {
            let answer = Answer {
                text,
                ..Answer::default()
            };
            send_answer(&connection, &answer);
        }
    }

    /// What waits for one thing waits for another.
    pub(crate) fn replace_awaited(&mut self, one: Awaited, other: Awaited) {
        for pending in &mut self.pending {
            if pending.until == one {
                pending.until = other;
            }
        }
    }
}

/// Sends an answer to whoever still waits for it. The daemon never waits for a reader.
pub(super) fn send_answer(connection: &Connection, answer: &Answer) {
    let remark = answer.remark.as_deref().filter(|_| !answer.as_json);
    if let Some(remark) = remark {
        let packet = protocol::control_messages::remark(remark);
        let _ = connection.try_send(&packet.encode(), &[]);
    }
    for packet in protocol::control_messages::command_output(answer.exit, &answer.output()) {
        if connection.try_send(&packet.encode(), &[]).is_err() {
            return;
        }
    }
}
