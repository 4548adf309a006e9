//! Groups of clients: a name, a budget of memory and a part of the compute that all of a group's
//! processes share, whichever servers they are of.
//!
//! A client is of a group by the socket that it came to, or by its cgroup where that can be seen; if
//! both say something, the cgroup does, which a process cannot choose as it can a socket. Groups
//! outlive servers and the daemon: what is needed for that is kept in files (`group_files`), and the
//! ledger of what is taken lives on in the servers that have it (`former`).
//!
//! Static partitions are groups of another kind (`partitions`), so that servers need to know one
//! thing only.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use cuda_abi::CUresult;
use serde_json::json;
use transport::handshake::{self, Packet};
use transport::ledger::{Ledger, SLOTS};
use transport::socket::{Listener, PATH_MAX, Peer, SocketError};

use crate::daemon::Daemon;
use crate::former::Former;
use crate::group_files::{self, GroupLimits, Holder, Kept};
use crate::log::About;
use crate::own_files;
use crate::registry::ServerId;
use crate::source::Source;

/// Groups that there may be.
const MAX_GROUPS: usize = 1024;

/// What a group is.
#[derive(Debug)]
pub enum Kind {
    /// One that the operator named.
    Named {
        /// Whoever connects here belongs to it.
        listener: Listener,
        /// The cgroup whose processes belong to it.
        cgroup: Option<String>,
    },
    /// A static partition.
    Partition(crate::partitions::Partition),
}

/// A group.
#[derive(Debug)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// What its clients have together.
    pub limits: GroupLimits,
    /// What they have taken.
    pub ledger: Ledger,
    /// Servers that were told of it.
    pub told: BTreeSet<ServerId>,
}

