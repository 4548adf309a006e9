//! What device code may call of CUDA's device runtime: launches from kernels, with streams, events, copies and
//! memory of their own.
//!
//! Owns the functions' names and how their arguments lie. The lowering finds them here, the engine carries them out.
//! Must not know grids or streams.

use std::fmt;

/// Arguments that a function has at most; a dimension of three numbers counts as three.
pub(crate) const MOST_ARGUMENTS: usize = 10;

/// Where a dimension of three numbers is passed: 12 bytes.
pub(crate) const DIMENSIONS: u8 = 12;

/// Bytes that a function writes at most: the facts of a kernel.
pub const MOST_WRITTEN: usize = 56;

/// A function of the device runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFunction {
    /// Room for the parameters of a launch: alignment, bytes.
    ParameterBuffer,
    /// The same for a launch of which all else is told too: kernel, grid, block, dynamic shared memory.
    ParameterBufferV2,
    /// Kernel, buffer, grid, block, dynamic shared memory, stream.
    Launch,
    /// Buffer, stream.
    LaunchV2,
    /// Executable graph, one of CUDA's names of streams.
    GraphLaunch,
    /// Waits for all that the block has launched.
    Synchronize,
    /// Where the handle goes, flags.
    StreamCreate,
    /// Stream.
    StreamDestroy,
    /// Stream, event, flags.
    StreamWait,
    /// Where the handle goes, flags.
    EventCreate,
    /// Event, stream.
    EventRecord,
    /// Event.
    EventDestroy,
    /// The thread's last error, which is forgotten.
    TakeError,
    /// The thread's last error.
    PeekError,
    /// Where the device's number goes.
    Device,
    /// Where the value goes, attribute, device.
    Attribute,
    /// Where the facts of a kernel go, kernel.
    KernelFacts,
    /// Where the count of blocks goes, kernel, threads of a block, dynamic shared memory.
    Occupancy,
    /// Error.
    ErrorName,
    /// Error.
    ErrorText,
    /// Where the address goes, bytes.
    Allocate,
    /// Address.
    Free,
    /// To, from, bytes, kind, stream.
    Copy,
    /// To, pitch, from, pitch, width, height, kind, stream.
    Copy2D,
    /// Address, value, bytes, stream.
    Fill,
    /// Address, pitch, value, width, height, stream.
    Fill2D,
}

/// A row of [`FUNCTIONS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The name after `cuda` or `__cudaCDP2`.
    name: &'static str,
    pub(crate) function: DeviceFunction,
    /// Bytes of each argument, [`DIMENSIONS`] among them.
    pub(crate) arguments: &'static [u8],
    /// Bytes of the result.
    pub(crate) result: u8,
}

const fn known(
    name: &'static str,
    function: DeviceFunction,
    arguments: &'static [u8],
    result: u8,
) -> Known {
    Known {
        name,
        function,
        arguments,
        result,
    }
}

