//! What came of sessions that another server took over.
//!
//! Servers tell the daemon, which adds them up and shows them. `docs/design/failover.md` has what becomes of work. Must
//! not know how a session is taken over.

use crate::codec::message;

message! {
    /// How often sessions were taken over, and what became of the operations that were under way.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Takeovers {
        /// Takeovers.
        pub count: u64,
        /// Operations that had not been begun.
        pub untouched: u64,
        /// Operations that may have been begun before, and were done again.
        pub repeated: u64,
        /// Operations that failed, as a kernel was cut off.
        pub failed: u64,
    }
}

impl Takeovers {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        // Servers say so, who are no more trusted than their users.
        self.count = self.count.saturating_add(other.count);
        self.untouched = self.untouched.saturating_add(other.untouched);
        self.repeated = self.repeated.saturating_add(other.repeated);
        self.failed = self.failed.saturating_add(other.failed);
    }
}
