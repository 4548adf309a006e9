//! How the polling thread is woken by whoever has work for it.
//!
//! Called by streams, by a device's gate and by who shares devices out; the poller sleeps in it. Must not know what the
//! work is.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Wakes the poller when there is work.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    /// Counts posts.
    posts: AtomicU64,
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Waker {
    /// Whom to wake.
    pub(crate) fn set_thread(&self, thread: Thread) {
        // There is one poller, which sets it once.
        let _ = self.thread.set(thread);
    }

    /// Posts so far.
    pub(crate) fn posts(&self) -> u64 {
        self.posts.load(Ordering::SeqCst)
    }

    /// Something was posted. Costs a system call only if the poller sleeps.
    pub(crate) fn wake(&self) {
        // Pairs with `sleep`: either the poller sees the post, or we see that it sleeps.
        self.posts.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Sleeps, for so long at most, unless something was posted since `seen` posts. Called by the poller alone.
    pub(crate) fn sleep(&self, seen: u64, time: Option<Duration>) {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.posts.load(Ordering::SeqCst) == seen {
            match time {
                Some(time) => std::thread::park_timeout(time),
                None => std::thread::park(),
            }
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }
}
