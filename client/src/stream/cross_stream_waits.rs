//! How far streams have waited for one another.
//!
//! Memory pools ask it, to give a block that was freed in one stream to another that comes behind the free.
//! Streams note their waits, while any pool has a block that could be given so.
//!
//! Owns a place for each pair of streams that it remembers, and the count of free blocks. Must not know which
//! blocks these are, nor what a stream waited for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Waits that are remembered.
const MOST: usize = 4096;

/// The waits of all streams, by slots.
#[derive(Debug, Default)]
pub(crate) struct CrossStreamWaits {
    /// Blocks that are free in pools; read without a lock by every wait, and when the program synchronises.
    free_blocks: AtomicUsize,
    /// How far a stream (the first) has waited for another.
    known: Mutex<HashMap<(u32, u32), u64>>,
}

impl CrossStreamWaits {
    /// Whether any pool has a free block.
    pub(crate) fn any_free_block(&self) -> bool {
        self.free_blocks.load(Ordering::Relaxed) != 0
    }

    /// Blocks have become free.
    pub(crate) fn add_free_blocks(&self, count: usize) {
        self.free_blocks.fetch_add(count, Ordering::Relaxed);
    }

    /// Blocks are free no more.
    pub(crate) fn remove_free_blocks(&self, count: usize) {
        self.free_blocks.fetch_sub(count, Ordering::Relaxed);
    }

    /// Notes that a stream waits for another's work up to a place.
    pub(super) fn note(&self, waiter: u32, on: u32, until: u64) {
        if !self.any_free_block() {
            return;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.clear(); // Only a chance to use a block earlier is lost.
        }
        let known = known.entry((waiter, on)).or_default();
        *known = until.max(*known);
    }

    /// Whether a stream has waited for another's work up to a place.
    pub(crate) fn has_waited(&self, waiter: u32, on: u32, sequence: u64) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let until = known.get(&(waiter, on));
        until.is_some_and(|&until| until >= sequence)
    }
}
