//! What a copy is between: where each of its sides lies, and how far it reaches.
//!
//! Plain data, for copies, for `address_space`, which says where an address lies, and for graphs. Follows no
//! pointer.

use cuda_abi::CUresult;

/// Where a side of a copy lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// Device memory.
    Device(u64),
    /// Host memory that devices reach too, page-locked, managed or registered: the address that it
    /// has for devices.
    Pinned(u64),
    /// The program's own memory.
    Program(*mut u8),
    /// An array, which has rows and slices of its own.
    Array(ArrayPosition),
}

/// A place in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrayPosition {
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

impl Location {
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySide {
    pub place: Location,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a slice to the next.
    pub slice: u64,
}

/// What is copied: bytes a row, rows a slice, slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

impl Extent {
    /// A run of bytes.
    pub(crate) const fn linear(bytes: u64) -> Self {
        Self {
            width: bytes,
            height: 1,
            depth: 1,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

impl CopySide {
    /// A side that is contiguous bytes.
    pub(crate) const fn linear(place: Location) -> Self {
        Self {
            place,
            pitch: 0,
            slice: 0,
        }
    }

    /// The first address, for what devices reach.
    pub(crate) const fn address(&self) -> Option<u64> {
        match self.place {
            Location::Device(address) | Location::Pinned(address) => Some(address),
            Location::Program(_) | Location::Array(_) => None,
        }
    }

    /// Bytes from the first to the last that a copy touches.
    pub(crate) fn span(&self, extent: &Extent) -> Result<u64, CUresult> {
        let rows = self.pitch.checked_mul(extent.height - 1);
        let slices = self.slice.checked_mul(extent.depth - 1);
        rows.zip(slices)
            .and_then(|(rows, slices)| rows.checked_add(slices)?.checked_add(extent.width))
            .ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_overflows_is_refused() {
        let side = CopySide {
            place: Location::Device(0),
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
