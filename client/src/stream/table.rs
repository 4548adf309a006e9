//! All streams of the process: making and ending them, and which of them may have work.
//!
//! Owns the table, whose slots are the streams' numbers for the server. `api::stream`, contexts that begin
//! and end, and threads that end call it. What is put into a stream it does not see.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::Instant;

use cuda_abi::CUresult;
use cuda_abi::types::CU_STREAM_NON_BLOCKING;
use protocol::operations::{
    CONNECTIONS, CONTEXT_SLOTS, STREAM_SLOTS, StreamConnect, StreamCreate, StreamDestroy,
};

use super::capture::{CAPTURED, Captures, LAUNCH_BLOCKING};
use super::cross_stream_waits::CrossStreamWaits;
use super::host_function::Callers;
use super::{Stream, StreamTarget};
use crate::context::{Contexts, Current};
use crate::handle::object_table::Slots;
use crate::handle::{HandleKind, Key};
use crate::session::connection::{Connection, LAST_WORD};
use crate::session::fork_local::ForkLocal;

/// All streams of the process.
#[derive(Debug)]
pub(crate) struct Streams {
    pub connection: &'static Connection,
    pub contexts: &'static Contexts,
    /// The threads that call host functions.
    pub(super) callers: Callers,
    pub waits: CrossStreamWaits,
    captures: OnceLock<&'static dyn Captures>,
    /// How many captures are under way, for those who need to know no more.
    capturing: AtomicU32,
    pub(super) table: Slots<Stream>,
    pub(super) unfinished: Unfinished,
    last_id: AtomicU64,
}

static STREAMS: ForkLocal<Streams> = ForkLocal::new();

/// The streams of this process.
///
/// # Errors
/// As [`ForkLocal::get`]'s.
#[inline(always)]
pub(crate) fn streams() -> Result<&'static Streams, CUresult> {
    STREAMS.get()
}

/// Refuses a call that may be unsafe while captures are under way whose modes forbid it to this
/// thread, and breaks them.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
#[inline]
pub(crate) fn may_be_unsafe() -> Result<(), CUresult> {
    match streams() {
        Ok(streams) if streams.any_capture() => streams.forbid_unsafe(),
        _ => Ok(()),
    }
}

/// The slots of streams that may have work: a wait for all of a context looks at no others. A slot comes and
/// goes with its stream's order held.
#[derive(Debug)]
pub(super) struct Unfinished([AtomicU64; (STREAM_SLOTS / u64::BITS) as usize]);

