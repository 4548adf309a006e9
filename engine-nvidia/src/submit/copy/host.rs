//! What moves or fills host memory in a stream's order: functions that the driver calls.
//!
//! Must not know what the memory is; whoever plans copies has found it to be the client's.

use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::*;
use engine::Owner;
use engine::plan::copy::{Extent, Rows};

use crate::driver::Driver;
use crate::submit::copy::step::{MOST_STEPS, Step};

/// What one host function moves at most, more or less; and what a row costs at least, in bytes.
const HOST_PIECE: u64 = 2 << 20;
const LEAST_ROW: u64 = 64;

/// Moves or fills host memory.
pub(crate) struct HostJob {
    pub(crate) to: Rows,
    pub(crate) source: HostSource,
    pub(crate) extent: Extent,
    /// Keep both sides mapped.
    pub(crate) owners: Arc<[Arc<dyn Owner>]>,
}

/// What is moved there.
#[derive(Clone, Debug)]
pub(crate) enum HostSource {
    Memory(Rows),
    Pattern { value: u32, element: u32 },
    Bytes(Vec<u8>),
}

impl fmt::Debug for HostJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostJob")
            .field("to", &self.to)
            .field("extent", &self.extent)
            .finish_non_exhaustive()
    }
}

/// What the driver calls in a stream's order.
unsafe extern "C" fn run_host_job(job: *mut c_void) {
    // SAFETY: the pointer is the one that `HostJob::issue` made, and comes back once.
    let job = unsafe { Box::from_raw(job.cast::<HostJob>()) };
    // There is nothing in it that panics; should there ever be, it must not unwind into the driver.
    let _ = catch_unwind(AssertUnwindSafe(|| job.run()));
}

impl HostJob {
    /// The same as several jobs, none of which takes long.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for more than a copy may have.
    pub(crate) fn in_pieces(self) -> Result<Vec<Step>, CUresult> {
        let Extent {
            width,
            height,
            depth,
        } = self.extent;
        let row = width.max(LEAST_ROW);
        let plane = row.saturating_mul(height);
        // As much of each as fits: whole planes, else whole rows, else a part of one.
        let each = Extent {
            width: width.min(HOST_PIECE),
            height: (HOST_PIECE / row).clamp(1, height),
            depth: (HOST_PIECE / plane).clamp(1, depth),
        };
        let pieces = width.div_ceil(each.width) as u128
            * u128::from(height.div_ceil(each.height))
            * u128::from(depth.div_ceil(each.depth));
        if pieces > MOST_STEPS as u128 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let starts = |all: u64, each: u64| (0..all).step_by(each as usize);
        let mut steps = Vec::with_capacity(pieces as usize);
        for z in starts(depth, each.depth) {
            for y in starts(height, each.height) {
                for x in starts(width, each.width) {
                    let from_here = |side: Rows| Rows {
                        base: side.at(z, y) + x,
                        ..side
                    };
                    steps.push(Step::Host(Self {
                        to: from_here(self.to),
                        source: match &self.source {
                            HostSource::Memory(from) => HostSource::Memory(from_here(*from)),
                            other => other.clone(),
                        },
                        extent: Extent {
                            width: each.width.min(width - x),
                            height: each.height.min(height - y),
                            depth: each.depth.min(depth - z),
                        },
                        owners: Arc::clone(&self.owners),
                    }));
                }
            }
        }
        Ok(steps)
    }

    /// Bytes that it keeps while it waits.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.source {
            HostSource::Bytes(data) => data.len(),
            _ => 0,
        }
    }

    /// Gives it to the driver. The device's context is current.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn issue(self, driver: &Driver, stream: CUstream) -> Result<(), CUresult> {
        let job = Box::into_raw(Box::new(self));
        // SAFETY: `run_host_job` takes exactly this pointer, once.
        let posted = unsafe { driver.cuLaunchHostFunc(stream, Some(run_host_job), job.cast()) };
        if posted.is_err() {
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(job) });
        }
        posted
    }

    fn run(&self) {
        for plane in 0..self.extent.depth {
            for row in 0..self.extent.height {
                let to = self.to.at(plane, row);
                let bytes = self.extent.width as usize;
                match &self.source {
                    HostSource::Memory(from) => {
                        let from = from.at(plane, row);
                        // SAFETY: both sides were found to be the client's memory and their owners
                        // keep them mapped; they may overlap.
                        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                    }
                    HostSource::Bytes(data) => {
                        // SAFETY: the destination was found to be the client's memory, and its owner keeps it
                        // mapped; `data` is the server's own, and as long as the only row.
                        unsafe {
                            std::ptr::copy_nonoverlapping(data.as_ptr(), to as *mut u8, bytes);
                        };
                    }
                    HostSource::Pattern { value, element } => fill(to, bytes, *value, *element),
                }
            }
        }
    }
}

/// Fills mapped host memory with elements; `to` and `bytes` are multiples of the element's size.
fn fill(to: u64, bytes: usize, value: u32, element: u32) {
    let element = element as usize;
    for offset in (0..bytes).step_by(element) {
        let at = to as usize + offset;
        // SAFETY: whoever planned the job found the range to be mapped memory of the client, and its
        // owners keep it so; the address is aligned to the element.
        unsafe {
            match element {
                1 => (at as *mut u8).write_volatile(value as u8),
                2 => (at as *mut u16).write_volatile(value as u16),
                _ => (at as *mut u32).write_volatile(value),
            }
        }
    }
}
