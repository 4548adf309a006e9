//! Clients: who they are, what they get, and how they come to their server.
//!
//! Called by `daemon::connections` and `users`. Must not know what a client runs, nor its ring: the descriptors are
//! handed over unread.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use cuda_abi::CUresult;
use daemon_interface::label;
use protocol::control_messages::{
    Admit, Hello, Membership, NO_PARTITION, Packet, Purpose, Takeovers, negotiate,
};
use protocol::limits::FENCED;
use serde_json::json;
use transport::memory::Sealed;
use transport::socket::{Connection, SocketError};

use super::Daemon;
use crate::container::Container;
use crate::groups::NotAnnounced;
use crate::log::events::of_client;
use crate::servers::kept_session::KeptMemory;
use crate::servers::limits::{limits_of, percentage_of, priority_of};
use crate::servers::placement::{Companion, Requester, server_for};
use crate::servers::registry::QueuedClient;
use crate::servers::registry::{Client, ServerId, State, WaitingClient};

/// Clients that may wait for one server.
const MAX_WAITING: usize = 4096;

/// Bytes of what a client says that it belongs to: what is longer is not known.
const MAX_JOB: usize = 256;

/// Longest name of a program that is kept.
const MAX_PROGRAM: usize = 256;

impl Daemon {
    /// Tells somebody that there is no session, and why.
    pub(crate) fn refuse(
        &self,
        connection: &Connection,
        pid: Option<i32>,
        group: Option<u32>,
        text: &str,
    ) {
        let code = CUresult::ERROR_MPS_CONNECTION_FAILED;
        self.refuse_with(connection, pid, group, code, text);
    }

    pub(crate) fn refuse_with(
        &self,
        connection: &Connection,
        pid: Option<i32>,
        group: Option<u32>,
        code: CUresult,
        text: &str,
    ) {
        let who = pid.map_or_else(|| "a connection".to_owned(), |pid| format!("client {pid}"));
        let about = self.about_peer(connection, group);
        let line = format!("Refused {who} with error {}: {text}", code.0);
        self.log_about(&about, &line);
        self.event_about(
            &about,
            "client.refused",
            json!({ "client": pid }),
            json!({ "code": code.0, "why": text }),
        );
        let packet = Packet::Refused {
            code: code.0,
            text: text.to_owned(),
        };
        let _ = connection.try_send(&packet.encode(), &[]);
    }

    /// A client has come.
    pub(crate) fn client(&mut self, connection: Connection, hello: Hello, via: Option<u32>) {
        let peer = match connection.peer() {
            Ok(peer) => peer,
            Err(error) => {
                let text = format!("cannot tell who the client is: {error}");
                return self.refuse(&connection, None, via, &text);
            }
        };
        if self.is_quitting() {
            let code = CUresult::ERROR_MPS_SERVER_NOT_READY;
            let pid = Some(peer.pid);
            return self.refuse_with(&connection, pid, via, code, "the daemon is quitting");
        }
        let group = self.group_of(&peer, via);
        let uid = peer.uid;
        let client = QueuedClient {
            connection,
            peer,
            hello,
            group,
        };
        if self.server_in_the_way_of(uid).is_some() {
            return self.queue(client);
        }
        self.admit_client(client);
    }

    /// A client's turn has come.
    pub(crate) fn admit_client(&mut self, client: QueuedClient) {
        let QueuedClient {
            connection,
            peer,
            hello,
            group,
        } = client;
        let (pid, uid) = (peer.pid, peer.uid);
        let Purpose::Client(wishes) = &hello.purpose else {
            return;
        };
        let session = self.number();
        let named = group.and_then(|number| self.groups.by_number.get(&number));
        let key = server_for(
            Requester {
                uid,
                group: named.map(|group| &*group.name),
                session,
            },
            self.isolation,
        );
        let settings = self.settings_for(&key);
        let mut fields = match settings.limits_for_client(wishes, self.default_priority) {
            Ok(fields) => fields,
            Err(error) => return self.refuse(&connection, Some(pid), group, &error.to_string()),
        };
        if named.is_some_and(|group| group.limits.fenced) {
            fields.isolation = Some(FENCED.to_owned());
        }
        fields.program = clean(&fields.program);
        let label = fields.label.take().and_then(|text| label::of(&text));
        let job = fields.job.take().filter(|job| job.len() <= MAX_JOB);
        let who = Companion {
            process: (pid, peer.identity()),
            job: job.as_deref(),
            is_below_normal: priority_of(&fields) > 0,
        };
        let is_limited = self.is_limited(percentage_of(&fields), named);

        let id = match self.server_for_client(&key, &who, is_limited) {
            Some(id) => Ok(id),
            None => self.start_server_for(key, uid, Some(peer.gid)),
        };

        let id = match id {
            Ok(id) => id,
            Err(error) => {
                return self.refuse(&connection, Some(pid), group, &error.to_string());
            }
        };
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        if server.waiting.len() >= MAX_WAITING {
            let code = CUresult::ERROR_MPS_MAX_CLIENTS_REACHED;
            let text = "too many clients are waiting";
            return self.refuse_with(&connection, Some(pid), group, code, text);
        }
        let state = server.state;
        server.waiting.push_back(WaitingClient {
            session,
            connection,
            peer,
            hello,
            fields,
            label,
            job,
            group,
            partition: None,
            memory: None,
            takeovers: Takeovers::default(),
            former: None,
        });
        let how = match state {
            State::Active => "Server already exists",
            _ => "Server is not ready, push client to pending list",
        };
        let about = self.about(uid, group);
        self.log_about(&about, &format!("NEW CLIENT {pid} from user {uid}: {how}"));
        self.hand_over_clients(id);
    }

