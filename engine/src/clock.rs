//! CLOCK_MONOTONIC in nanoseconds: the one clock on which engines tell times, so that they can be compared with those of other
//! processes of the machine.
//!
//! Knows nothing of devices, whose own clocks are their engines' matter.

use std::sync::LazyLock;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Pairs of looks of which the quickest counts.
const PAIRS: u32 = 32;

/// Now.
#[must_use]
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock counts from the machine's start and is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// When that was. An [`Instant`] has the same clock on Linux, and does not say so: what both were at one moment tells the rest, to
/// within the time that the quickest of several pairs of looks took. One pair alone may have been interrupted, and every time
/// that is told would be late by that.
#[must_use]
pub fn at(instant: Instant) -> u64 {
    static BOTH: LazyLock<(Instant, u64)> = LazyLock::new(both);
    let (then, nanoseconds) = *BOTH;
    match instant.checked_duration_since(then) {
        Some(after) => nanoseconds.saturating_add(saturating(after.as_nanos())),
        None => nanoseconds.saturating_sub(saturating(then.duration_since(instant).as_nanos())),
    }
}

/// One moment on both clocks.
fn both() -> (Instant, u64) {
    let looks = (0..PAIRS).map(|_| {
        let (before, instant, after) = (now(), Instant::now(), now());
        let took = after - before;
        (took, instant, before + took / 2)
    });
    let quickest = looks.min_by_key(|(took, _, _)| *took);
    quickest.map_or_else(
        || (Instant::now(), now()),
        |(_, instant, moment)| (instant, moment),
    )
}

fn saturating(nanoseconds: u128) -> u64 {
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_between_the_looks_around_it() {
        let earlier = Instant::now();
        let _ = at(earlier);
        for _ in 0..100 {
            let (before, instant, after) = (now(), Instant::now(), now());
            let told = at(instant);
            // The two looks that fix one clock to the other may be apart as far as a busy machine makes them.
            let apart = at(earlier).abs_diff(told) + 1_000_000_000;
            assert!(before.saturating_sub(apart) <= told && told <= after + apart);
            assert!(at(earlier) <= told);
        }
    }
}
