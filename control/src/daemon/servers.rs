//! Server processes that there are: heard, ended, and reaped; `server_start` starts them.
//!
//! Called by the event loop. Must not know whom a server is for.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use protocol::control_messages::{Ending, HANDS_OVER, Packet};
use protocol::limits;
use serde_json::json;
use transport::background_close;
use transport::socket::SocketError;

use super::{Daemon, descriptors};
use crate::commands::Awaited;
use crate::log::Role;
use crate::log::events::{of_client, of_server};
use crate::servers::faults::Fault;
use crate::servers::handovers::Since;
use crate::servers::kept_session::{KeptChunk, KeptMemory, KeptWindow};
use crate::servers::limits::{as_given, device_named};
use crate::servers::placement::ServerKey;
use crate::servers::registry::{ServerId, State};

/// How long a server may take that has nothing more to say, before it is killed.
const SILENT: Duration = Duration::from_secs(5);

/// How long the kernel may take to end a server that was killed. It takes longer only if a thread waits in the
/// kernel for what no signal ends.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// What the kernel ends a process with for a call that its filter does not let it survive.
const SIGSYS: i32 = 31;

/// What the daemon ends servers with whose time is up.
const SIGKILL: i32 = 9;

/// What is said of a server that was killed and does not end.
const STUCK: &str = "it was killed, and the kernel has not ended it: a thread of it waits for what no signal ends, a file \
                     of a FUSE file system that a client has sent for example. The daemon goes on without it; \
                     what it has is free when whoever serves that file answers or ends";

/// Packets of one server that are read before everybody else has a turn.
const PACKETS_A_TURN: usize = 64;

impl Daemon {
    /// Tells a server to end: when its clients have left, after `grace`, or at once.
    pub(crate) fn shut_down_server(&mut self, id: ServerId, force: bool, grace: Option<Duration>) {
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        let packet = Packet::Shutdown {
            force,
            grace: grace.map_or(u32::MAX, |grace| {
                u32::try_from(grace.as_millis()).unwrap_or(u32::MAX)
            }),
        };
        server.state = State::Stopping;
        let about = of_server(server);
        let kill = Self::kill_time(force, grace);
        server.deadline = match (server.deadline, kill) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        if server.connection.try_send(&packet.encode(), &[]).is_err() {
            // It does not listen. Without a word it would never know.
            server.deadline = Some(Instant::now());
        }
        let waiting = std::mem::take(&mut server.waiting);
        let pid = server.pid();
        self.log(&format!(
            "Try shutting down server {pid}, backoff is disabled"
        ));
        self.event("server.stopping", about, json!({ "force": force }));
        for client in waiting {
            let text = "the server is shutting down";
            self.refuse(
                &client.connection,
                Some(client.peer.pid),
                client.group,
                text,
            );
        }
    }

    /// A server has said something, or has read what it was told. What is left after a turn makes its socket readable again.
    pub(crate) fn server_spoke(&mut self, id: ServerId) {
        let server = self.registry.servers.get_mut(&id);
        if server.is_some_and(|server| server.awaits_room) {
            self.watch_for_room(id, false);
        }
        self.hear(id, PACKETS_A_TURN);
    }

    fn hear(&mut self, id: ServerId, most: usize) {
        for _ in 0..most {
            let Some(server) = self.registry.servers.get(&id) else {
                return;
            };
            match server.connection.try_receive() {
                Ok(Some((bytes, descriptors))) => match Packet::decode(&bytes) {
                    Ok(packet) => self.server_said(id, packet, descriptors),
                    Err(error) => {
                        let pid = server.pid();
                        background_close::close(descriptors);
                        self.log(&format!(
                            "Server {pid} said something that was not understood: {error}"
                        ));
                    }
                },
                Ok(None) => break,
                Err(SocketError::Descriptors(bytes))
                    if let Ok(Packet::ExportFound { question, .. }) = Packet::decode(&bytes) =>
                {
                    // This process has none left for what is another's, and the server is none the worse for it.
                    self.export_not_found(id, question);
                }
                Err(error) => {
                    // Its process ends now, and is heard of through its pidfd.
                    if !matches!(error, SocketError::Closed) {
                        self.log(&format!("Server {} is not heard: {error}", server.pid()));
                    }
                    self.unwatch(&server.connection);
                    self.must_end(id);
                    break;
                }
            }
        }
        self.hand_over_clients(id);
    }

