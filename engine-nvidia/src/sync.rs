//! Small things that several modules need to share state between threads.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; a panic elsewhere does not make the state useless, it is kept right at every step.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}
