//! The ring's end that posts: any number of a client's threads, which trust each other.
//!
//! Knows how long a record is, not what it says.

use super::{CachePadded, RingMemory, longest};
use crate::doorbell::{self, AdaptiveSpinner, Peer};
use crate::sync::{self, AtomicU64, Ordering};
use std::time::Duration;

/// The end that posts; any number of threads.
pub(crate) struct Producer<A> {
    memory: A,
    reserved: CachePadded<AtomicU64>,
    /// `retired` as last seen: the shared word is read only when this says that the ring is full.
    retired: CachePadded<AtomicU64>,
    spinner: AdaptiveSpinner,
}

/// A place in the ring that is one record's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    begin: u64,
    /// Where the record ends, by which the consumer knows it.
    pub(crate) end: u64,
    /// Words at its beginning that the record leaves empty.
    padding: usize,
}

/// How often a producer without space looks up to ask whether there is still a consumer. Fuzzed sessions are many and short.
const SPACE_SLICE: Duration = Duration::from_millis(if cfg!(fuzzing) { 2 } else { 100 });

impl<A: RingMemory> Producer<A> {
    pub(crate) fn new(memory: A) -> Self {
        Self {
            memory,
            reserved: CachePadded(AtomicU64::new(0)),
            retired: CachePadded(AtomicU64::new(0)),
            spinner: AdaptiveSpinner::new(),
        }
    }

    pub(crate) fn area(&self) -> &A {
        &self.memory
    }

    /// Posts a record: `head` are the words of header and fields, `data` the bytes behind them.
    /// Waits while the ring is full, as long as `go_on` says. Returns whether it was posted.
    ///
    /// # Panics
    /// When the record is longer than a quarter of the ring.
    #[inline]
    pub(crate) fn post(&self, head: &[u64], data: &[&[u8]], go_on: impl Fn() -> bool) -> bool {
        let words = self.words(head, data);
        loop {
            match self.try_reserve(words) {
                Ok(place) => return self.write(place, head, data, &go_on),
                Err(target) => {
                    if !self.wait_for_space(target, &go_on) {
                        return false;
                    }
                }
            }
        }
    }

    /// As [`Producer::post`]. `reserve` has the place taken, within whatever it holds meanwhile, and is told where the
    /// record will end.
    ///
    /// # Panics
    /// As [`Producer::post`].
    pub(crate) fn post_noted(
        &self,
        head: &[u64],
        data: &[&[u8]],
        go_on: impl Fn() -> bool,
        mut reserve: impl FnMut(&dyn Fn() -> Result<Place, u64>) -> Result<Place, u64>,
    ) -> bool {
        let words = self.words(head, data);
        loop {
            match reserve(&|| self.try_reserve(words)) {
                Ok(place) => return self.write(place, head, data, &go_on),
                Err(target) => {
                    if !self.wait_for_space(target, &go_on) {
                        return false;
                    }
                }
            }
        }
    }

    #[inline]
    fn words(&self, head: &[u64], data: &[&[u8]]) -> usize {
        let bytes: usize = data.iter().map(|part| part.len()).sum();
        let words = head.len() + bytes.div_ceil(8);
        assert!(
            words <= longest(self.memory.data().len()),
            "a record of {words} words is too long for the ring"
        );
        words
    }

    /// Writes a record to its place, and moves `produced` over it.
    #[inline]
    fn write(&self, place: Place, head: &[u64], data: &[&[u8]], go_on: &impl Fn() -> bool) -> bool {
        let ring = self.memory.data();
        let Place {
            begin,
            end,
            padding,
        } = place;
        let mut at = begin as usize & (ring.len() - 1);
        if padding > 0 {
            // Opcode 0: the rest of the ring is padding.
            ring[at].store(0, Ordering::Relaxed);
            at = 0;
        }
        let words = (end - begin) as usize - padding;
        let (head_place, data_place) = ring[at..at + words].split_at(head.len());
        for (word, value) in head_place.iter().zip(head) {
            word.store(*value, Ordering::Relaxed);
        }
        write_bytes(data_place, data);
        self.publish(begin, end, go_on)
    }

