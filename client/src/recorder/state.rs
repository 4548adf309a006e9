//! Whether this process is recorded: one word, which exported functions, posts and launches look at.
//!
//! `session` notices that the server asks for it, [`recorder`](super) does it. Knows neither.

use std::sync::atomic::{AtomicU8, Ordering};

const OFF: u8 = 0;
/// The server asks, and nothing was begun yet.
const ASKED: u8 = 1;
const ON: u8 = 2;
/// The process ends: nothing is begun any more.
const ENDED: u8 = 3;

/// In a fork's child as it was in its parent.
static STATE: AtomicU8 = AtomicU8::new(OFF);

/// Whether anything is recorded, or is about to be.
#[inline]
pub(crate) fn is_on() -> bool {
    matches!(STATE.load(Ordering::Relaxed), ASKED | ON)
}

/// The server asks for it: the next exported function begins, which holds no lock.
#[cold]
pub(crate) fn request_start() {
    STATE
        .compare_exchange(OFF, ASKED, Ordering::Relaxed, Ordering::Relaxed)
        .ok();
}

/// Whether the server has asked, and the caller is the one to begin.
pub(super) fn begins() -> bool {
    let begun = STATE.compare_exchange(ASKED, ON, Ordering::Relaxed, Ordering::Relaxed);
    begun.is_ok()
}

/// From now on everything is recorded, unless the process ends.
pub(super) fn begin() {
    STATE
        .compare_exchange(OFF, ON, Ordering::Relaxed, Ordering::Relaxed)
        .ok();
}

/// Nothing is recorded until somebody asks again.
pub(super) fn stop() {
    STATE
        .compare_exchange(ON, OFF, Ordering::Relaxed, Ordering::Relaxed)
        .ok();
}

/// Nothing is recorded any more.
pub(super) fn end() {
    STATE.store(ENDED, Ordering::Relaxed);
}
