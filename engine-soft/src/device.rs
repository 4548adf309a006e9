//! The devices: how they are set up, what they say of themselves, and what all clients share of them.
//!
//! Knows nothing of clients; `engine` puts the two together.

use std::sync::Arc;

use cuda_abi::types::{CUdevice_attribute as Attribute, DEVICE_ATTRIBUTES};
use engine::{Bound, machine};
use protocol::device_facts::{ABILITIES, DeviceFacts, REACHES_PEERS};
use ptx_vm::REGISTERS_PER_SM;

use crate::module::ImageCache;
use crate::multiprocessor::{
    BLOCKS_PER_SM, RESERVED_SHARED_BYTES, SHARED_BYTES_OPTIN, SHARED_BYTES_PER_BLOCK,
    SHARED_BYTES_PER_SM, THREADS_PER_SM,
};
use crate::rest::Rest;
use crate::scheduler::WorkerPool;

/// The compute capability that a device says it has unless it is told otherwise, as 10 × major + minor:
/// compilers and libraries choose their PTX by it. NVIDIA's libraries hold PTX for sm_120 and sm_121 alone.
const CAPABILITY: u32 = 121;
/// Those that real devices have, and that compilers of CUDA 13 know.
pub const CAPABILITIES: [u32; 11] = [75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121];
/// How a software GPU is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many devices there are, 1 to 8.
    pub devices: u32,
    /// Bytes of memory that each device has. Rounded down to granules.
    pub memory: u64,
    /// Bytes of this machine's memory that clients may take on all devices together: beyond that there is
    /// no memory, however large the devices are.
    pub machine: u64,
    /// Threads that run the devices' work, all together.
    pub workers: usize,
    /// The compute capability that they say they have, as 10 × major + minor: one of [`CAPABILITIES`].
    pub capability: u32,
}

impl Default for Config {
    /// One device with half of the machine's memory and all its processors.
    fn default() -> Self {
        Self::with_devices(1)
    }
}

impl Config {
    /// So many devices, which share half of the machine's memory and all its processors. However large they
    /// are made, clients get no more than three quarters of it.
    #[must_use]
    pub fn with_devices(devices: u32) -> Self {
        let machine = machine_memory();
        Self {
            devices,
            memory: machine / 2 / u64::from(devices.max(1)),
            machine: machine / 4 * 3,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            capability: CAPABILITY,
        }
    }
}

/// What the clients of an engine share: the devices' memory, the images, the threads.
#[derive(Debug)]
pub(crate) struct Devices {
    pub(crate) facts: Arc<[DeviceFacts]>,
    /// What clients take of each device's memory, within what all devices, and others, take of the machine's,
    /// which may be less than theirs together.
    pub(crate) budgets: Vec<Arc<Bound>>,
    /// What memory of all of them is taken of.
    pub(crate) machine: Arc<Bound>,
    pub(crate) images: ImageCache,
    pub(crate) pool: WorkerPool,
    pub(crate) rest: Arc<Rest>,
    /// See [`Config::capability`].
    pub(crate) capability: u32,
}

/// What a device says of itself.
pub(crate) fn device_facts(ordinal: u32, memory: u64, config: &Config) -> DeviceFacts {
    DeviceFacts {
        name: "OpenMPS software GPU".into(),
        uuid: uuid(ordinal),
        total_memory: memory,
        attributes: attributes(ordinal, config),
        window: 0,
        window_bytes: 0,
    }
}

