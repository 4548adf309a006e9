//! The server's end of a session: taking records, and telling the client what happened.
//!
//! The session's thread has the [`Consumer`]; engines' threads have the [`Publisher`]. Believes nothing that the client
//! wrote. Must not know what a record asks for.

use super::layout::{
    NO_KERNEL_BEGUN, NOTHING_BEGUN, REPLY_DATA, REPLY_SLOTS, SPILLED, SessionMapping,
};
use super::takeover::Former;
use super::{SessionMemory, replies};
use crate::doorbell::{self, Peer};
use crate::memory::{Mapping, MemoryError, Sealed};
use crate::ring::{self, Doorbell, Malformed, Position, Record};
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};
use cuda_abi::CUresult;
use protocol::wire::MAX_FIELD_SLOTS;
use std::sync::{Arc, OnceLock};

/// The server's end of a session, before it is taken apart.
#[derive(Debug)]
pub struct ServerEnd {
    publisher: Arc<Publisher>,
}

impl ServerEnd {
    /// Maps the memory of a new session, and seals its status memory so that nobody else can ever
    /// write to it. The client must not have been sent it yet.
    ///
    /// # Errors
    /// When the process has no room.
    pub fn new(memory: &SessionMemory) -> Result<Self, MemoryError> {
        let ring = Arc::new(Mapping::map(&memory.ring)?);
        let status = Arc::new(Mapping::map(&memory.status)?);
        memory.status.seal_future_write()?;
        let publisher = Publisher {
            mapping: SessionMapping { ring, status },
            doorbell: Doorbell::default(),
            status: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
        };
        Ok(Self {
            publisher: Arc::new(publisher),
        })
    }

    /// Says to the client, which was not welcomed yet, that another server can take the session over.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn set_kept(&self, memory: &SessionMemory) -> Result<(), MemoryError> {
        // Set once, as the session begins once.
        let _ = self.publisher.status.set(memory.status.try_clone()?);
        self.publisher.mapping.kept().store(1, Ordering::Release);
        Ok(())
    }

    /// As [`ServerEnd::split`], of a session that goes on where another server left it. It was handed on so often.
    ///
    /// # Errors
    /// When its status cannot be had.
    pub fn take_over(
        self,
        status: &Sealed,
        takeover: u64,
    ) -> Result<(Consumer, Arc<Publisher>, Former), MemoryError> {
        let former = Former::read(&self.publisher.mapping, status, takeover)?;
        let ring =
            ring::Consumer::resumed(self.publisher.mapping.clone(), former.taken, former.retired);
        let consumer = Consumer {
            ring,
            publisher: self.publisher.clone(),
        };
        Ok((consumer, self.publisher, former))
    }

    /// The half that takes records, for one thread, and the half that tells, for all.
    #[must_use]
    pub fn split(self) -> (Consumer, Arc<Publisher>) {
        let ring = ring::Consumer::new(self.publisher.mapping.clone());
        (
            Consumer {
                ring,
                publisher: self.publisher.clone(),
            },
            self.publisher,
        )
    }
}

/// Takes a client's records.
pub struct Consumer {
    ring: ring::Consumer<SessionMapping>,
    publisher: Arc<Publisher>,
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

impl Consumer {
    /// Copies the next record out, if there is one. The copy is the caller's: what the client does to
    /// the ring afterwards does not change it.
    ///
    /// # Errors
    /// When the ring makes no sense: the client is to be disconnected, and nothing more taken.
    #[inline]
    pub fn next_record(&mut self, into: &mut Record) -> Result<Option<Position>, Malformed> {
        let taken = self.ring.next_record(into)?;
        if taken.is_some() && self.publisher.status.get().is_some() {
            self.publisher.stop_here_if_told();
        }
        Ok(taken)
    }

    /// Sleeps until there seems to be a record, or [`Publisher::ring_self`] was called since the last
    /// wait; returns after some seconds in any case. Afterwards the caller looks at everything again.
    pub fn wait(&mut self) {
        self.ring.wait(&self.publisher.doorbell);
    }

    /// Spins, as long as that seems worth it, until there is what [`Consumer::wait`] waits for. Whether that came; if not, it is time
    /// to wait.
    pub fn spin(&self) -> bool {
        self.ring
            .spin(&self.publisher.doorbell, self.publisher.mapping.peer())
    }

    /// As [`Consumer::spin`], for a short while at most, also until `look` says
    /// that there is something else to do. For a session that looks itself how far its work has come.
    pub fn watch(&self, look: impl FnMut() -> bool) -> bool {
        self.ring.watch(
            &self.publisher.doorbell,
            self.publisher.mapping.peer(),
            look,
        )
    }

    /// Says that this thread is to run on the processor on which the client waits, or is not: then neither spins for the other without
    /// offering it the processor, and the client says on which it is.
    pub fn set_beside_client(&mut self, is_beside: bool) {
        self.publisher
            .mapping
            .set_peer(if is_beside { Peer::Here } else { Peer::Apart });
    }

