//! Copies: from which memory to which, and by what way.
//!
//! Memory that devices reach (device memory, page-locked host memory of ours) is copied by the
//! server alone. The program's own memory is not, so its bytes travel: short ones inside of the
//! record, others through staging memory, piece by piece, so that pieces are copied here while
//! earlier ones are copied there.

use std::collections::VecDeque;

use cuda_abi::CUresult;
use cuda_abi::operations::{Space, Write};
use transport::session::Chunk;

use crate::graph::capture::CAPTURED;
use crate::graph::node::{CopyNode, Payload};
use crate::memory::Origin;
use crate::session::Session;
use crate::stream::Target;

mod told;

pub(crate) use told::written;
use told::{End, enqueue};

/// Bytes that travel inside of a record.
const INLINE: u64 = 16 << 10;

/// Bytes of a piece of a large copy.
const PIECE: u64 = 1 << 20;

/// Bytes of a piece of a small one.
const LEAST_PIECE: u64 = 128 << 10;

/// Pieces that may be on their way to the program's memory.
const AHEAD: usize = 8;

/// Where a side of a copy lies.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Device memory.
    Device(u64),
    /// Host memory that devices reach too, page-locked, managed or registered: the address that it
    /// has for devices.
    Pinned(u64),
    /// The program's own memory.
    Program(*mut u8),
    /// An array, which has rows and slices of its own.
    Array(ArrayPlace),
}

/// A place in an array.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrayPlace {
    /// The array's number for the server.
    pub number: u64,
    /// Its level.
    pub level: u32,
    /// Bytes of a row.
    pub x: u64,
    /// Rows.
    pub y: u64,
    /// Slices.
    pub z: u64,
}

impl Place {
    /// The place so many bytes further on in memory; one in an array stays.
    pub(crate) fn advanced(self, bytes: u64) -> Self {
        match self {
            Self::Device(address) => Self::Device(address + bytes),
            Self::Pinned(address) => Self::Pinned(address + bytes),
            Self::Program(start) => Self::Program(start.wrapping_add(bytes as usize)),
            Self::Array(_) => self,
        }
    }
}

/// A side of a copy.
#[derive(Clone, std::marker::Copy, Debug)]
pub(crate) struct Side {
    pub place: Place,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a slice to the next.
    pub slice: u64,
}

/// What is copied: bytes a row, rows a slice, slices.
#[derive(Clone, std::marker::Copy, Debug)]
pub(crate) struct Extent {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

/// Whether a call comes back before the copy is done.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// As early as CUDA allows for the memory involved.
    Early,
    /// When the copy is done, or cannot be told from it.
    WhenDone,
}

impl Extent {
    /// A run of bytes.
    pub(crate) const fn run(bytes: u64) -> Self {
        Self {
            width: bytes,
            height: 1,
            depth: 1,
        }
    }

    const fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

impl Side {
    /// A side that is a run of bytes.
    pub(crate) const fn run(place: Place) -> Self {
        Self {
            place,
            pitch: 0,
            slice: 0,
        }
    }

    /// The first address, for what devices reach.
    const fn address(&self) -> Option<u64> {
        match self.place {
            Place::Device(address) | Place::Pinned(address) => Some(address),
            Place::Program(_) | Place::Array(_) => None,
        }
    }

