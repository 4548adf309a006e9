//! Looks into device memory, for streams that wait for a value there.
//!
//! A look is a copy of one value into page-locked memory, in a stream that has nothing but looks in it, so
//! that nobody's work is waited for. It is asked for once and fetched when it is there; whoever asks does
//! not wait for the GPU longer than a copy takes when nothing is in its way.
//!
//! Memory that is being looked at must stay: whoever takes memory away asks [`Looks::are_over`] before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUstream};

use crate::cleared::Cleared;
use crate::device::Device;
use crate::driver::Driver;
use crate::sync::Handle;
use crate::words::{Word, has_come_to};

/// How long a look that was asked for is waited for at once.
const AT_ONCE: Duration = Duration::from_micros(40);

/// Looks of one client on one device that are under way. Each is of another waiting stream; what is more
/// is looked at later.
const MOST: usize = 64;

/// A client's looks into the memory of one device.
#[derive(Debug)]
pub(crate) struct Looks {
    device: Arc<Device>,
    /// Null until something is looked at.
    stream: Handle<CUstream>,
    /// Counts the looks that the GPU has done.
    done: Option<Word>,
    /// The last look's number.
    ticket: u32,
    /// Up to where the stream waits for clearing.
    cleared: u64,
    under_way: Vec<Look>,
}

#[derive(Debug)]
struct Look {
    address: u64,
    bytes: u32,
    value: Word,
    ticket: u32,
}

impl Looks {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        Self {
            device: Arc::clone(device),
            stream: Handle(CUstream::NULL),
            done: None,
            ticket: 0,
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
        cleared: &Cleared,
    ) -> Result<u64, CUresult> {
        let asked = |look: &Look| look.address == address && look.bytes == bytes;
        if !self.under_way.iter().any(asked) {
            if self.under_way.len() >= MOST {
                // Some may be of waits that are no more.
                let done = self.done_up_to();
                self.under_way
                    .retain(|look| !has_come_to(done, look.ticket));
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
            if has_come_to(self.done_up_to(), self.under_way[at].ticket) {
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
        self.done.as_ref().map_or(0, Word::load)
    }

    fn issue(
        &mut self,
        driver: &Driver,
        address: u64,
        bytes: u32,
        cleared: &Cleared,
    ) -> Result<(), CUresult> {
        if self.stream.0.is_null() {
            let done = Word::new(&self.device)?;
            // SAFETY: the pointer is to our own field.
            unsafe { driver.cuStreamCreate(&raw mut self.stream.0, CU_STREAM_NON_BLOCKING)? };
            // Whoever had the word before left a number in it.
            self.ticket = done.load();
            self.done = Some(done);
        }
        let Some(done) = &self.done else {
            return Err(CUresult::ERROR_UNKNOWN);
        };
        cleared.wait(driver, self.stream.0, &mut self.cleared)?;
        let value = Word::new(&self.device)?;
        let ticket = self.ticket.wrapping_add(1);
        // SAFETY: the range is the client's, who keeps it until `are_over`; both words are kept until
        // the GPU has come to the ticket, or is dead.
        let written = unsafe {
            driver.cuMemcpyAsync(value.address(), address, bytes as usize, self.stream.0)?;
            driver.cuStreamWriteValue32_v2(self.stream.0, done.address(), ticket, 0)
        };
        if let Err(code) = written {
            #[expect(
                clippy::mem_forget,
                reason = "nothing will say when the copy is over, so its word is given to nobody else"
            )]
            std::mem::forget(value);
            return Err(code);
        }
        self.ticket = ticket;
        self.under_way.push(Look {
            address,
            bytes,
            value,
            ticket,
        });
        Ok(())
    }

    /// Whether nothing is being looked at.
    pub(crate) fn are_over(&self) -> bool {
        has_come_to(self.done_up_to(), self.ticket) || self.done.is_none()
    }

    /// Waits until nothing is being looked at. A device that dies ends the waiting.
    pub(crate) fn wait_until_over(&self) {
        while !self.are_over() && self.device.probe().is_ok() {
            std::thread::sleep(AT_ONCE);
        }
    }
}

impl Drop for Looks {
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
