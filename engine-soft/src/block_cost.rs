//! How long a kernel's blocks take, learned as they run: what a launch is cut into pieces by.
//!
//! Owned by a module's kernel, written by its grids, which run on several threads. Must not know what a block does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a kernel's blocks take, as seen so far.
#[derive(Debug, Default)]
pub(crate) struct BlockCost(AtomicU64);

impl BlockCost {
    /// Nanoseconds of a block, if any has run.
    pub(crate) fn known(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&cost| cost != 0)
    }

    /// Takes note of how long so many blocks took together.
    pub(crate) fn learn(&self, took: Duration, blocks: u64) {
        let Some(seen) = (took.as_nanos() as u64).checked_div(blocks) else {
            return;
        };
        let cost = self.known().map_or(seen, |known| (3 * known + seen) / 4);
        self.0.store(cost.max(1), Ordering::Relaxed);
    }
}
