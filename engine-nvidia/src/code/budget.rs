//! How much code of its own a client has on each device. Modules without variables are all clients' one
//! module; each of the others has the image's code to itself, in memory that the driver takes for it.
//!
//! Knows nothing of modules.

use std::sync::Arc;

use cuda_abi::CUresult;

use crate::sync::BoundedCount;

/// Bytes of images that a client's own modules may have on one device together: as many as its images may.
const MOST: usize = 1 << 30;

/// What a client has of code, by device.
#[derive(Debug)]
pub(crate) struct CodeBudget(Vec<BoundedCount>);

/// The code of one module, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct CodeCharge {
    budget: Arc<CodeBudget>,
    device: usize,
    bytes: usize,
}

impl CodeBudget {
    /// None on any of so many devices.
    pub(crate) fn new(devices: usize) -> Arc<Self> {
        Arc::new(Self((0..devices).map(|_| BoundedCount::of(MOST)).collect()))
    }

    /// Counts the code of one module more.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY beyond the bound.
    pub(crate) fn charge(
        self: &Arc<Self>,
        device: usize,
        bytes: usize,
    ) -> Result<CodeCharge, CUresult> {
        let room = self.0.get(device).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        if !room.try_add(bytes) {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        Ok(CodeCharge {
            budget: Arc::clone(self),
            device,
            bytes,
        })
    }
}

impl Drop for CodeCharge {
    fn drop(&mut self) {
        if let Some(room) = self.budget.0.get(self.device) {
            room.subtract(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_a_bound_on_each_device() {
        let code = CodeBudget::new(2);
        let half = code.charge(0, MOST / 2).unwrap();
        let other = code.charge(1, MOST).unwrap();
        assert!(code.charge(0, MOST / 2 + 1).is_err());
        assert!(code.charge(1, 1).is_err() && code.charge(2, 1).is_err());
        let rest = code.charge(0, MOST / 2).unwrap();
        drop((half, other));
        assert!(code.charge(0, MOST / 2).is_ok() && code.charge(1, MOST).is_ok());
        drop(rest);
    }
}
