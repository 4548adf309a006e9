//! The daemon's list of servers, with those that stand by, which its list for NVIDIA's tools leaves out.
//!
//! Called by checks that name servers. Must not ask the daemon.

use serde::Deserialize;

/// A server of the list.
#[derive(Debug, Deserialize)]
pub(super) struct ListedServer {
    pub(super) pid: u32,
    status: String,
}

impl ListedServer {
    /// Whether it waits, without clients, for the end of another one.
    pub(super) fn stands_by(&self) -> bool {
        self.status == "STANDBY"
    }
}

/// What the daemon has answered to this.
pub(super) const COMMAND: &str = "get_server_list --json";

/// The servers of an answer.
pub(super) fn read(answer: &str) -> Vec<ListedServer> {
    serde_json::from_str(answer).unwrap_or_default()
}
