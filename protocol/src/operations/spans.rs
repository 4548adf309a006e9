//! When devices worked for a client's operations, or why they did not, as bytes: what a server tells of a client that is recorded.
//!
//! A client of a hundred thousand launches a second makes as many spans, so that one that follows another takes a few bytes, and
//! operations that divide a time evenly take these together. Servers write them, clients and `openmps` read them; each piece
//! stands for itself. Must not know who is recorded, nor what becomes of it.

use crate::codec::Damaged;
use crate::operations::At;

/// What a device did in a span: it ran kernels.
pub const SPAN_KERNEL: u64 = 0;
/// It copied or filled.
pub const SPAN_COPY: u64 = 1;

/// Operations that one record tells of at most.
const LONGEST_RUN: u64 = 1 << 16;

/// The longest record: a head, and six numbers.
const LONGEST: usize = 1 + 6 * 10;

/// Head of a record: a span.
const SPAN: u8 = 0;
/// Head of a record: a stream has come to a place.
const REACHED: u8 = 1;
/// Bit of a span's head: it is not of the operation behind the one before it, and says of which it is.
const ELSEWHERE: u8 = 2;
/// Bit of a span's head: it is of several operations, and says of how many.
const RUN: u8 = 4;

/// When a device worked for an operation, or did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationSpan {
    /// The operation.
    pub at: At,
    /// The device.
    pub device: u32,
    /// What it did, or [why](super::HoldReason::span_kind) it did nothing.
    pub kind: u64,
    /// When that began, in nanoseconds of CLOCK_MONOTONIC.
    pub began: u64,
    /// When it ended.
    pub ended: u64,
}

impl OperationSpan {
    /// Whether it tells of the next operation of the same stream, and else of the same.
    fn follows(&self, before: &Self) -> bool {
        let next = before.at.sequence.wrapping_add(1);
        (self.at.stream, self.at.sequence) == (before.at.stream, next)
            && (self.device, self.kind) == (before.device, before.kind)
    }
}

/// Puts spans into bytes.
#[derive(Debug, Default)]
pub struct SpanWriter {
    bytes: Vec<u8>,
    before: OperationSpan,
    /// Not written yet, since what comes may belong to it: so many operations from this one on, which divide its time evenly.
    open: Option<(OperationSpan, u64)>,
}

impl SpanWriter {
    /// Whether a piece of at most so many bytes may have no room for one span more.
    #[must_use]
    pub fn is_full(&self, most: usize) -> bool {
        // What was put last is not written yet.
        self.bytes.len() + 2 * LONGEST > most
    }

    /// Whether nothing was put.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.open.is_none()
    }

    /// The operation of which a span was put last, if there is one.
    #[must_use]
    pub fn last(&self) -> Option<At> {
        let (first, count) = self.open?;
        Some(At {
            sequence: first.at.sequence.wrapping_add(count - 1),
            ..first.at
        })
    }

    /// Adds a span. Pieces of one operation that come one after another, such as its time slices, are put together, but for those of the
    /// last operation of several that divide a time.
    pub fn put(&mut self, span: &OperationSpan) {
        if let Some((open, count)) = &mut self.open {
            let is_work = span.kind <= SPAN_COPY;
            if *count == 1
                && is_work
                && (open.at, open.device, open.kind) == (span.at, span.device, span.kind)
            {
                open.began = open.began.min(span.began);
                open.ended = open.ended.max(span.ended);
                return;
            }
            let each = open.ended.saturating_sub(open.began) / *count;
            let last = OperationSpan {
                at: At {
                    sequence: open.at.sequence.wrapping_add(*count - 1),
                    ..open.at
                },
                ..*open
            };
            let took = span.ended.saturating_sub(span.began);
            if is_work
                && span.follows(&last)
                && span.began == open.ended
                && took.abs_diff(each) <= 1
                && *count < LONGEST_RUN
            {
                *count += 1;
                open.ended = span.ended;
                return;
            }
            self.close();
        }
        self.open = Some((*span, 1));
    }

    /// Says that a stream has come to this place, and that all spans up to it were put before.
    pub fn put_reached(&mut self, at: At) {
        self.close();
        self.bytes.push(REACHED);
        self.number(at.stream.into());
        self.number(at.sequence);
    }

    /// What was put, as one piece.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        self.close();
        self.before = OperationSpan::default();
        std::mem::take(&mut self.bytes)
    }

    fn close(&mut self) {
        let Some((span, count)) = self.open.take() else {
            return;
        };
        let elsewhere = match span.follows(&self.before) {
            true => 0,
            false => ELSEWHERE,
        };
        let run = if count > 1 { RUN } else { 0 };
        self.bytes.push(SPAN | elsewhere | run);
        if elsewhere != 0 {
            self.number(span.at.stream.into());
            self.number(span.at.sequence);
            self.number(span.device.into());
            self.number(span.kind);
        }
        if run != 0 {
            self.number(count);
        }
        // What comes next often began before this one ended: elsewhere, or on several multiprocessors.
        let after = span.began.wrapping_sub(self.before.ended).cast_signed();
        self.number((after << 1 ^ after >> 63).cast_unsigned());
        self.number(span.ended.saturating_sub(span.began));
        self.before = OperationSpan {
            at: At {
                sequence: span.at.sequence.wrapping_add(count - 1),
                ..span.at
            },
            ..span
        };
    }

    /// Seven bits a byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }
}

