//! Fetches: short copies back for which the client waits, and of which the data itself tells that it has come.
//!
//! Whoever wants to know when a copy is done has the GPU write a word after it, which is another command, and
//! one for another of its engines: with eight clients that takes longer than the copies (docs/benchmarks.md).
//! In place of that the copy goes to a landing place that was filled with *blanks*, and has come when none
//! is left. Data that has a blank's value somewhere is told of by a word after all, a little later.
//!
//! This rests on a word being seen whole or not at all, in whatever order the words of a copy come. CUDA says
//! nothing of copies. What holds is that page-locked memory is written by the GPU over the bus in whole double words
//! (PCI Express has no smaller unit but by byte enables, which an aligned copy of whole words does not need), and that the
//! processor's cache takes such a write to an aligned double word at once; `benches/gpu.sh soak` compares what comes.
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

use crate::copy::{Run, Step};
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
    run: Run,
    awaited: bool,
    #[expect(dead_code, reason = "whoever has it keeps the memory mapped")]
    owner: Arc<dyn Owner>,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetch")
            .field("run", &self.run)
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}

impl Fetch {
    /// A fetch of a few whole words, which the client is known to wait for or not; `None` for other
    /// copies to host memory.
    pub(crate) fn of(run: Run, awaited: bool, owner: &Arc<dyn Owner>) -> Option<Self> {
        let whole = |value: u64| value.is_multiple_of(WORD as u64);
        let fits = run.bytes <= MOST as u64 && whole(run.bytes) && whole(run.from);
        fits.then(|| Self {
            run,
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
        Step::Run(self.run)
    }

    fn words(&self) -> usize {
        self.run.bytes as usize / WORD
    }
}

/// Whether the client of a stream waits for copies of which it does not say so: taken to be as the last time. If
/// it does not, a fetch would keep waiting what follows.
#[derive(Debug, Default)]
pub(crate) struct Habit {
    waits: bool,
    /// The stream's last operation is such a copy.
    asked: bool,
}

impl Habit {
    /// Such a copy comes: whether it had better be a fetch.
    pub(crate) fn ask(&mut self) -> bool {
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
        unsafe { std::slice::from_raw_parts_mut(landing.word(0), fetch.words()) }.fill(blank);
        let (run, to) = (fetch.run, landing.word(0).cast());
        // SAFETY: the source is the client's memory, as was found when the copy was planned, and the server
        // takes none back before the work that was posted earlier has finished; the landing place is
        // as large, and kept until the copy is done.
        unsafe { driver.cuMemcpyDtoHAsync_v2(to, run.from, run.bytes as usize, stream)? };
        Ok(Self {
            fetch,
            landing,
            blank,
            come: 0,
        })
    }

    /// Whether all of it has come, as far as can be seen.
    pub(crate) fn has_come(&mut self) -> bool {
        while self.come < self.fetch.words() {
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
        let Run { to, bytes, .. } = self.fetch.run;
        if useful {
            // SAFETY: the GPU is done with the landing place; the other side was found to be the
            // client's memory, which its owner keeps mapped, and which is no part of ours.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.landing.word(0).cast(),
                    to as *mut u8,
                    bytes as usize,
                );
            }
        }
        self.landing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_taken_to_do_what_it_did_last() {
        let mut habit = Habit::default();
        assert!(!habit.ask());
        habit.learn(true);
        assert!(habit.ask());
        habit.learn(true);
        // What comes with no copy before it says nothing.
        habit.learn(false);
        assert!(habit.ask());
        habit.learn(false);
        assert!(!habit.ask());
    }
}
