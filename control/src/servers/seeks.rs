//! Questions of servers for what a client of another server of the same user shares, until all who may have it have answered.
//!
//! Kept by the daemon, called by `daemon::seeks`. Must not know connections, nor what is shared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::registry::ServerId;

/// How long the others have. Who asked waits a little longer.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// Questions of one server that may be open, of whose clients each asks one at a time.
const MOST_OF_ONE: usize = 1024;

/// A question as its server numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The server.
    pub server: ServerId,
    /// Its number of the question.
    pub question: u64,
}

/// Questions by the daemon's number.
#[derive(Debug, Default)]
pub(crate) struct Seeks {
    open: BTreeMap<u64, Seek>,
}

#[derive(Debug)]
struct Seek {
    asker: Asker,
    /// Who has not answered.
    asked: BTreeSet<ServerId>,
    until: Instant,
}

impl Seeks {
    /// Whether one more question of a server may be asked. Those that nobody has answered in time are forgotten.
    pub(crate) fn may_ask(&mut self, server: ServerId, now: Instant) -> bool {
        self.open.retain(|_, seek| seek.until > now);
        let open = self.open.values();
        open.filter(|seek| seek.asker.server == server).count() < MOST_OF_ONE
    }

    /// Others were asked, by this number.
    pub(crate) fn add(
        &mut self,
        number: u64,
        asker: Asker,
        asked: BTreeSet<ServerId>,
        now: Instant,
    ) {
        let until = now + ANSWERED_WITHIN;
        let seek = Seek {
            asker,
            asked,
            until,
        };
        self.open.insert(number, seek);
    }

    /// One who was asked has it. Who is to be told, unless it was told before or it is too late.
    pub(crate) fn found(&mut self, number: u64, by: ServerId, now: Instant) -> Option<Asker> {
        let seek = self.open.get(&number)?;
        if !seek.asked.contains(&by) || seek.until <= now {
            return None;
        }
        self.open.remove(&number).map(|seek| seek.asker)
    }

    /// One who was asked does not have it. Who is to be told, if it was the last.
    pub(crate) fn not_found(&mut self, number: u64, by: ServerId) -> Option<Asker> {
        let seek = self.open.get_mut(&number)?;
        let is_last = seek.asked.remove(&by) && seek.asked.is_empty();
        is_last
            .then(|| self.open.remove(&number))?
            .map(|seek| seek.asker)
    }

    /// A server is no more: it has nothing, and waits for nothing. Who is to be told that nobody has what it wants.
    pub(crate) fn forget(&mut self, server: ServerId) -> Vec<Asker> {
        self.open.retain(|_, seek| seek.asker.server != server);
        let numbers: Vec<u64> = self.open.keys().copied().collect();
        let told = numbers
            .into_iter()
            .filter_map(|number| self.not_found(number, server));
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(server: ServerId, question: u64) -> Asker {
        Asker { server, question }
    }

    fn seeks(now: Instant) -> Seeks {
        let mut seeks = Seeks::default();
        seeks.add(10, asker(1, 5), BTreeSet::from([2, 3]), now);
        seeks
    }

    #[test]
    fn the_first_yes_is_passed_on_and_no_is_said_when_all_have() {
        let now = Instant::now();
        let mut one = seeks(now);
        assert_eq!(one.not_found(10, 2), None);
        assert_eq!(one.found(10, 2, now), None, "it has said no");
        assert_eq!(one.found(10, 4, now), None, "it was not asked");
        assert_eq!(one.found(11, 3, now), None, "no such question");
        assert_eq!(one.found(10, 3, now), Some(asker(1, 5)));
        assert_eq!(one.found(10, 3, now), None, "once");
        let mut other = seeks(now);
        assert_eq!(other.not_found(10, 4), None);
        assert_eq!(other.not_found(10, 3), None);
        assert_eq!(other.not_found(10, 3), None, "twice is once");
        assert_eq!(other.not_found(10, 2), Some(asker(1, 5)));
        assert_eq!(other.not_found(10, 2), None);
        let mut late = seeks(now);
        assert_eq!(late.found(10, 2, now + ANSWERED_WITHIN), None, "too late");
    }

    #[test]
    fn a_server_that_ends_has_answered_and_waits_for_nothing() {
        let now = Instant::now();
        let mut seeks = seeks(now);
        seeks.add(11, asker(2, 5), BTreeSet::from([1, 3]), now);
        assert_eq!(seeks.forget(3), []);
        assert_eq!(seeks.forget(2), [asker(1, 5)]);
        assert_eq!(seeks.forget(1), []);
        assert!(seeks.open.is_empty());
    }

    #[test]
    fn so_many_are_open_at_a_time_and_not_for_ever() {
        let now = Instant::now();
        let mut seeks = Seeks::default();
        for number in 0..MOST_OF_ONE as u64 {
            assert!(seeks.may_ask(1, now));
            seeks.add(number, asker(1, number), BTreeSet::from([2]), now);
        }
        assert!(!seeks.may_ask(1, now));
        assert!(seeks.may_ask(2, now), "another server");
        assert!(seeks.may_ask(1, now + ANSWERED_WITHIN));
        assert!(seeks.open.is_empty());
    }
}
