//! Streams: their order, and which one a handle means.
//!
//! Owns each stream's order: a place in it is taken and its record put into the ring under one lock. All that
//! posts work comes through [`StreamTarget`]. What work does it does not know; that a stream is captured it learns
//! by one relaxed load.

pub(crate) mod attribute_values;
mod attributes;
pub(crate) mod capture;
pub(crate) mod cross_stream_waits;
pub(crate) mod event;
pub(crate) mod host_function;
mod table;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUlaunchAttributeID, CUlaunchAttributeValue, CUstream};
use protocol::operations::{Launch, Request, StreamWait};
use transport::session::EncodedRequest;

use crate::context::{self, Current};
use crate::handle::{HandleKind, Key};
use crate::recorder;
use crate::session::connection::{Connection, Device};
use capture::{BESIDE, CAPTURED, Capture, LAUNCH_BLOCKING, Operation};
use host_function::Calls;

pub(crate) use attributes::{Attributes, GREATEST_PRIORITY, LEAST_PRIORITY};
pub(crate) use table::{Streams, may_be_unsafe, streams};

/// One stream. Its slot in the table is its number for the server.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Held while a place in the order is taken and its record put into the ring, so that both
    /// happen in the same order. Nobody holds it for long, but for a full ring or stream.
    order: Mutex<()>,
    /// The last place taken. It goes on when the slot gets a new occupant, so that an event that was
    /// recorded in the old one stays true.
    posted: AtomicU64,
    /// The handle of its context.
    context: AtomicU64,
    flags: AtomicU32,
    priority: AtomicI32,
    /// What cuStreamGetId returns.
    id: AtomicU64,
    /// The host functions that stand in it.
    pub calls: Calls,
    /// Bits of [`capture`]: why something put into it is not just sent to the server.
    mode_bits: AtomicU32,
    capture: Mutex<Option<Arc<dyn Capture>>>,
    /// What cuStreamSetAttribute set.
    attributes: Attributes,
}

/// The right to put something into a stream: nobody else does until this is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard<'a> {
    order: MutexGuard<'a, ()>,
    streams: &'static Streams,
    slot: u32,
    context: u32,
    stream: &'a Stream,
}

