//! Copies that are kept, to be made when a graph runs.
//!
//! Plain data, with what CUDA shows of it. A capture gets one instead of the copy, and `api::graph` makes one of
//! what the program describes; graphs lower it. Posts nothing, and follows no pointer.

use cuda_abi::types::{CUDA_MEMCPY3D, CUmemorytype};

use super::sides::{CopySide, Extent, Location};

#[derive(Clone, Debug)]
pub(crate) struct RecordedCopy {
    pub to: CopySide,
    pub from: CopySide,
    pub extent: Extent,
    /// The handle of the context that it runs in.
    pub context: u64,
    /// How the program described it, unless it was captured.
    pub original: Option<Box<CUDA_MEMCPY3D>>,
}

// SAFETY: the pointers into the program's memory are followed only when the graph runs, and the
// program promised that they may be then, by any thread.
unsafe impl Send for RecordedCopy {}
// SAFETY: a shared `RecordedCopy` is only read, and none of its pointers is followed for that.
unsafe impl Sync for RecordedCopy {}

/// Kind and address of a place, as CUDA describes them.
fn kind(place: Location) -> (CUmemorytype, u64) {
    match place {
        Location::Device(address) => (CUmemorytype::DEVICE, address),
        Location::Pinned(address) => (CUmemorytype::UNIFIED, address),
        Location::Program(pointer) => (CUmemorytype::HOST, pointer.expose_provenance() as u64),
        Location::Array(_) => (CUmemorytype::ARRAY, 0),
    }
}

impl RecordedCopy {
    /// It as CUDA describes copies.
    pub(crate) fn to_memcpy_3d(&self) -> CUDA_MEMCPY3D {
        if let Some(original) = &self.original {
            return **original;
        }
        let pitch = |side: &CopySide| match side.pitch {
            0 => self.extent.width,
            pitch => pitch,
        };
        let rows = |side: &CopySide| side.slice.checked_div(pitch(side)).unwrap_or(0);
        let ((to_kind, to), (from_kind, from)) = (kind(self.to.place), kind(self.from.place));
        let null = std::ptr::null_mut();
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: from_kind,
            srcHost: std::ptr::with_exposed_provenance(from as usize),
            srcDevice: from,
            srcArray: cuda_abi::types::CUarray::NULL,
            reserved0: null,
            srcPitch: pitch(&self.from) as usize,
            srcHeight: rows(&self.from) as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: to_kind,
            dstHost: std::ptr::with_exposed_provenance_mut(to as usize),
            dstDevice: to,
            dstArray: cuda_abi::types::CUarray::NULL,
            reserved1: null,
            dstPitch: pitch(&self.to) as usize,
            dstHeight: rows(&self.to) as usize,
            WidthInBytes: self.extent.width as usize,
            Height: self.extent.height as usize,
            Depth: self.extent.depth as usize,
        }
    }

    /// Between which kinds of memory it copies: what an executable graph cannot change.
    pub(crate) fn direction(&self) -> (bool, bool) {
        let device = |side: &CopySide| matches!(side.place, Location::Device(_));
        (device(&self.to), device(&self.from))
    }
}
