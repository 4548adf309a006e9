//! Clients of servers that run are moved to servers of the program that the daemon is about to go on as.
//!
//! One server after the other: when a standby of the new program is ready, which shows that it runs here and understands this daemon, the server is
//! asked to hand its clients over at rest, so that nobody loses anything; from there on it is as after a fault (`failover`). A server
//! whose clients cannot all go over keeps them until they end, as all do without `--failover` or standbys.
//!
//! Called by `upgrade`, and by `servers` when a server has answered. Must not know what is kept of a session.

use std::time::Instant;

use protocol::control_messages::Packet;

use super::Daemon;
use crate::servers::moving::Moving;
use crate::servers::placement::ServerKey;
use crate::servers::registry::{Server, ServerId, State};

impl Daemon {
    /// Begins to move clients, to standbys that are started from now on.
    pub(super) fn begin_to_move(&mut self) -> Moving {
        let standbys = self.registry.servers.iter();
        let standbys: Vec<ServerId> = standbys
            .filter(|(_, server)| server.key.is_standby() && server.takes_clients())
            .map(|(&id, _)| id)
            .collect();
        if self.has_standbys() {
            for id in standbys {
                self.shut_down_server(id, false, None);
            }
        }
        Moving::begin(Instant::now())
    }

    /// Moves the clients of the next server that is older than `first`. Whether there is something to be waited for.
    pub(super) fn move_clients(&mut self, moving: &mut Moving, first: ServerId) -> bool {
        if let Some(id) = moving.asked {
            if self.registry.servers.contains_key(&id) {
                return true;
            }
            moving.asked = None;
        }
        if moving.until <= Instant::now() || !self.has_standbys() {
            return false;
        }
        let mut former = self.registry.servers.range(..first);
        let next = former.find(|&(id, server)| !moving.stay.contains(id) && can_be_moved(server));
        let Some((&id, server)) = next else {
            return false;
        };
        let standby = self
            .registry
            .server_with_key(&ServerKey::Standby(server.uid));
        let sent = match standby.and_then(|standby| self.registry.servers.get(&standby)) {
            Some(standby) if standby.state == State::Active => {
                let packet = Packet::HandOver.encode();
                server.connection.try_send(&packet, &[]).is_ok()
            }
            Some(_) => return true,
            None if self.standbys.may_start_before(server.uid, moving.until) => return true,
            None => false,
        };
        match sent {
            true => moving.asked = Some(id),
            false => drop(moving.stay.insert(id)),
        }
        true
    }

    /// A server's clients stay.
    pub(super) fn server_stays(&mut self, id: ServerId, why: &str) {
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let (pid, clients) = (server.pid(), server.clients.len());
        self.log(&format!(
            "The {clients} clients of server {pid} stay there: {why}"
        ));
        let moving = self.upgrade.as_mut();
        if let Some(moving) = moving.and_then(|upgrade| upgrade.moving.as_mut())
            && moving.asked == Some(id)
        {
            moving.asked = None;
            moving.stay.insert(id);
        }
    }
}

/// Whether all clients of a server could go over, as far as is known here.
fn can_be_moved(server: &Server) -> bool {
    let mut clients = server.clients.keys();
    server.key.may_be_followed()
        && server.state == State::Active
        && !server.kept.is_empty()
        && clients.all(|session| server.kept.contains_key(session))
}