    /// On which processor the client's thread was that waited last, if it has said so. It may be any number.
    #[must_use]
    pub fn client_processor(&self) -> Option<usize> {
        let said = self.publisher.mapping.processor().load(Ordering::Relaxed);
        usize::try_from(said).ok()?.checked_sub(1)
    }

    /// Says that a record's work is done and its place in the ring not needed any more. In any order.
    #[inline]
    pub fn retire(&mut self, position: Position) {
        self.ring.retire(position);
    }

    /// Retires all that was taken if it fills more than half of the ring, so that a client whose one
    /// stream waits can post to others; call it after taking. From then on only the session's own
    /// copies hold these records. Returns whether it did so.
    pub fn spill(&mut self) -> bool {
        if !self.ring.is_to_spill() {
            return false;
        }
        // First: there is no moment at which neither the ring has them nor this is said.
        self.publisher.set_spilled(true);
        self.ring.spill();
        true
    }
}

/// Why a reply was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// The client named a reply slot that is none: it is to be disconnected.
    Channel,
    /// There is more than fits a slot; [`REPLY_DATA`] bytes of data do.
    TooLong,
}

impl std::fmt::Display for NotSent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Channel => f.write_str("call with a reply slot that there is not"),
            Self::TooLong => write!(f, "reply of more than {REPLY_DATA} bytes"),
        }
    }
}

impl std::error::Error for NotSent {}

