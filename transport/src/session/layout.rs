//! Where everything lies in the ring's and the status memory. Part of the protocol: a change is a new
//! major version.
//!
//! ```text
//! ring memory (client and server write)          status memory (the server writes)
//!      0  produced                                    0  taken
//!    128  the server's waiter word for records      128  retired
//!    256  the clients' waiter word for space        256  closed
//!    384  the server's number, from 2 on if         264  who has the client recorded
//!          another one took over                    272  the server's number if another can take over
//!    512  the processor on which the client         280  whether work is under way of which the
//!          waited last, and 1, if 288 is 1                ring has no record any more
//!                                                   288  what the client's processor is wanted for: 0
//!                                                        nothing, 1 the server's thread, 2 the work
//!                                                   384  output count: of what kernels printed
//!   1024  waiter words of the reply slots           1024  fault of each context (low half), and its
//!                                                        last refused operation (serial, error)
//!                                                   2048  how far each of the first 256 streams has
//!                                                        come by a device's own word
//!   4096  waiter words of the streams               4096  completion word of each stream
//!  36864  the records, 1 MiB                      36864  time of each event
//! 1085440  host barriers of the streams: up     167936  reply slots, 4 KiB each
//!          to where the client released each
//! ```
//!
//! Called by both ends of a session. Must not know what the words mean to CUDA.

use crate::doorbell::Peer;
use crate::memory::Mapping;
use crate::ring::{RingMemory, longest};
use crate::sync::{AtomicU64, Ordering};
use protocol::operations::{CONTEXT_SLOTS, EVENT_SLOTS, STREAM_SLOTS};
use protocol::wire::{HEADER_SLOTS, MAX_FIELD_SLOTS};
use std::sync::Arc;

const PRODUCED: usize = 0;
const CONSUMER_WAITER: usize = 128;
const SPACE_WAITER: usize = 256;
const CALLED: usize = 384;
const PROCESSOR: usize = 512;
const REPLY_WAITERS: usize = 1024;
const STREAM_WAITERS: usize = 4096;
const RECORDS: usize = STREAM_WAITERS + STREAM_SLOTS as usize * 8;
const RECORDS_BYTES: usize = 1 << 20;

const TAKEN: usize = 0;
const RETIRED: usize = 128;
const CLOSED: usize = 256;
/// In the cache line of [`CLOSED`], which the client looks at with each record.
const RECORDING: usize = 264;
/// Beside it: it is read once.
pub(super) const KEPT: usize = 272;
const UNDER_WAY: usize = 280;
/// In the cache line of [`CLOSED`] too: the client looks at it with each wait.
const BESIDE: usize = 288;
/// A value of that word: nothing that the client waits for.
const APART: u64 = 0;
/// Likewise: the thread that takes the records. An older client takes any other value but 0 for this one.
const BESIDE_CLIENT: u64 = 1;
/// Likewise: the client's work, which has something to do for every processor.
const EVERYWHERE: u64 = 2;
/// A flag of that word: the ring has no record any more of some of it.
pub(super) const SPILLED: u64 = 1;
/// Likewise: no kernel of it was begun, nor will be.
pub(super) const NO_KERNEL_BEGUN: u64 = 2;
/// Likewise: nothing of it was.
pub(super) const NOTHING_BEGUN: u64 = 4;
const OUTPUT_COUNT: usize = 384;
const FAULTS: usize = 1024;
const DEVICE_COMPLETIONS: usize = 2048;
const COMPLETIONS: usize = 4096;
const EVENTS: usize = COMPLETIONS + STREAM_SLOTS as usize * 8;
pub(super) const REPLIES: usize = EVENTS + EVENT_SLOTS as usize * 8;

const HOST_BARRIERS: usize = RECORDS + RECORDS_BYTES;

/// Bytes of the ring's memory.
pub const RING_BYTES: usize = HOST_BARRIERS + STREAM_SLOTS as usize * 8;

/// Bytes of the status memory.
pub const STATUS_BYTES: usize = REPLIES + REPLY_SLOTS * REPLY_BYTES;

/// Where in the status memory devices may write.
pub(super) const fn device_completions() -> std::ops::Range<usize> {
    DEVICE_COMPLETIONS..COMPLETIONS
}

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

