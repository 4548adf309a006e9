//! Copies of rectangles and boxes, in every direction.
//!
//! Owns the reading of CUDA's descriptions of a copy as two sides and an extent. Called by the shells of `exports`; `batch`, `peer`
//! and graphs' copy nodes share it. Must not know by which way bytes go: `memory::copy` does.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_MEMCPY2D, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D, CUDA_MEMCPY3D_v1, CUarray, CUdeviceptr,
    CUmemorytype, CUstream,
};

use super::Outcome;
use crate::handle::HandleKind;
use crate::memory::copy::sides::{ArrayPosition, CopySide, Extent, Location};
use crate::memory::copy::{Return, copy};
use crate::pointers::In;
use crate::session::{Session, session};
use crate::stream::{StreamTarget, target};

/// One side of a rectangle or box, as CUDA describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
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

impl Operand {
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

/// Copies a box between two operands.
pub(super) fn copy_box(
    target: &StreamTarget,
    to: &Operand,
    from: &Operand,
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

fn copy_2d(params: In<CUDA_MEMCPY2D>, stream: CUstream, when: Return) -> Outcome {
    let target = target(stream)?;
    let copy = params.get()?;
    let to = Operand {
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
    let from = Operand {
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
    copy_box(&target, &to, &from, extent, when)
}

fn copy_3d_in(params: In<CUDA_MEMCPY3D>, stream: CUstream, when: Return) -> Outcome {
    let target = target(stream)?;
    copy_3d(&target, &params.get()?, when)
}

/// Copies what CUDA describes as a box.
pub(super) fn copy_3d(target: &StreamTarget, params: &CUDA_MEMCPY3D, when: Return) -> Outcome {
    let (to, from, extent) = operands(params)?;
    copy_box(target, &to, &from, extent, when)
}

/// Both sides of a copy as a node of a graph describes it, which is not empty.
pub(super) fn sides_of_node(
    session: &Session,
    copy: &CUDA_MEMCPY3D,
) -> Result<(CopySide, CopySide, Extent), CUresult> {
    let (to, from, extent) = operands(copy)?;
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
fn operands(copy: &CUDA_MEMCPY3D) -> Result<(Operand, Operand, Extent), CUresult> {
    if copy.srcLOD != 0 || copy.dstLOD != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let to = Operand {
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
    let from = Operand {
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
    copy_2d(copy, CUstream::NULL, Return::WhenDone)
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
    copy_2d(copy, stream, Return::Early)
}

pub(crate) fn cuMemcpy3D(copy: In<CUDA_MEMCPY3D_v1>) -> Outcome {
    cuMemcpy3D_v2(In::of(&widened_3d(&copy)?))
}

pub(crate) fn cuMemcpy3D_v2(copy: In<CUDA_MEMCPY3D>) -> Outcome {
    copy_3d_in(copy, CUstream::NULL, Return::WhenDone)
}

pub(crate) fn cuMemcpy3DAsync(copy: In<CUDA_MEMCPY3D_v1>, stream: CUstream) -> Outcome {
    cuMemcpy3DAsync_v2(In::of(&widened_3d(&copy)?), stream)
}

pub(crate) fn cuMemcpy3DAsync_v2(copy: In<CUDA_MEMCPY3D>, stream: CUstream) -> Outcome {
    copy_3d_in(copy, stream, Return::Early)
}
