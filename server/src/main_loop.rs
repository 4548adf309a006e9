//! The server's main thread: it hears the daemon, and notices when clients end.
//!
//! It waits in epoll for the daemon's packets, for each client's process and socket, and for sessions
//! that have ended; nothing wakes it while all is quiet. Called by `openmps` when a server's process starts. Must not
//! know what clients post or what engines do with it.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::Engine;
use protocol::control_messages::{self, Admit, DeviceAccount, Ending, Packet};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use transport::socket::{Connection, SocketError};

use crate::admission::ServerResources;
use crate::admission::compute_mode::{ComputeModePolicy, EnforcedByDriver};
use crate::admission::device_list::all_listed;
use crate::admission::groups::{Groups, LimitError};
use crate::admission::session_thread::Sessions;
use crate::event_queue::{EventQueue, ServerEvent};
use crate::ipc::descriptors::Descriptors;
use crate::log::Log;
use crate::memory::file_receiver::FileReceiver;
use crate::memory::host_budget::HostMemoryBudget;
use crate::memory::server_budget::ServerMemoryBudget;
use crate::session::observer::Cancellation;

/// Why a server ended otherwise than it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot wait for events.
    #[error("cannot wait for events: {0}")]
    Events(#[from] Errno),
    /// The daemon could not be told that it is ready.
    #[error("cannot speak to the daemon: {0}")]
    Daemon(#[from] SocketError),
}

/// Packets that wait for a daemon which does not read, beyond which faults are not told any more:
/// they are its log's, while its count of clients needs all others.
const MAX_UNSENT: usize = 4096;

/// Events, by the number in the kernel's event.
const DAEMON: u64 = 0;
const EVENTS: u64 = 1;
/// The last number that there is.
const DESCRIPTORS: u64 = u64::MAX;
/// From here on a session's number, twice: for its process and, plus one, for its socket.
const FIRST_SESSION: u64 = 2;

/// How often the engine is asked whether it can get rid of what a client left that has gone.
const LOOK: Duration = Duration::from_secs(1);

/// A session as the main thread knows it.
#[derive(Debug)]
struct Running {
    cancellation: Arc<Cancellation>,
    pidfd: Arc<OwnedFd>,
    connection: Arc<Connection>,
    who: Option<(i32, u64)>,
    thread: Option<JoinHandle<()>>,
    /// For the log.
    name: String,
}

/// Serves the clients that the daemon hands over at the other end of `connection`, until it is told
/// to end and they have left; without the daemon, until they have left.
///
/// # Errors
/// When the system refuses what the main thread needs.
pub fn run(
    connection: Connection,
    engine: Arc<dyn Engine>,
    log: Arc<dyn Log>,
) -> Result<(), RunError> {
    run_with(connection, engine, log, Settings::default())
}

/// How a server is set up.
#[derive(Debug)]
pub struct Settings {
    /// Who is asked before contexts are made.
    pub compute_modes: Box<dyn ComputeModePolicy>,
    /// Bytes of its own memory that it holds for clients, or else a part of the machine's.
    pub held: Option<u64>,
    /// Who receives the files that clients register.
    pub files: FileReceiver,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compute_modes: Box::new(EnforcedByDriver),
            held: None,
            files: FileReceiver::Server,
        }
    }
}

