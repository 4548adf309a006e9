//! When the device worked for a client that records a time line, kept until it asks.

use std::collections::VecDeque;
use std::sync::OnceLock;

use engine::{Activity, Span};
use parking_lot::Mutex;
use protocol::operations::{SPAN_BYTES, SPAN_COPY};

/// Spans of a client that are kept; more are dropped, and counted.
const MOST_SPANS: usize = 1 << 16;

/// The spans of a reply.
const IN_REPLY: usize = 96;

const _: () = assert!(IN_REPLY * SPAN_BYTES <= transport::session::REPLY_DATA);

#[derive(Debug, Default)]
struct Kept {
    spans: VecDeque<Span>,
    dropped: u64,
}

/// Empty, and without a cost, until the client asks for the first time.
#[derive(Debug, Default)]
pub struct SpanBuffer(OnceLock<Mutex<Kept>>);

impl SpanBuffer {
    /// Whether the client has asked.
    pub fn is_kept(&self) -> bool {
        self.0.get().is_some()
    }

    /// A device worked for the client; from any thread.
    pub fn add(&self, span: &Span) {
        let Some(kept) = self.0.get() else {
            return;
        };
        let mut kept = kept.lock();
        // Time slices of one operation come one after another.
        if let Some(last) = kept.spans.back_mut()
            && (last.at, last.device, last.activity) == (span.at, span.device, span.activity)
        {
            last.began = last.began.min(span.began);
            last.ended = last.ended.max(span.ended);
        } else if kept.spans.len() < MOST_SPANS {
            kept.spans.push_back(*span);
        } else {
            kept.dropped += 1;
        }
    }

    /// Puts the oldest into a reply, and says how many were dropped so far.
    pub fn take(&self, reply: &mut Vec<u8>) -> u64 {
        let mut kept = self.0.get_or_init(Mutex::default).lock();
        let count = kept.spans.len().min(IN_REPLY);
        for span in kept.spans.drain(..count) {
            let kind = match span.activity {
                Activity::Kernel => 0,
                Activity::Copy => SPAN_COPY,
            };
            let device = u64::from(span.device) | kind << 32;
            let stream = u64::from(span.at.stream);
            for word in [stream, span.at.sequence, span.began, span.ended, device] {
                reply.extend(word.to_le_bytes());
            }
        }
        kept.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::operations::At;

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
    fn spans_are_kept_from_the_first_question_on() {
        let buffer = SpanBuffer::default();
        let mut reply = Vec::new();
        buffer.add(&span(1, 0));
        assert_eq!((buffer.take(&mut reply), reply.len()), (0, 0));
        buffer.add(&span(2, 100));
        buffer.add(&span(2, 50));
        assert_eq!(buffer.take(&mut reply), 0);
        let words: Vec<u64> = reply
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
            .collect();
        assert_eq!(words, [3, 2, 50, 110, 1 | SPAN_COPY << 32]);
        for sequence in 0..MOST_SPANS as u64 + 5 {
            buffer.add(&span(sequence, sequence));
        }
        reply.clear();
        assert_eq!(buffer.take(&mut reply), 5);
        assert_eq!(reply.len(), IN_REPLY * SPAN_BYTES);
    }
}
