//! What a server holds of its own memory for clients: images and what becomes of them, code, work that
//! waits.
//!
//! It is bounded for each client, for each group's clients together, and for all: a client that sends
//! without end is refused, and those beside it are not. Whoever holds something takes it of its client's
//! bound, before; engines do so for what they keep. Device memory and page-locked memory are none of it
//! (`client_memory`, `host_budget`).
//!
//! Made by the main loop, handed to sessions and engines by admission. Must not know what is held.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use engine::bound::part;
use engine::{Bound, machine};
use parking_lot::Mutex;

/// The part of the machine's memory, or of the control group's, that is held for all clients.
const PART: (u64, u64) = (1, 6);
/// But this much in any case: programs begin with less.
const LEAST: u64 = 256 << 20;
/// The part of that for one client, and for the clients of a group.
const CLIENT: (u64, u64) = (3, 4);
const GROUP: (u64, u64) = (7, 8);

/// What is held for all clients of a server.
#[derive(Debug)]
pub struct ServerMemoryBudget {
    all: Arc<Bound>,
    groups: Mutex<HashMap<u32, Weak<Bound>>>,
}

impl ServerMemoryBudget {
    /// So many bytes for all clients; `None` for a part of what this machine has, or of what this
    /// process may have of it.
    #[must_use]
    pub fn new(bytes: Option<u64>) -> Self {
        let of_machine = || machine::memory().map_or(u64::MAX, |all| part(all, PART).max(LEAST));
        Self {
            all: Arc::new(Bound::new(bytes.unwrap_or_else(of_machine))),
            groups: Mutex::default(),
        }
    }

    /// What may be held for a new client, of a group or of none.
    #[must_use]
    pub fn client(&self, group: Option<u32>) -> Arc<Bound> {
        let outer = group.map_or_else(|| Arc::clone(&self.all), |number| self.group(number));
        Arc::new(Bound::within(&outer, part(self.all.limit(), CLIENT)))
    }

    fn group(&self, number: u32) -> Arc<Bound> {
        let mut groups = self.groups.lock();
        groups.retain(|_, group| group.strong_count() > 0);
        if let Some(group) = groups.get(&number).and_then(Weak::upgrade) {
            return group;
        }
        let group = Arc::new(Bound::within(&self.all, part(self.all.limit(), GROUP)));
        groups.insert(number, Arc::downgrade(&group));
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_and_no_group_takes_what_others_need() {
        let held = ServerMemoryBudget::new(Some(800));
        let [one, two] = [(); 2].map(|()| held.client(Some(1)));
        let other = held.client(None);
        assert!(one.charge(600) && !one.charge(1), "three quarters for one");
        assert!(
            two.charge(100) && !two.charge(1),
            "seven eighths for its group"
        );
        assert!(other.charge(100) && !other.charge(1), "the rest for others");
        drop((one, two));
        other.uncharge(100);
        let again = held.client(Some(1));
        assert_eq!(again.remaining(), 100, "what was not given back is taken");
    }

    #[test]
    fn a_machine_has_room_for_clients() {
        let held = ServerMemoryBudget::new(None);
        assert!(held.all.limit() >= LEAST && held.all.limit() < 1 << 50);
    }
}
