//! The faults of clients' contexts that servers have told of: how many of each kind, and the last ones with who had them,
//! whose they were and when.
//!
//! Kept by the registry, filled by `daemon::servers`, read by commands and views. Must not decide who may see them.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use protocol::control_messages::{FaultCount, Guilt};
use serde_json::{Value, json};

use super::registry::{Client, Server};

/// Faults that are remembered. A client tells of 32 at most.
const REMEMBERED: usize = 256;

/// Kinds that are counted apart: few, whatever servers say, which are no more trusted than their users.
const KINDS: usize = 60;

/// What those are counted as that are too many.
const ERROR_UNKNOWN: u32 = 999;

/// A fault of a client's context.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// When the daemon was told.
    pub time: Timestamp,
    /// A CUresult.
    pub code: u32,
    /// Whose it was.
    pub guilt: Guilt,
    /// What happened.
    pub text: String,
}

impl Fault {
    /// As commands show it for programs.
    #[must_use]
    pub fn value(&self) -> Value {
        json!({
            "time": format!("{:.3}", self.time),
            "error": self.code,
            "guilt": self.guilt.word(),
            "why": self.text,
        })
    }
}

/// A fault with who had it, who may be gone.
#[derive(Clone, Debug)]
pub struct ClientFault {
    /// Its number, from 1: later ones have higher ones.
    pub number: u64,
    /// What it was.
    pub fault: Fault,
    /// The server's process.
    pub server: u32,
    /// The client's process, or 0.
    pub pid: i32,
    /// The client's session.
    pub session: u64,
    /// The client's user.
    pub uid: u32,
    /// Its group's number.
    pub group: Option<u32>,
    /// Its program's name.
    pub program: String,
    /// What it was called besides.
    pub label: Option<String>,
    /// The pod that it was in.
    pub pod: Option<String>,
}

/// All that is known of faults.
#[derive(Debug, Default)]
pub struct Faults {
    last: VecDeque<ClientFault>,
    counts: BTreeMap<(u32, Guilt), u64>,
    count: u64,
}

impl Faults {
    /// Notes a fault of a server's client.
    pub(crate) fn add(&mut self, server: &Server, session: u64, client: &Client, fault: Fault) {
        self.count_kind(fault.code, fault.guilt);
        self.count += 1;
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(ClientFault {
            number: self.count,
            fault,
            server: server.pid(),
            pid: client.pid,
            session,
            uid: client.uid,
            group: client.group,
            program: client.program.clone(),
            label: client.label.clone(),
            pod: client.container.pod.clone(),
        });
    }

    fn count_kind(&mut self, code: u32, guilt: Guilt) {
        let known = self.counts.contains_key(&(code, guilt)) || self.counts.len() < KINDS;
        let code = if known { code } else { ERROR_UNKNOWN };
        *self.counts.entry((code, guilt)).or_default() += 1;
    }

    /// The last ones, the oldest first.
    pub(crate) fn last(&self) -> impl DoubleEndedIterator<Item = &ClientFault> {
        self.last.iter()
    }

    /// How many of each kind there were.
    #[must_use]
    pub fn counts(&self) -> Vec<FaultCount> {
        let each = self.counts.iter();
        each.map(|(&(code, guilt), &count)| FaultCount { code, guilt, count })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_few_whatever_servers_say() {
        let mut faults = Faults::default();
        for code in 0..10_000 {
            faults.count_kind(code, Guilt::Suspect);
        }
        faults.count_kind(700, Guilt::Guilty);
        faults.count_kind(3, Guilt::Suspect);
        let counts = faults.counts();
        assert!(counts.len() <= KINDS + 3, "{}", counts.len());
        let sum: u64 = counts.iter().map(|kind| kind.count).sum();
        assert_eq!(sum, 10_002);
        let of = |code, guilt| {
            let mut all = counts.iter();
            all.find(|kind| (kind.code, kind.guilt) == (code, guilt))
                .map(|kind| kind.count)
        };
        assert_eq!(of(3, Guilt::Suspect), Some(2));
        assert_eq!(of(ERROR_UNKNOWN, Guilt::Guilty), Some(1));
    }
}
