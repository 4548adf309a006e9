//! The clock of recorded calls: the processor's time-stamp counter where the kernel keeps time by it, and else CLOCK_MONOTONIC.
//!
//! A launch is timed twice, and asking the kernel's clock takes twice as long as reading the counter. Called by the threads that are
//! recorded; whoever passes on what they did says what the ticks were. Must not know what is timed.

use std::sync::atomic::{AtomicU8, Ordering};

use rustix::time::{ClockId, clock_gettime};

const UNKNOWN: u8 = 0;
const COUNTER: u8 = 1;
const CLOCK: u8 = 2;

/// What ticks are, once somebody has asked.
static SOURCE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Now, on CLOCK_MONOTONIC.
pub(super) fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Looks what ticks are to be. Before any is asked for.
pub(super) fn choose() {
    let kernels = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let kernels = std::fs::read_to_string(kernels).unwrap_or_default();
    // Then it goes on evenly, and is the same on all processors.
    let source = match kernels.trim() == "tsc" && cfg!(target_arch = "x86_64") {
        true => COUNTER,
        false => CLOCK,
    };
    SOURCE.store(source, Ordering::Relaxed);
}

/// Now, in ticks.
#[inline]
pub(super) fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if SOURCE.load(Ordering::Relaxed) == COUNTER {
        // SAFETY: every processor of this architecture has the counter, and the kernel itself lets programs read it for its clock.
        return unsafe { std::arch::x86_64::_rdtsc() };
    }
    nanoseconds()
}

/// One moment in ticks and in nanoseconds.
pub(super) fn both() -> (u64, u64) {
    if SOURCE.load(Ordering::Relaxed) != COUNTER {
        let now = nanoseconds();
        return (now, now);
    }
    // Of several looks the quickest counts: others were interrupted.
    let looks = (0..4).map(|_| {
        let (before, nanoseconds, after) = (now(), nanoseconds(), now());
        let took = after.wrapping_sub(before);
        (took, before.wrapping_add(took / 2), nanoseconds)
    });
    let quickest = looks.min_by_key(|(took, ..)| *took);
    quickest.map_or((0, 0), |(_, ticks, nanoseconds)| (ticks, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_as_nanoseconds_do() {
        choose();
        let (first, began) = both();
        while nanoseconds() < began + 20_000_000 {}
        let (last, ended) = both();
        assert!(last > first && ended > began);
        let clock = trace::thread_log::TickClock {
            ticks: [first, last],
            nanoseconds: [began, ended],
        };
        let (before, ticks, after) = (nanoseconds(), now(), nanoseconds());
        let told = clock.nanoseconds(ticks);
        // However busy the machine is, the looks at both were no further apart than this.
        let apart = 5_000_000;
        assert!(
            before - apart <= told && told <= after + apart,
            "{before} {told} {after}"
        );
    }
}
