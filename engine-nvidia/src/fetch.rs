//! Fetches: short copies for which the client waits, and of which the data itself tells that it has come.
//!
//! Whoever wants to know when a copy is done has the GPU write a word after it, which is another command, and
//! one for another of its engines: with eight clients that takes longer than the copies (docs/benchmarks.md).
//! In place of that the copy goes to a landing place that was filled with *blanks*, and has come when none
//! is left. Data that has a blank's value somewhere is told of by a word after all, a little later.
//!
//! The landing place is the server's own. If it were the client's, the client could say that its work is
//! done while kernels run, and have memory given to others that they still write.
//!
//! Owns landing places and what is looked for there. Called by the stream, which lets nothing follow a
//! fetch that is under way. Must not know about tickets.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cuda_abi::CUresult;
use cuda_abi::types::{CUdeviceptr, CUstream};
use engine::Owner;

use crate::device::Device;
use crate::driver::Driver;
use crate::pinned::Pinned;

/// Bytes of a landing place, and of the longest fetch.
const MOST: usize = 4096;

/// The GPU writes whole words of so many bytes, where both sides of a copy are aligned to them.
const WORD: usize = size_of::<u32>();

/// The landing places of one device.
pub(crate) type Landings = Pinned<MOST>;

/// A copy from device memory to the client's host memory, which its owner keeps mapped.
pub(crate) struct Fetch {
    to: u64,
    from: CUdeviceptr,
    bytes: usize,
    #[expect(dead_code, reason = "whoever has it keeps the memory mapped")]
    owner: Arc<dyn Owner>,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("to", &self.to)
            .field("from", &self.from)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Fetch {
    /// A fetch of a few whole words; `None` if it is something else.
    pub(crate) fn of(
        to: u64,
        from: CUdeviceptr,
        bytes: u64,
        owner: &Arc<dyn Owner>,
    ) -> Option<Self> {
        let whole = |value: u64| value.is_multiple_of(WORD as u64);
        let fits = bytes <= MOST as u64 && whole(bytes) && whole(from);
        fits.then(|| Self {
            to,
            from,
            bytes: bytes as usize,
            owner: Arc::clone(owner),
        })
    }

    /// How many bytes come.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

/// Where a stream's fetches come to, one at a time. Given back when dropped, which nothing may be under
/// way to then.
#[derive(Debug)]
pub(crate) struct Landing {
    address: CUdeviceptr,
    device: Arc<Device>,
}

impl Landing {
    /// A place on a device, whose context is current.
    ///
    /// # Errors
    /// When there is no memory for more.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        Ok(Self {
            address: device.landings().take(device.driver())?,
            device: Arc::clone(device),
        })
    }

    fn word(&self, index: usize) -> *mut u32 {
        debug_assert!(index < MOST / WORD);
        (self.address as *mut u32).wrapping_add(index)
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.device.landings().give_back(self.address);
    }
}

/// A fetch on its way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    fetch: Fetch,
    landing: Landing,
    blank: u32,
    /// Words from the first on that have come.
    come: usize,
}

impl UnderWay {
    /// Gives the driver a fetch. `number` is another one each time, so that no data has all blanks. The
    /// device's context is current.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(
        fetch: Fetch,
        landing: Landing,
        number: u32,
        driver: &Driver,
        stream: CUstream,
    ) -> Result<Self, CUresult> {
        // Odd, and so another value for each number (Knuth's multiplicative hash).
        let blank = number.wrapping_mul(0x9E37_79B1);
        // SAFETY: the words lie in the landing place, which only this stream uses, and nothing is under
        // way there.
        unsafe { std::slice::from_raw_parts_mut(landing.word(0), fetch.bytes / WORD) }.fill(blank);
        let to = std::ptr::with_exposed_provenance_mut(landing.address as usize);
        // SAFETY: the source is the client's memory, as was found when the copy was planned, and the server
        // takes none back before the work that was posted earlier has finished; the landing place is
        // as large, and kept until the copy is done.
        unsafe { driver.cuMemcpyDtoHAsync_v2(to, fetch.from, fetch.bytes, stream)? };
        Ok(Self {
            fetch,
            landing,
            blank,
            come: 0,
        })
    }

    /// Whether all of it has come, as far as can be seen.
    pub(crate) fn has_come(&mut self) -> bool {
        let words = self.fetch.bytes / WORD;
        while self.come < words {
            // SAFETY: as in `issue`; the GPU may write the word now, which is read as a whole.
            if unsafe { self.landing.word(self.come).read_volatile() } == self.blank {
                return false;
            }
            self.come += 1;
        }
        // What is read from here on was written before.
        fence(Ordering::Acquire);
        true
    }

    /// Brings what has come to where it belongs, unless it is of no use; the place for the next fetch.
    pub(crate) fn end(self, useful: bool) -> Landing {
        let Fetch { to, bytes, .. } = self.fetch;
        if useful {
            // SAFETY: the GPU is done with the landing place; the other side was found to be the
            // client's memory, which its owner keeps mapped, and which is no part of ours.
            unsafe {
                std::ptr::copy_nonoverlapping(self.landing.word(0).cast(), to as *mut u8, bytes);
            }
        }
        self.landing
    }
}
