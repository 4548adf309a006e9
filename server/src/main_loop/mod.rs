//! The server's main thread: it hears the daemon (`daemon_packets`), and notices when clients end (`clients`).
//!
//! It waits in epoll for the daemon's packets, for each client's process and socket, and for sessions
//! that have ended; nothing else wakes it while all is quiet, but the watchdog's looks while there are clients. Called by `openmps` when a server's process starts. Must not
//! know what clients post or what engines do with it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use engine::{Engine, MemoryChunk, clock};
use protocol::control_messages::{Ending, Guilt, Packet};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use transport::socket::{Connection, SocketError};

use crate::admission::ServerResources;
use crate::admission::compute_mode::{ComputeModePolicy, EnforcedByDriver};
use crate::admission::device_list::all_listed;
use crate::admission::groups::Groups;
use crate::admission::session_thread::Sessions;
use crate::event_queue::{EventQueue, ServerEvent};
use crate::ipc::descriptors::Descriptors;
use crate::ipc::elsewhere::OtherServers;
use crate::ipc::event_links::EventLinks;
use crate::ipc::for_others::ExportsForOthers;
use crate::log::Log;
use crate::main_loop::unsent::Unsent;
use crate::memory::file_receiver::FileReceiver;
use crate::memory::further_windows::InheritedWindows;
use crate::memory::host_budget::HostMemoryBudget;
use crate::memory::server_budget::ServerMemoryBudget;

mod clients;
mod daemon_packets;
mod other_servers;
mod rest;
mod unsent;
mod watchdog;

use clients::{Running, process_inode};
use rest::Rest;
pub use watchdog::PATIENCE as WATCHDOG_PATIENCE;
use watchdog::{ClientWork, Finding, Watchdog};

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

/// How a server's work has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its clients have left.
    Done,
    /// It has lost a device, or has work that only its end ends, and its clients are to go on at another server: the process is to end at once, with the status
    /// [`HANDS_OVER`](protocol::control_messages::HANDS_OVER).
    HandsOver,
}

/// How long the engine has to tell clients that may be guilty of a device's loss, before the others go over; and how long it may take
/// where it has not looked yet at work of one of them.
const TELLING: Duration = Duration::from_millis(5);
const MOST_TELLING: Duration = Duration::from_millis(100);

/// How long the daemon may take to hear what a server has to say that hands its clients over.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Events, by the number in the kernel's event.
const DAEMON: u64 = 0;
const EVENTS: u64 = 1;
/// The last numbers that there are.
const DESCRIPTORS: u64 = u64::MAX;
const EVENT_LINKS: u64 = u64::MAX - 1;
/// From here on a session's number, twice: for its process and, plus one, for its socket.
const FIRST_SESSION: u64 = 2;

/// How often the engine is asked whether it can get rid of what a client left that has gone.
const LOOK: Duration = Duration::from_secs(1);

/// Serves the clients that the daemon hands over at the other end of `connection`, until it is told
/// to end and they have left; without the daemon, until they have left.
///
/// # Errors
/// When the system refuses what the main thread needs.
pub fn run(
    connection: Connection,
    engine: Arc<dyn Engine>,
    log: Arc<dyn Log>,
) -> Result<Outcome, RunError> {
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
    /// The server has one client, and never another.
    pub serves_one: bool,
    /// How long nothing may end on a device that has work before that is said.
    pub watchdog: Option<Duration>,
    /// The user may have other servers, and the daemon passes questions to them on.
    pub has_others: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compute_modes: Box::new(EnforcedByDriver),
            held: None,
            files: FileReceiver::Server,
            serves_one: false,
            watchdog: Some(WATCHDOG_PATIENCE),
            has_others: false,
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
) -> Result<Outcome, RunError> {
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
        free: (0..engine.devices().len())
            .filter_map(|device| engine.free_of_all(device))
            .collect(),
    };
    let watchdog = Watchdog::new(settings.watchdog, engine.devices().len());
    let pinned = HostMemoryBudget::of_this_machine(engine.machine_memory());
    let descriptors = Arc::new(Descriptors::new()?);
    let event_links = Arc::new(EventLinks::new()?);
    let events = Arc::new(EventQueue::new()?);
    let others = OtherServers::new(events.clone(), engine.devices());
    // Where clients go over, sessions have threads that end with the process: nothing of theirs is to be dropped before.
    let mut main_loop = ManuallyDrop::new(MainLoop {
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        running: HashMap::new(),
        sessions: Arc::new(Sessions {
            host: Arc::new(ServerResources {
                for_others: ExportsForOthers::new(
                    engine.clone(),
                    descriptors.clone(),
                    event_links.clone(),
                ),
                engine,
                events,
                exports: Arc::default(),
                other_servers: settings.has_others.then(|| Arc::new(others)),
                event_links,
                descriptors,
                groups: Groups::default(),
                compute_modes: settings.compute_modes.into(),
                host_memory: pinned,
                server_memory: ServerMemoryBudget::new(settings.held),
                files: Arc::new(settings.files),
                serves_one: settings.serves_one,
            }),
            log: log.clone(),
            time_lines: Arc::default(),
            contexts: Arc::default(),
        }),
        connection,
        unsent: VecDeque::new(),
        inherited: HashMap::new(),
        own_process: process_inode(pidfd_open(getpid(), PidfdFlags::empty())?.as_fd()),
        stopping: false,
        force_at: None,
        stuck: false,
        watchdog,
        next_look: Instant::now(),
        hands_over_at: None,
        rest: Rest::default(),
        is_asked_to_hand_over: false,
    });
    main_loop.watch(&main_loop.connection, DAEMON, EventFlags::IN)?;
    main_loop.watch(&*main_loop.sessions.host.events, EVENTS, EventFlags::IN)?;
    let descriptors = main_loop.sessions.host.descriptors.as_fd();
    main_loop.watch(descriptors, DESCRIPTORS, EventFlags::IN)?;
    let event_links = main_loop.sessions.host.event_links.as_fd();
    main_loop.watch(event_links, EVENT_LINKS, EventFlags::IN)?;
    main_loop.connection.send(&ready.encode(), &[])?;
    log.line(false, "Server has started");
    let time_lines = main_loop.sessions.time_lines.clone();
    let outcome = main_loop.run()?;
    if outcome == Outcome::Done {
        drop(ManuallyDrop::into_inner(main_loop));
        time_lines.finish();
    }
    log.line(false, "Exiting");
    Ok(outcome)
}

