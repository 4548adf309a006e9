//! What is recorded of a client for its time line, kept until somebody takes it: the client, which records itself, or a
//! [time line](crate::time_lines) that somebody asked the daemon for.
//!
//! The engine's threads and the session's put it here. Empty, and without a cost, until it is asked for. Called by
//! the observer and by sessions; read by the session and by `time_lines`. Must not know files.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use engine::{Activity, Span};
use parking_lot::Mutex;
use protocol::operations::{At, HoldReason, OperationSpan, SPAN_COPY, SPAN_KERNEL, SpanWriter};

/// Bytes of a piece of spans: what fits a reply.
const PIECE: usize = transport::session::REPLY_DATA;

/// Pieces of spans of a client that are kept, which is about a million spans of short kernels in a row; more spans are dropped,
/// and counted.
const MOST_PIECES: usize = (4 << 20) / PIECE;

/// Bytes that a client told which are kept; more are dropped, and counted.
const MOST_TOLD: usize = 16 << 20;

/// What all clients of one time line may have kept, in bytes.
#[derive(Debug)]
pub struct Room(AtomicUsize);

impl Room {
    /// So many bytes.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self(AtomicUsize::new(bytes))
    }

    fn reserve(&self, bytes: usize) -> bool {
        let less = |left: usize| left.checked_sub(bytes);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }

    fn release(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Who takes what is kept.
#[derive(Debug, Default)]
enum Reader {
    /// Nobody: nothing is kept.
    #[default]
    Nobody,
    /// The client, by calls.
    Client,
    /// A time line.
    TimeLine(Arc<Room>),
}

#[derive(Debug, Default)]
struct Kept {
    reader: Reader,
    /// Whole pieces of spans, the oldest first, and the one that is begun.
    pieces: VecDeque<Vec<u8>>,
    writer: SpanWriter,
    /// The last place of each stream of which there was a span, but for that of the last span.
    places: BTreeMap<u32, u64>,
    last: Option<At>,
    client_records: Vec<Vec<u8>>,
    told_bytes: usize,
    dropped: u64,
    /// Whether the client is gone.
    over: bool,
}

impl Kept {
    /// Keeps a span, if there is a reader and room.
    fn keep(&mut self, span: &OperationSpan) {
        if matches!(self.reader, Reader::Nobody) {
            return;
        }
        if self.writer.is_full(PIECE) {
            self.pieces.push_back(self.writer.take());
        }
        if self.writer.is_empty() && !self.begin_piece() {
            self.dropped += 1;
            return;
        }
        self.writer.put(span);
        if let Some(last) = self.last.replace(span.at)
            && last.stream != span.at.stream
        {
            self.places.insert(last.stream, last.sequence);
        }
    }

    /// Reserves room for a piece.
    fn begin_piece(&self) -> bool {
        self.pieces.len() < MOST_PIECES
            && match &self.reader {
                Reader::TimeLine(room) => room.reserve(PIECE),
                Reader::Client | Reader::Nobody => true,
            }
    }

    /// All pieces.
    fn take_pieces(&mut self) -> Vec<Vec<u8>> {
        let mut pieces: Vec<_> = std::mem::take(&mut self.pieces).into();
        if !self.writer.is_empty() {
            pieces.push(self.writer.take());
        }
        if let Reader::TimeLine(room) = &self.reader {
            room.release(pieces.len() * PIECE + self.told_bytes);
        }
        self.told_bytes = 0;
        pieces
    }

    /// Forgets what is kept.
    fn clear(&mut self) {
        self.take_pieces();
        self.places.clear();
        self.last = None;
        self.client_records.clear();
        self.dropped = 0;
    }
}

/// What a time line takes at a time.
#[derive(Debug, Default)]
pub struct Taken {
    /// When the device worked and operations waited: pieces for a [`SpanReader`](protocol::operations::SpanReader), the oldest first.
    pub spans: Vec<Vec<u8>>,
    /// The last place of each stream of which there is a span.
    pub places: BTreeMap<u32, u64>,
    /// What the client told.
    pub client_records: Vec<Vec<u8>>,
    /// What there was no room for, since the last time.
    pub dropped: u64,
    /// Whether nothing more comes.
    pub state: RecordingState,
}

/// How a recording goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordingState {
    /// It goes on.
    #[default]
    GoesOn,
    /// The client is gone.
    Over,
    /// The client began to record itself.
    Lost,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Recording {
    /// Whether anybody takes what is kept: what the engine asks of each operation.
    is_kept: AtomicBool,
    /// Nothing until somebody has asked.
    kept: OnceLock<Mutex<Kept>>,
}

impl Recording {
    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.is_kept.load(Ordering::Relaxed)
    }

    /// A device worked for the client; from any thread.
    pub fn add_spans(&self, spans: &[Span]) {
        self.keep(spans.iter().map(|span| OperationSpan {
            at: span.at,
            device: span.device,
            kind: match span.activity {
                Activity::Kernel => SPAN_KERNEL,
                Activity::Copy => SPAN_COPY,
            },
            began: span.began,
            ended: span.ended,
        }));
    }

    /// An operation was held back from then until then; from any thread.
    pub fn add_hold(&self, at: At, device: u32, why: HoldReason, (began, ended): (u64, u64)) {
        self.keep(std::iter::once(OperationSpan {
            at,
            device,
            kind: why.span_kind(),
            began,
            ended,
        }));
    }

    #[inline]
    fn keep(&self, spans: impl Iterator<Item = OperationSpan>) {
        if !self.is_on() {
            return;
        }
        let Some(kept) = self.kept.get() else {
            return;
        };
        let mut kept = kept.lock();
        for span in spans {
            kept.keep(&span);
        }
    }

    /// The client tells of its calls and work.
    pub fn add_client_records(&self, bytes: &[u8]) {
        let Some(kept) = self.kept.get() else {
            return;
        };
        let mut kept = kept.lock();
        let kept = &mut *kept;
        // What comes late is nobody's.
        let Reader::TimeLine(room) = &kept.reader else {
            return;
        };
        if kept.told_bytes + bytes.len() <= MOST_TOLD && room.reserve(bytes.len()) {
            kept.told_bytes += bytes.len();
            kept.client_records.push(bytes.to_vec());
        } else {
            kept.dropped += 1;
        }
    }

    /// Puts the oldest piece of spans into a reply to the client, and says how many were dropped so far. From the first time on
    /// they are kept for the client, and for no time line.
    pub fn drain_for_client(&self, reply: &mut Vec<u8>) -> u64 {
        let mut kept = self.kept.get_or_init(Mutex::default).lock();
        if !matches!(kept.reader, Reader::Client) {
            kept.clear();
            kept.reader = Reader::Client;
            self.is_kept.store(true, Ordering::Relaxed);
        }
        match kept.pieces.pop_front() {
            Some(piece) => reply.extend(piece),
            None => reply.extend(kept.writer.take()),
        }
        kept.dropped
    }

    /// Begins to keep for a time line, unless it is kept for another or for the client.
    pub fn begin(&self, room: Arc<Room>) -> bool {
        let mut kept = self.kept.get_or_init(Mutex::default).lock();
        let free = matches!(kept.reader, Reader::Nobody);
        if free {
            kept.reader = Reader::TimeLine(room);
            self.is_kept.store(true, Ordering::Relaxed);
        }
        free
    }

    /// What is kept for the time line that began.
    pub fn drain(&self) -> Taken {
        let Some(kept) = self.kept.get() else {
            return Taken::default();
        };
        let mut kept = kept.lock();
        let kept = &mut *kept;
        let Reader::TimeLine(_) = &kept.reader else {
            return Taken {
                state: RecordingState::Lost,
                ..Taken::default()
            };
        };
        if let Some(last) = kept.last.take() {
            kept.places.insert(last.stream, last.sequence);
        }
        Taken {
            spans: kept.take_pieces(),
            places: std::mem::take(&mut kept.places),
            client_records: std::mem::take(&mut kept.client_records),
            dropped: std::mem::take(&mut kept.dropped),
            state: match kept.over {
                true => RecordingState::Over,
                false => RecordingState::GoesOn,
            },
        }
    }

    /// Whether the client is gone.
    pub fn is_over(&self) -> bool {
        self.kept.get().is_some_and(|kept| kept.lock().over)
    }

    /// Keeps no more for the time line that began.
    pub fn end(&self) {
        if let Some(kept) = self.kept.get() {
            let mut kept = kept.lock();
            if matches!(kept.reader, Reader::TimeLine(_)) {
                kept.clear();
                kept.reader = Reader::Nobody;
                self.is_kept.store(false, Ordering::Relaxed);
            }
        }
    }

    /// The client is gone.
    pub fn client_ended(&self) {
        if let Some(kept) = self.kept.get() {
            kept.lock().over = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::operations::{SpanReader, SpanRecord};

    fn span(sequence: u64, began: u64) -> Span {
        Span {
            at: At {
                stream: 3,
                sequence,
            },
            device: 1,
            activity: Activity::Copy,
            began,
            ended: began + 10,
            multiprocessors: None,
        }
    }

    fn read(piece: &[u8]) -> Vec<OperationSpan> {
        let records = SpanReader::new(piece).map(|record| match record.unwrap() {
            SpanRecord::Span(span) => span,
            SpanRecord::Reached(at) => panic!("{at:?}"),
        });
        records.collect()
    }

    #[test]
    fn spans_are_kept_for_the_client_from_its_first_question_on() {
        let recording = Recording::default();
        let mut reply = Vec::new();
        recording.add_spans(&[span(1, 0)]);
        assert_eq!(
            (recording.drain_for_client(&mut reply), reply.len()),
            (0, 0)
        );
        recording.add_spans(&[span(2, 100)]);
        recording.add_spans(&[span(2, 50)]);
        recording.add_hold(span(3, 0).at, 1, HoldReason::Others, (30, 37));
        assert_eq!(recording.drain_for_client(&mut reply), 0);
        let spans = read(&reply);
        assert_eq!((spans[0].began, spans[0].ended), (50, 110));
        assert_eq!((spans[0].device, spans[0].kind), (1, SPAN_COPY));
        assert_eq!(
            (spans[1].at.sequence, spans[1].ended - spans[1].began),
            (3, 7)
        );
        assert_eq!(spans[1].kind, HoldReason::Others.span_kind());
        let mut put = 0_u64;
        while recording.drain_for_client(&mut Vec::new()) == 0 {
            for _ in 0..2 * MOST_PIECES * PIECE / 16 {
                put += 1;
                // Each tells which it is of.
                recording.add_spans(&[span(put * 2, put * 20)]);
            }
        }
        let (mut came, mut dropped) = (0, 0);
        loop {
            reply.clear();
            dropped = recording.drain_for_client(&mut reply).max(dropped);
            assert!(reply.len() <= PIECE);
            if reply.is_empty() {
                break;
            }
            came += read(&reply).len() as u64;
        }
        assert!(came > 100_000 && came < put, "{came} of {put}");
        assert!(dropped > 0 && came + dropped <= put, "{came}, {dropped}");
    }

    #[test]
    fn times_of_one_look_are_kept_one_by_one() {
        let recording = Recording::default();
        assert!(recording.begin(Arc::new(Room::new(1 << 20))));
        recording.add_spans(&[span(1, 0), span(2, 11), span(2, 15), span(3, 30)]);
        let taken = recording.drain();
        let spans = read(&taken.spans[0]);
        let times = spans.iter().map(|it| (it.at.sequence, it.began, it.ended));
        let times: Vec<_> = times.collect();
        assert_eq!(times, [(1, 0, 10), (2, 11, 25), (3, 30, 40)]);
        assert_eq!(taken.places, BTreeMap::from([(3, 3)]));
        let other = At {
            stream: 9,
            sequence: 1,
        };
        recording.add_hold(other, 1, HoldReason::Event, (1, 2));
        recording.add_spans(&[span(7, 100)]);
        assert_eq!(recording.drain().places, BTreeMap::from([(3, 7), (9, 1)]));
    }

    #[test]
    fn a_time_line_has_room_for_so_much() {
        let recording = Recording::default();
        let room = Arc::new(Room::new(PIECE + 10));
        assert!(recording.begin(room.clone()) && !recording.begin(room.clone()));
        recording.add_client_records(b"0123456789");
        recording.add_client_records(b"x".repeat(PIECE + 1).as_slice());
        let many = PIECE as u64;
        for sequence in 0..many {
            recording.add_spans(&[span(sequence * 2, sequence * 20)]);
        }
        let taken = recording.drain();
        assert_eq!((taken.spans.len(), taken.client_records.len()), (1, 1));
        let came = read(&taken.spans[0]).len() as u64;
        assert!(came > 100 && came + taken.dropped == many + 1, "{came}");
        recording.add_spans(&[span(9, 9)]);
        recording.client_ended();
        let taken = recording.drain();
        assert_eq!(
            (taken.spans.len(), taken.dropped, taken.state),
            (1, 0, RecordingState::Over)
        );
        recording.add_spans(&[span(10, 10)]);
        recording.end();
        assert_eq!(room.0.load(Ordering::Relaxed), PIECE + 10);
        recording.add_spans(&[span(11, 11)]);
        assert!(recording.begin(room), "it is free again");
        assert!(recording.drain().spans.is_empty(), "nobody had it kept");
    }

    #[test]
    fn a_client_that_records_itself_has_it() {
        let recording = Recording::default();
        assert!(recording.begin(Arc::new(Room::new(1 << 20))));
        recording.add_spans(&[span(1, 1)]);
        recording.drain_for_client(&mut Vec::new());
        assert_eq!(recording.drain().state, RecordingState::Lost);
        recording.end();
        assert!(!recording.begin(Arc::new(Room::new(1 << 20))));
    }
}
