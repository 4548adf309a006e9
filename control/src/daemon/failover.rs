//! Sessions that another server takes over when theirs has ended: whose are kept, and which of them go on.
//!
//! Called by `admission` and `servers`. Must not know what is kept of a session.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use protocol::control_messages::{FEATURE_TAKEOVER, Hello};
use transport::memory::MemoryError;

use super::Daemon;
use crate::servers::handovers::Since;
use crate::servers::kept_session::{KeptMemory, KeptSession};
use crate::servers::registry::{Server, ServerId, State, WaitingClient};

/// Devices that a server may have whose sessions are kept: a packet holds so many files and no more.
const MOST_DEVICES: usize = 8;

impl Daemon {
    /// The memory of a client that is about to be handed to a server with so many devices.
    ///
    /// # Errors
    /// When the process has no descriptor left, and the like.
    pub(crate) fn memory_for(
        &self,
        hello: &Hello,
        devices: usize,
    ) -> Result<KeptMemory, MemoryError> {
        let is_kept = self.options.failover
            && hello.features & FEATURE_TAKEOVER != 0
            && devices <= MOST_DEVICES;
        KeptMemory::create(if is_kept { devices } else { 0 })
    }

    /// A server has a client: its connection is closed here, unless another server can take the session over.
    pub(super) fn keep_or_close(&mut self, id: ServerId, client: WaitingClient) {
        let memory = client.memory.as_ref();
        let can_go_on = memory.is_some_and(|memory| !memory.files.is_empty());
        match self.registry.servers.get_mut(&id) {
            Some(server) if can_go_on => {
                let (session, bases) = (client.session, Vec::new());
                server.kept.insert(session, KeptSession { client, bases });
            }
            _ => client.connection.close_own_end(),
        }
    }

    /// The clients of a server that has ended whose sessions another one takes over. If it hands them over, whoever is not
    /// guilty of that can go over as often as it happens.
    pub(crate) fn sessions_to_take_over(
        &self,
        server: &mut Server,
        hands_over: bool,
    ) -> VecDeque<WaitingClient> {
        let kept = std::mem::take(&mut server.kept);
        if !matches!(server.state, State::Active | State::HandingOver) || self.is_quitting() {
            // It ended because it was told to, or its device was lost.
            return VecDeque::new();
        }
        let sessions = kept.into_values();
        let go_on = sessions.filter_map(|kept| {
            if kept.has_begun() {
                return server.taken_over(kept, hands_over);
            }
            // Nobody has welcomed it: it comes as if for the first time.
            let mut client = kept.client;
            client.memory = None;
            hands_over.then_some(client)
        });
        go_on.collect()
    }

    /// A server's process ends now, and its sessions stay as they are: one that stands by prepares them meanwhile. Whoever is in a
    /// group waits, since that counts what both have.
    pub(super) fn server_hands_over(&mut self, id: ServerId) {
        self.must_end(id);
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let (pid, key, uid) = (server.pid(), server.key.clone(), server.uid);
        let settings = server.settings.clone();
        let next = self.standby_for(&key, uid);
        let Some(next) = next.filter(|_| server.state == State::Active && !self.is_quitting())
        else {
            return;
        };
        let can_be_prepared = |kept: &KeptSession| {
            let KeptSession { client, bases } = kept;
            let is_bound = client.group.is_some() || client.partition.is_some();
            !bases.is_empty() && !is_bound && self.ending_server(client.former).is_none()
        };
        let kept = server.kept.iter();
        let sessions: Vec<u64> = kept
            .filter(|(_, kept)| can_be_prepared(kept))
            .map(|(&session, _)| session)
            .collect();
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        server.state = State::HandingOver;
        let mut waiting = VecDeque::new();
        for session in sessions {
            let kept = server.kept.remove(&session);
            if let Some(mut client) = kept.and_then(|kept| server.taken_over(kept, true)) {
                client.former = Some(id);
                server.clients.remove(&session);
                waiting.push_back(client);
            }
        }
        let sessions: BTreeSet<u64> = waiting.iter().map(|client| client.session).collect();
        waiting.append(&mut server.waiting);
        self.log(&format!(
            "Server {pid} hands {} clients over",
            sessions.len()
        ));
        self.handovers
            .begin((pid, Since::HandingOver), sessions, Instant::now());
        self.take_place((next, Since::HandingOver), key, settings, waiting);
    }

    /// A former server, if there is one whose process has not ended yet.
    pub(crate) fn ending_server(&self, former: Option<ServerId>) -> Option<ServerId> {
        former.filter(|id| self.registry.servers.contains_key(id))
    }

    /// A server's process has ended: sessions go on that others have prepared.
    pub(super) fn let_prepared_go_on(&mut self, former: ServerId) {
        for server in self.registry.servers.values_mut() {
            if server.formers.remove(&former) {
                server.ended_formers.push(former);
                server.say_who_ended();
            }
        }
    }

    /// A server was handed a session. Says so if it was the last one of a server that has ended.
    pub(super) fn say_if_all_are_sent(&mut self, id: ServerId, session: u64) {
        if let Some(reached) = self.handovers.sent(session, Instant::now()) {
            let line = |pid| format!("Server {pid} was handed {reached}");
            self.say_of(id, line);
        }
    }

    /// A server has a session, or it has ended. Says so if it was the last one of a server that has ended.
    pub(super) fn say_if_all_are_welcomed(&mut self, id: ServerId, session: u64) {
        if let Some(reached) = self.handovers.welcomed(session, Instant::now()) {
            let line = |pid| format!("Server {pid} has welcomed {reached}");
            self.say_of(id, line);
        }
    }

    fn say_of(&self, id: ServerId, line: impl Fn(u32) -> String) {
        if let Some(server) = self.registry.servers.get(&id) {
            self.log(&line(server.pid()));
        }
    }
}
