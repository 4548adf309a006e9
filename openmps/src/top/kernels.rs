//! Which kernels a client runs, while somebody looks: it is recorded meanwhile, as `openmps trace --pid` does, and added up.
//!
//! Called by `top`, which shows the table. What clients tell of themselves is not trusted. Must not know how the table looks.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::directories::{DEFAULT_PIPE_DIRECTORY, named_pipe_directory};
use daemon_interface::time_lines::{Recorded, TimeLines};
use parking_lot::Mutex;
use protocol::control_messages::{RecordedPart, TimeLineRequest};
use protocol::operations::{At, OperationSpan, SPAN_COPY, SPAN_KERNEL, SpanReader, SpanRecord};
use trace::thread_log::{ThreadRecord, ThreadsReader};
use trace::told::{Damaged, PostedWork, Reader, Told};

use crate::usage::printable;

/// How long the daemon may take to take the question, and between two looks whether anybody still wants it.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUND: Duration = Duration::from_millis(50);

/// Operations of which either what they are or when they ran has not come; kernels; streams. The oldest operations are forgotten first.
const OPERATIONS: usize = 1 << 16;
const KERNELS: usize = 1 << 12;
const STREAMS: usize = 1 << 12;

/// For how many nanoseconds work that ran waits to be told of.
const PATIENCE_NS: u64 = 1_000_000_000;

/// How often, and for how many nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub count: u64,
    pub nanoseconds: u64,
}

/// What a client's kernels and copies took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelTable {
    /// For how long it has been recorded.
    pub seconds: u64,
    /// By name, those that took most first.
    pub kernels: Vec<(String, Sum)>,
    /// By stream, likewise.
    pub streams: Vec<(u32, Sum)>,
    /// Operations and calls that found no room, and are in no sum.
    pub dropped: u64,
    /// Why it is not recorded any more, if it is not.
    pub over: Option<String>,
}

/// A recording of one client's kernels, as long as this is there.
#[derive(Debug)]
pub struct KernelWatch {
    sums: Arc<Mutex<Sums>>,
    is_over: Arc<AtomicBool>,
    began: Instant,
}

impl Drop for KernelWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl KernelWatch {
    /// Begins with the client of a process.
    pub fn begin(pid: i32) -> Result<Self> {
        let directory = named_pipe_directory().unwrap_or_else(|| DEFAULT_PIPE_DIRECTORY.into());
        let request = TimeLineRequest { pid: Some(pid) };
        let lines = TimeLines::record(&directory.join("control"), request, PATIENCE)
            .context("the daemon does not record")?;
        let (sums, is_over) = (
            Arc::<Mutex<Sums>>::default(),
            Arc::new(AtomicBool::new(false)),
        );
        std::thread::Builder::new()
            .name("top kernels".to_owned())
            .spawn({
                let (sums, is_over) = (Arc::clone(&sums), Arc::clone(&is_over));
                move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let over = match lines.next(ROUND) {
                            Ok(Some(Recorded::Part(_, part))) => sums.lock().take(part),
                            Ok(Some(Recorded::Client(_)) | None) => None,
                            Ok(Some(Recorded::End)) => Some("the daemon has ended".to_owned()),
                            Err(error) => Some(error.to_string()),
                        };
                        if over.is_some() {
                            sums.lock().over = over;
                            return;
                        }
                    }
                }
            })
            .context("no thread can be made")?;
        Ok(Self {
            sums,
            is_over,
            began: Instant::now(),
        })
    }

    /// What came so far.
    pub fn table(&self) -> KernelTable {
        KernelTable {
            seconds: self.began.elapsed().as_secs(),
            ..self.sums.lock().table()
        }
    }
}

/// What an operation is: a kernel, the first of a graph's, or something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum What {
    Kernel(u64, u32),
    Run(u64, u32),
    Graph,
    Copy,
}

