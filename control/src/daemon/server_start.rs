//! How servers are started: for a user, for a client's key, and again when one has ended whose clients wait.
//!
//! Called where a client comes, by commands, and by `servers`, which has them from then on. Must not know what servers say.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use protocol::control_messages::Takeovers;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use super::Daemon;
use super::epoll_token::EpollToken;
use super::error::StartServerError;
use crate::log::Role;
use crate::servers::handovers::Since;
use crate::servers::limits::ServerLimits;
use crate::servers::placement::{Requester, ServerKey, server_for};
use crate::servers::process;
use crate::servers::registry::{Server, ServerId, State, WaitingClient};
use crate::underlay;

/// How long a server may take until it is ready, before it is killed.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Starts of a server in a row that may fail before its clients are refused.
const MAX_ATTEMPTS: u32 = 6;

impl Daemon {
    /// The server for a user's clients; started if it does not run.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_for_user(&mut self, uid: u32) -> Result<ServerId, StartServerError> {
        let who = Requester {
            uid,
            group: None,
            session: 0,
        };
        let key = server_for(who, self.isolation);
        match self.registry.server_with_key(&key) {
            Some(id) => Ok(id),
            None => self.start_server_for(key, uid, None),
        }
    }

    /// What clients get whose executor has this key.
    pub(crate) fn settings_for(&self, key: &ServerKey) -> &ServerLimits {
        self.registry.settings(key).unwrap_or(&self.defaults)
    }

    /// Starts the server of an executor.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn start_server_for(
        &mut self,
        key: ServerKey,
        uid: u32,
        gid: Option<u32>,
    ) -> Result<ServerId, StartServerError> {
        let underlay = self.underlay_for_server()?;
        self.start_server_on(key, uid, gid, underlay)
    }

    /// As [`Daemon::start_server_for`], on a run of the underlay or on none.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn start_server_on(
        &mut self,
        key: ServerKey,
        uid: u32,
        gid: Option<u32>,
        underlay: Option<u64>,
    ) -> Result<ServerId, StartServerError> {
        // The one for everybody is the daemon's own; else the first to come would lend it their rights.
        let (uid, gid) = match key {
            ServerKey::Shared => (rustix::process::geteuid().as_raw(), None),
            _ => (uid, gid),
        };
        let id = self.number();
        let log = &self.instance.server_log;
        let pipe = underlay.map(|_| process::UNDERLAY_PIPE);
        let mut command = (self.host.start_server)(self.program_of_servers(), pipe);
        if let ServerKey::Client(..) = key {
            command.env(process::ONE_CLIENT_VARIABLE, "1");
        }
        // One that stands by may take such a one's place.
        let is_one_of_several =
            self.contexts.most > 1 && (key.one_of_users().is_some() || key.is_standby());
        if is_one_of_several {
            command.env(process::ONE_OF_SEVERAL_VARIABLE, "1");
        }
        let (mut child, connection) = process::start(
            command,
            (uid, gid),
            log,
            underlay.is_some(),
            self.options.failover || is_one_of_several,
        )?;
        let pid = child.id();
        let pidfd = Pid::from_raw(pid.cast_signed())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .and_then(|pidfd| {
                self.watch(&pidfd, EpollToken::Process(id))?;
                self.watch(&connection, EpollToken::Server(id))?;
                Ok(pidfd)
            });
        let pidfd = match pidfd {
            Ok(pidfd) => pidfd,
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(StartServerError::System(error.into()));
            }
        };
        let how = if key.is_standby() {
            ", to stand by"
        } else {
            ""
        };
        self.instance.control_log.line_of(
            Role::Control,
            pid,
            &format!("Starting new server {pid} for user {uid}{how}"),
        );
        self.event(
            "server.starting",
            json!({ "server": pid, "uid": uid }),
            json!({ "standby": key.is_standby() }),
        );
        let slot = match key.is_standby() {
            true => None,
            false => self.groups.allocate_slot(),
        };
        let settings = self.settings_for(&key).clone();
        self.registry.servers.insert(
            id,
            Server {
                key,
                uid,
                gid,
                child,
                pidfd,
                connection,
                state: State::Initializing,
                deadline: Some(
                    Instant::now()
                        + match underlay {
                            Some(_) => underlay::READY_WITHIN,
                            None => READY_WITHIN,
                        },
                ),
                killed: None,
                devices: Vec::new(),
                settings,
                waiting: VecDeque::new(),
                clients: std::collections::BTreeMap::new(),
                awaits_room: false,
                kept: std::collections::BTreeMap::new(),
                last_serial: 0,
                takeovers: Takeovers::default(),
                formers: std::collections::BTreeSet::new(),
                ended_formers: Vec::new(),
                slot,
                underlay,
                still: std::collections::BTreeMap::new(),
            },
        );
        self.send_underlay_to(id);
        Ok(id)
    }

    /// Starts a server in place of another for the clients that wait, if any do.
    pub(super) fn start_server_again(
        &mut self,
        key: ServerKey,
        uid: u32,
        settings: ServerLimits,
        waiting: VecDeque<WaitingClient>,
    ) {
        let Some(first) = waiting.front() else {
            return;
        };
        let gid = first.peer.gid;
        let key = key.successor();
        if let Some(id) = self.registry.server_with_key(&key)
            && let Some(server) = self.registry.servers.get_mut(&id)
        {
            server.waiting.extend(waiting);
            return self.hand_over_clients(id);
        }
        if let Some(id) = self.standby_for(&key, uid)
            && !self.is_quitting()
        {
            return self.take_place((id, Since::Ended), key, settings, waiting);
        }
        let attempts = self.attempts.get(&key).copied().unwrap_or(0);
        let started = if attempts < MAX_ATTEMPTS && !self.is_quitting() {
            self.start_server_for(key, uid, Some(gid))
        } else {
            self.attempts.remove(&key);
            Err(StartServerError::EndsAtOnce)
        };
        match started {
            Ok(new) => {
                if let Some(new) = self.registry.servers.get_mut(&new) {
                    new.waiting = waiting;
                    new.settings = settings;
                }
            }
            Err(error) => {
                let why = error.to_string();
                for client in waiting {
                    self.refuse(
                        &client.connection,
                        Some(client.peer.pid),
                        client.group,
                        &why,
                    );
                }
            }
        }
    }
}
