//! The servers that run, and the clients that each has.
//!
//! Kept by the daemon and read by commands. Must not speak to a server, nor end one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Instant;

use daemon_interface::group_usage;
use protocol::control_messages::{
    ClientFields, DeviceAccount, Guilt, Hello, ListedDevice, Packet, Takeovers,
};
use transport::socket::{Connection, Peer};

use crate::container::Container;
use crate::servers::faults::{Fault, Faults};
use crate::servers::kept_session::{KeptMemory, KeptSession};
use crate::servers::limits::{ClientLimits, ServerLimits, priority_of, set_limits};
use crate::servers::placement::{Companion, ServerKey};

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
    /// It lost a device, and its process ends now. Its clients go on at another server.
    HandingOver,
    /// It lost a device, and ends when its clients have left. Others get another server.
    Fault,
    /// It was told to end.
    Stopping,
}

/// A client that has come and waits for its server.
#[derive(Debug)]
pub struct WaitingClient {
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
    /// Its label, fit for lists.
    pub label: Option<String>,
    /// What it belongs to, by its own word.
    pub job: Option<String>,
    /// Its group.
    pub group: Option<u32>,
    /// Its static partition, or that it has none where it needs one.
    pub partition: Option<u32>,
    /// What its session is given, once it was made.
    pub memory: Option<KeptMemory>,
    /// How often its session was taken over.
    pub takeovers: Takeovers,
    /// The server that had it before, whose process may not have ended when the next one gets it.
    pub former: Option<ServerId>,
}

impl WaitingClient {
    /// As far as it matters with whom it shares a context.
    #[must_use]
    pub fn companion(&self) -> Companion<'_> {
        Companion {
            process: (self.peer.pid, self.peer.identity()),
            job: self.job.as_deref(),
            is_below_normal: priority_of(&self.fields) > 0,
        }
    }
}

/// A client that has come, and waits if it must for another user's to leave.
#[derive(Debug)]
pub struct QueuedClient {
    /// Its connection.
    pub connection: Connection,
    /// Who it is.
    pub peer: Peer,
    /// What it said.
    pub hello: Hello,
    /// Its group.
    pub group: Option<u32>,
}

/// A client that a server has.
#[derive(Debug)]
pub struct Client {
    /// Its process id as seen from here, or 0.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its number in its server, in order of connection, from 1.
    pub serial: u64,
    /// Its program's name.
    pub program: String,
    /// What it is called besides, fit for lists.
    pub label: Option<String>,
    /// Where it is.
    pub container: Container,
    /// The inode of its pid namespace, or 0.
    pub namespace: u64,
    /// Its process's own number, which tells it from others that cannot be seen, where there is one.
    pub identity: Option<u64>,
    /// What it belongs to, by its own word.
    pub job: Option<String>,
    /// Whether the server has welcomed it.
    pub attached: bool,
    /// Its group.
    pub group: Option<u32>,
    /// Its static partition, or that it has none where it needs one.
    pub partition: Option<u32>,
    /// What it may have.
    pub limits: ClientLimits,
    /// The last fault of a context of its.
    pub fault: Option<Fault>,
    /// How often its session was taken over.
    pub takeovers: Takeovers,
}

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Whose executor it is.
    pub key: ServerKey,
    /// The user that it was started for.
    pub uid: u32,
    /// And the group, if a client brought it.
    pub gid: Option<u32>,
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
    /// When it was killed, for good.
    pub killed: Option<Instant>,
    /// Its devices.
    pub devices: Vec<ListedDevice>,
    /// Its clients' limits.
    pub settings: ServerLimits,
    /// Clients that wait for it.
    pub waiting: VecDeque<WaitingClient>,
    /// Its socket is watched for room for one of them.
    pub awaits_room: bool,
    /// Clients that it has, by session.
    pub clients: BTreeMap<u64, Client>,
    /// Those of their sessions that another server can take over.
    pub kept: BTreeMap<u64, KeptSession>,
    /// The serial number of its last client.
    pub last_serial: u64,
    /// Its slot in the groups' usage, if one was left.
    pub slot: Option<u32>,
    /// The run of the underlay that it is on.
    pub underlay: Option<u64>,
    /// Devices on which nothing of it has ended for long, and since when, in nanoseconds of CLOCK_MONOTONIC.
    pub still: BTreeMap<u32, u64>,
    /// What it has taken over.
    pub takeovers: Takeovers,
    /// Servers whose end it waits for before sessions go on that it has prepared.
    pub formers: BTreeSet<ServerId>,
    /// Those of them that have ended, which it has not been told yet.
    pub ended_formers: Vec<ServerId>,
}

impl Server {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// No other server is to take a session over any more.
    pub fn stop_keeping(&mut self, session: u64) {
        if let Some(kept) = self.kept.remove(&session) {
            kept.client.connection.close_own_end();
        }
    }

    /// A session of its that was welcomed, if not by it, for the server that goes on with it. `None` if that cannot be. If it hands its sessions over,
    /// whoever is not guilty of that can go over as often as it happens.
    #[must_use]
    pub fn taken_over(&self, kept: KeptSession, hands_over: bool) -> Option<WaitingClient> {
        let KeptSession { mut client, bases } = kept;
        let known = self.clients.get(&client.session)?;
        let fault = known.fault.as_ref();
        let is_innocent = fault.is_none_or(|fault| fault.guilt == Guilt::Innocent);
        let memory = client.memory.take()?;
        let memory = memory.taken_over(bases, hands_over && is_innocent)?;
        client.memory = Some(memory);
        client.takeovers = known.takeovers;
        Some(client)
    }

