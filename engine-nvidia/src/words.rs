//! Completion words: page-locked memory that the GPU writes and any thread may read.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cuda_abi::CUresult;
use cuda_abi::types::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr};

use crate::device::Device;
use crate::driver::Driver;
use crate::sync::{Handle, lock};

/// Bytes that are allocated at a time.
const BLOCK: usize = 64 << 10;

/// Bytes from word to word: the GPU's writes are of this size at least.
const STRIDE: usize = 16;

/// The words of one device.
#[derive(Debug, Default)]
pub(crate) struct Words {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blocks: Vec<Handle<*mut c_void>>,
    free: Vec<CUdeviceptr>,
}

impl Words {
    /// Frees the memory. Nobody has a word any more; the device's context is current.
    pub(crate) fn close(&self, driver: &Driver) {
        let mut state = lock(&self.state);
        state.free.clear();
        for block in state.blocks.drain(..) {
            // SAFETY: it was allocated by `Word::new`, and words keep the device alive, so that none
            // is left.
            let _ = unsafe { driver.cuMemFreeHost(block.0) };
        }
    }
}

/// One word. Its address means the same to the processor and to the GPU.
#[derive(Debug)]
pub(crate) struct Word {
    address: CUdeviceptr,
    device: Arc<Device>,
}

impl Word {
    /// Takes a word, which holds whatever it held last. The device's context is current.
    ///
    /// # Errors
    /// When there is no memory for more words.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        let mut state = lock(&device.words().state);
        if state.free.is_empty() {
            let mut block = std::ptr::null_mut();
            // SAFETY: the pointer is to a local.
            unsafe {
                device.driver().cuMemHostAlloc(
                    &raw mut block,
                    BLOCK,
                    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
                )?;
                // SAFETY: the driver just gave these bytes, and nobody else knows of them.
                std::ptr::write_bytes(block.cast::<u8>(), 0, BLOCK);
            }
            state.blocks.push(Handle(block));
            let base = block as CUdeviceptr;
            state.free.extend(
                (0..BLOCK)
                    .step_by(STRIDE)
                    .map(|offset| base + offset as u64),
            );
        }
        let address = state.free.pop().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            address,
            device: Arc::clone(device),
        })
    }

    /// What the GPU wrote last.
    pub(crate) fn load(&self) -> u32 {
        // SAFETY: the word lies in a block that lives as long as the device, which `self` keeps; it is
        // aligned, and processor and GPU access it as whole words only.
        unsafe { &*(self.address as *const AtomicU32) }.load(Ordering::Acquire)
    }

    /// All 8 bytes that the GPU wrote last, or may have written.
    pub(crate) fn load_wide(&self) -> u64 {
        // SAFETY: as in `load`; words are 16 bytes apart, and aligned to that.
        unsafe { &*(self.address as *const AtomicU64) }.load(Ordering::Acquire)
    }

    /// Its address for the GPU.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        lock(&self.device.words().state).free.push(self.address);
    }
}

/// Whether a word that counts up, and wraps round, has come to `ticket`.
pub(crate) fn has_come_to(word: u32, ticket: u32) -> bool {
    word.wrapping_sub(ticket) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_wrap_round() {
        assert!(has_come_to(5, 5));
        assert!(has_come_to(6, 5));
        assert!(!has_come_to(4, 5));
        assert!(has_come_to(2, u32::MAX - 1));
        assert!(!has_come_to(u32::MAX - 1, 2));
    }
}
