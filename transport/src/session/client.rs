//! The client's end of a session: posting, calling, waiting.
//!
//! Used by any number of the program's threads, through `client`'s session. Knows a request's class and bytes, and
//! nothing of what it does.

use super::SessionMemory;
use super::journal::Journal;
use super::layout::{REPLIES, RING_HEAD, SessionMapping};
use super::replies::{self, Reply, ReplySlots};
use super::staging::Staging;
use super::takeover::Takeovers;
use crate::doorbell::{self, AdaptiveSpinner, Peer};
use crate::memory::{Mapping, MemoryError};
use crate::ring::{Producer, Record, RingMemory};
use crate::socket::Connection;
use crate::sync::{self, AtomicBool, AtomicU64, Ordering};
use cuda_abi::CUresult;
use protocol::control_messages::Welcome;
use protocol::operations::{Object, OperationClass, Request, STREAM_DEPTH, STREAM_SLOTS};
use protocol::wire::{HEADER_SLOTS, Header, MAX_FIELD_SLOTS};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The session is over: the server ended it, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the session with the server is over")
    }
}

impl std::error::Error for Closed {}

/// A request in its wire form, to be posted later or again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedRequest {
    header: Header,
    slots: [u64; MAX_FIELD_SLOTS],
    data: Box<[u8]>,
}

impl EncodedRequest {
    /// Encodes a request that changes no object of the client's, with its data.
    #[must_use]
    pub fn new<R: Request>(request: &R, data: &[&[u8]]) -> Self {
        const { assert!(!R::OPCODE.changes_objects()) };
        let data = data.concat().into_boxed_slice();
        let mut slots = [0; MAX_FIELD_SLOTS];
        request.write(&mut slots[..R::SLOTS]);
        Self {
            header: Header {
                opcode: R::OPCODE as u16,
                version: R::VERSION,
                slots: R::SLOTS as u8,
                // Cannot be cut off: the ring refuses far shorter data.
                data: data.len() as u32,
                sequence: 0,
                channel: 0,
            },
            slots,
            data,
        }
    }

    /// The request, if it is one of these.
    #[must_use]
    pub fn request<R: Request>(&self) -> Option<R> {
        let is = self.header.opcode == R::OPCODE as u16;
        is.then(|| R::read(&self.slots[..R::SLOTS]).ok()).flatten()
    }

    /// Its data.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}

/// How often a thread that waits looks whether there is still a server. Most fuzzed sessions end with the server's hanging up.
const SLICE: Duration = Duration::from_millis(if cfg!(fuzzing) { 2 } else { 100 });

/// The client's end of a session; any number of threads.
pub struct ClientEnd {
    producer: Producer<SessionMapping>,
    slots: ReplySlots,
    staging: Staging,
    connection: Connection,
    dead: AtomicBool,
    /// What of the client's objects is kept for another server, if one can take over.
    journal: Option<Journal>,
    takeovers: Takeovers,
    spinner: AdaptiveSpinner,
    /// How far each stream was when last looked at for its depth. A hint: it is never ahead.
    seen: Box<[AtomicU64]>,
}

impl std::fmt::Debug for ClientEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientEnd")
            .field("closed", &self.closed())
            .finish_non_exhaustive()
    }
}

