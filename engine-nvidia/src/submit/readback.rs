//! Readbacks: short copies back for which the client waits, and of which the data itself tells that it has come.
//!
//! Whoever wants to know when a copy is done has the GPU write a word after it, which is another command, and
//! one for another of its engines: with eight clients that takes longer than the copies (docs/notes/readback.md).
//! In place of that the copy goes to a bounce buffer that was filled with *sentinels*, and has come when none
//! is left. Data that has a sentinel's value somewhere is told of by a word after all, a little later.
//!
//! This rests on a word being seen whole or not at all, in whatever order the words of a copy come. CUDA says
//! nothing of copies. What holds is that page-locked memory is written by the GPU over the bus in whole double words
//! (PCI Express has no smaller unit but by byte enables, which an aligned copy of whole words does not need), and that the
//! processor's cache takes such a write to an aligned double word at once; `benches/gpu.sh soak` compares what comes.
//!
//! The bounce buffer is the server's own. If it were the client's, the client could say that its work is
//! done while kernels run, and have memory given to others that they still write.
//!
//! Owns bounce buffers and what is looked for there. Called by the stream, which lets nothing follow a
//! readback that is under way. Must not know about fence values.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use cuda_abi::CUresult;
use cuda_abi::types::{CUdeviceptr, CUstream};
use engine::Owner;

use crate::device::Device;
use crate::device::pinned::BOUNCE_BUFFER_BYTES;
use crate::driver::Driver;
use crate::submit::copy::step::{LinearCopy, Step};

/// The GPU writes whole words of so many bytes, where both sides of a copy are aligned to them.
const WORD: usize = size_of::<u32>();

/// A copy from device memory to the client's host memory, which its owner keeps mapped.
pub(crate) struct Readback {
    copy: LinearCopy,
    awaited: bool,
    #[expect(dead_code, reason = "whoever has it keeps the memory mapped")]
    owner: Arc<dyn Owner>,
}

impl fmt::Debug for Readback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readback")
            .field("copy", &self.copy)
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

impl Readback {
    /// A readback of a few whole words, which the client is known to wait for or not; `None` for other
    /// copies to host memory.
    pub(crate) fn of(copy: LinearCopy, awaited: bool, owner: &Arc<dyn Owner>) -> Option<Self> {
        let whole = |value: u64| value.is_multiple_of(WORD as u64);
        let fits =
            copy.bytes <= BOUNCE_BUFFER_BYTES as u64 && whole(copy.bytes) && whole(copy.from);
        fits.then(|| Self {
            copy,
            awaited,
            owner: Arc::clone(owner),
        })
    }

    /// Whether the client is known to wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// The copy that it is.
    pub(crate) fn step(&self) -> Step {
        Step::Linear(self.copy)
    }

    fn words(&self) -> usize {
        self.copy.bytes as usize / WORD
    }
}

/// Whether the client of a stream waits for copies of which it does not say so: taken to be as the last time. If
/// it does not, a readback would keep waiting what follows.
#[derive(Debug, Default)]
pub(crate) struct WaitPredictor {
    waits: bool,
    /// The stream's last operation is such a copy.
    asked: bool,
}

impl WaitPredictor {
    /// Such a copy comes: whether it had better be a readback.
    pub(crate) fn predict(&mut self) -> bool {
        self.asked = true;
        self.waits
    }

    /// Something comes, or all is done before it does: which of them, after such a copy, is the answer.
    pub(crate) fn learn(&mut self, waits: bool) {
        if std::mem::take(&mut self.asked) {
            self.waits = waits;
        }
    }
}

/// Where a stream's readbacks come to, one at a time. Given back when dropped, which nothing may be under
/// way to then.
#[derive(Debug)]
pub(crate) struct BounceBuffer {
    address: CUdeviceptr,
    device: Arc<Device>,
}

impl BounceBuffer {
    /// A place on a device, whose context is current.
    ///
    /// # Errors
    /// When there is no memory for more.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        Ok(Self {
            address: device.bounce_buffers().allocate(device.driver())?,
            device: Arc::clone(device),
        })
    }

    /// Its words, which the GPU may be writing.
    fn words(&self) -> &[AtomicU32] {
        // SAFETY: the bounce buffer is page-locked memory of so many bytes, aligned to as many, that lives as long as
        // the device, which `self` keeps; processor and GPU access it as whole words only, the processor as atomics.
        unsafe {
            std::slice::from_raw_parts(self.address as *const AtomicU32, BOUNCE_BUFFER_BYTES / WORD)
        }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        self.device.bounce_buffers().release(self.address);
    }
}

/// A readback on its way.
#[derive(Debug)]
pub(crate) struct PendingReadback {
    readback: Readback,
    bounce: BounceBuffer,
    sentinel: u32,
    /// Words from the first on that have come.
    come: usize,
}

impl PendingReadback {
    /// Gives the driver a readback. `number` is another one each time, so that no data has all sentinels. The
    /// device's context is current.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(
        readback: Readback,
        bounce: BounceBuffer,
        number: u32,
        driver: &Driver,
        stream: CUstream,
    ) -> Result<Self, CUresult> {
        // Odd, and so another value for each number (Knuth's multiplicative hash).
        let sentinel = number.wrapping_mul(0x9E37_79B1);
        for word in &bounce.words()[..readback.words()] {
            word.store(sentinel, Ordering::Relaxed);
        }
        let (copy, to) = (readback.copy, bounce.address as *mut c_void);
        // SAFETY: the source is the client's memory, as was found when the copy was planned, and the server
        // takes none back before the work that was posted earlier has finished; the bounce buffer is
        // as large, and kept until the copy is done.
        unsafe { driver.cuMemcpyDtoHAsync_v2(to, copy.from, copy.bytes as usize, stream)? };
        Ok(Self {
            readback,
            bounce,
            sentinel,
            come: 0,
        })
    }

    /// Whether all of it has come, as far as can be seen.
    pub(crate) fn is_complete(&mut self) -> bool {
        while self.come < self.readback.words() {
            if self.bounce.words()[self.come].load(Ordering::Relaxed) == self.sentinel {
                return false;
            }
            self.come += 1;
        }
        // What is read from here on was written before.
        fence(Ordering::Acquire);
        true
    }

    /// Brings what has come to where it belongs, unless it is of no use; the place for the next readback.
    pub(crate) fn end(self, useful: bool) -> BounceBuffer {
        let LinearCopy { to, bytes, .. } = self.readback.copy;
        if useful {
            // SAFETY: the GPU is done with the bounce buffer; the other side was found to be the
            // client's memory, which its owner keeps mapped, and which is no part of ours.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.bounce.address as *const u8,
                    to as *mut u8,
                    bytes as usize,
                );
            }
        }
        self.bounce
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_taken_to_do_what_it_did_last() {
        let mut wait_predictor = WaitPredictor::default();
        assert!(!wait_predictor.predict());
        wait_predictor.learn(true);
        assert!(wait_predictor.predict());
        wait_predictor.learn(true);
        // What comes with no copy before it says nothing.
        wait_predictor.learn(false);
        assert!(wait_predictor.predict());
        wait_predictor.learn(false);
        assert!(!wait_predictor.predict());
    }
}
