//! Waiting for a cursor to get somewhere: bounded spinning, then sleeping.
//!
//! What is waited for is always a 64-bit word that only grows (a cursor, a completion word, a serial
//! number) and reaches a target. Beside it lies a *waiter word*: zero, or the nearest target that somebody
//! sleeps for. Whoever moves the word wakes only when a waiter word is set and reached, so there is no
//! system call while nobody sleeps, nor for targets that are further off.
//!
//! The race between going to sleep and moving the word is closed on both ends by a sequentially
//! consistent fence between one's own write and one's look at the other's: [sleep-or-ring] below. The
//! futex is the waiter word itself, so a waiter word that was taken down before the kernel looked is no sleep.
//!
//! Who knows that a word is about to move may say so ([`pre_wake`]): those who sleep for it wake up, and see the
//! end awake. Being woken takes tens of microseconds, which is a part of a kernel of a few milliseconds that
//! can be measured.
//!
//! A waiter word may lie in memory that a hostile peer writes. All it can do is to wake too often, or to
//! let somebody sleep until the slice is over, within its own session. Called by both ends of the ring and of a
//! session. Must not know what the words count.

use crate::sync::{self, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// The shortest and the longest time that is spun before sleeping, in nanoseconds. The longest is for
/// waits to which a sleep would add much, and is more than the shortest work of which it is learnt when it
/// is about to end ([`pre_wake`]), so that no length in between is slept past; the shortest keeps a trace of a
/// chance to notice that the peer has become quick.
const SPIN: std::ops::RangeInclusive<u32> = 1_000..=250_000;

/// About what a sleep and a wake cost together, in nanoseconds.
const WAKE: u32 = 100_000;

/// The shortest where nobody wakes who waits, and work is known to be under way that may be short.
pub(crate) const LEAST_WATCH: u32 = 10_000;

/// For how long somebody stays awake who was told that it is a matter of moments.
const MOMENTS: Duration = Duration::from_micros(400);

/// For how long the processor is not offered to others meanwhile: as long as an awake peer takes to answer. With more
/// awake clients than processors, two who wait for each other would else have one in turns, for milliseconds each.
const ALONE: Duration = Duration::from_micros(5);

/// For how long somebody looks at most who takes a processor from what it waits for: about as long as it takes to be woken, so that neither
/// costs more than twice what the other would have. To yield is no help there: the kernel gives the processor back soon after.
const AMONG_ALL: Duration = Duration::from_micros(50);

/// A waiter word that was taken down because it is a matter of moments.
const PRE_WOKEN: u64 = 2;

/// The form of a waiter word for a target: odd, so never zero in its low half, which is what the kernel compares.
const fn waiter_for(target: u64) -> u64 {
    target << 1 | 1
}

/// Whether a waiter word is set.
const fn is_set(waiter: u64) -> bool {
    waiter & 1 == 1
}

/// Sets a waiter word for `target`, unless a nearer one is set, and sleeps until somebody rings or `most`
/// is over, unless `done` already. The caller looks again, and again.
pub(crate) fn sleep(waiter: &AtomicU64, target: u64, most: Duration, done: impl Fn() -> bool) {
    let mine = waiter_for(target);
    let mut set = waiter.load(Ordering::Relaxed);
    let expected = loop {
        let nearest = if is_set(set) && set < mine { set } else { mine };
        match waiter.compare_exchange_weak(set, nearest, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break nearest,
            Err(now) => set = now,
        }
    };
    // [sleep-or-ring]: the waiter word is set before the word is looked at.
    fence(Ordering::SeqCst);
    if !done() {
        sync::sleep_while(waiter, expected, most);
    }
}

/// Wakes those who sleep for a target that `reached` has reached. The word was moved just before.
#[inline]
pub(crate) fn ring(waiter: &AtomicU64, reached: u64) {
    // [sleep-or-ring]: the word is moved before the waiter word is looked at.
    fence(Ordering::SeqCst);
    let set = waiter.load(Ordering::Relaxed);
    if is_set(set) && set <= waiter_for(reached) {
        wake(waiter);
    }
}

/// Takes a waiter word down and wakes all who sleep by it.
#[cold]
pub(crate) fn wake(waiter: &AtomicU64) {
    waiter.swap(0, Ordering::AcqRel);
    sync::wake_all(waiter);
}

/// Wakes those who sleep by a waiter word, since what they sleep for is about to come.
pub(crate) fn pre_wake(waiter: &AtomicU64) {
    if is_set(waiter.load(Ordering::Relaxed)) {
        waiter.swap(PRE_WOKEN, Ordering::AcqRel);
        sync::wake_all(waiter);
    }
}

/// How long it has been worth to spin: doubled when spinning helped, halved when it did not, and the
/// longest again when a sleep was so short that spinning would have been enough. Without the last, a few
/// long waits would make every short one after them a sleep.
#[derive(Debug)]
pub(crate) struct AdaptiveSpinner {
    least: u32,
    nanoseconds: AtomicU32,
}

impl AdaptiveSpinner {
    pub(crate) fn new() -> Self {
        Self::at_least(*SPIN.start())
    }

    /// One that never spins for less, in nanoseconds.
    pub(crate) fn at_least(least: u32) -> Self {
        Self {
            least,
            nanoseconds: AtomicU32::new(*SPIN.end()),
        }
    }

    /// Spins until `done`, as long as it seems worth it and there is a processor to spare. Returns
    /// whether it is done.
    pub(crate) fn spin(&self, peer: impl Fn() -> Peer, mut done: impl FnMut() -> bool) -> bool {
        if done() {
            return true;
        }
        let budget = self.nanoseconds.load(Ordering::Relaxed);
        match spin_for(Duration::from_nanos(budget.into()), peer, &mut done) {
            Spun::Done => {
                let more = budget.saturating_mul(2).min(*SPIN.end());
                self.nanoseconds.store(more, Ordering::Relaxed);
                true
            }
            Spun::InVain => {
                self.nanoseconds
                    .store((budget / 2).max(self.least), Ordering::Relaxed);
                false
            }
            Spun::NoRoom => done(),
        }
    }

    /// Sleeps, by `sleep`, and learns from how long it took until what was waited for came.
    pub(crate) fn sleep(&self, sleep: impl FnOnce() -> bool) -> bool {
        let began = Instant::now();
        let came = sleep();
        // Going to sleep and being woken are a part of this time.
        let short = u128::from(*SPIN.end() + WAKE);
        if cfg!(not(loom)) && came && began.elapsed().as_nanos() < short {
            self.nanoseconds.store(*SPIN.end(), Ordering::Relaxed);
        }
        came
    }
}

/// Spins for what is a matter of moments; whether it came.
pub(crate) fn spin_for_moments(peer: impl Fn() -> Peer, done: impl FnMut() -> bool) -> bool {
    matches!(spin_for(MOMENTS, peer, done), Spun::Done)
}

/// Where the thread runs that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// On a processor of its own, as far as is known.
    Apart,
    /// On this thread's processor: as long as this one looks, that one cannot answer.
    Here,
    /// On all processors: what is waited for has work for each of them, and this thread takes one from it.
    Everywhere,
}