/// What is read of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanRecord {
    /// A span.
    Span(OperationSpan),
    /// A stream has come to this place, and all spans up to it were told before.
    Reached(At),
}

/// Reads a piece, up to the first thing that cannot be read.
#[derive(Clone, Debug)]
pub struct SpanReader<'a> {
    bytes: &'a [u8],
    before: OperationSpan,
    /// The rest of a run: its first operation's span, how many it has, and how many were read.
    run: Option<(OperationSpan, u64, u64)>,
}

impl<'a> SpanReader<'a> {
    /// Of what [`SpanWriter::take`] gave, or anything.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            before: OperationSpan::default(),
            run: None,
        }
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        let (byte, rest) = self.bytes.split_first().ok_or(Damaged)?;
        self.bytes = rest;
        Ok(*byte)
    }

    fn number(&mut self) -> Result<u64, Damaged> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Damaged)
    }

    fn short(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.number()?).map_err(|_| Damaged)
    }

    fn record(&mut self) -> Result<SpanRecord, Damaged> {
        let head = self.byte()?;
        if head == REACHED {
            return Ok(SpanRecord::Reached(At {
                stream: self.short()?,
                sequence: self.number()?,
            }));
        }
        if head & !(ELSEWHERE | RUN) != SPAN {
            return Err(Damaged);
        }
        let mut span = self.before;
        span.at.sequence = span.at.sequence.wrapping_add(1);
        if head & ELSEWHERE != 0 {
            span.at.stream = self.short()?;
            span.at.sequence = self.number()?;
            span.device = self.short()?;
            span.kind = self.number()?;
        }
        let count = match head & RUN {
            0 => 1,
            _ => self.number()?,
        };
        if !(1..=LONGEST_RUN).contains(&count) {
            return Err(Damaged);
        }
        let after = self.number()?;
        let after = (after >> 1) ^ (after & 1).wrapping_neg();
        span.began = self.before.ended.wrapping_add(after);
        span.ended = span.began.saturating_add(self.number()?);
        self.before = span;
        self.before.at.sequence = span.at.sequence.wrapping_add(count - 1);
        self.run = (count > 1).then_some((span, count, 1));
        Ok(SpanRecord::Span(part(&span, count, 0)))
    }
}

/// What an operation of a run has of its time, by its place.
fn part(run: &OperationSpan, count: u64, place: u64) -> OperationSpan {
    let took = u128::from(run.ended - run.began);
    let until = |place: u64| {
        // No more than all of it, so that it fits.
        run.began + (took * u128::from(place) / u128::from(count)) as u64
    };
    OperationSpan {
        at: At {
            sequence: run.at.sequence.wrapping_add(place),
            ..run.at
        },
        began: until(place),
        ended: until(place + 1),
        ..*run
    }
}

