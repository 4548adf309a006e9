//! The daemon: one thread, which sleeps in `event_loop` until a descriptor has something to say or a time has come.
//!
//! Owns the daemon's state and what all its parts need of it. Made by `startup`. Must not know CUDA: devices are
//! what servers said of them.

mod admission;
mod answers;
mod compute_modes;
mod connections;
mod contexts;
mod device_scan;
mod epoll_token;
pub(crate) mod error;
mod event_loop;
mod events;
mod failover;
mod for_commands;
mod groups;
mod half_open;
mod limit_changes;
mod moving;
mod orphaned_servers;
mod page;
mod partitions;
mod pending;
mod pending_limit_change;
mod seeks;
mod server_start;
mod servers;
mod signals;
mod standbys;
mod time_lines;
mod underlay;
mod upgrade;
mod users;
mod views;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use protocol::control_messages::ListedDevice;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use serde_json::json;
use transport::socket::Connection;

use crate::command_line::arguments::Options;
use crate::commands::Caller;
use crate::compute_mode::{Changed, DeviceModes};
use crate::files::directories::text_variable;
use crate::files::instance::Instance;
use crate::groups::Groups;
use crate::host::{BINARY_VERSION, HostProgram};
use crate::log::{About, Role};
use crate::servers::contexts::UserContexts;
use crate::servers::handovers::Handovers;
use crate::servers::limits::{ServerLimits, limits_in_environment};
use crate::servers::placement::{Isolation, ServerKey, isolations};
use crate::servers::registry::QueuedClient;
use crate::servers::registry::{Registry, ServerId};
use crate::servers::seeks::Seeks;
use crate::servers::standbys::Standbys;
use crate::time_lines::TimeLines;
use crate::underlay::Underlay;
use crate::views::Views;
use epoll_token::EpollToken;
use error::DaemonError;
use half_open::{HalfOpen, most_half_open};
use page::PageProcess;
use pending::PendingAnswer;
use pending_limit_change::PendingLimitChange;
use signals::{SIGCHLD, ending_signals, on_signals};
use upgrade::{Upgrade, UpgradeError};

/// How long a server that was told to end at once may take before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// How long a log may become, unless OPENMPS_LOG_BYTES says otherwise.
const LOG_BYTES: u64 = 16 << 20;

/// The daemon.
#[derive(Debug)]
pub struct Daemon {
    instance: Instance,
    registry: Registry,
    /// Groups of clients.
    groups: Groups,
    /// Whether clients have contexts in static partitions only.
    static_partitions: bool,
    /// The number of the last one.
    last_partition: u32,
    /// Changes of limits that servers have not answered.
    limit_changes: BTreeMap<u64, PendingLimitChange>,
    /// Who asked to be shown devices and clients.
    views: Views,
    time_lines: TimeLines,
    /// For later servers.
    defaults: ServerLimits,
    /// For clients that ask for none.
    default_priority: u32,
    isolation: Isolation,
    /// Whether several users are served at once.
    multiuser: bool,
    /// Clients that wait for another user's to leave.
    queued: VecDeque<QueuedClient>,
    /// What the last server that became ready has.
    devices: Vec<ListedDevice>,
    host: HostProgram,
    /// What runs beneath servers.
    underlay: Underlay,
    /// How many contexts users' clients have there.
    contexts: UserContexts,
    /// Servers that stand by.
    standbys: Standbys,
    /// What servers ask of others of the same user.
    seeks: Seeks,
    /// Sessions on their way from a server that has ended to another one.
    handovers: Handovers,
    /// Modes of devices that are to be given back, and with what.
    modes: Option<(Changed, Box<dyn DeviceModes>)>,
    /// Starts of an executor's server in a row that came to nothing.
    attempts: HashMap<ServerKey, u32>,
    /// Connections by number, and so in the order in which they came.
    half_open: BTreeMap<u64, HalfOpen>,
    /// How many of them there may be.
    most_half_open: usize,
    /// The last number given to a connection, session or server.
    last_number: u64,
    /// When the listener, out of descriptors, is looked at again.
    listen_again: Option<Instant>,
    epoll: OwnedFd,
    signals: UnixStream,
    children: UnixStream,
    /// When the logs were last looked after, and how long they may become.
    rotated_at: Instant,
    log_bytes: u64,
    pending: Vec<PendingAnswer>,
    /// The page that was started with it.
    page: Option<PageProcess>,
    quitting: bool,
    /// How it was started.
    options: Options,
    /// That it is to go on as another program.
    upgrade: Option<Upgrade>,
}

