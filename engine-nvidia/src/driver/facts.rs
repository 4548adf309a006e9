//! What a client is shown of a device: the driver's answers, and where they differ from them.
//!
//! Called when a device is opened, and by who only looks which devices there are. Must not need a context.

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice, CUdevice_attribute as Attribute, CUuuid, DEVICE_ATTRIBUTES};
use protocol::device_facts::DeviceFacts;

use crate::driver::Driver;

/// Attributes that promise more than remote execution keeps, and what is said instead. When a thing is
/// built, its line goes.
const OVERRIDES: &[(Attribute, i32)] = &[
    // The GPU sees the server's memory, not the program's.
    (Attribute::PAGEABLE_MEMORY_ACCESS, 0),
    (Attribute::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 0),
    (Attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0),
    // Managed memory is page-locked host memory that the GPU reaches over the bus. Both sides can use it
    // at any time, but an atomic of one is not atomic for the other: updates get lost. So it is memory of
    // a device without concurrent access, as the attributes of such devices say.
    (Attribute::MANAGED_MEMORY, 1),
    (Attribute::CONCURRENT_MANAGED_ACCESS, 0),
    (Attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 0),
    (Attribute::HOST_NATIVE_ATOMIC_SUPPORTED, 0),
    (Attribute::ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED, 0),
    (Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED, 0),
    // Memory of the program's own making, and what is shared with others.
    (Attribute::HANDLE_TYPE_FABRIC_SUPPORTED, 0),
    // Memory that is asked for compressed is plain, and says so of itself.
    (Attribute::GENERIC_COMPRESSION_SUPPORTED, 0),
    (Attribute::MULTICAST_SUPPORTED, 0),
    // Descriptors only.
    (Attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
    (Attribute::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
    (Attribute::HOST_NUMA_MEMORY_POOLS_SUPPORTED, 0),
    (Attribute::HOST_NUMA_MULTINODE_IPC_SUPPORTED, 0),
    (Attribute::HOST_MEMORY_POOLS_SUPPORTED, 0),
    (Attribute::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
    (Attribute::HOST_ALLOC_DMA_BUF_SUPPORTED, 0),
    (Attribute::GPU_DIRECT_RDMA_SUPPORTED, 0),
    (Attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0),
    (Attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0),
    (Attribute::DMA_BUF_SUPPORTED, 0),
    (Attribute::CAN_FLUSH_REMOTE_WRITES, 0),
    (Attribute::SPARSE_CUDA_ARRAY_SUPPORTED, 0),
    (Attribute::DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED, 0),
    (Attribute::TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, 0),
    (Attribute::MEM_DECOMPRESS_ALGORITHM_MASK, 0),
    (Attribute::MEM_DECOMPRESS_MAXIMUM_LENGTH, 0),
    // A client is one of several, whatever the driver of this process thinks.
    (Attribute::MPS_ENABLED, 1),
];

/// Asks the driver for a device's facts.
///
/// # Errors
/// The status of the call that failed.
pub(crate) fn of(driver: &Driver, device: CUdevice) -> Result<DeviceFacts, CUresult> {
    let mut name = [0_u8; 256];
    let mut uuid = CUuuid::default();
    let mut total = 0_usize;
    // SAFETY: all pointers are to locals of the sizes that the functions are told or documented to
    // write.
    unsafe {
        driver.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device)?;
        match driver.cuDeviceGetUuid_v2(&raw mut uuid, device) {
            Err(CUresult::ERROR_NOT_SUPPORTED) => driver.cuDeviceGetUuid(&raw mut uuid, device)?,
            other => other?,
        }
        driver.cuDeviceTotalMem_v2(&raw mut total, device)?;
    }
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    Ok(DeviceFacts {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        uuid: uuid.0,
        total_memory: total as u64,
        attributes: attributes(driver, device),
        window: 0,
        window_bytes: 0,
    })
}

/// The attributes by number, up to the last one that the driver knows.
fn attributes(driver: &Driver, device: CUdevice) -> Vec<i32> {
    let mut values = vec![0; DEVICE_ATTRIBUTES.len() + 1];
    let mut known = 0;
    for &(attribute, _) in DEVICE_ATTRIBUTES {
        let mut value = 0;
        // SAFETY: the pointer is to a local.
        if unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, device) }.is_ok() {
            values[attribute.0 as usize] = value;
            known = attribute.0 as usize;
        }
    }
    values.truncate(known + 1);
    for &(attribute, value) in OVERRIDES {
        if let Some(slot) = values.get_mut(attribute.0 as usize) {
            *slot = value;
        }
    }
    values
}
