//! Copies in every direction, of runs, rectangles and boxes.
//!
//! Owns the reading of CUDA's many descriptions of a copy as two sides and an extent. Called by the shells of
//! `exports`; `batch`, `peer` and graphs' copy nodes share it. Must not know by which way bytes go: `memory::copy`
//! does.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_MEMCPY2D, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D, CUDA_MEMCPY3D_v1, CUarray, CUdeviceptr,
    CUdeviceptr_v1, CUmemorytype, CUstream,
};

use super::Outcome;
use crate::handle::HandleKind;
use crate::memory::copy::sides::{ArrayPosition, CopySide, Extent, Location};
use crate::memory::copy::{Return, copy};
use crate::pointers::{Bytes, BytesOut, In};
use crate::session::{Session, session};
use crate::stream::{Target, target};

/// Copies contiguous bytes between two places.
fn run(
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

fn host_to_device(
    dst: CUdeviceptr,
    src: Bytes,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    run(stream, bytes, when, |session| {
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
    run(stream, bytes, when, |session| {
        Ok((
            session.addresses.host_place(dst.pointer())?,
            session.addresses.device_place(src)?,
        ))
    })
}

fn device_to_device(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    run(stream, bytes, when, |session| {
        Ok((
            session.addresses.device_place(dst)?,
            session.addresses.device_place(src)?,
        ))
    })
}

fn whichever(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    when: Return,
) -> Outcome {
    run(stream, bytes, when, |session| {
        Ok((
            session.addresses.any_place(dst)?,
            session.addresses.any_place(src)?,
        ))
    })
}

pub(crate) fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) -> Outcome {
    whichever(dst, src, byte_count, CUstream::NULL, Return::WhenDone)
}

pub(crate) fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    byte_count: usize,
    stream: CUstream,
) -> Outcome {
    whichever(dst, src, byte_count, stream, Return::Early)
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

/// One side of a rectangle or box, as CUDA describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Corner {
    pub kind: CUmemorytype,
    pub host: *const u8,
    pub device: CUdeviceptr,
    pub array: CUarray,
    pub pitch: usize,
    /// Rows from a slice to the next; 0 for a rectangle.
    pub rows: usize,
    pub x: usize,
    pub y: usize,
    pub z: usize,
}

impl Corner {
    /// The side with the corner's offset applied.
    fn side(&self, session: &Session, extent: &Extent) -> Result<CopySide, CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        if self.kind == CUmemorytype::ARRAY {
            return self.in_array(session, extent);
        }
        let reach = (self.x as u64).checked_add(extent.width).ok_or(wrong)?;
        // A pitch of 0 is as good as none where there is but one row.
        let many = extent.height > 1 || extent.depth > 1 || self.y > 0 || self.z > 0;
        let pitch = match self.pitch as u64 {
            0 if self.rows == 0 || !many => reach,
            pitch => pitch,
        };
        let bottom = (self.y as u64).checked_add(extent.height).ok_or(wrong)?;
        let rows = match self.rows as u64 {
            0 => bottom,
            rows => rows,
        };
        if (many && pitch < reach) || ((extent.depth > 1 || self.z > 0) && rows < bottom) {
            return Err(wrong);
        }
        let slice = pitch.checked_mul(rows).ok_or(wrong)?;
        let offset = slice
            .checked_mul(self.z as u64)
            .zip(pitch.checked_mul(self.y as u64))
            .and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(self.x as u64))
            .ok_or(wrong)?;
        let device = || self.device.checked_add(offset).ok_or(wrong);
        let place = match self.kind {
            CUmemorytype::HOST => session
                .addresses
                .host_place(self.host.wrapping_add(offset as usize))?,
            CUmemorytype::DEVICE => session.addresses.device_place(device()?)?,
            CUmemorytype::UNIFIED => session.addresses.any_place(device()?)?,
            // Arrays are not built, so nobody has one.
            CUmemorytype::ARRAY => return Err(CUresult::ERROR_INVALID_VALUE),
            _ => return Err(wrong),
        };
        Ok(CopySide {
            place,
            pitch,
            slice,
        })
    }

    /// The side, where it is in an array.
    fn in_array(&self, session: &Session, extent: &Extent) -> Result<CopySide, CUresult> {
        super::given(self.array.bits())?;
        let array = session.arrays.get(self.array.bits(), HandleKind::Array)?;
        let wrong = CUresult::ERROR_INVALID_VALUE;
        let level = array.shape.level(array.level).ok_or(wrong)?;
        let (x, y, z) = (self.x as u64, self.y as u64, self.z as u64);
        let element = array.shape.element();
        let fits = |start: u64, count: u64, all: u64| count <= all && start <= all - count;
        if !x.is_multiple_of(element)
            || !extent.width.is_multiple_of(element)
            || !fits(x, extent.width, level.width * element)
            || !fits(y, extent.height, level.height)
            || !fits(z, extent.depth, level.depth)
        {
            return Err(wrong);
        }
        Ok(CopySide::linear(Location::Array(ArrayPosition {
            number: array.number,
            level: array.level,
            x,
            y,
            z,
        })))
    }
}

