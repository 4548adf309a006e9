//! Where a recording goes: into a file of this process, or to the server, for whoever asked the daemon for it. No path is ever
//! taken from the server.
//!
//! Owns the open file, or the server's request, and the joining of calls with work. Called by `recorder`: by its
//! thread, and when the process ends. Must not know who noted what is in the buffer.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use protocol::operations::{HoldReason, SPAN_BYTES, SPAN_COPY, TracePut, TraceTake};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use trace::chrome::Writer;
use trace::event::{Clock, Process};
use trace::join::{JoinError, Joiner, Span, SpanKind};
use trace::name_pattern::{self, Facts, PatternError};
use trace::output::Limited;
use trace::told::{PostedWork, Told};

use super::{Buffer, Recorder, lock, now};
use crate::session::connection::{Connection, LAST_WORD};

/// Bytes of a record to the server: other threads' records wait while it is written.
const PIECE: usize = 16 << 10;

/// What fills the places of a file's name.
struct Here;

impl Facts for Here {
    fn pid(&self) -> u32 {
        std::process::id()
    }

    fn host(&self) -> String {
        text_of("/proc/sys/kernel/hostname")
    }

    fn variable(&self, name: &str) -> Option<String> {
        let value = std::env::var_os(name)?;
        Some(value.to_string_lossy().into_owned())
    }
}

fn text_of(file: &str) -> String {
    std::fs::read_to_string(file).map_or_else(|_| String::new(), |text| text.trim().to_owned())
}

/// Makes the file. One that is there is another process': the name then gets this one's number.
fn create(name: &str) -> io::Result<File> {
    // Rust opens files close-on-exec.
    let made = OpenOptions::new().write(true).create_new(true).open(name);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::create(PathBuf::from(format!("{name}.{}", std::process::id())))
        }
        made => made,
    }
}

/// Why a process has no file of its own.
#[derive(Debug)]
pub(super) enum FileError {
    /// The pattern names none.
    Pattern(PatternError),
    /// It cannot be made.
    Create { name: String, error: io::Error },
    /// Its beginning cannot be written.
    Write { name: String, error: io::Error },
}

impl fmt::Display for FileError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(error) => error.fmt(to),
            Self::Create { name, error } => write!(to, "{name} cannot be made: {error}"),
            Self::Write { name, error } => write!(to, "{name} cannot be written: {error}"),
        }
    }
}

impl std::error::Error for FileError {}

/// A file of this process.
#[derive(Debug)]
struct OwnFile {
    joiner: Joiner<Limited<File>>,
    /// How far streams had come in the round before: the times of what is before were told by then.
    reached: HashMap<u32, u64>,
    server_dropped: u64,
}

