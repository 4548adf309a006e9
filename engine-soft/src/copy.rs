//! Copies and fills: what they mean, whether they are allowed, and the moving of bytes.
//!
//! A transfer is checked as a whole before its first byte moves: its arithmetic cannot overflow and
//! all that lies between its first and last byte is committed memory of the client. It is then a run
//! of units that any thread may carry out, and looks before each whether the memory is the client's still: what
//! is written into memory that was taken back would count for nobody. The only raw accesses of the layer above the executor are
//! here. Memory of a client is never seen as a Rust reference, for the client may write it meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_abi::operations::{self, Space};
use engine::{CUresult, Window};

use crate::array::Array;
use crate::memory::CopySpace;
use crate::work::{Piece, Progress, Task};

/// Bytes of one unit of a transfer.
const UNIT: u64 = 512 << 10;

/// How long a thread stays with a transfer before others have a turn.
const QUANTUM: Duration = Duration::from_millis(2);

/// Transfers up to this size run at once on the thread that meets them.
pub(crate) const SMALL: u64 = 256 << 10;

/// One side of a transfer: rows of bytes, `pitch` apart, in planes `slice` apart.
#[derive(Clone, Copy, Debug)]
struct Rows {
    base: u64,
    pitch: u64,
    slice: u64,
    /// Whether they are unified addresses, whose memory may be taken back.
    unified: bool,
}

/// How much is moved: `depth` planes of `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug)]
struct Extent {
    width: u64,
    height: u64,
    depth: u64,
}

impl Extent {
    /// An extent; one without bytes is zero in all directions, so that sizes can be multiplied.
    fn new(width: u64, height: u64, depth: u64) -> Self {
        let any = width != 0 && height != 0 && depth != 0;
        let [width, height, depth] = [width, height, depth].map(|n| if any { n } else { 0 });
        Self {
            width,
            height,
            depth,
        }
    }
}

/// A copy or a fill that was found to be allowed.
#[derive(Debug)]
pub(crate) struct Transfer {
    to: Rows,
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
    Memory(Rows),
    Pattern { value: u32, element: u32 },
}

