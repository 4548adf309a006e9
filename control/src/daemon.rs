//! The daemon's event loop: one thread that sleeps until a descriptor has something to say or a time
//! has come.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use transport::socket::Connection;

use crate::BINARY_VERSION;
use crate::arguments::Options;
use crate::commands::Answer;
use crate::connections::HalfOpen;
use crate::directories::text_variable;
use crate::instance::Instance;
use crate::log::Role;
use crate::placement::{Isolation, Key};
use crate::registry::{Registry, ServerId};
use crate::settings::Settings;

/// How long a server that was told to end at once may take before it is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// Commands that may wait for something at a time.
const MAX_PENDING_ANSWERS: usize = 1024;

/// What a descriptor is for. Kept in the kernel's event as its number with the kind in the low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Somebody connects.
    Listener,
    /// A signal came.
    Signals,
    /// A connection that has not said yet what it is for.
    HalfOpen(u64),
    /// A server says something.
    Server(ServerId),
    /// A server's process ended.
    Process(ServerId),
}

impl Source {
    const fn encode(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Signals => 1,
            Self::HalfOpen(id) => id << 3 | 2,
            Self::Server(id) => id << 3 | 3,
            Self::Process(id) => id << 3 | 4,
        }
    }

    const fn decode(word: u64) -> Option<Self> {
        let id = word >> 3;
        match word & 7 {
            0 => Some(Self::Listener),
            1 => Some(Self::Signals),
            2 => Some(Self::HalfOpen(id)),
            3 => Some(Self::Server(id)),
            4 => Some(Self::Process(id)),
            _ => None,
        }
    }
}

/// What an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// A server is ready, or gone.
    Ready(ServerId),
    /// A server is gone.
    Gone(ServerId),
    /// All servers are gone, and the daemon is about to go.
    AllGone,
}

#[derive(Debug)]
struct Pending {
    connection: Connection,
    answer: Answer,
    until: Until,
}

/// The daemon.
#[derive(Debug)]
pub struct Daemon {
    pub(crate) instance: Instance,
    pub(crate) registry: Registry,
    /// For later servers.
    pub(crate) defaults: Settings,
    /// For clients that ask for none.
    pub(crate) default_priority: u32,
    pub(crate) isolation: Isolation,
    pub(crate) start_server: fn() -> Command,
    /// Starts of an executor's server in a row that came to nothing.
    pub(crate) attempts: HashMap<Key, u32>,
    /// Connections by number, and so in the order in which they came.
    pub(crate) half_open: BTreeMap<u64, HalfOpen>,
    /// The last number given to a connection, session or server.
    pub(crate) last_number: u64,
    /// When the listener, out of descriptors, is looked at again.
    pub(crate) listen_again: Option<Instant>,
    epoll: OwnedFd,
    signals: UnixStream,
    pending: Vec<Pending>,
    quitting: bool,
}