/// What the main thread knows.
#[derive(Debug)]
struct MainLoop {
    epoll: OwnedFd,
    connection: Connection,
    /// Packets for a daemon that does not read fast enough.
    unsent: VecDeque<Unsent>,
    /// What former servers have left of sessions that the daemon is about to hand over.
    inherited: HashMap<u64, Inherited>,
    running: HashMap<u64, Running>,
    sessions: Arc<Sessions>,
    own_process: u64,
    stopping: bool,
    force_at: Option<Instant>,
    /// It was said that a client left work behind that does not end.
    stuck: bool,
    watchdog: Watchdog,
    /// When the watchdog looks next.
    next_look: Instant,
    /// When clients go over to another server, since a device was lost or is at rest.
    hands_over_at: Option<Instant>,
    rest: Rest,
    /// The daemon waits for an answer to that.
    is_asked_to_hand_over: bool,
}

/// What a former server has left of a session's device memory.
#[derive(Debug, Default)]
struct Inherited {
    /// By device and address.
    chunks: BTreeMap<(u32, u64), MemoryChunk>,
    windows: InheritedWindows,
}

impl MainLoop {
    fn watch(&self, fd: impl AsFd, number: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.epoll, fd, EventData::new_u64(number), flags)
    }

    fn run(&mut self) -> Result<Outcome, RunError> {
        let mut events = Vec::with_capacity(64);
        while !(self.stopping && (self.running.is_empty() || self.only_stuck_are_left())) {
            let next = [self.force_at, self.hands_over_at];
            let left = next.into_iter().flatten().min().map(|time| {
                time.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
            });
            let look = self.has_ending() || self.rest.is_waited_for();
            let look = look.then(|| self.rest.interval());
            let interval = self
                .watchdog
                .interval()
                .filter(|_| !self.running.is_empty());
            let watch = interval.map(|_| self.next_look.saturating_duration_since(Instant::now()));
            let timeout = left.into_iter().chain(look).chain(watch).min().map(|left| {
                rustix::time::Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()),
                }
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
                    // Whom it hands over now is the next server's.
                    DAEMON if self.hands_over_at.is_some() => {}
                    DAEMON => {
                        self.handle_daemon_packets();
                        self.send_unsent();
                    }
                    EVENTS => self.drain_events(),
                    EVENT_LINKS => self.sessions.host.event_links.hand_on(),
                    DESCRIPTORS => {
                        let closed = self.sessions.host.descriptors.take_closed();
                        if !closed.is_empty() {
                            // The memory may have to be waited for.
                            self.spawn_task(move |_, _| drop(closed));
                        }
                    }
                    number => self.end_client(number - FIRST_SESSION),
                }
            }
            let is_time = |time: Instant, now: Instant| {
                let is_late = now.saturating_duration_since(time) >= MOST_TELLING;
                time <= now && (is_late || self.are_all_told())
            };
            if self
                .hands_over_at
                .is_some_and(|time| is_time(time, Instant::now()))
            {
                self.say_last_words();
                return Ok(Outcome::HandsOver);
            }
            if self.force_at.is_some_and(|time| time <= Instant::now()) {
                self.force_at = None;
                self.end_all();
            }
            if self.has_ending() || self.rest.is_waited_for() || self.is_asked_to_hand_over {
                self.hand_over_at_rest();
                self.check_ending_sessions();
            }
            if let Some(interval) = interval
                && Instant::now() >= self.next_look
            {
                self.next_look = Instant::now() + interval;
                self.watch_devices();
            }
        }
        Ok(Outcome::Done)
    }

    /// Whether each client that may be guilty of a device's loss was told. At rest there is nothing to be told.
    fn are_all_told(&self) -> bool {
        let running = self.running.values();
        let mut observers = running.filter_map(|running| running.cancellation.observer());
        self.rest.is_reached() || observers.all(|observer| observer.was_told())
    }

    /// Says what is left to be said before this process ends and another server takes its clients over.
    fn say_last_words(&mut self) {
        let (mut ended, mut stay) = (Vec::new(), true);
        for (&number, running) in &self.running {
            if let Some(how) = running.cancellation.ending() {
                let accounts = running.cancellation.accounts();
                ended.push((number, how, accounts.unwrap_or_default()));
            } else if let Some(observer) = running.cancellation.observer() {
                stay &= observer.leave(self.rest.is_reached());
            }
        }
        // These are not to go on elsewhere.
        for (number, how, accounts) in ended {
            self.report_end(number, how, accounts);
        }
        // What happened before that.
        self.drain_events();
        if stay {
            self.send(&Packet::HandsOver);
        }
        let until = Instant::now() + LAST_WORDS;
        while !self.unsent.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            self.send_unsent();
        }
    }

    /// Says on which devices nothing ends, and on which something does again.
    fn watch_devices(&mut self) {
        let clients: Vec<ClientWork> = self.running.values().filter_map(Running::work).collect();
        let found = self.watchdog.look(clock::now(), &clients);
        for (device, finding) in found {
            let engine = &self.sessions.host.engine;
            let name = &engine.devices()[device].name;
            let (text, since, told) = match finding {
                Finding::Still(since, has) => {
                    let seconds = clock::now().saturating_sub(since) / 1_000_000_000;
                    let text = format!(
                        "Device {device} ({name}) makes no progress: it has work, and nothing of it has ended for {seconds} s. {has}"
                    );
                    (text, Some(since), has)
                }
                Finding::GoesOn(after) => {
                    let text = format!(
                        "Device {device} ({name}) goes on: something ended, or has gone, after {} s",
                        after.as_secs()
                    );
                    (text, None, String::new())
                }
            };
            self.log_line(&text);
            self.send(&Packet::Still {
                device: device as u32,
                since,
                text: told.chars().take(1000).collect(),
            });
        }
    }

    /// From now on clients get another server.
    fn stop_admitting(&mut self, code: CUresult) {
        if !self.stopping {
            self.send(&Packet::Lost { code: code.0 });
            self.stopping = true;
        }
    }

    fn log_line(&self, text: &str) {
        self.sessions.log.line(false, text);
    }

    fn drain_events(&mut self) {
        if self.sessions.host.events.take_dead_context() {
            self.check_engine();
        }
        for event in self.sessions.host.events.drain() {
            match event {
                ServerEvent::Attached(session, bases) => {
                    if let Some(running) = self.running.get_mut(&session) {
                        running.is_kept = !bases.is_empty();
                    }
                    self.say_attached(session, bases);
                }
                ServerEvent::ChunkMade(session, chunk) => {
                    let MemoryChunk {
                        device,
                        at,
                        descriptor,
                    } = chunk;
                    let packet = Packet::ChunkMade {
                        session,
                        device,
                        base: at.base,
                        bytes: at.bytes,
                    };
                    self.send_with(&packet, vec![descriptor]);
                }
                ServerEvent::ChunkGone(session, device, base) => {
                    self.send(&Packet::ChunkGone {
                        session,
                        device,
                        base,
                    });
                }
                ServerEvent::WindowMade {
                    session,
                    device,
                    window,
                    file,
                } => {
                    let packet = Packet::WindowMade {
                        session,
                        device,
                        base: window.base,
                        bytes: window.bytes,
                    };
                    self.send_with(&packet, file.into_iter().collect());
                }
                ServerEvent::WindowGone(session, base) => {
                    self.send(&Packet::WindowGone { session, base });
                }
                ServerEvent::TakenOver(session, takeovers) => {
                    self.send(&Packet::TakenOver { session, takeovers });
                }
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
                    guilt,
                    text,
                } => {
                    self.report_fault(session, code, guilt, &text);
                    self.check_engine();
                }
                ServerEvent::Overran { session, text } => {
                    let code = CUresult::ERROR_LAUNCH_TIMEOUT;
                    self.report_fault(session, code, Guilt::Guilty, &text);
                    if let Some(running) = self.running.get(&session) {
                        running.cancellation.end(Ending::KernelTime);
                    }
                }
                ServerEvent::SeekExport {
                    question,
                    uid,
                    token,
                } => self.seek_elsewhere(question, uid, token),
                ServerEvent::ExportAnswer { question, found } => {
                    self.answer_another(question, found);
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
            if self.running.values().any(|running| running.is_kept) {
                if self.hands_over_at.is_none() {
                    let text =
                        format!("A device was lost: {code}. Another server takes the clients over");
                    self.log_line(&text);
                    self.hands_over_at = Some(Instant::now() + TELLING);
                }
                return;
            }
            let text = format!("A device was lost: {code}. No more clients are taken");
            self.log_line(&text);
            self.stop_admitting(code);
        }
    }
}
