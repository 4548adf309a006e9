//! What a command comes to: text for people and scripts, a value for programs, and what it waits for before it is given.
//!
//! Made by every command, kept and sent by `daemon::answers`. Must not know how it is sent.

use std::fmt::Display;

use serde_json::{Value, json};

use crate::servers::registry::ServerId;

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A server is ready, or gone.
    Ready(ServerId),
    /// A server is gone.
    Gone(ServerId),
    /// A session is over.
    Ended(u64),
    /// Another program has taken the daemon's place.
    Replaced,
    /// All servers are gone, and the daemon is about to go.
    AllGone,
    /// Those concerned have said whether a change of limits holds.
    Changed(u64),
}

/// Who gave a command, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its process id as seen from here, or 0.
    pub pid: i32,
    /// The group to whose socket it came.
    pub group: Option<u32>,
}

/// What a command comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What it prints.
    pub text: String,
    /// The same for programs; without it, what is made of the text.
    pub value: Option<Value>,
    /// Whether the value is to be printed.
    pub as_json: bool,
    /// What the command client exits with.
    pub exit: u8,
    /// What people are to read beside it, where tools parse the text.
    pub remark: Option<Box<str>>,
    /// What goes to the log in place of the text.
    pub log: Option<String>,
    /// What must come to pass before the answer is given.
    pub until: Option<Awaited>,
    /// Whether the command is to be carried out again then, in place of this answer.
    pub again: bool,
}

impl Answer {
    pub(super) fn line(text: impl Display) -> Self {
        Self::text(format!("{text}\n"))
    }

    pub(super) fn text(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }

    pub(super) fn nothing() -> Self {
        Self::default()
    }

    pub(super) fn refusal(text: impl Display) -> Self {
        Self {
            exit: 1,
            ..Self::line(text)
        }
    }

    pub(crate) fn pending_until(until: Awaited) -> Self {
        Self {
            until: Some(until),
            ..Self::default()
        }
    }

    /// Has the command carried out again when something has come to pass.
    pub(super) fn repeated_after(until: Awaited) -> Self {
        Self {
            again: true,
            ..Self::pending_until(until)
        }
    }

    pub(super) fn with_value(self, value: Value) -> Self {
        Self {
            value: Some(value),
            ..self
        }
    }

    pub(super) fn with_remark(self, remark: impl Display) -> Self {
        Self {
            remark: Some(remark.to_string().into()),
            ..self
        }
    }

    pub(super) fn with_log(self, log: impl Into<String>) -> Self {
        Self {
            log: Some(log.into()),
            ..self
        }
    }

    /// Makes it a failure.
    pub(crate) fn fail(&mut self, text: &str) {
        self.text = format!("{text}\n");
        self.value = None;
        self.exit = 1;
        self.again = false;
    }

    /// What the command client prints.
    #[must_use]
    pub fn output(&self) -> String {
        if !self.as_json {
            return self.text.clone();
        }
        let text = self.text.trim_end();
        let value = match &self.value {
            Some(value) => value.clone(),
            None if self.exit != 0 => json!({ "error": text }),
            None if text.is_empty() => json!({}),
            None => json!({ "message": text }),
        };
        format!("{value}\n")
    }
}
