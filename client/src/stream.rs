//! Streams: their order, and which one a handle means.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use cuda_abi::CUresult;
use cuda_abi::operations::{
    CONNECTIONS, CONTEXT_SLOTS, Launch, Request, STREAM_SLOTS, StreamConnect, StreamCreate,
    StreamDestroy, StreamWait,
};
use cuda_abi::types::{CU_STREAM_NON_BLOCKING, CUstream};
use transport::session::Written;

use crate::context::{self, Current};
use crate::graph::capture::{self, CAPTURED, Capture, PATIENT};
use crate::graph::node::Payload;
use crate::handle::{Key, Kind};
use crate::host::Calls;
use crate::leave::LAST_WORD;
use crate::session::Session;
use crate::slots::Slots;

mod attributes;

pub(crate) use attributes::Attributes;

/// The lowest priority that a stream can have.
pub(crate) const LEAST_PRIORITY: i32 = 0;
/// The highest one; smaller numbers are more urgent.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

/// One stream. Its slot in the table is its number for the server.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Held while a place in the order is taken and its record put into the ring, so that both
    /// happen in the same order. Nobody holds it for long, but for a full ring or stream.
    order: Mutex<()>,
    /// The last place taken. It goes on when the slot gets a new tenant, so that an event that was
    /// recorded in the old one stays true.
    posted: AtomicU64,
    /// The handle of its context.
    context: AtomicU64,
    flags: AtomicU32,
    priority: AtomicI32,
    /// What cuStreamGetId tells.
    id: AtomicU64,
    /// The host functions that stand in it.
    pub calls: Calls,
    /// Bits of [`capture`]: why something put into it is not just sent to the server.
    special: AtomicU32,
    /// The capture that it is in.
    capture: Mutex<Option<Arc<Capture>>>,
    /// What cuStreamSetAttribute set.
    pub attributes: Attributes,
}

/// A stream in hand: nobody else puts anything into it until this is dropped.
#[derive(Debug)]
pub(crate) struct Appender<'a> {
    order: MutexGuard<'a, ()>,
    session: &'static Session,
    slot: u32,
    context: u32,
    stream: &'a Stream,
}

impl<'a> Appender<'a> {
    /// The session.
    pub(crate) fn session(&self) -> &'static Session {
        self.session
    }

    /// The stream's slot.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The slot of the stream's context.
    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    /// The stream.
    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Puts a request at the end of the stream.
    pub(crate) fn post<R: Request>(
        &mut self,
        request: &R,
        data: &[&[u8]],
    ) -> Result<u64, CUresult> {
        let (session, slot) = (self.session, self.slot);
        self.stream
            .append(&mut self.order, session, slot, |sequence| {
                session.post_at(slot, sequence, request, data)
            })
    }

    /// Puts a request at the end of the stream that was written down before.
    pub(crate) fn post_written(&mut self, written: &Written) -> Result<u64, CUresult> {
        let (session, slot) = (self.session, self.slot);
        self.stream
            .append(&mut self.order, session, slot, |sequence| {
                session.post_written_at(slot, sequence, written)
            })
    }
}

impl Stream {
    /// The last place that was taken in this stream.
    pub(crate) fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// The handle of its context.
    pub(crate) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// The flags that it was made with.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Its priority.
    pub(crate) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Changes its priority, for who asks.
    pub(crate) fn set_priority(&self, priority: i32) {
        self.priority.store(priority, Ordering::Relaxed);
    }

    /// Bits of [`capture`].
    #[inline]
    pub(crate) fn special(&self) -> u32 {
        self.special.load(Ordering::Relaxed)
    }

