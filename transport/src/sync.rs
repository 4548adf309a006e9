//! Atomics, fences and futexes: the façade behind which loom takes the place of the machine.
//!
//! The ring and the doorbell use nothing else. Futexes are 64-bit words of which the kernel compares
//! the low half; loom has none, so there they are modelled by one lock and one condition variable,
//! which is what the kernel's hash bucket is. That nobody goes past the façade is a test
//! (`tests/facade.rs`): a lint cannot tell a type from its re-export.

pub use imp::*;

/// What sleeping came to; none of them says that the awaited thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// Woken, interrupted, or the word had another value.
    Woken,
    /// The time was over.
    TimedOut,
}

/// The machine's own atomics also where loom models the others: for a signal handler's statics, in which
/// loom's cannot be and which no model runs.
pub mod machine {
    pub use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

#[cfg(not(loom))]
mod imp {
    use super::Slept;
    use rustix::io::Errno;
    use rustix::thread::futex;
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub use std::thread::yield_now;
    use std::time::Duration;

    /// Tells the processor that this is a spin loop.
    #[inline]
    pub fn spin_hint() {
        std::hint::spin_loop();
    }

    fn low_half(word: &AtomicU64) -> &AtomicU32 {
        let low: *const AtomicU64 = word;
        // SAFETY: the machine is little-endian (checked in lib.rs), so the first four bytes of the
        // word are its low half; they live as long as the word, and its alignment is stricter.
        // User space never accesses them through this reference: it goes to the kernel alone.
        unsafe { &*low.cast::<AtomicU32>() }
    }

    /// Sleeps while the low half of `word` is that of `expected`, until woken, for at most `most`.
    /// The word may be in memory shared with other processes.
    pub fn sleep_while(word: &AtomicU64, expected: u64, most: Duration) -> Slept {
        let most = rustix::time::Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        let flags = futex::Flags::empty();
        match futex::wait(low_half(word), flags, expected as u32, Some(&most)) {
            Err(Errno::TIMEDOUT) => Slept::TimedOut,
            _ => Slept::Woken,
        }
    }

    /// Threads that are woken at once. The peer decides how many sleep, and the kernel wakes them all
    /// on the waker's time, which is that of an engine's thread; beyond these, which no program has,
    /// they find out by themselves, since nobody sleeps for longer than a slice.
    const MOST_WOKEN: u32 = 1024;

    /// Wakes everybody who sleeps on `word`.
    pub fn wake_all(word: &AtomicU64) {
        // Only a fault of the address could make this fail, and a reference has none.
        let _ = futex::wake(low_half(word), futex::Flags::empty(), MOST_WOKEN);
    }

    /// Gives the processor away for a moment, even to threads of lower priority.
    pub fn nap() {
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[cfg(loom)]
mod imp {
    use super::Slept;
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    use loom::sync::{Condvar, Mutex};
    pub use loom::thread::yield_now;
    use std::time::Duration;

    loom::lazy_static! {
        static ref BUCKET: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// Lets another thread of the model run.
    pub fn spin_hint() {
        yield_now();
    }

    /// As the kernel's: compares under the bucket's lock, then sleeps. It never times out, so a lost
    /// wake is a deadlock, which loom reports.
    pub fn sleep_while(word: &AtomicU64, expected: u64, _most: Duration) -> Slept {
        let (lock, condition) = &*BUCKET;
        let guard = lock.lock().expect("invariant: no thread of a model panics");
        if word.load(Ordering::Relaxed) as u32 == expected as u32 {
            drop(condition.wait(guard));
        }
        Slept::Woken
    }

    /// Wakes everybody who sleeps on any word.
    pub fn wake_all(_word: &AtomicU64) {
        let (lock, condition) = &*BUCKET;
        let guard = lock.lock().expect("invariant: no thread of a model panics");
        condition.notify_all();
        drop(guard);
    }

    /// Lets another thread of the model run.
    pub fn nap() {
        yield_now();
    }
}
