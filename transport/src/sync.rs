//! Atomics, fences and futexes: the façade behind which loom takes the place of the machine.
//!
//! The ring and the doorbell use nothing else. Futexes are 64-bit words of which the kernel compares
//! the low half; loom has none, so there they are modelled by one lock and one condition variable,
//! which is what the kernel's hash bucket is.
//!
//! `clippy.toml` forbids the standard library's atomics and locks to the rest of this crate. Since a lint cannot
//! tell a type from its re-export, the atomics here are types of their own around the machine's. Must not know what
//! is kept in them.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "this is what the others are to use"
)]

pub use imp::*;

/// What sleeping came to; none of them says that the awaited thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// Woken, interrupted, or the word had another value.
    Woken,
    /// The time was over.
    TimedOut,
}

#[cfg(not(loom))]
mod imp {
    use super::Slept;
    use rustix::io::Errno;
    use rustix::thread::futex;
    use std::sync::atomic;
    pub use std::sync::atomic::Ordering;
    use std::time::Duration;

    macro_rules! atomic {
        ($name:ident: $value:ty { $($method:ident),* }) => {
            /// The machine's, by the name that loom's has.
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(atomic::$name);

            #[allow(missing_docs, reason = "as the standard library's")]
            impl $name {
                #[inline]
                #[must_use]
                pub const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }
                #[inline]
                pub fn load(&self, order: Ordering) -> $value {
                    self.0.load(order)
                }
                #[inline]
                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, order);
                }
                #[inline]
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    self.0.swap(value, order)
                }
                $(
                    #[inline]
                    pub fn $method(&self, value: $value, order: Ordering) -> $value {
                        self.0.$method(value, order)
                    }
                )*
            }
        };
    }

    atomic!(AtomicBool: bool {});
    atomic!(AtomicU32: u32 { fetch_add, fetch_sub });
    atomic!(AtomicU64: u64 { fetch_add, fetch_max, fetch_or });

    #[allow(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "as the standard library's"
    )]
    impl AtomicU64 {
        #[inline]
        pub fn compare_exchange(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange(current, new, success, failure)
        }
        #[inline]
        pub fn compare_exchange_weak(
            &self,
            current: u64,
            new: u64,
            success: Ordering,
            failure: Ordering,
        ) -> Result<u64, u64> {
            self.0.compare_exchange_weak(current, new, success, failure)
        }
        #[inline]
        pub fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            update: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            self.0.fetch_update(set, fetch, update)
        }
    }

    /// Orders what this thread does before and after, as `order` says.
    #[inline]
    pub fn fence(order: Ordering) {
        atomic::fence(order);
    }

    /// Offers the processor to another thread that is ready.
    #[inline]
    pub fn yield_now() {
        std::thread::yield_now();
    }

    /// Tells the processor that this is a spin loop.
    #[inline]
    pub fn spin_hint() {
        std::hint::spin_loop();
    }

    /// The number of the processor that runs this thread, which may be another one in a moment.
    #[inline]
    pub fn processor() -> usize {
        rustix::thread::sched_getcpu()
    }

    fn low_half(word: &AtomicU64) -> &atomic::AtomicU32 {
        let low: *const AtomicU64 = word;
        // SAFETY: the machine is little-endian (checked in lib.rs), so the first four bytes of the
        // word are its low half; they live as long as the word, and its alignment is stricter.
        // User space never accesses them through this reference: it goes to the kernel alone.
        unsafe { &*low.cast::<atomic::AtomicU32>() }
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

    /// All threads of a model take turns on one.
    pub fn processor() -> usize {
        0
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
