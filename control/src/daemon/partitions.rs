//! Static partitions as the daemon keeps them: groups of another kind, made of chunks of a device's multiprocessors.
//!
//! Called by `commands::partitions`, and where clients and servers come. Must not know how an engine keeps one
//! apart.

use std::collections::BTreeSet;

use daemon_interface::group_usage::GroupUsage;
use protocol::control_messages::{ClientFields, NO_PARTITION};

use super::Daemon;
use crate::groups::partition::{Partition, chunks, free_chunks};
use crate::groups::saved::GroupLimits;
use crate::groups::{Group, GroupKind, usage_name};
use crate::log::About;
use crate::servers::limits::device_named;

impl Daemon {
    /// The partitions of a device, with their groups' numbers.
    pub(crate) fn partitions_of(&self, device: u32) -> Vec<(u32, &Partition)> {
        let groups = self.groups.by_number.iter();
        groups
            .filter_map(|(&number, group)| match &group.kind {
                GroupKind::Partition(partition) => Some((number, partition)),
                GroupKind::Named { .. } => None,
            })
            .filter(|(_, partition)| partition.device == device)
            .collect()
    }

    /// Makes a partition, which holds when the servers that run have agreed to it.
    ///
    /// # Errors
    /// When the device has not as many chunks left.
    pub(crate) fn add_partition(&mut self, device: u32, count: u32) -> Result<u32, ()> {
        let listed = self.devices.get(device as usize).ok_or(())?;
        let here: Vec<&Partition> = self
            .partitions_of(device)
            .into_iter()
            .map(|(_, one)| one)
            .collect();
        if count == 0 || count > free_chunks(listed, &here) {
            return Err(());
        }
        let (_, chunk) = chunks(listed);
        let multiprocessors = count * chunk;
        let percentage = multiprocessors as f32 * 100.0 / listed.multiprocessors as f32;
        let (percentage, uuid) = (percentage.min(100.0), listed.uuid.clone());
        self.last_partition += 1;
        let id = self.last_partition;
        let name = format!("{uuid}/{id}");
        let usage = GroupUsage::create(&usage_name(&format!("partition-{id}"))).map_err(|_| ())?;
        let number = self.groups.number();
        self.groups.by_number.insert(
            number,
            Group {
                name,
                kind: GroupKind::Partition(Partition {
                    device,
                    id,
                    chunks: count,
                    multiprocessors,
                }),
                limits: GroupLimits {
                    percentage: Some(percentage),
                    reserved: true,
                    ..GroupLimits::default()
                },
                usage,
                announced_to: BTreeSet::new(),
            },
        );
        Ok(number)
    }

    /// The partition that a text names, `<UUID or the beginning of one>/<id>`.
    pub(crate) fn partition_named(&self, text: &str) -> Option<u32> {
        let (device, id) = text.split_once('/')?;
        let id: u32 = id.parse().ok()?;
        let device = device_named(&self.devices, device)?;
        let partitions = self.partitions_of(device).into_iter();
        partitions
            .filter(|(_, partition)| partition.id == id)
            .map(|(number, _)| number)
            .next()
    }

    /// The partition that a client is to have its contexts in, by its own word. Where devices are
    /// partitioned and it names none, it can have no context.
    pub(crate) fn partition_of(
        &self,
        pid: i32,
        about: &About,
        wishes: &ClientFields,
    ) -> Option<u32> {
        let named = wishes.partition.as_deref();
        if !self.static_partitions {
            if let Some(text) = named {
                let text = format!(
                    "Client {pid} asks for partition {text}; devices are partitioned only by a daemon \
                     with -S"
                );
                self.log_about(about, &text);
            }
            return None;
        }
        let found = named.and_then(|text| self.partition_named(text));
        if found.is_none() {
            let why = named.map_or_else(
                || "names no partition in CUDA_MPS_SM_PARTITION".to_owned(),
                |text| format!("names partition {text}, which there is not"),
            );
            let text = format!("Client {pid} {why}: its contexts will be refused with error 915");
            self.log_about(about, &text);
        }
        Some(found.unwrap_or(NO_PARTITION))
    }

    /// Sends a server that has become ready the groups that have reservations, so that these are free before a client of them comes.
    pub(crate) fn announce_reservations(&mut self, id: crate::servers::registry::ServerId) {
        let groups = self.groups.by_number.iter();
        let reserved: Vec<u32> = groups
            .filter(|(_, group)| group.limits.reserved)
            .map(|(&number, _)| number)
            .collect();
        for number in reserved {
            if let Err(error) = self.send_group(id, number, 0) {
                self.log(&format!(
                    "The reservation of group {number} is not in effect on a new server: {error}; `limit set` tries again"
                ));
            } else {
                self.save_group(number);
            }
        }
    }
}
