//! Virtual memory management: physical memory, reserved addresses and the mapping of one at the other.
//!
//! Owns the requests for all of these. Called by the shells of `exports`; `external` and `pool_sharing` build on
//! it. What is mapped where it asks `memory::virtual_memory`; how a device maps, it must not know.

use std::io::Write;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST, CU_MEM_LOCATION_TYPE_HOST_NUMA,
    CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, CUdevice_attribute, CUdeviceptr, CUmemAccess_flags,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
};
use protocol::operations::{
    AddressFree, AddressReserve, Expose, ExposeReply, Exposed, PhysicalAccess, PhysicalCreate,
    PhysicalImport, PhysicalMap, PhysicalRelease, PhysicalUnmap,
};

use transport::token_descriptor;

use super::Outcome;
use crate::context::{current, current_as_it_is, usable};
use crate::memory::ranges::{Origin, Range};
use crate::memory::virtual_memory::GRANULARITY;
use crate::pointers::{Address, In, List, Out, Untyped};
use crate::session::{Session, session};

const WRONG: CUresult = CUresult::ERROR_INVALID_VALUE;

/// Places that an access list may name; more than there are.
const MOST_PLACES: usize = 4096;

/// The ordinal of a device that physical memory may be on.
fn device_at(session: &Session, location: CUmemLocation) -> Result<i32, CUresult> {
    match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => {}
        // As the attributes of host memory say, which NCCL asks for so all the same.
        CU_MEM_LOCATION_TYPE_HOST
        | CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(WRONG),
    }
    let device = session.device(location.id)?;
    // The attribute's first name.
    match device.attribute(CUdevice_attribute::VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED) {
        0 => Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => Ok(location.id),
    }
}

/// Checks how memory is to be allocated, and gives the ordinal of its device.
fn check(session: &Session, properties: &CUmemAllocationProp) -> Result<i32, CUresult> {
    if properties.r#type != CUmemAllocationType::PINNED {
        return Err(WRONG);
    }
    let device = device_at(session, properties.location)?;
    match properties.requestedHandleTypes {
        CUmemAllocationHandleType::NONE | CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR => {
            Ok(device)
        }
        _ => Err(CUresult::ERROR_NOT_SUPPORTED),
    }
}

/// Checks that numbers are multiples of the granularity, and gives the range that they say.
fn range(base: u64, size: usize) -> Result<std::ops::Range<u64>, CUresult> {
    let size = size as u64;
    if size == 0 || !size.is_multiple_of(GRANULARITY) || !base.is_multiple_of(GRANULARITY) {
        return Err(WRONG);
    }
    Ok(base..base.checked_add(size).ok_or(WRONG)?)
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    properties: In<CUmemAllocationProp>,
    option: CUmemAllocationGranularity_flags,
) -> Outcome {
    let session = session()?;
    granularity.required()?;
    check(session, &properties.get()?)?;
    if option > CUmemAllocationGranularity_flags::RECOMMENDED {
        return Err(WRONG);
    }
    granularity.set(GRANULARITY as usize)
}

pub(crate) fn cuMemAddressReserve(
    ptr: Out<CUdeviceptr>,
    size: usize,
    alignment: usize,
    addr: CUdeviceptr,
    flags: u64,
) -> Outcome {
    let session = session()?;
    ptr.required()?;
    if size == 0
        || !(size as u64).is_multiple_of(GRANULARITY)
        || !(alignment == 0 || alignment.is_power_of_two())
        || flags != 0
    {
        return Err(WRONG);
    }
    // Addresses are of a device's window, the current one's if there is one. The wished address is
    // not to be had there.
    let _ = addr;
    ptr.set(reserve_addresses(session, size as u64, alignment as u64)?)
}

/// Reserves whole granules of addresses of the current context's device.
pub(super) fn reserve_addresses(
    session: &Session,
    bytes: u64,
    alignment: u64,
) -> Result<CUdeviceptr, CUresult> {
    let ordinal = current_as_it_is().map_or(0, |current| current.context.device());
    let mut state = session.virtual_memory.lock();
    let reply = session.call(&AddressReserve {
        device: session.device(ordinal)?.number,
        bytes,
        align: alignment.max(GRANULARITY),
    })?;
    let address = reply.fields.address;
    if let Err(code) = session.reserve_around(address) {
        session.post(&AddressFree { address })?;
        return Err(code);
    }
    state.reserve(address, bytes);
    Ok(address)
}

pub(crate) fn cuMemAddressFree(ptr: CUdeviceptr, size: usize) -> Outcome {
    free_addresses(session()?, ptr, size)
}

/// Ends a reservation.
pub(super) fn free_addresses(session: &Session, ptr: CUdeviceptr, size: usize) -> Outcome {
    let range = range(ptr, size)?;
    session
        .virtual_memory
        .lock()
        .unreserve(range.start, size as u64)?;
    session.post(&AddressFree { address: ptr })
}

