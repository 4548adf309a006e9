//! The records of an event that clients of several servers share, in memory that these servers have in common, and no client
//! has: which server has each, and whether it is past.
//!
//! Each record has a number, which a server takes by claiming the number's place in a ring. A server may end at any point: whatever it
//! has claimed can be told from what others have. Nothing of what stands here is trusted beyond the event's own: no number of it is an
//! index, and nobody waits for it. Called by `shared_event`. Knows nothing of who is woken.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;

use transport::memory::{Mapping, MemoryError, Sealed};
use transport::sync::{AtomicU64, Ordering};

/// Records that can be under way at a time.
pub const RECORDS: u64 = 1 << 14;

/// Where the number of the last record is, how far the event has come, whether it is destroyed, and where the ring begins.
const RECORDED: usize = 0;
const COMPLETED: usize = 8;
const DESTROYED: usize = 16;
const RING: usize = 64;

/// Bytes of the memory.
pub const BYTES: u64 = RING as u64 + 8 * RECORDS;

/// How often it is tried to take a number that others take too.
const ATTEMPTS: usize = 1 << 16;

/// A word of the ring: the number, who has it, and whether it is past.
const PAST: u64 = 1;
const SIDE_SHIFT: u32 = 1;
const NUMBER_SHIFT: u32 = 16;
const MOST_SIDE: u64 = (1 << (NUMBER_SHIFT - SIDE_SHIFT)) - 1;

const fn claimed(number: u64, side: u16) -> u64 {
    number << NUMBER_SHIFT | (side as u64 & MOST_SIDE) << SIDE_SHIFT
}

/// Whether a word is this number's.
const fn is_of(word: u64, number: u64) -> bool {
    word >> NUMBER_SHIFT == number << NUMBER_SHIFT >> NUMBER_SHIFT
}

/// Whether a word's record is a side's.
const fn is_of_side(word: u64, side: u16) -> bool {
    word >> SIDE_SHIFT & MOST_SIDE == side as u64
}

/// See the module.
#[derive(Debug)]
pub struct EventTable(Mapping);

