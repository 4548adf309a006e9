//! The daemon's event loop: one thread that sleeps until a descriptor has something to say or a time
//! has come.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use serde_json::json;
use transport::handshake::ListedDevice;
use transport::socket::Connection;

use crate::arguments::Options;
use crate::changes::Change;
use crate::commands::{self, Answer, Caller};
use crate::compute_mode::{Changed, DeviceModes};
use crate::connections::{HalfOpen, most_half_open};
use crate::directories::text_variable;
use crate::groups::Groups;
use crate::instance::Instance;
use crate::log::{About, Role};
use crate::placement::{Isolation, Key};
use crate::registry::{Registry, ServerId};
use crate::settings::Settings;
use crate::source::Source;
use crate::underlay::Underlay;
use crate::users::Queued;
use crate::view::Views;
use crate::{BINARY_VERSION, Machine};

/// How long a server that was told to end at once may take before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// How long a log may become, unless OPENMPS_LOG_BYTES says otherwise.
const LOG_BYTES: u64 = 16 << 20;

/// How often, at most, the logs are looked after.
const LOOK_AFTER: Duration = Duration::from_secs(1);

/// How long it is left alone while nothing else happens and there are servers.
const LOOK_IDLE: Duration = Duration::from_secs(60);

/// How long the answer to `terminate_client` waits for the client's work to end.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// What is said of a change that nobody has answered in time: it may hold later.
const NO_ANSWER: &str = "the server has not answered yet";

/// Commands that may wait for something at a time.
const MAX_PENDING_ANSWERS: usize = 1024;

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// A server is ready, or gone.
    Ready(ServerId),
    /// A server is gone.
    Gone(ServerId),
    /// A session is over.
    Ended(u64),
    /// All servers are gone, and the daemon is about to go.
    AllGone,
    /// Those concerned have said whether a change of limits holds.
    Changed(u64),
}

#[derive(Debug)]
struct Pending {
    connection: Connection,
    answer: Answer,
    until: Until,
    /// Who asked for what, if it is to be carried out again.
    again: Option<(Caller, String)>,
    /// When the answer is given all the same.
    deadline: Option<Instant>,
}

/// The daemon.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) instance: Instance,
    pub(crate) registry: Registry,
    /// Groups of clients.
    pub(crate) groups: Groups,
    /// Whether clients have contexts in static partitions only.
    pub(crate) static_partitions: bool,
    /// The number of the last one.
    pub(crate) last_partition: u32,
    /// Changes of limits that servers have not answered.
    pub(crate) changes: BTreeMap<u64, Change>,
    /// Who asked to be shown devices and clients.
    pub(crate) views: Views,
    /// For later servers.
    pub(crate) defaults: Settings,
    /// For clients that ask for none.
    pub(crate) default_priority: u32,
    pub(crate) isolation: Isolation,
    /// Whether several users are served at once.
    pub(crate) multiuser: bool,
    /// Clients that wait for another user's to leave.
    pub(crate) queued: VecDeque<Queued>,
    /// What the last server that became ready has.
    pub(crate) devices: Vec<ListedDevice>,
    pub(crate) machine: Machine,
    /// What runs beneath servers.
    pub(crate) underlay: Underlay,
    /// Modes of devices that are to be given back, and with what.
    pub(crate) modes: Option<(Changed, Box<dyn DeviceModes>)>,
    /// Starts of an executor's server in a row that came to nothing.
    pub(crate) attempts: HashMap<Key, u32>,
    /// Connections by number, and so in the order in which they came.
    pub(crate) half_open: BTreeMap<u64, HalfOpen>,
    /// How many of them there may be.
    pub(crate) most_half_open: usize,
    /// The last number given to a connection, session or server.
    pub(crate) last_number: u64,
    /// When the listener, out of descriptors, is looked at again.
    pub(crate) listen_again: Option<Instant>,
    epoll: OwnedFd,
    signals: UnixStream,
    children: UnixStream,
    /// When the logs were last looked after, and how long they may become.
    looked_after: Instant,
    log_bytes: u64,
    pending: Vec<Pending>,
    quitting: bool,
}

