//! Whether the GPU has begun with what a stream was given since it last had nothing to do. Where the device dies, what it has
//! not begun can be done by another server as if nothing had been.
//!
//! Owns a word that the GPU writes before the first of that work. Called by the stream. Must not know what the work is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::CUstream;

use crate::device::Device;
use crate::device::fence::{Fence, has_reached};
use crate::driver::Driver;

/// See the module.
#[derive(Debug)]
pub(super) struct BeginMark {
    word: Fence,
    /// What the GPU writes when it begins with what was given last.
    value: AtomicU32,
}

impl BeginMark {
    /// A mark that is reached. The device's context is current.
    ///
    /// # Errors
    /// As [`Fence::new`].
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        let word = Fence::new(device)?;
        let value = AtomicU32::new(word.load());
        Ok(Self { word, value })
    }

    /// Has the GPU write the word before what comes next in a stream. Where that cannot be, the mark counts as reached.
    pub(super) fn set(&self, driver: &Driver, stream: CUstream) {
        let value = self.word.load().wrapping_add(1);
        // SAFETY: the word outlives the stream's work: it is kept by the stream, which is kept as long as anything is
        // issued in it.
        let written =
            unsafe { driver.cuStreamWriteValue32_v2(stream, self.word.address(), value, 0) };
        let value = written.map_or_else(|_| self.word.load(), |()| value);
        self.value.store(value, Ordering::Release);
    }

    /// Whether the GPU may have begun.
    pub(super) fn is_reached(&self) -> bool {
        has_reached(self.word.load(), self.value.load(Ordering::Acquire))
    }
}
