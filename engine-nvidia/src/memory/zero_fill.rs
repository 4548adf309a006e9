//! How far the clearing of memory has got, for streams to wait on.
//!
//! Counted up by the windows of device memory, waited for by streams. Must not know what is cleared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::device::Device;
use crate::driver::Driver;
use crate::sync::Handle;

/// Between two looks whether memory is cleared, where that must be waited for.
pub(super) const PAUSE: Duration = Duration::from_micros(50);

/// How far the clearing of a window's memory has got, for streams to wait on.
#[derive(Debug)]
pub(crate) struct ZeroFillProgress {
    device: Arc<Device>,
    event: Handle<CUevent>,
    epoch: AtomicU64,
}

impl ZeroFillProgress {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        let mut event = CUevent::NULL;
        // SAFETY: the pointer is to a local.
        unsafe {
            device
                .enter()?
                .cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING)?;
        }
        Ok(Self {
            device: Arc::clone(device),
            event: Handle(event),
            epoch: AtomicU64::new(0),
        })
    }

    /// Whether all clearing so far is over.
    pub(crate) fn is_over(&self, driver: &Driver) -> bool {
        // SAFETY: the event is ours and alive.
        unsafe { driver.cuEventQuery(self.event.0) }.is_ok()
    }

    /// Waits until all clearing is over, so long at most.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_READY when it is not over by then, and what the device died of.
    pub(super) fn wait_until_over(&self, within: Duration) -> Result<(), CUresult> {
        let until = Instant::now() + within;
        while !self.is_over(self.device.enter()?) {
            self.device.probe()?;
            if Instant::now() >= until {
                return Err(CUresult::ERROR_NOT_READY);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Has streams wait for what a stream, in which memory is cleared, has to do by now.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn record(&self, driver: &Driver, clearing: CUstream) -> Result<(), CUresult> {
        // SAFETY: the event is ours and alive; the stream is the caller's.
        unsafe { driver.cuEventRecord(self.event.0, clearing)? };
        self.epoch.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Makes a stream's later work wait for all clearing so far, unless it does since `seen`.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn wait(
        &self,
        driver: &Driver,
        stream: CUstream,
        seen: &mut u64,
    ) -> Result<(), CUresult> {
        let epoch = self.epoch.load(Ordering::Acquire);
        if *seen != epoch {
            // SAFETY: the event is ours and alive; the stream is the caller's.
            unsafe { driver.cuStreamWaitEvent(stream, self.event.0, 0)? };
            *seen = epoch;
        }
        Ok(())
    }
}

impl Drop for ZeroFillProgress {
    fn drop(&mut self) {
        if let Ok(driver) = self.device.enter() {
            // SAFETY: ours, and nobody else has it; the driver frees it when nothing waits for it.
            let _ = unsafe { driver.cuEventDestroy_v2(self.event.0) };
        }
    }
}
