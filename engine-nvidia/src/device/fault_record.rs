//! Where a check in a fenced client's code writes what it did not let a kernel do, as the processor reads it.
//!
//! Owns 16 bytes of its device's pinned memory, which are none of a client's. Written by kernels, `ptx::fence` says how;
//! read by the client's contexts. Must not know whose kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cuda_abi::CUresult;
use cuda_abi::types::CUdeviceptr;
use ptx::fence::Fault;

use crate::device::Device;

/// What a kernel was not let do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// A [`Fault`]'s number.
    kind: u32,
    /// The line of the text.
    line: u32,
    /// The address, or index, that was wrong.
    address: u64,
}

impl Denied {
    /// What its client is told.
    pub(crate) const fn code(self) -> CUresult {
        const MISALIGNED: u32 = Fault::Misaligned as u32;
        const TRAP: u32 = Fault::Trap as u32;
        const TARGET: u32 = Fault::Target as u32;
        match self.kind {
            MISALIGNED => CUresult::ERROR_MISALIGNED_ADDRESS,
            TRAP => CUresult::ERROR_LAUNCH_FAILED,
            TARGET => CUresult::ERROR_INVALID_PC,
            _ => CUresult::ERROR_ILLEGAL_ADDRESS,
        }
    }
}

impl std::fmt::Display for Denied {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const TRAP: u32 = Fault::Trap as u32;
        const TARGET: u32 = Fault::Target as u32;
        let Self {
            kind,
            line,
            address,
        } = self;
        match *kind {
            TRAP => write!(f, "a kernel's trap or assertion, line {line} of its PTX"),
            TARGET => write!(
                f,
                "a kernel's jump or call to {address:#x}, line {line} of its PTX"
            ),
            _ => write!(
                f,
                "a kernel's access at {address:#x}, line {line} of its PTX"
            ),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FaultRecord {
    address: CUdeviceptr,
    device: Arc<Device>,
}

impl FaultRecord {
    /// A record of nothing.
    ///
    /// # Errors
    /// When there is no memory for more, and what the device died of.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CUresult> {
        let record = Self {
            address: device.fences().allocate(device.enter()?)?,
            device: Arc::clone(device),
        };
        record.first().store(0, Ordering::Release);
        record.last().store(0, Ordering::Release);
        Ok(record)
    }

    /// Its address for the GPU.
    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// What was denied first, if anything was.
    pub(crate) fn read(&self) -> Option<Denied> {
        let first = self.first().load(Ordering::Acquire);
        let address = self.last().load(Ordering::Acquire);
        let kind = first as u32;
        (kind != 0).then_some(Denied {
            kind,
            line: (first >> 32) as u32,
            address,
        })
    }

    fn first(&self) -> &AtomicU64 {
        // SAFETY: the 16 bytes lie in a block that lives as long as the device, which `self` keeps; they are aligned to
        // that, and what kernels write there is any value at any time.
        unsafe { &*(self.address as *const AtomicU64) }
    }

    fn last(&self) -> &AtomicU64 {
        // SAFETY: the second half of the same 16 bytes, aligned to 8, which `self` has to itself but for kernels, and those
        // write plain words.
        unsafe { &*((self.address + 8) as *const AtomicU64) }
    }
}

impl Drop for FaultRecord {
    fn drop(&mut self) {
        self.device.fences().release(self.address);
    }
}

/// What a context has told its client of its record.
#[derive(Debug, Default)]
pub(crate) struct Told(AtomicU32);

impl Told {
    /// What it died of.
    ///
    /// # Errors
    /// That.
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CUresult(code)),
        }
    }

    /// Whether nobody has told yet.
    pub(crate) fn is_first(&self, code: CUresult) -> bool {
        self.0
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}
