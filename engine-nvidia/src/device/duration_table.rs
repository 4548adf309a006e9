//! How long a context's operations take, learnt by what they are, so that a stream gives the driver only what takes a
//! bounded time; and how long they take alone, so that it can be said by how much others slow them down.
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

/// The part of the difference by which the mean of what an operation takes follows.
const FOLLOWS: f64 = 1.0 / 8.0;

/// How many of [`DurationEntry::alone`]'s units a microsecond has.
const IN_MICROSECOND: f64 = 16.0;

/// Learnt durations.
#[derive(Debug)]
pub(crate) struct DurationTable(Box<[DurationEntry; KNOWN]>);

/// What is known of an operation.
#[derive(Debug)]
struct DurationEntry {
    /// Its name, and in the lower half the microseconds that it is expected to take.
    expected: AtomicU64,
    /// The mean of what it took lately, and in the lower half what it takes alone, or took at best: in sixteenths of a microsecond.
    alone: AtomicU64,
}

impl Default for DurationTable {
    fn default() -> Self {
        Self(Box::new(
            [const {
                DurationEntry {
                    expected: AtomicU64::new(0),
                    alone: AtomicU64::new(0),
                }
            }; KNOWN],
        ))
    }
}

impl DurationEntry {
    /// The operation took so many microseconds, and `is_new` if nothing was known of it. Gives what it takes alone.
    fn learn_alone(&self, took: f64, is_new: bool, is_alone: bool) -> f64 {
        let took = (took * IN_MICROSECOND).min(f64::from(u32::MAX));
        let known = self.alone.load(Ordering::Relaxed);
        let (mut mean, mut alone) = (f64::from((known >> 32) as u32), f64::from(known as u32));
        if is_new {
            (mean, alone) = (took, took);
        } else {
            mean += (took - mean) * FOLLOWS;
            // Of what never ran alone it is known what it took when others disturbed it least.
            alone = if is_alone { mean } else { alone.min(mean) };
        }
        let known = u64::from((mean + 0.5) as u32) << 32 | u64::from((alone + 0.5) as u32);
        self.alone.store(known, Ordering::Relaxed);
        alone / IN_MICROSECOND
    }
}

impl DurationTable {
    fn place(&self, kind: WorkSignature) -> (&DurationEntry, u32) {
        let hash = kind.number();
        // The upper bits are the best mixed.
        let name = (hash >> 32) as u32 | 1;
        (&self.0[(hash >> 21) as usize % KNOWN], name)
    }

    /// Microseconds that an operation is expected to take; so many if nothing is known of it.
    pub(crate) fn expected(&self, kind: WorkSignature, unknown: u32) -> u32 {
        let (place, name) = self.place(kind);
        match place.expected.load(Ordering::Relaxed) {
            0 => unknown,
            known if (known >> 32) as u32 == name => known as u32,
            _ => FORGOTTEN.min(unknown),
        }
    }

    /// The mean of what an operation took lately, if it is known.
    pub(crate) fn mean(&self, kind: WorkSignature) -> Option<Duration> {
        let (place, name) = self.place(kind);
        let is_known = (place.expected.load(Ordering::Relaxed) >> 32) as u32 == name;
        let sixteenths = (place.alone.load(Ordering::Relaxed) >> 32) as f64;
        is_known.then(|| Duration::from_secs_f64(sixteenths / IN_MICROSECOND / 1e6))
    }