    /// Hands waiting clients to a server, as many as it takes now.
    pub(crate) fn hand_over_clients(&mut self, id: ServerId) {
        // In this order: who goes on may grow to where another's memory lies.
        if !self.tell_of_windows(id) {
            return;
        }
        if let Some(server) = self.registry.servers.get_mut(&id) {
            server.say_who_ended();
        }
        loop {
            let Some(server) = self.registry.servers.get_mut(&id) else {
                return;
            };
            if !server.has_room() {
                return;
            }
            let Some(waiting) = server.waiting.pop_front() else {
                return;
            };
            if let Some(waiting) = self.admit(id, waiting)
                && let Some(server) = self.registry.servers.get_mut(&id)
            {
                // The server's socket is full: it has much to read.
                server.waiting.push_front(waiting);
                return self.watch_for_room(id, true);
            }
        }
    }

    /// Tells a server what windows all sessions have that it takes over: before the first of them goes on, and grows to where
    /// another one has its own. Whether it was told of all.
    fn tell_of_windows(&mut self, id: ServerId) -> bool {
        let server = self.registry.servers.get_mut(&id);
        let Some(server) = server.filter(|server| server.has_room()) else {
            return false;
        };
        let (to, waiting) = ((id, &server.connection), &mut server.waiting);
        let told = waiting.iter_mut().try_for_each(|client| {
            let session = client.session;
            let memory = client.memory.as_mut();
            memory.map_or(Ok(()), |kept| {
                send_kept(to, session, kept, kept.windows.len())
            })
        });
        if told.is_err_and(|error| error.would_wait()) {
            self.watch_for_room(id, true);
            return false;
        }
        true
    }

