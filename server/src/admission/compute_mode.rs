//! Whether contexts may be made on a device now, for devices whose compute mode nobody but us keeps.
//!
//! Called by admission and the main loop. Must not know sessions or packets.

use std::fmt::Debug;

/// Says who may have contexts on devices, by their ordinals.
pub trait ComputeModePolicy: Send + Sync + Debug {
    /// A device's CUcomputemode, as its clients are told.
    fn mode(&self, device: u32) -> u32;

    /// Asks before a context is made, each time.
    ///
    /// # Errors
    /// When the mode forbids it, or nobody knows what the mode is.
    fn open(&self, device: u32) -> Result<(), ContextRefused>;
}

/// Why no context may be made on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextRefused {
    /// Its mode forbids it.
    ByMode,
    /// Its mode cannot be found out, in words.
    Unknown(String),
}

/// For devices that keep to their modes themselves.
#[derive(Debug)]
pub struct EnforcedByDriver;

impl ComputeModePolicy for EnforcedByDriver {
    fn mode(&self, _: u32) -> u32 {
        0
    }

    fn open(&self, _: u32) -> Result<(), ContextRefused> {
        Ok(())
    }
}
