//! How long a context's operations take, learnt by what they are, so that a stream gives the driver only what takes a
//! bounded time.
//!
//! Called by streams, with the times at which they saw operations end. Must not know what the operations are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::device::work_signature::WorkSignature;

/// Operations that are known at a time; of two that fall on one place the last is.
const KNOWN: usize = 2048;

/// What an operation is expected to take whose place another has.
const FORGOTTEN: u32 = 500;

/// What part of the difference an operation that took longer than expected adds.
const SLOWER: u32 = 4;

/// Learnt durations, in microseconds.
#[derive(Debug)]
pub(crate) struct DurationTable(Box<[AtomicU64; KNOWN]>);

impl Default for DurationTable {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; KNOWN]))
    }
}

impl DurationTable {
    fn place(&self, kind: WorkSignature) -> (&AtomicU64, u32) {
        let hash = kind.number();
        // The upper bits are the best mixed.
        let name = (hash >> 32) as u32 | 1;
        (&self.0[(hash >> 21) as usize % KNOWN], name)
    }

    /// Microseconds that an operation is expected to take; so many if nothing is known of it.
    pub(crate) fn expected(&self, kind: WorkSignature, unknown: u32) -> u32 {
        let (place, name) = self.place(kind);
        match place.load(Ordering::Relaxed) {
            0 => unknown,
            known if (known >> 32) as u32 == name => known as u32,
            _ => FORGOTTEN.min(unknown),
        }
    }

    /// Operations that were expected to take so long `together` took so long: each is expected to take a part of
    /// that next, as before: which of them took it cannot be seen. What took less time than expected is believed at once, since an end may be seen late.
    pub(crate) fn learn(&self, ended: &[(WorkSignature, u32)], took: Duration) {
        // Something more each, so that what is expected to take no time can grow.
        let weight = |expected: u32| f64::from(expected) + 0.1;
        let together: f64 = ended.iter().map(|&(_, expected)| weight(expected)).sum();
        let scale = took.as_secs_f64() * 1e6 / together;
        for &(kind, expected) in ended {
            let part = (scale * weight(expected)) as u32;
            let next = if part <= expected {
                part
            } else {
                expected + (part - expected).div_ceil(SLOWER)
            };
            let (place, name) = self.place(kind);
            place.store(u64::from(name) << 32 | u64::from(next), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: u32 = 500;

    fn kind(number: u64) -> WorkSignature {
        WorkSignature::default().and(number)
    }

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn what_took_less_is_believed_at_once_and_what_took_more_by_and_by() {
        let durations = DurationTable::default();
        assert_eq!(durations.expected(kind(1), UNKNOWN), UNKNOWN);
        durations.learn(&[(kind(1), UNKNOWN)], micros(10));
        assert_eq!(durations.expected(kind(1), UNKNOWN), 10);
        durations.learn(&[(kind(1), 10)], micros(50));
        assert_eq!(durations.expected(kind(1), UNKNOWN), 20);
        for _ in 0..40 {
            durations.learn(
                &[(kind(1), durations.expected(kind(1), UNKNOWN))],
                micros(300_000),
            );
        }
        assert!((299_000..=300_000).contains(&durations.expected(kind(1), UNKNOWN)));
        assert_eq!(
            durations.expected(kind(2), UNKNOWN),
            UNKNOWN,
            "another operation"
        );
    }

    #[test]
    fn operations_that_end_together_take_parts_of_the_time() {
        let durations = DurationTable::default();
        let (short, long) = (kind(1), kind(2));
        durations.learn(&[(short, UNKNOWN)], micros(20));
        // Which of them takes how long does not show, but how long they take together.
        for _ in 0..60 {
            let mut ended = vec![(short, durations.expected(short, UNKNOWN)); 9];
            ended.push((long, durations.expected(long, UNKNOWN)));
            durations.learn(&ended, micros(9 * 20 + 10_000));
        }
        let (short, long) = (
            durations.expected(short, UNKNOWN),
            durations.expected(long, UNKNOWN),
        );
        assert!(
            short < long && (10_000..=10_180).contains(&(9 * short + long)),
            "{short}, {long}"
        );
    }

    #[test]
    fn what_takes_no_time_can_take_some_later() {
        let durations = DurationTable::default();
        durations.learn(&[(kind(1), UNKNOWN)], micros(0));
        assert_eq!(durations.expected(kind(1), UNKNOWN), 0);
        durations.learn(&[(kind(1), 0), (kind(1), 0)], micros(8_000));
        assert_eq!(durations.expected(kind(1), UNKNOWN), 1000);
    }
}
