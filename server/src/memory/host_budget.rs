//! How much host memory clients may have in their windows: page-locked, registered and managed memory,
//! none of which the system can take back from them.
//!
//! One client has no more than a part of what all may have, so that it leaves some to those beside it,
//! and where devices' memory is this machine's as well, both together are what all may have. Each client's
//! is bounded by its window too.
//!
//! Called by admission. Must not know what the memory is used for.

use std::sync::Arc;

use engine::bound::part;
use engine::{Bound, machine};

/// Of the memory that there is, the part that clients may have so, as a fraction: what the programs, the
/// server and the system need beside it is left.
const PART: (u64, u64) = (3, 4);

/// Of that, the part that one client may have.
const CLIENT: (u64, u64) = (3, 4);

/// What all clients may have together, and have.
#[derive(Debug)]
pub struct HostMemoryBudget(Arc<Bound>);

impl HostMemoryBudget {
    /// A part of what this machine has, or of what this process may have of it. Without a bound where
    /// the system does not say. `devices` is what devices' memory is taken of, if it is this machine's.
    #[must_use]
    pub fn of_this_machine(devices: Option<&Arc<Bound>>) -> Self {
        let most = part(machine::memory().unwrap_or(u64::MAX), PART);
        Self(Arc::new(match devices {
            Some(devices) => Bound::within(devices, most),
            None => Bound::new(most),
        }))
    }

    /// What one more client may have.
    #[must_use]
    pub fn client(&self) -> Arc<Bound> {
        Arc::new(Bound::within(&self.0, part(self.0.limit(), CLIENT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_takes_what_others_need() {
        let pinned = HostMemoryBudget(Arc::new(Bound::new(1600)));
        let (one, other) = (pinned.client(), pinned.client());
        assert!(one.charge(1200) && !one.charge(1), "three quarters for one");
        assert!(other.charge(400) && !other.charge(1));
        one.uncharge(5);
        assert!(other.charge(5) && !other.charge(1));
    }

    #[test]
    fn devices_that_have_the_machines_memory_share_it() {
        let devices = Arc::new(Bound::new(1000));
        let pinned = HostMemoryBudget::of_this_machine(Some(&devices));
        assert!(pinned.0.limit() > 64 << 20, "of this machine");
        let client = pinned.client();
        assert!(devices.charge(600));
        assert!(client.charge(400) && !client.charge(1) && !devices.charge(1));
        devices.uncharge(600);
        assert!(client.charge(600));
    }
}