    /// Takes a ticket, or says up to where places must be free for that.
    #[inline]
    fn try_reserve(&self, words: usize) -> Result<Place, u64> {
        let capacity = self.memory.data().len();
        let mut begin = self.reserved.0.load(Ordering::Relaxed);
        loop {
            let left = capacity - (begin as usize & (capacity - 1));
            let padding = if words <= left { 0 } else { left };
            let end = begin + (padding + words) as u64;
            // [space]: the consumer read the old records before it let go of their place.
            let retired = self.retired.0.load(Ordering::Acquire);
            // A stale `begin` may even be behind `retired`; then the exchange below fails.
            if end > retired + capacity as u64 {
                // For more than this record's place, or both ends would go step by step from here on; but
                // for no more than comes: the consumer may keep half of the ring.
                let most = (capacity / 2).saturating_sub(padding + words);
                let room = (capacity / 4).min(most) as u64;
                return Err(end + room - capacity as u64);
            }
            match self.reserved.0.compare_exchange_weak(
                begin,
                end,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    return Ok(Place {
                        begin,
                        end,
                        padding,
                    });
                }
                Err(now) => begin = now,
            }
        }
    }

    #[cold]
    fn wait_for_space(&self, target: u64, go_on: &impl Fn() -> bool) -> bool {
        // Who has waited for nothing may not know yet that another server has called.
        if !go_on() {
            return false;
        }
        let shared = self.memory.retired();
        let found = doorbell::wait(
            (&self.spinner, || Peer::Apart),
            (self.memory.space_waiter(), target),
            SPACE_SLICE,
            || shared.load(Ordering::Acquire) >= target,
            || false,
            go_on,
        );
        // [space]: what this acquired is handed on to the threads that only look at our copy.
        self.retired
            .0
            .fetch_max(shared.load(Ordering::Acquire), Ordering::AcqRel);
        found
    }

    /// Moves `produced` over the record when all before it are complete, and rings.
    #[inline]
    fn publish(&self, begin: u64, end: u64, go_on: &impl Fn() -> bool) -> bool {
        let produced = self.memory.produced();
        // [records]: acquired from the producer before, released together with our own record.
        if produced.load(Ordering::Acquire) != begin && !await_turn(produced, begin, go_on) {
            return false;
        }
        produced.store(end, Ordering::Release);
        doorbell::ring(self.memory.consumer_waiter(), end);
        true
    }
}

/// Waits until the producers with earlier tickets are through. They only have their records to copy,
/// but may have lost the processor in the middle of it.
#[cold]
fn await_turn(produced: &AtomicU64, begin: u64, go_on: &impl Fn() -> bool) -> bool {
    let mut round = 0u32;
    while produced.load(Ordering::Acquire) != begin {
        round += 1;
        match round {
            ..64 => sync::spin_hint(),
            64..1024 => sync::yield_now(),
            _ => {
                // Yielding does not help a thread of lower priority; sleeping does. A nap may take milliseconds
                // where there are more threads than processors, so the question is not put off for many.
                sync::nap();
                if round.is_multiple_of(32) && !go_on() {
                    return false;
                }
            }
        }
    }
    true
}

/// Writes the parts one after another, filled up with zeroes.
#[inline]
fn write_bytes(place: &[AtomicU64], parts: &[&[u8]]) {
    let mut place = place.iter();
    // A word that parts share, and how many bytes of it there are.
    let mut partial = [0u8; 8];
    let mut filled = 0;
    for part in parts {
        let mut rest = *part;
        if filled > 0 {
            let (head, tail) = rest.split_at(rest.len().min(8 - filled));
            partial[filled..filled + head.len()].copy_from_slice(head);
            filled += head.len();
            rest = tail;
            if filled < 8 {
                continue;
            }
            store_next(&mut place, partial);
        }
        let (whole, tail) = rest.as_chunks::<8>();
        for chunk in whole {
            store_next(&mut place, *chunk);
        }
        partial = [0; 8];
        partial[..tail.len()].copy_from_slice(tail);
        filled = tail.len();
    }
    if filled > 0 {
        store_next(&mut place, partial);
    }
}

#[inline]
fn store_next(place: &mut std::slice::Iter<'_, AtomicU64>, bytes: [u8; 8]) {
    if let Some(word) = place.next() {
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}
