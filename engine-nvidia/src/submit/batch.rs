//! The launch batches of a stream: one of each length, taken from the [supply](BatchSupply) once there is use for it.
//!
//! Called by the stream, with its lock held. Must not know when launches are batched, nor how a batch is made.

use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUstream};

use crate::device::Device;
use crate::submit::batch_supply::BatchSupply;
use crate::submit::launch::Launch;
use crate::submit::launch_batch::{LENGTHS, LaunchBatch, Signal};
use crate::sync::{BoundedCount, Handle};

/// Launches that are batched at most.
pub(crate) const MAX_BATCH: usize = LENGTHS[0];

/// Launches of a stream before its first batch, and before it looks again where there was none: a program with few launches needs none.
const LAUNCHES_BEFORE_BATCHES: u32 = 64;

/// Launches of a stream that go by themselves after the driver has refused a batch.
const AFTER_REFUSAL: u32 = 1024;

/// Nodes of all batches of a client. Each takes about 6 KiB of the device's memory, which no quota has.
pub(crate) const MOST_NODES: usize = 8 * (2 * MAX_BATCH - 1 + LENGTHS.len());

/// One stream's batches.
#[derive(Debug)]
pub(crate) struct LaunchBatches {
    device: Arc<Device>,
    supply: Arc<BatchSupply>,
    /// For the nodes of all of the client's batches.
    room: Arc<BoundedCount>,
    /// The context in which the stream's kernels run. `None` if there is no way to make graphs in it.
    home: Option<Handle<CUcontext>>,
    /// As [`LENGTHS`].
    taken: [Option<LaunchBatch>; LENGTHS.len()],
    /// Launches that go by themselves before any goes in a batch.
    alone: u32,
}

impl LaunchBatches {
    /// Launch batches for a stream whose kernels run in the context `home`.
    pub(crate) fn new(
        (device, supply): (&Arc<Device>, &Arc<BatchSupply>),
        room: &Arc<BoundedCount>,
        home: Option<Handle<CUcontext>>,
    ) -> Self {
        if let Some(home) = home {
            supply.add_stream(home);
        }
        Self {
            device: Arc::clone(device),
            supply: Arc::clone(supply),
            room: Arc::clone(room),
            home,
            taken: [const { None }; LENGTHS.len()],
            alone: LAUNCHES_BEFORE_BATCHES,
        }
    }

    /// The context in which batches are made, if there can be any.
    pub(crate) fn home(&self) -> Option<Handle<CUcontext>> {
        self.home
    }

    /// Whether a launch is to be batched, and not to be issued by itself.
    pub(crate) fn should_batch(&mut self, launch: &Launch) -> bool {
        if self.alone > 0 {
            self.alone -= 1;
            return false;
        }
        // What was never launched may need more local memory than there is, for which the driver waits;
        // and what it refuses by itself is best refused by itself.
        self.home.is_some() && self.device.signal_kernel().is_some() && launch.is_known_and_plain()
    }

    /// Gives the driver as many of the first launches as there is a batch for, and then has the GPU give
    /// the signal, which is of what is before them, as it is behind them. The device's context is current, and no batch of the stream waits to be issued. Returns how
    /// many.
    ///
    /// # Errors
    /// The driver's status, or CUDA_ERROR_NOT_READY where there is no batch. It has taken nothing then, and each launch is to be
    /// issued by itself.
    pub(crate) fn issue(
        &mut self,
        stream: CUstream,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<usize, CUresult> {
        let issued = self.issue_some(stream, launches, signal);
        match issued {
            Ok(_) => {}
            Err(CUresult::ERROR_NOT_READY) => self.alone = LAUNCHES_BEFORE_BATCHES,
            Err(_) => self.alone = AFTER_REFUSAL,
        }
        issued
    }

    fn issue_some(
        &mut self,
        stream: CUstream,
        launches: &mut [Launch],
        signal: Signal,
    ) -> Result<usize, CUresult> {
        let none = CUresult::ERROR_NOT_SUPPORTED;
        let device = Arc::clone(&self.device);
        let signal_kernel = device.signal_kernel().ok_or(none)?;
        let home = self.home.ok_or(none)?;
        // The longest that is not too long, and that there is.
        let fitting = LENGTHS.iter().enumerate();
        for (place, &length) in fitting.filter(|&(_, &length)| length <= launches.len()) {
            self.take(home, place);
            if let Some(batch) = &mut self.taken[place] {
                let launches = &mut launches[..length];
                device.within(home, |driver| {
                    batch.change(driver, signal_kernel, launches, signal.after(length))?;
                    batch.launch(driver, stream)
                })?;
                return Ok(length);
            }
        }
        Err(CUresult::ERROR_NOT_READY)
    }

    /// Sees that there is a batch in a place that is of use, if one is to be had.
    fn take(&mut self, home: Handle<CUcontext>, place: usize) {
        if let Some(stale) = self.taken[place].take_if(|batch| batch.is_stale()) {
            self.end(home, place, &stale);
        }
        if self.taken[place].is_none() && self.room.try_add(LENGTHS[place] + 1) {
            self.taken[place] = self.supply.take(home, place);
            if self.taken[place].is_none() {
                self.room.subtract(LENGTHS[place] + 1);
            }
        }
    }

    fn end(&self, home: Handle<CUcontext>, place: usize, batch: &LaunchBatch) {
        self.room.subtract(LENGTHS[place] + 1);
        self.supply.end(home, place, batch);
    }
}

impl Drop for LaunchBatches {
    fn drop(&mut self) {
        let Some(home) = self.home else { return };
        for (place, batch) in std::mem::take(&mut self.taken).iter().enumerate() {
            if let Some(batch) = batch {
                self.end(home, place, batch);
            }
        }
        self.supply.remove_stream(home);
    }
}
