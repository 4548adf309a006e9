//! The steps of a copy, a fill or a write: each one call of the driver.
//!
//! Made by who plans copies, kept by a stream's commands until they are issued. Must not know how they are planned.

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Window;
use engine::arena::EXTENT;
use engine::plan::copy::{Extent, Rows};
use protocol::operations;

use crate::device::work_signature::WorkSignature;
use crate::driver::Driver;
use crate::memory::address_space::ClientAddressSpace;
use crate::memory::twin_constants::TwinCopy;
use crate::submit::array::ArrayStep;
use crate::submit::copy::host::HostJob;

/// Steps of one copy; a copy of more, which only odd shapes over odd memory need, is refused.
pub(crate) const MOST_STEPS: usize = 1 << 16;

/// Up to this size the driver takes pageable data along with the command and does not wait.
const WRITE_PIECE: usize = 32 << 10;

/// What one call of the driver does.
#[derive(Debug)]
pub(crate) enum Step {
    /// Copies bytes that lie in a row on both sides.
    Linear(LinearCopy),
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

/// A copy of bytes that lie in a row on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearCopy {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
}

/// A copy of several rows.
#[derive(Debug)]
pub(crate) struct RowsCopy {
    pub(crate) to: Rows,
    pub(crate) from: Rows,
    pub(crate) extent: Extent,
}

/// What is to be done when a range was written in which there are constants.
pub(crate) fn constants(
    memory: &ClientAddressSpace,
    written: Window,
) -> impl Iterator<Item = Step> {
    let copies = memory.written_constants(written);
    copies.map(|TwinCopy { to, from, bytes }| Step::Linear(LinearCopy { to, from, bytes }))
}

impl LinearCopy {
    /// Keeps so many bytes at most, and gives the rest.
    pub(crate) fn split(&mut self, most: u64) -> Option<Self> {
        let rest = self.bytes.checked_sub(most).filter(|&rest| rest > 0)?;
        self.bytes = most;
        Some(Self {
            to: self.to + most,
            from: self.from + most,
            bytes: rest,
        })
    }
}

impl Step {
    /// Adds what its length depends on to that of those before it: how much, and from where to where.
    pub(crate) fn signature(&self, before: WorkSignature) -> WorkSignature {
        let extent = |address: u64| address / EXTENT;
        match self {
            Self::Linear(copy) => before
                .and(extent(copy.to) << 32 | extent(copy.from))
                .and(copy.bytes),
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
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Write { data, .. } => data.len(),
            Self::Host(job) => job.held_bytes(),
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
            Self::Linear(copy) => unsafe {
                driver.cuMemcpyAsync(copy.to, copy.from, copy.bytes as usize, stream)
            },
            Self::Rows(copy) => {
                let parameters = copy.parameters();
                // SAFETY: both sides were found to be the client's memory when the step was planned, and stay
                // until it is done; the parameters are a local, which the driver copies.
                unsafe { driver.cuMemcpy3DAsync_v2(&raw const parameters, stream) }
            }
            Self::Array(step) => step.issue(driver, stream),
            Self::Fill(fill) => issue_fill(driver, &fill, stream),
            Self::Write { to, data } => {
                for (index, piece) in data.chunks(WRITE_PIECE).enumerate() {
                    let to = to + (index * WRITE_PIECE) as u64;
                    // SAFETY: the destination was found to be the client's memory when the step was planned, and
                    // stays until it is done. The driver has copied pageable data when it
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