enum Spun {
    Done,
    InVain,
    NoRoom,
}

#[cfg(loom)]
fn spin_for(_most: Duration, _peer: impl Fn() -> Peer, _done: impl FnMut() -> bool) -> Spun {
    Spun::NoRoom
}

#[cfg(not(loom))]
fn spin_for(most: Duration, peer: impl Fn() -> Peer, mut done: impl FnMut() -> bool) -> Spun {
    use std::sync::LazyLock;
    /// Processors that this process may use; it counts the affinity and the control group's quota.
    static PROCESSORS: LazyLock<u32> = LazyLock::new(|| {
        std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
    });
    /// Looks at the word before anything else is done; about a microsecond.
    const GRACE: u32 = 20;
    /// Threads of this process that spin now.
    static SPINNING: AtomicU32 = AtomicU32::new(0);

    if peer() == Peer::Here {
        let began = Instant::now();
        while began.elapsed() < most {
            sync::yield_now();
            if done() {
                return Spun::Done;
            }
        }
        return Spun::InVain;
    }
    // One processor is left to those who are waited for: with a single one nobody spins.
    if SPINNING.load(Ordering::Relaxed) + 1 >= *PROCESSORS {
        return Spun::NoRoom;
    }
    // Awake peers answer sooner than it takes to look at the clock and be counted.
    for _ in 0..GRACE {
        if done() {
            return Spun::Done;
        }
        sync::spin_hint();
    }
    SPINNING.fetch_add(1, Ordering::Relaxed);
    let began = Instant::now();
    let spun = 'spin: loop {
        // Looking at the clock costs about as much as this many looks at the word.
        for _ in 0..16 {
            if done() {
                break 'spin Spun::Done;
            }
            sync::spin_hint();
        }
        let spun = began.elapsed();
        // First: who is put aside meanwhile would take it for its own fault.
        if spun >= AMONG_ALL && peer() == Peer::Everywhere {
            break Spun::NoRoom;
        }
        if spun >= most {
            break Spun::InVain;
        }
        // Whoever is waited for may want this processor.
        if spun >= ALONE {
            sync::yield_now();
        }
    };
    SPINNING.fetch_sub(1, Ordering::Relaxed);
    spun
}

