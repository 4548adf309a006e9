//! Managed memory. Program and devices reach the same pages of the host window, so nothing ever
//! moves: advice is remembered, and prefetching is a matter of its arguments only.
//!
//! Called by the shells of `exports`; `batch` prefetches and checks ranges by it. Must not know device memory: no
//! managed page lies there.

use std::ffi::c_void;

use cuda_abi::CUresult;
use cuda_abi::types::{
    CU_DEVICE_CPU, CU_DEVICE_INVALID, CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST,
    CU_MEM_ATTACH_SINGLE, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_LOCATION_TYPE_HOST,
    CU_MEM_LOCATION_TYPE_HOST_NUMA, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT,
    CU_MEM_LOCATION_TYPE_NONE, CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute,
    CUmemLocation, CUstream,
};
use protocol::operations::ManagedAlloc;

use super::Outcome;
use super::memory::add_range;
use crate::context::{current_as_it_is, resource_context};
use crate::memory::managed_advice::{Advised, NOWHERE};
use crate::memory::ranges::{Origin, Range};
use crate::pointers::{BytesOut, List, Out};
use crate::session::{Session, session};
use crate::stream::target;

/// More attributes than there are.
const MOST: usize = 256;

pub(crate) fn cuMemAllocManaged(dptr: Out<CUdeviceptr>, byte_count: usize, flags: u32) -> Outcome {
    let current = resource_context()?;
    dptr.required()?;
    if byte_count == 0 || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let bytes = byte_count as u64;
    let ask = || {
        session()?.call(&ManagedAlloc {
            context: current.slot(),
            bytes,
        })
    };
    let reply = session()?.pools.with_caches_trimmed(ask)?;
    let base = reply.fields.address;
    session()?.check_in_host_window(base, bytes)?;
    let range = Range::new(&current, Origin::Managed, base, bytes);
    add_range(Range { flags, ..range })?;
    dptr.set(base)
}

