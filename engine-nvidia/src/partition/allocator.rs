//! What clients and groups of them have of the devices, and that their contexts are held to it.
//!
//! A change is thought out first ([`PartitionPlan`]). It holds once there are the parts that it asks for, which may
//! take until kernels have ended; then everybody's streams stay in their parts from their next operation on
//! that finds the stream empty. What kernels had begun before they finish where they are.
//!
//! Called when clients come and go, make contexts, and when somebody sets what they have. Must not know
//! streams.

use parking_lot::Mutex;
use std::sync::Arc;

use cuda_abi::CUresult;
use engine::{GroupShare, Share};

use crate::device::Device;
use crate::device::context::Context;
use crate::device::waker::Waker;
use crate::partition::planner::PartitionPlan;

type Contexts = PartitionPlan<PlannedContext>;

/// A context, as the layout knows it.
#[derive(Clone, Debug)]
struct PlannedContext(Arc<Context>);

impl PartialEq for PlannedContext {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What everybody has.
#[derive(Debug)]
pub(crate) struct SmAllocator {
    devices: Vec<Arc<Device>>,
    /// Has the streams looked at that a change waits for.
    waker: Arc<Waker>,
    now: Mutex<Contexts>,
}

impl SmAllocator {
    pub(crate) fn new(devices: Vec<Arc<Device>>, waker: Arc<Waker>) -> Arc<Self> {
        let splits = devices.iter().map(|device| device.parts().split());
        Arc::new(Self {
            now: Mutex::new(PartitionPlan::new(splits.collect())),
            devices,
            waker,
        })
    }

    /// Adds a client.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a percentage that is none, CUDA_ERROR_NOT_SUPPORTED for something
    /// reserved if a device cannot be split, CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION if more would be reserved
    /// than there is, and what making parts gives; then nothing has changed.
    pub(crate) fn add_client(
        self: &Arc<Self>,
        share: Share,
        group: Option<u32>,
    ) -> Result<SmClaim, CUresult> {
        let id = self.change(|layout| layout.add_client(share, group))?;
        Ok(SmClaim {
            shares: Arc::clone(self),
            id,
        })
    }

    /// Sets what a group has, or ends it.
    ///
    /// # Errors
    /// As [`SmAllocator::add_client`]. Of a group that is ended: its clients keep the parts that they had.
    pub(crate) fn set_group(&self, group: u32, share: Option<GroupShare>) -> Result<(), CUresult> {
        if let Some(share) = share {
            return self.change(|layout| layout.set_group(group, share));
        }
        self.now.lock().end_group(group);
        self.change(|_| Ok(()))
    }

    /// The multiprocessors of a device that nobody has reserved.
    pub(crate) fn unreserved(&self, device: usize) -> u32 {
        self.now.lock().unreserved(device)
    }

    /// Makes a change, and whatever follows from it.
    fn change<T>(
        &self,
        change: impl Fn(&mut Contexts) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        loop {
            let mut now = self.now.lock();
            let mut next = now.clone();
            let result = change(&mut next)?;
            next.solve()?;
            let mut parts = Vec::new();
            let mut missing = Vec::new();
            for seat in next.seats() {
                match self.devices[seat.device].parts().find(seat.place) {
                    Some(part) => parts.push(part),
                    None => missing.push((seat.device, seat.place)),
                }
            }
            if missing.is_empty() {
                for (seat, part) in next.seats().zip(parts) {
                    seat.context.0.set_partition(part);
                }
                *now = next;
                drop(now);
                self.waker.wake();
                return Ok(result);
            }
            // Making them may take long, and others come and go meanwhile. What is made stays.
            drop(now);
            for (device, place) in missing {
                let device = &self.devices[device];
                device.make_green_context(place)?;
            }
        }
    }
}

/// A client's part in it all; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SmClaim {
    shares: Arc<SmAllocator>,
    id: u64,
}

impl SmClaim {
    /// Changes the client's share.
    ///
    /// # Errors
    /// As [`SmAllocator::add_client`].
    pub(crate) fn set(&self, share: Share) -> Result<(), CUresult> {
        self.shares
            .change(|layout| layout.set_share(self.id, share))
    }

    /// Gives a context its part of its device.
    ///
    /// # Errors
    /// What making a part gives; then it was not added.
    pub(crate) fn add(&self, context: &Arc<Context>) -> Result<(), CUresult> {
        self.shares.change(|layout| {
            let device = context.device().number();
            let held = PlannedContext(Arc::clone(context));
            layout.add_context(self.id, held, device, context.percentage());
            Ok(())
        })
    }

    /// A context is no more.
    pub(crate) fn remove(&self, context: &Arc<Context>) {
        self.shares
            .now
            .lock()
            .remove_context(self.id, &PlannedContext(Arc::clone(context)));
    }
}

impl Drop for SmClaim {
    fn drop(&mut self) {
        self.shares.now.lock().remove_client(self.id);
        // What it had reserved is others' now. If no parts can be made for them, they keep those that they
        // have, until the next change.
        let _ = self.shares.change(|_| Ok(()));
    }
}
