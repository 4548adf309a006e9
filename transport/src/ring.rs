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
//! only the copy is looked at. Producers are all of one process and trust each other, as threads do. Called by both
//! ends of a session. Must not know what a record asks for.

mod consumer;
mod producer;

pub(crate) use consumer::{Consumer, Doorbell};
pub(crate) use producer::Producer;

use crate::sync::AtomicU64;
use protocol::wire::{self, Header};

/// Where a ring lies. All words but the data are zero in the beginning.
pub(crate) trait RingMemory: Send + Sync {
    /// The records. Their number is a power of two.
    fn data(&self) -> &[AtomicU64];
    /// Up to where records are complete. Written by producers.
    fn produced(&self) -> &AtomicU64;
    /// The consumer's waiter word.
    fn consumer_waiter(&self) -> &AtomicU64;
    /// Up to where records were copied out. Written by the consumer.
    fn taken(&self) -> &AtomicU64;
    /// Up to where space may be used again. Written by the consumer.
    fn retired(&self) -> &AtomicU64;
    /// The waiter word of producers that wait for space.
    fn space_waiter(&self) -> &AtomicU64;
}

/// The most words that a record may have in a ring of `words` words: a quarter, so that neither
/// padding nor one record fills it.
pub(crate) const fn longest(words: usize) -> usize {
    words / 4
}

/// Keeps what one thread writes often out of the cache line of what others read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(pub(crate) T);

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

    /// A record that came otherwise than through the ring. Its header says how many slots and bytes there are.
    #[must_use]
    pub const fn new(header: Header, slots: Vec<u64>, data: Vec<u8>) -> Self {
        Self {
            header,
            slots,
            data,
        }
    }
}

/// A taken record's place in the ring, for when it is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub(crate) u64);

impl Position {
    /// Words of the ring up to the record's end, since its beginning.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.0
    }
}
