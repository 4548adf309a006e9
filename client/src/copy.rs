//! Copies: from which memory to which, and by what way.
//!
//! Memory that devices reach (device memory, page-locked host memory of ours) is copied by the
//! server alone. The program's own memory is not, so its bytes travel: short ones inside of the
//! record, others through staging memory (`staged`).

use cuda_abi::CUresult;

use crate::graph::capture::CAPTURED;
use crate::graph::node::{CopyNode, Payload};
use crate::memory::Origin;
use crate::session::Session;
use crate::stream::Target;

mod staged;
mod told;

use staged::{copy_in, copy_out};
pub(crate) use told::written;
use told::{End, enqueue};

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
        if bits == 0 || self.windows.contain(bits) {
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
        self.host.contains(&address) || self.windows.contain(address)
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
    }?;
    let ranges = &target.current.session.ranges;
    let is_sync = |side: &Side| {
        side.address()
            .is_some_and(|address| ranges.has_sync_memops(address))
    };
    match when {
        Return::WhenDone if is_sync(&to) || is_sync(&from) => target.wait(target.stream.posted()),
        _ => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

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
