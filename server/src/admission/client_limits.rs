//! What a client may have of each device: its own limits, those of its groups, and what it is shown of devices for it.
//!
//! Called by admission before a client's session is made. Must not know memory, rings or sessions.

use std::sync::Arc;
use std::time::Duration;

use cuda_abi::CUresult;
use engine::{Engine, Share, Window};
use protocol::control_messages::{ClientFields, Membership, NO_PARTITION};
use protocol::device_facts::{
    ALL_MULTIPROCESSORS, COMPUTE_MODE, DeviceFacts, MULTIPROCESSOR_COUNT, MULTIPROCESSOR_STEP,
    MULTIPROCESSORS_PARTED,
};
use protocol::limits;

use crate::admission::Refusal;
use crate::admission::compute_mode::ComputeModePolicy;
use crate::admission::groups::{Group, Groups, limits_of};
use crate::session::Partition;
use crate::session::observer::Cancellation;

/// What a client gets of each device.
pub(super) struct Limits {
    pub(super) share: Share,
    pub(super) memory: Vec<u64>,
    /// The part of each device's multiprocessors that the client is shown, in percent.
    pub(super) visible_percentages: Vec<f32>,
    /// Of each device, whether it has been reserved for the client and those with it.
    pub(super) reserved: Vec<bool>,
    /// Whether that is a static partition, within which percentages count for nothing.
    pub(super) partitioned: bool,
    /// How long a kernel may run.
    pub(super) kernel_time: Option<Duration>,
    /// Whether its kernels are to reach nothing but its own memory.
    pub(super) fenced: bool,
}

impl Limits {
    /// Reads what the daemon passed on. A limit that does not parse or names no device refuses the
    /// client: it would otherwise run without.
    pub(super) fn read(fields: &ClientFields, devices: &[DeviceFacts]) -> Result<Self, Refusal> {
        let refuse = |error: &dyn std::fmt::Display| {
            Refusal::new(CUresult::ERROR_MPS_CONNECTION_FAILED, error)
        };
        let percentage = match &fields.percentage {
            Some(text) => limits::percentage(text).map_err(|error| refuse(&error))?,
            None => 100.0,
        };
        let priority = match &fields.priority {
            Some(text) => limits::priority(text).map_err(|error| refuse(&error))?,
            None => 0,
        };
        let kernel_time = fields.kernel_time.as_deref().map(limits::kernel_time);
        let fenced = match &fields.isolation {
            Some(text) => limits::is_fenced(text).map_err(|error| refuse(&error))?,
            None => false,
        };
        let text = fields.memory_limit.as_deref().unwrap_or("");
        Ok(Self {
            visible_percentages: vec![percentage; devices.len()],
            reserved: vec![false; devices.len()],
            partitioned: false,
            kernel_time: kernel_time.transpose().map_err(|error| refuse(&error))?,
            fenced,
            share: Share {
                percentage,
                priority,
                reserved: false,
            },
            memory: limits_of(devices, text).map_err(|error| refuse(&error))?,
        })
    }
}

/// The groups that bind a client, and how.
#[derive(Debug)]
pub(super) struct GroupMembership {
    /// By whose limits on memory it is bound.
    pub(super) group: Option<Arc<Group>>,
    /// Where it may have contexts.
    pub(super) partition: Partition,
    /// By which group's compute it is bound.
    pub(super) compute: Option<u32>,
}

