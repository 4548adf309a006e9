//! The rejected way: a ring for each thread, and a sequence number that all share. The consumer takes
//! from whichever ring has the next number. Only as much of it as the measurement needs: no padding,
//! no waiting for space, no sleeping; but with the fence and the look at the bell that a post needs.
//!
//! Called by `main` beside the ring that we have. Must not know what a record means.

use protocol::operations::{Launch, Request};
use protocol::wire::{Fields, HEADER_SLOTS, Header};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Header, fields and 64 bytes.
const RECORD: usize = HEADER_SLOTS + Launch::SLOTS + 8;

/// About as many as the transport's, and a multiple of a record, so that none passes the end.
const WORDS: usize = (1 << 17) / RECORD * RECORD;

/// Keeps words that different threads write apart.
#[repr(align(128))]
struct Line(AtomicU64);

struct Ring {
    data: Box<[AtomicU64]>,
    produced: Line,
    bell: Line,
}

/// The producers' side.
pub struct Apart {
    rings: Vec<Ring>,
    next: Line,
}

/// The consumer's side.
pub struct Taker {
    /// For each ring what was taken, and what was produced as last seen.
    cursors: Vec<(u64, u64)>,
    next: u64,
    record: Vec<u64>,
}

impl Apart {
    /// Rings for so many threads.
    pub fn new(threads: usize) -> Self {
        let zero = || Line(AtomicU64::new(0));
        let ring = |_| Ring {
            data: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            produced: zero(),
            bell: zero(),
        };
        Self {
            rings: (0..threads).map(ring).collect(),
            next: zero(),
        }
    }

    /// The one who takes.
    pub fn taker(&self) -> Taker {
        Taker {
            cursors: vec![(0, 0); self.rings.len()],
            next: 0,
            record: Vec::new(),
        }
    }

    /// Posts from a thread, which is the only one that uses this ring.
    #[inline]
    pub fn post(&self, thread: usize, request: &Launch, parameters: &[u8; 64]) {
        let ring = &self.rings[thread];
        let begin = ring.produced.0.load(Ordering::Relaxed);
        let sequence = self.next.0.fetch_add(1, Ordering::Relaxed);
        let header = Header {
            opcode: Launch::OPCODE as u16,
            version: Launch::VERSION,
            slots: Launch::SLOTS as u8,
            data: 64,
            sequence,
            channel: 0,
        };
        let mut head = [0; HEADER_SLOTS + Launch::SLOTS];
        head[..HEADER_SLOTS].copy_from_slice(&header.encode());
        request.write(&mut head[HEADER_SLOTS..]);
        let at = begin as usize % WORDS;
        let (head_place, data_place) = ring.data[at..at + RECORD].split_at(head.len());
        for (word, value) in head_place.iter().zip(&head) {
            word.store(*value, Ordering::Relaxed);
        }
        for (word, bytes) in data_place.iter().zip(parameters.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        ring.produced
            .0
            .store(begin + RECORD as u64, Ordering::Release);
        fence(Ordering::SeqCst);
        if ring.bell.0.load(Ordering::Relaxed) != 0 {
            unreachable!("nobody sleeps here");
        }
    }
}

impl Taker {
    /// Copies out the record that is next in the shared order, if it is there.
    pub fn pop(&mut self, from: &Apart) -> bool {
        for (ring, (taken, produced)) in from.rings.iter().zip(&mut self.cursors) {
            if produced == taken {
                *produced = ring.produced.0.load(Ordering::Acquire);
                if produced == taken {
                    continue;
                }
            }
            let at = *taken as usize % WORDS;
            let place = &ring.data[at..at + RECORD];
            if place[1].load(Ordering::Relaxed) != self.next {
                continue;
            }
            self.record.clear();
            self.record
                .extend(place.iter().map(|word| word.load(Ordering::Relaxed)));
            *taken += RECORD as u64;
            self.next += 1;
            return true;
        }
        false
    }
}
