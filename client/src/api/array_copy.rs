//! Copies of runs of bytes from and to arrays, which lie row after row in them.

use cuda_abi::CUresult;
use cuda_abi::types::{CUarray, CUdeviceptr, CUdeviceptr_v1, CUstream};

use super::Outcome;
use crate::array::Array;
use crate::copy::{ArrayPlace, Extent, Place, Return, Side, copy};
use crate::handle::Kind;
use crate::params::{Bytes, BytesOut};
use crate::session::Session;
use crate::stream::target;

/// A side of a copy.
#[derive(Clone, Copy, Debug)]
enum End {
    Memory(Place),
    /// An array, and how many bytes from its start.
    Array(Array, u64),
}

impl End {
    fn array(session: &Session, handle: CUarray, offset: usize) -> Result<Self, CUresult> {
        super::given(handle.bits())?;
        let array = session.arrays.get(handle.bits(), Kind::Array)?;
        Ok(Self::Array(array, offset as u64))
    }

    /// Bytes to the end of the row, from `done` bytes on; and bytes of a row if that is its start.
    fn row(&self, done: u64) -> (u64, Option<u64>) {
        match self {
            Self::Memory(_) => (u64::MAX, None),
            Self::Array(array, offset) => {
                let row = row_of(array);
                let at = (offset + done) % row;
                (row - at, (at == 0).then_some(row))
            }
        }
    }

    /// The side from `done` bytes on, with rows of so many bytes.
    fn side(&self, done: u64, row: u64) -> Side {
        match *self {
            Self::Memory(place) => Side {
                place: place.advanced(done),
                pitch: row,
                slice: 0,
            },
            Self::Array(array, offset) => {
                let row = row_of(&array);
                let at = offset + done;
                let height = array
                    .shape
                    .level(array.level)
                    .map_or(1, |level| level.height);
                Side::run(Place::Array(ArrayPlace {
                    number: array.number,
                    level: array.level,
                    x: at % row,
                    y: at / row % height,
                    z: at / row / height,
                }))
            }
        }
    }

    fn check(&self, bytes: u64) -> Result<(), CUresult> {
        let Self::Array(array, offset) = self else {
            return Ok(());
        };
        let element = array.shape.element();
        if !bytes.is_multiple_of(element) || !offset.is_multiple_of(element) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let level = array.shape.level(array.level);
        let all = level.map_or(0, |level| row_of(array) * level.height * level.depth);
        if bytes > all || *offset > all - bytes {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        Ok(())
    }
}

fn row_of(array: &Array) -> u64 {
    let level = array.shape.level(array.level);
    level.map_or(1, |level| level.width * array.shape.element())
}

/// Copies a run of bytes: as much of it at once as is a rectangle on both sides.
fn run(
    stream: CUstream,
    bytes: usize,
    when: Return,
    ends: impl FnOnce(&Session) -> Result<(End, End), CUresult>,
) -> Outcome {
    let target = target(stream)?;
    let (to, from) = ends(target.current.session)?;
    let bytes = bytes as u64;
    to.check(bytes)?;
    from.check(bytes)?;
    let mut done = 0;
    while done < bytes {
        let left = bytes - done;
        let ((to_rest, to_row), (from_rest, from_row)) = (to.row(done), from.row(done));
        let row = match (to_row, from_row) {
            (Some(a), Some(b)) if a == b => Some(a),
            (Some(row), None) if matches!(from, End::Memory(_)) => Some(row),
            (None, Some(row)) if matches!(to, End::Memory(_)) => Some(row),
            _ => None,
        };
        let rows = row
            .map_or(0, |row| left / row)
            .min(rows_in_slice(&to, done))
            .min(rows_in_slice(&from, done));
        let extent = match row {
            Some(row) if rows > 0 => Extent {
                width: row,
                height: rows,
                depth: 1,
            },
            _ => Extent::run(left.min(to_rest).min(from_rest)),
        };
        let (to_side, from_side) = (to.side(done, extent.width), from.side(done, extent.width));
        // SAFETY: the program promises `bytes` bytes at its own addresses, during the call, and the
        // rectangle is a part of them.
        unsafe { copy(&target, to_side, from_side, extent, when)? };
        done += extent.width * extent.height;
    }
    Ok(())
}

/// Rows from `done` bytes on to the end of the slice.
fn rows_in_slice(end: &End, done: u64) -> u64 {
    match end {
        End::Memory(_) => u64::MAX,
        End::Array(array, offset) => {
            let height = array
                .shape
                .level(array.level)
                .map_or(1, |level| level.height);
            height - (offset + done) / row_of(array) % height
        }
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
        let from = End::Memory(session.host_place(host.pointer())?);
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
        let to = End::Memory(session.host_place(host.pointer())?);
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
        let from = End::Memory(session.device_place(src_device)?);
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
        let to = End::Memory(session.device_place(dst_device)?);
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
