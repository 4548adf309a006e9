//! What each client has made others wait by what it loads, and so whether it has to wait itself.
//!
//! Called by the gate, in its turn. Must not know what is loaded, nor who waited.
//!
//! Time counts in which the gate keeps somebody waiting who has nothing running.
//!
//! All clients that have spent something lately have equal shares of [closed time](MOST_SPENT), and of the time that is made
//! good. So who loads without pause waits for its share, and who comes does not wait for it.

use std::collections::HashMap;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Time for which the gate may have been closed, of that in which it could have been open, for one who loads alone.
pub(super) const MOST_SPENT: Duration = Duration::from_millis(500);
/// For all together, new clients with them.
pub(super) const MOST_TOGETHER: Duration = Duration::from_secs(1);
/// How much longer the gate is open than closed from then on.
pub(super) const OPEN: u32 = 4;

/// Closed time of each client's thread, less what was made good.
#[derive(Debug)]
pub(super) struct LoadBudget {
    spent: HashMap<ThreadId, Duration>,
    /// Until when that is.
    settled: Instant,
}

impl Default for LoadBudget {
    fn default() -> Self {
        Self {
            spent: HashMap::new(),
            settled: Instant::now(),
        }
    }
}

impl LoadBudget {
    /// The gate, closed because of a client, has kept somebody waiting for so long.
    pub(super) fn spend(&mut self, client: ThreadId, closed: Duration, now: Instant) {
        self.settle(now);
        if !closed.is_zero() {
            *self.spent.entry(client).or_default() += closed;
        }
    }

    /// Whether a client has to wait before the gate is closed to what runs because of it.
    pub(super) fn is_over(&mut self, client: ThreadId, now: Instant) -> bool {
        self.settle(now);
        let own = self.spent.get(&client);
        let sharing = self.spent.len() + usize::from(own.is_none());
        let share = MOST_SPENT / u32::try_from(sharing).unwrap_or(u32::MAX);
        own.is_some_and(|own| *own >= share)
            || self.spent.values().sum::<Duration>() >= MOST_TOGETHER
    }

    /// Makes good what was open since, to all alike.
    fn settle(&mut self, now: Instant) {
        let sharing = u32::try_from(self.spent.len()).unwrap_or(u32::MAX).max(1);
        let each = now.saturating_duration_since(self.settled) / OPEN / sharing;
        self.settled = now;
        self.spent.retain(|_, spent| {
            *spent = spent.saturating_sub(each);
            !spent.is_zero()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Identities of as many clients.
    fn clients<const COUNT: usize>() -> [ThreadId; COUNT] {
        std::array::from_fn(|_| std::thread::spawn(|| ()).thread().id())
    }

    #[test]
    fn who_has_spent_its_share_waits_until_that_is_made_good() {
        let mut budget = LoadBudget::default();
        let now = Instant::now();
        let [greedy] = clients();
        assert!(!budget.is_over(greedy, now));
        budget.spend(greedy, MOST_SPENT + Duration::from_millis(100), now);
        assert!(budget.is_over(greedy, now));
        assert!(budget.is_over(greedy, now + Duration::from_millis(99) * OPEN));
        assert!(!budget.is_over(greedy, now + Duration::from_millis(101) * OPEN));
        let later = now + MOST_SPENT * 2 * OPEN;
        assert!(!budget.is_over(greedy, later) && budget.spent.is_empty());
    }

    #[test]
    fn who_comes_does_not_wait_for_who_loads_without_pause() {
        let mut budget = LoadBudget::default();
        let now = Instant::now();
        let [greedy, other] = clients();
        budget.spend(greedy, MOST_SPENT, now);
        assert!(budget.is_over(greedy, now) && !budget.is_over(other, now));
        // Two have half each, and get half of what is made good each.
        budget.spend(other, MOST_SPENT / 4, now);
        assert!(!budget.is_over(other, now));
        budget.spend(other, MOST_SPENT / 4, now);
        assert!(budget.is_over(other, now));
        let later = now + Duration::from_millis(2) * OPEN;
        assert!(!budget.is_over(other, later) && budget.is_over(greedy, later));
    }

    #[test]
    fn however_many_come_what_runs_keeps_its_time() {
        let mut budget = LoadBudget::default();
        let now = Instant::now();
        let each = Duration::from_millis(50);
        let mut closed = Duration::ZERO;
        for client in clients::<100>() {
            if !budget.is_over(client, now) {
                budget.spend(client, each, now);
                closed += each;
            }
        }
        assert!(closed <= MOST_TOGETHER, "{closed:?}");
    }
}
