//! Copies, fills and writes: checked against the client's memory as a whole, and planned as steps that
//! each are one call of the driver.
//!
//! What lies on the host at both ends is moved by a host function, in the stream's order: the driver's
//! own copies between host addresses wait for the stream. The driver calls all clients' functions one
//! after another, so each moves a piece (`host`) at most, and others' come in between.

mod host;

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::operations::{self, Space};
use cuda_abi::types::*;
use engine::arena::EXTENT;

use self::host::{HostJob, HostSource};
use crate::array::ArrayStep;
use crate::driver::Driver;
use crate::fetch::Fetch;
use crate::memory::{Memory, Place};
use crate::rhythm::Kind;
use crate::work::Work;

/// Steps of one copy; a copy of more, which only odd shapes over odd memory need, is refused.
const MOST_STEPS: usize = 1 << 16;

/// Up to this size the driver takes pageable data along with the command and does not wait.
const WRITE_PIECE: usize = 32 << 10;

/// The greatest pitch that the driver takes.
const MOST_PITCH: u64 = i32::MAX as u64;

/// One side: rows of bytes, `pitch` apart, in planes `slice` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    base: u64,
    pitch: u64,
    slice: u64,
}

impl Rows {
    fn at(&self, plane: u64, row: u64) -> u64 {
        self.base + plane * self.slice + row * self.pitch
    }
}

/// `depth` planes of `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    width: u64,
    height: u64,
    depth: u64,
}

/// What one call of the driver does.
#[derive(Debug)]
pub(crate) enum Step {
    /// Copies a run of bytes.
    Run(Run),
    /// Copies rows.
    Rows(Box<RowsCopy>),
    /// Fills rows of elements.
    Fill(operations::Fill),
    /// Writes bytes that are here to device memory.
    Write { to: u64, data: Vec<u8> },
    /// Copies from or to an array.
    Array(Box<ArrayStep>),
    /// Lets the host do it.
    Host(HostJob),
}

/// A copy of one run of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

/// A copy of several rows.
#[derive(Debug)]
pub(crate) struct RowsCopy {
    to: Rows,
    from: Rows,
    extent: Extent,
}

/// Plans a copy by a stream on a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for memory that the client does not have and for impossible shapes;
/// otherwise what pinning gives.
pub(crate) fn plan_copy(
    memory: &mut Memory,
    on: usize,
    request: &operations::Copy,
) -> Result<Work, CUresult> {
    let mut extent = Extent {
        width: request.width,
        height: request.height,
        depth: request.depth,
    };
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(Work::steps(Vec::new()));
    }
    let (mut to, to_place, to_bytes) = side(
        memory,
        on,
        (request.to_space, request.to),
        (request.to_pitch, request.to_slice),
        extent,
    )?;
    let (mut from, from_place, from_bytes) = side(
        memory,
        on,
        (request.from_space, request.from),
        (request.from_pitch, request.from_slice),
        extent,
    )?;
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
    let on_host = |place| memory.host_of(place).is_some();
    if on_host(to_place) && on_host(from_place) {
        let owners = [to_place, from_place]
            .iter()
            .filter_map(|&place| memory.host_of(place))
            .map(|window| Arc::clone(window.owner()))
            .collect();
        let job = HostJob {
            to,
            source: HostSource::Memory(from),
            extent,
            owners,
        };
        return job.in_pieces().map(Work::steps);
    }
    // Of a host side, how far one registration reaches.
    let pinned = [
        (to_place, to.base, to_bytes),
        (from_place, from.base, from_bytes),
    ]
    .iter()
    .all(|&(place, base, bytes)| {
        memory
            .host_of(place)
            .is_none_or(|window| window.run(base) >= bytes)
    });
    let rows = extent.height * extent.depth > 1;
    if pinned && !rows {
        let run = Run {
            to: to.base,
            from: from.base,
            bytes: extent.width,
        };
        // Nobody but the client's library has staging memory, and that waits for what comes there.
        let awaited = to_place == Place::Staging;
        let fetch = memory
            .host_of(to_place)
            .and_then(|window| Fetch::of(run, awaited, window.owner()));
        return Ok(fetch.map_or_else(|| Work::steps(vec![Step::Run(run)]), Work::Fetch));
    }
    let steps = if pinned && to.pitch <= MOST_PITCH && from.pitch <= MOST_PITCH {
        by_planes(to, from, extent)
    } else {
        by_runs(memory, (to, to_place), (from, from_place), extent)
    };
    steps.map(Work::steps)
}

/// As boxes if the driver can express the planes' distances, else plane by plane.
fn by_planes(to: Rows, from: Rows, extent: Extent) -> Result<Vec<Step>, CUresult> {
    let even = to.slice.is_multiple_of(to.pitch) && from.slice.is_multiple_of(from.pitch);
    if extent.depth == 1 || even {
        return Ok(vec![Step::Rows(Box::new(RowsCopy { to, from, extent }))]);
    }
    if extent.depth > MOST_STEPS as u64 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let plane = |side: Rows, index| Rows {
        base: side.at(index, 0),
        ..side
    };
    Ok((0..extent.depth)
        .map(|index| {
            Step::Rows(Box::new(RowsCopy {
                to: plane(to, index),
                from: plane(from, index),
                extent: Extent { depth: 1, ..extent },
            }))
        })
        .collect())
}

