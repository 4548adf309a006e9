//! Sessions that another server takes over when theirs has ended: whose are kept, and which of them go on.
//!
//! Called by `admission` and `servers`. Must not know what is kept of a session.

use std::collections::VecDeque;
use std::time::Instant;

use protocol::control_messages::{FEATURE_TAKEOVER, Guilt, Hello};
use transport::memory::MemoryError;

use super::Daemon;
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
        if server.state != State::Active || self.is_quitting() {
            // It ended because it was told to, or its device was lost.
            return VecDeque::new();
        }
        let sessions = kept.into_values();
        let go_on = sessions.filter_map(|KeptSession { mut client, bases }| {
            if bases.is_empty() {
                // Nobody has welcomed it: it comes as if for the first time.
                client.memory = None;
                return hands_over.then_some(client);
            }
            let fault = server.clients.get(&client.session)?.fault.as_ref();
            let is_innocent = fault.is_none_or(|fault| fault.guilt == Guilt::Innocent);
            let memory = client.memory.take()?;
            let memory = memory.taken_over(bases, hands_over && is_innocent)?;
            client.memory = Some(memory);
            Some(client)
        });
        go_on.collect()
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