/// As [`run`], set up otherwise.
///
/// # Errors
/// As there.
pub fn run_with(
    connection: Connection,
    engine: Arc<dyn Engine>,
    log: Arc<dyn Log>,
    settings: Settings,
) -> Result<(), RunError> {
    transport::socket::raise_descriptor_limit();
    log.line(true, "Startup");
    for (ordinal, device) in engine.devices().iter().enumerate() {
        log.line(
            false,
            &format!(
                "Creating server context on device {ordinal} ({})",
                device.name
            ),
        );
    }
    log.line(
        false,
        "CUDA MPS Server for Linux/Unix. Binary version: 13000",
    );
    let ready = Packet::Ready {
        pid: getpid().as_raw_pid(),
        devices: all_listed(&*engine),
    };
    let pinned = HostMemoryBudget::of_this_machine(engine.machine_memory());
    let main_loop = MainLoop {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        running: HashMap::new(),
        sessions: Arc::new(Sessions {
            host: Arc::new(ServerResources {
                engine,
                events: Arc::new(EventQueue::new()?),
                exports: Arc::default(),
                descriptors: Arc::new(Descriptors::new()?),
                groups: Groups::default(),
                compute_modes: settings.compute_modes.into(),
                host_memory: pinned,
                server_memory: ServerMemoryBudget::new(settings.held),
                files: Arc::new(settings.files),
            }),
            log: log.clone(),
            time_lines: Arc::default(),
            contexts: Arc::default(),
        }),
        connection,
        unsent: VecDeque::new(),
        own_process: process_inode(pidfd_open(getpid(), PidfdFlags::empty())?.as_fd()),
        stopping: false,
        force_at: None,
        stuck: false,
    };
    main_loop.watch(&main_loop.connection, DAEMON, EventFlags::IN)?;
    main_loop.watch(&*main_loop.sessions.host.events, EVENTS, EventFlags::IN)?;
    let descriptors = main_loop.sessions.host.descriptors.as_fd();
    main_loop.watch(descriptors, DESCRIPTORS, EventFlags::IN)?;
    main_loop.connection.send(&ready.encode(), &[])?;
    log.line(false, "Server has started");
    let time_lines = main_loop.sessions.time_lines.clone();
    main_loop.run()?;
    time_lines.finish();
    log.line(false, "Exiting");
    Ok(())
}

/// Tells the daemon what came of what it told of a group.
fn tell_of_group(
    host: &ServerResources,
    log: &dyn Log,
    group: &control_messages::Group,
    set: Result<(), LimitError>,
) {
    let (code, text) = set.err().unwrap_or_default();
    if code != CUresult::SUCCESS {
        log.line(false, &format!("Group {}: {text}", group.name));
    }
    host.events.push(ServerEvent::Changed {
        request: group.request,
        code,
        text,
        accounts: Vec::new(),
    });
}

/// What tells processes apart: since Linux 6.9 each has an inode of its own.
fn process_inode(pidfd: std::os::fd::BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(pidfd).map_or(0, |stat| stat.st_ino)
}

#[derive(Debug)]
struct MainLoop {
    epoll: OwnedFd,
    connection: Connection,
    /// Packets for a daemon that does not read fast enough.
    unsent: VecDeque<Vec<u8>>,
    running: HashMap<u64, Running>,
    sessions: Arc<Sessions>,
    own_process: u64,
    stopping: bool,
    force_at: Option<Instant>,
    /// It was said that a client left work behind that does not end.
    stuck: bool,
}

/// Descriptors that a server keeps for those who are connected, and to tell others that it has no more.
const SPARE_DESCRIPTORS: u64 = 48;

/// Whether these descriptors are among the last that this process may have.
fn is_nearly_last(fds: &[OwnedFd]) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let numbers = fds
        .iter()
        .map(|fd| u64::from(fd.as_raw_fd().unsigned_abs()));
    let highest = numbers.max().unwrap_or(0);
    limit.is_some_and(|limit| highest + SPARE_DESCRIPTORS >= limit)
}

