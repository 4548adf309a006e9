//! One function for each built entry point of the table, under its exported name.
//!
//! They check arguments in CUDA's order, answer what they can from what is known here, and pass on
//! the rest. Pointers come as [`pointers`](crate::pointers), made in `exports` on the program's promise to
//! pass what the driver's manual asks for; handles come as their bits. No function here takes a raw pointer.
//!
//! Called by the shells of `exports`, and by `export_tables::client_access`. Must not know how a record reaches the
//! server.
#![allow(non_snake_case, reason = "the names are C's")]

mod array;
mod array_copy;
mod atomics;
mod batch;
mod capture;
mod context;
mod context_events;
mod copy;
mod copy_box;
mod device;
mod error_log;
mod event;
mod external;
mod fill;
mod function;
mod graph;
mod green;
mod init;
mod ipc;
mod launch;
mod library;
mod link;
mod managed;
mod memory;
mod memory_ops;
mod module;
mod notification;
mod occupancy;
mod old_launch;
mod peer;
mod pointer;
mod pool;
mod pool_sharing;
mod reference;
mod reference_query;
mod register;
mod semaphore;
mod stream;
mod tensor_map;
#[cfg(test)]
mod tests;
mod texture;
mod virtual_memory;

pub(crate) use array::*;
pub(crate) use array_copy::*;
pub(crate) use atomics::*;
pub(crate) use batch::*;
pub(crate) use capture::*;
pub(crate) use context::*;
pub(crate) use context_events::*;
pub(crate) use copy::*;
pub(crate) use copy_box::*;
pub(crate) use device::*;
pub(crate) use error_log::*;
pub(crate) use event::*;
pub(crate) use external::*;
pub(crate) use fill::*;
pub(crate) use function::*;
pub(crate) use graph::*;
pub(crate) use green::*;
pub(crate) use init::*;
pub(crate) use ipc::*;
pub(crate) use launch::*;
pub(crate) use library::*;
pub(crate) use link::*;
pub(crate) use managed::*;
pub(crate) use memory::*;
pub(crate) use memory_ops::*;
pub(crate) use module::*;
pub(crate) use notification::*;
pub(crate) use occupancy::*;
pub(crate) use old_launch::*;
pub(crate) use peer::*;
pub(crate) use pointer::*;
pub(crate) use pool::*;
pub(crate) use pool_sharing::*;
pub(crate) use reference::*;
pub(crate) use reference_query::*;
pub(crate) use register::*;
pub(crate) use semaphore::*;
pub(crate) use stream::*;
pub(crate) use tensor_map::*;
pub(crate) use texture::*;
pub(crate) use virtual_memory::*;

/// What every entry point comes to.
pub(crate) type Outcome = Result<(), cuda_abi::CUresult>;

/// Refuses a NULL handle where CUDA tells it from a wrong one.
fn given(handle: u64) -> Outcome {
    match handle {
        0 => Err(cuda_abi::CUresult::ERROR_INVALID_VALUE),
        _ => Ok(()),
    }
}

/// An address for the interfaces before CUDA 3.2, which have 32 bits for it.
fn narrow_address(address: u64) -> Result<u32, cuda_abi::CUresult> {
    u32::try_from(address).map_err(|_| cuda_abi::CUresult::ERROR_INVALID_VALUE)
}
