//! A recorded program's file: what it told of its calls and work, joined with when the device did it.
//!
//! `client` makes such a file of its own process, `openmps trace` of others'. What is told may be anything and come in any
//! order, so that all that is kept has a bound.
//!
//! Must not know sockets, nor which file is written: it is given a `Storage`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

use crate::chrome::Writer;
use crate::event::{Activity, Place, Track, Work};
use crate::output::Storage;
use crate::thread_log::{ThreadRecord, ThreadsReader};
use crate::told::{Damaged, Posted, PostedWork, Reader, Told};

/// Work whose times, or of which what it is, have not come yet; more is dropped, and counted.
const MOST_PENDING: usize = 1 << 20;

/// How far work of a stream may come out of its order: many times what a program can have in a stream.
const MOST_BEHIND: usize = 1 << 14;

/// Names of functions and kernels that are kept, and the bytes of all.
const MOST_NAMES: usize = 1 << 16;
const MOST_NAME_BYTES: usize = 16 << 20;

/// For how long work that is done waits to be told of: the program may be about to.
const PATIENCE_NS: u64 = 1_000_000_000;

/// When the device worked for a stream, or a part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream's number in the process.
    pub stream: u32,
    /// The work's place in the stream.
    pub sequence: u64,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The device's ordinal.
    pub device: u32,
    /// What it did.
    pub kind: SpanKind,
}

/// What a device did for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// It ran kernels.
    Kernel,
    /// It copied or filled.
    Copy,
    /// Nothing, which held the operation back.
    Held {
        /// What did, in words.
        why: &'static str,
        /// Others had the device.
        is_others: bool,
        /// It was the order of the program's own work, and not the device.
        is_order: bool,
    },
}

/// Why nothing more is joined.
#[derive(Debug)]
pub enum JoinError {
    /// The file cannot be written.
    Io(io::Error),
    /// What was told cannot be read.
    Damaged(Damaged),
}

