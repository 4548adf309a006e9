//! Clients that are gone: what they have left, and that nobody waits for their sake.
//!
//! Called by the gate and by who locks what those may hold who wait at it. Must not know what is loaded or retired.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use parking_lot::{Mutex, MutexGuard};

use crate::device::quiesce::closing::ClosingState;
use crate::device::quiesce::{Closed, PATIENCE, QuiesceGate};

/// How often who waits for its turn asks whether its client is still there.
const BETWEEN_ASKING: Duration = Duration::from_millis(200);

impl QuiesceGate {
    /// Sets how long what a client that has gone had running may take to its end.
    pub(crate) fn set_grace(&self, grace: Duration) {
        let milliseconds = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.grace.store(milliseconds, Ordering::Relaxed);
    }

    /// Whether something runs of a client that has been gone for longer than the grace.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_left_with_work(Duration::from_millis(self.grace.load(Ordering::Relaxed)))
    }

    /// Whether nobody is there any more for whom this thread would wait.
    pub(super) fn is_this_client_gone(&self) -> bool {
        let this = Some(std::thread::current().id());
        let clients = self.clients.lock();
        let mut own = clients.iter().filter_map(Weak::upgrade);
        own.any(|client| client.thread == this && client.gone_since().is_some())
    }

    /// Whether something runs of a client that has been gone for so long.
    pub(crate) fn is_left_with_work(&self, gone_for: Duration) -> bool {
        let clients = self.clients.lock();
        let mut running = clients.iter().filter_map(Weak::upgrade);
        running.any(|client| {
            let gone = client.gone_since();
            gone.is_some_and(|since| since.elapsed() >= gone_for) && client.has_operations()
        })
    }

    /// Waits for the turn, as long as the client is there for whom this thread would have it.
    ///
    /// # Errors
    /// CUDA_ERROR_DEVICE_UNAVAILABLE where the client is gone.
    pub(super) fn take_turn(&self) -> Result<MutexGuard<'_, ClosingState>, CUresult> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let turn = self.lock_for_client(&self.turn);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if turn.is_ok() {
            return turn;
        }
        // Who had the turn may have left the gate closed to this one, and nobody else may come.
        while self.closed.load(Ordering::SeqCst) {
            if let Some(mut turn) = self.turn.try_lock_for(PATIENCE)
                && let Some(pause) = turn.closed.take()
            {
                drop(Closed {
                    gate: self,
                    turn,
                    pause,
                    began: Instant::now(),
                    client: None,
                });
                break;
            }
        }
        turn
    }

    /// Locks what somebody else may have locked who waits for what runs, as long as the client is there for whom this thread does so.
    ///
    /// # Errors
    /// CUDA_ERROR_DEVICE_UNAVAILABLE where the client is gone.
    pub(crate) fn lock_for_client<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
    ) -> Result<MutexGuard<'a, T>, CUresult> {
        loop {
            if let Some(locked) = mutex.try_lock_for(BETWEEN_ASKING) {
                return Ok(locked);
            }
            if self.is_this_client_gone() {
                return Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
            }
        }
    }
}
