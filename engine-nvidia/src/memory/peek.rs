//! Looks into device memory, for streams that wait for a value there.
//!
//! A look is a copy of one value into page-locked memory, in a stream that has nothing but looks in it, so
//! that nobody's work is waited for. It is asked for once and fetched when it is there; whoever asks does
//! not wait for the GPU longer than a copy takes when nothing is in its way.
//!
//! Memory that is being looked at must stay: whoever takes memory away asks [`DevicePeeks::are_over`] before. Called
//! by the client's windows. Must not know who waits for the value.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUstream};

use crate::device::Device;
use crate::device::fence::{Fence, has_reached};
use crate::driver::Driver;
use crate::memory::zero_fill::ZeroFillProgress;
use crate::sync::Handle;

/// How long a look that was asked for is waited for at once.
const AT_ONCE: Duration = Duration::from_micros(40);

/// Looks of one client on one device that are under way. Each is of another waiting stream; what is more
/// is looked at later.
const MOST: usize = 64;

/// A client's looks into the memory of one device.
#[derive(Debug)]
pub(crate) struct DevicePeeks {
    device: Arc<Device>,
    /// Null until something is looked at.
    stream: Handle<CUstream>,
    /// Counts the looks that the GPU has done.
    done: Option<Fence>,
    /// The last look's number.
    fence_value: u32,
    /// Up to where the stream waits for clearing.
    cleared: u64,
    under_way: Vec<PendingPeek>,
}

#[derive(Debug)]
struct PendingPeek {
    address: u64,
    bytes: u32,
    value: Fence,
    fence_value: u32,
}

impl DevicePeeks {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            stream: Handle(CUstream::NULL),
            done: None,
            fence_value: 0,
            cleared: 0,
            under_way: Vec::new(),
        }
    }

    /// The value of 4 or 8 bytes at an address of the device, which is the client's.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_READY while it is not there, and the driver's status.
    pub(crate) fn value(
        &mut self,
        address: u64,
        bytes: u32,
        cleared: &ZeroFillProgress,
    ) -> Result<u64, CUresult> {
        let asked = |look: &PendingPeek| look.address == address && look.bytes == bytes;
        if !self.under_way.iter().any(asked) {
            if self.under_way.len() >= MOST {
                // Some may be of waits that are no more.
                let done = self.done_up_to();
                self.under_way
                    .retain(|look| !has_reached(done, look.fence_value));
            }
            if self.under_way.len() >= MOST {
                return Err(CUresult::ERROR_NOT_READY);
            }
            let device = Arc::clone(&self.device);
            let issued = device
                .enter()
                .and_then(|driver| self.issue(driver, address, bytes, cleared));
            device.confirm(issued)?;
        }
        let until = Instant::now() + AT_ONCE;
        let at = self.under_way.iter().position(asked);
        let at = at.ok_or(CUresult::ERROR_UNKNOWN)?;
        loop {
            if has_reached(self.done_up_to(), self.under_way[at].fence_value) {
                let look = self.under_way.swap_remove(at);
                let value = look.value.load_wide();
                return Ok(match bytes {
                    4 => value & u64::from(u32::MAX),
                    _ => value,
                });
            }
            self.device.check()?;
            if Instant::now() >= until {
                return Err(CUresult::ERROR_NOT_READY);
            }
            std::hint::spin_loop();
        }
    }

    fn done_up_to(&self) -> u32 {
        self.done.as_ref().map_or(0, Fence::load)
    }

    fn issue(
        &mut self,
        driver: &Driver,
        address: u64,
        bytes: u32,
        cleared: &ZeroFillProgress,
    ) -> Result<(), CUresult> {
        if self.stream.0.is_null() {
            let done = Fence::new(&self.device)?;
            // SAFETY: the pointer is to our own field.
            unsafe { driver.cuStreamCreate(&raw mut self.stream.0, CU_STREAM_NON_BLOCKING)? };
            // Whoever had the word before left a number in it.
            self.fence_value = done.load();
            self.done = Some(done);
        }
        let Some(done) = &self.done else {
            return Err(CUresult::ERROR_UNKNOWN);
        };
        cleared.wait(driver, self.stream.0, &mut self.cleared)?;
        let value = Fence::new(&self.device)?;
        let fence_value = self.fence_value.wrapping_add(1);
        // SAFETY: the range is the client's, who keeps it until `are_over`; both words are kept until
        // the GPU has come to the fence value, or is dead.
        let written = unsafe {
            driver.cuMemcpyAsync(value.address(), address, bytes as usize, self.stream.0)?;
            driver.cuStreamWriteValue32_v2(self.stream.0, done.address(), fence_value, 0)
        };
        if let Err(code) = written {
            #[expect(
                clippy::mem_forget,
                reason = "nothing will say when the copy is over, so its word is given to nobody else"
            )]
            std::mem::forget(value);
            return Err(code);
        }
        self.fence_value = fence_value;
        self.under_way.push(PendingPeek {
            address,
            bytes,
            value,
            fence_value,
        });
        Ok(())
    }

    /// Whether nothing is being looked at.
    pub(crate) fn are_over(&self) -> bool {
        has_reached(self.done_up_to(), self.fence_value) || self.done.is_none()
    }

    /// Waits until nothing is being looked at. A device that dies ends the waiting.
    pub(crate) fn wait_until_over(&self) {
        while !self.are_over() && self.device.probe().is_ok() {
            std::thread::sleep(AT_ONCE);
        }
    }
}

impl Drop for DevicePeeks {
    fn drop(&mut self) {
        self.wait_until_over();
        if !self.stream.0.is_null()
            && let Ok(driver) = self.device.enter()
        {
            // SAFETY: ours, and nothing is in it any more.
            let _ = unsafe { driver.cuStreamDestroy_v2(self.stream.0) };
        }
    }
}