    /// Sets or clears a bit of [`capture`].
    pub(crate) fn set_special(&self, bit: u32, on: bool) {
        match on {
            true => self.special.fetch_or(bit, Ordering::Relaxed),
            false => self.special.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// The capture that it is in.
    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<Arc<Capture>>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number, unlike that of any other stream of the process.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    #[inline]
    fn in_hand(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request at the end of the stream, which is in that slot, and gives its place there.
    #[inline]
    fn post<R: Request>(
        &self,
        session: &Session,
        slot: u32,
        request: &R,
        data: &[&[u8]],
    ) -> Result<u64, CUresult> {
        self.append(&mut self.in_hand(), session, slot, |sequence| {
            session.post_at(slot, sequence, request, data)
        })
    }

    /// Takes the next place of the stream, which is in that slot and in the caller's hand, for what
    /// `send` sends.
    #[inline]
    fn append(
        &self,
        _order: &mut MutexGuard<'_, ()>,
        session: &Session,
        slot: u32,
        send: impl FnOnce(u64) -> Result<(), CUresult>,
    ) -> Result<u64, CUresult> {
        session.check_open()?;
        let sequence = self.posted.load(Ordering::Relaxed) + 1;
        session.wait_for_depth(slot, sequence)?;
        send(sequence)?;
        // Release: whoever learns of this place finds the record in the ring before its own.
        self.posted.store(sequence, Ordering::Release);
        session.streams.unfinished.add(slot);
        Ok(sequence)
    }

    /// Notes that the stream, which is in that slot, has nothing to do behind this place, if nothing was put
    /// there since.
    fn finished(&self, streams: &Streams, slot: u32, until: u64) {
        if let Ok(_order) = self.order.try_lock()
            && self.posted() == until
        {
            streams.unfinished.remove(slot);
        }
    }
}

/// The slots of streams that may have work: a wait for all of a context looks at no others. A slot comes and
/// goes with its stream's order in hand.
#[derive(Debug)]
struct Unfinished([AtomicU64; (STREAM_SLOTS / u64::BITS) as usize]);

impl Unfinished {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; (STREAM_SLOTS / u64::BITS) as usize])
    }

    fn place(&self, slot: u32) -> (&AtomicU64, u64) {
        let word = &self.0[(slot / u64::BITS) as usize];
        (word, 1 << (slot % u64::BITS))
    }

    #[inline]
    fn add(&self, slot: u32) {
        let (word, bit) = self.place(slot);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn remove(&self, slot: u32) {
        let (word, bit) = self.place(slot);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    fn slots(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.0).flat_map(|(number, word)| {
            let mut bits = word.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (bit < u64::BITS).then_some(number * u64::BITS + bit)
            })
        })
    }
}

/// A stream that a call is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Its context.
    pub current: Current,
    pub slot: u32,
    pub stream: &'static Stream,
}

/// All streams of the process.
#[derive(Debug)]
pub(crate) struct Streams {
    table: Slots<Stream>,
    unfinished: Unfinished,
    last_id: AtomicU64,
}

thread_local! {
    /// Set while a per-thread twin of an entry point runs: NULL means the thread's own stream.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    static OWN: RefCell<Own> = const { RefCell::new(Own(Vec::new())) };
}

/// A thread's own streams, by context. They end with the thread.
struct Own(Vec<(u64, Key)>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Ok(session) = crate::session::session() {
            for (_, key) in &self.0 {
                session.streams.end_own(session, *key);
            }
        }
    }
}