impl Daemon {
    /// Makes the daemon that [`Daemon::run`] runs. Connections are accepted from now on.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn new(instance: Instance, options: Options, machine: Machine) -> Result<Self, String> {
        let (defaults, default_priority) = limits_in_environment()?;
        let failed = |error: &dyn std::fmt::Display| format!("cannot wait for events: {error}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(&error))?;
        let signals = on_signals(&ending_signals()).map_err(|error| failed(&error))?;
        let children = on_signals(&[SIGCHLD]).map_err(|error| failed(&error))?;
        let log_bytes = match text_variable("OPENMPS_LOG_BYTES")? {
            Some(text) => cuda_abi::limits::size_in_bytes(&text)
                .map_err(|error| format!("OPENMPS_LOG_BYTES: {error}"))?,
            None => LOG_BYTES,
        };
        let isolation = match (options.isolation, text_variable("OPENMPS_ISOLATION")?) {
            (Some(isolation), _) => isolation,
            (None, Some(text)) => Isolation::named(&text).ok_or_else(|| {
                format!("OPENMPS_ISOLATION={text} is none of {}", Isolation::NAMES)
            })?,
            (None, None) => Isolation::default(),
        };
        let (underlay, of_underlay) = Underlay::new(options.underlay, machine)?;
        let daemon = Self {
            instance,
            registry: Registry::default(),
            groups: Groups::default(),
            static_partitions: options.static_partitions,
            last_partition: 0,
            changes: BTreeMap::new(),
            views: Views::default(),
            defaults,
            default_priority,
            isolation,
            multiuser: options.multiuser,
            queued: VecDeque::new(),
            devices: Vec::new(),
            machine,
            underlay,
            modes: None,
            attempts: HashMap::new(),
            half_open: BTreeMap::new(),
            most_half_open: most_half_open(descriptors()),
            last_number: 0,
            listen_again: None,
            epoll,
            signals,
            children,
            looked_after: Instant::now(),
            log_bytes,
            pending: Vec::new(),
            quitting: false,
        };
        daemon
            .listen()
            .and_then(|()| daemon.watch(&daemon.instance.log_pipe, Source::LogPipe))
            .and_then(|()| daemon.watch(&daemon.signals, Source::Signals))
            .and_then(|()| daemon.watch(&daemon.children, Source::Children))
            .map_err(|error| failed(&error))?;

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
        daemon.load_groups()?;
        daemon.set_modes(options.compute_mode)?;
        if options.ready_devices
            && let Err(error) = daemon.start_for_user(rustix::process::geteuid().as_raw())
        {
            daemon.log(&error);
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
                "static_partitions": self.static_partitions,
                "underlay": self.describe_underlay().1["mode"],
                "foreground": options.foreground,
                "descriptors": descriptors,
            }),
        );
    }

    /// Runs until it is told to quit and all servers are gone.
    #[must_use]
    pub fn run(mut self) -> ExitCode {
        let mut events = Vec::with_capacity(64);
        while !self.is_done() {
            events.clear();
            let timeout = self.next_deadline().map(|deadline| {
                // Rounded up, so that the deadline has passed when the wait is over.
                let left =
                    deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
                rustix::time::Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(left.subsec_nanos()),
                }
            });
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    self.log(&format!("Cannot wait for events: {error}"));
                    break;
                }
            }
            for event in &events {
                let data = event.data;
                match Source::decode(data.u64()) {
                    source @ (Source::Listener | Source::Privileged | Source::Group(_)) => {
                        self.accept(source);
                    }
                    Source::Orphan(slot) => self.former_server_ended(slot),
                    Source::LogPipe => self.instance.pass_on_lines(),
                    Source::Children => self.reap(),
                    Source::Signals => self.signalled(),
                    Source::HalfOpen(number) => self.half_open_spoke(number),
                    Source::Server(id) => self.server_spoke(id),
                    Source::Process(id) => self.server_ended(id, None),
                    Source::Look => self.look_spoke(),
                    Source::Underlay(number) => self.underlay_spoke(number),
                }
            }
            self.pass_deadlines();
            self.look_after_logs();
        }
        self.give_modes_back();
        self.log("Exit with status 0");
        let about = json!({ "daemon": std::process::id() });
        self.event("daemon.exited", about, json!({}));
        // Before the answers: whoever gets one may look for the files, or start the next daemon.
        let Self {
            instance, pending, ..
        } = self;
        drop(instance);
        for waiting in pending {
            send_answer(&waiting.connection, &waiting.answer);
        }
        ExitCode::SUCCESS
    }

    /// Whether it was told to quit, and nothing is left that it started.
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

    pub(crate) fn watch(&self, fd: impl AsFd, source: Source) -> Result<(), Errno> {
        epoll::add(
            &self.epoll,
            fd,
            EventData::new_u64(source.encode()),
            EventFlags::IN,
        )
    }

    /// To be called before a descriptor is sent to another process: there it stays open, and so the
    /// kernel would go on telling of it here.
    pub(crate) fn forget(&self, fd: impl AsFd) {
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
            crate::notify::tell("STOPPING=1");
        }
        self.quitting = true;
        self.serve_next_user();
        let ids: Vec<ServerId> = self.registry.servers.keys().copied().collect();
        for id in ids {
            self.shut_down_server(id, grace == Some(Duration::ZERO), grace);
        }
    }

    fn signalled(&mut self) {
        drain(&self.signals);
        if self.quitting {
            // Asked twice: no more patience.
            for server in self.registry.servers.values_mut() {
                server.deadline = Some(Instant::now());
            }
        } else {
            self.log("Told by a signal to quit");
        }
        self.quit(Some(Duration::ZERO));
    }

    /// Reaps children: servers, and orphans, which a process 1 is given.
    fn reap(&mut self) {
        use rustix::process::{WaitOptions, waitpid};
        use std::os::unix::process::ExitStatusExt;
        drain(&self.children);
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get().cast_unsigned();
            if let Some(id) = self.registry.by_pid(pid) {
                self.server_ended(id, Some(ExitStatus::from_raw(status.as_raw())));
            }
        }
    }

    fn look_after_logs(&mut self) {
        if self.looked_after.elapsed() < LOOK_AFTER {
            return;
        }
        self.looked_after = Instant::now();
        for log in self.instance.logs() {
            log.look_after(self.log_bytes);
        }
    }

    /// Gives an answer, now or when what it waits for has come to pass.
    pub(crate) fn answer(
        &mut self,
        connection: Connection,
        caller: Caller,
        line: &str,
        mut answer: Answer,
    ) {
        match answer.until.take() {
            Some(until) if self.pending.len() < MAX_PENDING_ANSWERS => {
                let deadline = matches!(until, Until::Ended(_) | Until::Changed(_));
                self.pending.push(Pending {
                    connection,
                    until,
                    again: answer.again.then(|| (caller, line.to_owned())),
                    deadline: deadline.then(|| Instant::now() + ENDED_WITHIN),
                    answer,
                });
            }
            Some(Until::Changed(_)) => {
                answer.fail(NO_ANSWER);
                send_answer(&connection, &answer);
            }
            _ => send_answer(&connection, &answer),
        }
    }

    /// Gives the answers that wait for this, or says why it will never come to pass.
    pub(crate) fn came_to_pass(&mut self, which: impl Fn(Until) -> bool, failed: Option<&str>) {
        let (now, later) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(|pending| which(pending.until));
        self.pending = later;
        for mut pending in now {
            if let Some(failed) = failed {
                pending.answer.fail(failed);
            }
            match pending.again.take() {
                Some((caller, line)) if failed.is_none() => {
                    let answer = commands::run(self, caller, &line);
                    self.answer(pending.connection, caller, &line, answer);
                }
                _ => send_answer(&pending.connection, &pending.answer),
            }
        }
    }

    /// Gives an answer in place of one that waits for this.
    pub(crate) fn answer_with(&mut self, until: Until, answer: &Answer) {
        let waiting = |pending: &mut Pending| pending.until == until;
        for mut pending in self.pending.extract_if(.., waiting).collect::<Vec<_>>() {
            for line in answer.text.lines() {
                self.log(line);
            }
            pending.answer = Answer {
                as_json: pending.answer.as_json,
                ..answer.clone()
            };
            send_answer(&pending.connection, &pending.answer);
        }
    }

    /// What waits for one thing waits for another.
    pub(crate) fn wait_for_another(&mut self, one: Until, other: Until) {
        for pending in &mut self.pending {
            if pending.until == one {
                pending.until = other;
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let half_open = self.half_open.values().next().map(|first| first.deadline);
        let servers = self
            .registry
            .servers
            .values()
            .filter_map(|server| server.deadline);
        let answers = self.pending.iter().filter_map(|pending| pending.deadline);
        // Servers write to the log while this process sleeps.
        let logs = (!self.registry.servers.is_empty()).then(|| self.looked_after + LOOK_IDLE);
        servers
            .chain(half_open)
            .chain(logs)
            .chain(self.listen_again)
            .chain(self.views.next_deadline())
            .chain(self.underlay.next_deadline())
            .chain(answers)
            .min()
    }

    fn pass_deadlines(&mut self) {
        let now = Instant::now();
        self.drop_silent_connections(now);
        self.pass_deadlines_of_views(now);
        self.underlay.pass_deadlines(now);
        if self.listen_again.is_some_and(|time| time <= now) {
            self.listen_again = None;
            let _ = self.listen();
        }
        // A client that was told to end cannot go on, however long the device still works for it.
        let late = |pending: &Pending| pending.deadline.is_some_and(|deadline| deadline <= now);
        for mut pending in self.pending.extract_if(.., |pending| late(pending)) {
            if matches!(pending.until, Until::Changed(_)) {
                pending.answer.fail(NO_ANSWER);
            }
            send_answer(&pending.connection, &pending.answer);
        }
        self.end_late_servers(now);
    }

    fn listen(&self) -> Result<(), Errno> {
        self.watch(&self.instance.listener, Source::Listener)?;
        if let Some(privileged) = &self.instance.privileged {
            self.watch(privileged, Source::Privileged)?;
        }
        for (number, listener) in self.groups.listeners() {
            match self.watch(listener, Source::Group(number)) {
                // Made while nobody was accepted.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stops listening for a moment: nobody can be accepted.
    pub(crate) fn pause_listening(&mut self) {
        self.forget(&self.instance.listener);
        if let Some(privileged) = &self.instance.privileged {
            self.forget(privileged);
        }
        for (_, listener) in self.groups.listeners() {
            self.forget(listener);
        }
        self.listen_again = Some(Instant::now() + Duration::from_millis(100));
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

/// The limits that the environment gives, and the priority.
///
/// # Errors
/// When one does not parse, in words.
pub fn limits_in_environment() -> Result<(Settings, u32), String> {
    let percentage = text_variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")?;
    let memory = text_variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")?;
    let settings = Settings::from_environment(percentage.as_deref(), memory.as_deref())
        .map_err(|error| error.to_string())?;
    let priority = match text_variable("CUDA_MPS_CLIENT_PRIORITY")? {
        Some(text) => cuda_abi::limits::priority(&text).map_err(|error| error.to_string())?,
        None => 0,
    };
    Ok((settings, priority))
}

/// The signals that end the daemon as `quit -t 0` does. Whoever started it with SIGHUP ignored, as nohup
/// does, wants it to go on.
fn ending_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = ignored.unwrap_or(0);
    let mut signals = vec![SIGTERM, SIGINT, SIGHUP, SIGQUIT];
    signals.retain(|signal| *signal != SIGHUP || ignored >> (SIGHUP - 1) & 1 == 0);
    signals
}

/// Becomes readable when one of the signals came.
fn on_signals(signals: &[i32]) -> std::io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    for &signal in signals {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

fn drain(mut signals: &UnixStream) {
    use std::io::Read;
    let mut bytes = [0; 64];
    while matches!(signals.read(&mut bytes), Ok(64)) {}
}

/// SIGCHLD
const SIGCHLD: i32 = 17;
/// SIGTERM
const SIGTERM: i32 = 15;
/// SIGINT
const SIGINT: i32 = 2;
/// SIGHUP: its terminal is gone.
const SIGHUP: i32 = 1;
/// SIGQUIT
const SIGQUIT: i32 = 3;

/// Sends an answer to whoever still waits for it. The daemon never waits for a reader.
pub fn send_answer(connection: &Connection, answer: &Answer) {
    let remark = answer.remark.as_deref().filter(|_| !answer.as_json);
    if let Some(remark) = remark {
        let packet = transport::handshake::remark(remark);
        let _ = connection.try_send(&packet.encode(), &[]);
    }
    for packet in transport::handshake::command_output(answer.exit, &answer.output()) {
        if connection.try_send(&packet.encode(), &[]).is_err() {
            return;
        }
    }
}
