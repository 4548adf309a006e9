//! Which servers' clients are moved to servers of another program, and which stay.
//!
//! Kept by the daemon's upgrade, called by `daemon::moving`. Must not know servers: `registry` has them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::registry::ServerId;

/// How long clients are moved. Those that were not by then stay.
const MOVED_WITHIN: Duration = Duration::from_secs(30);

/// How far it is.
#[derive(Debug)]
pub(crate) struct Moving {
    /// Until when another server is asked.
    pub(crate) until: Instant,
    /// The server that was asked, until it has answered and is gone.
    pub(crate) asked: Option<ServerId>,
    /// Servers that keep their clients.
    pub(crate) stay: BTreeSet<ServerId>,
}

impl Moving {
    /// It begins at this time.
    pub(crate) fn begin(now: Instant) -> Self {
        Self {
            until: now + MOVED_WITHIN,
            asked: None,
            stay: BTreeSet::new(),
        }
    }

    /// When it is over, unless a server's answer is waited for.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.asked.is_none().then_some(self.until)
    }
}
