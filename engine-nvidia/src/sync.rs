//! What several modules share between threads: a bounded count, and handles of the driver.
//!
//! Must not know what is counted, or what a handle names.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Of something that has a bound, how much is taken.
#[derive(Debug)]
pub(crate) struct BoundedCount {
    taken: AtomicUsize,
    most: usize,
}

impl BoundedCount {
    /// Room for so much, of which nothing is taken.
    pub(crate) const fn of(most: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            most,
        }
    }

    /// Takes so much; `false`, and nothing taken, if there is not so much left.
    pub(crate) fn try_add(&self, count: usize) -> bool {
        let before = self.taken.fetch_add(count, Ordering::Relaxed);
        let fits = before.saturating_add(count) <= self.most;
        if !fits {
            self.subtract(count);
        }
        fits
    }

    /// Takes so much, whether it is left or not.
    pub(crate) fn add(&self, count: usize) {
        self.taken.fetch_add(count, Ordering::Relaxed);
    }

    /// Gives so much back.
    pub(crate) fn subtract(&self, count: usize) {
        self.taken.fetch_sub(count, Ordering::Relaxed);
    }
}

/// A handle of the driver, or a pointer that only the driver follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle<T>(pub(crate) T);

impl<T> Handle<T> {
    /// What the driver knows it by. A closure that calls this may go to another thread; one that names
    /// the field captures the bare handle, and may not.
    pub(crate) fn raw(self) -> T {
        self.0
    }
}

// SAFETY: the driver's handles are names; its functions may be called with them from any thread. We
// never follow one as a pointer.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: a handle has no interior state: threads that share one share a number.
unsafe impl<T> Sync for Handle<T> {}
