//! Copies of contiguous bytes, in every direction.
//!
//! Called by the shells of `exports`; `peer` and `reference` share it. Rectangles and boxes are `copy_box`. Must not know by which
//! way bytes go: `memory::copy` does.

use cuda_abi::CUresult;
use cuda_abi::types::{CUdeviceptr, CUdeviceptr_v1, CUstream};

use super::Outcome;
use crate::memory::copy::sides::{CopySide, Extent, Location};
use crate::memory::copy::{Return, copy};
use crate::pointers::{Bytes, BytesOut};
use crate::session::{Session, session};
use crate::stream::target;

/// Copies contiguous bytes between two places.
fn copy_bytes(
    stream: CUstream,
    bytes: usize,
    when: Return,
    places: impl FnOnce(&Session) -> Result<(Location, Location), CUresult>,
) -> Outcome {
    let target = target(stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let session = session()?;
    let (to, from) = places(session)?;
    // SAFETY: the program promises `bytes` bytes at its own addresses, during the call.
    unsafe {
        copy(
            session.addresses,
            &target,
            CopySide::linear(to),
            CopySide::linear(from),
            Extent::linear(bytes as u64),
            when,
        )
    }
}

pub(super) fn host_to_device(
    dst: CUdeviceptr,
    src: Bytes,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    copy_bytes(stream, bytes, when, |session| {
        Ok((
            session.addresses.device_place(dst)?,
            session.addresses.host_place(src.pointer())?,
        ))
    })
}

fn device_to_host(
    dst: BytesOut,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    copy_bytes(stream, bytes, when, |session| {
        Ok((
            session.addresses.host_place(dst.pointer())?,
            session.addresses.device_place(src)?,
        ))
    })
}

pub(super) fn device_to_device(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    copy_bytes(stream, bytes, when, |session| {
        Ok((
            session.addresses.device_place(dst)?,
            session.addresses.device_place(src)?,
        ))
    })
}

pub(super) fn between_any(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    copy_bytes(stream, bytes, when, |session| {
        Ok((
            session.addresses.any_place(dst)?,
            session.addresses.any_place(src)?,
        ))
    })
}

pub(crate) fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) -> Outcome {
    between_any(dst, src, byte_count, CUstream::NULL, Return::WhenDone)
}

pub(crate) fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    between_any(dst, src, byte_count, stream, Return::Early)
}

pub(crate) fn cuMemcpyHtoD(
    dst_device: CUdeviceptr_v1,
    src_host: Bytes,
    byte_count: u32,
) -> Outcome {
    cuMemcpyHtoD_v2(u64::from(dst_device), src_host, byte_count as usize)
}

pub(crate) fn cuMemcpyHtoD_v2(
    dst_device: CUdeviceptr,
    src_host: Bytes,
    byte_count: usize,
) -> Outcome {
    host_to_device(
        dst_device,
        src_host,
        byte_count,
        CUstream::NULL,
        Return::WhenDone,
    )
}

pub(crate) fn cuMemcpyDtoH(
    dst_host: BytesOut,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
) -> Outcome {
    cuMemcpyDtoH_v2(dst_host, u64::from(src_device), byte_count as usize)
}

pub(crate) fn cuMemcpyDtoH_v2(
    dst_host: BytesOut,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> Outcome {
    device_to_host(
        dst_host,
        src_device,
        byte_count,
        CUstream::NULL,
        Return::WhenDone,
    )
}

pub(crate) fn cuMemcpyDtoD(
    dst_device: CUdeviceptr_v1,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
) -> Outcome {
    cuMemcpyDtoD_v2(
        u64::from(dst_device),
        u64::from(src_device),
        byte_count as usize,
    )
}

pub(crate) fn cuMemcpyDtoD_v2(
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> Outcome {
    device_to_device(
        dst_device,
        src_device,
        byte_count,
        CUstream::NULL,
        Return::WhenDone,
    )
}

pub(crate) fn cuMemcpyHtoDAsync(
    dst_device: CUdeviceptr_v1,
    src_host: Bytes,
    byte_count: u32,
    stream: CUstream,
) -> Outcome {
    cuMemcpyHtoDAsync_v2(u64::from(dst_device), src_host, byte_count as usize, stream)
}

pub(crate) fn cuMemcpyHtoDAsync_v2(
    dst_device: CUdeviceptr,
    src_host: Bytes,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    host_to_device(dst_device, src_host, byte_count, stream, Return::Early)
}

pub(crate) fn cuMemcpyDtoHAsync(
    dst_host: BytesOut,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
    stream: CUstream,
) -> Outcome {
    cuMemcpyDtoHAsync_v2(dst_host, u64::from(src_device), byte_count as usize, stream)
}

pub(crate) fn cuMemcpyDtoHAsync_v2(
    dst_host: BytesOut,
    src_device: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    device_to_host(dst_host, src_device, byte_count, stream, Return::Early)
}

pub(crate) fn cuMemcpyDtoDAsync(
    dst_device: CUdeviceptr_v1,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
    stream: CUstream,
) -> Outcome {
    cuMemcpyDtoDAsync_v2(
        u64::from(dst_device),
        u64::from(src_device),
        byte_count as usize,
        stream,
    )
}

pub(crate) fn cuMemcpyDtoDAsync_v2(
    dst_device: CUdeviceptr,
    src_device: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    device_to_device(dst_device, src_device, byte_count, stream, Return::Early)
}