/// Runs `call` as an entry point of the per-thread default stream.
pub(crate) fn per_thread<T>(call: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            PER_THREAD.set(false);
        }
    }
    PER_THREAD.set(true);
    let _reset = Reset;
    call()
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            table: Slots::new(CONTEXT_SLOTS, STREAM_SLOTS),
            unfinished: Unfinished::new(),
            last_id: AtomicU64::new(0),
        }
    }

    /// Makes the legacy stream of a context, which exists with it.
    pub(crate) fn make_legacy(&self, slot: u32, context: u64) {
        let id = self.next_id();
        self.table
            .occupy(slot, |stream| fill(stream, context, 0, 0, id));
    }

    fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Makes a stream in the current context.
    pub(crate) fn create(
        &'static self,
        current: &Current,
        flags: u32,
        priority: i32,
    ) -> Result<Key, CUresult> {
        let session = current.session;
        let key = self.create_unconnected(current, flags, priority)?;
        let id = self.get(key).map_or(0, |stream| stream.id());
        let connected = session.post(&StreamConnect {
            stream: key.index(),
            connection: (id % u64::from(*CONNECTIONS_USED)) as u32,
        });
        if connected.is_err() {
            self.table.remove(key);
        }
        connected.map(|()| key)
    }

    /// The same, but it shares no connection with others: its kernels never wait behind theirs.
    pub(crate) fn create_unconnected(
        &'static self,
        current: &Current,
        flags: u32,
        priority: i32,
    ) -> Result<Key, CUresult> {
        let session = current.session;
        let id = self.next_id();
        let key = self
            .table
            .insert(
                |slot, stream| session.reached(slot, stream.posted()),
                |_, stream| fill(stream, current.handle(), flags, priority, id),
            )
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let created = session.post(&StreamCreate {
            stream: key.index(),
            context: current.slot(),
            flags: flags & CU_STREAM_NON_BLOCKING,
            priority,
        });
        if created.is_err() {
            self.table.remove(key);
        }
        created?;
        if let Some(stream) = self.table.get(key) {
            let target = Target {
                current: *current,
                slot: key.index(),
                stream,
            };
            // What all of the context's work waits for, it waits for too.
            for (slot, sequence) in current.context.fences(session) {
                target.wait_for(slot, sequence)?;
            }
        }
        Ok(key)
    }

    /// Ends a stream that was made by [`Streams::create`].
    pub(crate) fn destroy(&self, session: &Session, key: Key) -> Result<(), CUresult> {
        let stream = match key.index() {
            ..CONTEXT_SLOTS => None,
            _ => self.table.remove(key),
        };
        let stream = stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if stream.special() & CAPTURED != 0 {
            session.graphs.captures.stream_ends(session, key, stream);
        }
        let sent = stream.post(session, key.index(), &StreamDestroy { reserved: 0 }, &[]);
        self.table.release(key.index());
        sent.map(drop)
    }

    /// Ends a stream of a thread that ends, unless its context did before. The thread may end with the
    /// process, from a signal's handler that interrupted a call of its own (`leave`): then the stream is
    /// in that call's hand, or another place in the ring is, for ever.
    fn end_own(&self, session: &Session, key: Key) {
        let Some(stream) = self.table.get(key) else {
            return;
        };
        // Nobody but this thread ever has its stream in hand.
        let Ok(mut order) = stream.order.try_lock() else {
            return;
        };
        if stream.special() & CAPTURED != 0 {
            drop(order);
            let _ = self.destroy(session, key);
            return;
        }
        if self.table.remove(key).is_none() {
            return;
        }
        let slot = key.index();
        let sent = stream.append(&mut order, session, slot, |sequence| {
            let until = Instant::now() + LAST_WORD;
            let destroy = StreamDestroy { reserved: 0 };
            let posted = session.link().post_until(slot, sequence, &destroy, until);
            posted.map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)
        });
        // The server has it still if it was not told, and the slot is not to be used again.
        if sent.is_ok() {
            self.table.release(slot);
        }
    }

    /// Ends the streams of a context that is about to end, each by itself: the server ends the context
    /// only when all of the program's work is done, and slots are to be used again before that.
    pub(crate) fn end_of(&self, session: &Session, context: u64) {
        let of_context: Vec<Key> = self.of_context(context).map(|(key, _)| key).collect();
        for key in of_context {
            // One that another thread ended meanwhile is as good; the legacy one goes with the context.
            let _ = self.destroy(session, key);
        }
    }

    /// Waits for all that was put into streams of a context so far, also into those that were destroyed since.
    ///
    /// # Errors
    /// The session's end.
    pub(crate) fn drain(&self, session: &Session, context: u64) -> Result<(), CUresult> {
        for slot in self.unfinished.slots() {
            let stream = self.at(slot).filter(|stream| stream.context() == context);
            if let Some(stream) = stream {
                let until = stream.posted();
                session.wait(slot, until)?;
                stream.finished(self, slot, until);
            }
        }
        session.show_output();
        Ok(())
    }

    /// All streams of a context: its legacy stream, and those that were made.
    pub(crate) fn of_context(&self, context: u64) -> impl Iterator<Item = (Key, &Stream)> {
        let legacy = Key::of(context, Kind::Context).and_then(|key| {
            let legacy = self.table.tenant(key.index())?;
            Some((legacy, self.table.get(legacy)?))
        });
        legacy
            .into_iter()
            .chain(
                self.table
                    .live()
                    .filter(|(key, _)| key.index() >= CONTEXT_SLOTS),
            )
            .filter(move |(_, stream)| stream.context() == context)
    }

    /// The stream in a slot, whoever lives there.
    pub(crate) fn at(&self, slot: u32) -> Option<&Stream> {
        self.table.at(slot)
    }

    /// The stream in a slot, dead or alive: for places that were noted earlier.
    pub(crate) fn get(&self, key: Key) -> Option<&Stream> {
        self.table.get(key)
    }
}