impl Unfinished {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; (STREAM_SLOTS / u64::BITS) as usize])
    }

    fn place(&self, slot: u32) -> (&AtomicU64, u64) {
        let word = &self.0[(slot / u64::BITS) as usize];
        (word, 1 << (slot % u64::BITS))
    }

    #[inline]
    pub(super) fn add(&self, slot: u32) {
        let (word, bit) = self.place(slot);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub(super) fn remove(&self, slot: u32) {
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

impl Streams {
    pub(crate) fn new(contexts: &'static Contexts) -> Self {
        Self {
            connection: contexts.connection,
            contexts,
            callers: Callers::default(),
            waits: CrossStreamWaits::default(),
            captures: OnceLock::new(),
            capturing: AtomicU32::new(0),
            table: Slots::new(CONTEXT_SLOTS, STREAM_SLOTS),
            unfinished: Unfinished::new(),
            last_id: AtomicU64::new(0),
        }
    }

    /// Makes them the process's, with what captures them.
    ///
    /// # Errors
    /// As [`ForkLocal::publish`]'s.
    pub(crate) fn publish(&'static self, captures: &'static dyn Captures) -> Result<(), CUresult> {
        let _ = self.captures.set(captures);
        STREAMS.publish(self)
    }

    /// Takes them out of reach, because the process ends.
    pub(crate) fn withdraw() {
        STREAMS.withdraw();
    }

    /// What captures streams.
    pub(super) fn captures(&self) -> Option<&'static dyn Captures> {
        self.captures.get().copied()
    }

    /// Notes that a capture begins, or ends.
    pub(crate) fn count_capture(&self, begins: bool) {
        match begins {
            true => self.capturing.fetch_add(1, Ordering::Relaxed),
            false => self.capturing.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether any capture is under way.
    #[inline]
    pub(crate) fn any_capture(&self) -> bool {
        self.capturing.load(Ordering::Relaxed) != 0
    }

    #[cold]
    fn forbid_unsafe(&self) -> Result<(), CUresult> {
        match self.captures() {
            Some(captures) => captures.forbid_unsafe(),
            None => Ok(()),
        }
    }

    /// A stream as the target of a call.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if it has ended.
    pub(crate) fn target(
        &'static self,
        current: &Current,
        key: Key,
    ) -> Result<StreamTarget, CUresult> {
        let stream = self.get(key).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        Ok(StreamTarget {
            streams: self,
            current: *current,
            slot: key.index(),
            stream,
        })
    }

    /// A stream of a context's own, for events of all of its work.
    ///
    /// # Errors
    /// As [`Streams::create`]'s.
    pub(crate) fn all_work_stream(
        &'static self,
        current: &Current,
    ) -> Result<StreamTarget, CUresult> {
        let mut known = current.context.all_work_stream();
        let key = match known.filter(|key| self.get(*key).is_some()) {
            Some(live) => live,
            None => {
                let key = self.create(current, CU_STREAM_NON_BLOCKING, 0)?;
                *known = Some(key);
                key
            }
        };
        self.target(current, key)
            .map_err(|_| CUresult::ERROR_INVALID_CONTEXT)
    }

    /// Makes the legacy stream of a context, which exists with it.
    pub(crate) fn make_legacy(&self, slot: u32, context: u64) {
        let id = self.next_id();
        self.table
            .insert_at(slot, |stream| fill(stream, context, 0, 0, id));
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
        let key = self.create_unconnected(current, flags, priority)?;
        let id = self.get(key).map_or(0, |stream| stream.id());
        let connected = self.connection.post(&StreamConnect {
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
        let connection = self.connection;
        let id = self.next_id();
        let key = self
            .table
            .insert(
                |slot, stream| connection.reached(slot, stream.posted()),
                |_, stream| fill(stream, current.handle(), flags, priority, id),
            )
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let created = connection.post(&StreamCreate {
            stream: key.index(),
            context: current.slot(),
            flags: flags & CU_STREAM_NON_BLOCKING,
            priority,
        });
        if created.is_err() {
            self.table.remove(key);
        }
        created?;
        if let Ok(target) = self.target(current, key) {
            // What all of the context's work waits for, it waits for too.
            for (slot, sequence) in current.context.fences(connection) {
                target.wait_for(slot, sequence)?;
            }
        }
        Ok(key)
    }

    /// Ends a stream that was made by [`Streams::create`].
    pub(crate) fn destroy(&self, key: Key) -> Result<(), CUresult> {
        let stream = match key.index() {
            ..CONTEXT_SLOTS => None,
            _ => self.table.remove(key),
        };
        let stream = stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        if stream.mode_bits() & CAPTURED != 0
            && let Some(captures) = self.captures()
        {
            captures.stream_ends(key);
        }
        let sent = stream.post(self, key.index(), &StreamDestroy { reserved: 0 }, &[]);
        self.table.release(key.index());
        sent.map(drop)
    }

    /// Ends a stream of a thread that ends, unless its context did before. The thread may end with the
    /// process, from a signal's handler that interrupted a call of its own (`session::exit_hook`): then that call holds
    /// the stream's order, or another place in the ring is, for ever.
    pub(super) fn end_of_thread(&self, key: Key) {
        let Some(stream) = self.table.get(key) else {
            return;
        };
        // Nobody but this thread ever holds the order of its stream.
        let Ok(mut order) = stream.order.try_lock() else {
            return;
        };
        if stream.mode_bits() & CAPTURED != 0 {
            drop(order);
            let _ = self.destroy(key);
            return;
        }
        if self.table.remove(key).is_none() {
            return;
        }
        let slot = key.index();
        let sent = stream.append(&mut order, self, slot, |sequence| {
            let until = Instant::now() + LAST_WORD;
            let destroy = StreamDestroy { reserved: 0 };
            let posted = self
                .connection
                .link()
                .post_until(slot, sequence, &destroy, &[], until);
            posted.map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)
        });
        // The server has it still if it was not told, and the slot is not to be used again.
        if sent.is_ok() {
            self.table.release(slot);
        }
    }

    /// Ends the streams of a context that is about to end, each by itself: the server ends the context
    /// only when all of the program's work is done, and slots are to be used again before that.
    pub(crate) fn end_of_context(&self, context: u64) {
        let of_context: Vec<Key> = self.of_context(context).map(|(key, _)| key).collect();
        for key in of_context {
            // One that another thread ended meanwhile is as good; the legacy one goes with the context.
            let _ = self.destroy(key);
        }
    }

    /// Waits for all that was put into streams of a context so far, also into those that were destroyed since.
    ///
    /// # Errors
    /// The session's end.
    pub(crate) fn drain(&self, context: u64) -> Result<(), CUresult> {
        for slot in self.unfinished.slots() {
            let stream = self.at(slot).filter(|stream| stream.context() == context);
            if let Some(stream) = stream {
                let until = stream.posted();
                self.connection.wait(slot, until)?;
                stream.finished(self, slot, until);
            }
        }
        self.connection.print_kernel_output();
        Ok(())
    }

    /// All streams of a context: its legacy stream, and those that were made.
    pub(crate) fn of_context(&self, context: u64) -> impl Iterator<Item = (Key, &Stream)> {
        let legacy = Key::of(context, HandleKind::Context).and_then(|key| {
            let legacy = self.table.current_key(key.index())?;
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
    let mode_bits = if *LAUNCHES_BLOCK { LAUNCH_BLOCKING } else { 0 };
    stream.mode_bits.store(mode_bits, Ordering::Relaxed);
    *stream.capture() = None;
    stream.attributes.reset();
}

/// How many connections the streams of a context share: CUDA_DEVICE_MAX_CONNECTIONS, or CUDA's 8.
static CONNECTIONS_USED: LazyLock<u32> = LazyLock::new(|| {
    let asked = daemon_interface::environment::variable("CUDA_DEVICE_MAX_CONNECTIONS");
    let asked = asked.and_then(|text| text.to_str()?.trim().parse().ok());
    asked
        .filter(|count| (1..=CONNECTIONS).contains(count))
        .unwrap_or(8)
});

/// Whether every launch is to wait for its kernel.
static LAUNCHES_BLOCK: LazyLock<bool> = LazyLock::new(|| {
    daemon_interface::environment::variable("CUDA_LAUNCH_BLOCKING")
        .is_some_and(|value| !value.is_empty() && value != "0")
});