/// Checks that a range is managed memory.
pub(super) fn managed(session: &Session, base: u64, bytes: usize) -> Outcome {
    let range = session.ranges.find(base);
    let fits = |range: &Range| range.is_managed() && range.contains(base, bytes as u64);
    match range {
        Some(range) if bytes > 0 && fits(&range) => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// The location that a device, or CU_DEVICE_CPU, is.
fn location_of(device: CUdevice) -> CUmemLocation {
    match device {
        CU_DEVICE_CPU => CUmemLocation {
            r#type: CU_MEM_LOCATION_TYPE_HOST,
            id: 0,
        },
        id => CUmemLocation {
            r#type: CU_MEM_LOCATION_TYPE_DEVICE,
            id,
        },
    }
}

/// Checks that there is such a location, and says it as a device or CU_DEVICE_CPU.
fn device_of(session: &Session, location: CUmemLocation) -> Result<CUdevice, CUresult> {
    match location.r#type {
        CU_MEM_LOCATION_TYPE_DEVICE => session.device(location.id).map(|_| location.id),
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(CU_DEVICE_CPU),
        CU_MEM_LOCATION_TYPE_HOST_NUMA if location.id >= 0 => Ok(CU_DEVICE_CPU),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemPrefetchAsync(
    dev_ptr: CUdeviceptr,
    count: usize,
    dst_device: CUdevice,
    stream: CUstream,
) -> Outcome {
    cuMemPrefetchAsync_v2(dev_ptr, count, location_of(dst_device), 0, stream)
}

pub(crate) fn cuMemPrefetchAsync_v2(
    dev_ptr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
    stream: CUstream,
) -> Outcome {
    target(stream)?;
    prefetch(session()?, dev_ptr, count, location, flags)
}

/// Notes where managed memory is wanted: it is in one place, so that nothing moves.
pub(super) fn prefetch(
    session: &Session,
    dev_ptr: CUdeviceptr,
    count: usize,
    location: CUmemLocation,
    flags: u32,
) -> Outcome {
    managed(session, dev_ptr, count)?;
    device_of(session, location)?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let change = |advised: &mut Advised| advised.prefetched = location;
    session.advice.change(dev_ptr, count as u64, change);
    Ok(())
}

pub(crate) fn cuMemAdvise(
    dev_ptr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    device: CUdevice,
) -> Outcome {
    // Advice that names no place takes any device.
    let location = match advice {
        CUmem_advise::SET_READ_MOSTLY
        | CUmem_advise::UNSET_READ_MOSTLY
        | CUmem_advise::UNSET_PREFERRED_LOCATION => location_of(CU_DEVICE_CPU),
        _ => location_of(device),
    };
    cuMemAdvise_v2(dev_ptr, count, advice, location)
}

pub(crate) fn cuMemAdvise_v2(
    dev_ptr: CUdeviceptr,
    count: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> Outcome {
    current_as_it_is()?;
    let session = session()?;
    managed(session, dev_ptr, count)?;
    let change = |change: &dyn Fn(&mut Advised)| {
        session.advice.change(dev_ptr, count as u64, change);
    };
    match advice {
        CUmem_advise::SET_READ_MOSTLY => change(&|advised| advised.read_mostly = true),
        CUmem_advise::UNSET_READ_MOSTLY => change(&|advised| advised.read_mostly = false),
        CUmem_advise::SET_PREFERRED_LOCATION => {
            device_of(session, location)?;
            change(&|advised| advised.preferred = location);
        }
        CUmem_advise::UNSET_PREFERRED_LOCATION => change(&|advised| advised.preferred = NOWHERE),
        CUmem_advise::SET_ACCESSED_BY => {
            let device = device_of(session, location)?;
            change(&|advised| {
                if !advised.accessed_by.contains(&device) {
                    advised.accessed_by.push(device);
                }
            });
        }
        CUmem_advise::UNSET_ACCESSED_BY => {
            let device = device_of(session, location)?;
            change(&|advised| advised.accessed_by.retain(|&other| other != device));
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    }
    Ok(())
}

/// The one value that all parts have, or `otherwise`.
fn common<T: PartialEq>(parts: &[Advised], value: impl Fn(&Advised) -> T, otherwise: T) -> T {
    let mut values = parts.iter().map(value);
    match values.next() {
        Some(first) if values.all(|other| other == first) => first,
        _ => otherwise,
    }
}

/// The words of an attribute's value, as many as fit `size` bytes.
fn attribute(
    parts: &[Advised],
    attribute: CUmem_range_attribute,
    size: usize,
) -> Result<Vec<i32>, CUresult> {
    let old = |location: CUmemLocation| match location.r#type {
        CU_MEM_LOCATION_TYPE_NONE => CU_DEVICE_INVALID,
        CU_MEM_LOCATION_TYPE_DEVICE => location.id,
        _ => CU_DEVICE_CPU,
    };
    let preferred = common(parts, |part| part.preferred, NOWHERE);
    let prefetched = common(parts, |part| part.prefetched, NOWHERE);
    let value = match attribute {
        CUmem_range_attribute::READ_MOSTLY => {
            i32::from(common(parts, |part| part.read_mostly, false))
        }
        CUmem_range_attribute::PREFERRED_LOCATION => old(preferred),
        CUmem_range_attribute::LAST_PREFETCH_LOCATION => old(prefetched),
        CUmem_range_attribute::PREFERRED_LOCATION_TYPE => preferred.r#type.cast_signed(),
        CUmem_range_attribute::PREFERRED_LOCATION_ID => preferred.id,
        CUmem_range_attribute::LAST_PREFETCH_LOCATION_TYPE => prefetched.r#type.cast_signed(),
        CUmem_range_attribute::LAST_PREFETCH_LOCATION_ID => prefetched.id,
        CUmem_range_attribute::ACCESSED_BY => {
            if size == 0 || !size.is_multiple_of(4) {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            // Those that are to access all parts.
            let mut devices: Vec<i32> = parts
                .first()
                .map_or(&[][..], |first| &first.accessed_by)
                .iter()
                .copied()
                .filter(|device| parts.iter().all(|part| part.accessed_by.contains(device)))
                .collect();
            devices.resize(size / 4, CU_DEVICE_INVALID);
            return Ok(devices);
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    match size {
        4 => Ok(vec![value]),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Writes an attribute's value where the program wants it.
///
/// # Safety
/// `data` is NULL or has room for the values.
unsafe fn write(data: *mut u8, values: &[i32]) -> Outcome {
    if data.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    for (at, value) in values.iter().enumerate() {
        // SAFETY: not NULL, so there is room for the values, as the caller vouches.
        unsafe { data.cast::<i32>().add(at).write_unaligned(*value) };
    }
    Ok(())
}

pub(crate) fn cuMemRangeGetAttribute(
    data: BytesOut,
    data_size: usize,
    range_attribute: CUmem_range_attribute,
    dev_ptr: CUdeviceptr,
    count: usize,
) -> Outcome {
    current_as_it_is()?;
    let session = session()?;
    managed(session, dev_ptr, count)?;
    let parts = session.advice.of(dev_ptr, count as u64);
    let values = attribute(&parts, range_attribute, data_size)?;
    // SAFETY: the program has room for `data_size` bytes there, and the values are as many.
    unsafe { write(data.pointer(), &values) }
}

pub(crate) fn cuMemRangeGetAttributes(
    data: List<*mut c_void>,
    data_sizes: List<usize>,
    attributes: List<CUmem_range_attribute>,
    num_attributes: usize,
    dev_ptr: CUdeviceptr,
    count: usize,
) -> Outcome {
    current_as_it_is()?;
    let session = session()?;
    managed(session, dev_ptr, count)?;
    if num_attributes == 0 || num_attributes > MOST {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let number = num_attributes as u32;
    let parts = session.advice.of(dev_ptr, count as u64);
    let sizes = data_sizes.get(number)?;
    let wanted = attributes.get(number)?;
    for ((data, size), wanted) in data.get(number)?.into_iter().zip(sizes).zip(wanted) {
        let values = attribute(&parts, wanted, size)?;
        // SAFETY: the program has room there for the bytes that it gives beside it, and the values are as many.
        unsafe { write(data.cast(), &values)? };
    }
    Ok(())
}

pub(crate) fn cuStreamAttachMemAsync(
    stream: CUstream,
    dptr: CUdeviceptr,
    length: usize,
    flags: u32,
) -> Outcome {
    target(stream)?;
    let session = session()?;
    let range = session.ranges.find(dptr).filter(Range::is_managed);
    let range = range.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    // All of an allocation, by its start; 0 says all.
    if range.base != dptr || !(length == 0 || length as u64 == range.bytes) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    match flags {
        CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST => Ok(()),
        CU_MEM_ATTACH_SINGLE if !stream.is_null() => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parts_do_not_agree_on_is_not_said() {
        let device = CUmemLocation {
            r#type: CU_MEM_LOCATION_TYPE_DEVICE,
            id: 1,
        };
        let first = Advised {
            read_mostly: true,
            preferred: device,
            accessed_by: vec![1, CU_DEVICE_CPU],
            prefetched: device,
        };
        let second = Advised {
            accessed_by: vec![CU_DEVICE_CPU],
            ..first
        };
        let both = [
            first,
            second,
            Advised {
                accessed_by: vec![CU_DEVICE_CPU],
                ..Advised::default()
            },
        ];
        let of = |parts: &[Advised], which, size| attribute(parts, which, size);
        assert_eq!(
            of(&both[..2], CUmem_range_attribute::READ_MOSTLY, 4),
            Ok(vec![1])
        );
        assert_eq!(
            of(&both, CUmem_range_attribute::READ_MOSTLY, 4),
            Ok(vec![0])
        );
        assert_eq!(
            of(&both[..2], CUmem_range_attribute::PREFERRED_LOCATION, 4),
            Ok(vec![1])
        );
        assert_eq!(
            of(&both, CUmem_range_attribute::PREFERRED_LOCATION, 4),
            Ok(vec![CU_DEVICE_INVALID])
        );
        assert_eq!(
            of(&both, CUmem_range_attribute::ACCESSED_BY, 8),
            Ok(vec![CU_DEVICE_CPU, CU_DEVICE_INVALID])
        );
        for (which, size) in [
            (CUmem_range_attribute::READ_MOSTLY, 8),
            (CUmem_range_attribute::ACCESSED_BY, 6),
            (CUmem_range_attribute::ACCESSED_BY, 0),
            (CUmem_range_attribute(99), 4),
        ] {
            assert_eq!(of(&both, which, size), Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
