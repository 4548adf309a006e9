//! A recorded program's file: what it told of its calls and work, joined with when the device did it.
//!
//! `client` makes such a file of its own process, `openmps trace` of others'. What is told may be anything and come in any
//! order, so that all that is kept has a bound.
//!
//! Must not know sockets, nor which file is written: it is given a `Storage`.

use std::collections::{BTreeMap, HashMap};
use std::io;

use crate::chrome::Writer;
use crate::event::{Activity, Place, Track, Work};
use crate::output::Storage;
use crate::told::{Damaged, Posted, PostedWork, Reader, Told};

/// Work whose times, or of which what it is, have not come yet; more is dropped, and counted.
const MOST_PENDING: usize = 1 << 20;

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

/// See the module.
#[derive(Debug)]
pub struct Joiner<S: Storage> {
    writer: Writer<S>,
    functions: HashMap<u32, String>,
    kernels: HashMap<(u64, u32), Kernel>,
    /// Bytes of all their names.
    name_bytes: usize,
    /// By stream and place in it.
    pending: BTreeMap<(u32, u64), Pending>,
    /// The context of each stream of which work was told.
    contexts: HashMap<u32, u32>,
    /// How far streams have come: all spans up to there are known.
    reached: HashMap<u32, u64>,
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
            functions: HashMap::new(),
            kernels: HashMap::new(),
            name_bytes: 0,
            pending: BTreeMap::new(),
            contexts: HashMap::new(),
            reached: HashMap::new(),
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
        !self.pending.is_empty()
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
                Told::Call {
                    function,
                    tid,
                    began_ns,
                    ended_ns,
                    correlation,
                } => {
                    let name = self.functions.get(&function);
                    let name = name.map_or_else(|| "call".to_owned(), String::clone);
                    self.draw(&Activity {
                        track: Track::Thread { tid },
                        began_ns,
                        ended_ns,
                        work: Work::Call { name: name.into() },
                        correlation,
                    })?;
                }
                Told::Posted(posted) => {
                    if self.contexts.len() < MOST_NAMES {
                        self.contexts.insert(posted.stream, posted.context);
                    }
                    if let Some(pending) = self.pending_at(posted.stream, posted.sequence) {
                        pending.posted = Some(posted);
                    }
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

    fn has_room_for(&mut self, name: &str, names: usize) -> bool {
        let bytes = self.name_bytes + name.len();
        let fits = names < MOST_NAMES && bytes <= MOST_NAME_BYTES;
        if fits {
            self.name_bytes = bytes;
        }
        fits
    }

    fn pending_at(&mut self, stream: u32, sequence: u64) -> Option<&mut Pending> {
        let key = (stream, sequence);
        if self.pending.len() >= MOST_PENDING && !self.pending.contains_key(&key) {
            self.dropped(1);
            return None;
        }
        Some(self.pending.entry(key).or_default())
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
            let context = self.contexts.get(&stream).copied().unwrap_or(0);
            return self.draw(&Activity {
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
            });
        }
        let Some(pending) = self.pending_at(span.stream, span.sequence) else {
            return Ok(());
        };
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
        if self.reached.len() < MOST_NAMES || self.reached.contains_key(&stream) {
            self.reached.insert(stream, sequence);
        }
    }

