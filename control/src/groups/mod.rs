//! Groups of clients: a name, a budget of memory and a part of the compute that all of a group's
//! processes share, whichever servers they are of.
//!
//! Kept by the daemon, changed by `daemon::groups` and `daemon::partitions`. Must not write files or send packets.
//!
//! A client is of a group by the socket that it came to, or by its cgroup where that can be seen; if
//! both say something, the cgroup does, which a process cannot choose as it can a socket. Groups
//! outlive servers and the daemon: what is needed for that is kept in files (`saved`), and the
//! count of what is taken lives on in the servers that have it (`orphaned_servers`).
//!
//! Static partitions are groups of another kind (`partition`), so that servers need to know one
//! thing only.

pub(crate) mod error;
pub(crate) mod orphaned_servers;
pub(crate) mod partition;
pub(crate) mod saved;

use std::collections::{BTreeMap, BTreeSet};

use cuda_abi::CUresult;
use daemon_interface::group_usage::{GroupUsage, SLOTS};
use protocol::control_messages::{self, Packet};
use protocol::limits;
use transport::socket::Listener;

use crate::servers::registry::ServerId;
use orphaned_servers::OrphanedServer;
use saved::GroupLimits;

/// Groups that there may be.
pub(crate) const MAX_GROUPS: usize = 1024;

/// What a group is.
#[derive(Debug)]
pub enum GroupKind {
    /// One that the operator named.
    Named {
        /// Whoever connects here belongs to it.
        listener: Listener,
        /// The cgroup whose processes belong to it.
        cgroup: Option<String>,
    },
    /// A static partition.
    Partition(partition::Partition),
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: GroupKind,
    /// What its clients have together.
    pub limits: GroupLimits,
    /// What they have taken.
    pub usage: GroupUsage,
    /// Servers that know of it.
    pub announced_to: BTreeSet<ServerId>,
}

impl Group {
    /// Whether it is one that the operator named.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        matches!(self.kind, GroupKind::Named { .. })
    }

    /// The cgroup whose processes belong to it.
    #[must_use]
    pub fn cgroup(&self) -> Option<&str> {
        match &self.kind {
            GroupKind::Named { cgroup, .. } => cgroup.as_deref(),
            GroupKind::Partition(_) => None,
        }
    }

    /// What a server is told of it.
    pub(crate) fn packet(&self, number: u32, slot: u32, request: u64) -> Packet {
        Packet::Group(control_messages::Group {
            group: number,
            slot,
            request,
            name: self.name.clone(),
            memory: self.limits.memory_text(),
            percentage: self.limits.percentage.map(|part| part.to_string()),
            reserved: self.limits.reserved,
            kernel_time: self.limits.kernel_time.map(limits::kernel_time_text),
            device: match &self.kind {
                GroupKind::Named { .. } => None,
                GroupKind::Partition(partition) => Some(partition.device),
            },
        })
    }
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    /// By number, and so in the order in which they were made.
    pub by_number: BTreeMap<u32, Group>,
    /// The last number given to one.
    last_number: u32,
    /// Slots in groups' usage that servers have, those of former daemons' too.
    pub slots: BTreeSet<u32>,
    /// Servers that a former daemon left.
    pub orphaned_servers: Vec<OrphanedServer>,
}

impl Groups {
    /// Where clients of groups connect, by the groups' numbers.
    pub fn listeners(&self) -> impl Iterator<Item = (u32, &Listener)> {
        let named = self.by_number.iter();
        named.filter_map(|(&number, group)| match &group.kind {
            GroupKind::Named { listener, .. } => Some((number, listener)),
            GroupKind::Partition(_) => None,
        })
    }

    /// The number of a group that the operator named.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u32> {
        let mut groups = self.by_number.iter();
        groups
            .find(|(_, group)| group.is_named() && group.name == name)
            .map(|(&number, _)| number)
    }

    /// A number for a new group.
    pub const fn number(&mut self) -> u32 {
        self.last_number += 1;
        self.last_number
    }

    /// Takes a slot for a server, if one is left.
    pub fn allocate_slot(&mut self) -> Option<u32> {
        let slot = (0..SLOTS).find(|slot| !self.slots.contains(slot))?;
        self.slots.insert(slot);
        Some(slot)
    }
}

/// Why a client cannot be handed to a server now.
#[derive(Debug)]
pub enum NotAnnounced {
    /// The server has much to read first.
    Later,
    /// It cannot at all.
    Never(CUresult, String),
}

/// A cgroup's path as /proc says it, of what an operator may write.
#[must_use]
pub fn cgroup_path(text: &str) -> Option<String> {
    let path = text.strip_prefix("/sys/fs/cgroup").unwrap_or(text);
    let path = path.trim_end_matches('/');
    let plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    plain.then(|| path.to_owned())
}

/// Whether a process whose /proc/PID/cgroup is `text` is in a cgroup or below it.
pub(crate) fn is_in_cgroup(text: &str, cgroup: &str) -> bool {
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.any(|path| {
        path.strip_prefix(cgroup)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// The name that a group's usage has among a process's files.
pub fn usage_name(group: &str) -> String {
    format!("openmps-group-{group}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_its_cgroup_and_those_above() {
        let text = "12:memory:/kubepods/pod1/c\n0::/kubepods.slice/pod2.scope\n";
        for cgroup in [
            "/kubepods",
            "/kubepods/pod1",
            "/kubepods/pod1/c",
            "/kubepods.slice",
            "",
        ] {
            assert!(is_in_cgroup(text, cgroup), "{cgroup}");
        }
        for cgroup in ["/kube", "/kubepods/pod", "/kubepods/pod1/c/d", "/pod1"] {
            assert!(!is_in_cgroup(text, cgroup), "{cgroup}");
        }
        assert!(!is_in_cgroup("", "/a"));
    }

    #[test]
    fn cgroups_are_named_as_the_operator_sees_them() {
        assert_eq!(cgroup_path("/a/b/").as_deref(), Some("/a/b"));
        assert_eq!(
            cgroup_path("/sys/fs/cgroup/a.slice").as_deref(),
            Some("/a.slice")
        );
        for wrong in ["", "a/b", "/a/../b", "/", "/sys/fs/cgroup/"] {
            assert_eq!(cgroup_path(wrong), None, "{wrong}");
        }
    }
}
