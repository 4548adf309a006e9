//! The shape of a copy or fill: which bytes of each side it touches, and the fewest rows that say so.
//!
//! The numbers are a client's: no arithmetic on them may overflow, and what lies between a side's first
//! and last byte is found before anything moves, so that the engine can check all of it at once. Called by both
//! engines' copies. Must not know memory: here are numbers only.

use cuda_abi::CUresult;
use protocol::operations::Fill;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// How much is moved: `depth` planes of `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a plane.
    pub height: u64,
    /// Planes.
    pub depth: u64,
}

impl Extent {
    /// An extent; one without bytes is zero in all directions, so that sizes can be multiplied.
    #[must_use]
    pub fn new(width: u64, height: u64, depth: u64) -> Self {
        let any = width != 0 && height != 0 && depth != 0;
        let [width, height, depth] = [width, height, depth].map(|n| if any { n } else { 0 });
        Self {
            width,
            height,
            depth,
        }
    }

    /// What a fill covers, in bytes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for elements that do not exist or are not aligned, and for more bytes than
    /// there are addresses.
    pub fn of_fill(request: &Fill) -> Result<Self, CUresult> {
        let element = u64::from(request.element);
        if !matches!(element, 1 | 2 | 4)
            || !request.to.is_multiple_of(element)
            || (request.height > 1 && !request.pitch.is_multiple_of(element))
        {
            return Err(INVALID);
        }
        let width = request.width.checked_mul(element).ok_or(INVALID)?;
        Ok(Self::new(width, request.height, 1))
    }

    /// Whether there is nothing to move.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

/// One side of a copy: rows of bytes, `pitch` apart, in planes `slice` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Where the first byte is.
    pub base: u64,
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a plane to the next.
    pub slice: u64,
}

impl Rows {
    /// A side without bytes.
    pub const EMPTY: Self = Self {
        base: 0,
        pitch: 0,
        slice: 0,
    };

    /// The rows of an extent from `base` on, and how many bytes lie between the first byte and the last. One
    /// row needs no pitch and one plane no slice: what was given for them has no meaning.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for rows or planes that overlap, and for more bytes than there are addresses.
    pub fn over(
        extent: Extent,
        base: u64,
        (pitch, slice): (u64, u64),
    ) -> Result<(Self, u64), CUresult> {
        let Extent {
            width,
            height,
            depth,
        } = extent;
        if extent.is_empty() {
            return Ok((Self::EMPTY, 0));
        }
        let pitch = if height == 1 { width } else { pitch };
        let plane = pitch
            .checked_mul(height - 1)
            .and_then(|bytes| bytes.checked_add(width))
            .ok_or(INVALID)?;
        let full = pitch.checked_mul(height).ok_or(INVALID)?;
        let slice = if depth == 1 { full } else { slice };
        if pitch < width || slice < plane {
            return Err(INVALID);
        }
        let bytes = slice
            .checked_mul(depth - 1)
            .and_then(|bytes| bytes.checked_add(plane))
            .ok_or(INVALID)?;
        Ok((Self { base, pitch, slice }, bytes))
    }

    /// Where a row begins.
    #[inline]
    #[must_use]
    pub fn at(&self, plane: u64, row: u64) -> u64 {
        self.base + plane * self.slice + row * self.pitch
    }
}

/// Joins what touches on both sides, which changes no byte that is moved: rows to one row, planes likewise,
/// and planes of one row to one plane of rows.
pub fn coalesce(to: &mut Rows, from: &mut Rows, extent: &mut Extent) {
    if to.pitch == extent.width && from.pitch == extent.width {
        extent.width *= extent.height;
        extent.height = 1;
        if to.slice == extent.width && from.slice == extent.width {
            extent.width *= extent.depth;
            extent.depth = 1;
        }
    }
    if extent.height == 1 {
        extent.height = extent.depth;
        extent.depth = 1;
        to.pitch = to.slice;
        from.pitch = from.slice;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(extent: Extent, pitches: (u64, u64)) -> Result<(Rows, u64), CUresult> {
        Rows::over(extent, 0x1000, pitches)
    }

    #[test]
    fn pitches_that_overlap_or_overflow_are_refused() {
        let extent = Extent::new(16, 4, 2);
        assert_eq!(rows(extent, (16, 64)).map(|(_, bytes)| bytes), Ok(128));
        assert_eq!(rows(extent, (32, 128)).map(|(_, bytes)| bytes), Ok(240));
        for pitches in [(15, 64), (16, 63), (u64::MAX, u64::MAX), (16, u64::MAX)] {
            assert_eq!(rows(extent, pitches), Err(INVALID), "{pitches:?}");
        }
        let one = rows(Extent::new(16, 1, 1), (0, 0));
        assert_eq!(one.map(|(_, bytes)| bytes), Ok(16));
        assert_eq!(rows(Extent::new(16, 0, 1), (0, 0)), Ok((Rows::EMPTY, 0)));
    }

    #[test]
    fn what_touches_becomes_one_run() {
        let mut extent = Extent::new(16, 4, 2);
        let (mut to, _) = rows(extent, (16, 64)).unwrap_or_else(|_| panic!("sound"));
        let mut from = to;
        coalesce(&mut to, &mut from, &mut extent);
        assert_eq!(extent, Extent::new(128, 1, 1));

        let mut extent = Extent::new(16, 4, 2);
        let (mut to, _) = rows(extent, (16, 128)).unwrap_or_else(|_| panic!("sound"));
        let mut from = to;
        coalesce(&mut to, &mut from, &mut extent);
        assert_eq!(extent, Extent::new(64, 2, 1), "planes are the rows");
        assert_eq!(to.pitch, 128);
    }

    #[test]
    fn a_fill_has_whole_aligned_elements() {
        let fill = Fill {
            to: 8,
            pitch: 12,
            value: 0,
            element: 4,
            width: 2,
            height: 2,
        };
        assert_eq!(Extent::of_fill(&fill), Ok(Extent::new(8, 2, 1)));
        for bad in [
            Fill { element: 3, ..fill },
            Fill { to: 6, ..fill },
            Fill { pitch: 10, ..fill },
            Fill {
                width: u64::MAX,
                ..fill
            },
        ] {
            assert_eq!(Extent::of_fill(&bad), Err(INVALID));
        }
    }
}
