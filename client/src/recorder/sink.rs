//! Where a recording goes: into a file of this process, or to the server, for whoever asked the daemon for it. No path is ever
//! taken from the server.
//!
//! Owns the open file, or the server's request, and the joining of calls with work. Called by `recorder`: by its
//! thread, and when the process ends. Must not know who wrote what is in threads' rings.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_abi::functions::Function;
use protocol::operations::{HoldReason, SPAN_COPY, SpanReader, SpanRecord, TracePut, TraceTake};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use trace::chrome::Writer;
use trace::event::{Clock, Process};
use trace::join::{JoinError, Joiner, Span, SpanKind};
use trace::name_pattern::{self, Facts, PatternError};
use trace::output::Limited;
use trace::thread_log::{Named, TickClock, named};
use trace::told::Told;

use super::ring::Ring;
use super::{Recorder, lock, ticks};
use crate::session::connection::{Connection, LAST_WORD};

/// Bytes of words, and of what stands before them, in a piece: twice that and a name make a record to the server, while whose writing
/// other threads' records wait.
const PIECE: usize = 8 << 10;

/// Bytes that threads told which are kept until they are in the file; what is more stays in threads' rings.
const MOST_BACKLOG: usize = 64 << 20;

/// How far two looks at both clocks are apart at least that tell how one goes beside the other.
const CLOCK_SPAN: u64 = 10_000_000;

/// Work that is written at a time, while the process' end may wait for it.
const WORK_AT_A_TIME: usize = 2048;

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
    /// What threads told that is not in the file yet, and its bytes.
    backlog: VecDeque<Vec<u8>>,
    backlog_bytes: usize,
    /// How far streams had come when spans were asked for before: those of what is before were told by then.
    reached: Vec<(u32, u64)>,
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
    /// What was named already.
    functions: HashSet<u16>,
    threads: BTreeSet<u32>,
    kernels: HashSet<(u64, u32)>,
    /// When threads' rings were emptied before, in ticks and in nanoseconds: what was posted until then has been told.
    emptied: (u64, u64),
    /// A look at both clocks before that, or the first.
    looked: (u64, u64),
}