/// As groups of rows that each stay within one registration; a row that does not, as runs that do.
fn by_runs(
    memory: &Memory,
    (to, to_place): (Rows, Place),
    (from, from_place): (Rows, Place),
    extent: Extent,
) -> Result<Vec<Step>, CUresult> {
    let reach = |place, address| {
        memory
            .host_of(place)
            .map_or(u64::MAX, |window| window.run(address))
    };
    // Whole rows from one on that lie within the registration.
    let rows_within =
        |place, side: Rows, address| match reach(place, address).checked_sub(extent.width) {
            Some(beyond) if side.pitch <= MOST_PITCH => beyond / side.pitch + 1,
            Some(_) => 1,
            None => 0,
        };
    let mut steps = Vec::new();
    for plane in 0..extent.depth {
        let mut row = 0;
        while row < extent.height {
            if steps.len() >= MOST_STEPS {
                return Err(CUresult::ERROR_INVALID_VALUE);
            }
            let (mut to_at, mut from_at) = (to.at(plane, row), from.at(plane, row));
            let rows = (extent.height - row)
                .min(rows_within(to_place, to, to_at))
                .min(rows_within(from_place, from, from_at));
            if rows > 1 {
                let part = |side: Rows, base| Rows { base, ..side };
                steps.push(Step::Rows(Box::new(RowsCopy {
                    to: part(to, to_at),
                    from: part(from, from_at),
                    extent: Extent {
                        height: rows,
                        depth: 1,
                        ..extent
                    },
                })));
                row += rows;
                continue;
            }
            let mut left = extent.width;
            while left > 0 {
                let bytes = left
                    .min(reach(to_place, to_at))
                    .min(reach(from_place, from_at));
                if bytes == 0 || steps.len() >= MOST_STEPS {
                    return Err(CUresult::ERROR_INVALID_VALUE);
                }
                steps.push(Step::Run(Run {
                    to: to_at,
                    from: from_at,
                    bytes,
                }));
                to_at += bytes;
                from_at += bytes;
                left -= bytes;
            }
            row += 1;
        }
    }
    Ok(steps)
}

/// Checks one side: its rows, what is there, and how many bytes lie between its first and last byte.
fn side(
    memory: &mut Memory,
    on: usize,
    (space, at): (u32, u64),
    (pitch, slice): (u64, u64),
    extent: Extent,
) -> Result<(Rows, Place, u64), CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    // One row needs no pitch and one plane no slice; what was given for them has no meaning.
    let pitch = if extent.height == 1 {
        extent.width
    } else {
        pitch
    };
    let plane = pitch
        .checked_mul(extent.height - 1)
        .and_then(|bytes| bytes.checked_add(extent.width))
        .ok_or(invalid)?;
    let full = pitch.checked_mul(extent.height).ok_or(invalid)?;
    let slice = if extent.depth == 1 { full } else { slice };
    if pitch < extent.width || slice < plane {
        return Err(invalid);
    }
    let bytes = slice
        .checked_mul(extent.depth - 1)
        .and_then(|bytes| bytes.checked_add(plane))
        .ok_or(invalid)?;
    let (base, place) = memory.find(on, space, at, bytes)?;
    Ok((Rows { base, pitch, slice }, place, bytes))
}

/// Plans a fill by a stream on a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE.
pub(crate) fn plan_fill(
    memory: &mut Memory,
    on: usize,
    request: &operations::Fill,
) -> Result<Vec<Step>, CUresult> {
    let invalid = CUresult::ERROR_INVALID_VALUE;
    let element = u64::from(request.element);
    let aligned = |value: u64| value.is_multiple_of(element);
    if !matches!(element, 1 | 2 | 4)
        || !aligned(request.to)
        || (request.height > 1 && !aligned(request.pitch))
    {
        return Err(invalid);
    }
    let extent = Extent {
        width: request.width.checked_mul(element).ok_or(invalid)?,
        height: request.height,
        depth: 1,
    };
    if extent.width == 0 || extent.height == 0 {
        return Ok(Vec::new());
    }
    let pitches = (request.pitch, 0);
    let unified = (Space::Unified as u32, request.to);
    let (to, place, _) = side(memory, on, unified, pitches, extent)?;
    let Some(window) = memory.host_of(place) else {
        return Ok(vec![Step::Fill(operations::Fill {
            pitch: to.pitch,
            ..*request
        })]);
    };
    let job = HostJob {
        to,
        source: HostSource::Pattern {
            value: request.value,
            element: request.element,
        },
        extent,
        owners: [Arc::clone(window.owner())].into(),
    };
    job.in_pieces()
}