pub(super) fn shaped(
    target: &Target,
    to: &Corner,
    from: &Corner,
    extent: Extent,
    when: Return,
) -> Outcome {
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(());
    }
    let session = session()?;
    let (to, from) = (to.side(session, &extent)?, from.side(session, &extent)?);
    // SAFETY: the program promises memory for the extent at its own addresses, during the call.
    unsafe { copy(session.addresses, target, to, from, extent, when) }
}

fn rectangle(params: In<CUDA_MEMCPY2D>, stream: CUstream, when: Return) -> Outcome {
    let target = target(stream)?;
    let copy = params.get()?;
    let to = Corner {
        kind: copy.dstMemoryType,
        host: copy.dstHost.cast(),
        device: copy.dstDevice,
        array: copy.dstArray,
        pitch: copy.dstPitch,
        rows: 0,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: 0,
    };
    let from = Corner {
        kind: copy.srcMemoryType,
        host: copy.srcHost.cast(),
        device: copy.srcDevice,
        array: copy.srcArray,
        pitch: copy.srcPitch,
        rows: 0,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: 0,
    };
    let extent = Extent {
        width: copy.WidthInBytes as u64,
        height: copy.Height as u64,
        depth: 1,
    };
    shaped(&target, &to, &from, extent, when)
}

fn cuboid(params: In<CUDA_MEMCPY3D>, stream: CUstream, when: Return) -> Outcome {
    let target = target(stream)?;
    let (to, from, extent) = corners(&params.get()?)?;
    shaped(&target, &to, &from, extent, when)
}

/// Both sides of a copy as a node of a graph describes it, which is not empty.
pub(super) fn described(
    session: &Session,
    copy: &CUDA_MEMCPY3D,
) -> Result<(CopySide, CopySide, Extent), CUresult> {
    let (to, from, extent) = corners(copy)?;
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok((
        to.side(session, &extent)?,
        from.side(session, &extent)?,
        extent,
    ))
}

/// Both sides of a box.
fn corners(copy: &CUDA_MEMCPY3D) -> Result<(Corner, Corner, Extent), CUresult> {
    if copy.srcLOD != 0 || copy.dstLOD != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let to = Corner {
        kind: copy.dstMemoryType,
        host: copy.dstHost.cast(),
        device: copy.dstDevice,
        array: copy.dstArray,
        pitch: copy.dstPitch,
        rows: copy.dstHeight,
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: copy.dstZ,
    };
    let from = Corner {
        kind: copy.srcMemoryType,
        host: copy.srcHost.cast(),
        device: copy.srcDevice,
        array: copy.srcArray,
        pitch: copy.srcPitch,
        rows: copy.srcHeight,
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: copy.srcZ,
    };
    let extent = Extent {
        width: copy.WidthInBytes as u64,
        height: copy.Height as u64,
        depth: copy.Depth as u64,
    };
    Ok((to, from, extent))
}

