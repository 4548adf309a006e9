//! Where everything lies in the ring's and the status memory. Part of the protocol: a change is a new
//! major version.
//!
//! ```text
//! ring memory (client and server write)          status memory (the server writes)
//!      0  produced                                    0  taken
//!    128  the server's alarm for records            128  retired
//!    256  the clients' alarm for space              256  closed
//!                                                   384  texts: counts what kernels printed
//!   1024  alarms of the reply slots                1024  fault of each context (low half), and its
//!                                                        last refused operation (serial, error)
//!   4096  alarms of the streams                    4096  completion word of each stream
//!  36864  the records, 1 MiB                      36864  time of each event
//! 1085440  gates of the streams: up to where     167936  reply slots, 4 KiB each
//!          the client has released each
//! ```

use crate::memory::Mapping;
use crate::ring::{Area, longest};
use crate::sync::AtomicU64;
use cuda_abi::operations::{CONTEXT_SLOTS, EVENT_SLOTS, STREAM_SLOTS};
use cuda_abi::wire::{HEADER_SLOTS, MAX_FIELD_SLOTS};
use std::sync::Arc;

const PRODUCED: usize = 0;
const BELL: usize = 128;
const ROOM: usize = 256;
const REPLY_ALARMS: usize = 1024;
const STREAM_ALARMS: usize = 4096;
const RECORDS: usize = STREAM_ALARMS + STREAM_SLOTS as usize * 8;
const RECORDS_BYTES: usize = 1 << 20;

const TAKEN: usize = 0;
const RETIRED: usize = 128;
const CLOSED: usize = 256;
const TEXTS: usize = 384;
const FAULTS: usize = 1024;
const COMPLETIONS: usize = 4096;
const EVENTS: usize = COMPLETIONS + STREAM_SLOTS as usize * 8;
pub(super) const REPLIES: usize = EVENTS + EVENT_SLOTS as usize * 8;

const GATES: usize = RECORDS + RECORDS_BYTES;

/// Bytes of the ring's memory.
pub const RING_BYTES: usize = GATES + STREAM_SLOTS as usize * 8;

/// Bytes of the status memory.
pub const STATUS_BYTES: usize = REPLIES + REPLY_SLOTS * REPLY_BYTES;

/// Bytes of the staging memory.
pub const STAGING_BYTES: usize = 32 << 20;

/// The most bytes of data that a record can carry.
pub const RECORD_DATA: usize = (longest(RECORDS_BYTES / 8) - HEADER_SLOTS - MAX_FIELD_SLOTS) * 8;

/// Calls that a client can have waiting at a time.
pub const REPLY_SLOTS: usize = 64;

const REPLY_BYTES: usize = 4096;

/// Words before a reply's data: serial, status and slot count, data bytes, slots.
const REPLY_HEAD: usize = 3 + MAX_FIELD_SLOTS;

/// The most bytes of data that a reply can carry. Longer ones go through staging memory.
pub const REPLY_DATA: usize = REPLY_BYTES - REPLY_HEAD * 8;

const _: () = assert!(REPLY_ALARMS + REPLY_SLOTS * 8 <= STREAM_ALARMS);
const _: () = assert!(FAULTS + CONTEXT_SLOTS as usize * 8 <= COMPLETIONS);
const _: () = assert!(RECORDS == 36864 && GATES == 1_085_440 && REPLIES == 167_936);

/// The part of the ring's memory that the client touches first and at once.
pub(super) const RING_HEAD: usize = RECORDS;

/// The memories that both ends look at, mapped.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) ring: Arc<Mapping>,
    pub(super) status: Arc<Mapping>,
}

impl Area for Shared {
    #[inline]
    fn data(&self) -> &[AtomicU64] {
        self.ring.words(RECORDS, RECORDS_BYTES / 8)
    }
    #[inline]
    fn produced(&self) -> &AtomicU64 {
        self.ring.word(PRODUCED)
    }
    #[inline]
    fn bell(&self) -> &AtomicU64 {
        self.ring.word(BELL)
    }
    #[inline]
    fn room(&self) -> &AtomicU64 {
        self.ring.word(ROOM)
    }
    #[inline]
    fn taken(&self) -> &AtomicU64 {
        self.status.word(TAKEN)
    }
    #[inline]
    fn retired(&self) -> &AtomicU64 {
        self.status.word(RETIRED)
    }
}

impl Shared {
    /// Zero, or why the session is over: a CUresult.
    #[inline]
    pub(super) fn closed(&self) -> &AtomicU64 {
        self.status.word(CLOSED)
    }

    /// Grows whenever there is text to take.
    #[inline]
    pub(super) fn texts(&self) -> &AtomicU64 {
        self.status.word(TEXTS)
    }

    #[inline]
    pub(super) fn reply_alarms(&self) -> &[AtomicU64] {
        self.ring.words(REPLY_ALARMS, REPLY_SLOTS)
    }

    #[inline]
    pub(super) fn stream_alarms(&self) -> &[AtomicU64] {
        self.ring.words(STREAM_ALARMS, STREAM_SLOTS as usize)
    }

    #[inline]
    pub(super) fn gates(&self) -> &[AtomicU64] {
        self.ring.words(GATES, STREAM_SLOTS as usize)
    }

    #[inline]
    pub(super) fn faults(&self) -> &[AtomicU64] {
        self.status.words(FAULTS, CONTEXT_SLOTS as usize)
    }

    #[inline]
    pub(super) fn completions(&self) -> &[AtomicU64] {
        self.status.words(COMPLETIONS, STREAM_SLOTS as usize)
    }

    #[inline]
    pub(super) fn events(&self) -> &[AtomicU64] {
        self.status.words(EVENTS, EVENT_SLOTS as usize)
    }

    /// The head and the data's words of a reply slot.
    #[inline]
    pub(super) fn reply(&self, slot: usize) -> (&[AtomicU64], usize) {
        let at = REPLIES + slot * REPLY_BYTES;
        (self.status.words(at, REPLY_HEAD), at + REPLY_HEAD * 8)
    }
}