impl Daemon {
    /// Makes the daemon that [`Daemon::run`] runs. Connections are accepted from now on.
    ///
    /// # Errors
    /// See [`DaemonError`]; each is one line.
    pub fn new(
        instance: Instance,
        options: Options,
        host: HostProgram,
    ) -> Result<Self, DaemonError> {
        let (mut defaults, default_priority) = limits_in_environment()?;
        let unwatched = |error: Errno| DaemonError::Events(error.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(unwatched)?;
        let signals = on_signals(&ending_signals()).map_err(DaemonError::Events)?;
        let children = on_signals(&[SIGCHLD]).map_err(DaemonError::Events)?;
        let log_bytes = match text_variable("OPENMPS_LOG_BYTES")? {
            Some(text) => protocol::limits::size_in_bytes(&text).map_err(DaemonError::LogBytes)?,
            None => LOG_BYTES,
        };
        let (asked, fenced) = match text_variable("OPENMPS_ISOLATION")? {
            Some(text) => isolations(&text).ok_or(DaemonError::Isolation(text))?,
            None => (None, false),
        };
        let isolation = options.isolation.or(asked).unwrap_or_default();
        defaults.fenced = options.fenced || fenced;
        let (underlay, of_underlay) = Underlay::new(options.underlay, host)?;
        let contexts = UserContexts::new(options.contexts, isolation, underlay.mode)?;
        if options.standby.is_some() && !options.failover {
            return Err(DaemonError::Standby);
        }
        let daemon = Self {
            instance,
            registry: Registry::default(),
            groups: Groups::default(),
            static_partitions: options.static_partitions,
            last_partition: 0,
            limit_changes: BTreeMap::new(),
            views: Views::default(),
            time_lines: TimeLines::default(),
            defaults,
            default_priority,
            isolation,
            multiuser: options.multiuser,
            queued: VecDeque::new(),
            devices: Vec::new(),
            host,
            underlay,
            contexts,
            seeks: Seeks::default(),
            handovers: Handovers::default(),
            standbys: Standbys::new(options.standby.unwrap_or_default()),
            modes: None,
            attempts: HashMap::new(),
            half_open: BTreeMap::new(),
            most_half_open: most_half_open(descriptors()),
            last_number: 0,
            listen_again: None,
            epoll,
            signals,
            children,
            rotated_at: Instant::now(),
            log_bytes,
            pending: Vec::new(),
            page: None,
            quitting: false,
            options,
            upgrade: None,
        };
        daemon
            .listen()
            .and_then(|()| daemon.watch(&daemon.instance.log_pipe, EpollToken::LogPipe))
            .and_then(|()| daemon.watch(&daemon.signals, EpollToken::Signals))
            .and_then(|()| daemon.watch(&daemon.children, EpollToken::Children))
            .map_err(unwatched)?;

        let directories = daemon.instance.directories();
        daemon.log(&format!(
            "Starting control daemon using socket {}",
            directories.control_socket().display()
        ));
        daemon.log(&format!(
            "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={}",
            directories.pipe.display()
        ));
        daemon.log(&format!(
            "CUDA MPS Control binary version: {BINARY_VERSION}"
        ));
        daemon.say_how_it_serves(options);
        if let Some(line) = of_underlay {
            daemon.log(&line);
        }
        let mut daemon = daemon;
        daemon.watch_page(options.page);
        daemon.load_groups()?;
        daemon.set_modes(options.compute_mode)?;
        if options.ready_devices
            && let Err(error) = daemon.start_for_user(rustix::process::geteuid().as_raw())
        {
            daemon.log(&error.to_string());
        }
        Ok(daemon)
    }

    fn say_how_it_serves(&self, options: Options) {
        let descriptors = descriptors();
        // What a client costs: here its connection and its process while it waits; in its server
        // those two for good, and its memory of each device where that is the software GPU's.
        let clients = descriptors.saturating_sub(64) / 3;
        self.log(&format!(
            "Up to {descriptors} descriptors: room for about {clients} clients of a server"
        ));
        if let Some(owner) = self.instance.foreign_owner() {
            self.log(&format!(
                "The pipe directory belongs to user {owner}, who could put another daemon's socket \
                 in the place of this one's"
            ));
        }
        if self.isolation == Isolation::None {
            self.log(
                "One server for all users was asked for. This is weaker: users share a context, and \
                 a server that fails takes all users' clients with it",
            );
        } else if self.multiuser {
            self.log(
                "Multi-user mode: the users' clients are served at the same time, each user's by a \
                 server of its own",
            );
        }
        let directories = self.instance.directories();
        self.event(
            "daemon.started",
            json!({ "daemon": std::process::id(), "uid": rustix::process::geteuid().as_raw() }),
            json!({
                "pipe_directory": directories.pipe.display().to_string(),
                "log_directory": directories.log.display().to_string(),
                "multiuser": self.multiuser,
                "isolation": self.isolation.name(),
                "fenced": self.defaults.fenced,
                "static_partitions": self.static_partitions,
                "underlay": self.describe_underlay().1["mode"],
                "foreground": options.foreground,
                "descriptors": descriptors,
            }),
        );
    }

    fn is_done(&mut self) -> bool {
        self.quitting && self.registry.servers.is_empty() && self.underlay.is_over()
    }

    /// Writes a line of control.log.
    pub(crate) fn log(&self, text: &str) {
        self.instance.control_log.line(Role::Control, text);
    }

    /// As [`Daemon::log`], at the cost of whoever brought it about.
    pub(crate) fn log_about(&self, about: &About, text: &str) {
        let log = &self.instance.control_log;
        log.line_about(about, Role::Control, text);
    }

    /// Who pays for the lines that a user brings about: the group whose client it is, or the user.
    pub(crate) fn about(&self, uid: u32, group: Option<u32>) -> About {
        let group = group.and_then(|number| self.groups.by_number.get(&number));
        group.map_or(About::User(uid), |group| About::Group(group.name.clone()))
    }

    /// As [`Daemon::about`], of who is at the other end of a connection.
    pub(crate) fn about_peer(&self, connection: &Connection, group: Option<u32>) -> About {
        let uid = connection.peer_user();
        uid.map_or(About::Somebody, |uid| self.about(uid, group))
    }

    /// A number that nothing else has had.
    pub(crate) const fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn watch(&self, fd: impl AsFd, source: EpollToken) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(source.encode()),
            EventFlags::IN,
        )
    }

    /// From now on a server's socket is heard of when there is room in it too, or no longer.
    pub(crate) fn watch_for_room(&mut self, id: ServerId, waits: bool) {
        let Some(server) = self.registry.servers.get_mut(&id) else {
            return;
        };
        server.awaits_room = waits;
        let mut flags = EventFlags::IN;
        flags.set(EventFlags::OUT, waits);
        let data = EventData::new_u64(EpollToken::Server(id).encode());
        let _ = epoll::modify(&self.epoll, &server.connection, data, flags);
    }

    /// To be called before a descriptor is sent to another process: there it stays open, and so the
    /// kernel would go on telling of it here.
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Whether a caller may change things. Nobody may through a group's socket: that is what a
    /// container has, whose root can be the machine's.
    pub(crate) fn may_change(&self, caller: Caller) -> bool {
        let owner = rustix::process::geteuid().as_raw();
        caller.group.is_none() && (caller.uid == 0 || caller.uid == owner)
    }

    pub(crate) const fn is_quitting(&self) -> bool {
        self.quitting
    }

    /// Ends everything: servers end when their clients have left, or after `grace`.
    pub(crate) fn quit(&mut self, grace: Option<Duration>) {
        if !self.quitting {
            crate::startup::notify::notify_service_manager("STOPPING=1");
        }
        self.quitting = true;
        if self.upgrade.is_some() {
            self.give_up_upgrade(&UpgradeError::Quitting);
        }
        self.serve_next_user();
        let ids: Vec<ServerId> = self.registry.servers.keys().copied().collect();
        for id in ids {
            self.shut_down_server(id, grace == Some(Duration::ZERO), grace);
        }
    }

    fn listen(&self) -> Result<(), Errno> {
        self.watch(&self.instance.listener, EpollToken::Listener)?;
        if let Some(privileged) = &self.instance.privileged {
            self.watch(privileged, EpollToken::Privileged)?;
        }
        for (number, listener) in self.groups.listeners() {
            match self.watch(listener, EpollToken::Group(number)) {
                // Made while nobody was accepted.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stops listening for a moment: nobody can be accepted.
    pub(crate) fn pause_listening(&mut self) {
        self.stop_listening();
        self.listen_again = Some(Instant::now() + Duration::from_millis(100));
    }

    /// Takes nobody who connects from now on: they wait in the sockets.
    fn stop_listening(&mut self) {
        self.listen_again = None;
        self.unwatch(&self.instance.listener);
        if let Some(privileged) = &self.instance.privileged {
            self.unwatch(privileged);
        }
        for (_, listener) in self.groups.listeners() {
            self.unwatch(listener);
        }
    }

    /// When a server that ends with this patience is killed if it has not.
    pub(crate) fn kill_time(force: bool, grace: Option<Duration>) -> Option<Instant> {
        let patience = if force { Some(Duration::ZERO) } else { grace };
        patience.and_then(|patience| Instant::now().checked_add(patience + KILL_AFTER))
    }
}

/// How many descriptors this process may have.
fn descriptors() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}
