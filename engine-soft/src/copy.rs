//! Copies and fills: what they mean, whether they are allowed, and the moving of bytes.
//!
//! A transfer is checked as a whole before its first byte moves: its arithmetic cannot overflow and
//! all that lies between its first and last byte is committed memory of the client. It is then a run
//! of units that any thread may carry out, and looks before each whether the memory is the client's still: what
//! is written into memory that was taken back would count for nobody.
//!
//! Called by streams, and by kernels' own copies. Must not know streams' order.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use engine::plan::copy::{Extent, Rows, coalesce};
use engine::{Activity, CUresult};
use protocol::operations::{self, Space};

use crate::array::Array;
use crate::memory::{CopySpace, raw};
use crate::work::{Piece, Progress, SliceClock, Task};

/// Bytes of one unit of a transfer.
const UNIT: u64 = 512 << 10;

/// How long a thread stays with a transfer before others have a time slice.
const QUANTUM: Duration = Duration::from_millis(2);

/// Transfers up to this size run at once on the thread that meets them.
pub(crate) const SMALL: u64 = 256 << 10;

/// One side of a transfer, with the addresses that it has in this process.
#[derive(Clone, Copy, Debug)]
struct Side {
    rows: Rows,
    /// Whether they are unified addresses, whose memory may be taken back.
    unified: bool,
}

impl Side {
    const EMPTY: Self = Self {
        rows: Rows::EMPTY,
        unified: false,
    };
}

/// A copy or a fill that was found to be allowed.
#[derive(Debug)]
pub(crate) struct Transfer {
    to: Side,
    source: Source,
    extent: Extent,
    /// Keeps the memory mapped, and says what of it is committed.
    space: Arc<CopySpace>,
    /// Keep the arrays' memory mapped.
    _arrays: [Option<Arc<Array>>; 2],
}

/// A copy with arrays at one side or both, whose handles were looked up when it came.
#[derive(Debug)]
pub(crate) struct ArrayTransfer {
    pub(crate) request: operations::ArrayCopy,
    pub(crate) to: Option<Arc<Array>>,
    pub(crate) from: Option<Arc<Array>>,
}

/// Where a transfer's bytes come from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Memory(Side),
    Pattern { value: u32, element: u32 },
}

impl Source {
    fn side(self) -> Option<Side> {
        match self {
            Self::Memory(side) => Some(side),
            Self::Pattern { .. } => None,
        }
    }
}