    fn server_said(&mut self, id: ServerId, packet: Packet, descriptors: Vec<OwnedFd>) {
        match packet {
            Packet::ChunkMade {
                session,
                device,
                base,
                bytes,
            } => {
                let chunk = KeptChunk::new(bytes, descriptors);
                self.keep(id, session, |kept| kept.add_chunk((device, base), chunk));
            }
            Packet::WindowMade {
                session,
                device,
                base,
                bytes,
            } => {
                let window = KeptWindow::new(device, bytes, descriptors);
                self.keep(id, session, |kept| kept.add_window(base, window));
            }
            Packet::ExportFound { question, object } => {
                self.export_found(id, question, object, descriptors);
            }
            packet => self.server_said_without(id, packet, descriptors),
        }
    }

    /// Keeps something of a session's device memory. Who has too much of it, or something that did not come, is not taken over;
    /// nor is who has some when half of this process's descriptors keep memory.
    fn keep(&mut self, id: ServerId, session: u64, add: impl FnOnce(&mut KeptMemory) -> bool) {
        let has_room = self.registry.kept_pieces() < descriptors() / 2;
        if let Some(server) = self.registry.servers.get_mut(&id)
            && server
                .kept_memory(session)
                .is_some_and(|kept| !has_room || !add(kept))
        {
            server.stop_keeping(session);
        }
    }