impl Sink {
    fn of(kind: Kind) -> Self {
        let now = ticks::both();
        Self {
            kind,
            functions: HashSet::new(),
            threads: BTreeSet::new(),
            kernels: HashSet::new(),
            emptied: now,
            looked: now,
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
            monotonic_ns: ticks::nanoseconds(),
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
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            reached: Vec::new(),
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

    /// Whether passing on takes longer than recording does.
    pub(super) fn takes_long(&self) -> bool {
        matches!(self.kind, Kind::File(_))
    }

    /// Empties threads' rings. Says whether there is more to do before they are emptied again.
    pub(super) fn drain(&mut self, recorder: &Recorder, last: bool) -> Result<bool, JoinError> {
        let mut pieces = Vec::new();
        let connection = recorder.connection;
        match &self.kind {
            Kind::File(file) if file.backlog_bytes > MOST_BACKLOG && !last => {}
            _ => self.tell(recorder, &mut pieces),
        }
        match &mut self.kind {
            Kind::Server(_) => {
                let until = Instant::now() + LAST_WORD;
                for piece in pieces {
                    let put = TracePut { reserved: 0 };
                    // Given up only where nothing else is to be posted: the ring is lost by that.
                    let is_posted = match last {
                        true => {
                            let link = connection.link();
                            link.post_until(0, 0, &put, &[&piece], until).is_ok()
                        }
                        false => connection.post_with(&put, &piece).is_ok(),
                    };
                    if !is_posted {
                        return Err(io::Error::other("the session is over").into());
                    }
                }
                Ok(false)
            }
            Kind::File(file) => {
                file.backlog_bytes += pieces.iter().map(Vec::len).sum::<usize>();
                file.backlog.extend(pieces);
                file.look(connection)?;
                file.write_some()
            }
        }
    }

    /// Writes a part of what there is. Says whether there is more.
    pub(super) fn write_some(&mut self) -> Result<bool, JoinError> {
        match &mut self.kind {
            Kind::File(file) => file.write_some(),
            Kind::Server(_) => Ok(false),
        }
    }

    /// Passes on the rest.
    pub(super) fn finish(&mut self, recorder: &Recorder) -> Result<(), JoinError> {
        let mut is_more = self.drain(recorder, true)?;
        while is_more {
            is_more = self.write_some()?;
        }
        if let Kind::File(file) = &mut self.kind {
            std::thread::sleep(Duration::from_millis(2));
            file.take_spans(recorder.connection)?;
            file.joiner.finish(ticks::nanoseconds())?;
        }
        Ok(())
    }

    /// Puts what threads did into pieces of words.
    fn tell(&mut self, recorder: &Recorder, pieces: &mut Vec<Vec<u8>>) {
        let (before, now) = (self.emptied, ticks::both());
        if now.1 >= before.1 + CLOCK_SPAN {
            self.looked = before;
        }
        let clock = TickClock {
            ticks: [self.looked.0, now.0],
            nanoseconds: [self.looked.1, now.1],
        };
        let rings: Vec<_> = lock(&recorder.rings).clone();
        let mut piece = Vec::new();
        Told::Clock(clock).put(&mut piece);
        let empty = piece.len();
        let mut dropped = recorder.dropped.swap(0, Ordering::Relaxed);
        let mut until_ns = before.1;
        for ring in &rings {
            let holding = self.tell_thread(recorder, ring, &mut piece, pieces);
            if holding != 0 {
                until_ns = until_ns.min(clock.nanoseconds(holding));
            }
            dropped += ring.take_dropped();
        }
        if rings.iter().any(|ring| ring.is_done()) {
            lock(&recorder.rings).retain(|ring| !ring.is_done());
        }
        self.emptied = now;
        if dropped > 0 {
            Told::Dropped { count: dropped }.put(&mut piece);
        }
        // Nobody is woken for nothing.
        if piece.len() > empty || !pieces.is_empty() || self.takes_long() {
            Told::Until { time_ns: until_ns }.put(&mut piece);
            pieces.push(piece);
        }
    }

    /// Puts a thread's words behind what there is. Gives since when it holds something that is not among them.
    fn tell_thread(
        &mut self,
        recorder: &Recorder,
        ring: &Ring,
        piece: &mut Vec<u8>,
        pieces: &mut Vec<Vec<u8>>,
    ) -> u64 {
        let tid = ring.tid;
        let mut words: Vec<u8> = Vec::new();
        let mut put_words = |words: &mut Vec<u8>, piece: &mut Vec<u8>| {
            if !words.is_empty() {
                Told::Words { tid, words }.put(piece);
                words.clear();
            }
            if piece.len() >= PIECE {
                pieces.push(std::mem::take(piece));
            }
        };
        let holding = ring.take(|record| {
            if let Some(name) = named(record)
                && let Some(told) = self.name(recorder, name)
            {
                put_words(&mut words, piece);
                piece.extend(told);
            }
            words.extend(record.iter().flat_map(|word| word.to_le_bytes()));
            if words.len() >= PIECE {
                put_words(&mut words, piece);
            }
        });
        if !words.is_empty() && self.threads.insert(tid) {
            let name = text_of(&format!("/proc/self/task/{tid}/comm"));
            Told::Thread { tid, name: &name }.put(piece);
        }
        put_words(&mut words, piece);
        holding
    }

    /// What is told of a function or kernel that was not named before.
    fn name(&mut self, recorder: &Recorder, name: Named) -> Option<Vec<u8>> {
        let mut told = Vec::new();
        match name {
            Named::Function(number) => {
                if !self.functions.insert(number) {
                    return None;
                }
                let name = Function::from_number(number)?.name();
                let number = number.into();
                Told::Function { number, name }.put(&mut told);
            }
            Named::Kernel(module, index) => {
                if self.kernels.contains(&(module, index)) {
                    return None;
                }
                let kernels = lock(&recorder.kernels);
                let facts = kernels.get(&(module, index))?;
                self.kernels.insert((module, index));
                Told::Kernel {
                    module,
                    index,
                    shared_bytes: facts.shared_bytes,
                    registers: facts.registers,
                    name: &facts.name,
                }
                .put(&mut told);
            }
        }
        Some(told)
    }
}

impl OwnFile {
    /// Takes the spans that there are, and looks how far streams are.
    fn look(&mut self, connection: &Connection) -> Result<(), JoinError> {
        // Before the spans are asked for: those of what was done by now come with them, or a moment later.
        let reached = |stream| (stream, connection.link().completed(stream));
        let reached = self.joiner.waiting_streams().map(reached).collect();
        self.take_spans(connection)?;
        for (stream, until) in std::mem::replace(&mut self.reached, reached) {
            self.joiner.reached(stream, until);
        }
        Ok(())
    }

    fn write_some(&mut self) -> Result<bool, JoinError> {
        if let Some(piece) = self.backlog.pop_front() {
            self.backlog_bytes -= piece.len();
            self.joiner.told(&piece)?;
        }
        let now = match self.backlog.is_empty() {
            true => ticks::nanoseconds(),
            // What was not told yet is no reason to lose patience.
            false => 0,
        };
        let is_more = self.joiner.write(now, WORK_AT_A_TIME)? || !self.backlog.is_empty();
        if !is_more {
            self.joiner.flush(ticks::nanoseconds())?;
        }
        Ok(is_more)
    }

    /// Asks the server for the times that it has.
    fn take_spans(&mut self, connection: &Connection) -> io::Result<()> {
        while let Ok(reply) = connection.call(&TraceTake { reserved: 0 }) {
            let dropped = reply.fields.dropped;
            let since = dropped.saturating_sub(self.server_dropped);
            self.joiner.dropped(since);
            self.server_dropped = self.server_dropped.max(dropped);
            if reply.data.is_empty() {
                break;
            }
            for record in SpanReader::new(&reply.data) {
                // The server writes no others.
                let Ok(SpanRecord::Span(span)) = record else {
                    break;
                };
                let number = span.device;
                let ordinal = connection
                    .devices()
                    .iter()
                    .position(|device| device.number == number);
                self.joiner.ran(Span {
                    stream: span.at.stream,
                    sequence: span.at.sequence,
                    began_ns: span.began,
                    ended_ns: span.ended,
                    device: ordinal.map_or(number, |ordinal| ordinal as u32),
                    kind: match span.kind {
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