    /// Tells it which of its sessions' former servers have ended. What its socket does not take now it is told later.
    pub fn say_who_ended(&mut self) {
        let connection = &self.connection;
        self.ended_formers.retain(|&former| {
            let packet = Packet::FormerEnded { former };
            let sent = connection.try_send(&packet.encode(), &[]);
            sent.is_err_and(|error| error.would_wait())
        });
    }

    /// The memory of a session that another server can take over.
    pub fn kept_memory(&mut self, session: u64) -> Option<&mut KeptMemory> {
        self.kept.get_mut(&session)?.client.memory.as_mut()
    }

    /// Notes what a client may have now. Whether it is there.
    pub fn set_limits(&mut self, session: u64, limits: &ClientLimits) -> bool {
        let Some(client) = self.clients.get_mut(&session) else {
            return false;
        };
        client.limits = limits.clone();
        let kept = self.kept.get_mut(&session);
        if kept.is_some_and(|kept| !set_limits(&mut kept.client.fields, limits)) {
            self.stop_keeping(session);
        }
        true
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

    /// Whether clients may come to it, now or when it is ready.
    #[must_use]
    pub const fn takes_clients(&self) -> bool {
        matches!(self.state, State::Initializing | State::Active)
    }

    /// Whether it has no clients, and none waits for it.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.clients.is_empty() && self.waiting.is_empty()
    }

    /// Who is there, or waits to be, as far as it matters who comes beside them.
    #[must_use]
    pub fn companions(&self) -> Vec<Companion<'_>> {
        let waiting = self.waiting.iter().map(WaitingClient::companion);
        let clients = self.clients.values().map(|client| Companion {
            process: (client.pid, client.identity),
            job: client.job.as_deref(),
            is_below_normal: client.limits.priority > 0,
        });
        clients.chain(waiting).collect()
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
    /// By device, what clients had that have left.
    pub departed: Vec<DeviceAccount>,
    /// What of clients has faulted.
    pub faults: Faults,
    /// What servers have taken over.
    pub takeovers: Takeovers,
}

impl Registry {
    /// How many pieces of device memory are kept of all sessions: each may have a descriptor.
    pub fn kept_pieces(&self) -> u64 {
        let sessions = self
            .servers
            .values()
            .flat_map(|server| server.kept.values());
        let memories = sessions.filter_map(|kept| kept.client.memory.as_ref());
        memories
            .map(|kept| (kept.chunks.len() + kept.windows.len()) as u64)
            .sum()
    }

    /// A server has told of a fault of a client's.
    pub fn add_fault(&mut self, id: ServerId, session: u64, fault: &Fault) {
        let Some(server) = self.servers.get_mut(&id) else {
            return;
        };
        if let Some(client) = server.clients.get_mut(&session) {
            client.fault = Some(fault.clone());
        }
        if let Some(client) = server.clients.get(&session) {
            self.faults.add(server, session, client, fault.clone());
        }
    }

    /// A server has taken a client's session over. How often that was done by now, if it has such a client.
    pub fn add_takeovers(
        &mut self,
        id: ServerId,
        session: u64,
        more: &Takeovers,
    ) -> Option<Takeovers> {
        let server = self.servers.get_mut(&id)?;
        let client = server.clients.get_mut(&session)?;
        client.takeovers.add(more);
        server.takeovers.add(more);
        self.takeovers.add(more);
        Some(client.takeovers)
    }

    /// Adds what a client had that has left.
    pub fn add_usage_of_departed(&mut self, accounts: &[DeviceAccount]) {
        // A server says so, which is no more trusted than its user.
        let devices = accounts.len().min(group_usage::DEVICES as usize);
        if self.departed.len() < devices {
            self.departed.resize_with(devices, DeviceAccount::default);
        }
        for (sum, account) in self.departed.iter_mut().zip(accounts) {
            sum.add(account);
        }
    }

    /// The server for an executor's key, unless it is ending.
    #[must_use]
    pub fn server_with_key(&self, key: &ServerKey) -> Option<ServerId> {
        self.servers
            .iter()
            .find(|(_, server)| server.key == *key && server.takes_clients())
            .map(|(&id, _)| id)
    }

    /// What clients get whose executor has this key, if it runs, or another context of the same user's does.
    #[must_use]
    pub fn settings(&self, key: &ServerKey) -> Option<&ServerLimits> {
        let user = key.one_of_users();
        let is_it = |server: &&Server| {
            server.key == *key || user.is_some() && server.key.one_of_users() == user
        };
        let mut servers = self.servers.values();
        let found = servers.find(|server| server.takes_clients() && is_it(server))?;
        Some(&found.settings)
    }

    /// Gives a server's settings to all contexts of its user.
    pub fn share_settings(&mut self, id: ServerId) {
        let Some(server) = self.servers.get(&id) else {
            return;
        };
        let (Some(user), settings) = (server.key.one_of_users(), server.settings.clone()) else {
            return;
        };
        for server in self.servers.values_mut() {
            if server.key.one_of_users() == Some(user) {
                server.settings.clone_from(&settings);
            }
        }
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
