//! The ring: many threads of a client post records, one thread of the server takes them.
//!
//! Positions count 64-bit words and grow for ever; a position's place is the position modulo the
//! ring's words. There are three shared cursors,
//!
//! ```text
//!        retired        taken          produced         reserved (the client's own)
//!  ─────────┬─────────────┬───────────────┬────────────────┬─────────
//!   free    │ may be      │ not read      │ being written  │ free
//!           │ needed yet  │ yet           │                │
//! ```
//!
//! and never `reserved - retired` above the ring's words. A producer moves `reserved` over the place
//! for its record (a ticket), writes, waits for its turn and moves `produced`: so records stand in
//! the order of their tickets, and two threads that hand a stream over keep CUDA's order. A record
//! is never split: where it does not fit before the end, a word with opcode 0 says that the rest is
//! padding.
//!
//! The consumer believes nothing: its own cursors are its own copies, a record is copied out once and
//! only the copy is looked at. Producers are all of one process and trust each other, as threads do.

use crate::doorbell::{self, Patience};
use crate::sync::{self, AtomicBool, AtomicU64, Ordering, fence};
use cuda_abi::wire::{self, HEADER_SLOTS, Header};
use std::collections::VecDeque;
use std::time::Duration;

/// Where a ring lies. All words but the data are zero in the beginning.
pub(crate) trait Area: Send + Sync {
    /// The records. Their number is a power of two.
    fn data(&self) -> &[AtomicU64];
    /// Up to where records are complete. Written by producers.
    fn produced(&self) -> &AtomicU64;
    /// The consumer's alarm.
    fn bell(&self) -> &AtomicU64;
    /// Up to where records were copied out. Written by the consumer.
    fn taken(&self) -> &AtomicU64;
    /// Up to where space may be used again. Written by the consumer.
    fn retired(&self) -> &AtomicU64;
    /// The alarm of producers that wait for space.
    fn room(&self) -> &AtomicU64;
}

/// The most words that a record may have in a ring of `words` words: a quarter, so that neither
/// padding nor one record fills it.
pub(crate) const fn longest(words: usize) -> usize {
    words / 4
}

/// Keeps what one thread writes often out of the cache line of what others read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The end that posts; any number of threads.
pub(crate) struct Producer<A> {
    area: A,
    reserved: Apart<AtomicU64>,
    /// `retired` as last seen: the shared word is read only when this says that the ring is full.
    retired: Apart<AtomicU64>,
    patience: Patience,
}

/// How often a producer without space looks up to ask whether there is still a consumer.
const SPACE_SLICE: Duration = Duration::from_millis(100);

impl<A: Area> Producer<A> {
    pub(crate) fn new(area: A) -> Self {
        Self {
            area,
            reserved: Apart(AtomicU64::new(0)),
            retired: Apart(AtomicU64::new(0)),
            patience: Patience::new(),
        }
    }

    pub(crate) fn area(&self) -> &A {
        &self.area
    }

    /// Posts a record: `head` are the words of header and fields, `data` the bytes behind them.
    /// Waits while the ring is full, as long as `go_on` says. Returns whether it was posted.
    ///
    /// # Panics
    /// When the record is longer than a quarter of the ring.
    #[inline]
    pub(crate) fn post(&self, head: &[u64], data: &[&[u8]], go_on: impl Fn() -> bool) -> bool {
        let bytes: usize = data.iter().map(|part| part.len()).sum();
        let words = head.len() + bytes.div_ceil(8);
        let ring = self.area.data();
        assert!(
            words <= longest(ring.len()),
            "a record of {words} words is too long for the ring"
        );
        let Some((begin, padding)) = self.reserve(words, &go_on) else {
            return false;
        };
        let mut at = begin as usize & (ring.len() - 1);
        if padding > 0 {
            // Opcode 0: the rest of the ring is padding.
            ring[at].store(0, Ordering::Relaxed);
            at = 0;
        }
        let place = &ring[at..at + words];
        let (head_place, data_place) = place.split_at(head.len());
        for (word, value) in head_place.iter().zip(head) {
            word.store(*value, Ordering::Relaxed);
        }
        write_bytes(data_place, data);
        self.publish(begin, begin + (padding + words) as u64, &go_on)
    }

