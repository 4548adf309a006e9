//! A change of limits that servers have been told of and have not all answered.
//!
//! Kept by the daemon for `limit_changes`. Plain data: it must not know packets.

use std::collections::BTreeSet;

use crate::groups::saved::GroupLimits;
use crate::servers::limits::ClientLimits;
use crate::servers::registry::ServerId;

/// Whose limits change.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A client's, to these; or it is only asked what it has taken.
    Client {
        server: ServerId,
        session: u64,
        /// What it then has.
        limits: Option<ClientLimits>,
    },
    /// A group's, which had these before.
    Group {
        /// The group.
        number: u32,
        /// What it had.
        previous: GroupLimits,
    },
    /// A group's or a partition's that is new, and goes again if it is refused.
    New { number: u32 },
}

/// A change that servers have been told of.
#[derive(Debug)]
pub(super) struct PendingLimitChange {
    pub(super) subject: Subject,
    /// Servers that have not answered.
    pub(super) awaited: BTreeSet<ServerId>,
    /// Why it does not hold.
    pub(super) refused: Option<String>,
    /// Bytes of each device that the client has taken.
    pub(super) used: Vec<u64>,
}
