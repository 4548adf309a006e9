//! Users: who sees what, and who has to wait for whom.
//!
//! By default one user is served at a time, as by NVIDIA's: another user's clients wait until the
//! present servers' clients have left, and then a server of theirs takes the place. With `-M` each
//! user has an executor of its own and nobody waits. Whoever asks for one executor for all, by name,
//! gets that.
//!
//! Called by commands, `admission` and the event loop. Must not know why a user wants the device.

use protocol::control_messages::{FEATURE_QUEUED, Packet};
use serde_json::json;
use transport::socket::overflow_uid;

use super::Daemon;
use crate::commands::Caller;
use crate::log::events::of_client;
use crate::servers::faults::ClientFault;
use crate::servers::placement::{Isolation, ServerKey};
use crate::servers::registry::{Client, QueuedClient, ServerId, State};

/// Clients of other users that may wait.
const MAX_QUEUED: usize = 4096;

/// And those of one user.
const MAX_QUEUED_OF_USER: usize = 1024;

impl Daemon {
    /// Whether a user may see a server: its own, the one for all, or any for whoever may change
    /// things.
    pub(crate) fn may_see_server(&self, caller: Caller, id: ServerId) -> bool {
        let Some(server) = self.registry.servers.get(&id) else {
            return false;
        };
        if caller.group.is_some() {
            let mut clients = server.clients.values();
            return clients.any(|client| client.group == caller.group);
        }
        self.may_change(caller) || server.key == ServerKey::Shared || server.uid == caller.uid
    }

    /// The clients of a server that a user may see, in order of connection.
    pub(crate) fn clients_seen_by(&self, caller: Caller, id: ServerId) -> Vec<&Client> {
        let Some(server) = self.registry.servers.get(&id) else {
            return Vec::new();
        };
        let mut clients = server.clients_in_order();
        clients.retain(|client| self.sees_client(caller, client));
        clients
    }

    /// Whether a client is for a caller to see: one's own user's, or one's own group's for whoever
    /// came through its socket, or any for whoever may change things.
    pub(crate) fn sees_client(&self, caller: Caller, client: &Client) -> bool {
        self.sees(caller, client.uid, client.group)
    }

    /// The last faults of clients that are, or were, for a caller to see.
    pub(crate) fn faults_seen_by(
        &self,
        caller: Caller,
    ) -> impl DoubleEndedIterator<Item = &ClientFault> {
        let all = self.registry.faults.last();
        all.filter(move |one| self.sees(caller, one.uid, one.group))
    }

    fn sees(&self, caller: Caller, uid: u32, group: Option<u32>) -> bool {
        match caller.group {
            Some(of) => group == Some(of),
            None => {
                let own = uid == caller.uid && caller.uid != overflow_uid();
                self.may_change(caller) || own
            }
        }
    }

    /// A server for which a user has to wait, because it is another's.
    pub(crate) fn server_in_the_way_of(&self, uid: u32) -> Option<ServerId> {
        if self.multiuser || self.isolation == Isolation::None {
            return None;
        }
        let mut servers = self.registry.servers.iter();
        servers
            .find(|(_, server)| server.uid != uid && !server.key.is_standby())
            .map(|(&id, _)| id)
    }

    /// Ends a server that is in another user's way, if nobody needs it. Says whether it ends.
    pub(crate) fn shut_down_if_idle(&mut self, id: ServerId) -> bool {
        let Some(server) = self.registry.servers.get(&id) else {
            return false;
        };
        // Its user's clients may come to any of its servers.
        let mut of_user = self.registry.servers.values();
        if of_user.any(|other| other.uid == server.uid && !other.is_idle()) {
            return false;
        }
        if server.takes_clients() {
            self.shut_down_server(id, false, None);
        }
        true
    }

    /// Lets a client wait for another user's to leave.
    pub(crate) fn queue(&mut self, queued: QueuedClient) {
        let QueuedClient { peer, hello, .. } = &queued;
        let of_user = |queued: &QueuedClient| queued.peer.uid == peer.uid;
        let is_full = |all: &std::collections::VecDeque<QueuedClient>| {
            all.len() >= MAX_QUEUED
                || all.iter().filter(|other| of_user(other)).count() >= MAX_QUEUED_OF_USER
        };
        if is_full(&self.queued) {
            self.queued.retain(|queued| !queued.connection.is_closed());
        }
        if is_full(&self.queued) {
            let code = cuda_abi::CUresult::ERROR_MPS_MAX_CLIENTS_REACHED;
            let pid = Some(peer.pid);
            let (to, group) = (&queued.connection, queued.group);
            return self.refuse_with(to, pid, group, code, "too many clients wait");
        }
        let text = "another user's programs have the device; a daemon with -M serves all at once";
        let about = self.about(peer.uid, queued.group);
        let line = format!(
            "NEW CLIENT {} from user {}: Server is not ready, push client to pending list",
            peer.pid, peer.uid
        );
        self.log_about(&about, &line);
        self.event_about(
            &about,
            "client.queued",
            json!({ "client": peer.pid, "uid": peer.uid }),
            json!({ "why": text }),
        );
        if hello.features & FEATURE_QUEUED != 0 {
            let packet = Packet::Queued { text: text.into() };
            let _ = queued.connection.try_send(&packet.encode(), &[]);
        }
        self.queued.push_back(queued);
        self.serve_next_user();
    }

    /// Lets the next user's clients in, if nobody is in their way; else ends servers that are and
    /// that nobody needs. To be called whenever a client or a server has gone.
    pub(crate) fn serve_next_user(&mut self) {
        if self.is_quitting() {
            for queued in std::mem::take(&mut self.queued) {
                let code = cuda_abi::CUresult::ERROR_MPS_SERVER_NOT_READY;
                let pid = Some(queued.peer.pid);
                let (to, group) = (&queued.connection, queued.group);
                self.refuse_with(to, pid, group, code, "the daemon is quitting");
            }
            return;
        }
        // Whoever gave up ends no server.
        while let Some(first) = self.queued.front()
            && first.connection.is_closed()
        {
            self.queued.pop_front();
        }
        let Some(uid) = self.queued.front().map(|first| first.peer.uid) else {
            return;
        };
        if self.server_in_the_way_of(uid).is_some() {
            let others: Vec<ServerId> = self
                .registry
                .servers
                .iter()
                .filter(|(_, server)| server.uid != uid && server.state != State::Stopping)
                .map(|(&id, _)| id)
                .collect();
            for id in others {
                self.shut_down_if_idle(id);
            }
            return;
        }
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.queued)
            .into_iter()
            .partition(|queued| queued.peer.uid == uid);
        self.queued = later.into();
        for queued in now {
            if !queued.connection.is_closed() {
                self.admit_client(queued);
            }
        }
    }

    /// Ends the sessions that a process has with a server, and gives their numbers.
    pub(crate) fn terminate(&mut self, id: ServerId, pid: i32, caller: Caller) -> Vec<u64> {
        let Some(server) = self.registry.servers.get(&id) else {
            return Vec::new();
        };
        let mut sessions = Vec::new();
        for (&session, client) in &server.clients {
            let packet = Packet::Terminate { session };
            if client.pid == pid && server.connection.try_send(&packet.encode(), &[]).is_ok() {
                sessions.push(session);
                self.event(
                    "client.terminated",
                    of_client(server, client),
                    json!({ "by_uid": caller.uid, "by_pid": caller.pid }),
                );
            }
        }
        sessions
    }
}
