//! Device memory and page-locked host memory.
//!
//! Owns what it takes to allocate and free, and to note both. Called by the shells of `exports`; `managed` and
//! `pool` note their memory by it. Must not know quotas: the server refuses.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CUdeviceptr, CUdeviceptr_v1,
};
use protocol::operations::{HostAlloc, HostFree, MemFree, MemInfo};

use super::{Outcome, narrow_address};
use crate::context::{current_as_it_is, resource_context};
use crate::memory::ranges::{Origin, Range};
use crate::os::prefault;
use crate::pointers::{Address, Out};
use crate::session::session;

/// Rows of pitched memory begin at multiples of this many bytes.
const PITCH: usize = 512;

fn info() -> Result<(u64, u64), CUresult> {
    let current = resource_context()?;
    let device = current.device()?.number;
    let reply = session()?.call(&MemInfo { device })?;
    Ok((reply.fields.free, reply.fields.total))
}

pub(crate) fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) -> Outcome {
    let (free_bytes, total_bytes) = info()?;
    let most = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
    free.set_if(most(free_bytes));
    total.set_if(most(total_bytes));
    Ok(())
}

pub(crate) fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Outcome {
    let (free_bytes, total_bytes) = info()?;
    free.set_if(free_bytes as usize);
    total.set_if(total_bytes as usize);
    Ok(())
}

/// Notes memory that the server gave; what overlaps memory that is in use cannot be.
pub(super) fn add_range(range: Range) -> Outcome {
    if session()?.ranges.insert(range) {
        return Ok(());
    }
    crate::log::log!(
        "the server gave {} bytes at {:#x}, which are in use",
        range.bytes,
        range.base
    );
    Err(CUresult::ERROR_UNKNOWN)
}

fn allocate(bytes: u64) -> Result<CUdeviceptr, CUresult> {
    let current = resource_context()?;
    if bytes == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let address = session()?.pools.allocate_device_memory(&current, bytes)?;
    add_range(Range::new(&current, Origin::Device, address, bytes))?;
    Ok(address)
}

pub(crate) fn cuMemAlloc(dptr: Out<CUdeviceptr_v1>, byte_count: u32) -> Outcome {
    resource_context()?;
    dptr.required()?;
    if byte_count == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // No device memory lies at an address of 32 bits.
    Err(CUresult::ERROR_OUT_OF_MEMORY)
}

pub(crate) fn cuMemAlloc_v2(dptr: Out<CUdeviceptr>, byte_count: usize) -> Outcome {
    session()?;
    dptr.required()?;
    dptr.set(allocate(byte_count as u64)?)
}

pub(crate) fn cuMemAllocPitch(
    dptr: Out<CUdeviceptr_v1>,
    pitch: Out<u32>,
    width: u32,
    height: u32,
    _element_size_bytes: u32,
) -> Outcome {
    pitch.required()?;
    cuMemAlloc(dptr, width.min(height))
}

pub(crate) fn cuMemAllocPitch_v2(
    dptr: Out<CUdeviceptr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element_size_bytes: u32,
) -> Outcome {
    session()?;
    dptr.required()?;
    pitch.required()?;
    if !matches!(element_size_bytes, 4 | 8 | 16) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(PITCH)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let bytes = row
        .checked_mul(height)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    dptr.set(allocate(bytes as u64)?)?;
    pitch.set(row)
}

pub(crate) fn cuMemFree(dptr: CUdeviceptr_v1) -> Outcome {
    cuMemFree_v2(u64::from(dptr))
}

pub(crate) fn cuMemFree_v2(dptr: CUdeviceptr) -> Outcome {
    // A thread without a context may free; one whose context is dead learns of it.
    match resource_context() {
        Err(CUresult::ERROR_INVALID_CONTEXT) => {}
        current => drop(current?),
    }
    let session = session()?;
    if dptr == 0 {
        return Ok(()); // The usual way to have a context made.
    }
    if let Some(freed) = session.graphs.memories.free(dptr) {
        return freed;
    }
    if let Some(closed) = super::ipc::close_of_pool(session, dptr) {
        return closed;
    }
    if let Some(freed) = super::external::free(session, dptr) {
        return freed;
    }
    let range = session
        .ranges
        .remove(dptr, |range| {
            matches!(range.origin, Origin::Device | Origin::Managed)
        })
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    session.pools.forget_allocation(&range);
    session.advice.forget(range.base, range.bytes);
    session.post(&MemFree { address: dptr })
}

