//! Completion words: page-locked memory that the GPU writes and any thread may read.
//!
//! Owns a word of its device's pinned memory, which goes back when it is dropped. Called by streams and by looks at
//! device memory. Must not know what the value stands for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::CUdeviceptr;

use crate::device::Device;

/// One word. Its address means the same to the processor and to the GPU.
#[derive(Debug)]
pub(crate) struct Fence {
    address: CUdeviceptr,
    device: Arc<Device>,
}

impl Fence {
    /// Takes a word, which holds whatever it held last. The device's context is current.
    ///
    /// # Errors
    /// When there is no memory for more words.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        Ok(Self {
            address: device.fences().allocate(device.driver())?,
            device: Arc::clone(device),
        })
    }

    /// What was written last.
    pub(crate) fn load(&self) -> u32 {
        self.value().load(Ordering::Acquire)
    }

    /// Writes it in the GPU's place.
    pub(crate) fn store(&self, value: u32) {
        self.value().store(value, Ordering::Release);
    }

    fn value(&self) -> &AtomicU32 {
        // SAFETY: the word lies in a block that lives as long as the device, which `self` keeps; it is
        // aligned, and processor and GPU access it as whole words only.
        unsafe { &*(self.address as *const AtomicU32) }
    }

    /// All 8 bytes that the GPU wrote last, or may have written.
    pub(crate) fn load_wide(&self) -> u64 {
        // SAFETY: the words lie in a block that lives as long as the device, which `self` keeps; fences are
        // 16 bytes apart, and aligned to that, so 8 bytes are within this one.
        unsafe { &*(self.address as *const AtomicU64) }.load(Ordering::Acquire)
    }

    /// Its address for the GPU.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.device.fences().release(self.address);
    }
}

/// Whether a word that counts up, and wraps round, has come to `fence_value`.
pub(crate) fn has_reached(word: u32, fence_value: u32) -> bool {
    word.wrapping_sub(fence_value) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_values_wrap_round() {
        assert!(has_reached(5, 5));
        assert!(has_reached(6, 5));
        assert!(!has_reached(4, 5));
        assert!(has_reached(2, u32::MAX - 1));
        assert!(!has_reached(u32::MAX - 1, 2));
    }
}