impl GroupMembership {
    /// Finds the groups of a client, and narrows its limits by it. Waits until what the daemon told of it
    /// holds, or the client is to end.
    pub(super) fn find(
        groups: &Groups,
        member: Membership,
        limits: &mut Limits,
        cancellation: &Cancellation,
    ) -> Result<Self, Refusal> {
        let known = |number: Option<u32>| match number {
            None => Ok(None),
            Some(number) => {
                groups.wait_until_set(number, || cancellation.ending().is_some());
                let unknown = "the client's group is not known here";
                let code = CUresult::ERROR_MPS_CONNECTION_FAILED;
                let group = groups.find(number);
                let group = group.ok_or_else(|| Refusal::new(code, unknown))?;
                match group.refusal() {
                    Some((code, text)) => Err(Refusal::new(code, text)),
                    None => Ok(Some(group)),
                }
            }
        };
        let group = known(member.group)?;
        let nowhere = member.partition == Some(NO_PARTITION);
        let partition = known(member.partition.filter(|_| !nowhere))?;
        if nowhere {
            limits.visible_percentages.fill(0.0);
        }
        // In a partition nothing else divides its compute.
        let bound = partition.as_ref().or(group.as_ref());
        let compute = bound.and_then(|group| group.compute());
        if let Some(compute) = compute {
            let percentage = compute.share.percentage;
            for (device, told) in (0..).zip(&mut limits.visible_percentages) {
                match compute.share.device {
                    None => *told = told.min(percentage),
                    Some(on) if on == device => *told = percentage,
                    Some(_) => *told = 0.0,
                }
            }
            for (device, reserved) in limits.reserved.iter_mut().enumerate() {
                *reserved = compute.share.reserved && compute.share.is_of(device);
            }
            if partition.is_some() {
                limits.partitioned = true;
                limits.share.percentage = 100.0;
            } else if compute.each {
                limits.share.percentage = limits.share.percentage.min(percentage);
            }
        }
        Ok(Self {
            partition: match (&partition, compute) {
                _ if nowhere => Partition::Nowhere,
                (Some(_), Some(compute)) => Partition::On(compute.share.device),
                _ => Partition::Everywhere,
            },
            compute: match (bound, compute) {
                (Some(bound), Some(compute)) if !compute.each => Some(bound.number()),
                _ => None,
            },
            group,
        })
    }
}

/// What the client is shown of the devices.
pub(super) fn facts_for_client(
    engine: &dyn Engine,
    windows: &[Window],
    limits: &Limits,
    group: Option<&Group>,
    compute_modes: &dyn ComputeModePolicy,
) -> Vec<DeviceFacts> {
    let mut facts = engine.devices().to_vec();
    for (ordinal, (device, window)) in facts.iter_mut().zip(windows).enumerate() {
        device.window = window.base;
        device.window_bytes = window.bytes;
        let limit = group.map_or(u64::MAX, |group| group.limit(ordinal as u32));
        let limit = limit.min(limits.memory[ordinal]);
        device.total_memory = device.total_memory.min(limit);
        let mode = compute_modes.mode(ordinal as u32).cast_signed();
        if mode != 0
            && let Some(place) = device.attributes.get_mut(COMPUTE_MODE as usize)
        {
            *place = mode;
        }
        if let Some(count) = device.attributes.get_mut(MULTIPROCESSOR_COUNT as usize) {
            let all = (*count).max(0).cast_unsigned();
            let granularity = engine.granularity(ordinal);
            // None at all where it can have no context.
            let granted = match limits.visible_percentages[ordinal] {
                0.0 => 0,
                part => granularity.granted(all, part),
            };
            // What others have reserved by now it does not get.
            let granted = if limits.reserved[ordinal] {
                granted
            } else {
                granted.min(engine.unreserved(ordinal))
            };
            *count = granted.cast_signed();
            set_attribute(device, MULTIPROCESSOR_STEP, granularity.step);
            let parted = granularity.most.min(i32::MAX.cast_unsigned());
            set_attribute(device, MULTIPROCESSORS_PARTED, parted);
            if !limits.partitioned {
                set_attribute(device, ALL_MULTIPROCESSORS, all);
            }
        }
    }
    facts
}

/// Sets a fact that is behind CUDA's attributes.
fn set_attribute(device: &mut DeviceFacts, place: u32, value: u32) {
    let place = place as usize;
    let attributes = &mut device.attributes;
    attributes.resize(attributes.len().max(place + 1), 0);
    attributes[place] = value.cast_signed();
}

/// Of each device's multiprocessors, how many a client was shown, and how many there are.
pub(super) fn multiprocessor_counts(
    devices: &[DeviceFacts],
    told: &[DeviceFacts],
) -> Vec<(u32, u32)> {
    let count = |device: &DeviceFacts| {
        let count = device.attribute(MULTIPROCESSOR_COUNT).unwrap_or(0);
        count.max(0).cast_unsigned()
    };
    let each = told.iter().zip(devices);
    each.map(|(told, all)| (count(told), count(all))).collect()
}

#[cfg(test)]
mod tests;
