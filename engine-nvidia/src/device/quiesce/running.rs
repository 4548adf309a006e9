//! What a context has running: operations that the driver has and that are not known to be done.
//!
//! Counted by streams, read by the gate. Must not know why the gate closes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use engine::{Observer, clock};

/// Operations of one context that the driver has and that are not known to be done. Apart from others' in
/// memory, since every launch counts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Running {
    pub(super) operations: AtomicUsize,
    /// The gate is closed for it.
    pub(super) held: AtomicBool,
    /// The gate is open for it, though it may be closed for others.
    pub(super) exempt: AtomicBool,
    /// When the longest of its operations of which that is known is over at the latest: nanoseconds of CLOCK_MONOTONIC.
    long_until: AtomicU64,
    /// Until when its client is expected to load code, likewise.
    pub(super) load_expected_until: AtomicU64,
    /// The thread that does what its client asks for.
    pub(super) thread: Option<ThreadId>,
    /// Who knows whether the client has ended, before its thread does.
    client: Option<Arc<dyn Observer>>,
    /// Since when the client is gone.
    gone: OnceLock<Instant>,
    /// It had operations when they were counted last.
    pub(super) was_counted: AtomicBool,
}

impl Running {
    /// Of a context of this client's, which this thread works for.
    pub(super) fn of_this_thread(client: &Arc<dyn Observer>) -> Self {
        Self {
            thread: Some(std::thread::current().id()),
            client: Some(Arc::clone(client)),
            ..Self::default()
        }
    }

    /// An operation that was let through is done.
    pub(crate) fn operation_done(&self) {
        self.operations.fetch_sub(1, Ordering::SeqCst);
    }

    /// The client has gone: what runs is all that there will be.
    pub(crate) fn client_gone(&self) {
        // Only the first time counts.
        let _ = self.gone.set(Instant::now());
    }

    /// Whether the client is gone, as far as was seen: it begins nothing more.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    /// Since when the client is gone. Its thread may not know yet, since it waits for what the client has left.
    pub(super) fn gone_since(&self) -> Option<Instant> {
        if !self.is_gone() && self.client.as_ref().is_some_and(|it| it.has_ended()) {
            self.client_gone();
        }
        self.gone.get().copied()
    }

    /// An operation of its that was let through is known to take so long at most.
    pub(crate) fn expect_duration(&self, takes: Duration) {
        let until = clock::now() + u64::try_from(takes.as_nanos()).unwrap_or(u64::MAX);
        self.long_until.fetch_max(until, Ordering::Relaxed);
    }

    /// For how long its operations are known to run from now on, at most; nothing where that is not known.
    pub(super) fn expected_remaining(&self) -> Duration {
        let until = self.long_until.load(Ordering::Relaxed);
        Duration::from_nanos(until.saturating_sub(clock::now()))
    }

    pub(super) fn has_operations(&self) -> bool {
        self.operations.load(Ordering::SeqCst) != 0
    }
}
