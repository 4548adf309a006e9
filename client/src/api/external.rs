//! Memory of other interfaces: descriptors that stand for memory of cuMemCreate, of this process or another.
//! Those of graphics interfaces are refused.
//!
//! Called by the shells of `exports`, and by `api::memory` when something is freed. It works by the functions of
//! `virtual_memory` and must not ask the server itself.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUdeviceptr,
    CUexternalMemory, CUmemAccess_flags,
};

use super::Outcome;
use super::virtual_memory::{
    free_addresses, import, map, release, reserve_addresses, set_access, unmap,
};
use crate::context::current;
use crate::memory::external::{Buffer, Imported};
use crate::pointers::{In, Out};
use crate::session::{Session, session};

/// CUexternalMemoryHandleType: an opaque descriptor; what Windows and NVIDIA's own interfaces have.
const OPAQUE_FD: u32 = 1;
const ELSEWHERE: [u32; 5] = [2, 3, 4, 8, 9];
/// The flag of memory that is one object's alone, which says nothing here.
const DEDICATED: u32 = 1;

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

pub(crate) fn cuImportExternalMemory(
    memory: Out<CUexternalMemory>,
    mem_handle_desc: In<CUDA_EXTERNAL_MEMORY_HANDLE_DESC>,
) -> Outcome {
    let session = session()?;
    memory.required()?;
    let described = mem_handle_desc.get()?;
    match described.r#type {
        OPAQUE_FD => {}
        kind if ELSEWHERE.contains(&kind) => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(WRONG),
    }
    let number = described.handle[0] as u32 as i32;
    if number < 0 || described.size == 0 || described.flags & !DEDICATED != 0 {
        return Err(WRONG);
    }
    current()?;
    // SAFETY: the program promises an open descriptor; one that is not open fails to be read.
    let imported = import(session, unsafe { BorrowedFd::borrow_raw(number) });
    if imported == Err(WRONG) {
        crate::log::log!(
            "cuImportExternalMemory: descriptor {number} is not of memory of cuMemCreate; memory of \
             graphics interfaces is not taken"
        );
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let physical = imported?;
    // SAFETY: the program gives the descriptor away with a call that succeeds.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    let bytes = described.size;
    let handle = session.externals.add(Imported { physical, bytes });
    memory.set(CUexternalMemory::from_bits(handle))
}

pub(crate) fn cuExternalMemoryGetMappedBuffer(
    dev_ptr: Out<CUdeviceptr>,
    ext_mem: CUexternalMemory,
    buffer_desc: In<CUDA_EXTERNAL_MEMORY_BUFFER_DESC>,
) -> Outcome {
    let session = session()?;
    dev_ptr.required()?;
    let imported = session.externals.get(ext_mem.bits()).ok_or(WRONG)?;
    let wanted = buffer_desc.get()?;
    let physical = session.virtual_memory.lock().get(imported.physical)?;
    let end = wanted.offset.checked_add(wanted.size);
    let fits = end.is_some_and(|end| end <= imported.bytes.min(physical.bytes));
    if !fits || wanted.size == 0 || wanted.flags != 0 {
        return Err(WRONG);
    }
    let bytes = physical.bytes as usize;
    let base = reserve_addresses(session, physical.bytes, 0)?;
    let access = [(physical.device, CUmemAccess_flags::READWRITE.0)];
    let mapped = map(session, base, bytes, 0, imported.physical).and_then(|()| {
        let reached = set_access(session, &(base..base + physical.bytes), &access);
        if reached.is_err() {
            let _ = unmap(session, base, bytes);
        }
        reached
    });
    if mapped.is_err() {
        let _ = free_addresses(session, base, bytes);
        return mapped;
    }
    let address = base + wanted.offset;
    session.externals.map(address, Buffer { base, bytes });
    dev_ptr.set(address)
}

pub(crate) fn cuDestroyExternalMemory(ext_mem: CUexternalMemory) -> Outcome {
    let session = session()?;
    let imported = session.externals.remove(ext_mem.bits()).ok_or(WRONG)?;
    // What is mapped of it stays.
    release(session, imported.physical)
}

/// Frees what [`cuExternalMemoryGetMappedBuffer`] gave; `None` if the address is none of those.
pub(super) fn free(session: &Session, address: u64) -> Option<Outcome> {
    let Buffer { base, bytes } = session.externals.unmap(address)?;
    // As cuMemFree does, this waits for what may use it; an error of that is told elsewhere.
    let _ = current().and_then(|current| current.drain());
    Some(unmap(session, base, bytes).and_then(|()| free_addresses(session, base, bytes)))
}
