//! Pools that several processes of one user share: the pool as a descriptor, and its allocations by tokens.
//!
//! The descriptor is a small file in memory with the pool's name; a token is that of a block, as
//! cuIpcGetMemHandle has it, beside the name of its pool. Nothing of the server's travels in either.
//!
//! Called by the shells of `exports`. Must not know the rules by which a pool gives out its blocks
//! (`memory::pool`).

use std::os::fd::{BorrowedFd, IntoRawFd};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData, CUmemRangeHandleType,
    CUmemoryPool,
};
use protocol::operations::{Expose, ExposeReply, Exposed};

use super::Outcome;
use super::ipc::{handle_of, open};
use super::virtual_memory::{file_of, token_in_file};
use crate::context::current;
use crate::memory::pool::{PoolName, Reach, Settings};
use crate::memory::ranges::Origin;
use crate::pointers::{Address, In, Out, Untyped};
use crate::session::session;

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

/// What a pool's file begins with; its name and its device's UUID follow.
const POOL: [u8; 8] = *b"OMPSpool";

/// What the data of an allocation begin with; its token and its pool's name follow.
const POINTER: [u8; 8] = *b"OMPSptr1";

/// Where the pool's name stands in these.
const NAME_AT: usize = 40;

/// The words of a UUID.
fn words(uuid: [u8; 16]) -> [u64; 2] {
    let bits = u128::from_le_bytes(uuid);
    [bits as u64, (bits >> 64) as u64]
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    handle: Untyped,
    pool: CUmemoryPool,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome {
    let session = session()?;
    let pool = session.pools.get(pool.bits())?;
    let posix = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    if handle.is_null() || flags != 0 || handle_type != posix {
        return Err(WRONG);
    }
    let [low, high] = pool.export()?;
    let [first, second] = words(session.device(pool.device)?.facts.uuid);
    let file =
        file_of(POOL, [low, high, first, second]).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    // SAFETY: the type of handle is a descriptor's, which is an int.
    unsafe { handle.typed() }.set(file.into_raw_fd())
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    pool: Out<CUmemoryPool>,
    handle: Address,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome {
    let session = session()?;
    pool.required()?;
    if flags != 0 || handle_type != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
        return Err(WRONG);
    }
    // The descriptor itself travels in the pointer.
    let number = i32::try_from(handle.bits()).map_err(|_| WRONG)?;
    // SAFETY: the program promises an open descriptor; one that is not open fails to be read.
    let found = token_in_file(POOL, unsafe { BorrowedFd::borrow_raw(number) }).ok_or(WRONG)?;
    let [low, high, first, second] = found;
    let device = session
        .ordinal_where(|device| words(device.facts.uuid) == [first, second])
        .ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    let reach = Reach::Imported([low, high]);
    let imported = session.pools.create(device, reach, Settings::default())?;
    pool.set(CUmemoryPool::from_bits(imported))
}

pub(crate) fn cuMemPoolExportPointer(
    share_data: Out<CUmemPoolPtrExportData>,
    ptr: CUdeviceptr,
) -> Outcome {
    let session = session()?;
    share_data.required()?;
    let range = session
        .ranges
        .find(ptr)
        .filter(|range| range.base == ptr && range.origin == Origin::Device)
        .ok_or(WRONG)?;
    let [low, high] = session.pools.get(range.pool)?.export()?;
    session.pools.mark_exported(&range)?;
    let ExposeReply { token } = session
        .call(&Expose {
            kind: Exposed::Block as u32,
            object: range.base,
            bytes: range.bytes,
        })?
        .fields;
    let mut reserved = handle_of(POINTER, token);
    reserved[NAME_AT..][..8].copy_from_slice(&low.to_le_bytes());
    reserved[NAME_AT + 8..][..8].copy_from_slice(&high.to_le_bytes());
    share_data.set(CUmemPoolPtrExportData { reserved })
}

/// The pool's name in the data of an allocation.
fn name_in(data: &[u8; 64]) -> PoolName {
    let mut name = [0; 2];
    for (word, bytes) in name.iter_mut().zip(data[NAME_AT..].as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    name
}

pub(crate) fn cuMemPoolImportPointer(
    ptr: Out<CUdeviceptr>,
    pool: CUmemoryPool,
    share_data: In<CUmemPoolPtrExportData>,
) -> Outcome {
    current()?;
    let session = session()?;
    ptr.required()?;
    let data = share_data.get()?.reserved;
    let found = session.pools.get(pool.bits())?;
    let Reach::Imported(name) = &found.reach else {
        return Err(WRONG);
    };
    let token = super::ipc::token_in_handle(POINTER, &data)?;
    if name_in(&data) != *name {
        return Err(WRONG);
    }
    let home = session.contexts.primary(found.device)?;
    let home = crate::context::usable(session.contexts, home.handle())?;
    // Freed by its owner, or never offered.
    let opened = open(&home, token, pool.bits()).map_err(|code| match code {
        CUresult::ERROR_INVALID_HANDLE => WRONG,
        other => other,
    })?;
    ptr.set(opened)
}

pub(crate) fn cuMemGetHandleForAddressRange(
    handle: Address,
    dptr: CUdeviceptr,
    size: usize,
    handle_type: CUmemRangeHandleType,
    _flags: u64,
) -> Outcome {
    current()?;
    let session = session()?;
    let page = rustix::param::page_size();
    let is_whole = (dptr as usize).is_multiple_of(page) && size.is_multiple_of(page);
    if handle.is_null()
        || size == 0
        || !is_whole
        || handle_type != CUmemRangeHandleType::DMA_BUF_FD
        || !session.ranges.cover(dptr, size as u64)
    {
        return Err(WRONG);
    }
    // A DMA buffer would give other devices memory that the server counts and takes back.
    // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED says so.
    Err(CUresult::ERROR_NOT_SUPPORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocations_data_name_its_pool() {
        let mut data = handle_of(POINTER, [1, 2, 3, 4]);
        data[NAME_AT..][..8].copy_from_slice(&7_u64.to_le_bytes());
        data[NAME_AT + 8..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(name_in(&data), [7, u64::MAX]);
        assert_eq!(
            super::super::ipc::token_in_handle(POINTER, &data),
            Ok([1, 2, 3, 4])
        );
    }
}