impl Transfer {
    /// Checks a copy. Nothing to copy is no error.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn copy(
        space: &Arc<CopySpace>,
        request: &operations::Copy,
    ) -> Result<Self, CUresult> {
        let extent = Extent::new(request.width, request.height, request.depth);
        let to = side(
            space,
            request.to_space,
            request.to,
            (request.to_pitch, request.to_slice),
            extent,
        )?;
        let from = side(
            space,
            request.from_space,
            request.from,
            (request.from_pitch, request.from_slice),
            extent,
        )?;
        Ok(Self::between(space, to, from, extent, [None, None]))
    }

    /// Checks a copy with arrays. Nothing to copy is no error.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn array(space: &Arc<CopySpace>, copy: ArrayTransfer) -> Result<Self, CUresult> {
        let ArrayTransfer { request, to, from } = copy;
        let extent = Extent::new(request.width, request.height, request.depth);
        let (to_pitches, from_pitches) = (
            (request.to_pitch, request.to_slice),
            (request.from_pitch, request.from_slice),
        );
        let to_side = match &to {
            Some(array) => {
                let at = [request.to_x, request.to_y, request.to_z];
                side_of_array(array, request.to_level, at, extent)?
            }
            None => side(space, request.to_space, request.to, to_pitches, extent)?,
        };
        let from_side = match &from {
            Some(array) => {
                let at = [request.from_x, request.from_y, request.from_z];
                side_of_array(array, request.from_level, at, extent)?
            }
            None => side(
                space,
                request.from_space,
                request.from,
                from_pitches,
                extent,
            )?,
        };
        Ok(Self::between(space, to_side, from_side, extent, [to, from]))
    }

    fn between(
        space: &Arc<CopySpace>,
        mut to: Side,
        mut from: Side,
        mut extent: Extent,
        arrays: [Option<Arc<Array>>; 2],
    ) -> Self {
        coalesce(&mut to.rows, &mut from.rows, &mut extent);
        Self {
            to,
            source: Source::Memory(from),
            extent,
            space: Arc::clone(space),
            _arrays: arrays,
        }
    }

    /// Checks a fill. Nothing to fill is no error.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn fill(
        space: &Arc<CopySpace>,
        request: &operations::Fill,
    ) -> Result<Self, CUresult> {
        let mut extent = Extent::of_fill(request)?;
        let pitches = (request.pitch, 0);
        let to = side(space, Space::Unified as u32, request.to, pitches, extent)?;
        if to.rows.pitch == extent.width {
            extent.width *= extent.height;
            extent.height = 1;
        }
        Ok(Self {
            to,
            source: Source::Pattern {
                value: request.value,
                element: request.element,
            },
            extent,
            space: Arc::clone(space),
            _arrays: [None, None],
        })
    }

    /// Bytes that are moved.
    pub(crate) fn bytes(&self) -> u64 {
        // Cannot overflow: `side` found it to be at most a window's size.
        self.extent.width * self.extent.height * self.extent.depth
    }

    /// Carries out all of it. The space is said to be moving since before the check.
    pub(crate) fn run_all(&self) {
        self.move_range(0..self.bytes());
    }

    /// Moves a unit's bytes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if memory was taken back that they lie in.
    fn move_unit(&self, unit: u64) -> Result<(), CUresult> {
        let first = unit * UNIT;
        let range = first..(first + UNIT).min(self.bytes());
        let _moving = self.space.moving();
        let sides = [Some(self.to), self.source.side()];
        let is_committed = |side: &Side| {
            let rows = &side.rows;
            let (from, to) = (self.at(rows, range.start), self.at(rows, range.end - 1) + 1);
            !side.unified || self.space.unified.allows(from, to - from)
        };
        if !sides.iter().flatten().all(is_committed) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        self.move_range(range);
        Ok(())
    }

    /// Where a byte of the transfer is on one side. Later ones are at higher addresses.
    fn at(&self, rows: &Rows, byte: u64) -> u64 {
        let (row, column) = (byte / self.extent.width, byte % self.extent.width);
        rows.at(row / self.extent.height, row % self.extent.height) + column
    }

    /// Moves a range of the transfer's bytes, counted row after row.
    fn move_range(&self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let (row, column) = (at / self.extent.width, at % self.extent.width);
            let (plane, row) = (row / self.extent.height, row % self.extent.height);
            let count = (self.extent.width - column).min(range.end - at);
            let to = self.to.rows.at(plane, row) + column;
            // SAFETY: `side` has checked both sides as a whole, arrays and staging stay mapped with what this keeps, and
            // for unified addresses the callers hold the space as moving since they were found committed. A fill's
            // addresses, pitches and widths are multiples of its element (`Extent::of_fill`).
            unsafe {
                match self.source {
                    Source::Memory(from) => {
                        raw::move_bytes(to, from.rows.at(plane, row) + column, count);
                    }
                    Source::Pattern { value, element } => {
                        raw::fill_bytes(to, value, element, count);
                    }
                }
            }
            at += count;
        }
    }
}

impl Task for Transfer {
    fn name(&self) -> &str {
        match self.source {
            Source::Memory(_) => "a copy",
            Source::Pattern { .. } => "a fill",
        }
    }

    fn activity(&self) -> Activity {
        Activity::Copy
    }

    fn units(&self) -> u64 {
        self.bytes().div_ceil(UNIT)
    }

