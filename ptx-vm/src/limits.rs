//! How much a client's program may ask of the software GPU. PTX comes from anybody, and all clients
//! share one process: what would take memory or time without bound is refused here, at load, with a
//! [`super::LoadError`] of its own; what only shows while a kernel runs is a fault of its context.
//!
//! All of it is far above what compilers make of real programs. The largest kernels that NVIDIA's
//! assembler still takes have some ten thousands of instructions, some thousands of blocks, and 255
//! registers that are live at once.
//!
//! Constants only, for `lower`, `analysis`, `module` and `lane_group`, some of them for the engine. Knows no
//! client's quota: those are the server's.

/// Bytes of one function's local frame, and of a block's static shared memory: what arithmetic on
/// offsets cannot overflow.
pub(crate) const FRAME_BYTES: u64 = 1 << 20;
/// Bytes that a function may take of local memory while it runs (`alloca`).
pub(crate) const ALLOCA_BYTES: u32 = 16 << 10;
/// Bytes of local memory of a thread, with all that it calls: CUDA's own limit.
pub(crate) const LOCAL_BYTES: u32 = 512 << 10;
/// Bytes of registers of one function for a lane group, and of all functions that a lane group is in.
pub(crate) const REGISTER_BYTES: usize = 64 << 20;
/// The deepest chain of calls.
pub(crate) const CALL_DEPTH: u32 = 4096;
/// Functions of a kernel, itself and those that it may call.
pub(crate) const FUNCTIONS: usize = 1 << 16;
/// Basic blocks of a function.
pub(crate) const BLOCKS: usize = 1 << 16;
/// Basic blocks times loops of a function: bits of the sets that say what is in which loop.
pub(crate) const LOOP_BITS: u64 = 1 << 28;
/// Steps up the tree of what dominates what, until all loops are found.
pub(crate) const LOOP_STEPS: u64 = 1 << 30;
/// Basic blocks times registers of a function: bits of the sets that say what is live where.
pub(crate) const LIVE_BITS: u64 = 1 << 30;
/// Registers that are live at the start of one block.
pub(crate) const LIVE_AT_ONCE: usize = 1 << 14;
/// Registers that are live at the start of a block, for all blocks of a function together.
pub(crate) const LIVE_IN_ALL: u64 = 1 << 24;
/// Words of sets that are looked at until it is known what is live where.
pub(crate) const LIVE_STEPS: u64 = 1 << 32;
/// Instructions of a kernel, with those of all functions that it may call. A block, a table's entry
/// and so on count as one.
pub(crate) const KERNEL_INSTRUCTIONS: u64 = 1 << 20;
/// Instructions of all kernels of a module: what several of them call counts for each.
pub const MODULE_INSTRUCTIONS: u64 = 1 << 22;
/// What a kernel counts as beside its instructions.
pub(crate) const KERNEL_COST: u64 = 64;
/// Instructions of all modules that a client has.
pub const CLIENT_INSTRUCTIONS: u64 = 1 << 24;
/// What an instruction takes as it is lowered: 176 to 200 bytes were measured for straight code.
pub(crate) const INSTRUCTION_BYTES: u64 = 256;
/// Bytes that a grid's blocks may take together that are under way at once. One block may always run.
pub const RESIDENT_BYTES: u64 = 8 << 30;
/// Registers of a multiprocessor, as the device says it.
pub const REGISTERS_PER_SM: u32 = 65536;
/// Instructions after which straight-line code looks whether it is to give way.
pub(crate) const STRAIGHT: usize = 2048;
/// The most shared memory that a block may have, static and dynamic together, in bytes.
pub const MAX_SHARED_BYTES: u32 = 227 * 1024;
/// The most blocks of a cluster.
pub const MAX_CLUSTER: u32 = 16;
/// The most lanes of a block that execute together.
pub const MAX_GROUP_LANES: usize = 256;