fn fill(stream: &Stream, context: u64, flags: u32, priority: i32, id: u64) {
    stream.context.store(context, Ordering::Relaxed);
    stream.flags.store(flags, Ordering::Relaxed);
    stream.priority.store(priority, Ordering::Relaxed);
    stream.id.store(id, Ordering::Relaxed);
    let special = if *LAUNCHES_BLOCK { PATIENT } else { 0 };
    stream.special.store(special, Ordering::Relaxed);
    *stream.capture() = None;
    stream.attributes.reset();
}

/// How many connections the streams of a context share: CUDA_DEVICE_MAX_CONNECTIONS, or CUDA's 8.
static CONNECTIONS_USED: LazyLock<u32> = LazyLock::new(|| {
    let asked = transport::program::variable("CUDA_DEVICE_MAX_CONNECTIONS");
    let asked = asked.and_then(|text| text.to_str()?.trim().parse().ok());
    asked
        .filter(|count| (1..=CONNECTIONS).contains(count))
        .unwrap_or(8)
});

/// Whether every launch is to wait for its kernel.
static LAUNCHES_BLOCK: LazyLock<bool> = LazyLock::new(|| {
    transport::program::variable("CUDA_LAUNCH_BLOCKING")
        .is_some_and(|value| !value.is_empty() && value != "0")
});

/// The stream that a handle means to the calling thread, whose context is usable.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT without a current context where the handle needs one,
/// CUDA_ERROR_INVALID_HANDLE for a handle that names no live stream, and the context's own error
/// where it died of one.
#[inline(always)]
pub(crate) fn target(handle: CUstream) -> Result<Target, CUresult> {
    match handle.bits() {
        0 if PER_THREAD.get() => own(&context::current()?),
        2 => own(&context::current()?),
        0 | 1 => legacy(&context::current()?),
        bits => {
            let session = crate::session::session()?;
            let found =
                Key::of(bits, Kind::Stream).and_then(|key| Some((key, session.streams.get(key)?)));
            let (key, stream) = found.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
            Ok(Target {
                current: context::usable(session, stream.context())?,
                slot: key.index(),
                stream,
            })
        }
    }
}
#[inline(always)]
fn legacy(current: &Current) -> Result<Target, CUresult> {
    let streams = &current.session.streams;
    let stream = streams
        .table
        .at(current.slot())
        .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    Ok(Target {
        current: *current,
        slot: current.slot(),
        stream,
    })
}