/// Plans the writing of bytes that travelled with the request, by a stream on a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE.
pub(crate) fn plan_write(
    memory: &mut Memory,
    on: usize,
    to: u64,
    data: &[u8],
) -> Result<Vec<Step>, CUresult> {
    let width = data.len() as u64;
    if width == 0 {
        return Ok(Vec::new());
    }
    let (base, place) = memory.find(on, Space::Unified as u32, to, width)?;
    let data = data.to_vec();
    Ok(vec![match memory.host_of(place) {
        None => Step::Write { to: base, data },
        Some(window) => Step::Host(HostJob {
            to: Rows {
                base,
                pitch: width,
                slice: width,
            },
            source: HostSource::Bytes(data),
            extent: Extent {
                width,
                height: 1,
                depth: 1,
            },
            owners: [Arc::clone(window.owner())].into(),
        }),
    }])
}

impl Step {
    /// Adds what its length depends on to that of those before it: how much, and from where to where.
    pub(crate) fn kind(&self, before: Kind) -> Kind {
        let extent = |address: u64| address / EXTENT;
        match self {
            Self::Run(run) => before
                .and(extent(run.to) << 32 | extent(run.from))
                .and(run.bytes),
            Self::Rows(copy) => {
                let Extent {
                    width,
                    height,
                    depth,
                } = copy.extent;
                let sides = extent(copy.to.base) << 32 | extent(copy.from.base);
                before.and(sides).and(width).and(height * depth)
            }
            Self::Fill(fill) => before.and(fill.width).and(fill.height),
            Self::Write { data, .. } => before.and(data.len() as u64),
            Self::Array(_) | Self::Host(_) => before.and(1),
        }
    }

    /// Bytes that it keeps while it waits.
    pub(crate) fn kept(&self) -> usize {
        match self {
            Self::Write { data, .. } => data.len(),
            Self::Host(job) => job.kept(),
            _ => 0,
        }
    }

    /// Gives it to the driver. The device's context is current.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(self, driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
        match self {
            // SAFETY: both sides are the client's memory, as was found when the step was planned; the
            // server takes no memory back before the work that was posted earlier has finished.
            Self::Run(run) => unsafe {
                driver.cuMemcpyAsync(run.to, run.from, run.bytes as usize, stream)
            },
            Self::Rows(copy) => {
                let parameters = copy.parameters();
                // SAFETY: as above; the driver copies the parameters.
                unsafe { driver.cuMemcpy3DAsync_v2(&raw const parameters, stream) }
            }
            Self::Array(step) => step.issue(driver, stream),
            Self::Fill(fill) => issue_fill(driver, &fill, stream),
            Self::Write { to, data } => {
                for (index, piece) in data.chunks(WRITE_PIECE).enumerate() {
                    let to = to + (index * WRITE_PIECE) as u64;
                    // SAFETY: the destination as above. The driver has copied pageable data when it
                    // returns.
                    unsafe {
                        driver.cuMemcpyHtoDAsync_v2(
                            to,
                            piece.as_ptr().cast(),
                            piece.len(),
                            stream,
                        )?;
                    }
                }
                Ok(())
            }
            Self::Host(job) => job.issue(driver, stream),
        }
    }
}

fn issue_fill(driver: &Driver, fill: &operations::Fill, stream: CUstream) -> Result<(), CUresult> {
    let operations::Fill {
        to, pitch, value, ..
    } = *fill;
    let (pitch, width, height) = (pitch as usize, fill.width as usize, fill.height as usize);
    // SAFETY: the range is the client's memory, as was found when the step was planned.
    unsafe {
        match (fill.element, height) {
            (1, 1) => driver.cuMemsetD8Async(to, value as u8, width, stream),
            (2, 1) => driver.cuMemsetD16Async(to, value as u16, width, stream),
            (_, 1) => driver.cuMemsetD32Async(to, value, width, stream),
            (1, _) => driver.cuMemsetD2D8Async(to, pitch, value as u8, width, height, stream),
            (2, _) => driver.cuMemsetD2D16Async(to, pitch, value as u16, width, height, stream),
            (..) => driver.cuMemsetD2D32Async(to, pitch, value, width, height, stream),
        }
    }
}

impl RowsCopy {
    fn parameters(&self) -> CUDA_MEMCPY3D {
        let Self { to, from, extent } = self;
        // Rows from plane to plane; `by_planes` saw to it that they are whole.
        let rows = |side: &Rows| {
            if extent.depth == 1 {
                extent.height
            } else {
                side.slice / side.pitch
            }
        };
        CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::UNIFIED,
            srcHost: std::ptr::null(),
            srcDevice: from.base,
            srcArray: CUarray::NULL,
            reserved0: std::ptr::null_mut(),
            srcPitch: from.pitch as usize,
            srcHeight: rows(from) as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::UNIFIED,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.base,
            dstArray: CUarray::NULL,
            reserved1: std::ptr::null_mut(),
            dstPitch: to.pitch as usize,
            dstHeight: rows(to) as usize,
            WidthInBytes: extent.width as usize,
            Height: extent.height as usize,
            Depth: extent.depth as usize,
        }
    }
}
