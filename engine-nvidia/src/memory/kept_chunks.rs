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
    /// What a former process left in each window where it left something, and the client has not been given again.
    inherited: Vec<(Window, Granules)>,
}

impl KeptChunks {
    /// Of a device by its number.
    pub(super) const fn new(observer: Arc<dyn Observer>, device: u32) -> Self {
        Self {
            observer,
            device,
            inherited: Vec::new(),
        }
    }

    /// What a former process left in the window that a range lies in.
    fn inherited(&mut self, range: Window) -> Option<&mut Granules> {
        let mut all = self.inherited.iter_mut();
        let found = all.find(|(window, _)| window.contains(range.base, range.bytes));
        found.map(|(_, inherited)| inherited)
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
        if let Some(inherited) = self.inherited(range) {
            inherited.set(range, false);
        }
    }

    /// A former process left this, which lies in a window of the client's.
    pub(super) fn inherit(&mut self, at: Window, window: Window) {
        if self.inherited(at).is_none() {
            let nothing = Granules::new(window.base);
            self.inherited.push((window, nothing));
        }
        if let Some(inherited) = self.inherited(at) {
            inherited.set(at, true);
        }
    }

    /// Whether all of a range was left by a former process for the client, to whom it is given now: only once.
    pub(super) fn claim(&mut self, range: Window) -> bool {
        let Some(inherited) = self.inherited(range) else {
            return false;
        };
        let is_all = inherited.has_all(range);
        inherited.set(range, false);
        is_all
    }
}