/// The form of CUDA 2 in today's.
fn widened_2d(params: &In<CUDA_MEMCPY2D_v1>) -> Result<CUDA_MEMCPY2D, CUresult> {
    let old = params.get()?;
    Ok(CUDA_MEMCPY2D {
        srcXInBytes: old.srcXInBytes as usize,
        srcY: old.srcY as usize,
        srcMemoryType: old.srcMemoryType,
        srcHost: old.srcHost,
        srcDevice: u64::from(old.srcDevice),
        srcArray: old.srcArray,
        srcPitch: old.srcPitch as usize,
        dstXInBytes: old.dstXInBytes as usize,
        dstY: old.dstY as usize,
        dstMemoryType: old.dstMemoryType,
        dstHost: old.dstHost,
        dstDevice: u64::from(old.dstDevice),
        dstArray: old.dstArray,
        dstPitch: old.dstPitch as usize,
        WidthInBytes: old.WidthInBytes as usize,
        Height: old.Height as usize,
    })
}

/// The form of CUDA 2 in today's.
fn widened_3d(params: &In<CUDA_MEMCPY3D_v1>) -> Result<CUDA_MEMCPY3D, CUresult> {
    let old = params.get()?;
    Ok(CUDA_MEMCPY3D {
        srcXInBytes: old.srcXInBytes as usize,
        srcY: old.srcY as usize,
        srcZ: old.srcZ as usize,
        srcLOD: old.srcLOD as usize,
        srcMemoryType: old.srcMemoryType,
        srcHost: old.srcHost,
        srcDevice: u64::from(old.srcDevice),
        srcArray: old.srcArray,
        reserved0: old.reserved0,
        srcPitch: old.srcPitch as usize,
        srcHeight: old.srcHeight as usize,
        dstXInBytes: old.dstXInBytes as usize,
        dstY: old.dstY as usize,
        dstZ: old.dstZ as usize,
        dstLOD: old.dstLOD as usize,
        dstMemoryType: old.dstMemoryType,
        dstHost: old.dstHost,
        dstDevice: u64::from(old.dstDevice),
        dstArray: old.dstArray,
        reserved1: old.reserved1,
        dstPitch: old.dstPitch as usize,
        dstHeight: old.dstHeight as usize,
        WidthInBytes: old.WidthInBytes as usize,
        Height: old.Height as usize,
        Depth: old.Depth as usize,
    })
}

pub(crate) fn cuMemcpy2D(copy: In<CUDA_MEMCPY2D_v1>) -> Outcome {
    cuMemcpy2D_v2(In::of(&widened_2d(&copy)?))
}

pub(crate) fn cuMemcpy2D_v2(copy: In<CUDA_MEMCPY2D>) -> Outcome {
    rectangle(copy, CUstream::NULL, Return::WhenDone)
}

pub(crate) fn cuMemcpy2DUnaligned(copy: In<CUDA_MEMCPY2D_v1>) -> Outcome {
    cuMemcpy2D(copy)
}

pub(crate) fn cuMemcpy2DUnaligned_v2(copy: In<CUDA_MEMCPY2D>) -> Outcome {
    cuMemcpy2D_v2(copy)
}

pub(crate) fn cuMemcpy2DAsync(copy: In<CUDA_MEMCPY2D_v1>, stream: CUstream) -> Outcome {
    cuMemcpy2DAsync_v2(In::of(&widened_2d(&copy)?), stream)
}

pub(crate) fn cuMemcpy2DAsync_v2(copy: In<CUDA_MEMCPY2D>, stream: CUstream) -> Outcome {
    rectangle(copy, stream, Return::Early)
}

pub(crate) fn cuMemcpy3D(copy: In<CUDA_MEMCPY3D_v1>) -> Outcome {
    cuMemcpy3D_v2(In::of(&widened_3d(&copy)?))
}

pub(crate) fn cuMemcpy3D_v2(copy: In<CUDA_MEMCPY3D>) -> Outcome {
    cuboid(copy, CUstream::NULL, Return::WhenDone)
}

pub(crate) fn cuMemcpy3DAsync(copy: In<CUDA_MEMCPY3D_v1>, stream: CUstream) -> Outcome {
    cuMemcpy3DAsync_v2(In::of(&widened_3d(&copy)?), stream)
}

pub(crate) fn cuMemcpy3DAsync_v2(copy: In<CUDA_MEMCPY3D>, stream: CUstream) -> Outcome {
    cuboid(copy, stream, Return::Early)
}
