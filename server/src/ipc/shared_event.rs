//! Events that clients share: the numbers of their records, and how far they have come.
//!
//! Called by `events`, which has a client's slots for them. Knows nothing of sessions but how to wake one.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::session::observer::ClientObserver;
use crate::stream_scheduler::completion::shared_event;

/// An event that several clients record and wait for.
///
/// Each record has a number. The event has reached all records up to a number are past.
#[derive(Debug, Default)]
pub struct SharedEvent {
    state: Mutex<EventState>,
}

#[derive(Debug, Default)]
struct EventState {
    recorded: u64,
    completed: u64,
    /// Records that are past, beyond `completed`: runs of them, the last number of each by the first.
    /// Between two runs is a record that somebody has, so there are no more runs than those.
    ahead: BTreeMap<u64, u64>,
    /// Sessions that have it, and the slot that it has there.
    watchers: Vec<(Weak<ClientObserver>, u32)>,
}

impl EventState {
    fn signal_importer(&self, shared: &ClientObserver, slot: u32) {
        if shared.progress.complete(shared_event(slot), self.completed) {
            shared.publisher.ring_self();
        }
    }
}

impl SharedEvent {
    /// Takes the number of a new record.
    pub fn record(&self) -> u64 {
        let mut state = self.state.lock();
        state.recorded += 1;
        state.recorded
    }

    /// The number of the last record, and how far the event has come.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.recorded, state.completed)
    }

    /// A record is past.
    pub fn complete(&self, number: u64) {
        let mut state = self.state.lock();
        let last = state.ahead.remove(&(number + 1)).unwrap_or(number);
        if state.completed + 1 != number {
            match state.ahead.range_mut(..number).next_back() {
                Some((_, end)) if *end + 1 == number => *end = last,
                _ => drop(state.ahead.insert(number, last)),
            }
            return;
        }
        state.completed = last;
        state
            .watchers
            .retain(|(shared, _)| shared.strong_count() > 0);
        for (shared, slot) in &state.watchers {
            if let Some(shared) = shared.upgrade() {
                state.signal_importer(&shared, *slot);
            }
        }
    }

    /// From now on a session is told how far it is, in a slot.
    pub fn watch(&self, shared: &Arc<ClientObserver>, slot: u32) {
        let mut state = self.state.lock();
        state.watchers.push((Arc::downgrade(shared), slot));
        state.signal_importer(shared, slot);
    }

    /// From now on it is not.
    pub fn unwatch(&self, shared: &Arc<ClientObserver>, slot: u32) {
        self.state.lock().watchers.retain(|(other, at)| {
            *at != slot || !std::ptr::eq(other.as_ptr(), Arc::as_ptr(shared))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_comes_as_far_as_all_of_its_records_are_past() {
        let event = SharedEvent::default();
        let [one, two, three] = [event.record(), event.record(), event.record()];
        assert_eq!((one, two, three), (1, 2, 3));
        event.complete(two);
        assert_eq!(event.progress(), (3, 0));
        event.complete(one);
        assert_eq!(event.progress(), (3, 2));
        event.complete(three);
        assert_eq!(event.progress(), (3, 3));
    }

    #[test]
    fn records_behind_one_that_never_passes_take_no_room() {
        let event = SharedEvent::default();
        let first = event.record();
        let runs = |event: &SharedEvent| event.state.lock().ahead.len();
        for _ in 0..10_000 {
            let number = event.record();
            event.complete(number);
            assert_eq!(runs(&event), 1);
        }
        // In any order: each that is missing parts two runs at most.
        let [a, b, c, d] = [(); 4].map(|()| event.record());
        for (number, expected) in [(b, 2), (d, 3), (c, 2), (a, 1)] {
            event.complete(number);
            assert_eq!(runs(&event), expected);
        }
        assert_eq!(event.progress(), (10_005, 0));
        event.complete(first);
        assert_eq!(event.progress(), (10_005, 10_005));
        assert_eq!(runs(&event), 0);
    }
}