    /// A server has said something with which no descriptors belong.
    fn server_said_without(&mut self, id: ServerId, packet: Packet, descriptors: Vec<OwnedFd>) {
        background_close::close(descriptors);
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        let pid = server.pid();
        match packet {
            Packet::Ready { devices, free, .. } => {
                self.devices.clone_from(&devices);
                server.devices.clone_from(&devices);
                if server.state == State::Initializing {
                    server.state = State::Active;
                    server.deadline = None;
                }
                let key = server.key.clone();
                if key.is_standby() {
                    return self.standby_is_ready(id, &devices, &free);
                }
                self.attempts.remove(&key);
                if let ServerKey::Context(uid, _) = key {
                    self.contexts.grown(uid);
                }
                self.underlay_serves(id);
                self.begins_to_serve(id);
            }
            Packet::Attached { session, bases } => {
                if let Some(client) = server.clients.get_mut(&session) {
                    client.attached = true;
                }
                match server.kept.get_mut(&session) {
                    Some(kept) if !bases.is_empty() => kept.bases = bases,
                    // Its engine keeps memory where no other server finds it.
                    Some(_) => server.stop_keeping(session),
                    None => {}
                }
                self.say_if_all_are_welcomed(id, session);
            }
            Packet::ChunkGone {
                session,
                device,
                base,
            } => {
                if let Some(kept) = server.kept_memory(session) {
                    kept.chunks.remove(&(device, base));
                }
            }
            Packet::WindowGone { session, base } => {
                if let Some(kept) = server.kept_memory(session) {
                    kept.windows.remove(&base);
                }
            }
            Packet::Gone {
                session,
                how,
                accounts,
            } => {
                server.stop_keeping(session);
                if let Some(client) = server.clients.remove(&session) {
                    let about = of_client(server, &client);
                    self.registry.add_usage_of_departed(&accounts);
                    let payer = self.about(client.uid, client.group);
                    let how = json!({ "how": ending(how) });
                    self.event_about(&payer, "client.gone", about, how);
                }
                self.say_if_all_are_welcomed(id, session);
                self.end_if_nobody_else_comes(id);
                self.resolve_answers(|until| until == Awaited::Ended(session), None);
                self.end_limit_changes(id, Some(session));
                self.serve_next_user();
            }
            Packet::Changed {
                request,
                code,
                text,
                accounts,
            } => self.limit_change_answered(id, request, code, &text, &accounts),
            Packet::Fault {
                session,
                code,
                text,
                guilt,
            } => {
                if let Some(client) = server.clients.get(&session) {
                    let line = format!(
                        "Client {} ({}) of server {pid} faulted with error {code}, {guilt}: {text}",
                        client.pid, client.program
                    );
                    let about = of_client(server, client);
                    self.log(&line);
                    let fault = Fault {
                        time: Timestamp::now(),
                        code,
                        guilt,
                        text,
                    };
                    self.registry.add_fault(id, session, &fault);
                    let what = json!({ "code": code, "guilt": guilt.word(), "why": fault.text });
                    self.event("client.fault", about, what);
                }
            }
            Packet::TakenOver { session, takeovers } => {
                let about = match server.clients.get(&session) {
                    Some(client) => of_client(server, client),
                    None => return,
                };
                let sum = self.registry.add_takeovers(id, session, &takeovers);
                let more = json!({
                    "untouched": takeovers.untouched,
                    "repeated": takeovers.repeated,
                    "failed": takeovers.failed,
                    "times": sum.map(|sum| sum.count),
                });
                self.event("client.taken_over", about, more);
            }
            Packet::SeekExport {
                question,
                uid,
                token,
            } => self.seek_export(id, question, uid, token),
            Packet::ExportNotFound { question } => self.export_not_found(id, question),
            Packet::HandsOver => self.server_hands_over(id),
            Packet::Stays { text } => self.server_stays(id, &text),
            Packet::Lost { code } => {
                server.state = State::Fault;
                let waiting = std::mem::take(&mut server.waiting);
                let (key, uid) = (server.key.clone(), server.uid);
                let settings = server.settings.clone();
                let about = of_server(server);
                self.log(&format!(
                    "Server {pid} lost a device to error {code} and takes no more clients"
                ));
                self.event("server.fault", about, json!({ "code": code }));
                self.end_idle_servers_beside(id);
                self.start_server_again(key, uid, settings, waiting);
            }
            Packet::Still {
                device,
                since,
                text,
            } => {
                let Some(listed) = server.devices.get(device as usize) else {
                    return;
                };
                let uuid = listed.uuid.clone();
                let what = match since {
                    Some(since) => {
                        server.still.insert(device, since);
                        "device.still"
                    }
                    None => {
                        server.still.remove(&device);
                        "device.goes_on"
                    }
                };
                let about = of_server(server);
                let more = json!({ "device": device, "uuid": uuid, "in_flight": text });
                self.event(what, about, more);
            }
            _ => self.log(&format!("Server {pid} said something out of place")),
        }
    }

    /// A server is ready for clients.
    pub(super) fn begins_to_serve(&mut self, id: ServerId) {
        if let Some(server) = self.registry.servers.get(&id) {
            self.log(&format!("NEW SERVER {}: Ready", server.pid()));
        }
        self.say_what_holds(id);
        self.announce_reservations(id);
        self.resolve_answers(|until| until == Awaited::Ready(id), None);
    }