impl From<io::Error> for JoinError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Damaged> for JoinError {
    fn from(error: Damaged) -> Self {
        Self::Damaged(error)
    }
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Damaged(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for JoinError {}

#[derive(Clone, Debug)]
struct Kernel {
    name: String,
    shared_bytes: u32,
    registers: u32,
}

/// What is known of work so far.
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    posted: Option<Posted>,
    /// From its first piece to its last.
    span: Option<Span>,
}

/// A stream of which work was told.
#[derive(Debug, Default)]
struct Stream {
    context: u32,
    /// Work that is not written yet, by its place, in order.
    pending: VecDeque<(u64, Pending)>,
    /// How far it has come: all spans up to there are known.
    reached: u64,
}

impl Stream {
    /// Where work is, or is to be put; `None` if it comes too late for that.
    fn place(&self, sequence: u64) -> Option<Result<usize, usize>> {
        // Most comes in order.
        match self.pending.back() {
            Some((last, _)) if *last == sequence => return Some(Ok(self.pending.len() - 1)),
            Some((last, _)) if *last > sequence => {}
            _ => return Some(Err(self.pending.len())),
        }
        let found = self
            .pending
            .binary_search_by_key(&sequence, |(place, _)| *place);
        // What is in the midst of much would move all of it.
        let moves = |place: usize| place.min(self.pending.len() - place);
        Some(found).filter(|found| found.map_or_else(|place| moves(place) < MOST_BEHIND, |_| true))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Joiner<S: Storage> {
    writer: Writer<S>,
    threads: ThreadsReader,
    /// By their numbers.
    functions: HashMap<u32, String>,
    kernels: HashMap<(u64, u32), Kernel>,
    /// Bytes of all their names.
    name_bytes: usize,
    streams: BTreeMap<u32, Stream>,
    /// Work of all streams that is not written yet.
    pending: usize,
    /// All work that was put into streams before then is known.
    until_ns: u64,
    records: u64,
    dropped: u64,
    dropped_in_all: u64,
}

impl<S: Storage> Joiner<S> {
    /// Goes on with a file that was just begun.
    pub fn new(writer: Writer<S>) -> Self {
        Self {
            writer,
            threads: ThreadsReader::default(),
            functions: HashMap::new(),
            kernels: HashMap::new(),
            name_bytes: 0,
            streams: BTreeMap::new(),
            pending: 0,
            until_ns: 0,
            records: 0,
            dropped: 0,
            dropped_in_all: 0,
        }
    }

    /// Activities in the file so far.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Activities that are missing in it so far.
    #[must_use]
    pub const fn dropped_in_all(&self) -> u64 {
        self.dropped_in_all
    }

    /// Whether there is work that is not written yet.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.pending > 0
    }

    /// Counts activities that are missing.
    pub const fn dropped(&mut self, count: u64) {
        self.dropped = self.dropped.saturating_add(count);
        self.dropped_in_all = self.dropped_in_all.saturating_add(count);
    }

    /// Takes what the program told.
    ///
    /// # Errors
    /// When it cannot be read, or the file not be written.
    pub fn told(&mut self, bytes: &[u8]) -> Result<(), JoinError> {
        for told in Reader::new(bytes) {
            match told.map_err(JoinError::Damaged)? {
                Told::Function { number, name } => {
                    if self.has_room_for(name, self.functions.len()) {
                        self.functions.insert(number, name.to_owned());
                    }
                }
                Told::Thread { tid, name } => {
                    if self.writer.has_room_for(Track::Thread { tid }) {
                        self.writer.thread_name(tid, name)?;
                    }
                }
                Told::Clock(clock) => self.threads.set_clock(clock),
                Told::Words { tid, words } => {
                    let mut threads = std::mem::take(&mut self.threads);
                    let read = threads.read(tid, words, |record| self.thread_record(tid, record));
                    self.threads = threads;
                    read?;
                }
                Told::Kernel {
                    module,
                    index,
                    shared_bytes,
                    registers,
                    name,
                } => {
                    if self.has_room_for(name, self.kernels.len()) {
                        let kernel = Kernel {
                            name: name.to_owned(),
                            shared_bytes,
                            registers,
                        };
                        self.kernels.insert((module, index), kernel);
                    }
                }
                Told::Dropped { count } => self.dropped(count),
                Told::Until { time_ns } => self.until_ns = self.until_ns.max(time_ns),
            }
        }
        Ok(())
    }

    fn thread_record(&mut self, tid: u32, record: ThreadRecord) -> Result<(), JoinError> {
        match record {
            ThreadRecord::Call(call) => {
                let name = self.functions.get(&call.function.into());
                let activity = Activity {
                    track: Track::Thread { tid },
                    began_ns: call.began,
                    ended_ns: call.ended,
                    work: Work::Call {
                        name: name.map_or("call", String::as_str).into(),
                    },
                    correlation: call.correlation,
                };
                let drawn = draw(&mut self.writer, &activity)?;
                self.count(drawn);
            }
            ThreadRecord::Posted(posted) => {
                if let Some((stream, place)) = self.pending_at(posted.stream, posted.sequence) {
                    stream.context = posted.context;
                    stream.pending[place].1.posted = Some(posted);
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, drawn: bool) {
        match drawn {
            true => self.records += 1,
            false => self.dropped(1),
        }
    }

    fn has_room_for(&mut self, name: &str, names: usize) -> bool {
        let bytes = self.name_bytes + name.len();
        let fits = names < MOST_NAMES && bytes <= MOST_NAME_BYTES;
        if fits {
            self.name_bytes = bytes;
        }
        fits
    }

    /// What is known of the work at a place, in its stream.
    fn pending_at(&mut self, stream: u32, sequence: u64) -> Option<(&mut Stream, usize)> {
        let found = match self.streams.get(&stream) {
            Some(of) => of.place(sequence),
            None if self.streams.len() < MOST_NAMES => Some(Err(0)),
            None => None,
        };
        let is_full = self.pending >= MOST_PENDING;
        let (place, is_new) = match found {
            Some(Ok(place)) => (place, false),
            Some(Err(place)) if !is_full => (place, true),
            _ => {
                self.dropped(1);
                return None;
            }
        };
        let of = self.streams.entry(stream).or_default();
        if is_new {
            of.pending.insert(place, (sequence, Pending::default()));
            self.pending += 1;
        }
        Some((of, place))
    }

    /// The device worked, or others had it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn ran(&mut self, span: Span) -> io::Result<()> {
        if let SpanKind::Held {
            why,
            is_others,
            is_order,
        } = span.kind
        {
            let (device, stream) = (span.device, span.stream);
            let context = self.streams.get(&stream).map_or(0, |of| of.context);
            let activity = Activity {
                track: match is_order {
                    true => Track::Holds {
                        device,
                        context,
                        stream,
                    },
                    false => Track::Waits {
                        device,
                        context,
                        stream,
                    },
                },
                began_ns: span.began_ns,
                ended_ns: span.ended_ns,
                work: match is_others {
                    true => Work::Wait { name: why.into() },
                    false => Work::Hold { name: why.into() },
                },
                correlation: 0,
            };
            let drawn = draw(&mut self.writer, &activity)?;
            self.count(drawn);
            return Ok(());
        }
        let Some((stream, place)) = self.pending_at(span.stream, span.sequence) else {
            return Ok(());
        };
        let pending = &mut stream.pending[place].1;
        pending.span = Some(match pending.span {
            Some(before) => Span {
                began_ns: before.began_ns.min(span.began_ns),
                ended_ns: before.ended_ns.max(span.ended_ns),
                ..span
            },
            None => span,
        });
        Ok(())
    }

    /// A stream has come to this place, and the device's times up to there are known.
    pub fn reached(&mut self, stream: u32, sequence: u64) {
        if self.streams.len() < MOST_NAMES || self.streams.contains_key(&stream) {
            self.streams.entry(stream).or_default().reached = sequence;
        }
    }

    /// Streams with work that is not written yet.
    pub fn waiting_streams(&self) -> impl Iterator<Item = u32> {
        let waiting = self.streams.iter();
        let waiting = waiting.filter(|(_, stream)| !stream.pending.is_empty());
        waiting.map(|(stream, _)| *stream)
    }

    /// Writes work of which all is known by now, at most so much. Says whether there may be more.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn write(&mut self, now_ns: u64, most: usize) -> io::Result<bool> {
        let until_ns = self.until_ns;
        let is_known = |pending: &Pending| match (pending.posted, pending.span) {
            // Work that took no time of the device, such as an empty copy.
            (Some(_), _) | (None, None) => true,
            (None, Some(span)) => {
                span.began_ns < until_ns || span.ended_ns.saturating_add(PATIENCE_NS) < now_ns
            }
        };
        self.write_where(most, |stream, (sequence, pending)| {
            *sequence <= stream.reached && is_known(pending)
        })
    }

    /// Writes all that is left, and the last words.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn finish(&mut self, now_ns: u64) -> io::Result<()> {
        self.write_where(usize::MAX, |_, _| true)?;
        self.flush(now_ns)
    }

    /// Writes the first work of each stream for which that is so, at most so much. Says whether there may be more.
    fn write_where(
        &mut self,
        most: usize,
        is_so: impl Fn(&Stream, &(u64, Pending)) -> bool,
    ) -> io::Result<bool> {
        let (mut written, mut dropped) = (0, 0);
        let mut left = most;
        let mut result = Ok(());
        'streams: for stream in self.streams.values_mut() {
            while left > 0
                && stream
                    .pending
                    .front()
                    .is_some_and(|first| is_so(stream, first))
                && let Some((_, pending)) = stream.pending.pop_front()
            {
                left -= 1;
                self.pending -= 1;
                match draw_work(&mut self.writer, &self.kernels, &pending) {
                    Ok(None) => {}
                    Ok(Some(true)) => written += 1,
                    Ok(Some(false)) => dropped += 1,
                    Err(error) => {
                        result = Err(error);
                        break 'streams;
                    }
                }
            }
        }
        self.records += written;
        self.dropped(dropped);
        result.map(|()| left == 0)
    }