/// The functions that are built, as CUDA's headers declare them.
const FUNCTIONS: [Known; 28] = {
    use DeviceFunction as F;
    [
        known("GetParameterBuffer", F::ParameterBuffer, &[8, 8], 8),
        known(
            "GetParameterBufferV2",
            F::ParameterBufferV2,
            &[8, 12, 12, 4],
            8,
        ),
        known("LaunchDevice", F::Launch, &[8, 8, 12, 12, 4, 8], 4),
        known("LaunchDeviceV2", F::LaunchV2, &[8, 8], 4),
        known("GraphLaunch", F::GraphLaunch, &[8, 8], 4),
        known("DeviceSynchronize", F::Synchronize, &[], 4),
        known("StreamCreateWithFlags", F::StreamCreate, &[8, 4], 4),
        known("StreamDestroy", F::StreamDestroy, &[8], 4),
        known("StreamWaitEvent", F::StreamWait, &[8, 8, 4], 4),
        known("EventCreateWithFlags", F::EventCreate, &[8, 4], 4),
        known("EventRecord", F::EventRecord, &[8, 8], 4),
        known("EventRecordWithFlags", F::EventRecord, &[8, 8, 4], 4),
        known("EventDestroy", F::EventDestroy, &[8], 4),
        known("GetLastError", F::TakeError, &[], 4),
        known("PeekAtLastError", F::PeekError, &[], 4),
        known("GetDevice", F::Device, &[8], 4),
        known("DeviceGetAttribute", F::Attribute, &[8, 4, 4], 4),
        known("FuncGetAttributes", F::KernelFacts, &[8, 8], 4),
        known(
            "OccupancyMaxActiveBlocksPerMultiprocessor",
            F::Occupancy,
            &[8, 8, 4, 8],
            4,
        ),
        known(
            "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
            F::Occupancy,
            &[8, 8, 4, 8, 4],
            4,
        ),
        known("GetErrorName", F::ErrorName, &[4], 8),
        known("GetErrorString", F::ErrorText, &[4], 8),
        known("Malloc", F::Allocate, &[8, 8], 4),
        known("Free", F::Free, &[8], 4),
        known("MemcpyAsync", F::Copy, &[8, 8, 8, 4, 8], 4),
        known("Memcpy2DAsync", F::Copy2D, &[8, 8, 8, 8, 8, 8, 4, 8], 4),
        known("MemsetAsync", F::Fill, &[8, 4, 8, 8], 4),
        known("Memset2DAsync", F::Fill2D, &[8, 8, 4, 8, 8, 8], 4),
    ]
};

/// The function of a name, in either of its generations, and its number.
pub(crate) fn find(name: &str) -> Option<(usize, &'static Known)> {
    let name = name
        .strip_prefix("__cudaCDP2")
        .or_else(|| name.strip_prefix("cuda"))?;
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    let number = FUNCTIONS.iter().position(|known| known.name == name)?;
    Some((number, &FUNCTIONS[number]))
}

/// Whether this executor has a function of the device runtime.
#[must_use]
pub fn is_device_function(name: &str) -> bool {
    find(name).is_some()
}

/// The function of a number that [`find`] gave.
pub(crate) fn numbered(number: u64) -> &'static Known {
    &FUNCTIONS[number as usize % FUNCTIONS.len()]
}

/// One thread's call.
pub struct DeviceCall<'a> {
    /// What is called.
    pub function: DeviceFunction,
    /// Its arguments, a dimension as three.
    pub arguments: [u64; MOST_ARGUMENTS],
    /// The block's number in the grid.
    pub block: u64,
    /// Reads memory as the thread could; false if it could not.
    pub read: &'a dyn Fn(u64, &mut [u8]) -> bool,
}

impl fmt::Debug for DeviceCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.function, self.arguments)
    }
}

/// What comes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A runtime's status (a cudaError), 0 for success.
    Status(u32),
    /// An address, or 0 and why there is none.
    Address(u64, u32),
    /// Success, with so many of these bytes to be written where the first argument points.
    Written([u8; MOST_WRITTEN], usize),
    /// Nothing was done: to be asked again once others have run.
    Later,
}

impl Reply {
    /// Success, with bytes to be written where the first argument points, at most [`MOST_WRITTEN`].
    #[must_use]
    pub fn written(bytes: &[u8]) -> Self {
        let mut written = [0; MOST_WRITTEN];
        let count = bytes.len().min(MOST_WRITTEN);
        written[..count].copy_from_slice(&bytes[..count]);
        Self::Written(written, count)
    }
}

/// What a grid has of the device runtime. Called from within [`crate::Cluster::run`], by any number of threads; must
/// not block for long.
pub trait DeviceRuntime: Send + Sync + fmt::Debug {
    /// How many of `launches` launches that threads of a block are about to make have room; `None`: soon more.
    fn reserve(&self, block: u64, launches: u64) -> Option<u64>;

    /// Carries a call out; a launch takes of what was reserved.
    fn call(&self, call: &DeviceCall<'_>) -> Reply;
}
