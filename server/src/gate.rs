//! Whether contexts may be made on a device now, for devices whose compute mode nobody but us keeps.

use std::fmt::Debug;

use cuda_abi::CUresult;

/// Says who may have contexts on devices, by their ordinals.
pub trait Gate: Send + Sync + Debug {
    /// A device's CUcomputemode, as its clients are told.
    fn mode(&self, device: u32) -> u32;

    /// Asks before a context is made, each time.
    ///
    /// # Errors
    /// CUDA_ERROR_DEVICE_UNAVAILABLE when the mode forbids it.
    fn open(&self, device: u32) -> Result<(), CUresult>;
}

/// For devices that keep to their modes themselves.
#[derive(Debug)]
pub struct Open;

impl Gate for Open {
    fn mode(&self, _: u32) -> u32 {
        0
    }

    fn open(&self, _: u32) -> Result<(), CUresult> {
        Ok(())
    }
}
