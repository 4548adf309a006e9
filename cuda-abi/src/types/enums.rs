//! Open enums: C's enums as a number with named constants, so that every value can be held.
//!
//! A constant is C's without the prefix that all values of the enum share. Enums that only
//! functions that are not built take have no constants yet.
//!
//! Used by `client`, `engine-nvidia` and `protocol`. Must not know which values are taken: functions check that.

#![allow(non_camel_case_types, reason = "the names are C's")]

macro_rules! open_enums {
    ($($(#[$doc:meta])* $name:ident { $($constant:ident = $value:literal),* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        #[allow(missing_docs, reason = "the names are CUDA's and say what they are")]
        impl $name {
            $(pub const $constant: Self = Self($value);)*
        }
    )*};
}

open_enums! {
    /// A limit of a context.
    CUlimit {
        STACK_SIZE = 0, PRINTF_FIFO_SIZE = 1, MALLOC_HEAP_SIZE = 2, DEV_RUNTIME_SYNC_DEPTH =
        3, DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4, MAX_L2_FETCH_GRANULARITY = 5,
        PERSISTING_L2_CACHE_SIZE = 6, SHMEM_SIZE = 7, CIG_ENABLED = 8,
        CIG_SHMEM_FALLBACK_ENABLED = 9
    }

    /// How a kernel prefers shared memory and cache to be split.
    CUfunc_cache {
        PREFER_NONE = 0, PREFER_SHARED = 1, PREFER_L1 = 2, PREFER_EQUAL = 3
    }

    /// Width of the banks of shared memory.
    CUsharedconfig {
        DEFAULT_BANK_SIZE = 0, FOUR_BYTE_BANK_SIZE = 1, EIGHT_BYTE_BANK_SIZE = 2
    }

    /// A number about a kernel.
    CUfunction_attribute {
        MAX_THREADS_PER_BLOCK = 0, SHARED_SIZE_BYTES = 1, CONST_SIZE_BYTES = 2,
        LOCAL_SIZE_BYTES = 3, NUM_REGS = 4, PTX_VERSION = 5, BINARY_VERSION = 6,
        CACHE_MODE_CA = 7, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 9, CLUSTER_SIZE_MUST_BE_SET = 10,
        REQUIRED_CLUSTER_WIDTH = 11, REQUIRED_CLUSTER_HEIGHT = 12, REQUIRED_CLUSTER_DEPTH =
        13, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14, CLUSTER_SCHEDULING_POLICY_PREFERENCE =
        15
    }

    /// A fact about an address.
    CUpointer_attribute {
        CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, P2P_TOKENS = 5,
        SYNC_MEMOPS = 6, BUFFER_ID = 7, IS_MANAGED = 8, DEVICE_ORDINAL = 9,
        IS_LEGACY_CUDA_IPC_CAPABLE = 10, RANGE_START_ADDR = 11, RANGE_SIZE = 12, MAPPED =
        13, ALLOWED_HANDLE_TYPES = 14, IS_GPU_DIRECT_RDMA_CAPABLE = 15, ACCESS_FLAGS = 16,
        MEMPOOL_HANDLE = 17, MAPPING_SIZE = 18, MAPPING_BASE_ADDR = 19, MEMORY_BLOCK_ID =
        20, IS_HW_DECOMPRESS_CAPABLE = 21
    }

    /// An option of the compiler of device code.
    CUjit_option {
        MAX_REGISTERS = 0, THREADS_PER_BLOCK = 1, WALL_TIME = 2, INFO_LOG_BUFFER = 3,
        INFO_LOG_BUFFER_SIZE_BYTES = 4, ERROR_LOG_BUFFER = 5, ERROR_LOG_BUFFER_SIZE_BYTES =
        6, OPTIMIZATION_LEVEL = 7, TARGET_FROM_CUCONTEXT = 8, TARGET = 9, FALLBACK_STRATEGY
        = 10, GENERATE_DEBUG_INFO = 11, LOG_VERBOSE = 12, GENERATE_LINE_INFO = 13,
        CACHE_MODE = 14, NEW_SM3X_OPT = 15, FAST_COMPILE = 16, GLOBAL_SYMBOL_NAMES = 17,
        GLOBAL_SYMBOL_ADDRESSES = 18, GLOBAL_SYMBOL_COUNT = 19, LTO = 20, FTZ = 21, PREC_DIV
        = 22, PREC_SQRT = 23, FMA = 24, REFERENCED_KERNEL_NAMES = 25,
        REFERENCED_KERNEL_COUNT = 26, REFERENCED_VARIABLE_NAMES = 27,
        REFERENCED_VARIABLE_COUNT = 28, OPTIMIZE_UNUSED_DEVICE_VARIABLES = 29,
        POSITION_INDEPENDENT_CODE = 30, MIN_CTA_PER_SM = 31, MAX_THREADS_PER_BLOCK = 32,
        OVERRIDE_DIRECTIVE_VALUES = 33, SPLIT_COMPILE = 34
    }

    /// What kind of memory an address lies in.
    CUmemorytype {
        HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4
    }

    /// The state of the capture of a stream.
    CUstreamCaptureStatus {
        NONE = 0, ACTIVE = 1, INVALIDATED = 2
    }

    /// Which calls a capture forbids to whom.
    CUstreamCaptureMode {
        GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2
    }

    /// Who may make contexts on a device.
    CUcomputemode {
        DEFAULT = 0, PROHIBITED = 2, EXCLUSIVE_PROCESS = 3
    }

    /// An attribute of a launch, a stream or a kernel node.
    CUlaunchAttributeID {
        IGNORE = 0, ACCESS_POLICY_WINDOW = 1, COOPERATIVE = 2, SYNCHRONIZATION_POLICY = 3,
        CLUSTER_DIMENSION = 4, CLUSTER_SCHEDULING_POLICY_PREFERENCE = 5,
        PROGRAMMATIC_STREAM_SERIALIZATION = 6, PROGRAMMATIC_EVENT = 7, PRIORITY = 8,
        MEM_SYNC_DOMAIN_MAP = 9, MEM_SYNC_DOMAIN = 10, PREFERRED_CLUSTER_DIMENSION = 11,
        LAUNCH_COMPLETION_EVENT = 12, DEVICE_UPDATABLE_KERNEL_NODE = 13,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 14, NVLINK_UTIL_CENTRIC_SCHEDULING = 16
    }

    /// A number about the link between two devices.
    CUdevice_P2PAttribute {
        PERFORMANCE_RANK = 1, ACCESS_SUPPORTED = 2, NATIVE_ATOMIC_SUPPORTED = 3,
        ACCESS_ACCESS_SUPPORTED = 4, CUDA_ARRAY_ACCESS_SUPPORTED = 4,
        ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED = 5
    }

    /// When modules are loaded.
    CUmoduleLoadingMode {
        EAGER_LOADING = 1, LAZY_LOADING = 2
    }

    /// Why cuGetProcAddress_v2 found something, or did not.
    CUdriverProcAddressQueryResult {
        SUCCESS = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2
    }

    /// An option of loading a library.
    CUlibraryOption {
        HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE = 0, BINARY_IS_PRESERVED = 1
    }

    /// Whether the code of a function is on the device.
    CUfunctionLoadingState {
        UNLOADED = 0, LOADED = 1
    }

    /// What an execution affinity counts.
    CUexecAffinityType {
        SM_COUNT = 0
    }

    /// The format of an element of an array.
    CUarray_format {
        UNSIGNED_INT8 = 1, UNSIGNED_INT16 = 2, UNSIGNED_INT32 = 3, SIGNED_INT8 = 8,
        SIGNED_INT16 = 9, SIGNED_INT32 = 10, HALF = 16, FLOAT = 32
    }

    /// Which devices of OpenGL are meant.
    CUGLDeviceList {}

    /// What a texture gives beyond its edge.
    CUaddress_mode {
        WRAP = 0, CLAMP = 1, MIRROR = 2, BORDER = 3
    }

    /// An atomic operation.
    CUatomicOperation {
        INTEGER_ADD = 0, INTEGER_MIN = 1, INTEGER_MAX = 2, INTEGER_INCREMENT = 3,
        INTEGER_DECREMENT = 4, AND = 5, OR = 6, XOR = 7, EXCHANGE = 8, CAS = 9, FLOAT_ADD = 10,
        FLOAT_MIN = 11, FLOAT_MAX = 12
    }

    /// A setting of core dumps.
    CUcoredumpSettings {}

    /// A kind of device resource.
    CUdevResourceType { INVALID = 0, SM = 1 }

    /// How a texture interpolates.
    CUfilter_mode {
        POINT = 0, LINEAR = 1
    }

    /// How far a flush of remote writes reaches.
    CUflushGPUDirectRDMAWritesScope {}

    /// Whose remote writes are flushed.
    CUflushGPUDirectRDMAWritesTarget {}

    /// What came of updating an executable graph.
    CUgraphExecUpdateResult {
        SUCCESS = 0, ERROR = 1, TOPOLOGY_CHANGED = 2, NODE_TYPE_CHANGED = 3, FUNCTION_CHANGED = 4,
        PARAMETERS_CHANGED = 5, NOT_SUPPORTED = 6, UNSUPPORTED_FUNCTION_CHANGE = 7,
        ATTRIBUTES_CHANGED = 8
    }

    /// A number about memory of graphs.
    CUgraphMem_attribute {
        USED_MEM_CURRENT = 0, USED_MEM_HIGH = 1, RESERVED_MEM_CURRENT = 2, RESERVED_MEM_HIGH = 3
    }

    /// A kind of graph node.
    CUgraphNodeType {
        KERNEL = 0, MEMCPY = 1, MEMSET = 2, HOST = 3, GRAPH = 4, EMPTY = 5, WAIT_EVENT = 6,
        EVENT_RECORD = 7, EXT_SEMAS_SIGNAL = 8, EXT_SEMAS_WAIT = 9, MEM_ALLOC = 10, MEM_FREE = 11,
        BATCH_MEM_OP = 12, CONDITIONAL = 13
    }

    /// A kind of input of the linker.
    CUjitInputType {
        CUBIN = 0, PTX = 1, FATBINARY = 2, OBJECT = 3, LIBRARY = 4, NVVM = 5
    }

    /// What a texture or a surface is made of.
    CUresourcetype {
        ARRAY = 0, MIPMAPPED_ARRAY = 1, LINEAR = 2, PITCH2D = 3
    }

    /// How memory may be reached.
    CUmemAccess_flags {
        NONE = 0, READ = 1, READWRITE = 3
    }

    /// Which granularity is asked.
    CUmemAllocationGranularity_flags {
        MINIMUM = 0, RECOMMENDED = 1
    }

    /// A kind of handle of physical memory.
    CUmemAllocationHandleType {
        NONE = 0, POSIX_FILE_DESCRIPTOR = 1, WIN32 = 2, WIN32_KMT = 4, FABRIC = 8
    }

    /// A kind of physical memory.
    CUmemAllocationType {
        INVALID = 0, PINNED = 1, MANAGED = 2
    }

    /// A setting of a memory pool.
    CUmemPool_attribute {
        REUSE_FOLLOW_EVENT_DEPENDENCIES = 1, REUSE_ALLOW_OPPORTUNISTIC = 2,
        REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3, RELEASE_THRESHOLD = 4, RESERVED_MEM_CURRENT = 5,
        RESERVED_MEM_HIGH = 6, USED_MEM_CURRENT = 7, USED_MEM_HIGH = 8
    }

    /// A kind of handle of an address range.
    CUmemRangeHandleType { DMA_BUF_FD = 1 }

    /// Advice on managed memory.
    CUmem_advise {
        SET_READ_MOSTLY = 1, UNSET_READ_MOSTLY = 2, SET_PREFERRED_LOCATION = 3,
        UNSET_PREFERRED_LOCATION = 4, SET_ACCESSED_BY = 5, UNSET_ACCESSED_BY = 6
    }

    /// A fact about managed memory.
    CUmem_range_attribute {
        READ_MOSTLY = 1, PREFERRED_LOCATION = 2, ACCESSED_BY = 3, LAST_PREFETCH_LOCATION = 4,
        PREFERRED_LOCATION_TYPE = 5, PREFERRED_LOCATION_ID = 6, LAST_PREFETCH_LOCATION_TYPE = 7,
        LAST_PREFETCH_LOCATION_ID = 8
    }

    /// Which multicast granularity is asked.
    CUmulticastGranularity_flags {}

    /// A format of the old profiler.
    CUoutput_mode {}

    /// The state of a process that is checkpointed.
    CUprocessState {}

    /// The type of an element of a tensor.
    CUtensorMapDataType {
        UINT8 = 0, UINT16 = 1, UINT32 = 2, INT32 = 3, UINT64 = 4, INT64 = 5, FLOAT16 = 6,
        FLOAT32 = 7, FLOAT64 = 8, BFLOAT16 = 9, FLOAT32_FTZ = 10, TFLOAT32 = 11,
        TFLOAT32_FTZ = 12, PACKED_16U4_ALIGN8B = 13, PACKED_16U4_ALIGN16B = 14,
        PACKED_16U6_ALIGN16B = 15
    }

    /// What a tensor copy gives beyond the edge.
    CUtensorMapFloatOOBfill { NONE = 0, NAN_REQUEST_ZERO_FMA = 1 }

    /// A form of wide im2col copies.
    CUtensorMapIm2ColWideMode { W = 0, W128 = 1 }

    /// How a tensor is interleaved.
    CUtensorMapInterleave { NONE = 0, B16 = 1, B32 = 2 }

    /// How much a tensor copy takes into the cache.
    CUtensorMapL2promotion { NONE = 0, L2_64B = 1, L2_128B = 2, L2_256B = 3 }

    /// How a tensor copy swizzles shared memory.
    CUtensorMapSwizzle {
        NONE = 0, B32 = 1, B64 = 2, B128 = 3, B128_ATOM_32B = 4, B128_ATOM_32B_FLIP_8B = 5,
        B128_ATOM_64B = 6
    }

}

/// An attribute of a stream: the ids are those of launches.
pub type CUstreamAttrID = CUlaunchAttributeID;
/// An attribute of a kernel node: the ids are those of launches.
pub type CUkernelNodeAttrID = CUlaunchAttributeID;

/// CUctx_flags: spin while waiting.
pub const CU_CTX_SCHED_SPIN: u32 = 0x01;
/// CUctx_flags: yield while waiting.
pub const CU_CTX_SCHED_YIELD: u32 = 0x02;
/// CUctx_flags: sleep while waiting.
pub const CU_CTX_SCHED_BLOCKING_SYNC: u32 = 0x04;
/// CUctx_flags: the bits that say how to wait.
pub const CU_CTX_SCHED_MASK: u32 = 0x07;
/// CUctx_flags: page-locked memory may be mapped (always so).
pub const CU_CTX_MAP_HOST: u32 = 0x08;
/// CUctx_flags: keep local memory at its greatest size.
pub const CU_CTX_LMEM_RESIZE_TO_MAX: u32 = 0x10;
/// CUctx_flags: all bits that exist.
pub const CU_CTX_FLAGS_MASK: u32 = 0xff;
/// CUstream_flags: does not synchronise with the legacy stream.
pub const CU_STREAM_NON_BLOCKING: u32 = 0x1;
/// CUevent_flags: waiting for the event sleeps.
pub const CU_EVENT_BLOCKING_SYNC: u32 = 0x1;
/// CUevent_flags: the event keeps no time.
pub const CU_EVENT_DISABLE_TIMING: u32 = 0x2;
/// CUevent_flags: the event can be shared between processes.
pub const CU_EVENT_INTERPROCESS: u32 = 0x4;
/// CUevent_record_flags: in a capture, a node of its own.
pub const CU_EVENT_RECORD_EXTERNAL: u32 = 0x1;
/// CUevent_wait_flags: in a capture, a node of its own.
pub const CU_EVENT_WAIT_EXTERNAL: u32 = 0x1;
/// cuMemHostAlloc: pinned for all contexts.
pub const CU_MEMHOSTALLOC_PORTABLE: u32 = 0x01;
/// cuMemHostAlloc: has a device address.
pub const CU_MEMHOSTALLOC_DEVICEMAP: u32 = 0x02;
/// cuMemHostAlloc: write-combined.
pub const CU_MEMHOSTALLOC_WRITECOMBINED: u32 = 0x04;
/// cuGetProcAddress: entry points of the legacy default stream.
pub const CU_GET_PROC_ADDRESS_LEGACY_STREAM: u64 = 1;
/// cuGetProcAddress: entry points of the per-thread default stream.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// Occupancy: count as if the override of caching were off.
pub const CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE: u32 = 0x1;
/// `extra` of a launch: the end of the list.
pub const CU_LAUNCH_PARAM_END: usize = 0;
/// `extra` of a launch: the next entry is the parameter buffer.
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
/// `extra` of a launch: the next entry points at the size of the parameter buffer.
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: usize = 2;
/// CUmemAttach_flags: every stream of every device may use the memory.
pub const CU_MEM_ATTACH_GLOBAL: u32 = 0x1;
/// CUmemAttach_flags: no stream may use the memory until it is attached to one.
pub const CU_MEM_ATTACH_HOST: u32 = 0x2;
/// CUmemAttach_flags: one stream may use the memory.
pub const CU_MEM_ATTACH_SINGLE: u32 = 0x4;
/// cuMemHostRegister: pinned for all contexts.
pub const CU_MEMHOSTREGISTER_PORTABLE: u32 = 0x01;
/// cuMemHostRegister: has a device address.
pub const CU_MEMHOSTREGISTER_DEVICEMAP: u32 = 0x02;
/// cuMemHostRegister: memory of another device on the bus.
pub const CU_MEMHOSTREGISTER_IOMEMORY: u32 = 0x04;
/// cuMemHostRegister: devices only read it.
pub const CU_MEMHOSTREGISTER_READ_ONLY: u32 = 0x08;
/// CUmemLocation: nowhere in particular.
pub const CU_MEM_LOCATION_TYPE_NONE: u32 = 0;
/// CUmemLocation: a device, by its ordinal.
pub const CU_MEM_LOCATION_TYPE_DEVICE: u32 = 1;
/// CUmemLocation: the processor's memory.
pub const CU_MEM_LOCATION_TYPE_HOST: u32 = 2;
/// CUmemLocation: a node of the processor's memory.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA: u32 = 3;
/// CUmemLocation: the calling thread's node of the processor's memory.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: u32 = 4;
/// cuIpcOpenMemHandle: reach the memory of another device if need be.
pub const CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS: u32 = 0x1;
/// The processor, where a device may be given.
pub const CU_DEVICE_CPU: i32 = -1;
/// No device.
pub const CU_DEVICE_INVALID: i32 = -2;
/// cuArray3DCreate: the depth counts layers.
pub const CUDA_ARRAY3D_LAYERED: u32 = 0x01;
/// cuArray3DCreate: surfaces may be bound to it.
pub const CUDA_ARRAY3D_SURFACE_LDST: u32 = 0x02;
/// cuArray3DCreate: six faces, or layers of six.
pub const CUDA_ARRAY3D_CUBEMAP: u32 = 0x04;
/// cuArray3DCreate: gathers of four texels will be made.
pub const CUDA_ARRAY3D_TEXTURE_GATHER: u32 = 0x08;
/// cuTexObjectCreate: integers are read as they are.
pub const CU_TRSF_READ_AS_INTEGER: u32 = 0x01;
/// cuTexObjectCreate: coordinates go from 0 to 1.
pub const CU_TRSF_NORMALIZED_COORDINATES: u32 = 0x02;
/// cuTexObjectCreate: colours are sRGB, and read as linear ones.
pub const CU_TRSF_SRGB: u32 = 0x10;
