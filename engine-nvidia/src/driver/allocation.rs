//! What the driver is told of physical memory that is asked of it.
//!
//! Called by a device, for the unit that its memory comes in, and by who takes memory of it. Must not know what for.

use cuda_abi::CUresult;
use cuda_abi::types::*;

use crate::driver::Driver;

const TYPE_PINNED: u32 = 1;
pub(crate) const HANDLE_POSIX_FILE_DESCRIPTOR: u32 = 1;
const LOCATION_DEVICE: u32 = 1;
const GRANULARITY_MINIMUM: CUmemAllocationGranularity_flags = CUmemAllocationGranularity_flags(0);

/// `CUmemAllocationProp` as the driver has it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct AllocationProperties {
    kind: u32,
    handle_types: u32,
    location: CUmemLocation,
    windows_meta_data: u64,
    compression: u8,
    rdma_capable: u8,
    usage: u16,
    reserved: [u8; 4],
}

// As a C compiler has it for the headers of CUDA 13.0.
const _: () = assert!(size_of::<AllocationProperties>() == 32);

/// Where a device's memory is.
pub(crate) fn location(ordinal: i32) -> CUmemLocation {
    CUmemLocation {
        r#type: LOCATION_DEVICE,
        id: ordinal,
    }
}

/// Memory of a device that is to be had, which can be exported as a file descriptor.
pub(crate) fn properties(ordinal: i32) -> AllocationProperties {
    AllocationProperties {
        kind: TYPE_PINNED,
        handle_types: HANDLE_POSIX_FILE_DESCRIPTOR,
        location: location(ordinal),
        windows_meta_data: 0,
        compression: 0,
        rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}

/// The unit in which a device's physical memory comes.
///
/// # Errors
/// The driver's status.
pub(crate) fn granularity(driver: &Driver, ordinal: i32) -> Result<u64, CUresult> {
    let mut bytes = 0;
    let properties = properties(ordinal);
    // SAFETY: the pointers are to locals, the properties in the driver's layout.
    unsafe {
        driver.cuMemGetAllocationGranularity(
            &raw mut bytes,
            (&raw const properties).cast(),
            GRANULARITY_MINIMUM,
        )?;
    }
    Ok(bytes as u64)
}