impl MainLoop {
    fn watch(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(number), flags)
    }

    fn run(mut self) -> Result<(), RunError> {
        let mut events = Vec::with_capacity(64);
        while !(self.stopping && (self.running.is_empty() || self.only_stuck_are_left())) {
            let left = self.force_at.map(|time| {
                time.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
            });
            let look = self.has_ending().then_some(LOOK);
            let timeout = left
                .into_iter()
                .chain(look)
                .min()
                .map(|left| rustix::time::Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()),
                });
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let data = event.data;
                match data.u64() {
                    DAEMON => {
                        self.handle_daemon_packets();
                        self.send_unsent();
                    }
                    EVENTS => self.drain_events(),
                    DESCRIPTORS => {
                        let closed = self.sessions.host.descriptors.take_closed();
                        // The memory may have to be waited for.
                        self.spawn_task(move |_, _| drop(closed));
                    }
                    number => self.end_client(number - FIRST_SESSION),
                }
            }
            if self.force_at.is_some_and(|time| time <= Instant::now()) {
                self.force_at = None;
                self.end_all();
            }
            if self.has_ending() {
                self.check_ending_sessions();
            }
        }
        Ok(())
    }

    /// Whether a session is to end and has not.
    fn has_ending(&self) -> bool {
        let mut running = self.running.values();
        running.any(|running| running.cancellation.ending().is_some())
    }

    /// Whether all sessions are to end, and what they wait for does not come.
    fn only_stuck_are_left(&self) -> bool {
        let mut running = self.running.values();
        running.all(|running| running.cancellation.ending().is_some())
            && self.sessions.host.engine.hung_work().is_some()
    }

    /// A client that has gone may have left work that does not end and that the engine cannot end. New
    /// clients then get another server, whose device has nothing to do with it; and when those that are
    /// here have left, this one ends, and the work with it.
    fn check_ending_sessions(&mut self) {
        if self.stuck {
            return;
        }
        let Some(what) = self.sessions.host.engine.hung_work() else {
            return;
        };
        self.stuck = true;
        let ending = self.running.values();
        let mut names: Vec<&str> = ending
            .filter(|running| running.cancellation.ending().is_some())
            .map(|running| &*running.name)
            .collect();
        names.sort_unstable();
        let pid = getpid().as_raw_pid();
        self.log_line(&format!(
            "{} has gone and left work that does not end: {what}. Its memory stays taken, and what would \
             wait for it fails with error 46: other clients here can load no modules. `shutdown_server {pid} \
             -f` ends it, with all clients of this server; else it ends when they have left",
            names.join(", "),
        ));
        self.stop_admitting(CUresult::ERROR_DEVICE_UNAVAILABLE);
    }

    /// From now on clients get another server.
    fn stop_admitting(&mut self, code: CUresult) {
        if !self.stopping {
            self.send(&Packet::Lost { code: code.0 });
            self.stopping = true;
        }
    }

    fn handle_daemon_packets(&mut self) {
        loop {
            match self.connection.try_receive() {
                Ok(Some((bytes, fds))) => match Packet::decode(&bytes) {
                    Ok(Packet::Admit(admit)) => self.admit(admit, fds),
                    Ok(Packet::Shutdown { force, grace }) => self.shut_down(force, grace),
                    Ok(Packet::Terminate { session }) => {
                        // One that is gone already needs no end.
                        if let Some(running) = self.running.get(&session) {
                            running.cancellation.end(Ending::Terminated);
                        }
                    }
                    Ok(Packet::Record { time_line, session }) => {
                        // One that is gone already has nothing to be recorded.
                        if let (Some(running), Some(socket)) =
                            (self.running.get(&session), fds.into_iter().next())
                        {
                            self.record(&running.cancellation, time_line, socket);
                        }
                    }
                    Ok(Packet::Group(group)) => self.group(group, fds),
                    Ok(Packet::GroupGone { group }) => {
                        if let Some((turn, group)) = self.sessions.host.groups.gone(group) {
                            self.spawn_task(move |host, _| {
                                host.groups.end(&*host.engine, &turn, &group);
                            });
                        }
                    }
                    Ok(Packet::Change(change)) => match self.running.get(&change.session) {
                        Some(running) => match running.cancellation.accounts() {
                            Some(accounts) if change.asks_only() => self.send(&Packet::Changed {
                                request: change.request,
                                code: CUresult::SUCCESS.0,
                                text: String::new(),
                                accounts,
                            }),
                            _ => running.cancellation.change(change),
                        },
                        None => self.send(&Packet::Changed {
                            request: change.request,
                            code: CUresult::ERROR_INVALID_VALUE.0,
                            text: "the client is gone".into(),
                            accounts: Vec::new(),
                        }),
                    },
                    Ok(_) => self.log_line(
                        "The daemon sent a packet that does not belong here; it is ignored",
                    ),
                    Err(error) => self.log_line(&format!(
                        "The daemon sent a packet that cannot be read ({error}); it is ignored"
                    )),
                },
                Ok(None) => return,
                Err(SocketError::Descriptors(bytes)) => self.lost(&bytes),
                Err(error @ SocketError::Length) => {
                    self.log_line(&format!(
                        "The daemon sent a packet that cannot be read ({error}); it is ignored"
                    ));
                }
                Err(error) => {
                    // Clients go on without the daemon.
                    self.log_line(&format!(
                        "The daemon is gone ({error}); waiting for current clients to finish"
                    ));
                    let _ = epoll::delete(&self.epoll, &self.connection);
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    /// A packet came without its descriptors. The daemon waits for what comes of it.
    fn lost(&mut self, bytes: &[u8]) {
        match Packet::decode(bytes) {
            Ok(Packet::Admit(admit)) => {
                self.log_line("A client was lost: no descriptor is left for it");
                self.report_end(admit.session, Ending::Failed, Vec::new());
            }
            Ok(Packet::Group(group)) => self.group(group, Vec::new()),
            _ => {
                self.log_line("The daemon sent a packet whose descriptors are lost; it is ignored");
            }
        }
    }

    fn log_line(&self, text: &str) {
        self.sessions.log.line(false, text);
    }

    /// The daemon has told of a group of clients.
    fn group(&mut self, group: control_messages::Group, fds: Vec<OwnedFd>) {
        let host = &self.sessions.host;
        let told = match fds.into_iter().next() {
            Some(usage) => host.groups.told(&*host.engine, &group, usage),
            None => Err((
                CUresult::ERROR_INVALID_VALUE,
                "no descriptor of its usage came".to_owned(),
            )),
        };
        let group = Arc::new(group);
        let told = told.and_then(|turn| {
            let group = group.clone();
            let started = self.spawn_task(move |host, log| {
                let set = host.groups.set(&*host.engine, &group, &turn);
                if set.is_ok()
                    && let Some(group) = host.groups.find(group.group)
                    && group.compute().is_some_and(|compute| compute.each)
                {
                    log.line(
                        false,
                        "The device cannot hold a group to one part: each of its clients is held to it",
                    );
                }
                drop(turn);
                tell_of_group(host, log, &group, set);
            });
            let code = CUresult::ERROR_OPERATING_SYSTEM;
            let no_thread = || (code, "there is no thread for it".to_owned());
            started.then_some(()).ok_or_else(no_thread)
        });
        if told.is_err() {
            tell_of_group(&self.sessions.host, &*self.sessions.log, &group, told);
        }
    }

    /// Does something on a thread of its own, because it may have to wait for kernels, which need never
    /// end. Whether there is one.
    fn spawn_task(&self, act: impl FnOnce(&ServerResources, &dyn Log) + Send + 'static) -> bool {
        let sessions = self.sessions.clone();
        let act = move || act(&sessions.host, &*sessions.log);
        let thread = std::thread::Builder::new().name("groups".into());
        thread.spawn(act).is_ok()
    }

    fn shut_down(&mut self, force: bool, grace: u32) {
        if !self.stopping {
            self.log_line("Server has been notified to shutdown");
        }
        self.stopping = true;
        if force {
            self.end_all();
        } else {
            self.log_line("Waiting for current clients to finish");
            if grace != u32::MAX {
                self.force_at = Some(Instant::now() + Duration::from_millis(grace.into()));
            }
        }
    }

    fn end_all(&self) {
        for running in self.running.values() {
            running.cancellation.end(Ending::Shutdown);
        }
    }

    /// What tells one process from another, unless nothing does.
    fn identity(&self, pid: i32, pidfd: &OwnedFd) -> Option<(i32, u64)> {
        let inode = process_inode(pidfd.as_fd());
        // Before Linux 6.9 all processes' descriptors have one inode, and then only the id tells.
        (pid != 0 || inode != self.own_process).then_some((pid, inode))
    }

    fn admit(&mut self, packet: Admit, fds: Vec<OwnedFd>) {
        let number = packet.session;
        let mut fds = fds.into_iter();
        let (Some(socket), Some(pidfd)) = (fds.next(), fds.next()) else {
            self.log_line(
                "The daemon handed over a client without its descriptors; the client is not served",
            );
            return self.report_end(number, Ending::Failed, Vec::new());
        };
        let mut memory: Vec<OwnedFd> = fds.collect();
        let reader = packet.time_line.and_then(|_| memory.pop());
        // The kernel gives the lowest numbers that are free: high ones say that few are.
        if is_nearly_last(&memory) {
            let text = "the server has hardly a descriptor left: raise its limit (LimitNOFILE= of a unit, ulimit -n)";
            self.log_line(&format!("Client {} was refused: {text}", packet.pid));
            let refused = Packet::Refused {
                code: CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0,
                text: text.into(),
            };
            let _ = Connection::from_stranger(socket).try_send(&refused.encode(), &[]);
            return self.report_end(number, Ending::Failed, Vec::new());
        }
        let (pidfd, connection) = (Arc::new(pidfd), Arc::new(Connection::from_stranger(socket)));
        let cancellation = Arc::new(Cancellation::default());
        if let (Some(number), Some(reader)) = (packet.time_line, reader) {
            self.record(&cancellation, number, reader);
        }
        let who = self.identity(packet.pid, &pidfd);
        let name = format!("Client {} ({})", packet.pid, packet.client.program);
        let former = self.end_predecessor(who);
        let watched = self
            .watch(&*pidfd, FIRST_SESSION + 2 * number, EventFlags::IN)
            .and_then(|()| {
                let flags = EventFlags::RDHUP | EventFlags::HUP;
                self.watch(&*connection, FIRST_SESSION + 2 * number + 1, flags)
            });
        let thread = watched.map_err(std::io::Error::from).and_then(|()| {
            let sessions = self.sessions.clone();
            let cancellation = cancellation.clone();
            let (pidfd, connection) = (pidfd.clone(), connection.clone());
            std::thread::Builder::new()
                .name(format!("client {}", packet.pid))
                .spawn(move || {
                    while let Some(former) = &former
                        && !former.is_finished()
                        && sessions.host.engine.hung_work().is_none()
                    {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let how = sessions.serve(&packet, &pidfd, &connection, memory, &cancellation);
                    drop(connection);
                    sessions.host.events.push(ServerEvent::Ended(number, how));
                })
        });
        match thread {
            Ok(thread) => {
                self.running.insert(
                    number,
                    Running {
                        cancellation,
                        pidfd,
                        connection,
                        who,
                        thread: Some(thread),
                        name,
                    },
                );
            }
            Err(error) => {
                self.log_line(&format!(
                    "A client was refused: no thread can be started for it ({error})"
                ));
                let refused = Packet::Refused {
                    code: CUresult::ERROR_MPS_MAX_CLIENTS_REACHED.0,
                    text: error.to_string(),
                };
                let _ = connection.try_send(&refused.encode(), &[]);
                self.report_end(number, Ending::Failed, Vec::new());
            }
        }
    }

    /// Has a client recorded for who reads at the other end of that socket.
    fn record(&self, client: &Cancellation, number: u64, socket: OwnedFd) {
        match self.sessions.time_lines.find(number, socket) {
            Ok(time_line) => client.record_in(time_line),
            Err(error) => {
                self.log_line(&format!("A client is not recorded: {error}"));
            }
        }
    }

    /// Ends the session that a process had before, whose thread is to be waited for.
    fn end_predecessor(&mut self, who: Option<(i32, u64)>) -> Option<JoinHandle<()>> {
        let who = who?;
        let former = self
            .running
            .values_mut()
            .find(|running| running.who == Some(who) && running.thread.is_some())?;
        former.cancellation.end(Ending::Replaced);
        former.thread.take()
    }

    /// A client's process or socket has ended.
    fn end_client(&mut self, number: u64) {
        let (session, of_socket) = (number / 2, number % 2 == 1);
        let Some(running) = self.running.get(&session) else {
            return;
        };
        // Once is enough; the descriptors stay readable.
        let _ = epoll::delete(&self.epoll, &*running.pidfd);
        let _ = epoll::delete(&self.epoll, &*running.connection);
        running.cancellation.end(if of_socket {
            Ending::SocketClosed
        } else {
            Ending::ProcessEnded
        });
    }

    fn drain_events(&mut self) {
        if self.sessions.host.events.take_dead_context() {
            self.check_engine();
        }
        for event in self.sessions.host.events.drain() {
            match event {
                ServerEvent::Attached(session) => self.send(&Packet::Attached { session }),
                ServerEvent::Ended(session, how) => {
                    let mut accounts = None;
                    if let Some(running) = self.running.remove(&session) {
                        let _ = epoll::delete(&self.epoll, &*running.pidfd);
                        let _ = epoll::delete(&self.epoll, &*running.connection);
                        accounts = running.cancellation.accounts();
                    }
                    self.report_end(session, how, accounts.unwrap_or_default());
                }
                ServerEvent::Fault {
                    session,
                    code,
                    text,
                } => {
                    if self.unsent.len() < MAX_UNSENT {
                        self.send(&Packet::Fault {
                            session,
                            code: code.0,
                            text: text.chars().take(1000).collect(),
                        });
                    }
                    self.check_engine();
                }
                ServerEvent::Changed {
                    request,
                    code,
                    text,
                    accounts,
                } => self.send(&Packet::Changed {
                    request,
                    code: code.0,
                    text,
                    accounts,
                }),
            }
        }
    }

    /// An engine that has lost a device gets no more clients: the daemon starts another server for
    /// them. Those that are here keep what they know until they leave.
    fn check_engine(&mut self) {
        if let Some(code) = self.sessions.host.engine.lost()
            && !self.stopping
        {
            let text = format!("A device was lost: {code}. No more clients are taken");
            self.log_line(&text);
            self.stop_admitting(code);
        }
    }

    /// Tells the daemon that a session has ended, and what its client has had.
    fn report_end(&mut self, session: u64, how: Ending, mut accounts: Vec<DeviceAccount>) {
        for account in &mut accounts {
            (account.memory, account.queued) = (0, 0);
        }
        self.send(&Packet::Gone {
            session,
            how,
            accounts,
        });
    }

    /// Tells the daemon something, now or when it has read what it was told before: no client waits
    /// for a daemon that is slow.
    fn send(&mut self, packet: &Packet) {
        self.unsent.push_back(packet.encode());
        self.send_unsent();
    }

    fn send_unsent(&mut self) {
        let waited = self.unsent.len() > 1;
        while let Some(packet) = self.unsent.front() {
            match self.connection.try_send(packet, &[]) {
                Err(error) if error.would_wait() => break,
                // A daemon that is gone needs to be told nothing.
                _ => drop(self.unsent.pop_front()),
            }
        }
        let waits = !self.unsent.is_empty();
        if waits || waited {
            let mut flags = EventFlags::IN;
            flags.set(EventFlags::OUT, waits);
            let data = EventData::new_u64(DAEMON);
            let _ = epoll::modify(&self.epoll, &self.connection, data, flags);
        }
    }
}
