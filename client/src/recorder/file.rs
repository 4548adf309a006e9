//! The file of a recording: what the program posted, joined with when the server says that the device did it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use protocol::operations::{SPAN_BYTES, SPAN_COPY, TraceTake};
use rustix::time::{ClockId, clock_gettime};
use trace::chrome::Writer;
use trace::event::{Activity, Clock, Place, Process, Track, Work};
use trace::name_pattern::{self, Facts};

use super::{Buffer, Posted, PostedWork, Recorder, lock, now};
use crate::session::connection::Connection;

/// Work whose times have not come yet; more is dropped, and counted.
const MOST_PENDING: usize = 1 << 20;

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

/// What is known of work so far.
#[derive(Debug)]
struct Pending {
    posted: Option<Posted>,
    /// When the device had it, from its first piece to its last.
    span: Option<(u64, u64)>,
    device: u32,
    copied: bool,
}

/// The file, and what is not in it yet.
#[derive(Debug)]
pub(super) struct Recording {
    writer: Writer<File>,
    /// By stream slot and place in it.
    pending: BTreeMap<(u32, u64), Pending>,
    /// How far streams had come in the round before: the times of what is before were told by then.
    reached: HashMap<u32, u64>,
    threads: BTreeSet<u32>,
    dropped: u64,
    server_dropped: u64,
}

impl Recording {
    /// Makes the file that a pattern names.
    pub(super) fn new(pattern: &str) -> Result<Self, String> {
        let name = name_pattern::expand(pattern, &Here).map_err(|error| error.to_string())?;
        let file = create(&name).map_err(|error| format!("{name} cannot be made: {error}"))?;
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
        let writer = Writer::new(file, clock, &process);
        Ok(Self {
            writer: writer.map_err(|error| format!("{name} cannot be written: {error}"))?,
            pending: BTreeMap::new(),
            reached: HashMap::new(),
            threads: BTreeSet::new(),
            dropped: 0,
            server_dropped: 0,
        })
    }

    /// Writes calls that are over and work whose times are known.
    pub(super) fn round(
        &mut self,
        recorder: &Recorder,
        taken: Buffer,
        last: bool,
    ) -> io::Result<()> {
        let connection = recorder.connection;
        self.dropped += taken.dropped;
        for call in &taken.calls {
            if self.threads.insert(call.thread) {
                let name = text_of(&format!("/proc/self/task/{}/comm", call.thread));
                self.writer.thread_name(call.thread, &name)?;
            }
            self.writer.activity(&Activity {
                track: Track::Thread { tid: call.thread },
                began_ns: call.began_ns,
                ended_ns: call.ended_ns,
                work: Work::Call {
                    name: call.name.into(),
                },
                correlation: call.correlation,
            })?;
        }
        for posted in taken.posted {
            if let Some(pending) = self.pending_at(posted.slot, posted.sequence) {
                pending.posted = Some(posted);
            }
        }
        // Before the times are asked for: those of what was done by now come with them, or a moment later.
        let streams: BTreeSet<u32> = self.pending.keys().map(|(slot, _)| *slot).collect();
        let reached = streams
            .into_iter()
            .map(|slot| (slot, connection.link().completed(slot)));
        let reached: HashMap<u32, u64> = reached.collect();
        self.take_spans(connection);
        if last {
            std::thread::sleep(Duration::from_millis(2));
            self.take_spans(connection);
            self.reached = reached;
            self.write_done(recorder)?;
        } else {
            self.write_done(recorder)?;
            self.reached = reached;
        }
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.writer.dropped(now(), dropped)?;
        }
        self.writer.flush()
    }

    fn pending_at(&mut self, slot: u32, sequence: u64) -> Option<&mut Pending> {
        let full = self.pending.len() >= MOST_PENDING;
        if full && !self.pending.contains_key(&(slot, sequence)) {
            self.dropped += 1;
            return None;
        }
        Some(self.pending.entry((slot, sequence)).or_insert(Pending {
            posted: None,
            span: None,
            device: 0,
            copied: false,
        }))
    }

    /// Asks the server for the times that it has.
    fn take_spans(&mut self, connection: &Connection) {
        while let Ok(reply) = connection.call(&TraceTake { reserved: 0 }) {
            let dropped = reply.fields.dropped;
            self.dropped += dropped.saturating_sub(self.server_dropped);
            self.server_dropped = self.server_dropped.max(dropped);
            if reply.data.len() < SPAN_BYTES {
                return;
            }
            for span in reply.data.chunks_exact(SPAN_BYTES) {
                let word = |at: usize| {
                    let bytes = span[at..at + 8].try_into().unwrap_or_default();
                    u64::from_le_bytes(bytes)
                };
                let (place, device) = (word(0), word(32));
                let (began, ended) = (word(16), word(24));
                let Some(pending) = self.pending_at(place as u32, word(8)) else {
                    continue;
                };
                let (first, end) = pending.span.unwrap_or((began, ended));
                pending.span = Some((first.min(began), end.max(ended)));
                let number = device as u32;
                let ordinal = connection
                    .devices()
                    .iter()
                    .position(|device| device.number == number);
                pending.device = ordinal.map_or(number, |ordinal| ordinal as u32);
                pending.copied = device >> 32 == SPAN_COPY;
            }
        }
    }

    /// Writes the work that was done in the round before.
    fn write_done(&mut self, recorder: &Recorder) -> io::Result<()> {
        let reached = &self.reached;
        let done = self
            .pending
            .extract_if(.., |(slot, sequence), _| {
                reached.get(slot).is_some_and(|until| *sequence <= *until)
            })
            .collect::<Vec<_>>();
        for ((slot, _), pending) in done {
            let Some((began_ns, ended_ns)) = pending.span else {
                continue;
            };
            let (context, correlation) = pending
                .posted
                .map_or((0, 0), |posted| (posted.context, posted.correlation));
            self.writer.activity(&Activity {
                track: Track::Stream {
                    device: pending.device,
                    context,
                    stream: slot,
                },
                began_ns,
                ended_ns,
                work: work_of(recorder, &pending),
                correlation,
            })?;
        }
        Ok(())
    }
}

/// Work as the file tells of it.
fn work_of(recorder: &Recorder, pending: &Pending) -> Work<'static> {
    let unnamed = |name: &'static str| Work::Kernel {
        name: name.into(),
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        registers: 0,
    };
    match pending.posted.map(|posted| posted.work) {
        Some(PostedWork::Kernel {
            module,
            index,
            grid,
            block,
            shared_bytes,
        }) => {
            let kernels = lock(&recorder.kernels);
            let facts = kernels.get(&(module, index));
            Work::Kernel {
                name: facts
                    .map_or_else(|| "kernel".to_owned(), |facts| facts.name.clone())
                    .into(),
                grid,
                block,
                shared_bytes: facts
                    .map_or(0, |facts| facts.shared_bytes)
                    .saturating_add(shared_bytes),
                registers: facts.map_or(0, |facts| facts.registers),
            }
        }
        Some(PostedWork::Copy { from, to, bytes }) => Work::Copy { from, to, bytes },
        Some(PostedWork::Fill { bytes }) => Work::Fill {
            place: Place::Device,
            bytes,
        },
        Some(PostedWork::Graph) if !pending.copied => unnamed("graph"),
        _ if pending.copied => Work::Copy {
            from: Place::Device,
            to: Place::Device,
            bytes: 0,
        },
        _ => unnamed("kernel"),
    }
}
