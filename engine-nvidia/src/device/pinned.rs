//! Page-locked memory of the server's own, which the GPU writes: handed out in pieces of one size.
//!
//! Owns the memory of one device. Called by what the pieces are for, completion words and bounce buffers,
//! which must not be in memory that a client can write. Must not know what is in them.

use parking_lot::Mutex;
use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr};

use crate::driver::Driver;
use crate::sync::Handle;

/// Completion words, which are as far apart as the GPU's writes have at least.
pub(crate) type FencePool = Pinned<16>;

pub(crate) const BOUNCE_BUFFER_BYTES: usize = 4096;

pub(crate) type BounceBufferPool = Pinned<BOUNCE_BUFFER_BYTES>;

/// Bytes that are allocated at a time.
const BLOCK: usize = 64 << 10;

/// Pieces of so many bytes, aligned to that. The address of each means the same to the processor and to
/// the GPU.
#[derive(Debug, Default)]
pub(crate) struct Pinned<const BYTES: usize> {
    state: Mutex<PieceLists>,
}

#[derive(Debug, Default)]
struct PieceLists {
    blocks: Vec<Handle<*mut c_void>>,
    free: Vec<CUdeviceptr>,
}

impl<const BYTES: usize> Pinned<BYTES> {
    /// Takes a piece, which holds whatever it held last. The device's context is current.
    ///
    /// # Errors
    /// When there is no memory for more.
    pub(crate) fn allocate(&self, driver: &Driver) -> Result<CUdeviceptr, CUresult> {
        let mut state = self.state.lock();
        if state.free.is_empty() {
            let mut block = std::ptr::null_mut();
            // SAFETY: the pointer is to a local.
            unsafe {
                driver.cuMemHostAlloc(
                    &raw mut block,
                    BLOCK,
                    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP,
                )?;
                // SAFETY: the driver just gave these bytes, and nobody else knows of them.
                std::ptr::write_bytes(block.cast::<u8>(), 0, BLOCK);
            }
            state.blocks.push(Handle(block));
            let base = block as CUdeviceptr;
            let pieces = (0..BLOCK).step_by(BYTES);
            state.free.extend(pieces.map(|offset| base + offset as u64));
        }
        state.free.pop().ok_or(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Takes a piece back, which the GPU writes no more.
    pub(crate) fn release(&self, piece: CUdeviceptr) {
        self.state.lock().free.push(piece);
    }

    /// Frees the memory. Nobody has a piece any more; the device's context is current.
    pub(crate) fn close(&self, driver: &Driver) {
        let mut state = self.state.lock();
        state.free.clear();
        for block in state.blocks.drain(..) {
            // SAFETY: it was allocated by `take`, and who has a piece keeps the device alive, so that
            // none is left.
            let _ = unsafe { driver.cuMemFreeHost(block.0) };
        }
    }
}