/// What is known of an operation.
#[derive(Clone, Copy, Debug, Default)]
struct Operation {
    what: Option<What>,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC, and what it took so far, if it ran.
    ran: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Sums {
    threads: ThreadsReader,
    operations: HashMap<At, Operation>,
    /// The oldest first.
    order: VecDeque<At>,
    names: HashMap<(u64, u32), String>,
    kernels: BTreeMap<What, Sum>,
    streams: BTreeMap<u32, Sum>,
    /// Of operations that were forgotten, and of which it was not told what they are.
    unknown: Sum,
    /// What was put into streams before then was told, in nanoseconds of CLOCK_MONOTONIC.
    until: u64,
    dropped: u64,
    over: Option<String>,
}

impl Sum {
    fn add(&mut self, count: u64, nanoseconds: u64) {
        self.count += count;
        self.nanoseconds = self.nanoseconds.saturating_add(nanoseconds);
    }
}

impl Sums {
    /// Takes a part. Gives why there are no more of them, if that is so.
    fn take(&mut self, part: RecordedPart) -> Option<String> {
        match part {
            RecordedPart::Spans(bytes) => {
                for record in SpanReader::new(&bytes).map_while(std::result::Result::ok) {
                    if let SpanRecord::Span(span) = record {
                        self.ran(&span);
                    }
                }
            }
            RecordedPart::Told(bytes) => {
                let mut threads = std::mem::take(&mut self.threads);
                for told in Reader::new(&bytes).map_while(std::result::Result::ok) {
                    match told {
                        Told::Words { tid, words } => {
                            let read = threads.read(tid, words, |record| {
                                if let ThreadRecord::Posted(posted) = record {
                                    let at = At {
                                        stream: posted.stream,
                                        sequence: posted.sequence,
                                    };
                                    self.posted(at, posted.work);
                                }
                                Ok::<_, Damaged>(())
                            });
                            if read.is_err() {
                                break;
                            }
                        }
                        Told::Kernel {
                            module,
                            index,
                            name,
                            ..
                        } if self.names.len() < KERNELS => {
                            self.names.insert((module, index), printable(name));
                        }
                        Told::Dropped { count } => {
                            self.dropped = self.dropped.saturating_add(count);
                        }
                        Told::Until { time_ns } => self.until = self.until.max(time_ns),
                        _ => {}
                    }
                }
                self.threads = threads;
            }
            RecordedPart::Dropped { count } => self.dropped = self.dropped.saturating_add(count),
            RecordedPart::Over { text } if text.is_empty() => {
                return Some("the client has left".to_owned());
            }
            RecordedPart::Over { text } => return Some(text),
        }
        None
    }

    fn operation(&mut self, at: At) -> &mut Operation {
        if !self.operations.contains_key(&at) {
            if self.order.len() >= OPERATIONS
                && let Some(oldest) = self.order.pop_front()
                && let Some(Operation {
                    what: None,
                    ran: Some((_, took)),
                }) = self.operations.remove(&oldest)
            {
                self.unknown.add(1, took);
            }
            self.order.push_back(at);
        }
        self.operations.entry(at).or_default()
    }

    fn posted(&mut self, at: At, work: PostedWork) {
        let what = match work {
            PostedWork::Kernel { module, index, .. } => What::Kernel(module, index),
            PostedWork::Run { module, index, .. } => What::Run(module, index),
            PostedWork::Graph => What::Graph,
            PostedWork::Copy { .. } | PostedWork::Fill { .. } => What::Copy,
        };
        let operation = self.operation(at);
        operation.what = Some(what);
        if let Some((_, took)) = operation.ran {
            self.add(at, what, 1, took);
        }
    }

    fn ran(&mut self, span: &OperationSpan) {
        if !matches!(span.kind, SPAN_KERNEL | SPAN_COPY) {
            return;
        }
        let took = span.ended.saturating_sub(span.began);
        // Who makes no call tells of none.
        self.until = self.until.max(span.ended.saturating_sub(PATIENCE_NS));
        let operation = self.operation(span.at);
        let is_first = operation.ran.is_none();
        let (began, before) = operation.ran.unwrap_or((span.began, 0));
        operation.ran = Some((began.min(span.began), before.saturating_add(took)));
        if let Some(what) = operation.what {
            self.add(span.at, what, is_first.into(), took);
        }
    }

    fn add(&mut self, at: At, what: What, count: u64, took: u64) {
        if self.kernels.len() < KERNELS || self.kernels.contains_key(&what) {
            self.kernels.entry(what).or_default().add(count, took);
        }
        if self.streams.len() < STREAMS || self.streams.contains_key(&at.stream) {
            self.streams.entry(at.stream).or_default().add(count, took);
        }
    }

