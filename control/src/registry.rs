//! The servers that run, and the clients that each has.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Instant;

use transport::handshake::{ClientFields, Hello};
use transport::socket::{Connection, Peer};

use crate::placement::Key;
use crate::settings::Settings;

/// Names a server for the daemon's life; pids are used again, these numbers are not.
pub type ServerId = u64;

/// Clients that a server was handed and has not yet welcomed, at most; the others wait in the daemon.
/// Descriptors in flight are limited by the kernel.
const IN_FLIGHT: usize = 64;

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was started and has not said that it is ready.
    Initializing,
    /// It takes clients.
    Active,
    /// It was told to end.
    Stopping,
}

/// A client that has come and waits for its server.
#[derive(Debug)]
pub struct Waiting {
    /// Its session.
    pub session: u64,
    /// Its connection.
    pub connection: Connection,
    /// Who it is.
    pub peer: Peer,
    /// What it said.
    pub hello: Hello,
    /// Its wishes, narrowed to what it gets.
    pub fields: ClientFields,
}

/// A client that a server has.
#[derive(Debug)]
pub struct Client {
    /// Its process id as seen from here, or 0.
    pub pid: i32,
    /// Its number in its server, in order of connection, from 1.
    pub serial: u64,
    /// Its program's name.
    pub program: String,
    /// The inode of its pid namespace, or 0.
    pub namespace: u64,
    /// Whether the server has welcomed it.
    pub attached: bool,
}

/// A device as a server tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// `GPU-…`
    pub uuid: String,
    /// Its name.
    pub name: String,
}

impl Device {
    /// Reads `GPU-… name`.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let (uuid, name) = text.split_once(' ').unwrap_or(("", text));
        Self {
            uuid: uuid.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The first three groups of the UUID, which is what lists show.
    #[must_use]
    pub fn short_uuid(&self) -> &str {
        match self.uuid.match_indices('-').nth(3) {
            Some((end, _)) => &self.uuid[..end],
            None => &self.uuid,
        }
    }
}

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Whose executor it is.
    pub key: Key,
    /// The user that it was started for.
    pub uid: u32,
    /// The process.
    pub child: Child,
    /// Becomes readable when the process ends.
    pub pidfd: OwnedFd,
    /// To it.
    pub connection: Connection,
    /// How far it is.
    pub state: State,
    /// When it must be gone, after which it is killed.
    pub deadline: Option<Instant>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Its clients' limits.
    pub settings: Settings,
    /// Clients that wait for it.
    pub waiting: VecDeque<Waiting>,
    /// Clients that it has, by session.
    pub clients: BTreeMap<u64, Client>,
    /// The serial number of its last client.
    pub last_serial: u64,
}

impl Server {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it can be handed a client now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.state == State::Active
            && self
                .clients
                .values()
                .filter(|client| !client.attached)
                .count()
                < IN_FLIGHT
    }

    /// Its clients in order of connection.
    #[must_use]
    pub fn clients_in_order(&self) -> Vec<&Client> {
        let mut clients: Vec<_> = self.clients.values().collect();
        clients.sort_by_key(|client| client.serial);
        clients
    }
}

/// All servers.
#[derive(Debug, Default)]
pub struct Registry {
    /// By number, and so in the order in which they were started.
    pub servers: BTreeMap<ServerId, Server>,
}

impl Registry {
    /// The server for an executor's key, unless it is ending.
    #[must_use]
    pub fn for_key(&self, key: &Key) -> Option<ServerId> {
        self.servers
            .iter()
            .find(|(_, server)| server.key == *key && server.state != State::Stopping)
            .map(|(&id, _)| id)
    }

    /// The server with a process id.
    #[must_use]
    pub fn by_pid(&self, pid: u32) -> Option<ServerId> {
        self.servers
            .iter()
            .find(|(_, server)| server.pid() == pid)
            .map(|(&id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_shortened() {
        let device = Device::from_text("GPU-42cb4199-3815-ad18-8602-5061126b1629 NVIDIA H200");
        assert_eq!(device.name, "NVIDIA H200");
        assert_eq!(device.short_uuid(), "GPU-42cb4199-3815-ad18");
        assert_eq!(Device::from_text("odd").short_uuid(), "");
    }
}
