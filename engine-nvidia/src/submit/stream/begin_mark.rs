//! Whether the GPU has begun with the kernels that a stream was given since it last had nothing to do. Where the device dies,
//! what it has not begun can be done by another server as if nothing had been.
//!
//! Owns a word that a kernel writes before the first of them, where others have work on the device: a device that a fault has stopped goes on to write words by
//! itself, but begins with no kernel. Called by the stream. Must not know what the work is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::CUstream;

use crate::device::Device;
use crate::device::fence::{Fence, has_reached};
use crate::driver::Driver;
use crate::submit::launch_batch::Signal;

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

    /// Has a kernel write the word before what comes next in a stream. Where that cannot be, the mark counts as reached.
    pub(super) fn set(&self, device: &Device, driver: &Driver, stream: CUstream) {
        let before = self.word.load();
        let signal = Signal {
            word: self.word.address(),
            fence_value: before.wrapping_add(1),
            client: None,
        };
        let is_launched = device
            .signal_kernel()
            .is_some_and(|kernel| signal.launch(kernel, driver, stream).is_ok());
        let value = if is_launched {
            signal.fence_value
        } else {
            before
        };
        self.value.store(value, Ordering::Release);
    }

    /// What comes next counts as begun.
    pub(super) fn pass_over(&self) {
        self.value.store(self.word.load(), Ordering::Release);
    }

    /// Whether the GPU may have begun.
    pub(super) fn is_reached(&self) -> bool {
        has_reached(self.word.load(), self.value.load(Ordering::Acquire))
    }
}