impl ClientEnd {
    /// Maps the memory of a session and makes this process pay for it. `connection` is the socket
    /// over which the session was made: its end is the session's. Children do not inherit the
    /// mappings; in them nothing of this may be used, not even dropped.
    ///
    /// # Errors
    /// When the process has no room.
    pub fn new(memory: &SessionMemory, connection: Connection) -> Result<Self, MemoryError> {
        let ring = Mapping::map(&memory.ring)?;
        let status = Mapping::map_read_only(&memory.status)?;
        let staging = Mapping::map(&memory.staging)?;
        for mapping in [&ring, &status, &staging] {
            mapping.keep_from_children()?;
        }
        // The rest is touched as it is used: records when they are posted, replies when a slot is
        // taken, staging when it is filled.
        ring.populate_for_writing(0, RING_HEAD);
        status.populate_for_reading(0, REPLIES);
        let mapping = SessionMapping {
            ring: Arc::new(ring),
            status: Arc::new(status),
        };
        let is_kept = mapping.kept().load(Ordering::Acquire) != 0;
        Ok(Self {
            producer: Producer::new(mapping),
            slots: ReplySlots::new(),
            staging: Staging::new(staging),
            connection,
            dead: AtomicBool::new(false),
            journal: is_kept.then(Journal::default),
            takeovers: Takeovers::default(),
            spinner: AdaptiveSpinner::new(),
            seen: (0..STREAM_SLOTS).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn mapping(&self) -> &SessionMapping {
        self.producer.area()
    }

    /// How the server welcomed this client: another one that takes over has to say the same.
    pub fn welcomed(&self, welcome: Welcome) {
        self.takeovers.set_welcome(welcome);
    }

    /// The program has all texts of kernels up to this [`ClientEnd::output_count`].
    pub fn output_shown(&self, count: u64) {
        self.takeovers.set_shown(count);
    }

    /// Whether another server may take this session over, and the client keeps what it needs for that.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.journal.is_some()
    }

    /// As [`ClientEnd::post`], of a request that belongs to no stream and whose data is in staging memory now: there it
    /// does not stay, and so a copy is kept.
    ///
    /// # Errors
    /// When the session is over.
    pub fn post_staged<R: Request>(&self, request: &R, staged: &[u8]) -> Result<(), Closed> {
        let go_on = || self.is_alive();
        self.post_while(0, 0, request, (&[], &[staged]), go_on)
    }

    /// Posts a request. For a request of class stream `channel` is the stream's slot and `sequence`
    /// its place in the stream's order, else both are 0. The parts of `data` travel as one run of
    /// bytes. Waits only while the ring is full.
    ///
    /// Requests of several threads stand in the ring in some order that agrees with each thread's,
    /// and with every other order between threads that they can know of. Places in a stream's order
    /// must be posted in that order: whoever draws them holds a lock of the stream until it is done.
    ///
    /// # Errors
    /// When the session is over.
    ///
    /// # Panics
    /// When there are more than [`RECORD_DATA`](super::RECORD_DATA) bytes of data.
    #[inline]
    pub fn post<R: Request>(
        &self,
        channel: u32,
        sequence: u64,
        request: &R,
        data: &[&[u8]],
    ) -> Result<(), Closed> {
        self.post_while(channel, sequence, request, (data, data), || self.is_alive())
    }

    /// As [`ClientEnd::post`], for who may have interrupted a thread in the midst of
    /// posting, which then never goes on: gives up at `until` or a little later. After that nothing is
    /// posted any more, by anybody.
    ///
    /// # Errors
    /// When the session is over, or the time.
    #[cold]
    pub fn post_until<R: Request>(
        &self,
        channel: u32,
        sequence: u64,
        request: &R,
        data: &[&[u8]],
        until: Instant,
    ) -> Result<(), Closed> {
        self.post_while(channel, sequence, request, (data, data), || {
            Instant::now() < until && self.is_alive()
        })
    }

    /// Posts a request with its data; the second one is what is kept of the data where a copy is.
    #[inline]
    fn post_while<R: Request>(
        &self,
        channel: u32,
        sequence: u64,
        request: &R,
        (data, kept): (&[&[u8]], &[&[u8]]),
        go_on: impl Fn() -> bool,
    ) -> Result<(), Closed> {
        if self.dead.load(Ordering::Relaxed) {
            return Err(Closed);
        }
        let header = Header {
            opcode: R::OPCODE as u16,
            version: R::VERSION,
            slots: R::SLOTS as u8,
            // Cannot be cut off: the ring refuses far shorter data.
            data: data.iter().map(|part| part.len()).sum::<usize>() as u32,
            sequence,
            channel,
        };
        let mut head = [0; HEADER_SLOTS + MAX_FIELD_SLOTS];
        head[..HEADER_SLOTS].copy_from_slice(&header.encode());
        request.write(&mut head[HEADER_SLOTS..HEADER_SLOTS + R::SLOTS]);
        let head = &head[..HEADER_SLOTS + R::SLOTS];
        let posted = match &self.journal {
            Some(journal) if R::OPCODE.changes_objects() => {
                let is_call = R::CLASS == OperationClass::Call;
                self.post_noted(journal, (header, is_call), head, (data, kept), go_on)
            }
            _ => self.producer.post(head, data, go_on),
        };
        if posted { Ok(()) } else { Err(Closed) }
    }

    /// Posts a request that makes or ends an object, and notes it where its place in the ring is taken: so whoever reads
    /// the journal knows of all that stands in the ring.
    #[cold]
    fn post_noted(
        &self,
        journal: &Journal,
        (header, is_call): (Header, bool),
        head: &[u64],
        (data, kept): (&[&[u8]], &[&[u8]]),
        go_on: impl Fn() -> bool,
    ) -> bool {
        let retired = || RingMemory::retired(self.mapping()).load(Ordering::Acquire);
        self.producer.post_noted(head, data, go_on, |reserve| {
            let mut entries = journal.lock();
            let place = reserve()?;
            let record = Record::new(header, head[HEADER_SLOTS..].to_vec(), kept.concat());
            entries.note(place.end, retired(), is_call, record);
            Ok(place)
        })
    }

    /// Posts a request that was encoded earlier, as [`ClientEnd::post`] does.
    ///
    /// # Errors
    /// When the session is over.
    ///
    /// # Panics
    /// When there are more than [`RECORD_DATA`](super::RECORD_DATA) bytes of data.
    #[inline]
    pub fn post_encoded(
        &self,
        channel: u32,
        sequence: u64,
        request: &EncodedRequest,
    ) -> Result<(), Closed> {
        if self.dead.load(Ordering::Relaxed) {
            return Err(Closed);
        }
        let header = Header {
            sequence,
            channel,
            ..request.header
        };
        let slots = usize::from(header.slots);
        let mut head = [0; HEADER_SLOTS + MAX_FIELD_SLOTS];
        head[..HEADER_SLOTS].copy_from_slice(&header.encode());
        head[HEADER_SLOTS..HEADER_SLOTS + slots].copy_from_slice(&request.slots[..slots]);
        let posted = self
            .producer
            .post(&head[..HEADER_SLOTS + slots], &[&request.data], || {
                self.is_alive()
            });
        if posted { Ok(()) } else { Err(Closed) }
    }

    /// Posts a request of class call and waits for its reply. At most
    /// [`REPLY_SLOTS`](super::REPLY_SLOTS) threads do so at a time, others wait for them.
    ///
    /// # Errors
    /// When the session is over, or the server's reply makes no sense.
    ///
    /// # Panics
    /// When there are more than [`RECORD_DATA`](super::RECORD_DATA) bytes of data.
    pub fn call<R: Request>(&self, request: &R, data: &[&[u8]]) -> Result<Reply<R::Reply>, Closed> {
        let slot = self.slots.acquire();
        let number = slot.number as usize;
        // The first look also touches the page, before the server does, so that we pay for it.
        let is_there = || replies::is_there(self.mapping(), number, slot.serial);
        debug_assert!(!is_there(), "serial numbers are given out once");
        self.post(slot.number, slot.serial, request, data)?;
        let waiter = &self.mapping().reply_waiters()[number];
        self.wait_until(waiter, slot.serial, is_there)?;
        if R::OPCODE.changes_objects()
            && let Some(journal) = &self.journal
        {
            let (status, answer) = replies::answer(self.mapping(), number);
            let made = (status == CUresult::SUCCESS).then_some(answer);
            journal.lock().answered(slot.serial, made);
        }
        replies::read::<R>(self.mapping(), number).ok_or(Closed)
    }

    /// What was answered to the call that made an object came through staging memory. It does not stay there, and so a
    /// copy is kept, where another server may take this session over.
    pub fn keep_answer(&self, object: Object, data: &[u8]) {
        if let Some(journal) = &self.journal {
            journal.lock().answered_at_length(object, data);
        }
    }

    /// How far a stream has come by the server's word: all its work up to this place is done, successfully or not.
    ///
    /// # Panics
    /// When there is no such stream slot.
    #[inline]
    #[must_use]
    pub fn completed(&self, stream: u32) -> u64 {
        // [completion]
        self.mapping().completions()[stream as usize].load(Ordering::Acquire)
    }

    /// Whether a stream has reached a place in its order, by the server's word or a device's own. The server may not have seen it yet, and
    /// counts what was posted by what it has seen: [`ClientEnd::wait_for_depth`].
    ///
    /// # Panics
    /// When there is no such stream slot.
    #[inline]
    #[must_use]
    pub fn has_reached(&self, stream: u32, sequence: u64) -> bool {
        let devices = self.mapping().device_completions();
        self.completed(stream) >= sequence
            // What the device has done before it writes this is seen with it.
            || devices
                .get(stream as usize)
                .is_some_and(|word| word.load(Ordering::Acquire) >= sequence)
    }

    /// Waits until a stream has reached a place in its order.
    ///
    /// # Errors
    /// When the session is over.
    ///
    /// # Panics
    /// When there is no such stream slot.
    pub fn wait(&self, stream: u32, sequence: u64) -> Result<(), Closed> {
        self.wait_for(stream, sequence, || self.has_reached(stream, sequence))
    }

    fn wait_for(&self, stream: u32, sequence: u64, done: impl Fn() -> bool) -> Result<(), Closed> {
        let waiter = &self.mapping().stream_waiters()[stream as usize];
        self.wait_until(waiter, sequence, done)
    }

    fn wait_until(
        &self,
        waiter: &AtomicU64,
        target: u64,
        done: impl Fn() -> bool,
    ) -> Result<(), Closed> {
        let is_called = || self.is_called();
        let go_on = || self.is_alive();
        let mapping = self.mapping();
        let peer = || {
            let peer = mapping.peer();
            if peer == Peer::Here {
                let here = sync::processor() as u64 + 1;
                mapping.processor().store(here, Ordering::Relaxed);
            }
            peer
        };
        let (spinner, target) = ((&self.spinner, peer), (waiter, target));
        match doorbell::wait(spinner, target, SLICE, done, is_called, go_on) {
            true => Ok(()),
            false => Err(Closed),
        }
    }

    /// Waits until the stream may have work posted at this place in its order: no more than
    /// `STREAM_DEPTH` are ever posted and unfinished.
    ///
    /// # Errors
    /// When the session is over.
    ///
    /// # Panics
    /// When there is no such stream slot.
    #[inline]
    pub fn wait_for_depth(&self, stream: u32, sequence: u64) -> Result<(), Closed> {
        let before = sequence.saturating_sub(STREAM_DEPTH);
        // The completion word is the server's to write, many times while this side posts: reading it
        // each time would move its cache line to and fro.
        let seen = &self.seen[stream as usize];
        if seen.load(Ordering::Relaxed) >= before {
            return Ok(());
        }
        let done = || self.completed(stream) >= before;
        if !done() {
            self.wait_for(stream, before, done)?;
        }
        seen.store(self.completed(stream), Ordering::Relaxed);
        Ok(())
    }

    /// Says that a stream's host barriers are released up to a place. To be called before the request that says
    /// the same, which the server cannot take while it holds back as much as it may.
    ///
    /// # Panics
    /// When there is no such stream slot.
    pub fn release_host_barrier(&self, stream: u32, until: u64) {
        self.mapping().host_barriers()[stream as usize].fetch_max(until, Ordering::Release);
    }

    /// The time that an event's slot holds, in nanoseconds; 0 before the first.
    ///
    /// # Panics
    /// When there is no such event slot.
    #[must_use]
    pub fn event_time(&self, event: u32) -> u64 {
        self.mapping().events()[event as usize].load(Ordering::Acquire)
    }

    /// The error that a context is dead of, or success. Read it after a completion: what killed the
    /// context is told before the work's end is.
    ///
    /// # Panics
    /// When there is no such context slot.
    #[inline]
    pub fn fault(&self, context: u32) -> CUresult {
        CUresult(self.mapping().faults()[context as usize].load(Ordering::Acquire) as u32)
    }

    /// A number that grows whenever kernels print. Read it after a completion.
    #[inline]
    #[must_use]
    pub fn output_count(&self) -> u64 {
        self.mapping().output_count().load(Ordering::Acquire)
    }

    /// The last operation of a context that was refused without harm to the context: a number that
    /// changes with each one, and in its low 16 bits the error. Read it after a completion.
    ///
    /// # Panics
    /// When there is no such context slot.
    #[inline]
    pub fn refused(&self, context: u32) -> u32 {
        (self.mapping().faults()[context as usize].load(Ordering::Acquire) >> 32) as u32
    }

    /// The memory that larger data passes through.
    #[must_use]
    pub fn staging(&self) -> &Staging {
        &self.staging
    }

    /// Why the server ended the session, if it said so.
    #[must_use]
    pub fn closed(&self) -> Option<CUresult> {
        let code = self.mapping().closed().load(Ordering::Acquire) as u32;
        (code != 0).then_some(CUresult(code))
    }

    /// The number of who has this client recorded, or 0. Cheap, as [`ClientEnd::closed`] is.
    #[inline]
    #[must_use]
    pub fn recording(&self) -> u64 {
        self.mapping().recording().load(Ordering::Relaxed)
    }

    /// Whether another server calls that has taken the session over, which [`ClientEnd::is_alive`] follows. Reads a word that is
    /// written at such times only.
    #[inline]
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.journal.is_some() && self.takeovers.is_called(self.mapping())
    }

    /// Whether there is still a server that serves this session. Asks the kernel.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        if self.dead.load(Ordering::Relaxed) {
            return false;
        }
        if self.closed().is_none() && !self.connection.is_closed() {
            match &self.journal {
                None => return true,
                Some(journal) => {
                    let mapping = self.mapping();
                    if self.takeovers.follow(mapping, &self.connection, journal) {
                        return true;
                    }
                }
            }
        }
        self.dead.store(true, Ordering::Relaxed);
        false
    }

    /// The socket over which the session was made.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }
}