impl Daemon {
    /// Makes the daemon that [`Daemon::run`] runs. Connections are accepted from now on.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn new(
        instance: Instance,
        options: Options,
        start_server: fn() -> Command,
    ) -> Result<Self, String> {
        let percentage = text_variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")?;
        let memory = text_variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")?;
        let defaults = Settings::from_environment(percentage.as_deref(), memory.as_deref())
            .map_err(|error| error.to_string())?;
        let default_priority = match text_variable("CUDA_MPS_CLIENT_PRIORITY")? {
            Some(text) => cuda_abi::limits::priority(&text).map_err(|error| error.to_string())?,
            None => 0,
        };

        let failed = |error: &dyn std::fmt::Display| format!("cannot wait for events: {error}");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(&error))?;
        let (signals, writer) = UnixStream::pair().map_err(|error| failed(&error))?;
        signals
            .set_nonblocking(true)
            .map_err(|error| failed(&error))?;
        for signal in [SIGTERM, SIGINT] {
            writer
                .try_clone()
                .and_then(|writer| signal_hook::low_level::pipe::register(signal, writer))
                .map_err(|error| failed(&error))?;
        }

        let daemon = Self {
            instance,
            registry: Registry::default(),
            defaults,
            default_priority,
            isolation: Isolation::default(),
            start_server,
            attempts: HashMap::new(),
            half_open: BTreeMap::new(),
            last_number: 0,
            listen_again: None,
            epoll,
            signals,
            pending: Vec::new(),
            quitting: false,
        };
        daemon
            .watch(&daemon.instance.listener, Source::Listener)
            .and_then(|()| daemon.watch(&daemon.signals, Source::Signals))
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
        if options.multiuser {
            daemon.log("Multi-user mode: the users' clients are served at the same time, each user's by a server of its own");
        }
        Ok(daemon)
    }

    /// Runs until it is told to quit and all servers are gone.
    #[must_use]
    pub fn run(mut self) -> ExitCode {
        let mut events = Vec::with_capacity(64);
        while !(self.quitting && self.registry.servers.is_empty()) {
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
                    Some(Source::Listener) => self.accept(),
                    Some(Source::Signals) => self.signalled(),
                    Some(Source::HalfOpen(number)) => self.half_open_spoke(number),
                    Some(Source::Server(id)) => self.server_spoke(id),
                    Some(Source::Process(id)) => self.server_ended(id),
                    None => {}
                }
            }
            self.pass_deadlines();
        }
        self.log("Exit with status 0");
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

    /// Writes a line of control.log.
    pub(crate) fn log(&self, text: &str) {
        self.instance.control_log.line(Role::Control, text);
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

    /// Whether a user may change things.
    pub(crate) fn is_owner(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw()
    }

    pub(crate) const fn is_quitting(&self) -> bool {
        self.quitting
    }

    /// Ends everything: servers end when their clients have left, or after `grace`.
    pub(crate) fn quit(&mut self, grace: Option<Duration>) {
        self.quitting = true;
        let ids: Vec<ServerId> = self.registry.servers.keys().copied().collect();
        for id in ids {
            self.shut_down_server(id, grace == Some(Duration::ZERO), grace);
        }
    }

    fn signalled(&mut self) {
        use std::io::Read;
        let mut bytes = [0; 16];
        let _ = (&self.signals).read(&mut bytes);
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

    /// Gives an answer, now or when what it waits for has come to pass.
    pub(crate) fn answer(&mut self, connection: Connection, mut answer: Answer) {
        match answer.until.take() {
            Some(until) if self.pending.len() < MAX_PENDING_ANSWERS => self.pending.push(Pending {
                connection,
                answer,
                until,
            }),
            _ => send_answer(&connection, &answer),
        }
    }

    /// Gives the answers that wait for this; `text` is appended to them.
    pub(crate) fn came_to_pass(&mut self, which: impl Fn(Until) -> bool, text: &str) {
        let (now, later) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|pending| which(pending.until));
        self.pending = later;
        for mut pending in now {
            pending.answer.text.push_str(text);
            send_answer(&pending.connection, &pending.answer);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let half_open = self.half_open.values().next().map(|first| first.deadline);
        let servers = self
            .registry
            .servers
            .values()
            .filter_map(|server| server.deadline);
        servers.chain(half_open).chain(self.listen_again).min()
    }

    fn pass_deadlines(&mut self) {
        let now = Instant::now();
        self.drop_silent_connections(now);
        if self.listen_again.is_some_and(|time| time <= now) {
            self.listen_again = None;
            let _ = self.watch(&self.instance.listener, Source::Listener);
        }
        for server in self.registry.servers.values_mut() {
            if server.deadline.is_some_and(|deadline| deadline <= now) {
                server.deadline = None;
                let _ = server.child.kill();
            }
        }
    }

    /// Stops listening for a moment: nobody can be accepted.
    pub(crate) fn pause_listening(&mut self) {
        self.forget(&self.instance.listener);
        self.listen_again = Some(Instant::now() + Duration::from_millis(100));
    }

    /// When a server that ends with this patience is killed if it has not.
    pub(crate) fn kill_time(force: bool, grace: Option<Duration>) -> Option<Instant> {
        let patience = if force { Some(Duration::ZERO) } else { grace };
        patience.and_then(|patience| Instant::now().checked_add(patience + KILL_AFTER))
    }
}

/// SIGTERM
const SIGTERM: i32 = 15;
/// SIGINT
const SIGINT: i32 = 2;

/// Sends an answer to whoever still waits for it. The daemon never waits for a reader.
pub fn send_answer(connection: &Connection, answer: &Answer) {
    for packet in transport::handshake::command_output(answer.exit, &answer.text) {
        if connection.try_send(&packet.encode(), &[]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_back_from_their_words() {
        for source in [
            Source::Listener,
            Source::Signals,
            Source::HalfOpen(7),
            Source::Server(1 << 40),
            Source::Process(0),
        ] {
            assert_eq!(Source::decode(source.encode()), Some(source));
        }
        assert_eq!(Source::decode(7), None);
    }
}