    /// Hands a client to its server. Gives it back if that has to wait.
    fn admit(&mut self, id: ServerId, mut waiting: WaitingClient) -> Option<WaitingClient> {
        let (pid, group) = (waiting.peer.pid, waiting.group);
        let devices = self.registry.servers.get(&id)?.devices.len();
        let memory = match waiting.memory.take() {
            Some(memory) => Ok(memory),
            None => self.memory_for(&waiting.hello, devices),
        };
        match memory {
            Ok(memory) => waiting.memory = Some(memory),
            Err(error) => {
                self.refuse_with(
                    &waiting.connection,
                    Some(pid),
                    group,
                    CUresult::ERROR_MPS_MAX_CLIENTS_REACHED,
                    &error.to_string(),
                );
                return None;
            }
        }
        let version = match negotiate(waiting.hello.version) {
            Ok(version) => version,
            Err(versions) => {
                self.refuse(&waiting.connection, Some(pid), group, &versions.to_string());
                return None;
            }
        };
        // Not before there are devices.
        if let Purpose::Client(wishes) = &waiting.hello.purpose {
            let about = self.about(waiting.peer.uid, group);
            waiting.partition = self.partition_of(pid, &about, wishes);
        }
        let groups = [waiting.group, waiting.partition];
        for number in groups
            .into_iter()
            .flatten()
            .filter(|number| *number != NO_PARTITION)
        {
            match self.announce_group(id, number) {
                Ok(()) => {}
                Err(NotAnnounced::Later) => return Some(waiting),
                Err(NotAnnounced::Never(code, why)) => {
                    self.refuse_with(&waiting.connection, Some(pid), group, code, &why);
                    return None;
                }
            }
        }
        let namespace = namespace_of(pid);
        // As it is for its server and, once that has it, in the registry.
        let mut client = Client {
            pid,
            uid: waiting.peer.uid,
            serial: 0,
            program: waiting.fields.program.clone(),
            label: waiting.label.clone(),
            container: Container::of(pid),
            namespace,
            identity: waiting.peer.identity(),
            job: waiting.job.clone(),
            attached: false,
            group: waiting.group,
            partition: waiting.partition,
            limits: limits_of(&waiting.fields, &self.registry.servers.get(&id)?.devices),
            fault: None,
            takeovers: waiting.takeovers,
        };
        let former = self.ending_server(waiting.former);
        self.forget_who_stopped_recording();
        let time_line = self.recorder_of(&client);
        let server = self.registry.servers.get(&id)?;
        let to = (id, &server.connection);
        let told = send_kept(to, waiting.session, waiting.memory.as_mut()?, usize::MAX);
        if told.as_ref().is_err_and(SocketError::would_wait) {
            return Some(waiting);
        }
        let kept = waiting.memory.as_ref()?;
        let admit = Packet::Admit(Admit {
            session: waiting.session,
            pid,
            uid: waiting.peer.uid,
            gid: waiting.peer.gid,
            namespace,
            version,
            fingerprint: waiting.hello.fingerprint,
            features: waiting.hello.features,
            client: waiting.fields.clone(),
            member: Membership {
                group: waiting.group,
                partition: waiting.partition,
            },
            time_line,
            files: u32::try_from(kept.files.len()).unwrap_or(0),
            bases: kept
                .former
                .as_ref()
                .map_or_else(Vec::new, |(_, bases)| bases.clone()),
            takeover: kept.takeover,
            former,
        });
        let [ring, status, staging, host] = kept.memory.fds();
        let mut fds = vec![
            waiting.connection.as_fd(),
            waiting.peer.pidfd.as_fd(),
            ring,
            status,
            staging,
            host,
        ];
        fds.extend(kept.files.iter().map(Sealed::as_fd));
        fds.extend(kept.former.as_ref().map(|(status, _)| status.as_fd()));
        let time_line = time_line.and_then(|number| self.time_lines.get(&number));
        if let Some(time_line) = time_line {
            self.announce(time_line, waiting.session, &client);
            fds.push(time_line.asker.connection.as_fd());
        }
        let server = self.registry.servers.get_mut(&id)?;
        let sent = told.and_then(|()| server.connection.try_send(&admit.encode(), &fds));
        match sent {
            Ok(()) => {
                server.formers.extend(former);
                server.last_serial += 1;
                client.serial = server.last_serial;
                let about = of_client(server, &client);
                self.say_whom_it_gives_way_to(id, &client);
                let server = self.registry.servers.get_mut(&id)?;
                server.clients.insert(waiting.session, client);
                let payer = self.about(waiting.peer.uid, group);
                let group = group.and_then(|number| self.groups.by_number.get(&number));
                let group = group.map(|group| &group.name);
                let more = json!({ "group": group });
                self.event_about(&payer, "client.connected", about, more);
                self.say_if_all_are_sent(id, waiting.session);
                self.keep_or_close(id, waiting);
                None
            }
            Err(error) if error.would_wait() => Some(waiting),
            // It ends, and another one follows that takes over what it had.
            Err(SocketError::Closed) if self.options.failover => Some(waiting),
            Err(SocketError::Closed) => {
                let text = "the server ended";
                let code = CUresult::ERROR_MPS_SERVER_NOT_READY;
                self.refuse_with(&waiting.connection, Some(pid), group, code, text);
                None
            }
            Err(error) => {
                self.refuse(&waiting.connection, Some(pid), group, &error.to_string());
                None
            }
        }
    }
}

/// Tells a server what a session's former server has left of its device memory, up to so many pieces of which the windows
/// are the first, beginning where its socket was full before.
fn send_kept(
    (id, server): (ServerId, &Connection),
    session: u64,
    kept: &mut KeptMemory,
    most: usize,
) -> Result<(), SocketError> {
    let KeptMemory {
        windows,
        chunks,
        told,
        ..
    } = kept;
    if told.0 != Some(id) {
        *told = (Some(id), 0);
    }
    let windows = windows.iter().map(|(&base, window)| {
        let packet = Packet::WindowMade {
            session,
            device: window.device,
            base,
            bytes: window.bytes,
        };
        (packet, window.file())
    });
    let chunks = chunks.iter().map(|(&(device, base), chunk)| {
        let packet = Packet::ChunkMade {
            session,
            device,
            base,
            bytes: chunk.bytes,
        };
        (packet, chunk.descriptor())
    });
    for (packet, descriptor) in windows.chain(chunks).take(most).skip(told.1) {
        server.try_send(&packet.encode(), descriptor.as_slice())?;
        told.1 += 1;
    }
    Ok(())
}

/// What a client says of its name, fit for lists: no control characters, not too long.
fn clean(program: &str) -> String {
    program
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(MAX_PROGRAM)
        .collect()
}

/// The inode of a process's pid namespace, or 0 where it cannot be seen.
pub(crate) fn namespace_of(pid: i32) -> u64 {
    if pid == 0 {
        return 0;
    }
    std::fs::metadata(format!("/proc/{pid}/ns/pid")).map_or(0, |link| link.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_fit_for_lists() {
        assert_eq!(clean("./app\n\x1b[2J"), "./app??[2J");
        assert_eq!(clean(&"x".repeat(1000)).len(), MAX_PROGRAM);
    }

    #[test]
    fn our_own_namespace_can_be_seen() {
        assert_ne!(namespace_of(std::process::id().cast_signed()), 0);
        assert_eq!(namespace_of(0), 0);
    }
}
