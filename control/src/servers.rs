//! Server processes: started when somebody needs one, heard, ended, and reaped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use transport::handshake::Packet;
use transport::socket::SocketError;

use crate::daemon::{Daemon, Source, Until};
use crate::log::Role;
use crate::placement::{Key, Who, executor_for};
use crate::registry::{Device, Server, ServerId, State, Waiting};
use crate::server_process;
use crate::settings::Settings;

/// Starts of a server in a row that may fail before its clients are refused.
const MAX_ATTEMPTS: u32 = 6;

/// How long a server may take until it is ready, before it is killed.
const READY_WITHIN: Duration = Duration::from_secs(60);

impl Daemon {
    /// The server for a user's clients; started if it does not run.
    ///
    /// # Errors
    /// When it cannot be started, in words.
    pub(crate) fn start_for_user(&mut self, uid: u32) -> Result<ServerId, String> {
        let who = Who {
            uid,
            group: None,
            session: 0,
        };
        let key = executor_for(who, self.isolation);
        match self.registry.for_key(&key) {
            Some(id) => Ok(id),
            None => self.start_server_for(key, uid, None),
        }
    }

    /// Starts the server of an executor.
    ///
    /// # Errors
    /// When the system refuses, in words.
    pub(crate) fn start_server_for(
        &mut self,
        key: Key,
        uid: u32,
        gid: Option<u32>,
    ) -> Result<ServerId, String> {
        let id = self.number();
        let log = &self.instance.server_log;
        let failed = |error: &dyn std::fmt::Display| format!("cannot start a server: {error}");
        let (mut child, connection) = server_process::start((self.start_server)(), uid, gid, log)
            .map_err(|error| failed(&error))?;
        let pid = child.id();
        let pidfd = Pid::from_raw(pid.cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .and_then(|pidfd| {
                self.watch(&pidfd, Source::Process(id))?;
                self.watch(&connection, Source::Server(id))?;
                Ok(pidfd)
            });
        let pidfd = match pidfd {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&error));
            }
        };
        self.instance.control_log.line_of(
            Role::Control,
            pid,
            &format!("Starting new server {pid} for user {uid}"),
        );
        self.registry.servers.insert(
            id,
            Server {
                key,
                uid,
                child,
                pidfd,
                connection,
                state: State::Initializing,
                deadline: Some(Instant::now() + READY_WITHIN),
                devices: Vec::new(),
                settings: self.defaults.clone(),
                waiting: VecDeque::new(),
                clients: std::collections::BTreeMap::new(),
                last_serial: 0,
            },
        );
        Ok(id)
    }

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
        for client in waiting {
            let text = "the server is shutting down";
            self.refuse(&client.connection, Some(client.peer.pid), text);
        }
    }

    /// A server has said something.
    pub(crate) fn server_spoke(&mut self, id: ServerId) {
        loop {
            let Some(server) = self.registry.servers.get(&id) else {
                return;
            };
            match server.connection.try_receive() {
                Ok(Some((bytes, _))) => match Packet::decode(&bytes) {
                    Ok(packet) => self.server_said(id, packet),
                    Err(error) => self.log(&format!(
                        "Server {} said something that was not understood: {error}",
                        server.pid()
                    )),
                },
                Ok(None) => break,
                Err(error) => {
                    // Its process ends now, and is heard of through its pidfd.
                    if !matches!(error, SocketError::Closed) {
                        self.log(&format!("Server {} is not heard: {error}", server.pid()));
                    }
                    self.forget(&server.connection);
                    break;
                }
            }
        }
        self.hand_over(id);
    }

    fn server_said(&mut self, id: ServerId, packet: Packet) {
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        let pid = server.pid();
        match packet {
            Packet::Ready { devices, .. } => {
                server.devices = devices.iter().map(|text| Device::from_text(text)).collect();
                if server.state == State::Initializing {
                    server.state = State::Active;
                    server.deadline = None;
                }
                let key = server.key.clone();
                self.attempts.remove(&key);
                self.log(&format!("NEW SERVER {pid}: Ready"));
                self.came_to_pass(|until| until == Until::Ready(id), "");
            }
            Packet::Attached { session } => {
                if let Some(client) = server.clients.get_mut(&session) {
                    client.attached = true;
                }
            }
            Packet::Gone { session, .. } => {
                server.clients.remove(&session);
            }
            Packet::Fault {
                session,
                code,
                text,
            } => {
                if let Some(client) = server.clients.get(&session) {
                    let line = format!(
                        "Client {} ({}) of server {pid} faulted with error {code}: {text}",
                        client.pid, client.program
                    );
                    self.log(&line);
                }
            }
            Packet::Lost { code } => {
                server.state = State::Stopping;
                let waiting = std::mem::take(&mut server.waiting);
                let (key, uid) = (server.key.clone(), server.uid);
                let settings = server.settings.clone();
                self.log(&format!(
                    "Server {pid} lost a device to error {code} and takes no more clients"
                ));
                self.start_server_again(key, uid, settings, waiting);
            }
            _ => self.log(&format!("Server {pid} said something out of place")),
        }
    }

    /// Starts a server in place of another for the clients that wait, if any do.
    fn start_server_again(
        &mut self,
        key: Key,
        uid: u32,
        settings: Settings,
        waiting: VecDeque<Waiting>,
    ) {
        let Some(first) = waiting.front() else {
            return;
        };
        let gid = first.peer.gid;
        let attempts = self.attempts.get(&key).copied().unwrap_or(0);
        let started = if attempts < MAX_ATTEMPTS && !self.is_quitting() {
            self.start_server_for(key, uid, Some(gid))
        } else {
            self.attempts.remove(&key);
            Err("the server ends as soon as it starts; see server.log".to_owned())
        };
        match started {
            Ok(new) => {
                if let Some(new) = self.registry.servers.get_mut(&new) {
                    new.waiting = waiting;
                    new.settings = settings;
                }
            }
            Err(error) => {
                for client in waiting {
                    self.refuse(&client.connection, Some(client.peer.pid), &error);
                }
            }
        }
    }

    /// A server's process has ended. Its clients see their sockets close, and get error 806.
    pub(crate) fn server_ended(&mut self, id: ServerId) {
        // What it said last still counts.
        self.server_spoke(id);
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        let Ok(Some(ended)) = server.child.try_wait() else {
            return;
        };
        let Some(server) = self.registry.servers.remove(&id) else {
            return;
        };
        self.forget(&server.connection);
        self.forget(&server.pidfd);
        let pid = server.pid();
        if !ended.success() {
            self.log(&format!("Server {pid} did not end by itself: {ended}"));
        }
        self.log(&format!(
            "Server {pid} exited with status {}",
            ended.code().unwrap_or(1)
        ));

        let mut text = String::new();
        if server.state == State::Initializing {
            let attempts = self.attempts.entry(server.key.clone()).or_default();
            *attempts += 1;
            text = format!("Server {pid} ended before it was ready; see server.log\n");
        }
        self.came_to_pass(|until| until == Until::Ready(id), &text);
        self.came_to_pass(|until| until == Until::Gone(id), "");

        self.start_server_again(server.key, server.uid, server.settings, server.waiting);
    }
}
