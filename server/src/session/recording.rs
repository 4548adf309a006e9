//! What is recorded of a client for its time line, kept until somebody takes it: the client, which records itself, or a
//! [time line](crate::time_lines) that somebody asked the daemon for.
//!
//! The engine's threads and the session's put it here. Empty, and without a cost, until it is asked for. Called by
//! the observer and by sessions; read by the session and by `time_lines`. Must not know files.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use engine::{Activity, Span};
use parking_lot::Mutex;
use protocol::operations::{At, HoldReason, SPAN_BYTES, SPAN_COPY};

/// Spans of a client that are kept; more are dropped, and counted.
const MOST_SPANS: usize = 1 << 16;

/// Bytes that a client told which are kept; more are dropped, and counted.
const MOST_TOLD: usize = 4 << 20;

/// The spans of a reply.
const IN_REPLY: usize = 96;

const _: () = assert!(IN_REPLY * SPAN_BYTES <= transport::session::REPLY_DATA);

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

/// A time of an operation: as what it travels, see [`SPAN_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// The operation.
    pub at: At,
    device: u32,
    kind: u64,
    began: u64,
    ended: u64,
}

impl Time {
    /// Writes it as it travels.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let stream = u64::from(self.at.stream);
        let device = u64::from(self.device) | self.kind << 32;
        for word in [stream, self.at.sequence, self.began, self.ended, device] {
            out.extend(word.to_le_bytes());
        }
    }
}

#[derive(Debug, Default)]
struct Kept {
    reader: Reader,
    spans: VecDeque<Time>,
    client_records: Vec<Vec<u8>>,
    told_bytes: usize,
    dropped: u64,
    /// Whether the client is gone.
    over: bool,
}

impl Kept {
    /// Keeps a time, if there is a reader and room.
    fn keep(&mut self, time: Time) {
        let room = match &self.reader {
            Reader::Nobody => return,
            Reader::Client => None,
            Reader::TimeLine(room) => Some(room),
        };
        // Time slices of one operation come one after another.
        if let Some(last) = self.spans.back_mut()
            && time.kind <= SPAN_COPY
            && (last.at, last.device, last.kind) == (time.at, time.device, time.kind)
        {
            last.began = last.began.min(time.began);
            last.ended = last.ended.max(time.ended);
        } else if self.spans.len() < MOST_SPANS
            && room.is_none_or(|room| room.reserve(size_of::<Time>()))
        {
            self.spans.push_back(time);
        } else {
            self.dropped += 1;
        }
    }

    /// Forgets what is kept.
    fn clear(&mut self) {
        if let Reader::TimeLine(room) = &self.reader {
            room.release(self.spans.len() * size_of::<Time>() + self.told_bytes);
        }
        self.spans.clear();
        self.client_records.clear();
        self.told_bytes = 0;
        self.dropped = 0;
    }
}

/// What a time line takes at a time.
#[derive(Debug, Default)]
pub struct Taken {
    /// When the device worked and operations waited, oldest first.
    pub spans: Vec<Time>,
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
        let times = spans.iter().map(|span| Time {
            at: span.at,
            device: span.device,
            kind: match span.activity {
                Activity::Kernel => 0,
                Activity::Copy => SPAN_COPY,
            },
            began: span.began,
            ended: span.ended,
        });
        self.keep(times);
    }

    /// An operation was held back from then until then; from any thread.
    pub fn add_hold(&self, at: At, device: u32, why: HoldReason, (began, ended): (u64, u64)) {
        let kind = why.span_kind();
        self.keep(std::iter::once(Time {
            at,
            device,
            kind,
            began,
            ended,
        }));
    }

    fn keep(&self, times: impl Iterator<Item = Time>) {
        if !self.is_on() {
            return;
        }
        let Some(kept) = self.kept.get() else {
            return;
        };
        let mut kept = kept.lock();
        for time in times {
            kept.keep(time);
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

    /// Puts the oldest spans into a reply to the client, and says how many were dropped so far. From the first time on
    /// they are kept for the client, and for no time line.
    pub fn drain_for_client(&self, reply: &mut Vec<u8>) -> u64 {
        let mut kept = self.kept.get_or_init(Mutex::default).lock();
        if !matches!(kept.reader, Reader::Client) {
            kept.clear();
            kept.reader = Reader::Client;
            self.is_kept.store(true, Ordering::Relaxed);
        }
        let count = kept.spans.len().min(IN_REPLY);
        for span in kept.spans.drain(..count) {
            span.encode(reply);
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
        let Reader::TimeLine(room) = &kept.reader else {
            return Taken {
                state: RecordingState::Lost,
                ..Taken::default()
            };
        };
        room.release(kept.spans.len() * size_of::<Time>() + kept.told_bytes);
        kept.told_bytes = 0;
        Taken {
            spans: kept.spans.drain(..).collect(),
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
        let words: Vec<u64> = reply
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert_eq!(words[..5], [3, 2, 50, 110, 1 | SPAN_COPY << 32]);
        assert_eq!((words[6], words[8] - words[7]), (3, 7));
        assert_eq!(words[9], 1 | HoldReason::Others.span_kind() << 32);
        for sequence in 0..MOST_SPANS as u64 + 5 {
            recording.add_spans(&[span(sequence, sequence)]);
        }
        reply.clear();
        assert_eq!(recording.drain_for_client(&mut reply), 5);
        assert_eq!(reply.len(), IN_REPLY * SPAN_BYTES);
    }

    #[test]
    fn times_of_one_look_are_kept_one_by_one() {
        let recording = Recording::default();
        assert!(recording.begin(Arc::new(Room::new(1 << 20))));
        recording.add_spans(&[span(1, 0), span(2, 10), span(2, 15), span(3, 30)]);
        let spans = recording.drain().spans;
        let times = spans.iter().map(|it| (it.at.sequence, it.began, it.ended));
        let times: Vec<_> = times.collect();
        assert_eq!(times, [(1, 0, 10), (2, 10, 25), (3, 30, 40)]);
    }

    #[test]
    fn a_time_line_has_room_for_so_much() {
        let recording = Recording::default();
        let room = Arc::new(Room::new(3 * size_of::<Time>() + 10));
        assert!(recording.begin(room.clone()) && !recording.begin(room.clone()));
        recording.add_client_records(b"0123456789");
        recording.add_client_records(b"x".repeat(size_of::<Time>() * 3 + 1).as_slice());
        for sequence in 0..5 {
            recording.add_spans(&[span(sequence, sequence)]);
        }
        let taken = recording.drain();
        assert_eq!(
            (taken.spans.len(), taken.client_records.len(), taken.dropped),
            (3, 1, 3)
        );
        recording.add_spans(&[span(9, 9)]);
        recording.client_ended();
        let taken = recording.drain();
        assert_eq!(
            (taken.spans.len(), taken.dropped, taken.state),
            (1, 0, RecordingState::Over)
        );
        recording.add_spans(&[span(10, 10)]);
        recording.end();
        assert_eq!(room.0.load(Ordering::Relaxed), 3 * size_of::<Time>() + 10);
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