/// The calling thread's own stream in the current context, made at its first use.
#[cold]
fn own(current: &Current) -> Result<Target, CUresult> {
    let session = current.session;
    let context = current.handle();
    let known = OWN
        .try_with(|own| {
            let own = own.borrow();
            own.0
                .iter()
                .find(|(of, _)| *of == context)
                .map(|(_, key)| *key)
        })
        .map_err(|_| CUresult::ERROR_DEINITIALIZED)?;
    let live = known.and_then(|key| Some((key, session.streams.get(key)?)));
    let (key, stream) = match live {
        Some(live) => live,
        None => {
            let key = session.streams.create(current, 0, 0)?;
            OWN.with_borrow_mut(|own| {
                own.0.retain(|(of, _)| *of != context);
                own.0.push((context, key));
            });
            let stream = session.streams.get(key);
            (key, stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?)
        }
    };
    Ok(Target {
        current: *current,
        slot: key.index(),
        stream,
    })
}

impl Target {
    /// Takes the stream in hand, to put several things into it that nothing may come between.
    pub(crate) fn appender(&self) -> Appender<'_> {
        Appender {
            order: self.stream.in_hand(),
            session: self.current.session,
            slot: self.slot,
            context: self.current.slot(),
            stream: self.stream,
        }
    }

    /// The stream's place in the table of streams, unless it ended meanwhile.
    pub(crate) fn key(&self) -> Option<Key> {
        self.current.session.streams.table.tenant(self.slot)
    }

    /// The capture that the stream is in.
    ///
    /// # Errors
    /// As [`capture::standing`].
    #[inline]
    pub(crate) fn standing(&self) -> Result<Option<Arc<Capture>>, CUresult> {
        match self.stream.special() {
            0 => Ok(None),
            _ => capture::standing(self),
        }
    }

    /// Puts a request at the end of the stream, or into the graph that it is captured into.
    ///
    /// Gives its place in the stream, 0 for a captured one.
    pub(crate) fn enqueue<R: Request>(&self, request: &R, data: &[&[u8]]) -> Result<u64, CUresult> {
        self.enqueue_as(request, data, || Payload::Written {
            kind: capture::kind_of(R::OPCODE),
            context: self.stream.context(),
            written: Arc::new(Written::new(request, data)),
        })
    }

    /// As [`Target::enqueue`]; `node` is what it is as a node of a graph.
    #[inline]
    pub(crate) fn enqueue_as<R: Request>(
        &self,
        request: &R,
        data: &[&[u8]],
        node: impl FnOnce() -> Payload,
    ) -> Result<u64, CUresult> {
        if self.stream.special() != 0 {
            return self.enqueue_specially(request, data, node);
        }
        let session = self.current.session;
        self.stream.post(session, self.slot, request, data)
    }

    #[cold]
    #[inline(never)]
    fn enqueue_specially<R: Request>(
        &self,
        request: &R,
        data: &[&[u8]],
        node: impl FnOnce() -> Payload,
    ) -> Result<u64, CUresult> {
        if let Some(capture) = self.standing()? {
            capture.add(self, node())?;
            return Ok(0);
        }
        let session = self.current.session;
        let sequence = self.stream.post(session, self.slot, request, data)?;
        if self.stream.special() & PATIENT != 0 && R::OPCODE == Launch::OPCODE {
            self.wait(sequence)?;
        }
        Ok(sequence)
    }

    /// Makes the stream's later work wait until another stream has come to a place.
    pub(crate) fn wait_for(&self, slot: u32, sequence: u64) -> Result<(), CUresult> {
        let session = self.current.session;
        if slot == self.slot || session.reached(slot, sequence) {
            return Ok(()); // Its own past, or past altogether.
        }
        session.pools.note_wait(self.slot, slot, sequence);
        let wait = StreamWait {
            on: slot,
            until: sequence,
        };
        self.enqueue(&wait, &[]).map(drop)
    }

    /// Waits for a place in this stream, and says what became of its context.
    pub(crate) fn wait(&self, sequence: u64) -> Result<(), CUresult> {
        capture::refuse_captured(self)?;
        let session = self.current.session;
        session.wait(self.slot, sequence)?;
        session.outcome(self.current.slot())
    }
}