    /// Says in server.log and in the structured log what a server that is ready has and grants.
    fn say_what_holds(&self, id: ServerId) {
        let Some(server) = self.registry.servers.get(&id) else {
            return;
        };
        let say = |text: &str| {
            let log = &self.instance.server_log;
            log.line_of(Role::Server, server.pid(), text);
        };
        let settings = &server.settings;
        say(&format!(
            "Active Threads Percentage set to {:.1}",
            settings.percentage
        ));
        for (device, size) in &settings.memory {
            if device_named(&server.devices, device).is_none() {
                self.log(&format!(
                    "Server {pid} has a memory limit for device {device}, which there is not or more \
                     than one: its clients are refused until `set_device_pinned_mem_limit {pid} {device} \
                     none` takes it away",
                    pid = server.pid(),
                ));
            } else if let Ok(bytes) = limits::size_in_bytes(size) {
                say(&format!(
                    "Device pinned memory limit for device {device} set to {bytes:#x} bytes"
                ));
            }
        }
        say(&format!("Server Priority set to {}", self.default_priority));
        let names: Vec<&str> = server.devices.iter().map(|device| &*device.name).collect();
        self.event(
            "server.ready",
            of_server(server),
            json!({
                "devices": names,
                "percentage": as_given(settings.percentage),
                "memory": settings.memory,
                "priority": self.default_priority,
                "kernel_time": settings.kernel_time.map(limits::kernel_time_text),
                "underlay": server.underlay.is_some(),
            }),
        );
    }

    /// A server has no more to say: its process is about to end, or cannot.
    pub(super) fn must_end(&mut self, id: ServerId) {
        if let Some(server) = self.registry.servers.get_mut(&id) {
            let soon = Instant::now() + SILENT;
            server.deadline = Some(server.deadline.map_or(soon, |one| one.min(soon)));
        }
    }

    /// What ends one context on the underlay ends all of them: servers that have no client to notice it are ended, so that the
    /// next client gets one that works.
    fn end_idle_servers_beside(&mut self, id: ServerId) {
        let run = self
            .registry
            .servers
            .get(&id)
            .and_then(|server| server.underlay);
        let servers = self.registry.servers.iter();
        let beside: Vec<ServerId> = servers
            .filter(|(_, server)| {
                run.is_some()
                    && server.underlay == run
                    && server.state == State::Active
                    && server.is_idle()
            })
            .map(|(&id, _)| id)
            .collect();
        for id in beside {
            self.shut_down_server(id, false, None);
        }
    }

    /// Ends a single client's server that is gone: nobody else comes to it.
    fn end_if_nobody_else_comes(&mut self, id: ServerId) {
        if let Some(server) = self.registry.servers.get(&id)
            && matches!(server.key, ServerKey::Client(..))
            && server.state == State::Active
            && server.is_idle()
        {
            self.shut_down_server(id, false, None);
        }
    }

    /// Kills a server whose time is up, and goes on without one that was killed and has not ended.
    pub(crate) fn end_late_servers(&mut self, now: Instant) {
        let mut stuck = Vec::new();
        for (&id, server) in &mut self.registry.servers {
            if server.deadline.is_none_or(|deadline| deadline > now) {
                continue;
            }
            if server.killed.is_none() {
                let _ = server.child.kill();
            }
            let gone = *server.killed.get_or_insert(now) + GONE_WITHIN;
            server.deadline = Some(gone);
            if gone <= now {
                stuck.push(id);
            }
        }
        for id in stuck {
            self.server_is_over(id, None);
        }
    }

    /// A server's process has ended. Its clients see their sockets close, and get error 806. `status`
    /// is how, if somebody has asked already.
    pub(crate) fn server_ended(&mut self, id: ServerId, status: Option<ExitStatus>) {
        // What it said last still counts, and there is no more than its socket held.
        self.hear(id, usize::MAX);
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        if let Some(ended) = status.or_else(|| server.child.try_wait().ok().flatten()) {
            self.server_is_over(id, Some(ended));
        }
    }

