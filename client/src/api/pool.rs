//! Stream-ordered allocation and memory pools.
//!
//! Called by the shells of `exports`. Owns attributes, access and the captured form of both. Must not know when a
//! freed block may be used again: `memory::pool` decides.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_MEM_LOCATION_TYPE_DEVICE, CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemPool_attribute,
    CUmemPoolProps, CUmemoryPool, CUstream,
};
use protocol::operations::MemFree;

use super::Outcome;
use crate::graph::node::Payload;
use crate::memory::pool::{Reach, Settings};
use crate::memory::ranges::{Origin, Range};
use crate::pointers::{In, List, Out, Untyped};
use crate::session::{Session, session};
use crate::stream::{StreamTarget, target};

/// Places that an access list may name; more than there are.
const MOST_PLACES: usize = 4096;

fn allocate(dptr: &Out<CUdeviceptr>, bytes: usize, pool: u64, target: &StreamTarget) -> Outcome {
    if bytes == 0 {
        return dptr.set(0);
    }
    let current = &target.current;
    if let Some(capture) = target.current_capture()? {
        // The graph's own memory: it is there from now on, and the program's while a launch says so.
        let made = session()?.graphs.memories.allocate(
            &current.resource_context()?,
            bytes as u64,
            false,
        )?;
        let address = made.address();
        capture.add(target.slot, Payload::Allocate(made).into())?;
        return dptr.set(address);
    }
    let pools = &session()?.pools;
    let address = pools.allocate(target, pool, bytes as u64)?;
    let home = current.resource_context()?;
    let range = Range {
        pool,
        ..Range::new(&home, Origin::Device, address, bytes as u64)
    };
    super::memory::add_range(range)?;
    dptr.set(address)
}

pub(crate) fn cuMemAllocAsync(
    dptr: Out<CUdeviceptr>,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    let target = target(stream)?;
    dptr.required()?;
    let pools = &session()?.pools;
    let pool = pools.current(target.current.context.device())?;
    allocate(&dptr, byte_count, pool.load(Ordering::Relaxed), &target)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    dptr: Out<CUdeviceptr>,
    byte_count: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    let target = target(stream)?;
    dptr.required()?;
    allocate(&dptr, byte_count, pool.bits(), &target)
}

pub(crate) fn cuMemFreeAsync(dptr: CUdeviceptr, stream: CUstream) -> Outcome {
    let target = target(stream)?;
    if dptr == 0 {
        return Ok(());
    }
    let session = session()?;
    if let Some(capture) = target.current_capture()? {
        // Only what a graph allocated can be freed by one.
        return match session.graphs.memories.contains(dptr) {
            true => capture.add(target.slot, Payload::Free(dptr).into()),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        };
    }
    if let Some(freed) = session.graphs.memories.free(dptr) {
        return freed;
    }
    if let Some(closed) = super::ipc::close_of_pool(session, dptr) {
        return closed;
    }
    let range = session
        .ranges
        .remove(dptr, |range| range.origin == Origin::Device)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    match range.pool {
        // What cuMemAlloc gave goes once all work posted before is done.
        0 => session.post(&MemFree { address: dptr }),
        _ => session.pools.free(&target, &range),
    }
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, device: CUdevice) -> Outcome {
    let session = session()?;
    pool.required()?;
    pool.set(CUmemoryPool::from_bits(session.pools.standard(device)?))
}