pub(crate) fn cuMemGetAddressRange(
    base: Out<CUdeviceptr_v1>,
    size: Out<u32>,
    dptr: CUdeviceptr_v1,
) -> Outcome {
    let range = device_range(u64::from(dptr))?;
    if !base.is_null() {
        base.set(narrow_address(range.base)?)?;
    }
    size.set_if(u32::try_from(range.bytes).unwrap_or(u32::MAX));
    Ok(())
}

pub(crate) fn cuMemGetAddressRange_v2(
    base: Out<CUdeviceptr>,
    size: Out<usize>,
    dptr: CUdeviceptr,
) -> Outcome {
    let range = device_range(dptr)?;
    base.set_if(range.base);
    size.set_if(range.bytes as usize);
    Ok(())
}

fn device_range(address: u64) -> Result<Range, CUresult> {
    resource_context()?;
    let range = session()?.ranges.find(address);
    range.ok_or(CUresult::ERROR_NOT_FOUND)
}

pub(crate) fn cuMemAllocHost(pointer: Out<*mut c_void>, byte_count: u32) -> Outcome {
    cuMemHostAlloc(pointer, byte_count as usize, 0)
}

pub(crate) fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, byte_count: usize) -> Outcome {
    cuMemHostAlloc(pointer, byte_count, 0)
}

pub(crate) fn cuMemHostAlloc(pointer: Out<*mut c_void>, byte_count: usize, flags: u32) -> Outcome {
    let current = resource_context()?;
    pointer.required()?;
    let known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if flags & !known != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if byte_count == 0 {
        return pointer.set(std::ptr::null_mut());
    }
    let session = session()?;
    let bytes = byte_count as u64;
    let reply = session.call(&HostAlloc {
        context: current.slot(),
        bytes,
        flags,
    })?;
    let base = reply.fields.address;
    session.check_in_host_window(base, bytes)?;
    let range = Range::new(&current, Origin::Host, base, bytes);
    add_range(Range { flags, ..range })?;
    prefault::make_present_if_there(&(base..base + bytes));
    pointer.set(std::ptr::with_exposed_provenance_mut(base as usize))
}

pub(crate) fn cuMemFreeHost(pointer: Address) -> Outcome {
    let session = session()?;
    if pointer.is_null() {
        return Ok(());
    }
    let address = pointer.bits();
    session
        .ranges
        .remove(address, |range| range.origin == Origin::Host)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    session.post(&HostFree { address })
}

/// The range of page-locked memory in which a pointer lies.
fn host_range(pointer: Address) -> Result<Range, CUresult> {
    let session = session()?;
    session
        .ranges
        .find(pointer.bits())
        .filter(|range| matches!(range.origin, Origin::Host | Origin::Registered))
        .ok_or(CUresult::ERROR_INVALID_VALUE)
}

pub(crate) fn cuMemHostGetDevicePointer(
    dptr: Out<CUdeviceptr_v1>,
    pointer: Address,
    flags: u32,
) -> Outcome {
    dptr.required()?;
    host_pointer(pointer, flags).and_then(|address| dptr.set(narrow_address(address)?))
}

pub(crate) fn cuMemHostGetDevicePointer_v2(
    dptr: Out<CUdeviceptr>,
    pointer: Address,
    flags: u32,
) -> Outcome {
    dptr.required()?;
    dptr.set(host_pointer(pointer, flags)?)
}

fn host_pointer(pointer: Address, flags: u32) -> Result<u64, CUresult> {
    let range = host_range(pointer)?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // What was allocated has the same address for the program and for every device.
    let address = pointer.bits();
    let current = current_as_it_is()?;
    Ok(match current.connection().is_in_host_window(address) {
        true => address,
        false => range.across(address),
    })
}

pub(crate) fn cuMemHostGetFlags(flags: Out<u32>, pointer: Address) -> Outcome {
    let range = host_range(pointer)?;
    // Under unified addressing all of it is portable and mapped, asked for or not.
    flags.set(range.flags | CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)
}
