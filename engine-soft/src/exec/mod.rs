//! The executor: from a parsed PTX module to running thread blocks.
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
//! 4. [`Block::new`] makes one thread block of it; [`Block::run`] runs it for a budget of work. A block is
//!    a plain suspendable value: any thread may run it next, so few threads can rotate among the blocks of
//!    many kernels, and kernels that wait for each other finish.
//!
//! Lanes run many at a time: a *gang* of up to [`GANG_LANES`] threads of a block executes one operation
//! over arrays of lanes. A value that is the same in all lanes is computed once. Where lanes disagree
//! about a branch, the gang splits into fragments that meet again at the next common point.
//!
//! Device pointers are host virtual addresses. Each global or generic access is tested against the
//! [`AddressSpace`] before it is made; the others against the block's own arrays.

mod access;
mod analysis;
mod block;
mod emit;
mod gang;
mod ir;
mod isa;
mod launch;
mod limits;
mod lower;
mod machine;
mod mask;
mod memory;
mod module;
mod ops;
mod program;
mod regs;
mod segment;
mod spaces;
pub(crate) mod tensor_map;
mod texture;

/// The most lanes of a block that execute together.
pub const GANG_LANES: usize = 256;

pub use block::{Block, Outcome};
pub use isa::Isa;
pub use launch::{Fault, FaultKind, Launch, LaunchError, LaunchSpec, MAX_SHARED_BYTES, Services};
pub(crate) use limits::{
    CLIENT_INSTRUCTIONS, MODULE_INSTRUCTIONS, REGISTERS_PER_SM, RESIDENT_BYTES,
};
pub use memory::{AddressSpace, GRANULE, Window};
pub use module::{Global, GlobalSpace, Kernel, LoadError, Module, Options, ParamFact, Relocated};
pub use texture::{Edge, Format, Level, Source, Surface, Texels, Texture, Textures};
