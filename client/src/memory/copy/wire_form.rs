//! Copies as the server is sent them.
//!
//! Owns the translation of sides and extents into requests, which every copy through the server takes. It
//! follows no pointer.

use cuda_abi::CUresult;
use protocol::operations::{ArrayCopy, Copy, Space};
use transport::session::EncodedRequest;

use super::sides::{ArrayPosition, CopySide, Extent, Location};
use crate::stream::StreamTarget;

/// One side of a copy as the server is sent it.
pub(super) struct End {
    pub space: Space,
    pub base: u64,
    pub place: ArrayPosition,
    pub pitch: u64,
    pub slice: u64,
}

impl End {
    pub(super) fn of(side: &CopySide) -> Self {
        let nowhere = ArrayPosition {
            number: 0,
            level: 0,
            x: 0,
            y: 0,
            z: 0,
        };
        let (space, base, place) = match side.place {
            Location::Array(place) => (Space::Array, place.number, place),
            _ => (Space::Unified, side.address().unwrap_or(0), nowhere),
        };
        Self {
            space,
            base,
            place,
            pitch: side.pitch,
            slice: side.slice,
        }
    }
}

/// A copy as the server is sent it.
enum CopyRequest {
    Plain(Copy),
    Array(ArrayCopy),
}

impl CopyRequest {
    fn of(to: &End, from: &End, extent: &Extent) -> Self {
        if to.space == Space::Array || from.space == Space::Array {
            return Self::Array(ArrayCopy {
                to_space: to.space as u32,
                to: to.base,
                to_level: to.place.level,
                to_x: to.place.x,
                to_y: to.place.y,
                to_z: to.place.z,
                to_pitch: to.pitch,
                to_slice: to.slice,
                from_space: from.space as u32,
                from: from.base,
                from_level: from.place.level,
                from_x: from.place.x,
                from_y: from.place.y,
                from_z: from.place.z,
                from_pitch: from.pitch,
                from_slice: from.slice,
                width: extent.width,
                height: extent.height,
                depth: extent.depth,
            });
        }
        Self::Plain(Copy {
            to_space: to.space as u32,
            to: to.base,
            to_pitch: to.pitch,
            to_slice: to.slice,
            from_space: from.space as u32,
            from: from.base,
            from_pitch: from.pitch,
            from_slice: from.slice,
            width: extent.width,
            height: extent.height,
            depth: extent.depth,
        })
    }
}

/// Posts a copy of what the server reaches on both sides.
pub(super) fn enqueue(
    target: &StreamTarget,
    to: &End,
    from: &End,
    extent: &Extent,
) -> Result<u64, CUresult> {
    match CopyRequest::of(to, from, extent) {
        CopyRequest::Plain(copy) => target.enqueue(&copy, &[]),
        CopyRequest::Array(copy) => target.enqueue(&copy, &[]),
    }
}

/// Writes a copy down of what the server reaches on both sides.
pub(crate) fn encode_copy(to: &CopySide, from: &CopySide, extent: &Extent) -> EncodedRequest {
    match CopyRequest::of(&End::of(to), &End::of(from), extent) {
        CopyRequest::Plain(copy) => EncodedRequest::new(&copy, &[]),
        CopyRequest::Array(copy) => EncodedRequest::new(&copy, &[]),
    }
}
