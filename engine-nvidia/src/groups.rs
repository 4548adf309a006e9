//! Groups of clients, which have a part of each device together; and which part is due to whom.
//!
//! Called when groups are set, and when clients make contexts or change their shares. Must not know streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cuda_abi::CUresult;
use cuda_abi::facts::{DeviceFacts, MULTIPROCESSOR_COUNT};
use engine::{GroupShare, Share};

use crate::context::Context;
use crate::device::Device;
use crate::parts::Part;
use crate::sync::lock;

/// The parts of all groups, by device.
#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<HashMap<u32, Vec<Option<Arc<Part>>>>>);

impl Groups {
    /// Sets what a group has, or ends it. The caller fits its clients afterwards.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for what is reserved, CUDA_ERROR_INVALID_VALUE for a percentage that is
    /// none, and the driver's status; then nothing has changed.
    pub(crate) fn set(
        &self,
        devices: &[Arc<Device>],
        group: u32,
        share: Option<GroupShare>,
    ) -> Result<(), CUresult> {
        let Some(GroupShare {
            percentage,
            reserved,
        }) = share
        else {
            lock(&self.0).remove(&group);
            return Ok(());
        };
        check(percentage, reserved)?;
        let parts = devices
            .iter()
            .map(|device| take(device, percentage, None))
            .collect::<Result<_, _>>()?;
        lock(&self.0).insert(group, parts);
        Ok(())
    }

    /// The part that is due to a context: of its group's part, if there is one, the client's percentage, and
    /// no more than the context asked for.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for what is reserved, CUDA_ERROR_INVALID_VALUE for a percentage that is
    /// none, and the driver's status.
    pub(crate) fn fit(
        &self,
        group: Option<u32>,
        share: Share,
        context: &Context,
    ) -> Result<Option<Arc<Part>>, CUresult> {
        check(share.percentage, share.reserved)?;
        let device = context.device();
        let within = group.and_then(|group| {
            let groups = lock(&self.0);
            let parts = groups.get(&group)?;
            parts.get(device.ordinal() as usize)?.clone()
        });
        let percentage = share.percentage.min(context.percentage());
        take(device, percentage, within.as_deref())
    }
}

fn check(percentage: f32, reserved: bool) -> Result<(), CUresult> {
    if !(percentage > 0.0 && percentage <= 100.0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if reserved {
        // Whoever has no percentage uses all multiprocessors, and none would be kept free.
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    Ok(())
}

fn take(
    device: &Device,
    percentage: f32,
    within: Option<&Part>,
) -> Result<Option<Arc<Part>>, CUresult> {
    let all = match within {
        Some(part) => device.parts().multiprocessors(part),
        None => multiprocessors(device.facts()),
    };
    let granted = device.parts().granularity().granted(all, percentage);
    device.parts().take(device, granted, within)
}

fn multiprocessors(facts: &DeviceFacts) -> u32 {
    let count = facts.attribute(MULTIPROCESSOR_COUNT).unwrap_or(1);
    count.max(1).cast_unsigned()
}
