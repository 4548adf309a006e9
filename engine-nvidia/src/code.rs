//! How much code of its own a client has on each device. Modules without variables are all clients' one
//! module; each of the others has the image's code to itself, in memory that the driver takes for it.
//!
//! Knows nothing of modules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_abi::CUresult;

/// Bytes of images that a client's own modules may have on one device together: as many as its images may.
const MOST: u64 = 1 << 30;

/// What a client has of code, by device.
#[derive(Debug)]
pub(crate) struct Code(Vec<AtomicU64>);

/// The code of one module, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct OwnCode {
    code: Arc<Code>,
    device: usize,
    bytes: u64,
}

impl Code {
    /// None on any of so many devices.
    pub(crate) fn new(devices: usize) -> Arc<Self> {
        Arc::new(Self((0..devices).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Counts the code of one module more.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY beyond the bound.
    pub(crate) fn take(self: &Arc<Self>, device: usize, bytes: u64) -> Result<OwnCode, CUresult> {
        let used = self.0.get(device).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        let before = used.fetch_add(bytes, Ordering::Relaxed);
        let own = OwnCode {
            code: Arc::clone(self),
            device,
            bytes,
        };
        // If it does not fit, dropping it counts it back.
        match before.saturating_add(bytes) <= MOST {
            true => Ok(own),
            false => Err(CUresult::ERROR_OUT_OF_MEMORY),
        }
    }
}

impl Drop for OwnCode {
    fn drop(&mut self) {
        if let Some(used) = self.code.0.get(self.device) {
            used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_a_bound_on_each_device() {
        let code = Code::new(2);
        let half = code.take(0, MOST / 2).unwrap();
        let other = code.take(1, MOST).unwrap();
        assert!(code.take(0, MOST / 2 + 1).is_err());
        assert!(code.take(1, 1).is_err() && code.take(2, 1).is_err());
        let rest = code.take(0, MOST / 2).unwrap();
        drop((half, other));
        assert!(code.take(0, MOST / 2).is_ok() && code.take(1, MOST).is_ok());
        drop(rest);
    }
}
