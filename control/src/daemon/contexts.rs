//! Users' contexts beside the common one: servers that are started ahead of clients, wait for them with their context made, and are
//! ended when nobody needs them.
//!
//! Called where clients come, and by the event loop after each of its turns. Must not decide who comes to which, nor how many there
//! may be: `servers::placement` does.

use std::time::Instant;

use serde_json::{Value, json};

use super::Daemon;
use crate::groups::Group;
use crate::servers::placement::{
    Companion, Compute, ContextCounts, ServerKey, UserContext, context_for, one_more,
};
use crate::servers::registry::{Client, Server, ServerId, State};

impl Daemon {
    /// The server for a client whose executor has this key, if one takes clients.
    pub(crate) fn server_for_client(
        &self,
        key: &ServerKey,
        who: &Companion<'_>,
        is_limited: bool,
    ) -> Option<ServerId> {
        let ServerKey::User(uid) = key else {
            return self.registry.server_with_key(key);
        };
        let compute = Compute {
            is_limited,
            something_is_reserved: self.something_is_reserved(),
        };
        let servers = self.contexts_of(*uid);
        let contexts: Vec<UserContext<'_>> = servers
            .iter()
            .map(|(_, server)| UserContext {
                is_common: server.key == *key,
                is_ready: server.has_room() && server.waiting.is_empty(),
                clients: server.companions(),
            })
            .collect();
        let place = context_for(who, compute, &contexts)?;
        servers.get(place).map(|(id, _)| *id)
    }

    fn something_is_reserved(&self) -> bool {
        let mut groups = self.groups.by_number.values();
        let mut clients = self
            .registry
            .servers
            .values()
            .flat_map(|server| server.clients.values());
        groups.any(|group| group.limits.reserved) || clients.any(|client| client.limits.reserved)
    }

    /// Whether a client's compute is limited: by what it gets itself, by its group, or by a partition.
    pub(crate) fn is_limited(&self, percentage: f32, group: Option<&Group>) -> bool {
        let of_group = group.and_then(|group| group.limits.percentage);
        percentage < 100.0 || of_group.is_some() || self.static_partitions
    }

    /// The servers of a user that take clients and whose contexts overlap: those that have beneath them what the common one
    /// has.
    fn contexts_of(&self, uid: u32) -> Vec<(ServerId, &Server)> {
        let common = ServerKey::User(uid);
        let beneath = match self.registry.server_with_key(&common) {
            Some(id) => self
                .registry
                .servers
                .get(&id)
                .and_then(|server| server.underlay),
            None => self.underlay.run.as_ref().map(|run| run.number),
        };
        let servers = self.registry.servers.iter();
        servers
            .filter(|(_, server)| {
                let is_beside = server.underlay.is_some() && server.underlay == beneath;
                server.takes_clients()
                    && server.key.one_of_users() == Some(uid)
                    && (server.key == common || is_beside)
            })
            .map(|(&id, server)| (id, server))
            .collect()
    }

    /// How many servers beside a client's have clients of its user that would have to do with what holds within one context.
    pub(crate) fn contexts_in_use_beside(&self, id: ServerId) -> usize {
        let user = self
            .registry
            .servers
            .get(&id)
            .and_then(|server| server.key.one_of_users());
        let servers = self.registry.servers.iter();
        let beside = servers.filter(|&(&other, server)| {
            other != id && user.is_some() && server.key.one_of_users() == user && !server.is_idle()
        });
        beside.count()
    }

    /// Says that who is to give way does so to some only.
    pub(crate) fn say_whom_it_gives_way_to(&self, id: ServerId, client: &Client) {
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let beside = self.contexts_in_use_beside(id);
        if client.limits.priority == 0 || beside == 0 {
            return;
        }
        let about = self.about(client.uid, client.group);
        let (pid, server) = (client.pid, server.pid());
        self.log_about(
            &about,
            &format!(
                "Client {pid} is below normal priority: it gives way to clients of server {server}, and not to those of {beside} more \
                 of its user's, which have contexts of their own (--contexts)"
            ),
        );
    }

    /// A server was ended by command: what waits for clients does not come back at once.
    pub(crate) fn context_was_shut_down(&mut self, id: ServerId) {
        if let Some(server) = self.registry.servers.get(&id)
            && let ServerKey::Context(uid, _) = server.key
        {
            let why = format!("server {} was shut down", server.pid());
            self.contexts.hold_back(uid, &why, Instant::now());
        }
    }

    /// One more context could not be had.
    pub(super) fn context_failed(&mut self, uid: u32, why: &str) {
        if self.contexts.hold_back(uid, why, Instant::now()) {
            let count = self.contexts_of(uid).len();
            self.log(&format!(
                "The clients of user {uid} share {count} of {} contexts, one more cannot be had now: {why}",
                self.contexts.most
            ));
        }
    }

