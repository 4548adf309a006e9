//! Copies of contiguous bytes from and to the first row of arrays.
//!
//! Owns the reading of offsets in a row. Called by the shells of `exports`; `memory::copy` copies. Must not know
//! what the elements are: bytes only.

use cuda_abi::CUresult;
use cuda_abi::types::{CUarray, CUdeviceptr, CUdeviceptr_v1, CUstream};

use super::Outcome;
use crate::handle::HandleKind;
use crate::memory::array::Array;
use crate::memory::copy::sides::{ArrayPosition, CopySide, Extent, Location};
use crate::memory::copy::{Return, copy};
use crate::pointers::{Bytes, BytesOut};
use crate::session::{Session, session};
use crate::stream::target;

/// A side of a copy.
#[derive(Clone, Copy, Debug)]
enum End {
    Memory(Location),
    /// An array, and how many bytes from its start.
    Array(Array, u64),
}

impl End {
    fn array(session: &Session, handle: CUarray, offset: usize) -> Result<Self, CUresult> {
        super::given(handle.bits())?;
        let array = session.arrays.get(handle.bits(), HandleKind::Array)?;
        Ok(Self::Array(array, offset as u64))
    }

    /// The side of contiguous bytes. In an array it lies in the first row, in whole elements: so NVIDIA's
    /// driver has it, though its manual speaks of one-dimensional arrays only.
    fn side(self, bytes: u64) -> Result<CopySide, CUresult> {
        let (array, offset) = match self {
            Self::Memory(place) => return Ok(CopySide::linear(place)),
            Self::Array(array, offset) => (array, offset),
        };
        let element = array.shape.element();
        let level = array.shape.level(array.level);
        let row = level.map_or(0, |level| level.width * element);
        let whole = bytes.is_multiple_of(element) && offset.is_multiple_of(element);
        if !whole || bytes > row || offset > row - bytes {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(CopySide::linear(Location::Array(ArrayPosition {
            number: array.number,
            level: array.level,
            x: offset,
            y: 0,
            z: 0,
        })))
    }
}

/// Copies contiguous bytes.
fn run(
    stream: CUstream,
    bytes: usize,
    when: Return,
    ends: impl FnOnce(&Session) -> Result<(End, End), CUresult>,
) -> Outcome {
    let target = target(stream)?;
    let session = session()?;
    let (to, from) = ends(session)?;
    let (to, from) = (to.side(bytes as u64)?, from.side(bytes as u64)?);
    // SAFETY: memory of the program that a side names is the program's for as many bytes as it says.
    unsafe {
        copy(
            session.addresses,
            &target,
            to,
            from,
            Extent::linear(bytes as u64),
            when,
        )
    }
}

fn host_to_array(
    array: CUarray,
    offset: usize,
    host: Bytes,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    run(stream, bytes, when, |session| {
        let from = End::Memory(session.addresses.host_place(host.pointer())?);
        Ok((End::array(session, array, offset)?, from))
    })
}

fn array_to_host(
    host: BytesOut,
    array: CUarray,
    offset: usize,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    run(stream, bytes, when, |session| {
        let to = End::Memory(session.addresses.host_place(host.pointer())?);
        Ok((to, End::array(session, array, offset)?))
    })
}

pub(crate) fn cuMemcpyHtoA(
    dst_array: CUarray,
    dst_offset: u32,
    src_host: Bytes,
    byte_count: u32,
) -> Outcome {
    cuMemcpyHtoA_v2(
        dst_array,
        dst_offset as usize,
        src_host,
        byte_count as usize,
    )
}

pub(crate) fn cuMemcpyHtoA_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_host: Bytes,
    byte_count: usize,
) -> Outcome {
    host_to_array(
        dst_array,
        dst_offset,
        src_host,
        byte_count,
        CUstream::NULL,
        Return::WhenDone,
    )
}

pub(crate) fn cuMemcpyAtoH(
    dst_host: BytesOut,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
) -> Outcome {
    cuMemcpyAtoH_v2(
        dst_host,
        src_array,
        src_offset as usize,
        byte_count as usize,
    )
}

pub(crate) fn cuMemcpyAtoH_v2(
    dst_host: BytesOut,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> Outcome {
    array_to_host(
        dst_host,
        src_array,
        src_offset,
        byte_count,
        CUstream::NULL,
        Return::WhenDone,
    )
}

pub(crate) fn cuMemcpyDtoA(
    dst_array: CUarray,
    dst_offset: u32,
    src_device: CUdeviceptr_v1,
    byte_count: u32,
) -> Outcome {
    cuMemcpyDtoA_v2(
        dst_array,
        dst_offset as usize,
        u64::from(src_device),
        byte_count as usize,
    )
}

pub(crate) fn cuMemcpyDtoA_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_device: CUdeviceptr,
    byte_count: usize,
) -> Outcome {
    run(CUstream::NULL, byte_count, Return::WhenDone, |session| {
        let from = End::Memory(session.addresses.device_place(src_device)?);
        Ok((End::array(session, dst_array, dst_offset)?, from))
    })
}

pub(crate) fn cuMemcpyAtoD(
    dst_device: CUdeviceptr_v1,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
) -> Outcome {
    cuMemcpyAtoD_v2(
        u64::from(dst_device),
        src_array,
        src_offset as usize,
        byte_count as usize,
    )
}

pub(crate) fn cuMemcpyAtoD_v2(
    dst_device: CUdeviceptr,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> Outcome {
    run(CUstream::NULL, byte_count, Return::WhenDone, |session| {
        let to = End::Memory(session.addresses.device_place(dst_device)?);
        Ok((to, End::array(session, src_array, src_offset)?))
    })
}

pub(crate) fn cuMemcpyAtoA(
    dst_array: CUarray,
    dst_offset: u32,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
) -> Outcome {
    cuMemcpyAtoA_v2(
        dst_array,
        dst_offset as usize,
        src_array,
        src_offset as usize,
        byte_count as usize,
    )
}

pub(crate) fn cuMemcpyAtoA_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
) -> Outcome {
    run(CUstream::NULL, byte_count, Return::WhenDone, |session| {
        Ok((
            End::array(session, dst_array, dst_offset)?,
            End::array(session, src_array, src_offset)?,
        ))
    })
}

pub(crate) fn cuMemcpyHtoAAsync(
    dst_array: CUarray,
    dst_offset: u32,
    src_host: Bytes,
    byte_count: u32,
    stream: CUstream,
) -> Outcome {
    cuMemcpyHtoAAsync_v2(
        dst_array,
        dst_offset as usize,
        src_host,
        byte_count as usize,
        stream,
    )
}

pub(crate) fn cuMemcpyHtoAAsync_v2(
    dst_array: CUarray,
    dst_offset: usize,
    src_host: Bytes,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    host_to_array(
        dst_array,
        dst_offset,
        src_host,
        byte_count,
        stream,
        Return::Early,
    )
}

pub(crate) fn cuMemcpyAtoHAsync(
    dst_host: BytesOut,
    src_array: CUarray,
    src_offset: u32,
    byte_count: u32,
    stream: CUstream,
) -> Outcome {
    cuMemcpyAtoHAsync_v2(
        dst_host,
        src_array,
        src_offset as usize,
        byte_count as usize,
        stream,
    )
}

pub(crate) fn cuMemcpyAtoHAsync_v2(
    dst_host: BytesOut,
    src_array: CUarray,
    src_offset: usize,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    array_to_host(
        dst_host,
        src_array,
        src_offset,
        byte_count,
        stream,
        Return::Early,
    )
}
