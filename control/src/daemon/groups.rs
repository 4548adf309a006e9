//! Groups as the daemon keeps them: made and removed by commands, told to servers, written down for the next daemon.
//!
//! Called by commands, by `admission` and by `orphaned_servers`. Must not know what a group's clients run.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use cuda_abi::CUresult;
use daemon_interface::group_usage::GroupUsage;
use daemon_interface::process::ProcessStat;
use protocol::control_messages::Packet;
use serde_json::json;
use transport::socket::{PATH_MAX, Peer, SocketError};

use super::Daemon;
use super::epoll_token::EpollToken;
use crate::files::safe_path::make_own_directory;
use crate::groups::error::GroupError;
use crate::groups::saved::{self, SavedGroup, UsageHolder};
use crate::groups::{Group, GroupKind, MAX_GROUPS, NotAnnounced, is_in_cgroup, usage_name};
use crate::log::About;
use crate::servers::registry::ServerId;

impl Daemon {
    /// Makes a group, for good.
    ///
    /// # Errors
    /// When it cannot be made; then nothing has changed.
    pub(crate) fn add_group(&mut self, kept: SavedGroup) -> Result<u32, GroupError> {
        if self.groups.by_number.len() >= MAX_GROUPS {
            return Err(GroupError::TooMany);
        }
        let directories = self.instance.directories();
        let usage = GroupUsage::create(&usage_name(&kept.name)).map_err(GroupError::Usage)?;
        saved::save(directories, &kept)?;
        let made = self.set_up_group(kept.clone(), usage);
        if made.is_err() {
            let _ = saved::remove(self.instance.directories(), &kept.name);
        }
        made
    }

    /// Makes a group's directory and socket, and takes it in.
    ///
    /// # Errors
    /// When its directory or socket cannot be made.
    pub(crate) fn set_up_group(
        &mut self,
        kept: SavedGroup,
        usage: GroupUsage,
    ) -> Result<u32, GroupError> {
        let directories = self.instance.directories();
        let folder = directories.group(&kept.name);
        let socket = folder.join("control");
        let length = socket.as_os_str().len();
        if length > PATH_MAX {
            return Err(GroupError::PathTooLong {
                path: socket,
                length,
            });
        }
        make_own_directory(&directories.groups(), 0o755)?;
        make_own_directory(&folder, 0o755)?;
        let listener = self.instance.listen_at(&socket, 0o666)?;
        let number = self.groups.number();
        self.watch(&listener, EpollToken::Group(number))
            .map_err(GroupError::Watch)?;
        self.groups.by_number.insert(
            number,
            Group {
                name: kept.name,
                kind: GroupKind::Named {
                    listener,
                    cgroup: kept.cgroup,
                },
                limits: kept.limits,
                usage,
                announced_to: BTreeSet::new(),
            },
        );
        Ok(number)
    }

    /// Ends a group that has no clients.
    ///
    /// # Errors
    /// When it has clients, or its file cannot be removed.
    pub(crate) fn remove_group(&mut self, number: u32) -> Result<(), GroupError> {
        let Some(group) = self.groups.by_number.get(&number) else {
            return Err(GroupError::Unknown);
        };
        if self.has_clients(number) {
            return Err(GroupError::InUse(group.name.clone()));
        }
        if let GroupKind::Named { listener, .. } = &group.kind {
            let directories = self.instance.directories();
            saved::remove(directories, &group.name)?;
            let folder = directories.group(&group.name);
            self.unwatch(listener);
            let _ = std::fs::remove_file(folder.join("control"));
            let _ = std::fs::remove_dir(folder);
        }
        for id in &group.announced_to {
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
        let former = self.groups.orphaned_servers.iter();
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
            .filter(|(_, cgroup)| is_in_cgroup(&text, cgroup))
            .max_by_key(|(_, cgroup)| cgroup.len())
            .map(|(number, _)| number)
            .or(via)
    }

    /// Makes sure that a server knows a group before it is handed clients of it.
    pub(crate) fn announce_group(&mut self, id: ServerId, number: u32) -> Result<(), NotAnnounced> {
        let failed = CUresult::ERROR_MPS_CONNECTION_FAILED;
        let known = self.groups.by_number.get(&number);
        let Some(group) = known else {
            return Err(NotAnnounced::Never(
                failed,
                "the client's group is gone".into(),
            ));
        };
        if group.announced_to.contains(&id) {
            return Ok(());
        }
        if let Some(former) = self
            .groups
            .orphaned_servers
            .iter()
            .find(|former| former.holds_back_clients_of(number))
        {
            let text = format!(
                "server {} of a daemon that was killed still has clients of {}, and what they have \
                 taken cannot be seen",
                former.holder.pid, group.name
            );
            return Err(NotAnnounced::Never(
                CUresult::ERROR_MPS_SERVER_NOT_READY,
                text,
            ));
        }
        match self.send_group(id, number, 0) {
            Ok(()) => {
                self.save_group(number);
                Ok(())
            }
            Err(error) if error.would_wait() => Err(NotAnnounced::Later),
            Err(error) => Err(NotAnnounced::Never(failed, error.to_string())),
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
        let fds = [group.usage.as_fd()];
        server.connection.try_send(&packet.encode(), &fds)?;
        group.announced_to.insert(id);
        Ok(())
    }

    /// Keeps a group for the next daemon.
    pub(crate) fn save_group(&self, number: u32) {
        let Some(group) = self.groups.by_number.get(&number) else {
            return;
        };
        if !group.is_named() {
            return;
        }
        if let Err(error) = saved::save(self.instance.directories(), &self.group_to_save(group)) {
            // The group holds; a daemon that takes over would not know what has become of it.
            self.log(&format!(
                "Group {} cannot be saved: {error}; it holds until this daemon ends, and has to be added again then",
                group.name
            ));
        }
    }

    /// What of a group is kept.
    pub(crate) fn group_to_save(&self, group: &Group) -> SavedGroup {
        let servers = group.announced_to.iter().filter_map(|id| {
            let server = self.registry.servers.get(id)?;
            Some(UsageHolder {
                pid: server.pid(),
                started: ProcessStat::of(server.pid())?.started,
                slot: server.slot?,
            })
        });
        let number = self.groups.named(&group.name);
        let former = self.groups.orphaned_servers.iter();
        let former =
            former.filter(|former| number.is_some_and(|number| former.groups.contains(&number)));
        SavedGroup {
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
            if group.announced_to.remove(&id) {
                group.usage.release_all(slot);
                changed.push(number);
            }
        }
        for number in changed {
            self.save_group(number);
        }
    }

    /// What the structured log has of a group.
    pub(crate) fn group_event(&self, what: &str, number: u32, more: serde_json::Value) {
        if let Some(group) = self.groups.by_number.get(&number) {
            self.event(what, json!({ "group": group.name }), more);
        }
    }
}
