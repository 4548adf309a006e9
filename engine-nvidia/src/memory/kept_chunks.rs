//! Chunks of a client's device memory that are there again when this process has ended, for another one to go on with.
//!
//! Owns who is told of them, and which of the memory that a former process left nobody has asked for yet. Called by the
//! client's window of the device. Must not know who keeps the descriptors.

use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{MemoryChunk, Observer, Window};

use crate::memory::granules::Granules;
use crate::memory::physical::Mapping;

/// See the module.
#[derive(Debug)]
pub(super) struct KeptChunks {
    observer: Arc<dyn Observer>,
    device: u32,
    window: Window,
    /// What a former process left in the window, and the client has not been given again.
    inherited: Granules,
}

impl KeptChunks {
    /// Of a device by its number, for a client whose memory there begins with this window.
    pub(super) fn new(observer: Arc<dyn Observer>, device: u32, window: Window) -> Self {
        Self {
            observer,
            device,
            window,
            inherited: Granules::new(window.base),
        }
    }

    /// Tells of a chunk, in which there is nothing of anybody else's by now.
    ///
    /// # Errors
    /// The driver's status.
    pub(super) fn made(&self, chunk: &Mapping) -> Result<(), CUresult> {
        self.observer.chunk_made(MemoryChunk {
            device: self.device,
            at: chunk.at(),
            descriptor: chunk.export()?,
        });
        Ok(())
    }

    /// Tells that a chunk is the client's no longer.
    pub(super) fn gone(&mut self, at: Window) {
        self.forget(at);
        self.observer.chunk_gone(self.device, at.base);
    }

    /// What a former process left here is not asked for any more.
    pub(super) fn forget(&mut self, range: Window) {
        if self.window.contains(range.base, range.bytes) {
            self.inherited.set(range, false);
        }
    }

    /// A former process left this.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for what is not in the window.
    pub(super) fn inherit(&mut self, at: Window) -> Result<(), CUresult> {
        if !self.window.contains(at.base, at.bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.inherited.set(at, true);
        Ok(())
    }

    /// Whether all of a range was left by a former process for the client, to whom it is given now: only once.
    pub(super) fn claim(&mut self, range: Window) -> bool {
        let is_all = self.window.contains(range.base, range.bytes) && self.inherited.has_all(range);
        self.forget(range);
        is_all
    }
}