/// Waits until `done`, which a `peer` is to do, wherever it is by then: spins, then sleeps, and is awake again when it is told that it is a matter of moments.
/// `target` is what `done` waits for. After each `slice` of sleep `go_on` is asked, and in the place of one as long as somebody
/// `is_called`, which whoever calls says before it wakes the waiter; when `go_on` says no, so does this.
pub(crate) fn wait(
    (spinner, peer): (&AdaptiveSpinner, impl Fn() -> Peer),
    (waiter, target): (&AtomicU64, u64),
    slice: Duration,
    done: impl Fn() -> bool,
    is_called: impl Fn() -> bool,
    mut go_on: impl FnMut() -> bool,
) -> bool {
    if spinner.spin(&peer, &done) {
        return true;
    }
    spinner.sleep(|| {
        loop {
            sleep(waiter, target, slice, || done() || is_called());
            let imminent = waiter.load(Ordering::Relaxed) == PRE_WOKEN;
            if done() || imminent && spin_for_moments(&peer, &done) {
                return true;
            }
            if !go_on() {
                return false;
            }
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(
        miri,
        ignore = "Miri refuses the type of the pointer that rustix gives the futex call"
    )]
    fn who_is_told_that_it_is_near_sees_the_end_whenever_it_comes() {
        let spinner = AdaptiveSpinner::new();
        let (word, waiter) = (AtomicU64::new(0), AtomicU64::new(0));
        let slice = Duration::from_millis(100);
        pre_wake(&waiter);
        assert_eq!(waiter.load(Ordering::SeqCst), 0, "nobody sleeps");
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                // At once, a little later, and after the waiter has fallen asleep again.
                for (target, after) in [(1, 0), (2, 100), (3, 2000), (4, 0), (5, 2000)] {
                    while !is_set(waiter.load(Ordering::SeqCst)) {
                        sync::yield_now();
                    }
                    pre_wake(&waiter);
                    std::thread::sleep(Duration::from_micros(after));
                    word.store(target, Ordering::SeqCst);
                    ring(&waiter, target);
                }
            });
            for target in 1..=5 {
                let done = || word.load(Ordering::SeqCst) >= target;
                let go_on = || true;
                assert!(wait(
                    (&spinner, || Peer::Apart),
                    (&waiter, target),
                    slice,
                    done,
                    || false,
                    go_on
                ));
                assert!(done());
            }
            mover.join().unwrap();
        });
    }

    #[test]
    fn who_takes_a_processor_from_what_it_waits_for_soon_sleeps_and_learns_nothing() {
        let spinner = AdaptiveSpinner::new();
        let looks = std::cell::Cell::new(0);
        let done = |at: u32| {
            looks.set(looks.get() + 1);
            looks.get() == at
        };
        assert!(!spinner.spin(|| Peer::Everywhere, || done(u32::MAX)));
        assert_eq!(spinner.nanoseconds.load(Ordering::Relaxed), *SPIN.end());
        looks.set(0);
        assert!(
            spinner.spin(|| Peer::Everywhere, || done(2)),
            "it was over at once"
        );
    }

    #[test]
    fn a_short_sleep_shows_that_spinning_would_have_been_enough() {
        let spinner = AdaptiveSpinner::new();
        let budget = || spinner.nanoseconds.load(Ordering::Relaxed);
        spinner.nanoseconds.store(*SPIN.start(), Ordering::Relaxed);
        // In vain, and too long.
        spinner.sleep(|| false);
        spinner.sleep(|| {
            std::thread::sleep(Duration::from_millis(1));
            true
        });
        assert_eq!(budget(), *SPIN.start());
        // Some sleep of nothing is short, however busy the machine is.
        for _ in 0..1000 {
            spinner.sleep(|| true);
        }
        assert_eq!(budget(), *SPIN.end());
    }
}