    /// Writes the work of which all is known by now.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn write(&mut self, now_ns: u64) -> io::Result<()> {
        let (reached, until_ns) = (&self.reached, self.until_ns);
        let is_known = |posted: Option<Posted>, span: Option<Span>| match (posted, span) {
            // Work that took no time of the device, such as an empty copy.
            (Some(_), _) | (None, None) => true,
            (None, Some(span)) => {
                span.began_ns < until_ns || span.ended_ns.saturating_add(PATIENCE_NS) < now_ns
            }
        };
        let done = self.pending.extract_if(.., |(stream, sequence), pending| {
            reached.get(stream).is_some_and(|until| sequence <= until)
                && is_known(pending.posted, pending.span)
        });
        let done: Vec<_> = done.map(|(_, pending)| pending).collect();
        self.write_work(done)
    }

    /// Writes all that is left, and the last words.
    ///
    /// # Errors
    /// The storage's; the file ends with the last event that was written.
    pub fn finish(&mut self, now_ns: u64) -> io::Result<()> {
        let left = std::mem::take(&mut self.pending).into_values().collect();
        self.write_work(left)?;
        self.flush(now_ns)
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

    fn write_work(&mut self, all: Vec<Pending>) -> io::Result<()> {
        for Pending { posted, span } in all {
            let Some(span) = span else {
                continue;
            };
            let (context, correlation) =
                posted.map_or((0, 0), |posted| (posted.context, posted.correlation));
            let work = self.work_of(
                posted.map(|posted| posted.work),
                span.kind == SpanKind::Copy,
            );
            self.draw(&Activity {
                track: Track::Stream {
                    device: span.device,
                    context,
                    stream: span.stream,
                },
                began_ns: span.began_ns,
                ended_ns: span.ended_ns,
                work,
                correlation,
            })?;
        }
        Ok(())
    }

    fn draw(&mut self, activity: &Activity<'_>) -> io::Result<()> {
        if !self.writer.has_room_for(activity.track) {
            self.dropped(1);
            return Ok(());
        }
        self.records += 1;
        self.writer.activity(activity)
    }

    /// Work as the file tells of it.
    fn work_of(&self, posted: Option<PostedWork>, copied: bool) -> Work<'static> {
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
                let kernel = self.kernels.get(&(module, index));
                let shared = kernel.map_or(0, |kernel| kernel.shared_bytes);
                Work::Kernel {
                    name: kernel
                        .map_or_else(|| "kernel".to_owned(), |kernel| kernel.name.clone())
                        .into(),
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
                let first = self.kernels.get(&(module, index));
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Clock, Process};

    fn joiner(file: &mut Vec<u8>) -> Joiner<&mut Vec<u8>> {
        let clock = Clock {
            monotonic_ns: 0,
            wall_ns: 0,
            boot: String::new(),
        };
        let process = Process {
            pid: 42,
            name: "p".into(),
            host: String::new(),
        };
        Joiner::new(Writer::new(file, clock, &process).unwrap())
    }

    fn span(sequence: u64, began_ns: u64, ended_ns: u64) -> Span {
        Span {
            stream: 3,
            sequence,
            began_ns,
            ended_ns,
            device: 0,
            kind: SpanKind::Kernel,
        }
    }

    fn launch(sequence: u64, index: u32) -> Told<'static> {
        Told::Posted(Posted {
            stream: 3,
            sequence,
            context: 1,
            correlation: 100 + sequence,
            work: PostedWork::Kernel {
                module: 9,
                index,
                grid: [1; 3],
                block: [1; 3],
                shared_bytes: 0,
            },
        })
    }

    fn bytes(all: &[Told<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        all.iter().for_each(|told| told.put(&mut bytes));
        bytes
    }

    /// Name, begin and duration of each kernel, in the file's order.
    fn kernels(file: &[u8]) -> Vec<(String, f64, f64)> {
        let all: serde_json::Value = serde_json::from_slice(file).unwrap();
        let events = all["traceEvents"].as_array().unwrap().iter();
        events
            .filter(|event| event["cat"] == "kernel")
            .map(|event| {
                let number = |of: &str| event[of].as_f64().unwrap();
                let name = event["name"].as_str().unwrap().to_owned();
                (name, number("ts"), number("dur"))
            })
            .collect()
    }

    #[test]
    fn work_waits_for_its_last_piece_and_for_its_name() {
        let mut file = Vec::new();
        let mut joiner = joiner(&mut file);
        joiner.ran(span(1, 1_000, 2_000)).unwrap();
        joiner.ran(span(1, 5_000, 6_000)).unwrap();
        joiner.write(10_000).unwrap();
        assert_eq!(joiner.records(), 0, "it has not ended");
        joiner.reached(3, 1);
        joiner.write(10_000).unwrap();
        assert_eq!(joiner.records(), 0, "nobody has said what it is");
        let kernel = Told::Kernel {
            module: 9,
            index: 4,
            shared_bytes: 0,
            registers: 8,
            name: "churn",
        };
        joiner.told(&bytes(&[kernel, launch(1, 4)])).unwrap();
        joiner.write(10_000).unwrap();
        joiner.flush(10_000).unwrap();
        drop(joiner);
        assert_eq!(kernels(&file), [("churn".to_owned(), 1.0, 5.0)]);
    }

    #[test]
    fn work_of_which_nothing_is_told_has_no_name() {
        let mut file = Vec::new();
        let mut joiner = joiner(&mut file);
        for sequence in 1..=3 {
            joiner
                .ran(span(sequence, sequence * 1_000, sequence * 1_000 + 500))
                .unwrap();
        }
        joiner.reached(3, 2);
        // The first was put there before all that is told now; the second is waited for, and the third may have more.
        let until = Told::Until { time_ns: 1_500 };
        joiner.told(&bytes(&[until])).unwrap();
        joiner.write(10_000).unwrap();
        assert_eq!(joiner.records(), 1);
        joiner.write(10_000 + PATIENCE_NS).unwrap();
        assert_eq!(joiner.records(), 2);
        joiner.dropped(7);
        joiner.finish(20_000).unwrap();
        assert_eq!((joiner.records(), joiner.dropped_in_all()), (3, 7));
        drop(joiner);
        assert!(kernels(&file).iter().all(|(name, ..)| name == "kernel"));
    }

    #[test]
    fn runs_and_waits_are_told_apart_from_kernels() {
        let mut file = Vec::new();
        let mut joiner = joiner(&mut file);
        let kernel = Told::Kernel {
            module: 9,
            index: 4,
            shared_bytes: 0,
            registers: 8,
            name: "churn",
        };
        let run = Told::Posted(Posted {
            stream: 3,
            sequence: 1,
            context: 1,
            correlation: 1,
            work: PostedWork::Run {
                module: 9,
                index: 4,
                launches: 3,
            },
        });
        joiner.told(&bytes(&[kernel, run])).unwrap();
        let wait = Span {
            kind: SpanKind::Held {
                why: "others",
                is_others: true,
                is_order: false,
            },
            ..span(1, 500, 1_000)
        };
        joiner.ran(wait).unwrap();
        joiner
            .ran(Span {
                kind: SpanKind::Held {
                    why: "event",
                    is_others: false,
                    is_order: true,
                },
                ..span(1, 200, 500)
            })
            .unwrap();
        joiner.ran(span(1, 1_000, 2_000)).unwrap();
        joiner.finish(3_000).unwrap();
        drop(joiner);
        let name = "graph: churn and 2 more".to_owned();
        assert_eq!(kernels(&file), [(name, 1.0, 1.0)]);
        let all: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let mut events = all["traceEvents"].as_array().unwrap().iter();
        let wait = events.find(|event| event["cat"] == "gpu_wait").unwrap();
        assert_eq!(
            (&wait["dur"], &wait["args"]["context"]),
            (&0.5.into(), &1.into())
        );
        let mut events = all["traceEvents"].as_array().unwrap().iter();
        let hold = events.find(|event| event["cat"] == "gpu_hold").unwrap();
        assert_eq!(
            (&hold["name"], &hold["dur"]),
            (&"event".into(), &0.3.into())
        );
        assert_ne!(hold["tid"], wait["tid"], "they may overlap");
    }

    #[test]
    fn what_cannot_be_read_ends_it() {
        let mut file = Vec::new();
        let mut joiner = joiner(&mut file);
        let error = joiner.told(&[99]).unwrap_err();
        assert!(matches!(error, JoinError::Damaged(_)), "{error}");
        joiner.finish(0).unwrap();
        drop(joiner);
        assert!(kernels(&file).is_empty());
    }
}
