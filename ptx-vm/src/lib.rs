//! The SIMT executor: from a parsed PTX module to running thread blocks.
//!
//! The software GPU (`engine-soft`) calls it. It knows nothing of devices, streams, clients or threads.
//!
//! The way of a kernel:
//!
//! 1. [`Module::load`] lowers every entry of a [`ptx::ast::Module`]. What is not built fails here, with
//!    the instruction's text and line ([`LoadError`]).
//! 2. The layer above places the module's [`Global`]s in the client's device memory: it allocates
//!    [`Global::size`] bytes at [`Global::align`], writes [`Global::init`], and applies
//!    [`Global::relocations`] once everything has an address. It keeps the addresses in the order of
//!    [`Module::globals`].
//! 3. [`Launch::new`] checks one launch: kernel, grid, block, parameters, addresses of the globals, and
//!    the [`AddressSpace`] that the kernel may touch.
//! 4. [`Cluster::new`] makes one cluster of thread blocks of it, which is one block unless the launch names clusters;
//!    [`Cluster::run`] runs it for a budget of work. It is a plain suspendable value: any thread may run it
//!    next, so few threads can rotate among the blocks of many kernels, and kernels that wait for each
//!    other finish.
//!
//! Lanes run many at a time: a *lane group* of up to [`MAX_GROUP_LANES`] threads of a block executes one operation
//! over arrays of lanes. A value that is the same in all lanes is computed once. Where lanes disagree
//! about a branch, the group splits into *divergent paths* that reconverge at the next common point.
//!
//! The files, from the bottom up, each of which names only those before it: `machine` with `program`, `grid` and the
//! memory that lanes reach; `ops`, what a machine runs; `ir`, functions over virtual registers; `analysis`; `lower`, PTX
//! to `ir`; `segment` and `emit`, `ir` to programs; `kept`, what of them outlives the process; `module` and `launch`; `lane_group`, `block` and `cluster`, which run them.
//!
//! Device pointers are host virtual addresses. Each global or generic access is tested against the
//! [`AddressSpace`] before it is made; the others against the block's own arrays.

mod access;
mod analysis;
mod block;
mod cluster;
mod device_runtime;
mod emit;
mod fault;
mod grid;
pub mod instructions;
mod ir;
mod isa;
mod kept;
mod lane_group;
mod launch;
mod limits;
mod load_error;
mod lower;
mod machine;
mod mask;
mod memory;
mod module;
mod ops;
mod program;
mod reach;
mod regs;
mod segment;
mod services;
mod spaces;
mod special_register;
pub mod tensor_map;
mod texture;
mod variables;

pub use cluster::{Cluster, Outcome};
pub use device_runtime::{
    DeviceCall, DeviceFunction, DeviceRuntime, MOST_WRITTEN, Reply, is_device_function,
};
pub use fault::{Fault, FaultKind};
pub use isa::Isa;
pub use kept::{KeptCode, compiled_for};
pub use launch::{Launch, LaunchError, LaunchSpec};
pub use limits::{
    CLIENT_INSTRUCTIONS, MAX_CLUSTER, MAX_GROUP_LANES, MAX_SHARED_BYTES, MODULE_INSTRUCTIONS,
    REGISTERS_PER_SM, RESIDENT_BYTES,
};
pub use load_error::LoadError;
pub use memory::{AddressSpace, GRANULE, Window};
pub use module::{CodeSource, Kernel, Module, Options, ParamFact};
pub use segment::CodeBytes;
pub use services::Services;
pub use texture::{Edge, Format, Level, Source, Surface, Texels, Texture, Textures};
pub use variables::{Global, GlobalSpace, Relocated};
