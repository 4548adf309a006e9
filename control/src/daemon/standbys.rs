//! Servers that stand by: started ahead for users whose clients another server could take over, and put in the place of one
//! that has ended.
//!
//! A standby belongs to a user, as whom it runs, and to no executor: its key says so, by which no client finds it. It is as ready as
//! any server, without clients; where it takes a place, it gets that executor's key, settings and clients.
//!
//! Called by the event loop, by `servers` and by `server_start`. Must not know why a server has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use protocol::control_messages::ListedDevice;
use serde_json::json;

use super::Daemon;
use crate::log::events::of_server;
use crate::servers::handovers::Since;
use crate::servers::limits::ServerLimits;
use crate::servers::placement::ServerKey;
use crate::servers::registry::{Server, ServerId, State, WaitingClient};
use crate::servers::standbys::Standby;

impl Daemon {
    /// Starts a standby for each user who is to have one, and ends those that can take no place any more.
    pub(super) fn tend_standbys(&mut self, now: Instant) {
        if !self.has_standbys() || self.is_quitting() {
            return;
        }
        let servers = || self.registry.servers.iter();
        let served: BTreeSet<u32> = servers()
            .filter(|(_, server)| server.key.may_be_followed() && server.takes_clients())
            .map(|(_, server)| server.uid)
            .collect();
        let stand_by = || servers().filter(|(_, server)| server.key.is_standby());
        let ended: Vec<ServerId> = stand_by()
            .filter(|(_, server)| server.takes_clients() && !served.contains(&server.uid))
            .map(|(&id, _)| id)
            .collect();
        let wanted: BTreeMap<u32, Option<u32>> = servers()
            .filter(|(_, server)| can_be_followed(server))
            .filter(|(_, server)| stand_by().all(|(_, standby)| standby.uid != server.uid))
            .map(|(_, server)| (server.uid, server.gid))
            .collect();
        self.standbys.keep_users(|uid| served.contains(&uid));
        for id in ended {
            self.shut_down_server(id, false, None);
        }
        for (uid, gid) in wanted {
            if !self.standbys.may_start(uid, now) || self.clients_are_coming(uid) {
                continue;
            }
            let started = self.start_server_on(ServerKey::Standby(uid), uid, gid, None);
            if let Err(error) = started {
                self.log(&error.to_string());
                self.standbys.has_died(uid, now);
            }
        }
    }

    /// Whether servers stand by where there are clients that could be taken over.
    pub(super) fn has_standbys(&self) -> bool {
        // On the underlay what ends one context ends all, and another one counts against the clients' own.
        self.options.failover
            && self.standbys.when != Standby::Never
            && self.underlay.program.is_none()
    }

    /// Whether a user has clients that a server has not welcomed yet: what it takes to start another one is theirs.
    fn clients_are_coming(&self, uid: u32) -> bool {
        let mut servers = self.registry.servers.values();
        servers.any(|server| {
            let mut clients = server.clients.values();
            server.uid == uid
                && (!server.waiting.is_empty() || clients.any(|client| !client.attached))
        })
    }

    /// A standby has made its contexts. It stays if it leaves enough to others.
    pub(super) fn standby_is_ready(
        &mut self,
        id: ServerId,
        devices: &[ListedDevice],
        free: &[u64],
    ) {
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let (pid, uid) = (server.pid(), server.uid);
        if self.standbys.when.has_room(devices, free) {
            self.log(&format!("Server {pid} stands by for user {uid}"));
            self.event("server.stands_by", of_server(server), json!({}));
            return;
        }
        self.log(&format!(
            "Server {pid} does not stand by: less than an eighth of a device's memory would be left to clients \
             (--standby=always)"
        ));
        self.standbys.hold_back(uid, Instant::now());
        self.shut_down_server(id, false, None);
    }

    /// A standby was ended by command: the next one does not come at once.
    pub(crate) fn standby_was_shut_down(&mut self, id: ServerId) {
        if let Some(server) = self.registry.servers.get(&id)
            && server.key.is_standby()
        {
            self.standbys.hold_back(server.uid, Instant::now());
        }
    }

    /// A standby's process has ended.
    pub(super) fn standby_is_over(&mut self, standby: &Server) {
        if standby.state == State::Stopping {
            return;
        }
        let wait = self.standbys.has_died(standby.uid, Instant::now());
        self.log(&format!(
            "Server {} has ended while it stood by; the next one starts in {} s",
            standby.pid(),
            wait.as_secs()
        ));
    }

    /// The standby that can take the place of a user's server with this key, if there is one, ready or not.
    pub(super) fn standby_for(&self, key: &ServerKey, uid: u32) -> Option<ServerId> {
        let standby = self.registry.server_with_key(&ServerKey::Standby(uid));
        standby.filter(|_| key.may_be_followed())
    }

    /// Makes a standby the server of an executor, for the clients that wait for that.
    pub(super) fn take_place(
        &mut self,
        (id, since): (ServerId, Since),
        key: ServerKey,
        settings: ServerLimits,
        waiting: VecDeque<WaitingClient>,
    ) {
        let slot = self.groups.allocate_slot();
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        server.key = key;
        server.settings = settings;
        server.waiting = waiting;
        server.slot = slot;
        let (pid, uid, is_ready) = (server.pid(), server.uid, server.state == State::Active);
        let about = of_server(server);
        self.standbys.was_needed(uid, Instant::now());
        let how = if is_ready {
            ""
        } else {
            ", and is not ready yet"
        };
        let former = match since {
            Since::Ended => "has ended",
            Since::HandingOver => "ends now",
        };
        self.log(&format!(
            "Server {pid}, which stood by, takes the place of one that {former}{how}"
        ));
        self.event("server.takes_place", about, json!({ "ready": is_ready }));
        if is_ready {
            self.begins_to_serve(id);
        }
        self.hand_over_clients(id);
    }
}

/// Whether a server has clients that another one could take over.
fn can_be_followed(server: &Server) -> bool {
    server.key.may_be_followed() && server.state == State::Active && !server.kept.is_empty()
}