    fn table(&self) -> KernelTable {
        let name = |module, index| {
            let name = self.names.get(&(module, index));
            name.map_or("kernel", |name| name).to_owned()
        };
        let kernels = self.kernels.iter().map(|(what, sum)| {
            let name = match *what {
                What::Kernel(module, index) => name(module, index),
                What::Run(module, index) => format!("graph: {} and more", name(module, index)),
                What::Graph => "graph".to_owned(),
                What::Copy => "copies and fills".to_owned(),
            };
            (name, *sum)
        });
        let mut kernels: Vec<_> = kernels.collect();
        // What was put into streams before anybody looked.
        let (mut unknown, mut streams) = (self.unknown, self.streams.clone());
        for (at, operation) in &self.operations {
            if operation.what.is_none()
                && let Some((began, took)) = operation.ran
                && began < self.until
            {
                unknown.add(1, took);
                streams.entry(at.stream).or_default().add(1, took);
            }
        }
        if unknown.count > 0 {
            kernels.push(("launched before it was recorded".to_owned(), unknown));
        }
        kernels.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.nanoseconds));
        let mut streams: Vec<_> = streams.into_iter().collect();
        streams.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.nanoseconds));
        KernelTable {
            seconds: 0,
            kernels,
            streams,
            dropped: self.dropped,
            over: self.over.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::operations::SpanWriter;
    use trace::thread_log::{Call, ThreadWriter};
    use trace::told::Posted;

    fn span(sequence: u64, began: u64, ended: u64) -> OperationSpan {
        OperationSpan {
            at: At {
                stream: 4,
                sequence,
            },
            began,
            ended,
            ..OperationSpan::default()
        }
    }

    fn spans(all: &[OperationSpan]) -> RecordedPart {
        let mut writer = SpanWriter::default();
        all.iter().for_each(|span| writer.put(span));
        RecordedPart::Spans(writer.take().into())
    }

    fn launched(sequences: std::ops::Range<u64>) -> RecordedPart {
        let mut writer = ThreadWriter::default();
        for sequence in sequences {
            let correlation = trace::thread_log::correlation(4, sequence);
            writer.posted(&Posted {
                stream: 4,
                sequence,
                context: 0,
                correlation,
                work: PostedWork::Kernel {
                    module: 3,
                    index: 1,
                    grid: [1; 3],
                    block: [1; 3],
                    shared_bytes: 0,
                },
            });
            writer.call(&Call {
                function: 9,
                began: sequence * 100,
                ended: sequence * 100 + 10,
                correlation,
            });
        }
        let words: Vec<u8> = writer
            .words()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let mut told = Vec::new();
        Told::Words {
            tid: 7,
            words: &words,
        }
        .put(&mut told);
        RecordedPart::Told(told.into())
    }

    #[test]
    fn kernels_are_added_up_whatever_comes_first() {
        let mut sums = Sums::default();
        assert_eq!(sums.take(launched(1..3)), None);
        // Two pieces of the first, and one of the third, of which nothing is told yet.
        sums.take(spans(&[
            span(1, 0, 100),
            span(2, 200, 300),
            span(1, 400, 500),
        ]));
        sums.take(spans(&[span(3, 600, 900)]));
        let three = |count, nanoseconds| Sum { count, nanoseconds };
        assert_eq!(sums.table().kernels, [("kernel".to_owned(), three(2, 300))]);
        let mut named = Vec::new();
        Told::Kernel {
            module: 3,
            index: 1,
            shared_bytes: 0,
            registers: 0,
            name: "chu\u{1b}rn",
        }
        .put(&mut named);
        sums.take(RecordedPart::Told(named.into()));
        sums.take(launched(3..4));
        let held = OperationSpan {
            kind: 16,
            ..span(3, 0, 1_000_000)
        };
        sums.take(spans(&[held]));
        sums.take(RecordedPart::Dropped { count: 5 });
        let table = sums.table();
        assert_eq!(table.kernels, [("chu\\u{1b}rn".to_owned(), three(3, 600))]);
        assert_eq!(table.streams, [(4, three(3, 600))]);
        assert_eq!((table.dropped, table.over), (5, None));
        let over = |text: &str| RecordedPart::Over {
            text: text.to_owned(),
        };
        assert_eq!(sums.take(over("why")).as_deref(), Some("why"));
        assert_eq!(sums.take(over("")).as_deref(), Some("the client has left"));
    }

    #[test]
    fn what_a_client_tells_is_bounded() {
        let mut sums = Sums::default();
        for round in 0..3 {
            let begin = round * OPERATIONS as u64;
            sums.take(launched(begin..begin + OPERATIONS as u64));
        }
        assert!(sums.operations.len() <= OPERATIONS && sums.order.len() <= OPERATIONS);
        // Of one that was forgotten nobody knows what it was.
        sums.take(spans(&[span(5, 0, 100)]));
        assert!(sums.table().kernels.is_empty(), "it may be told of yet");
        let mut until = Vec::new();
        Told::Until { time_ns: 50 }.put(&mut until);
        sums.take(RecordedPart::Told(until.into()));
        assert_eq!(sums.table().kernels[0].1.nanoseconds, 100);
        sums.take(RecordedPart::Told(vec![99, 1, 2].into()));
    }
}
