//! Page-locking of the program's own memory.
//!
//! Owns the checks of flags and addresses. Called by the shells of `exports`. Must not know how the pages come to
//! be shared: `memory::registered` does.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY,
};

use super::Outcome;
use crate::context::{Current, resource_context};
use crate::memory::registered::Request;
use crate::pointers::Address;
use crate::session::session;

pub(crate) fn cuMemHostRegister(pointer: Address, byte_count: usize, flags: u32) -> Outcome {
    cuMemHostRegister_v2(pointer, byte_count, flags)
}

pub(crate) fn cuMemHostRegister_v2(pointer: Address, byte_count: usize, flags: u32) -> Outcome {
    let current = resource_context()?;
    let known = CU_MEMHOSTREGISTER_PORTABLE
        | CU_MEMHOSTREGISTER_DEVICEMAP
        | CU_MEMHOSTREGISTER_IOMEMORY
        | CU_MEMHOSTREGISTER_READ_ONLY;
    let session = session()?;
    let base = pointer.bits();
    if base == 0 || byte_count == 0 || flags & !known != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // Memory of other devices on the bus is not the program's to share.
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Err(CUresult::ERROR_NOT_PERMITTED);
    }
    // Memory of ours is locked and mapped as it is.
    if session.addresses.is_ours(base) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let request = Request {
        base,
        bytes: byte_count as u64,
        flags,
        read_only: flags & CU_MEMHOSTREGISTER_READ_ONLY != 0,
    };
    session.registered.add(&current, request)
}

pub(crate) fn cuMemHostUnregister(pointer: Address) -> Outcome {
    let session = session()?;
    let base = pointer.bits();
    if base == 0 || session.addresses.is_ours(base) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = session.registered.context_of(base);
    let context = context.ok_or(match session.ranges.find(base) {
        // The middle of a registration.
        Some(_) => CUresult::ERROR_INVALID_VALUE,
        None => CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED,
    })?;
    // Devices may still use it. What becomes of their work is not this call's to tell.
    let _ = session.contexts.get(context).as_ref().map(Current::drain);
    session.registered.remove(base)
}