    /// Bytes from the first to the last that a copy touches.
    fn span(&self, extent: &Extent) -> Result<u64, CUresult> {
        let rows = self.pitch.checked_mul(extent.height - 1);
        let slices = self.slice.checked_mul(extent.depth - 1);
        rows.zip(slices)
            .and_then(|(rows, slices)| rows.checked_add(slices)?.checked_add(extent.width))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

impl Session {
    /// Where an address lies that the program says devices reach.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE when it is in no allocation.
    pub(crate) fn device_place(&self, address: u64) -> Result<Place, CUresult> {
        match self.ranges.find(address) {
            Some(range) if range.origin == Origin::Registered => {
                Ok(Place::Pinned(self.device_address(address)))
            }
            Some(range) if range.is_shared() => Ok(Place::Pinned(address)),
            Some(_) => Ok(Place::Device(address)),
            None => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    /// An address as the devices have it: another one only for the program's registered memory.
    pub(crate) fn device_address(&self, address: u64) -> u64 {
        if !self.registered.any() || self.host.contains(&address) {
            return address;
        }
        match self.ranges.find(address) {
            Some(range) if range.origin == Origin::Registered => range.across(address),
            _ => address,
        }
    }

    /// Where an address lies that the program says is its own.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for NULL and for addresses of device memory.
    pub(crate) fn host_place(&self, address: *const u8) -> Result<Place, CUresult> {
        let bits = address.addr() as u64;
        if self.host.contains(&bits) {
            return self.device_place(bits);
        }
        if bits == 0 || self.in_device_window(bits) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // Only where there is such memory need it be looked for.
        if (self.registered.any() || self.has_imports())
            && let Some(range) = self.ranges.find(bits)
        {
            return match range.origin {
                Origin::Registered => Ok(Place::Pinned(range.across(bits))),
                _ => Err(CUresult::ERROR_INVALID_VALUE), // Another process's device memory.
            };
        }
        Ok(Place::Program(address.cast_mut()))
    }

    /// Where an address lies of which the program says nothing.
    pub(crate) fn any_place(&self, address: u64) -> Result<Place, CUresult> {
        match self.device_place(address) {
            Ok(place) => Ok(place),
            Err(_) => self.host_place(std::ptr::with_exposed_provenance(address as usize)),
        }
    }

    /// Whether an address lies in a window of ours, given out or not.
    pub(crate) fn is_ours(&self, address: u64) -> bool {
        self.host.contains(&address) || self.in_device_window(address)
    }

    fn in_device_window(&self, address: u64) -> bool {
        self.devices.iter().any(|device| {
            let facts = &device.facts;
            (facts.window..facts.window.saturating_add(facts.window_bytes)).contains(&address)
        })
    }

    /// Checks that all that a copy touches of memory that we gave out lies in one allocation.
    pub(crate) fn check_side(&self, side: &Side, extent: &Extent) -> Result<(), CUresult> {
        let span = side.span(extent)?;
        match side.address() {
            None => Ok(()),
            Some(address) if self.ranges.cover(address, span) => Ok(()),
            Some(_) => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

/// Copies in the order of a stream.
///
/// # Safety
/// Memory of the program that a side names holds the extent, readable or writable as the side is,
/// until the call returns.
pub(crate) unsafe fn copy(
    target: &Target,
    to: Side,
    from: Side,
    extent: Extent,
    when: Return,
) -> Result<(), CUresult> {
    if extent.is_empty() {
        return Ok(());
    }
    target.current.session.check_side(&to, &extent)?;
    target.current.session.check_side(&from, &extent)?;
    if target.stream.special() & CAPTURED != 0
        && let Some(capture) = target.standing()?
    {
        let context = target.stream.context();
        let node = CopyNode {
            to,
            from,
            extent,
            context,
            given: None,
        };
        return capture.add(target, Payload::Copy(Box::new(node)));
    }
    match (to.place, from.place) {
        (Place::Program(to_start), Place::Program(from_start)) => {
            // Nothing for a device, but for the order: what was posted before comes first.
            target.wait(target.stream.posted())?;
            // SAFETY: as this function's.
            unsafe { copy_here(to_start, &to, from_start, &from, &extent) };
            Ok(())
        }
        // SAFETY: as this function's.
        (_, Place::Program(start)) => unsafe { copy_in(target, &to, start, &from, &extent, when) },
        // SAFETY: as this function's.
        (Place::Program(start), _) => unsafe { copy_out(target, start, &to, &from, &extent) },
        (to_place, from_place) => {
            let sequence = enqueue(target, &End::of(&to), &End::of(&from), &extent)?;
            // Between device memory a call need not wait; a program sees page-locked memory.
            let seen =
                matches!(to_place, Place::Pinned(_)) || matches!(from_place, Place::Pinned(_));
            match when {
                Return::WhenDone if seen => target.wait(sequence),
                _ => Ok(()),
            }
        }
    }
}

/// Copies between two sides, from where each begins.
///
/// # Safety
/// Both hold the extent, readable and writable as they are used.
pub(crate) unsafe fn copy_here(
    to_start: *mut u8,
    to: &Side,
    from_start: *mut u8,
    from: &Side,
    extent: &Extent,
) {
    for z in 0..extent.depth {
        for y in 0..extent.height {
            // SAFETY: the row lies in what the caller vouches for on both sides.
            unsafe {
                std::ptr::copy(
                    from_start.add((z * from.slice + y * from.pitch) as usize),
                    to_start.add((z * to.slice + y * to.pitch) as usize),
                    extent.width as usize,
                );
            }
        }
    }
}

/// A part of an extent that goes through staging at once: `rows` rows of `width` bytes from row `y`
/// of slice `z`, `x` bytes into it.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
struct Piece {
    x: u64,
    y: u64,
    z: u64,
    width: u64,
    rows: u64,
}

impl Piece {
    const fn bytes(&self) -> u64 {
        self.width * self.rows
    }

    /// Where it begins on a side, from where the side begins.
    const fn offset(&self, side: &Side) -> u64 {
        self.z * side.slice + self.y * side.pitch + self.x
    }

    /// Posts the copy of this piece between staging and a side that devices reach.
    fn enqueue(
        &self,
        target: &Target,
        side: &Side,
        chunk: &Chunk,
        into_staging: bool,
    ) -> Result<u64, CUresult> {
        let there = match side.place {
            Place::Array(place) => Place::Array(ArrayPlace {
                x: place.x + self.x,
                y: place.y + self.y,
                z: place.z + self.z,
                ..place
            }),
            place => place.advanced(self.offset(side)),
        };
        let there = End::of(&Side {
            place: there,
            ..*side
        });
        let staged = End {
            space: Space::Staging,
            ..End::of(&Side {
                place: Place::Device(chunk.offset()),
                pitch: self.width,
                slice: 0,
            })
        };
        let extent = Extent {
            width: self.width,
            height: self.rows,
            depth: 1,
        };
        if into_staging {
            enqueue(target, &staged, &there, &extent)
        } else {
            enqueue(target, &there, &staged, &extent)
        }
    }
}

/// Bytes of the pieces of an extent: so many that pieces are copied on both sides at once.
const fn piece_of(extent: &Extent) -> u64 {
    let bytes = extent
        .width
        .saturating_mul(extent.height)
        .saturating_mul(extent.depth);
    match bytes / AHEAD as u64 {
        ..LEAST_PIECE => LEAST_PIECE,
        LEAST_PIECE..PIECE => (bytes / AHEAD as u64).next_multiple_of(4096),
        _ => PIECE,
    }
}

/// Cuts an extent into pieces of at most `most` bytes.
fn pieces(extent: Extent, most: u64) -> impl Iterator<Item = Piece> {
    let width = extent.width.min(most);
    let rows = if extent.width > most {
        1
    } else {
        (most / extent.width).max(1)
    };
    (0..extent.depth).flat_map(move |z| {
        (0..extent.height)
            .step_by(rows as usize)
            .flat_map(move |y| {
                (0..extent.width)
                    .step_by(width as usize)
                    .map(move |x| Piece {
                        x,
                        y,
                        z,
                        width: width.min(extent.width - x),
                        rows: rows.min(extent.height - y),
                    })
            })
    })
}

/// Copies from the program's memory.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_in(
    target: &Target,
    to: &Side,
    start: *const u8,
    from: &Side,
    extent: &Extent,
    when: Return,
) -> Result<(), CUresult> {
    let session = target.current.session;
    if let Some(to) = to.address()
        && extent.height == 1
        && extent.depth == 1
        && extent.width <= INLINE
    {
        // SAFETY: the program's memory is readable for the run. It must not write it meanwhile,
        // as for any copy of CUDA's.
        let bytes = unsafe { std::slice::from_raw_parts(start, extent.width as usize) };
        // Even a synchronous copy of so little comes back before it has arrived, as CUDA's does.
        return target.enqueue(&Write { to }, &[bytes]).map(drop);
    }
    let mut last = 0;
    for piece in pieces(*extent, piece_of(extent)) {
        let chunk = session.stage(piece.bytes() as usize)?;
        for row in 0..piece.rows {
            let offset = piece.offset(from) + row * from.pitch;
            // SAFETY: the row lies in the extent, which the caller vouches for.
            unsafe {
                chunk.copy_in_from(
                    (row * piece.width) as usize,
                    start.add(offset as usize),
                    piece.width as usize,
                );
            }
        }
        last = piece.enqueue(target, to, &chunk, false)?;
        session.keep(chunk, target.slot, last);
    }
    match when {
        Return::WhenDone => target.wait(last),
        Return::Early => Ok(()),
    }
}

/// Copies to the program's memory. Returns when all of it is there.
///
/// # Safety
/// As [`copy`].
unsafe fn copy_out(
    target: &Target,
    start: *mut u8,
    to: &Side,
    from: &Side,
    extent: &Extent,
) -> Result<(), CUresult> {
    let session = target.current.session;
    let mut under_way: VecDeque<(Piece, Chunk, u64)> = VecDeque::new();
    let arrive = |(piece, chunk, sequence): (Piece, Chunk, u64)| {
        if let Err(error) = target.wait(sequence) {
            // The server may still write there.
            session.keep(chunk, target.slot, sequence);
            return Err(error);
        }
        for row in 0..piece.rows {
            let offset = piece.offset(to) + row * to.pitch;
            // SAFETY: the row lies in the extent, which the caller vouches for.
            unsafe {
                chunk.copy_out_to(
                    (row * piece.width) as usize,
                    start.add(offset as usize),
                    piece.width as usize,
                );
            }
        }
        Ok(())
    };
    let mut result = Ok(());
    for piece in pieces(*extent, piece_of(extent)) {
        if under_way.len() == AHEAD
            && let Some(first) = under_way.pop_front()
        {
            result = arrive(first);
        }
        let posted = result.and_then(|()| {
            let chunk = session.stage(piece.bytes() as usize)?;
            let sequence = piece.enqueue(target, from, &chunk, true)?;
            Ok((piece, chunk, sequence))
        });
        match posted {
            Ok(posted) => under_way.push_back(posted),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    for piece in under_way {
        // After an error, this only sees to it that the chunks are kept as long as they are used.
        result = result.and(arrive(piece));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_an_extent_once() {
        for (width, height, depth) in [(1, 1, 1), (10, 3, 2), (7, 1, 1), (8, 9, 1), (25, 2, 3)] {
            let mut seen = vec![0; (width * height * depth) as usize];
            let extent = Extent {
                width,
                height,
                depth,
            };
            for piece in pieces(extent, 8) {
                assert!(piece.bytes() <= 8 && piece.bytes() > 0);
                for row in 0..piece.rows {
                    for x in 0..piece.width {
                        let at = (piece.z * height + piece.y + row) * width + piece.x + x;
                        seen[at as usize] += 1;
                    }
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "{extent:?}");
        }
    }

    #[test]
    fn a_span_that_overflows_is_refused() {
        let side = Side {
            place: Place::Device(0),
            pitch: u64::MAX / 2,
            slice: 0,
        };
        let extent = Extent {
            width: 8,
            height: 4,
            depth: 1,
        };
        assert_eq!(side.span(&extent), Err(CUresult::ERROR_INVALID_VALUE));
    }
}