const _: () = assert!(REPLY_WAITERS + REPLY_SLOTS * 8 <= STREAM_WAITERS);
const _: () = assert!(FAULTS + CONTEXT_SLOTS as usize * 8 <= DEVICE_COMPLETIONS);
const _: () = assert!(RECORDS == 36864 && HOST_BARRIERS == 1_085_440 && REPLIES == 167_936);

/// The part of the ring's memory that the client touches first and at once.
pub(super) const RING_HEAD: usize = RECORDS;

/// The memories that both ends look at, mapped.
#[derive(Clone, Debug)]
pub(super) struct SessionMapping {
    pub(super) ring: Arc<Mapping>,
    pub(super) status: Arc<Mapping>,
}

impl RingMemory for SessionMapping {
    #[inline]
    fn data(&self) -> &[AtomicU64] {
        self.ring.words(RECORDS, RECORDS_BYTES / 8)
    }
    #[inline]
    fn produced(&self) -> &AtomicU64 {
        self.ring.word(PRODUCED)
    }
    #[inline]
    fn consumer_waiter(&self) -> &AtomicU64 {
        self.ring.word(CONSUMER_WAITER)
    }
    #[inline]
    fn space_waiter(&self) -> &AtomicU64 {
        self.ring.word(SPACE_WAITER)
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

impl SessionMapping {
    /// Zero, or why the session is over: a CUresult.
    #[inline]
    pub(super) fn closed(&self) -> &AtomicU64 {
        self.status.word(CLOSED)
    }

    /// Zero, or the number of who has the client recorded.
    #[inline]
    pub(super) fn recording(&self) -> &AtomicU64 {
        self.status.word(RECORDING)
    }

    /// Which server this status is of, from 1, if another one can take the session over; else 0.
    pub(super) fn kept(&self) -> &AtomicU64 {
        self.status.word(KEPT)
    }

    /// What there is to say of the work under way: [`SPILLED`], [`NO_KERNEL_BEGUN`] and [`NOTHING_BEGUN`].
    pub(super) fn under_way(&self) -> &AtomicU64 {
        self.status.word(UNDER_WAY)
    }

    /// Where what a client and its session's thread wait for runs.
    #[inline]
    pub(super) fn peer(&self) -> Peer {
        match self.status.word(BESIDE).load(Ordering::Relaxed) {
            APART => Peer::Apart,
            EVERYWHERE => Peer::Everywhere,
            _ => Peer::Here,
        }
    }

    pub(super) fn set_peer(&self, peer: Peer) {
        let value = match peer {
            Peer::Apart => APART,
            Peer::Here => BESIDE_CLIENT,
            Peer::Everywhere => EVERYWHERE,
        };
        self.status.word(BESIDE).store(value, Ordering::Relaxed);
    }

    /// The number of the processor on which the client's thread was that waited last, and 1; 0 before.
    #[inline]
    pub(super) fn processor(&self) -> &AtomicU64 {
        self.ring.word(PROCESSOR)
    }

    /// The number of the server that calls the client, if it is not the first one.
    pub(super) fn called(&self) -> &AtomicU64 {
        self.ring.word(CALLED)
    }

    /// Grows whenever there is text to take.
    #[inline]
    pub(super) fn output_count(&self) -> &AtomicU64 {
        self.status.word(OUTPUT_COUNT)
    }

    #[inline]
    pub(super) fn reply_waiters(&self) -> &[AtomicU64] {
        self.ring.words(REPLY_WAITERS, REPLY_SLOTS)
    }

    #[inline]
    pub(super) fn stream_waiters(&self) -> &[AtomicU64] {
        self.ring.words(STREAM_WAITERS, STREAM_SLOTS as usize)
    }

    #[inline]
    pub(super) fn host_barriers(&self) -> &[AtomicU64] {
        self.ring.words(HOST_BARRIERS, STREAM_SLOTS as usize)
    }

    #[inline]
    pub(super) fn faults(&self) -> &[AtomicU64] {
        self.status.words(FAULTS, CONTEXT_SLOTS as usize)
    }

    #[inline]
    pub(super) fn completions(&self) -> &[AtomicU64] {
        self.status.words(COMPLETIONS, STREAM_SLOTS as usize)
    }

    /// What devices have said themselves of how far the first streams have come.
    #[inline]
    pub(super) fn device_completions(&self) -> &[AtomicU64] {
        self.status
            .words(DEVICE_COMPLETIONS, device_completions().len() / 8)
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