impl Iterator for SpanReader<'_> {
    type Item = Result<SpanRecord, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((run, count, place)) = &mut self.run {
            let span = part(run, *count, *place);
            *place += 1;
            if place == count {
                self.run = None;
            }
            return Some(Ok(SpanRecord::Span(span)));
        }
        if self.bytes.is_empty() {
            return None;
        }
        let record = self.record();
        if record.is_err() {
            self.bytes = &[];
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(stream: u32, sequence: u64, began: u64, ended: u64) -> OperationSpan {
        OperationSpan {
            at: At { stream, sequence },
            device: 1,
            kind: SPAN_KERNEL,
            began,
            ended,
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
    fn what_is_put_is_read() {
        let mut writer = SpanWriter::default();
        let held = OperationSpan {
            kind: 21,
            ..span(u32::MAX, u64::MAX, u64::MAX - 1, u64::MAX)
        };
        let all = [
            span(3, 7, 1_000, 1_500),
            span(3, 8, 1_600, 1_600),
            // On another multiprocessor, before the one before it.
            span(3, 9, 1_100, 9_000),
            span(4, 1, 50, 60),
            held,
            OperationSpan {
                kind: SPAN_COPY,
                ..span(3, 10, 0, 5)
            },
            OperationSpan {
                device: 0,
                ..span(3, 11, 5, 10)
            },
        ];
        assert!(writer.is_empty() && writer.last().is_none());
        all.iter().for_each(|span| writer.put(span));
        assert!(!writer.is_empty());
        assert_eq!(writer.last(), Some(all[6].at));
        assert!(writer.is_full(130) && !writer.is_full(1_000));
        let piece = writer.take();
        assert!(piece.len() < 100, "{}", piece.len());
        assert_eq!(read(&piece), all);
        assert!(writer.is_empty());
        // The next piece stands for itself.
        writer.put(&all[1]);
        assert_eq!(read(&writer.take()), [all[1]]);
    }

    #[test]
    fn pieces_of_an_operation_are_one() {
        let mut writer = SpanWriter::default();
        for (began, ended) in [(100, 110), (50, 60), (120, 130)] {
            writer.put(&span(1, 1, began, ended));
        }
        // Reasons to wait are each their own.
        for _ in 0..2 {
            writer.put(&OperationSpan {
                kind: 16,
                ..span(1, 1, 1, 2)
            });
        }
        let all = read(&writer.take());
        assert_eq!((all.len(), all[0]), (3, span(1, 1, 50, 130)));
    }

    #[test]
    fn operations_that_divide_a_time_are_told_of_together() {
        let mut writer = SpanWriter::default();
        // As an engine divides it: rounded.
        let all: Vec<_> = (0..128_u64)
            .map(|place| {
                let until = |place: u64| 5_000 + place * 100_001 / 128;
                span(2, 10 + place, until(place), until(place + 1))
            })
            .collect();
        all.iter().for_each(|span| writer.put(span));
        assert_eq!(
            writer.last(),
            Some(At {
                stream: 2,
                sequence: 137
            })
        );
        let after = span(2, 138, 105_001, 105_005);
        writer.put(&after);
        let piece = writer.take();
        assert!(piece.len() < 32, "{}", piece.len());
        let read = read(&piece);
        assert_eq!(read.len(), 129);
        for (read, put) in read.iter().zip(&all) {
            assert_eq!(read.at, put.at);
            assert!(read.began.abs_diff(put.began) <= 1, "{read:?} {put:?}");
        }
        assert_eq!(read[128], after);
        let whole = read[..128]
            .windows(2)
            .all(|pair| pair[0].ended == pair[1].began);
        assert!(whole && read[127].ended == 105_001);
    }

    #[test]
    fn a_place_that_a_stream_has_come_to_is_read() {
        let mut writer = SpanWriter::default();
        writer.put(&span(1, 1, 1, 2));
        writer.put_reached(At {
            stream: 9,
            sequence: 5,
        });
        writer.put(&span(1, 2, 3, 4));
        let all: Vec<_> = SpanReader::new(&writer.take())
            .map(Result::unwrap)
            .collect();
        let reached = SpanRecord::Reached(At {
            stream: 9,
            sequence: 5,
        });
        assert_eq!((all.len(), all[1]), (3, reached));
        assert_eq!(all[2], SpanRecord::Span(span(1, 2, 3, 4)));
    }

    #[test]
    fn what_nobody_wrote_is_refused() {
        let whole = {
            let mut writer = SpanWriter::default();
            writer.put(&span(1, 1, 1_000, 2_000));
            writer.take()
        };
        for end in 1..whole.len() {
            let read: Vec<_> = SpanReader::new(&whole[..end]).collect();
            assert_eq!(read, [Err(Damaged)], "{end}");
        }
        // No such head; numbers without an end; no operation, and too many.
        let endless = [[SPAN].as_slice(), &[0xff; 11]].concat();
        for bytes in [
            &[8][..],
            &endless,
            &[RUN, 0, 0, 0],
            &[RUN, 0xff, 0xff, 0x7f, 0, 0],
        ] {
            let read: Vec<_> = SpanReader::new(bytes).collect();
            assert_eq!(read, [Err(Damaged)], "{bytes:?}");
        }
        // Times of no sense are clamped, and places go round.
        let odd = [
            RUN, 2, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
        ];
        let read: Vec<_> = SpanReader::new(&odd).collect();
        assert_eq!(read.len(), 2);
    }
}