pub(crate) fn cuMemCreate(
    handle: Out<CUmemGenericAllocationHandle>,
    size: usize,
    properties: In<CUmemAllocationProp>,
    flags: u64,
) -> Outcome {
    let session = session()?;
    handle.required()?;
    let properties = properties.get()?;
    let device = check(session, &properties)?;
    if flags != 0 || size == 0 || !(size as u64).is_multiple_of(GRANULARITY) {
        return Err(WRONG);
    }
    let bytes = size as u64;
    let number = session.device(device)?.number;
    let new = session.virtual_memory.lock().new_handle();
    session.pools.with_caches_trimmed(|| {
        session.call(&PhysicalCreate {
            handle: new,
            device: number,
            bytes,
        })
    })?;
    let types = properties.requestedHandleTypes.0;
    session.virtual_memory.lock().add(new, device, bytes, types);
    handle.set(new)
}

pub(crate) fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Outcome {
    release(session()?, handle)
}

/// Releases physical memory, which goes when nothing of it is mapped any more.
pub(super) fn release(session: &Session, handle: CUmemGenericAllocationHandle) -> Outcome {
    match session.virtual_memory.lock().release(handle)? {
        true => session.post(&PhysicalRelease { handle }),
        false => Ok(()),
    }
}

pub(crate) fn cuMemRetainAllocationHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    addr: Address,
) -> Outcome {
    let session = session()?;
    handle.required()?;
    let retained = session.virtual_memory.lock().retain(addr.bits())?;
    handle.set(retained)
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    properties: Out<CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Outcome {
    let physical = session()?.virtual_memory.lock().get(handle)?;
    properties.set(CUmemAllocationProp {
        r#type: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType(physical.handle_types),
        location: CUmemLocation {
            r#type: CU_MEM_LOCATION_TYPE_DEVICE,
            id: physical.device,
        },
        win32HandleMetaData: std::ptr::null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    })
}

pub(crate) fn cuMemMap(
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Outcome {
    let session = session()?;
    match flags {
        0 => map(session, ptr, size, offset, handle),
        _ => Err(WRONG),
    }
}

/// Maps a part of physical memory at reserved addresses.
pub(super) fn map(
    session: &'static Session,
    ptr: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
) -> Outcome {
    let range = range(ptr, size)?;
    let mut state = session.virtual_memory.lock();
    let physical = state.get(handle)?;
    let fits = (offset as u64).is_multiple_of(GRANULARITY)
        && (offset as u64)
            .checked_add(size as u64)
            .is_some_and(|end| end <= physical.bytes);
    if !fits {
        return Err(WRONG);
    }
    state.may_map(&range)?;
    // What is mapped belongs to no context; questions about it name its device's.
    let home = usable(
        session.contexts,
        session.contexts.primary(physical.device)?.handle(),
    )?;
    session.call(&PhysicalMap {
        handle,
        address: ptr,
        bytes: size as u64,
        offset: offset as u64,
    })?;
    state.map(range, handle);
    session
        .ranges
        .insert(Range::new(&home, Origin::Mapped, ptr, size as u64));
    Ok(())
}

pub(crate) fn cuMemUnmap(ptr: CUdeviceptr, size: usize) -> Outcome {
    unmap(session()?, ptr, size)
}

/// Unmaps whole mappings.
pub(super) fn unmap(session: &Session, ptr: CUdeviceptr, size: usize) -> Outcome {
    let range = range(ptr, size)?;
    let mut state = session.virtual_memory.lock();
    for mapping in state.whole(&range)? {
        let base = mapping.addresses.start;
        session
            .ranges
            .remove(base, |range| range.origin == Origin::Mapped);
        session.call(&PhysicalUnmap { address: base })?;
        if let Some((handle, true)) = state.unmap(base) {
            session.post(&PhysicalRelease { handle })?;
        }
    }
    Ok(())
}

pub(crate) fn cuMemSetAccess(
    ptr: CUdeviceptr,
    size: usize,
    desc: List<CUmemAccessDesc>,
    count: usize,
) -> Outcome {
    let session = session()?;
    let range = range(ptr, size)?;
    if count == 0 || count > MOST_PLACES {
        return Err(WRONG);
    }
    let mut wanted = Vec::new();
    for place in desc.get(count as u32)? {
        let known = matches!(
            place.flags,
            CUmemAccess_flags::NONE | CUmemAccess_flags::READ | CUmemAccess_flags::READWRITE
        );
        if !known {
            return Err(WRONG);
        }
        wanted.push((device_at(session, place.location)?, place.flags.0));
    }
    set_access(session, &range, &wanted)
}

/// Says which devices, by ordinal, may do what with what is mapped in a range.
pub(super) fn set_access(
    session: &Session,
    range: &std::ops::Range<u64>,
    wanted: &[(i32, u32)],
) -> Outcome {
    let mut state = session.virtual_memory.lock();
    for mapping in state.whole(range)? {
        let base = mapping.addresses.start;
        for &(device, flags) in wanted {
            session.call(&PhysicalAccess {
                address: base,
                device: session.device(device)?.number,
                access: flags,
            })?;
            state.set_access(base, device, flags);
        }
        let reached = state
            .at(base)
            .is_some_and(|mapping| !mapping.access.is_empty());
        session.ranges.set_flags(base, u32::from(reached));
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(
    flags: Out<u64>,
    location: In<CUmemLocation>,
    ptr: CUdeviceptr,
) -> Outcome {
    let session = session()?;
    flags.required()?;
    let device = device_at(session, location.get()?)?;
    let state = session.virtual_memory.lock();
    let Some(mapping) = state.at(ptr) else {
        // Ordinary memory of the device is all accessible there.
        let range = session.ranges.find(ptr).ok_or(WRONG)?;
        let home = session.contexts.get(range.context)?.context.device();
        let access = match home == device {
            true => CUmemAccess_flags::READWRITE,
            false => CUmemAccess_flags::NONE,
        };
        return flags.set(u64::from(access.0));
    };
    let access = mapping.access.iter().find(|(other, _)| *other == device);
    flags.set(access.map_or(0, |&(_, flags)| u64::from(flags)))
}

/// A descriptor that stands for something: a file in memory, with what it is and its token in it.
pub(super) fn file_of(magic: [u8; 8], token: [u64; 4]) -> std::io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("openmps-memory", flags)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(&magic)?;
    for word in token {
        file.write_all(&word.to_le_bytes())?;
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// The token in a file that [`file_of`] made of such a thing, in whatever process.
pub(super) fn token_in_file(magic: [u8; 8], fd: BorrowedFd<'_>) -> Option<[u64; 4]> {
    let mut bytes = [0; 40];
    // By position, as the descriptor's own place is the program's.
    let read = rustix::io::pread(fd, &mut bytes[..], 0).ok()?;
    let (found, token) = bytes.split_at(8);
    if read != 40 || found != magic {
        return None;
    }
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(token.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}

pub(crate) fn cuMemExportToShareableHandle(
    shareable_handle: Untyped,
    handle: CUmemGenericAllocationHandle,
    handle_type: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome {
    let session = session()?;
    let physical = session.virtual_memory.lock().get(handle)?;
    let posix = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    if shareable_handle.is_null() || flags != 0 || handle_type != posix {
        return Err(WRONG);
    }
    if physical.handle_types & posix.0 == 0 {
        return Err(WRONG);
    }
    // Held until the descriptor is here, which comes by another way than the reply.
    let _state = session.virtual_memory.lock();
    let ExposeReply { token } = session
        .call(&Expose {
            kind: Exposed::Physical as u32,
            object: handle,
            bytes: 0,
        })?
        .fields;
    let file = token_descriptor::receive(session.link().connection(), token)
        .map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    // SAFETY: the type of handle is a descriptor's, which is an int.
    unsafe { shareable_handle.typed() }.set(file.into_raw_fd())
}

pub(crate) fn cuMemImportFromShareableHandle(
    handle: Out<CUmemGenericAllocationHandle>,
    os_handle: Address,
    handle_type: CUmemAllocationHandleType,
) -> Outcome {
    let session = session()?;
    handle.required()?;
    current()?;
    if handle_type != CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    // The descriptor itself travels in the pointer.
    let number = i32::try_from(os_handle.bits()).map_err(|_| WRONG)?;
    // SAFETY: the program promises an open descriptor; one that is not open fails to be read.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    handle.set(import(session, descriptor)?)
}

/// Takes a share in the physical memory that a descriptor stands for.
pub(super) fn import(
    session: &Session,
    descriptor: BorrowedFd<'_>,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let token = token_descriptor::read_token(descriptor).ok_or(WRONG)?;
    let new = session.virtual_memory.lock().new_handle();
    let reply = session.call(&PhysicalImport { handle: new, token })?;
    let fields = reply.fields;
    let ordinal = session.ordinal_of(fields.device);
    let Some(ordinal) = ordinal else {
        session.post(&PhysicalRelease { handle: new })?;
        return Err(CUresult::ERROR_INVALID_DEVICE);
    };
    let posix = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR.0;
    session
        .virtual_memory
        .lock()
        .add(new, ordinal, fields.bytes, posix);
    Ok(new)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const MAGIC: [u8; 8] = *b"OMPStest";

    #[test]
    fn a_file_stands_for_one_thing_and_others_do_not() {
        let token = [1, u64::MAX, 3, 4];
        let file = file_of(MAGIC, token).unwrap();
        assert_eq!(token_in_file(MAGIC, file.as_fd()), Some(token));
        assert_eq!(
            token_in_file(MAGIC, file.as_fd()),
            Some(token),
            "as often as one likes"
        );
        assert_eq!(
            token_in_file(*b"OMPSpool", file.as_fd()),
            None,
            "of something else"
        );
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(token_in_file(MAGIC, other.as_fd()), None);
        let other = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(token_in_file(MAGIC, other.as_fd()), None);
    }

    #[test]
    fn ranges_are_of_whole_granules() {
        let unit = GRANULARITY;
        assert_eq!(range(unit, 2 * unit as usize), Ok(unit..3 * unit));
        for (base, size) in [
            (unit, 0),
            (unit + 1, unit),
            (unit, unit + 1),
            (u64::MAX / unit * unit, unit),
        ] {
            assert_eq!(range(base, size as usize), Err(WRONG));
        }
    }
}