impl<'a> StreamGuard<'a> {
    /// All streams.
    pub(crate) fn streams(&self) -> &'static Streams {
        self.streams
    }

    /// The connection to the server.
    pub(crate) fn connection(&self) -> &'static Connection {
        self.streams.connection
    }

    /// The stream's slot.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The slot of the stream's context.
    pub(crate) fn context(&self) -> u32 {
        self.context
    }

    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Puts a request at the end of the stream.
    pub(crate) fn post<R: Request>(
        &mut self,
        request: &R,
        data: &[&[u8]],
    ) -> Result<u64, CUresult> {
        let (streams, slot) = (self.streams, self.slot);
        self.stream
            .append(&mut self.order, streams, slot, |sequence| {
                streams.connection.post_at(slot, sequence, request, data)?;
                if recorder::is_on() {
                    let context = self.stream.context();
                    recorder::posted(slot, sequence, context, request, data);
                }
                Ok(())
            })
    }

    /// Puts a request at the end of the stream that was written down before.
    pub(crate) fn post_encoded(&mut self, written: &EncodedRequest) -> Result<u64, CUresult> {
        let (streams, slot) = (self.streams, self.slot);
        self.stream
            .append(&mut self.order, streams, slot, |sequence| {
                streams
                    .connection
                    .post_encoded_at(slot, sequence, written)?;
                if recorder::is_on() {
                    let context = self.stream.context();
                    recorder::posted_written(slot, sequence, context, written);
                }
                Ok(())
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

    pub(crate) fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Takes priority and attributes of another stream.
    pub(crate) fn copy_attributes(&self, from: &Self) {
        self.priority.store(from.priority(), Ordering::Relaxed);
        self.attributes.copy(&from.attributes);
    }

    /// The value of one of its attributes.
    ///
    /// # Errors
    /// As [`Attributes::get`]'s.
    pub(crate) fn attribute(
        &self,
        attribute: CUlaunchAttributeID,
    ) -> Result<CUlaunchAttributeValue, CUresult> {
        self.attributes.get(&self.priority, attribute)
    }

    /// Sets one of its attributes.
    ///
    /// # Errors
    /// As [`Attributes::set`]'s.
    pub(crate) fn set_attribute(
        &self,
        device: &Device,
        attribute: CUlaunchAttributeID,
        value: &CUlaunchAttributeValue,
    ) -> Result<(), CUresult> {
        self.attributes
            .set(&self.priority, device, attribute, value)
    }

    /// Bits of [`capture`].
    #[inline]
    pub(crate) fn mode_bits(&self) -> u32 {
        self.mode_bits.load(Ordering::Relaxed)
    }

    /// Sets or clears a bit of [`capture`].
    pub(crate) fn set_mode_bit(&self, bit: u32, on: bool) {
        match on {
            true => self.mode_bits.fetch_or(bit, Ordering::Relaxed),
            false => self.mode_bits.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<Arc<dyn Capture>>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number, unlike that of any other stream of the process.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    #[inline]
    fn order_lock(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request at the end of the stream, which is in that slot, and gives its place there.
    #[inline]
    fn post<R: Request>(
        &self,
        streams: &Streams,
        slot: u32,
        request: &R,
        data: &[&[u8]],
    ) -> Result<u64, CUresult> {
        self.append(&mut self.order_lock(), streams, slot, |sequence| {
            streams.connection.post_at(slot, sequence, request, data)?;
            if recorder::is_on() {
                recorder::posted(slot, sequence, self.context(), request, data);
            }
            Ok(())
        })
    }

    /// Takes the next place of the stream, which is in that slot and whose order the caller holds, for what
    /// `send` sends.
    #[inline]
    fn append(
        &self,
        _order: &mut MutexGuard<'_, ()>,
        streams: &Streams,
        slot: u32,
        send: impl FnOnce(u64) -> Result<(), CUresult>,
    ) -> Result<u64, CUresult> {
        streams.connection.check_open()?;
        let sequence = self.posted.load(Ordering::Relaxed) + 1;
        streams.connection.wait_for_depth(slot, sequence)?;
        send(sequence)?;
        // Release: whoever learns of this place finds the record in the ring before its own.
        self.posted.store(sequence, Ordering::Release);
        streams.unfinished.add(slot);
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

/// A stream that a call is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamTarget {
    pub streams: &'static Streams,
    /// Its context.
    pub current: Current,
    pub slot: u32,
    pub stream: &'static Stream,
}

thread_local! {
    /// Set while a per-thread twin of an entry point runs: NULL means the thread's own stream.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    static OWN: RefCell<ThreadStreams> = const { RefCell::new(ThreadStreams(Vec::new())) };
}

/// A thread's own streams, by context. They end with the thread.
struct ThreadStreams(Vec<(u64, Key)>);

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        if let Ok(streams) = streams() {
            for (_, key) in &self.0 {
                streams.end_of_thread(*key);
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

/// The stream that a handle means to the calling thread, whose context is usable.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT without a current context where the handle needs one,
/// CUDA_ERROR_INVALID_HANDLE for a handle that names no live stream, and the context's own error
/// where it died of one.
#[inline(always)]
pub(crate) fn target(handle: CUstream) -> Result<StreamTarget, CUresult> {
    match handle.bits() {
        0 if PER_THREAD.get() => own(&context::current()?),
        2 => own(&context::current()?),
        0 | 1 => legacy(&context::current()?),
        bits => {
            let streams = streams()?;
            let found =
                Key::of(bits, HandleKind::Stream).and_then(|key| Some((key, streams.get(key)?)));
            let (key, stream) = found.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
            Ok(StreamTarget {
                streams,
                current: context::usable(streams.contexts, stream.context())?,
                slot: key.index(),
                stream,
            })
        }
    }
}
#[inline(always)]
fn legacy(current: &Current) -> Result<StreamTarget, CUresult> {
    let streams = streams()?;
    let stream = streams
        .table
        .at(current.slot())
        .ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    Ok(StreamTarget {
        streams,
        current: *current,
        slot: current.slot(),
        stream,
    })
}

/// The calling thread's own stream in the current context, made at its first use.
#[cold]
fn own(current: &Current) -> Result<StreamTarget, CUresult> {
    let streams = streams()?;
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
    let live = known.and_then(|key| Some((key, streams.get(key)?)));
    let (key, stream) = match live {
        Some(live) => live,
        None => {
            let key = streams.create(current, 0, 0)?;
            OWN.with_borrow_mut(|own| {
                own.0.retain(|(of, _)| *of != context);
                own.0.push((context, key));
            });
            let stream = streams.get(key);
            (key, stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?)
        }
    };
    Ok(StreamTarget {
        streams,
        current: *current,
        slot: key.index(),
        stream,
    })
}

impl StreamTarget {
    /// Locks the stream, to put several things into it that nothing may come between.
    pub(crate) fn guard(&self) -> StreamGuard<'_> {
        StreamGuard {
            order: self.stream.order_lock(),
            streams: self.streams,
            slot: self.slot,
            context: self.current.slot(),
            stream: self.stream,
        }
    }

    /// The stream's place in the table of streams, unless it ended meanwhile.
    pub(crate) fn key(&self) -> Option<Key> {
        self.streams.table.current_key(self.slot)
    }

    /// The capture that the stream is in.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for a legacy stream beside a captured one, whose capture
    /// breaks.
    #[inline]
    pub(crate) fn current_capture(&self) -> Result<Option<Arc<dyn Capture>>, CUresult> {
        match self.stream.mode_bits() {
            0 => Ok(None),
            mode_bits => self.standing_now(mode_bits),
        }
    }

    #[cold]
    #[inline(never)]
    fn standing_now(&self, mode_bits: u32) -> Result<Option<Arc<dyn Capture>>, CUresult> {
        if mode_bits & BESIDE != 0
            && let Some(captures) = self.streams.captures()
        {
            captures.break_beside(self.current.slot())?;
        }
        match mode_bits & CAPTURED {
            0 => Ok(None),
            _ => Ok(self.stream.capture().clone()),
        }
    }

    /// Refuses something that cannot be captured.
    ///
    /// # Errors
    /// As [`StreamTarget::current_capture`]'s, and CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a captured stream, whose
    /// capture breaks.
    pub(crate) fn refuse_captured(&self) -> Result<(), CUresult> {
        if self.stream.mode_bits() & (CAPTURED | BESIDE) == 0 {
            return Ok(());
        }
        match self.current_capture()? {
            Some(capture) => {
                capture.invalidate();
                Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses to ask or to wait for a stream that is captured, or while captures forbid it.
    ///
    /// # Errors
    /// As [`StreamTarget::refuse_captured`]'s and [`may_be_unsafe`]'s.
    #[inline]
    pub(crate) fn check_query(&self) -> Result<(), CUresult> {
        self.refuse_captured()?;
        may_be_unsafe()
    }

    /// Puts a request at the end of the stream, or into the graph that it is captured into.
    ///
    /// Gives its place in the stream, 0 for a captured one.
    pub(crate) fn enqueue<R: Request>(&self, request: &R, data: &[&[u8]]) -> Result<u64, CUresult> {
        self.enqueue_as(request, data, || Operation::Encoded {
            opcode: R::OPCODE,
            context: self.stream.context(),
            written: Arc::new(EncodedRequest::new(request, data)),
        })
    }

    /// As [`StreamTarget::enqueue`]; `captured` is what a capture gets.
    #[inline]
    pub(crate) fn enqueue_as<R: Request>(
        &self,
        request: &R,
        data: &[&[u8]],
        captured: impl FnOnce() -> Operation,
    ) -> Result<u64, CUresult> {
        if self.stream.mode_bits() != 0 {
            return self.enqueue_specially(request, data, captured);
        }
        self.stream.post(self.streams, self.slot, request, data)
    }

    #[cold]
    #[inline(never)]
    fn enqueue_specially<R: Request>(
        &self,
        request: &R,
        data: &[&[u8]],
        captured: impl FnOnce() -> Operation,
    ) -> Result<u64, CUresult> {
        if let Some(capture) = self.current_capture()? {
            capture.add(self.slot, captured())?;
            return Ok(0);
        }
        let sequence = self.stream.post(self.streams, self.slot, request, data)?;
        if self.stream.mode_bits() & LAUNCH_BLOCKING != 0 && R::OPCODE == Launch::OPCODE {
            self.wait(sequence)?;
        }
        Ok(sequence)
    }

    /// Makes the stream's later work wait until another stream has reached a place.
    pub(crate) fn wait_for(&self, slot: u32, sequence: u64) -> Result<(), CUresult> {
        if slot == self.slot || self.streams.connection.reached(slot, sequence) {
            return Ok(()); // Its own past, or past altogether.
        }
        self.streams.waits.note(self.slot, slot, sequence);
        let wait = StreamWait {
            on: slot,
            until: sequence,
        };
        self.enqueue(&wait, &[]).map(drop)
    }

    /// Waits for a place in this stream, and says what became of its context.
    pub(crate) fn wait(&self, sequence: u64) -> Result<(), CUresult> {
        self.refuse_captured()?;
        self.streams.connection.wait(self.slot, sequence)?;
        self.current.contexts.outcome(self.current.slot())
    }
}
