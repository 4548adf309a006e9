//! Who has clients recorded as time lines, and which: as long as its connection lasts.
//!
//! What is recorded goes from servers to who asked; of that the daemon sees nothing.
//!
//! Kept by the daemon, changed by `daemon::time_lines`.

use std::collections::BTreeMap;

use protocol::control_messages::TimeLineRequest;

use crate::servers::registry::Client;
use crate::views::Asker;

/// Questions at a time: each costs a server a thread, and memory for what nobody reads.
pub(crate) const MOST: usize = 8;

/// Somebody who has clients recorded.
#[derive(Debug)]
pub(crate) struct TimeLine {
    pub(crate) asker: Asker,
    pub(crate) request: TimeLineRequest,
}

impl TimeLine {
    /// Whether it wants this client, should it see it.
    pub(crate) fn wants(&self, client: &Client, own_namespace: u64) -> bool {
        let pid = self.request.pid;
        pid.is_none_or(|pid| pid != 0 && self.asker.pid_of(client, own_namespace) == pid)
    }
}

/// All of them, by number.
pub(crate) type TimeLines = BTreeMap<u64, TimeLine>;