pub(crate) fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, device: CUdevice) -> Outcome {
    let session = session()?;
    pool.required()?;
    // Not INVALID_DEVICE, as NVIDIA's driver has it.
    let current = session.pools.current(device);
    let current = current.map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    let current = current.load(Ordering::Relaxed);
    pool.set(CUmemoryPool::from_bits(current))
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Outcome {
    let session = session()?;
    let current = session.pools.current(device)?;
    if session.pools.get(pool.bits())?.own()?.device != device {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    current.store(pool.bits(), Ordering::Relaxed);
    Ok(())
}

/// The device that a location of pinned memory is.
fn device_at(
    session: &Session,
    location: &In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Result<CUdevice, CUresult> {
    let location = location.get()?;
    match (kind, location.r#type) {
        (CUmemAllocationType::PINNED, CU_MEM_LOCATION_TYPE_DEVICE) => {
            session.device(location.id).map(|_| location.id)
        }
        (CUmemAllocationType::PINNED | CUmemAllocationType::MANAGED, _) => {
            Err(CUresult::ERROR_NOT_SUPPORTED) // No pools of host memory.
        }
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemGetDefaultMemPool(
    pool: Out<CUmemoryPool>,
    location: In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Outcome {
    pool.required()?;
    let device = device_at(session()?, &location, kind)?;
    cuDeviceGetDefaultMemPool(pool, device)
}

pub(crate) fn cuMemGetMemPool(
    pool: Out<CUmemoryPool>,
    location: In<CUmemLocation>,
    kind: CUmemAllocationType,
) -> Outcome {
    pool.required()?;
    let device = device_at(session()?, &location, kind)?;
    cuDeviceGetMemPool(pool, device)
}

pub(crate) fn cuMemSetMemPool(
    location: In<CUmemLocation>,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Outcome {
    let device = device_at(session()?, &location, kind)?;
    cuDeviceSetMemPool(device, pool)
}

pub(crate) fn cuMemPoolCreate(pool: Out<CUmemoryPool>, props: In<CUmemPoolProps>) -> Outcome {
    let session = session()?;
    pool.required()?;
    let props = props.get()?;
    if props.allocType != CUmemAllocationType::PINNED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let reach = match props.handleTypes {
        CUmemAllocationHandleType::NONE => Reach::Own,
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => Reach::Exportable(OnceLock::new()),
        _ => return Err(CUresult::ERROR_NOT_SUPPORTED),
    };
    let device = session.device(props.location.id);
    if props.location.r#type != CU_MEM_LOCATION_TYPE_DEVICE || device.is_err() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let settings = Settings {
        most: props.maxSize as u64,
        ..Settings::default()
    };
    let handle = session.pools.create(props.location.id, reach, settings)?;
    pool.set(CUmemoryPool::from_bits(handle))
}

pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> Outcome {
    let session = session()?;
    session.pools.destroy(session, pool.bits())
}

pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) -> Outcome {
    let session = session()?;
    let pool = session.pools.get(pool.bits())?;
    session
        .pools
        .trim(session, pool.own()?, min_bytes_to_keep as u64)
}

/// The value of an attribute: bytes, or one of the switches, which are ints.
enum Value {
    Bytes(u64),
    Switch(bool),
}

pub(crate) fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: Untyped,
) -> Outcome {
    let pool = session()?.pools.get(pool.bits())?;
    if value.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    pool.own()?;
    let (settings, counts) = (pool.settings(), pool.counts());
    let known = match attribute {
        CUmemPool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES => {
            Value::Switch(settings.follow_events)
        }
        CUmemPool_attribute::REUSE_ALLOW_OPPORTUNISTIC => Value::Switch(settings.opportunistic),
        CUmemPool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => Value::Switch(settings.internal),
        CUmemPool_attribute::RELEASE_THRESHOLD => Value::Bytes(settings.threshold),
        CUmemPool_attribute::RESERVED_MEM_CURRENT => Value::Bytes(counts.reserved),
        CUmemPool_attribute::RESERVED_MEM_HIGH => Value::Bytes(counts.reserved_high),
        CUmemPool_attribute::USED_MEM_CURRENT => Value::Bytes(counts.used),
        CUmemPool_attribute::USED_MEM_HIGH => Value::Bytes(counts.used_high),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    // SAFETY: the variant has the type of the attribute's value.
    unsafe {
        match known {
            Value::Bytes(bytes) => value.typed().set(bytes),
            Value::Switch(on) => value.typed().set(i32::from(on)),
        }
    }
}

pub(crate) fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: Untyped,
) -> Outcome {
    let pool = session()?.pools.get(pool.bits())?;
    if value.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    pool.own()?;
    // SAFETY: asked only for attributes whose value is a 64-bit number.
    let bytes = || unsafe { value.typed::<u64>() }.get();
    // SAFETY: asked only for attributes whose value is an int.
    let on = || Ok::<_, CUresult>(unsafe { value.typed::<i32>() }.get()? != 0);
    match attribute {
        CUmemPool_attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES => {
            let on = on()?;
            pool.set(|settings| settings.follow_events = on);
        }
        CUmemPool_attribute::REUSE_ALLOW_OPPORTUNISTIC => {
            let on = on()?;
            pool.set(|settings| settings.opportunistic = on);
        }
        CUmemPool_attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let on = on()?;
            pool.set(|settings| settings.internal = on);
        }
        CUmemPool_attribute::RELEASE_THRESHOLD => {
            let bytes = bytes()?;
            pool.set(|settings| settings.threshold = bytes);
        }
        // High marks can only be reset.
        CUmemPool_attribute::RESERVED_MEM_HIGH if bytes()? == 0 => pool.reset_high(false),
        CUmemPool_attribute::USED_MEM_HIGH if bytes()? == 0 => pool.reset_high(true),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(
    flags: Out<CUmemAccess_flags>,
    pool: CUmemoryPool,
    location: In<CUmemLocation>,
) -> Outcome {
    let session = session()?;
    flags.required()?;
    let pool = session.pools.get(pool.bits())?;
    let device = device_at(session, &location, CUmemAllocationType::PINNED)?;
    flags.set(match pool.is_reached(device) {
        true => CUmemAccess_flags::READWRITE,
        false => CUmemAccess_flags::NONE,
    })
}

pub(crate) fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    map: List<CUmemAccessDesc>,
    count: usize,
) -> Outcome {
    let session = session()?;
    let pool = session.pools.get(pool.bits())?;
    if count == 0 || count > MOST_PLACES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for entry in map.get(count as u32)? {
        let device = device_at(
            session,
            &In::of(&entry.location),
            CUmemAllocationType::PINNED,
        )?;
        match (device == pool.device, entry.flags) {
            // Its own device reaches it whatever happens.
            (true, CUmemAccess_flags::READWRITE) => {}
            (true, _) => return Err(CUresult::ERROR_INVALID_DEVICE),
            (false, CUmemAccess_flags::NONE) => pool.set_peer(device, false),
            (false, CUmemAccess_flags::READWRITE) => {
                // Another process's memory is reached where it was given.
                pool.own().map_err(|_| CUresult::ERROR_NOT_SUPPORTED)?;
                super::peer::enable_peer_access(session, device, pool.device)?;
                pool.set_peer(device, true);
            }
            (false, _) => return Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}