/// Tells a client what happened; any thread of the server.
pub struct Publisher {
    mapping: SessionMapping,
    doorbell: Doorbell,
    /// The memory of its status, if another server can take the session over.
    status: OnceLock<Sealed>,
    /// Nothing more is taken, as the session is another server's.
    is_stopped: AtomicBool,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl Publisher {
    /// Memory, and which bytes of it, in which a device may say by itself how far streams have come: a word for each of the first
    /// ones, which only grows, like what [`Publisher::complete`] says. The client cannot write it, and nobody here reads it.
    #[must_use]
    pub fn device_completions(&self) -> (Arc<Mapping>, std::ops::Range<usize>) {
        (
            self.mapping.status.clone(),
            super::layout::device_completions(),
        )
    }

    /// Says that a stream has reached a place in its order, and wakes whom that concerns. Threads may
    /// say so at once, and of an earlier place later: the word only grows. A slot that there is not
    /// has no word, and nobody waits for it.
    #[inline]
    pub fn complete(&self, stream: u32, sequence: u64) {
        let (words, waiters) = (self.mapping.completions(), self.mapping.stream_waiters());
        let stream = stream as usize;
        if let (Some(word), Some(waiter)) = (words.get(stream), waiters.get(stream)) {
            // [completion]: what was written for the work is seen by whoever sees its end.
            word.fetch_max(sequence, Ordering::Release);
            doorbell::ring(waiter, sequence);
        }
    }

    /// How far a stream was said to have come; 0 for a slot that there is not.
    #[must_use]
    pub fn completed(&self, stream: u32) -> u64 {
        let word = self.mapping.completions().get(stream as usize);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Says whether work is under way of which the ring has no record any more.
    pub fn set_spilled(&self, is_spilled: bool) {
        self.mapping
            .under_way()
            .store(if is_spilled { SPILLED } else { 0 }, Ordering::Release);
    }

    /// Whether work is under way of which the ring has no record any more.
    #[must_use]
    pub fn is_spilled(&self) -> bool {
        self.mapping.under_way().load(Ordering::Relaxed) & SPILLED != 0
    }

    /// Says that of all work under way no kernel was begun, for the server that goes on with it: none of it will be.
    pub fn set_no_kernel_begun(&self) {
        self.mapping
            .under_way()
            .fetch_or(NO_KERNEL_BEGUN, Ordering::AcqRel);
    }

    /// Says that of all work under way nothing was begun, for the same.
    pub fn set_nothing_begun(&self) {
        self.mapping
            .under_way()
            .fetch_or(NOTHING_BEGUN, Ordering::AcqRel);
    }

    /// Leaves the session to another server, in a process that ends now: no record is taken any more, and what others find in the
    /// status stays what it is, whatever threads of this process say from here on. So what is not taken there was not begun.
    ///
    /// # Errors
    /// When no other server can take it over, or the kernel has no room; then it is not known when the status has come to its end.
    pub fn leave(&self) -> Result<(), MemoryError> {
        self.is_stopped.store(true, Ordering::Relaxed);
        // [leave]: who does not see that here has said what it took before the memory is parted with.
        fence(Ordering::SeqCst);
        let status = self.status.get().ok_or(MemoryError::NotSealed)?;
        self.mapping.status.part_from(status)
    }

    /// Where a record was taken, and nothing done of it yet: goes no further if the session is another server's.
    fn stop_here_if_told(&self) {
        // [leave]
        fence(Ordering::SeqCst);
        while self.is_stopped.load(Ordering::Relaxed) {
            crate::sync::nap();
        }
    }

    /// Says whether the client's work has something to do for every processor, so that neither the session's thread nor the client looks
    /// for its end for longer than some microseconds. Not of a session whose thread runs [beside](Consumer::set_beside_client) its client.
    pub fn set_everywhere(&self, is_everywhere: bool) {
        if is_everywhere != (self.mapping.peer() == Peer::Everywhere) {
            self.mapping.set_peer(if is_everywhere {
                Peer::Everywhere
            } else {
                Peer::Apart
            });
        }
    }

    /// Calls the client, which was welcomed anew, away from its former server.
    pub fn call_over(&self) {
        let number = self.mapping.kept().load(Ordering::Relaxed);
        self.mapping.called().store(number, Ordering::Release);
        self.wake_all();
    }

    /// Wakes all who wait, whatever for.
    fn wake_all(&self) {
        let waiters = self.mapping.stream_waiters().iter();
        for waiter in waiters.chain(self.mapping.reply_waiters()) {
            doorbell::ring(waiter, u64::MAX >> 1);
        }
        doorbell::ring(ring::RingMemory::space_waiter(&self.mapping), u64::MAX >> 1);
    }

    /// Asks the client to tell of its calls, for a number that is not zero, or no longer.
    pub fn record(&self, number: u64) {
        self.mapping.recording().store(number, Ordering::Release);
    }

    /// Says that a stream's work is about to be done: who sleeps until then wakes up, and the session with
    /// them, since they may have more to do then.
    pub fn pre_wake(&self, stream: u32) {
        self.doorbell.pre_wake(&self.mapping);
        if let Some(waiter) = self.mapping.stream_waiters().get(stream as usize) {
            doorbell::pre_wake(waiter);
        }
    }

    /// Up to where the client says that it has released a stream's host barriers; 0 for a slot that there is
    /// not. It may say anything.
    #[must_use]
    pub fn released(&self, stream: u32) -> u64 {
        // [completion]: what the client wrote before it released the barrier is seen by what was behind.
        let word = self.mapping.host_barriers().get(stream as usize);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Notes an event's time in nanoseconds. To be called before the event's completion.
    #[inline]
    pub fn event_time(&self, event: u32, nanoseconds: u64) {
        set(self.mapping.events(), event, nanoseconds);
    }

    /// Says that a context is dead. To be called before the completion of the work that was lost.
    pub fn set_fault(&self, context: u32, code: CUresult) {
        self.change_fault_word(context, |word| {
            word & !u64::from(u32::MAX) | u64::from(code.0)
        });
    }

    /// Says that an operation of a context was refused, which harms nothing but that operation. To be
    /// called before its completion. Of several that the client has not looked at the last counts.
    pub fn set_refused(&self, context: u32, code: CUresult) {
        self.change_fault_word(context, |word| {
            let serial = (word >> 48).wrapping_add(1) & 0xffff;
            serial << 48 | u64::from(code.0 & 0xffff) << 32 | word & u64::from(u32::MAX)
        });
    }

    fn change_fault_word(&self, context: u32, change: impl Fn(u64) -> u64) {
        if let Some(word) = self.mapping.faults().get(context as usize) {
            let mut before = word.load(Ordering::Relaxed);
            while let Err(now) = word.compare_exchange_weak(
                before,
                change(before),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                before = now;
            }
        }
    }

    /// Says that kernels have printed. To be called before the completion of their work.
    pub fn announce_output(&self) {
        // Only the server writes this word; the client may see any value, which is its own affair.
        self.mapping.output_count().fetch_add(1, Ordering::Release);
    }

    /// Answers a call: `channel` and `serial` are those of its header.
    ///
    /// # Errors
    /// When there is no such slot, or it is too small; then nothing was sent.
    pub fn reply(
        &self,
        channel: u32,
        serial: u64,
        status: CUresult,
        slots: &[u64],
        data: &[u8],
    ) -> Result<(), NotSent> {
        let slot = channel as usize;
        if slot >= REPLY_SLOTS {
            return Err(NotSent::Channel);
        }
        if slots.len() > MAX_FIELD_SLOTS || data.len() > REPLY_DATA {
            return Err(NotSent::TooLong);
        }
        replies::write(&self.mapping, slot, serial, status, slots, data);
        doorbell::ring(&self.mapping.reply_waiters()[slot], serial);
        Ok(())
    }

    /// Makes the session's own [`Consumer::wait`] return, this time or the next.
    #[inline]
    pub fn ring_self(&self) {
        self.doorbell.ring(&self.mapping);
    }

    /// Says that the session is over, and why, and wakes all who wait. `code` is not success.
    pub fn close(&self, code: CUresult) {
        self.mapping
            .closed()
            .store(u64::from(code.0), Ordering::Release);
        self.wake_all();
    }
}

fn set(words: &[AtomicU64], slot: u32, value: u64) {
    if let Some(word) = words.get(slot as usize) {
        word.store(value, Ordering::Release);
    }
}