impl Group {
    /// Whether it is one that the operator named.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        matches!(self.kind, Kind::Named { .. })
    }

    /// The cgroup whose processes belong to it.
    #[must_use]
    pub fn cgroup(&self) -> Option<&str> {
        match &self.kind {
            Kind::Named { cgroup, .. } => cgroup.as_deref(),
            Kind::Partition(_) => None,
        }
    }

    /// What a server is told of it.
    fn packet(&self, number: u32, slot: u32, request: u64) -> Packet {
        Packet::Group(handshake::Group {
            group: number,
            slot,
            request,
            name: self.name.clone(),
            memory: self.limits.memory_text(),
            percentage: self.limits.percentage.map(|part| part.to_string()),
            reserved: self.limits.reserved,
            device: match &self.kind {
                Kind::Named { .. } => None,
                Kind::Partition(partition) => Some(partition.device),
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
    /// Slots in ledgers that servers have, those of former daemons' too.
    pub slots: BTreeSet<u32>,
    /// Servers that a former daemon left.
    pub former: Vec<Former>,
}

impl Groups {
    /// Where clients of groups connect, by the groups' numbers.
    pub fn listeners(&self) -> impl Iterator<Item = (u32, &Listener)> {
        let named = self.by_number.iter();
        named.filter_map(|(&number, group)| match &group.kind {
            Kind::Named { listener, .. } => Some((number, listener)),
            Kind::Partition(_) => None,
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
    pub fn take_slot(&mut self) -> Option<u32> {
        let slot = (0..SLOTS).find(|slot| !self.slots.contains(slot))?;
        self.slots.insert(slot);
        Some(slot)
    }
}

/// Why a client cannot be handed to a server now.
#[derive(Debug)]
pub enum NotTold {
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
fn is_in(text: &str, cgroup: &str) -> bool {
    let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.any(|path| {
        path.strip_prefix(cgroup)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

impl Daemon {
    /// Makes a group, for good.
    ///
    /// # Errors
    /// In words; then nothing has changed.
    pub(crate) fn add_group(&mut self, kept: Kept) -> Result<u32, String> {
        if self.groups.by_number.len() >= MAX_GROUPS {
            return Err(format!("there are {MAX_GROUPS} groups already"));
        }
        let directories = self.instance.directories();
        let ledger = Ledger::create(&ledger_name(&kept.name))
            .map_err(|error| format!("no memory for a group's ledger: {error}"))?;
        group_files::save(directories, &kept)?;
        let made = self.set_up_group(kept.clone(), ledger);
        if made.is_err() {
            let _ = group_files::remove(self.instance.directories(), &kept.name);
        }
        made
    }

    /// Makes a group's directory and socket, and takes it in.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn set_up_group(&mut self, kept: Kept, ledger: Ledger) -> Result<u32, String> {
        let directories = self.instance.directories();
        let folder = directories.group(&kept.name);
        let socket = folder.join("control");
        let length = socket.as_os_str().len();
        if length > PATH_MAX {
            return Err(format!(
                "the path of the group's socket has {length} bytes, more than the {PATH_MAX} that \
                 the system takes; choose a shorter name or pipe directory: {}",
                socket.display()
            ));
        }
        own_files::own_directory(&directories.groups(), 0o755)?;
        own_files::own_directory(&folder, 0o755)?;
        let listener = crate::instance::bind(&socket, 0o666)?;
        let number = self.groups.number();
        self.watch(&listener, Source::Group(number))
            .map_err(|error| format!("cannot wait for clients of a group: {error}"))?;
        self.groups.by_number.insert(
            number,
            Group {
                name: kept.name,
                kind: Kind::Named {
                    listener,
                    cgroup: kept.cgroup,
                },
                limits: kept.limits,
                ledger,
                told: BTreeSet::new(),
            },
        );
        Ok(number)
    }

    /// Ends a group that has no clients.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn remove_group(&mut self, number: u32) -> Result<(), String> {
        let Some(group) = self.groups.by_number.get(&number) else {
            return Err("there is no such group".into());
        };
        if self.has_clients(number) {
            return Err(format!(
                "{} is in use: its clients must have left before it is removed",
                group.name
            ));
        }
        if let Kind::Named { listener, .. } = &group.kind {
            let directories = self.instance.directories();
            group_files::remove(directories, &group.name)?;
            let folder = directories.group(&group.name);
            self.forget(listener);
            let _ = std::fs::remove_file(folder.join("control"));
            let _ = std::fs::remove_dir(folder);
        }
        for id in &group.told {
            if let Some(server) = self.registry.servers.get(id) {
                let packet = Packet::GroupGone { group: number };
                // One that is not told keeps a name for what nobody uses.
                let _ = server.connection.try_send(&packet.encode(), &[]);
            }
        }
        self.groups.by_number.remove(&number);
        Ok(())
    }

    /// Whether clients belong to a group, or wait to.
    pub(crate) fn has_clients(&self, number: u32) -> bool {
        let belongs = |group: Option<u32>, partition: Option<u32>| {
            group == Some(number) || partition == Some(number)
        };
        let attached = self.registry.servers.values().any(|server| {
            let waiting = server.waiting.iter();
            let clients = server.clients.values();
            waiting
                .map(|one| (one.group, one.partition))
                .chain(clients.map(|one| (one.group, one.partition)))
                .any(|(group, partition)| belongs(group, partition))
        });
        let former = self.groups.former.iter();
        attached
            || self
                .queued
                .iter()
                .any(|queued| queued.group == Some(number))
            || former
                .flat_map(|former| &former.groups)
                .any(|&group| group == number)
    }

    /// The group that a client belongs to, which came to the socket of `via`.
    pub(crate) fn group_of(&self, peer: &Peer, via: Option<u32>) -> Option<u32> {
        let with_cgroup = |group: &&Group| group.cgroup().is_some();
        if !self
            .groups
            .by_number
            .values()
            .any(|group| with_cgroup(&group))
        {
            return via;
        }
        let text = match peer.pid {
            0 => None,
            pid => std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok(),
        };
        // If it still runs, the file was its own and not that of a later process.
        let ended = transport::socket::poll(&[peer.pidfd.as_fd()], Some(std::time::Duration::ZERO));
        let Some(text) = text.filter(|_| ended.is_ok_and(|ended| ended == [false])) else {
            if via.is_none() {
                let text = format!(
                    "The cgroup of client {} cannot be seen: it is in no group",
                    peer.pid
                );
                self.log_about(&About::User(peer.uid), &text);
            }
            return via;
        };
        let groups = self.groups.by_number.iter();
        groups
            .filter_map(|(&number, group)| Some((number, group.cgroup()?)))
            .filter(|(_, cgroup)| is_in(&text, cgroup))
            .max_by_key(|(_, cgroup)| cgroup.len())
            .map(|(number, _)| number)
            .or(via)
    }

    /// Makes sure that a server knows a group before it is handed clients of it.
    pub(crate) fn tell_group(&mut self, id: ServerId, number: u32) -> Result<(), NotTold> {
        let failed = CUresult::ERROR_MPS_CONNECTION_FAILED;
        let known = self.groups.by_number.get(&number);
        let Some(group) = known else {
            return Err(NotTold::Never(failed, "the client's group is gone".into()));
        };
        if group.told.contains(&id) {
            return Ok(());
        }
        if let Some(former) = self
            .groups
            .former
            .iter()
            .find(|former| former.holds(number))
        {
            let text = format!(
                "server {} of a daemon that was killed still has clients of {}, and what they have \
                 taken cannot be seen",
                former.holder.pid, group.name
            );
            return Err(NotTold::Never(CUresult::ERROR_MPS_SERVER_NOT_READY, text));
        }
        match self.send_group(id, number, 0) {
            Ok(()) => {
                self.keep_group(number);
                Ok(())
            }
            Err(error) if error.would_wait() => Err(NotTold::Later),
            Err(error) => Err(NotTold::Never(failed, error.to_string())),
        }
    }

    /// Sends a server what holds for a group.
    pub(crate) fn send_group(
        &mut self,
        id: ServerId,
        number: u32,
        request: u64,
    ) -> Result<(), SocketError> {
        let group = self.groups.by_number.get_mut(&number);
        let server = self.registry.servers.get(&id);
        let (Some(group), Some(server)) = (group, server) else {
            return Err(SocketError::Closed);
        };
        let slot = server.slot.ok_or(SocketError::Descriptors(Vec::new()))?;
        let packet = group.packet(number, slot, request);
        let fds = [group.ledger.as_fd()];
        server.connection.try_send(&packet.encode(), &fds)?;
        group.told.insert(id);
        Ok(())
    }

    /// Keeps a group for the next daemon.
    pub(crate) fn keep_group(&self, number: u32) {
        let Some(group) = self.groups.by_number.get(&number) else {
            return;
        };
        if !group.is_named() {
            return;
        }
        if let Err(error) = group_files::save(self.instance.directories(), &self.kept(group)) {
            // The group holds; a daemon that takes over would not know what has become of it.
            self.log(&format!("Group {} is not kept: {error}", group.name));
        }
    }

    /// What of a group is kept.
    pub(crate) fn kept(&self, group: &Group) -> Kept {
        let servers = group.told.iter().filter_map(|id| {
            let server = self.registry.servers.get(id)?;
            Some(Holder {
                pid: server.pid(),
                started: crate::former::start_of(server.pid())?,
                slot: server.slot?,
            })
        });
        let number = self.groups.named(&group.name);
        let former = self.groups.former.iter();
        let former =
            former.filter(|former| number.is_some_and(|number| former.groups.contains(&number)));
        Kept {
            name: group.name.clone(),
            limits: group.limits.clone(),
            cgroup: group.cgroup().map(str::to_owned),
            holders: servers.chain(former.map(|former| former.holder)).collect(),
        }
    }

    /// A server is gone: what its clients had taken is free.
    pub(crate) fn server_left_groups(&mut self, id: ServerId, slot: Option<u32>) {
        let Some(slot) = slot else {
            return;
        };
        self.groups.slots.remove(&slot);
        let mut changed = Vec::new();
        for (&number, group) in &mut self.groups.by_number {
            if group.told.remove(&id) {
                group.ledger.clear(slot);
                changed.push(number);
            }
        }
        for number in changed {
            self.keep_group(number);
        }
    }

    /// What the structured log has of a group.
    pub(crate) fn group_event(&self, what: &str, number: u32, more: serde_json::Value) {
        if let Some(group) = self.groups.by_number.get(&number) {
            self.event(what, json!({ "group": group.name }), more);
        }
    }
}

/// The name that a group's ledger has among a process's files.
pub fn ledger_name(group: &str) -> String {
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
            assert!(is_in(text, cgroup), "{cgroup}");
        }
        for cgroup in ["/kube", "/kubepods/pod", "/kubepods/pod1/c/d", "/pod1"] {
            assert!(!is_in(text, cgroup), "{cgroup}");
        }
        assert!(!is_in("", "/a"));
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