    /// Nothing more is to be had of a server: its process has ended as it says, or was killed and does not end.
    fn server_is_over(&mut self, id: ServerId, ended: Option<ExitStatus>) {
        let Some(mut server) = self.registry.servers.remove(&id) else {
            return;
        };
        self.let_prepared_go_on(id);
        self.unwatch(&server.connection);
        self.unwatch(&server.pidfd);
        self.server_left_groups(id, server.slot);
        self.forget_seeks(id);
        self.end_limit_changes(id, None);
        let pid = server.pid();
        let how = ended.map_or_else(|| STUCK.to_owned(), |ended| ended.to_string());
        let hands_over = ended.and_then(|ended| ended.code()) == Some(i32::from(HANDS_OVER));
        if ended.is_none_or(|ended| !ended.success()) && !hands_over {
            if server.state != State::Stopping {
                self.log("Server encountered a fatal exception. Shutting down");
            }
            self.log(&format!("Server {pid} did not end by itself: {how}"));
            if ended.and_then(|ended| ended.signal()) == Some(SIGSYS) {
                self.log(&format!(
                    "Server {pid} was ended by the kernel for a system call that no server makes: it may \
                     not have been its own master. The kernel's log says which one (audit, type=1326)"
                ));
            }
        }
        self.log(&format!(
            "Server {pid} exited with status {}",
            ended.and_then(|ended| ended.code()).unwrap_or(1)
        ));
        let about = of_server(&server);
        self.event("server.exited", about, json!({ "why": how }));
        let mut waiting = self.sessions_to_take_over(&mut server, hands_over);
        let sessions = waiting.iter().map(|client| client.session).collect();
        self.handovers
            .begin((pid, Since::Ended), sessions, Instant::now());
        if !waiting.is_empty() {
            self.log(&format!(
                "Another server takes over {} of the {} clients of server {pid}",
                waiting.len(),
                server.clients.len()
            ));
        }
        let goes_on = |session: u64| waiting.iter().any(|client| client.session == session);
        let gone = server.clients.iter();
        for (_, client) in gone.filter(|(session, _)| !goes_on(**session)) {
            // With 806: the server could not say how they went.
            let about = of_client(&server, client);
            let payer = self.about(client.uid, client.group);
            let how = json!({ "how": "server exited" });
            self.event_about(&payer, "client.gone", about, how);
        }

        let mut failed = None;
        if server.key.is_standby() {
            self.standby_is_over(&server);
        } else if let ServerKey::Context(uid, _) = server.key
            && server.state == State::Initializing
        {
            let why = match ended.and_then(|ended| ended.signal()) {
                Some(SIGKILL) => "a server was killed before it was ready",
                _ => "a server ended before it was ready; see server.log",
            };
            self.context_failed(uid, why);
        } else if server.state == State::Initializing
            && server.underlay.is_some()
            && !self.is_quitting()
        {
            if let Err(error) = self.start_without_underlay(id, &mut server, ended) {
                let error = error.to_string();
                for client in std::mem::take(&mut server.waiting) {
                    let pid = Some(client.peer.pid);
                    self.refuse(&client.connection, pid, client.group, &error);
                }
                failed = Some(error);
            }
        } else if server.state == State::Initializing {
            let attempts = self.attempts.entry(server.key.clone()).or_default();
            *attempts += 1;
            failed = Some(format!(
                "Server {pid} ended before it was ready; see server.log"
            ));
        }
        self.resolve_answers(|until| until == Awaited::Ready(id), failed.as_deref());
        for &session in server.clients.keys() {
            self.resolve_answers(|until| until == Awaited::Ended(session), None);
        }

        // Before any other client, whose addresses could be those of one of these.
        waiting.extend(server.waiting);
        self.start_server_again(server.key, server.uid, server.settings, waiting);
        self.resolve_answers(|until| until == Awaited::Gone(id), None);
        self.serve_next_user();
    }
}

/// How a session ended, in a word or two.
const fn ending(how: Ending) -> &'static str {
    match how {
        Ending::Detached => "left",
        Ending::ProcessEnded => "process ended",
        Ending::SocketClosed => "connection closed",
        Ending::Replaced => "attached again",
        Ending::Malformed => "broke the protocol",
        Ending::Shutdown => "server shut down",
        Ending::Failed => "server failed",
        Ending::Terminated => "terminated",
        Ending::KernelTime => "kernel time",
    }
}