    fn unit_cost(&self) -> Option<u64> {
        None
    }

    fn most_resident(&self) -> u64 {
        u64::MAX
    }

    fn quantum(&self) -> Duration {
        QUANTUM
    }

    fn run(&self, piece: &mut Piece, clock: &mut SliceClock, _sm: u32) -> Progress {
        // At least one unit a time slice.
        for unit in piece.fresh.by_ref() {
            if let Err(code) = self.move_unit(unit) {
                return Progress::Failed(code);
            }
            if clock.is_up() {
                break;
            }
        }
        if piece.is_empty() {
            Progress::Finished
        } else {
            Progress::Yielded
        }
    }
}

/// Checks one side of a transfer and gives it the address that it has in this process.
fn side(
    space: &CopySpace,
    number: u32,
    base: u64,
    pitches: (u64, u64),
    extent: Extent,
) -> Result<Side, CUresult> {
    if extent.is_empty() {
        return Ok(Side::EMPTY);
    }
    let (mut rows, bytes) = Rows::over(extent, base, pitches)?;
    let base = match Space::from_number(number) {
        Some(Space::Unified) => space.unified.allows(base, bytes).then_some(base),
        Some(Space::Staging) => space
            .staging
            .base
            .checked_add(base)
            .filter(|&address| space.staging.contains(address, bytes)),
        // Those have handles, not addresses.
        Some(Space::Array) | None => None,
    };
    rows.base = base.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok(Side {
        rows,
        unified: Space::from_number(number) == Some(Space::Unified),
    })
}

/// Checks a side that lies in an array and gives it the address that it has in this process.
fn side_of_array(
    array: &Array,
    level: u32,
    [x, y, z]: [u64; 3],
    extent: Extent,
) -> Result<Side, CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let level = array.shape.level(level).ok_or(invalid)?;
    let row = level.width * array.shape.element();
    let fits = |start: u64, count: u64, all: u64| count <= all && start <= all - count;
    if !fits(x, extent.width, row)
        || !fits(y, extent.height, level.height)
        || !fits(z, extent.depth, level.depth)
    {
        return Err(invalid);
    }
    let slice = row * level.height;
    if extent.is_empty() {
        return Ok(Side::EMPTY);
    }
    let offset = level.offset + z * slice + y * row + x;
    let last = (extent.depth - 1) * slice + (extent.height - 1) * row + extent.width;
    let base = array.texels.address(offset, last).ok_or(invalid)?;
    let rows = Rows {
        base,
        pitch: row,
        slice,
    };
    Ok(Side {
        rows,
        unified: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers around which arithmetic goes wrong.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..5_u64,
            any::<u64>(),
            (0..64_u32, -2..3_i64).prop_map(|(bit, off)| (1_u64 << bit).wrapping_add_signed(off)),
        ]
    }

    proptest! {
        /// With no memory at all, only what has no bytes is allowed; and nothing overflows.
        #[test]
        fn any_numbers_are_refused_or_empty(
            n in prop::array::uniform9(number()),
            spaces in (0..3_u32, 0..3_u32),
            element in 0..6_u32,
        ) {
            let space = Arc::new(CopySpace::empty());
            let [to, to_pitch, to_slice, from, from_pitch, from_slice, width, height, depth] = n;
            let (to_space, from_space) = spaces;
            let copy = operations::Copy {
                to_space, to, to_pitch, to_slice, from_space, from, from_pitch, from_slice,
                width, height, depth,
            };
            if let Ok(transfer) = Transfer::copy(&space, &copy) {
                prop_assert_eq!(transfer.bytes(), 0);
                transfer.run_all();
            }
            let fill = operations::Fill {
                to, pitch: to_pitch, value: 1, element, width, height,
            };
            if let Ok(transfer) = Transfer::fill(&space, &fill) {
                prop_assert_eq!(transfer.bytes(), 0);
                transfer.run_all();
            }
        }
    }
}