impl EventTable {
    /// A table of an event that has come so far, with its memory. `is_past` says it of a record beyond that; the others are of
    /// the first side. Nothing if too many are under way.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn create(
        (recorded, completed): (u64, u64),
        is_past: impl Fn(u64) -> bool,
    ) -> Result<Option<(Self, Sealed)>, MemoryError> {
        if recorded - completed > RECORDS {
            return Ok(None);
        }
        let memory = Sealed::create("openmps-event", BYTES)?;
        let table = Self(Mapping::map(&memory)?);
        for number in (1..=recorded).rev().take(RECORDS as usize) {
            let is_past = number <= completed || is_past(number);
            let word = claimed(number, 0) | u64::from(is_past);
            table.place(number).store(word, Ordering::SeqCst);
        }
        table.recorded().store(recorded, Ordering::SeqCst);
        table.completed().store(completed, Ordering::SeqCst);
        Ok(Some((table, memory)))
    }

    /// A table that another server has made.
    ///
    /// # Errors
    /// When its memory is none of these.
    pub fn open(memory: OwnedFd) -> Result<Self, MemoryError> {
        let memory = Sealed::from_fd(memory, BYTES)?;
        Ok(Self(Mapping::map(&memory)?))
    }

    fn recorded(&self) -> &AtomicU64 {
        self.0.word(RECORDED)
    }

    fn completed(&self) -> &AtomicU64 {
        self.0.word(COMPLETED)
    }

    fn destroyed(&self) -> &AtomicU64 {
        self.0.word(DESTROYED)
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.0.words(RING, RECORDS as usize)[(number % RECORDS) as usize]
    }

    /// The number of the last record, and how far the event has come.
    pub fn progress(&self) -> (u64, u64) {
        let most = u64::MAX >> NUMBER_SHIFT;
        let completed = self.completed().load(Ordering::SeqCst).min(most);
        // Who took the last number may have ended before it said so.
        let recorded = self.recorded().load(Ordering::SeqCst).min(most);
        (recorded.max(completed), completed)
    }

    /// The client that made the event has destroyed it.
    pub fn destroy(&self) {
        self.destroyed().store(1, Ordering::SeqCst);
    }

    /// Whether the event is destroyed, and all of its records are past.
    pub fn is_over(&self) -> bool {
        let is_destroyed = self.destroyed().load(Ordering::SeqCst) != 0;
        let (recorded, completed) = self.progress();
        is_destroyed && recorded == completed
    }

    /// Takes the number of a new record for a side, unless too many are under way.
    pub fn record(&self, side: u16) -> Option<u64> {
        for _ in 0..ATTEMPTS {
            let last = self.recorded().load(Ordering::SeqCst);
            let completed = self.completed().load(Ordering::SeqCst);
            let number = last.checked_add(1)?;
            if number.saturating_sub(completed) > RECORDS {
                return None;
            }
            let place = self.place(number);
            let before = place.load(Ordering::SeqCst);
            if is_of(before, number) {
                // Somebody has it, and may have ended before it said so.
                self.note_recorded(last, number);
                continue;
            }
            // Else what was read of the last record is too old.
            let is_next = match number.checked_sub(RECORDS) {
                Some(former) if former > 0 => is_of(before, former),
                _ => before == 0,
            };
            let claim = claimed(number, side);
            if is_next
                && place
                    .compare_exchange(before, claim, Ordering::SeqCst, Ordering::SeqCst)
                    .is_ok()
            {
                self.note_recorded(last, number);
                return Some(number);
            }
        }
        None
    }

    fn note_recorded(&self, last: u64, number: u64) {
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        // If not, somebody else has noted it.
        let _ = self
            .recorded()
            .compare_exchange(last, number, success, failure);
    }

    /// A record is past.
    pub fn complete(&self, number: u64) {
        self.set_past(number, |_| true);
        self.advance();
    }

    /// All records of a side are past.
    pub fn complete_all_of(&self, side: u16) {
        for number in self.under_way() {
            self.set_past(number, |word| is_of_side(word, side));
        }
        self.advance();
    }

    /// Whether a record is a side's and not past.
    pub fn is_open(&self, number: u64, side: u16) -> bool {
        let word = self.place(number).load(Ordering::SeqCst);
        is_of(word, number) && is_of_side(word, side) && word & PAST == 0
    }

    /// Numbers of records that may not be past, the one among them that may not be noted yet.
    pub fn under_way(&self) -> RangeInclusive<u64> {
        let (recorded, completed) = self.progress();
        completed + 1..=(recorded + 1).min(completed + RECORDS)
    }

    fn set_past(&self, number: u64, is_it: impl Fn(u64) -> bool) {
        let place = self.place(number);
        let word = place.load(Ordering::SeqCst);
        if is_of(word, number) && is_it(word) {
            // As long as it is not past, nobody else changes it.
            let past = word | PAST;
            let _ = place.compare_exchange(word, past, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Has the event come as far as its records are past. Whoever sets the last one that is missing sees all others, since all of it is in
    /// one order.
    fn advance(&self) {
        for _ in 0..2 * RECORDS {
            let completed = self.completed().load(Ordering::SeqCst);
            let next = completed.wrapping_add(1);
            let word = self.place(next).load(Ordering::SeqCst);
            if !is_of(word, next) || word & PAST == 0 {
                return;
            }
            let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            // If not, somebody else has taken that step.
            let _ = self
                .completed()
                .compare_exchange(completed, next, success, failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (EventTable, EventTable) {
        let (table, memory) = EventTable::create((0, 0), |_| false).unwrap().unwrap();
        let other = EventTable::open(memory.into()).unwrap();
        (table, other)
    }

    #[test]
    fn both_sides_see_each_others_records_in_any_order() {
        let (one, other) = table();
        let numbers = [one.record(0), other.record(1), one.record(0)];
        assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
        one.complete(3);
        other.complete(2);
        assert_eq!(one.progress(), (3, 0));
        one.complete(1);
        assert_eq!(other.progress(), (3, 3));
        // Round and round.
        for number in 4..5 * RECORDS {
            assert_eq!(other.record(1), Some(number));
            one.complete(number);
            assert_eq!(other.progress(), (number, number));
        }
    }

    #[test]
    fn so_many_are_under_way_and_no_more() {
        let (one, other) = table();
        for number in 1..=RECORDS {
            assert_eq!(one.record(0), Some(number));
        }
        assert_eq!(other.record(1), None);
        one.complete(2);
        assert_eq!(other.record(1), None, "the first is missing");
        one.complete(1);
        assert_eq!(other.record(1), Some(RECORDS + 1));
        assert_eq!(other.record(1), Some(RECORDS + 2));
        assert_eq!(other.record(1), None);
    }

    #[test]
    fn what_a_side_leaves_is_past_and_only_that() {
        let (one, other) = table();
        let numbers: Vec<_> = (0..3)
            .flat_map(|_| [one.record(0), other.record(1)])
            .collect();
        assert_eq!(numbers.len(), 6);
        one.complete_all_of(1);
        assert_eq!(one.progress(), (6, 0));
        assert!(one.is_open(1, 0) && !one.is_open(2, 1) && !one.is_open(3, 1));
        one.complete(1);
        assert_eq!(one.progress(), (6, 2));
        // It ended between taking a number and saying so.
        other.place(7).store(claimed(7, 1), Ordering::SeqCst);
        one.complete_all_of(1);
        one.complete_all_of(0);
        assert_eq!(one.progress(), (7, 7));
        assert_eq!(one.record(0), Some(8));
        // And somebody else goes on before that is known.
        other.place(9).store(claimed(9, 1), Ordering::SeqCst);
        assert_eq!(one.record(0), Some(10));
        assert_eq!(one.progress(), (10, 7));
    }

    #[test]
    fn a_table_begins_where_its_event_was() {
        let create = |recorded, completed| EventTable::create((recorded, completed), |n| n == 5001);
        let (one, _memory) = create(5002, 4999).unwrap().unwrap();
        assert_eq!(one.progress(), (5002, 4999));
        assert_eq!(one.record(1), Some(5003));
        one.complete(5000);
        assert_eq!(one.progress(), (5003, 5001));
        one.complete_all_of(0);
        assert_eq!(one.progress(), (5003, 5002));
        assert!(create(5000 + RECORDS, 4999).unwrap().is_none(), "too many");
    }

    #[test]
    fn a_destroyed_event_is_over_when_its_records_are_past() {
        let (one, other) = table();
        assert_eq!(other.record(1), Some(1));
        other.complete(1);
        assert!(!other.is_over());
        assert_eq!(other.record(1), Some(2));
        one.destroy();
        assert!(!other.is_over());
        other.complete(2);
        assert!(other.is_over());
    }

    #[test]
    fn threads_of_both_take_each_number_once() {
        let (one, other) = table();
        let taken: Vec<u64> = std::thread::scope(|scope| {
            let threads = [(&one, 0), (&other, 1), (&one, 0)].map(|(table, side)| {
                scope.spawn(move || {
                    let mut taken = Vec::new();
                    while taken.len() < 5000 {
                        if let Some(number) = table.record(side) {
                            taken.push(number);
                            table.complete(number);
                        }
                    }
                    taken
                })
            });
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        let mut sorted = taken;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(1..=15_000));
        assert_eq!(one.progress(), (15_000, 15_000));
    }

    #[test]
    fn nonsense_ends() {
        let (one, other) = table();
        for recorded in [u64::MAX, 1 << 48, 7] {
            for completed in [0, 3, u64::MAX, 1 << 48] {
                other.recorded().store(recorded, Ordering::SeqCst);
                other.completed().store(completed, Ordering::SeqCst);
                let _ = one.record(0);
                one.complete(recorded);
                one.complete_all_of(0);
                let _ = one.progress();
                assert!(one.under_way().count() <= RECORDS as usize + 1);
            }
        }
        let (_, memory) = EventTable::create((0, 0), |_| false).unwrap().unwrap();
        assert!(EventTable::open(memory.into()).is_ok());
        let short = Sealed::create("short", 4096).unwrap();
        assert!(EventTable::open(short.into()).is_err());
    }
}