#[derive(Debug)]
enum Kind {
    File(Box<OwnFile>),
    /// By the number of who asked.
    Server(u64),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sink {
    kind: Kind,
    /// By where their names lie.
    functions: HashMap<usize, u32>,
    threads: BTreeSet<u32>,
    kernels: HashSet<(u64, u32)>,
    /// When the buffer was emptied before: what was posted until then has been told.
    emptied_ns: u64,
    /// Streams that work was put into.
    streams: BTreeSet<u32>,
    /// Empty, with room for a round.
    pub(super) emptied: Buffer,
}

impl Sink {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            functions: HashMap::new(),
            threads: BTreeSet::new(),
            kernels: HashSet::new(),
            emptied_ns: 0,
            streams: BTreeSet::new(),
            emptied: Buffer::default(),
        }
    }

    /// To the server, for a number.
    pub(super) fn server(number: u64) -> Self {
        Self::of(Kind::Server(number))
    }

    /// The file that a pattern names.
    pub(super) fn file(pattern: &str) -> Result<Self, FileError> {
        let name = name_pattern::expand(pattern, &Here).map_err(FileError::Pattern)?;
        let file = match create(&name) {
            Ok(file) => file,
            Err(error) => return Err(FileError::Create { name, error }),
        };
        let wall = clock_gettime(ClockId::Realtime);
        let clock = Clock {
            monotonic_ns: now(),
            wall_ns: wall.tv_sec.unsigned_abs() * 1_000_000_000 + wall.tv_nsec.unsigned_abs(),
            boot: text_of("/proc/sys/kernel/random/boot_id"),
        };
        let process = Process {
            pid: std::process::id(),
            name: text_of("/proc/self/comm"),
            host: Here.host(),
        };
        let limited = Limited {
            storage: file,
            most: getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX),
        };
        let writer = match Writer::new(limited, clock, &process) {
            Ok(writer) => writer,
            Err(error) => return Err(FileError::Write { name, error }),
        };
        Ok(Self::of(Kind::File(Box::new(OwnFile {
            joiner: Joiner::new(writer),
            reached: HashMap::new(),
            server_dropped: 0,
        }))))
    }

    /// Whether nobody wants it any more.
    pub(super) fn is_over(&self, connection: &Connection) -> bool {
        match self.kind {
            Kind::File(_) => false,
            Kind::Server(number) => connection.link().recording() != number,
        }
    }

    /// Passes on what was recorded.
    pub(super) fn round(
        &mut self,
        recorder: &Recorder,
        taken: &Buffer,
        last: bool,
    ) -> Result<(), JoinError> {
        let connection = recorder.connection;
        let is_quiet = taken.calls.is_empty() && taken.posted.is_empty() && taken.dropped == 0;
        let emptied_ns = std::mem::replace(&mut self.emptied_ns, now());
        match &self.kind {
            // Nobody is woken for nothing.
            Kind::Server(_) if is_quiet => Ok(()),
            Kind::Server(_) => {
                let mut sent = Ok(());
                self.tell(recorder, taken, emptied_ns, |piece| {
                    let put = TracePut { reserved: 0 };
                    // Given up only where nothing else is to be posted: the ring is lost by that.
                    let posted = match last {
                        true => {
                            let until = Instant::now() + LAST_WORD;
                            let link = connection.link();
                            link.post_until(0, 0, &put, &[piece], until).is_ok()
                        }
                        false => connection.post_with(&put, piece).is_ok(),
                    };
                    if !posted {
                        sent = Err(JoinError::Io(io::Error::other("the session is over")));
                    }
                });
                sent
            }
            Kind::File(_) => {
                let mut told = Vec::new();
                self.tell(recorder, taken, emptied_ns, |piece| told.extend(piece));
                let mut former = None;
                for posted in &taken.posted {
                    // Most work goes where the work before it went.
                    if former.replace(posted.stream) != Some(posted.stream) {
                        self.streams.insert(posted.stream);
                    }
                }
                match &mut self.kind {
                    Kind::File(file) => file.round(connection, &told, &mut self.streams, last),
                    Kind::Server(_) => Ok(()),
                }
            }
        }
    }

    /// Puts a round into words.
    fn tell(
        &mut self,
        recorder: &Recorder,
        taken: &Buffer,
        emptied_ns: u64,
        mut send: impl FnMut(&[u8]),
    ) {
        let mut piece = Vec::with_capacity(PIECE + (8 << 10));
        let mut put = |told: Told<'_>| {
            told.put(&mut piece);
            if piece.len() >= PIECE {
                send(&piece);
                piece.clear();
            }
        };
        let (mut last, mut last_tid) = (None, None);
        for call in &taken.calls {
            let next = self.functions.len() as u32;
            let place = call.name.as_ptr().addr();
            // Most calls are as the one before.
            let function = match last {
                Some((known, number)) if known == place => number,
                _ => *self.functions.entry(place).or_insert_with(|| {
                    put(Told::Function {
                        number: next,
                        name: call.name,
                    });
                    next
                }),
            };
            last = Some((place, function));
            if last_tid.replace(call.tid) != Some(call.tid) && self.threads.insert(call.tid) {
                let name = text_of(&format!("/proc/self/task/{}/comm", call.tid));
                put(Told::Thread {
                    tid: call.tid,
                    name: &name,
                });
            }
            put(Told::Call {
                function,
                tid: call.tid,
                began_ns: call.began_ns,
                ended_ns: call.ended_ns,
                correlation: call.correlation,
            });
        }
        for posted in &taken.posted {
            if let PostedWork::Kernel { module, index, .. } | PostedWork::Run { module, index, .. } =
                posted.work
                && !self.kernels.contains(&(module, index))
                && let Some(facts) = lock(&recorder.kernels).get(&(module, index))
            {
                self.kernels.insert((module, index));
                put(Told::Kernel {
                    module,
                    index,
                    shared_bytes: facts.shared_bytes,
                    registers: facts.registers,
                    name: &facts.name,
                });
            }
            put(Told::Posted(*posted));
        }
        if taken.dropped > 0 {
            put(Told::Dropped {
                count: taken.dropped,
            });
        }
        put(Told::Until {
            time_ns: emptied_ns,
        });
        if !piece.is_empty() {
            send(&piece);
        }
    }
}

impl OwnFile {
    fn round(
        &mut self,
        connection: &Connection,
        told: &[u8],
        streams: &mut BTreeSet<u32>,
        last: bool,
    ) -> Result<(), JoinError> {
        self.joiner.told(told)?;
        // Before the times are asked for: those of what was done by now come with them, or a moment later.
        let now_reached = streams
            .iter()
            .map(|&stream| (stream, connection.link().completed(stream)));
        let now_reached = now_reached.collect();
        self.take_spans(connection)?;
        for (stream, until) in std::mem::replace(&mut self.reached, now_reached) {
            self.joiner.reached(stream, until);
        }
        if last {
            std::thread::sleep(Duration::from_millis(2));
            self.take_spans(connection)?;
            self.joiner.finish(now())?;
        } else {
            self.joiner.write(now())?;
            self.joiner.flush(now())?;
        }
        Ok(())
    }

    /// Asks the server for the times that it has.
    fn take_spans(&mut self, connection: &Connection) -> io::Result<()> {
        while let Ok(reply) = connection.call(&TraceTake { reserved: 0 }) {
            let dropped = reply.fields.dropped;
            let since = dropped.saturating_sub(self.server_dropped);
            self.joiner.dropped(since);
            self.server_dropped = self.server_dropped.max(dropped);
            if reply.data.len() < SPAN_BYTES {
                break;
            }
            for span in reply.data.chunks_exact(SPAN_BYTES) {
                let word = |at: usize| {
                    let bytes = span[at..at + 8].try_into().unwrap_or_default();
                    u64::from_le_bytes(bytes)
                };
                let device = word(32);
                let number = device as u32;
                let ordinal = connection
                    .devices()
                    .iter()
                    .position(|device| device.number == number);
                self.joiner.ran(Span {
                    stream: word(0) as u32,
                    sequence: word(8),
                    began_ns: word(16),
                    ended_ns: word(24),
                    device: ordinal.map_or(number, |ordinal| ordinal as u32),
                    kind: match device >> 32 {
                        SPAN_COPY => SpanKind::Copy,
                        kind => HoldReason::of_span(kind).map_or(SpanKind::Kernel, |why| {
                            SpanKind::Held {
                                why: why.text(),
                                is_others: why.is_others(),
                                is_order: why.is_order(),
                            }
                        }),
                    },
                })?;
            }
        }
        Ok(())
    }
}