    /// Takes a ticket: the position of a free place, and the words of padding at its beginning.
    #[inline]
    fn reserve(&self, words: usize, go_on: &impl Fn() -> bool) -> Option<(u64, usize)> {
        let capacity = self.area.data().len();
        let mut begin = self.reserved.0.load(Ordering::Relaxed);
        loop {
            let left = capacity - (begin as usize & (capacity - 1));
            let padding = if words <= left { 0 } else { left };
            let end = begin + (padding + words) as u64;
            // [space]: the consumer read the old records before it let go of their place.
            let retired = self.retired.0.load(Ordering::Acquire);
            // A stale `begin` may even be behind `retired`; then the exchange below fails.
            if end > retired + capacity as u64 {
                if !self.wait_for_space(end - capacity as u64, go_on) {
                    return None;
                }
                begin = self.reserved.0.load(Ordering::Relaxed);
                continue;
            }
            match self.reserved.0.compare_exchange_weak(
                begin,
                end,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some((begin, padding)),
                Err(now) => begin = now,
            }
        }
    }

    #[cold]
    fn wait_for_space(&self, target: u64, go_on: &impl Fn() -> bool) -> bool {
        let shared = self.area.retired();
        let found = doorbell::wait(
            &self.patience,
            self.area.room(),
            target,
            SPACE_SLICE,
            || shared.load(Ordering::Acquire) >= target,
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
        let produced = self.area.produced();
        // [records]: acquired from the producer before, released together with our own record.
        if produced.load(Ordering::Acquire) != begin && !await_turn(produced, begin, go_on) {
            return false;
        }
        produced.store(end, Ordering::Release);
        doorbell::ring(self.area.bell(), end);
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
                // Yielding does not help a thread of lower priority; sleeping does.
                sync::nap();
                if round.is_multiple_of(1024) && !go_on() {
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

/// Why a client's ring is not believed any more: it is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The cursor went back, or further than the ring is long.
    Cursor,
    /// A record is longer than allowed, or than what was produced, or leaves the ring.
    Length,
    /// A header that cannot be.
    Header(wire::Malformed),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cursor => f.write_str("the ring's cursor went where it cannot"),
            Self::Length => f.write_str("a record has a length that cannot be"),
            Self::Header(why) => write!(f, "a record's header: {why}"),
        }
    }
}

impl std::error::Error for Malformed {}

/// A record, copied out of the ring. It can be filled again and again.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Its header.
    pub header: Header,
    slots: Vec<u64>,
    data: Vec<u8>,
}

impl Record {
    /// The slots of its fields.
    #[must_use]
    pub fn slots(&self) -> &[u64] {
        &self.slots
    }

    /// The bytes behind the fields, without padding.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}

/// A taken record's place in the ring, for [`Retirement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

/// The end that takes; one thread.
pub(crate) struct Consumer<A> {
    area: A,
    /// Our own cursors; the shared ones are only told.
    taken: u64,
    /// `produced` as last seen.
    produced: u64,
    retirement: Retirement,
    patience: Patience,
}

/// Which taken records still need their place.
#[derive(Debug, Default)]
struct Retirement {
    /// Up to where places were given back.
    retired: u64,
    /// Ends of records from there on, in order, and whether they are done.
    open: VecDeque<(u64, bool)>,
}

impl Retirement {
    /// Notes that a record is done. Returns whether `retired` moved.
    fn finish(&mut self, position: Position) -> bool {
        let found = match self.open.front() {
            Some((end, _)) if *end == position.0 => Ok(0),
            _ => self.open.binary_search_by_key(&position.0, |(end, _)| *end),
        };
        // One that is not there was spilled.
        let Ok(index) = found else { return false };
        self.open[index].1 = true;
        let before = self.retired;
        while let Some((end, true)) = self.open.front().copied() {
            self.retired = end;
            self.open.pop_front();
        }
        self.retired != before
    }
}

/// How long a consumer sleeps at most: it is rung for all that matters, unless a hostile client took
/// its alarm down.
const IDLE_SLICE: Duration = Duration::from_secs(2);

impl<A: Area> Consumer<A> {
    pub(crate) fn new(area: A) -> Self {
        Self {
            area,
            taken: 0,
            produced: 0,
            retirement: Retirement::default(),
            patience: Patience::new(),
        }
    }