impl Source {
    fn rows(self) -> Option<Rows> {
        match self {
            Self::Memory(rows) => Some(rows),
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
        let to_rows = match &to {
            Some(array) => {
                let at = [request.to_x, request.to_y, request.to_z];
                side_of_array(array, request.to_level, at, extent)?
            }
            None => side(space, request.to_space, request.to, to_pitches, extent)?,
        };
        let from_rows = match &from {
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
        Ok(Self::between(space, to_rows, from_rows, extent, [to, from]))
    }

    fn between(
        space: &Arc<CopySpace>,
        mut to: Rows,
        mut from: Rows,
        mut extent: Extent,
        arrays: [Option<Arc<Array>>; 2],
    ) -> Self {
        // Rows that touch on both sides are one row, and planes likewise.
        if to.pitch == extent.width && from.pitch == extent.width {
            extent.width *= extent.height;
            extent.height = 1;
            if to.slice == extent.width && from.slice == extent.width {
                extent.width *= extent.depth;
                extent.depth = 1;
            }
        }
        if extent.height == 1 {
            // One row a plane: planes are the rows.
            extent.height = extent.depth;
            extent.depth = 1;
            to.pitch = to.slice;
            from.pitch = from.slice;
        }
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
        let element = u64::from(request.element);
        let rows = request.height > 1;
        if !matches!(element, 1 | 2 | 4)
            || !request.to.is_multiple_of(element)
            || (rows && !request.pitch.is_multiple_of(element))
        {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let width = request
            .width
            .checked_mul(element)
            .ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let mut extent = Extent::new(width, request.height, 1);
        let pitches = (request.pitch, 0);
        let to = side(space, Space::Unified as u32, request.to, pitches, extent)?;
        if to.pitch == extent.width {
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
        let rows = [Some(self.to), self.source.rows()];
        let is_there = |rows: &Rows| {
            let (from, to) = (self.at(rows, range.start), self.at(rows, range.end - 1) + 1);
            !rows.unified || self.space.unified.allows(from, to - from)
        };
        if !rows.iter().flatten().all(is_there) {
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
            let to = self.to.at(plane, row) + column;
            match self.source {
                Source::Memory(from) => move_bytes(to, from.at(plane, row) + column, count),
                Source::Pattern { value, element } => fill_bytes(to, value, element, count),
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

    fn run(&self, piece: &mut Piece, until: Instant, _sm: u32) -> Progress {
        // At least one unit a turn.
        for unit in piece.fresh.by_ref() {
            if let Err(code) = self.move_unit(unit) {
                return Progress::Failed(code);
            }
            if Instant::now() >= until {
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

impl Rows {
    fn at(&self, plane: u64, row: u64) -> u64 {
        self.base + plane * self.slice + row * self.pitch
    }
}

/// Checks one side of a transfer and gives it the address that it has in this process.
fn side(
    space: &CopySpace,
    number: u32,
    base: u64,
    (pitch, slice): (u64, u64),
    extent: Extent,
) -> Result<Rows, CUresult> {
    let Extent {
        width,
        height,
        depth,
    } = extent;
    if width == 0 {
        return Ok(Rows {
            base: 0,
            pitch: 0,
            slice: 0,
            unified: false,
        });
    }
    // One row needs no pitch and one plane no slice; what was given for them has no meaning.
    let pitch = if height == 1 { width } else { pitch };
    let plane = pitch
        .checked_mul(height - 1)
        .and_then(|bytes| bytes.checked_add(width))
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let full = pitch
        .checked_mul(height)
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let slice = if depth == 1 { full } else { slice };
    if pitch < width || slice < plane {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let bytes = slice
        .checked_mul(depth - 1)
        .and_then(|bytes| bytes.checked_add(plane))
        .ok_or(CUresult::ERROR_INVALID_VALUE)?;
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
    Ok(Rows {
        base: base.ok_or(CUresult::ERROR_INVALID_VALUE)?,
        pitch,
        slice,
        unified: Space::from_number(number) == Some(Space::Unified),
    })
}

/// Checks a side that lies in an array and gives it the address that it has in this process.
fn side_of_array(
    array: &Array,
    level: u32,
    [x, y, z]: [u64; 3],
    extent: Extent,
) -> Result<Rows, CUresult> {
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
    if extent.width == 0 {
        return Ok(Rows {
            base: 0,
            pitch: 0,
            slice: 0,
            unified: false,
        });
    }
    let offset = level.offset + z * slice + y * row + x;
    let last = (extent.depth - 1) * slice + (extent.height - 1) * row + extent.width;
    let base = array.texels.address(offset, last).ok_or(invalid)?;
    Ok(Rows {
        base,
        pitch: row,
        slice,
        unified: false,
    })
}

/// Writes bytes that lie in this process to a unified address.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if not all of the range is committed memory.
pub(crate) fn write(space: &CopySpace, to: u64, data: &[u8]) -> Result<(), CUresult> {
    let bytes = data.len() as u64;
    if bytes == 0 {
        return Ok(());
    }
    let _moving = space.moving();
    if !space.unified.allows(to, bytes) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    move_bytes(to, data.as_ptr() as u64, bytes);
    Ok(())
}

/// The 4 or 8 bytes at an address, read in one load if they are aligned.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if they are not all in committed memory, or not as many.
pub(crate) fn peek(space: &CopySpace, from: u64, bytes: u32) -> Result<u64, CUresult> {
    let count = u64::from(bytes);
    let _moving = space.moving();
    if !matches!(bytes, 4 | 8) || !space.unified.allows(from, count) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut value = [0_u64];
    move_bytes(value.as_mut_ptr() as u64, from, count);
    Ok(value[0])
}

/// Fills a range with zeroes.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if not all of the range is committed memory.
pub(crate) fn zero(space: &CopySpace, range: Window) -> Result<(), CUresult> {
    let _moving = space.moving();
    if range.bytes != 0 && !space.unified.allows(range.base, range.bytes) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    fill_bytes(range.base, 0, 1, range.bytes);
    Ok(())
}

/// Moves bytes between two places of this process. Callers, all in this file, have shown that both
/// lie in memory that stays mapped: a checked side of a transfer, or a slice.
///
/// A naturally aligned 1, 2, 4 or 8 bytes arrive in one store, for kernels that wait for a flag.
fn move_bytes(to: u64, from: u64, count: u64) {
    macro_rules! whole {
        ($atomic:ty) => {{
            // SAFETY: both sides are mapped (see above) and aligned to the type's size.
            let (to, from) = unsafe { (&*(to as *const $atomic), &*(from as *const $atomic)) };
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }};
    }
    let aligned = (to | from).is_multiple_of(count.max(1));
    match count {
        1 => whole!(AtomicU8),
        2 if aligned => whole!(AtomicU16),
        4 if aligned => whole!(AtomicU32),
        8 if aligned => whole!(AtomicU64),
        // SAFETY: both sides are mapped (see above). Sides of one transfer may overlap, which `copy`
        // allows. A client that writes meanwhile gets a mix of its own bytes, as on a GPU.
        _ => unsafe {
            std::ptr::copy(from as *const u8, to as *mut u8, count as usize);
        },
    }
}

/// Repeats the low `element` bytes of a value. `to` and `count` are multiples of `element`; callers,
/// all in this file, have shown that the range is mapped.
fn fill_bytes(to: u64, value: u32, element: u32, count: u64) {
    let bytes = value.to_le_bytes();
    let pattern = &bytes[..element as usize];
    if pattern.iter().all(|&byte| byte == pattern[0]) && count != element.into() {
        // SAFETY: the range is mapped (see above).
        unsafe { std::ptr::write_bytes(to as *mut u8, pattern[0], count as usize) };
        return;
    }
    for at in (to..to + count).step_by(element as usize) {
        match element {
            // SAFETY: the range is mapped (see above).
            1 => unsafe { (at as *mut u8).write_volatile(value as u8) },
            // SAFETY: as above, and aligned.
            2 => unsafe { (at as *mut u16).write(value as u16) },
            // SAFETY: as above, and aligned.
            _ => unsafe { (at as *mut u32).write(value) },
        }
    }
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