    /// Has all that was written reach the storage.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn flush(&mut self, now_ns: u64) -> io::Result<()> {
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.writer.dropped(now_ns, dropped)?;
        }
        self.writer.flush()
    }
}

/// Writes an activity. Says whether there was room for its track.
fn draw<S: Storage>(writer: &mut Writer<S>, activity: &Activity<'_>) -> io::Result<bool> {
    if !writer.has_room_for(activity.track) {
        return Ok(false);
    }
    writer.activity(activity)?;
    Ok(true)
}

/// Writes work, if it took time of the device. Says whether there was room for its track.
fn draw_work<S: Storage>(
    writer: &mut Writer<S>,
    kernels: &HashMap<(u64, u32), Kernel>,
    Pending { posted, span }: &Pending,
) -> io::Result<Option<bool>> {
    let Some(span) = span else {
        return Ok(None);
    };
    let (context, correlation) =
        posted.map_or((0, 0), |posted| (posted.context, posted.correlation));
    let activity = Activity {
        track: Track::Stream {
            device: span.device,
            context,
            stream: span.stream,
        },
        began_ns: span.began_ns,
        ended_ns: span.ended_ns,
        work: work_of(
            kernels,
            posted.map(|posted| posted.work),
            span.kind == SpanKind::Copy,
        ),
        correlation,
    };
    draw(writer, &activity).map(Some)
}

/// Work as the file tells of it.
fn work_of(
    kernels: &HashMap<(u64, u32), Kernel>,
    posted: Option<PostedWork>,
    copied: bool,
) -> Work<'_> {
    let unnamed = |name: &'static str| Work::Kernel {
        name: name.into(),
        grid: [0; 3],
        block: [0; 3],
        shared_bytes: 0,
        registers: 0,
    };
    match posted {
        Some(PostedWork::Kernel {
            module,
            index,
            grid,
            block,
            shared_bytes,
        }) => {
            let kernel = kernels.get(&(module, index));
            let shared = kernel.map_or(0, |kernel| kernel.shared_bytes);
            Work::Kernel {
                name: kernel.map_or("kernel", |kernel| &kernel.name).into(),
                grid,
                block,
                shared_bytes: shared.saturating_add(shared_bytes),
                registers: kernel.map_or(0, |kernel| kernel.registers),
            }
        }
        Some(PostedWork::Copy { from, to, bytes }) => Work::Copy { from, to, bytes },
        Some(PostedWork::Fill { bytes }) => Work::Fill {
            place: Place::Device,
            bytes,
        },
        Some(PostedWork::Run {
            module,
            index,
            launches,
        }) => {
            let first = kernels.get(&(module, index));
            let first = first.map_or("kernel", |kernel| &kernel.name);
            Work::Kernel {
                name: format!("graph: {first} and {} more", launches.saturating_sub(1)).into(),
                grid: [0; 3],
                block: [0; 3],
                shared_bytes: 0,
                registers: 0,
            }
        }
        Some(PostedWork::Graph) if !copied => unnamed("graph"),
        _ if copied => Work::Copy {
            from: Place::Device,
            to: Place::Device,
            bytes: 0,
        },
        _ => unnamed("kernel"),
    }
}

#[cfg(test)]
mod tests;