/// The values of attributes by their numbers. Whatever is not named is a feature
/// that is not built, and 0.
fn attributes(ordinal: u32, config: &Config) -> Vec<i32> {
    let mut values = vec![0; DEVICE_ATTRIBUTES.len() + 1];
    let sms = i32::try_from(config.workers).unwrap_or(i32::MAX);
    let known: &[(Attribute, i32)] = &[
        (Attribute::MAX_THREADS_PER_BLOCK, 1024),
        (Attribute::MAX_BLOCK_DIM_X, 1024),
        (Attribute::MAX_BLOCK_DIM_Y, 1024),
        (Attribute::MAX_BLOCK_DIM_Z, 64),
        (Attribute::MAX_GRID_DIM_X, i32::MAX),
        (Attribute::MAX_GRID_DIM_Y, 65535),
        (Attribute::MAX_GRID_DIM_Z, 65535),
        (
            Attribute::MAX_SHARED_MEMORY_PER_BLOCK,
            signed(SHARED_BYTES_PER_BLOCK),
        ),
        (Attribute::TOTAL_CONSTANT_MEMORY, 64 << 10),
        (Attribute::WARP_SIZE, 32),
        (Attribute::MAX_PITCH, i32::MAX),
        (Attribute::MAX_REGISTERS_PER_BLOCK, signed(REGISTERS_PER_SM)),
        // In kHz: what it counts is nanoseconds, and the memory is of no kind in particular.
        (Attribute::CLOCK_RATE, 1_000_000),
        (Attribute::MEMORY_CLOCK_RATE, 1_000_000),
        (Attribute::GLOBAL_MEMORY_BUS_WIDTH, 64),
        (Attribute::L2_CACHE_SIZE, 1 << 20),
        (Attribute::TEXTURE_ALIGNMENT, 512),
        (Attribute::TEXTURE_PITCH_ALIGNMENT, 32),
        (Attribute::SURFACE_ALIGNMENT, 512),
        (Attribute::GPU_OVERLAP, 1),
        (Attribute::MULTIPROCESSOR_COUNT, sms),
        (Attribute::CAN_MAP_HOST_MEMORY, 1),
        (Attribute::CONCURRENT_KERNELS, 1),
        // No machine has buses in this domain, and each device has its own number there.
        (Attribute::PCI_DOMAIN_ID, 0x5000),
        (Attribute::PCI_BUS_ID, 0),
        (Attribute::PCI_DEVICE_ID, signed(ordinal)),
        (
            Attribute::MAX_THREADS_PER_MULTIPROCESSOR,
            signed(THREADS_PER_SM),
        ),
        (
            Attribute::MAX_BLOCKS_PER_MULTIPROCESSOR,
            signed(BLOCKS_PER_SM),
        ),
        (
            Attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            signed(SHARED_BYTES_PER_SM),
        ),
        (
            Attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            signed(SHARED_BYTES_OPTIN),
        ),
        (
            Attribute::RESERVED_SHARED_MEMORY_PER_BLOCK,
            signed(RESERVED_SHARED_BYTES),
        ),
        (
            Attribute::MAX_REGISTERS_PER_MULTIPROCESSOR,
            signed(REGISTERS_PER_SM),
        ),
        (Attribute::ASYNC_ENGINE_COUNT, 1),
        (Attribute::UNIFIED_ADDRESSING, 1),
        (
            Attribute::COMPUTE_CAPABILITY_MAJOR,
            signed(config.capability / 10),
        ),
        (
            Attribute::COMPUTE_CAPABILITY_MINOR,
            signed(config.capability % 10),
        ),
        (Attribute::STREAM_PRIORITIES_SUPPORTED, 1),
        (Attribute::GLOBAL_L1_CACHE_SUPPORTED, 1),
        (Attribute::LOCAL_L1_CACHE_SUPPORTED, 1),
        (Attribute::HOST_NATIVE_ATOMIC_SUPPORTED, 1),
        (Attribute::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
        (Attribute::COMPUTE_PREEMPTION_SUPPORTED, 1),
        (Attribute::COOPERATIVE_LAUNCH, 1),
        (Attribute::CLUSTER_LAUNCH, 1),
        (Attribute::COOPERATIVE_MULTI_DEVICE_LAUNCH, 1),
        (Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
        (Attribute::CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
        // The program and the kernels see the same pages, and none ever moves.
        (Attribute::MANAGED_MEMORY, 1),
        (Attribute::CONCURRENT_MANAGED_ACCESS, 1),
        (Attribute::DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 1),
        (Attribute::HOST_REGISTER_SUPPORTED, 1),
        (Attribute::READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::MEMORY_POOLS_SUPPORTED, 1),
        // Descriptors.
        (Attribute::MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
        (Attribute::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED, 1),
        (Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        (Attribute::IPC_EVENT_SUPPORTED, 1),
        // No attribute of CUDA's: what there is beside them.
        (Attribute(ABILITIES), REACHES_PEERS),
        // On no node, and not known.
        (Attribute::NUMA_ID, -1),
        (Attribute::HOST_NUMA_ID, -1),
    ];
    for &(attribute, value) in known {
        values[attribute.0 as usize] = value;
    }
    for (attribute, most) in crate::array::LIMITS {
        values[attribute.0 as usize] = i32::try_from(most).unwrap_or(i32::MAX);
    }
    values
}

const fn signed(value: u32) -> i32 {
    value.cast_signed()
}

/// The id of a device, which stays the same for this machine and number.
#[must_use]
pub fn uuid(ordinal: u32) -> [u8; 16] {
    let machine = std::fs::read("/etc/machine-id")
        .unwrap_or_else(|_| rustix::system::uname().nodename().to_bytes().to_vec());
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"openmps software gpu\0");
    hasher.update(&machine);
    hasher.update(&ordinal.to_le_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    // Version 8, variant 1 (RFC 9562): an id made in its maker's own way.
    id[6] = 0x80 | id[6] & 0x0f;
    id[8] = 0x80 | id[8] & 0x3f;
    id
}

/// Bytes of memory that this process can count on: the machine's, or its control groups' limit.
fn machine_memory() -> u64 {
    machine::memory().unwrap_or_else(|| {
        let installed = rustix::system::sysinfo();
        let unit = u64::from(installed.mem_unit);
        installed.totalram.saturating_mul(unit)
    })
}