    /// Makes the next context of each user who may have one more, and ends those that nobody needs.
    pub(super) fn tend_contexts(&mut self, now: Instant) {
        if self.contexts.most == 1 || self.is_quitting() {
            return;
        }
        let servers = self.registry.servers.values();
        let mut users: Vec<u32> = servers
            .filter_map(|server| server.key.one_of_users())
            .collect();
        users.sort_unstable();
        users.dedup();
        self.contexts.keep_users(|uid| users.contains(&uid));
        for uid in users {
            self.tend_contexts_of(uid, now);
        }
    }

    fn tend_contexts_of(&mut self, uid: u32, now: Instant) {
        let servers = self.contexts_of(uid);
        let kept: Vec<ServerId> = servers.iter().map(|(id, _)| *id).collect();
        let has_clients = servers.iter().any(|(_, server)| !server.is_idle());
        let is_being_made = servers
            .iter()
            .any(|(_, server)| server.state == State::Initializing);
        let common = servers
            .iter()
            .find(|(_, server)| server.key == ServerKey::User(uid));
        let common =
            common.map(|(_, server)| (server.underlay, server.gid, server.devices.clone()));
        let are_needed = self.contexts.are_needed(uid, has_clients, now);

        let run = self.underlay.run.as_ref().map(|run| run.number);
        // Those that nobody needs, or that have beneath them what has failed, or something else than the common one.
        let servers = self.registry.servers.iter();
        let ended: Vec<ServerId> = servers
            .filter(|(id, server)| {
                let is_spare = matches!(server.key, ServerKey::Context(of, _) if of == uid)
                    && server.state == State::Active
                    && server.is_idle();
                is_spare && (!are_needed || server.underlay != run || !kept.contains(id))
            })
            .map(|(&id, _)| id)
            .collect();
        for id in ended {
            self.shut_down_server(id, false, None);
        }

        let Some((beneath, gid, devices)) = common else {
            return;
        };
        if is_being_made || !are_needed || !self.queued.is_empty() {
            return;
        }
        let why_not = if beneath.is_none() {
            Some("the common one is not on the underlay".to_owned())
        } else if beneath != run {
            Some("the common one is on an underlay that has failed".to_owned())
        } else if let Some(why) = self.contexts.held_back(uid, now) {
            Some(why.to_owned())
        } else {
            let on_it = || {
                self.registry
                    .servers
                    .values()
                    .filter(|server| server.underlay == run)
            };
            let beyond = on_it().filter(|server| matches!(server.key, ServerKey::Context(..)));
            let least = devices.iter().map(|device| device.total_memory).min();
            one_more(ContextCounts {
                most: self.contexts.most,
                of_user: kept.len() as u32,
                of_all: on_it().count() as u32,
                beyond_common: beyond.count() as u32,
                least_memory: least.unwrap_or(0),
            })
            .err()
            .map(|why| why.to_string())
        };
        let may_have_more = why_not.is_none();
        self.contexts.set_why_not(uid, why_not);
        if may_have_more {
            let key = ServerKey::Context(uid, self.number());
            if let Err(error) = self.start_server_on(key, uid, gid, run) {
                self.context_failed(uid, &error.to_string());
            }
        }
    }

    /// What contexts users' clients have, in a line if there is something to say, and for programs.
    pub(crate) fn describe_contexts(&self) -> (Option<String>, Value) {
        let most = self.contexts.most;
        if most == 1 {
            return (None, json!({ "most": most, "users": [] }));
        }
        let servers = self.registry.servers.values();
        let common = servers.filter_map(|server| match server.key {
            ServerKey::User(uid) if server.takes_clients() => Some(uid),
            _ => None,
        });
        let mut lines = Vec::new();
        let mut users = Vec::new();
        for uid in common {
            let servers = self.contexts_of(uid);
            let is_ready = |server: &Server| server.state == State::Active;
            let ready = servers.iter().filter(|(_, server)| is_ready(server));
            let waiting = ready.clone().filter(|(_, server)| server.is_idle()).count();
            let ready = ready.count();
            let why = self.contexts.why_not(uid);
            let more = match why {
                Some(why) if ready < most as usize => format!(" (no more: {why})"),
                _ => String::new(),
            };
            lines.push(format!(
                "user {uid} has {ready} of {most} contexts, of which {waiting} wait for clients{more}"
            ));
            users.push(json!({
                "uid": uid,
                "contexts": ready,
                "waiting": waiting,
                "servers": servers.iter().map(|(_, server)| server.pid()).collect::<Vec<_>>(),
                "why_not_more": why.filter(|_| ready < most as usize),
            }));
        }
        let line = (!lines.is_empty()).then(|| lines.join("; "));
        (line, json!({ "most": most, "users": users }))
    }
}
