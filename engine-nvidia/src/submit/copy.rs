//! Copies, fills and writes: checked against the client's memory as a whole, and planned as steps that
//! each are one call of the driver.
//!
//! What lies on the host at both ends is moved by a host function, in the stream's order: the driver's
//! own copies between host addresses wait for the stream. The driver calls all clients' functions one
//! after another, so each moves a piece (`host`) at most, and others' come in between.
//!
//! Called by the client. Must not know streams or when the steps run.

pub(crate) mod host;
pub(crate) mod step;

use std::sync::Arc;

use cuda_abi::CUresult;
use engine::Window;
use engine::plan::copy::{Extent, Rows, coalesce};
use protocol::operations::{self, Space};

use crate::memory::address_space::{ClientAddressSpace, MemoryKind};
use crate::submit::command::CommandKind;
use crate::submit::copy::host::{HostJob, HostSource};
use crate::submit::copy::step::{LinearCopy, MOST_STEPS, RowsCopy, Step, constants};
use crate::submit::readback::Readback;

/// The greatest pitch that the driver takes.
const MOST_PITCH: u64 = i32::MAX as u64;

/// Plans a copy by a stream on a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for memory that the client does not have and for impossible shapes;
/// otherwise what pinning gives.
pub(crate) fn plan_copy(
    memory: &mut ClientAddressSpace,
    on: usize,
    request: &operations::Copy,
) -> Result<CommandKind, CUresult> {
    let mut extent = Extent::new(request.width, request.height, request.depth);
    if extent.is_empty() {
        return Ok(CommandKind::steps(Vec::new()));
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
    let written = Window {
        base: to.base,
        bytes: to_bytes,
    };
    coalesce(&mut to, &mut from, &mut extent);
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
        return job.in_pieces().map(CommandKind::steps);
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
            .is_none_or(|window| window.registered_from(base) >= bytes)
    });
    let rows = extent.height * extent.depth > 1;
    if pinned && !rows {
        let copy = LinearCopy {
            to: to.base,
            from: from.base,
            bytes: extent.width,
        };
        // Nobody but the client's library has staging memory, and that waits for what comes there.
        let awaited = to_place == MemoryKind::Staging;
        let readback = memory
            .host_of(to_place)
            .and_then(|window| Readback::of(copy, awaited, window.owner()));
        return Ok(readback.map_or_else(
            || {
                let mut steps = vec![Step::Linear(copy)];
                steps.extend(constants(memory, written));
                CommandKind::steps(steps)
            },
            CommandKind::Readback,
        ));
    }
    let steps = if pinned && to.pitch <= MOST_PITCH && from.pitch <= MOST_PITCH {
        by_planes(to, from, extent)
    } else {
        within_registrations(memory, (to, to_place), (from, from_place), extent)
    };
    steps.map(|mut steps| {
        steps.extend(constants(memory, written));
        CommandKind::steps(steps)
    })
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

/// As groups of rows that each stay within one registration; a row that does not, as pieces that do.
fn within_registrations(
    memory: &ClientAddressSpace,
    (to, to_place): (Rows, MemoryKind),
    (from, from_place): (Rows, MemoryKind),
    extent: Extent,
) -> Result<Vec<Step>, CUresult> {
    let reach = |place, address| {
        memory
            .host_of(place)
            .map_or(u64::MAX, |window| window.registered_from(address))
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
                steps.push(Step::Linear(LinearCopy {
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
    memory: &mut ClientAddressSpace,
    on: usize,
    (space, at): (u32, u64),
    pitches: (u64, u64),
    extent: Extent,
) -> Result<(Rows, MemoryKind, u64), CUresult> {
    let (rows, bytes) = Rows::over(extent, at, pitches)?;
    let (base, place) = memory.find(on, space, at, bytes)?;
    Ok((Rows { base, ..rows }, place, bytes))
}

/// Plans a fill by a stream on a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE.
pub(crate) fn plan_fill(
    memory: &mut ClientAddressSpace,
    on: usize,
    request: &operations::Fill,
) -> Result<Vec<Step>, CUresult> {
    let extent = Extent::of_fill(request)?;
    if extent.is_empty() {
        return Ok(Vec::new());
    }
    let pitches = (request.pitch, 0);
    let unified = (Space::Unified as u32, request.to);
    let (to, place, bytes) = side(memory, on, unified, pitches, extent)?;
    let Some(window) = memory.host_of(place) else {
        let mut steps = vec![Step::Fill(operations::Fill {
            pitch: to.pitch,
            ..*request
        })];
        let base = to.base;
        steps.extend(constants(memory, Window { base, bytes }));
        return Ok(steps);
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
    memory: &mut ClientAddressSpace,
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
    let step = match memory.host_of(place) {
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
    };
    let bytes = width;
    let constants = constants(memory, Window { base, bytes });
    Ok([step].into_iter().chain(constants).collect())
}