    /// Operations that were expected to take so long `together` took so long: each is expected to take a part of
    /// that next, as before: which of them took it cannot be seen. What took less time than expected is believed at once, since an end may be seen late.
    ///
    /// `is_alone` says whether nobody else had work in the device. Gives how long all of them take alone, as far as is known.
    pub(crate) fn learn(
        &self,
        ended: &[(WorkSignature, u32)],
        took: Duration,
        is_alone: bool,
    ) -> Duration {
        // Something more each, so that what is expected to take no time can grow.
        let weight = |expected: u32| f64::from(expected) + 0.1;
        let together: f64 = ended.iter().map(|&(_, expected)| weight(expected)).sum();
        let scale = took.as_secs_f64() * 1e6 / together;
        let mut alone = 0.0;
        for &(kind, expected) in ended {
            let exact = scale * weight(expected);
            let part = exact as u32;
            let next = if part <= expected {
                part
            } else {
                expected + (part - expected).div_ceil(SLOWER)
            };
            let (place, name) = self.place(kind);
            let is_new = (place.expected.load(Ordering::Relaxed) >> 32) as u32 != name;
            place
                .expected
                .store(u64::from(name) << 32 | u64::from(next), Ordering::Relaxed);
            alone += place.learn_alone(exact, is_new, is_alone);
        }
        Duration::from_secs_f64(alone / 1e6)
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
        durations.learn(&[(kind(1), UNKNOWN)], micros(10), true);
        assert_eq!(durations.expected(kind(1), UNKNOWN), 10);
        durations.learn(&[(kind(1), 10)], micros(50), true);
        assert_eq!(durations.expected(kind(1), UNKNOWN), 20);
        // The mean is what it took first, and follows.
        assert_eq!(durations.mean(kind(1)), Some(micros(15)));
        for _ in 0..40 {
            durations.learn(
                &[(kind(1), durations.expected(kind(1), UNKNOWN))],
                micros(300_000),
                true,
            );
        }
        assert!((299_000..=300_000).contains(&durations.expected(kind(1), UNKNOWN)));
        assert_eq!(
            durations.expected(kind(2), UNKNOWN),
            UNKNOWN,
            "another operation"
        );
        assert_eq!(durations.mean(kind(2)), None);
    }

    #[test]
    fn operations_that_end_together_take_parts_of_the_time() {
        let durations = DurationTable::default();
        let (short, long) = (kind(1), kind(2));
        durations.learn(&[(short, UNKNOWN)], micros(20), true);
        // Which of them takes how long does not show, but how long they take together.
        for _ in 0..60 {
            let mut ended = vec![(short, durations.expected(short, UNKNOWN)); 9];
            ended.push((long, durations.expected(long, UNKNOWN)));
            durations.learn(&ended, micros(9 * 20 + 10_000), true);
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
        durations.learn(&[(kind(1), UNKNOWN)], micros(0), true);
        assert_eq!(durations.expected(kind(1), UNKNOWN), 0);
        durations.learn(&[(kind(1), 0), (kind(1), 0)], micros(8_000), true);
        assert_eq!(durations.expected(kind(1), UNKNOWN), 1000);
    }

    #[test]
    fn what_operations_take_alone_is_known_while_others_slow_them_down() {
        let durations = DurationTable::default();
        let learn = |number, took, is_alone| {
            let alone = durations.learn(&[(kind(number), 100)], micros(took), is_alone);
            alone.as_micros()
        };
        for _ in 0..50 {
            learn(1, 100, true);
        }
        // Twice as long, for as long as it may be.
        for _ in 0..200 {
            assert_eq!(learn(1, 200, false), 100);
        }
        // It takes longer by itself by now.
        for _ in 0..50 {
            learn(1, 150, true);
        }
        assert!((149..=151).contains(&learn(1, 150, true)));
        // What has never been alone: at best. One end that is seen late, and the next soon, do not make it less by much.
        assert_eq!(learn(2, 300, false), 300, "nothing is known of it");
        for _ in 0..50 {
            learn(2, 110, false);
            learn(2, 90, false);
        }
        assert!((95..=101).contains(&learn(2, 300, false)));
        // Many together: of all of them.
        let both = [(kind(1), 100), (kind(2), 100)];
        let alone = durations.learn(&both, micros(400), false).as_micros();
        assert!((240..=255).contains(&alone), "{alone}");
    }
}
