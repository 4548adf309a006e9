//! What a multiprocessor of the software GPU holds, as its devices say and launches are checked against.
//!
//! Constants only, for devices, modules and grids. What a kernel needs is not here.

/// Threads that an SM holds.
pub(crate) const THREADS_PER_SM: u32 = 1536;
/// Blocks that an SM holds.
pub(crate) const BLOCKS_PER_SM: u32 = 24;
/// Shared memory of a block unless it asks for more.
pub(crate) const SHARED_BYTES_PER_BLOCK: u32 = 48 << 10;
/// Shared memory of a block that asks for it.
pub(crate) const SHARED_BYTES_OPTIN: u32 = 99 << 10;
/// Shared memory of an SM.
pub(crate) const SHARED_BYTES_PER_SM: u32 = 100 << 10;
/// Shared memory of each block that programs cannot use.
pub(crate) const RESERVED_SHARED_BYTES: u32 = 1 << 10;
/// Blocks that a cluster may have unless its kernel allows for more.
pub(crate) const PORTABLE_CLUSTER: u32 = 8;