    /// Copies the next record out, if there is one.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut Record) -> Result<Option<Position>, Malformed> {
        let capacity = self.area.data().len();
        let mut begin = self.taken;
        if self.produced == begin && !self.look()? {
            return Ok(None);
        }
        let ring = self.area.data();
        let mut at = begin as usize & (capacity - 1);
        let mut available = (self.produced - begin) as usize;
        let mut first = ring[at].load(Ordering::Relaxed);
        if opcode_of(first) == 0 {
            // Padding up to the end, and always a record behind it: they were produced together.
            let padding = capacity - at;
            available = match available.checked_sub(padding) {
                None | Some(0) => return Err(Malformed::Length),
                Some(behind) => behind,
            };
            begin += padding as u64;
            at = 0;
            first = ring[0].load(Ordering::Relaxed);
            if opcode_of(first) == 0 {
                return Err(Malformed::Length);
            }
        }
        let room = available.min(capacity - at).min(longest(capacity));
        if room < HEADER_SLOTS {
            return Err(Malformed::Length);
        }
        // Everything below is of the one copy that is made here.
        let header = Header::decode([
            first,
            ring[at + 1].load(Ordering::Relaxed),
            ring[at + 2].load(Ordering::Relaxed),
        ])
        .map_err(Malformed::Header)?;
        let words = header.record_bytes() / 8;
        if words > room {
            return Err(Malformed::Length);
        }
        let place = &ring[at + HEADER_SLOTS..at + words];
        let (slots, data) = place.split_at(usize::from(header.slots));
        into.header = header;
        into.slots.clear();
        into.slots
            .extend(slots.iter().map(|word| word.load(Ordering::Relaxed)));
        into.data.clear();
        into.data.resize(data.len() * 8, 0);
        for (bytes, word) in into.data.as_chunks_mut::<8>().0.iter_mut().zip(data) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        into.data.truncate(header.data as usize);
        self.taken = begin + words as u64;
        self.area.taken().store(self.taken, Ordering::Relaxed);
        self.retirement.open.push_back((self.taken, false));
        Ok(Some(Position(self.taken)))
    }

    /// Looks whether there are more records.
    fn look(&mut self) -> Result<bool, Malformed> {
        // [records]: what producers wrote before they moved the cursor is seen after this.
        let produced = self.area.produced().load(Ordering::Acquire);
        let capacity = self.area.data().len() as u64;
        // Past what could be free, back, or round and round: all of them wrap to too far.
        if produced.wrapping_sub(self.taken) > capacity
            || produced.wrapping_sub(self.retirement.retired) > capacity
        {
            return Err(Malformed::Cursor);
        }
        self.produced = produced;
        Ok(produced != self.taken)
    }

    /// Says that a record's place is not needed any more. Any order.
    #[inline]
    pub(crate) fn retire(&mut self, position: Position) {
        if self.retirement.finish(position) {
            self.tell_retired();
        }
    }

    /// When more than half of the ring is taken and not retired, retires it all.
    pub(crate) fn spill(&mut self) -> bool {
        let kept = self.taken - self.retirement.retired;
        if kept <= self.area.data().len() as u64 / 2 {
            return false;
        }
        self.retirement.open.clear();
        self.retirement.retired = self.taken;
        self.tell_retired();
        true
    }

    #[inline]
    fn tell_retired(&self) {
        // [space]: the copies were made before this.
        self.area
            .retired()
            .store(self.retirement.retired, Ordering::Release);
        doorbell::ring(self.area.room(), self.retirement.retired);
    }

    /// Waits until there seems to be a record or somebody called [`Bell::ring`], but not for ever.
    pub(crate) fn wait(&mut self, bell: &Bell, spin: bool) {
        let (taken, area) = (self.taken, &self.area);
        let done = || {
            bell.rung.load(Ordering::Relaxed) || area.produced().load(Ordering::Relaxed) != taken
        };
        if !(spin && self.patience.spin(done) || done()) {
            bell.asleep.store(true, Ordering::Relaxed);
            doorbell::sleep(area.bell(), taken + 1, IDLE_SLICE, done);
            bell.asleep.store(false, Ordering::Relaxed);
        }
        if bell.rung.load(Ordering::Relaxed) {
            // [own bell]: what was done before the bell was rung is seen after this.
            bell.rung.swap(false, Ordering::Acquire);
        }
    }
}

fn opcode_of(first: u64) -> u16 {
    (first >> 32) as u16
}

/// How other threads of the consumer's process wake it. Both words are out of the peer's reach.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    asleep: AtomicBool,
}

impl Bell {
    /// Makes the consumer's wait return, this time or the next.
    pub(crate) fn ring<A: Area>(&self, area: &A) {
        // [own bell]
        if self.rung.swap(true, Ordering::AcqRel) {
            // Whoever rang before and was not heard yet wakes the consumer, who then sees our part too.
            return;
        }
        // [sleep-or-ring]: as in the doorbell, but by our own words.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) {
            doorbell::wake(area.bell());
        }
    }
}
