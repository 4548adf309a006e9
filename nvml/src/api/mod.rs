//! The functions that are answered here, by family. Each has the name of its entry point.
//!
//! Must not know the daemon. Called by the entry points of `exports`.

#![allow(non_snake_case, reason = "the names are C's")]

mod device;
mod memory;
mod processes;
mod system;
mod utilization;

pub(crate) use device::*;
pub(crate) use memory::*;
pub(crate) use processes::*;
pub(crate) use system::*;
pub(crate) use utilization::*;

use cuda_abi::nvml::nvmlReturn_t;

/// Refuses a structure of a version that is not known.
fn version_is(given: u32, known: u32) -> Result<(), nvmlReturn_t> {
    if given == known {
        Ok(())
    } else {
        Err(nvmlReturn_t::ERROR_ARGUMENT_VERSION_MISMATCH)
    }
}
