//! The recording of this program's calls and work as a time line: when OPENMPS_TRACE names a file for it, or when the server asks for
//! it, since somebody wants time lines of the daemon's clients.
//!
//! Threads that call put what they did into one bounded buffer; [`sink`] passes it on, into the file or to the server. Off, an
//! exported function and a record's posting cost one relaxed load each. That is done by
//! a thread of ours, the only one that this library keeps of its own accord, and at the end of the process.
//!
//! It knows streams by their slots alone; `exports` and `stream` call it.

mod sink;
pub(crate) mod state;

use std::any::Any;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use protocol::operations::{ArrayCopy, Copy, Fill, Launch, Request, Space, TraceTake, Write};
use rustix::time::{ClockId, clock_gettime};
use trace::event::Place;
use trace::join::JoinError;
use trace::told::{Posted, PostedWork};
use transport::session::EncodedRequest;

use self::sink::Sink;
pub(crate) use self::state::is_on;
use crate::handle::{HandleKind, Key};
use crate::log::log;
use crate::os::signal_mask;
use crate::session::connection::{Connection, LAST_WORD};
use crate::session::fork_local::ForkLocal;

static RECORDER: ForkLocal<Recorder> = ForkLocal::new();

/// Calls, and work, that are kept until they are written; more than that in one round are dropped, and counted.
const MOST: usize = 1 << 18;

/// Kernels that a thread knows to be known.
const KNOWN_KERNELS: usize = 64;

/// How often what was recorded is written.
const ROUND: Duration = Duration::from_millis(20);

thread_local! {
    /// What joins this call with its work; 0 before it has posted any.
    static CORRELATION: Cell<u64> = const { Cell::new(0) };
    /// The thread's number; 0 before it is asked for.
    static THREAD: Cell<u32> = const { Cell::new(0) };
    /// Kernels whose facts this thread knows to be there, each at its place.
    static KNOWN: [Cell<Option<(u64, u32)>>; KNOWN_KERNELS] =
        const { [const { Cell::new(None) }; KNOWN_KERNELS] };
}

/// A call that is over.
#[derive(Clone, Copy, Debug)]
struct Call {
    name: &'static str,
    tid: u32,
    began_ns: u64,
    ended_ns: u64,
    correlation: u64,
}

/// What is told of a kernel once, since every launch would tell the same.
#[derive(Clone, Debug)]
struct KernelFacts {
    name: String,
    shared_bytes: u32,
    registers: u32,
}

#[derive(Debug, Default)]
struct Buffer {
    calls: Vec<Call>,
    posted: Vec<Posted>,
    dropped: u64,
}

impl Buffer {
    /// Forgets what is in it, and keeps the room for as much.
    fn empty(&mut self) {
        self.calls.clear();
        self.posted.clear();
        self.dropped = 0;
    }
}

/// This process's recording.
#[derive(Debug)]
struct Recorder {
    connection: &'static Connection,
    buffer: Mutex<Buffer>,
    /// By module and number in its image.
    kernels: Mutex<HashMap<(u64, u32), KernelFacts>>,
    /// Held while a round is passed on; nothing while nothing is recorded.
    sink: Mutex<Option<Sink>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Now, on CLOCK_MONOTONIC.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A call begins: when, or 0 if nothing is recorded.
#[inline]
pub(crate) fn begin() -> u64 {
    if is_on() { begin_recorded() } else { 0 }
}

#[cold]
fn begin_recorded() -> u64 {
    if state::begins() {
        begin_for_server();
    }
    CORRELATION.set(0);
    now()
}

/// A call that began then is over.
#[inline]
pub(crate) fn end(name: &'static str, began_ns: u64) {
    if began_ns != 0 {
        end_recorded(name, began_ns);
    }
}

#[cold]
fn end_recorded(name: &'static str, began_ns: u64) {
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    if THREAD.get() == 0 {
        THREAD.set(
            rustix::thread::gettid()
                .as_raw_nonzero()
                .get()
                .unsigned_abs(),
        );
    }
    let call = Call {
        name,
        tid: THREAD.get(),
        began_ns,
        ended_ns: now(),
        correlation: CORRELATION.take(),
    };
    let mut buffer = lock(&recorder.buffer);
    if buffer.calls.len() < MOST {
        buffer.calls.push(call);
    } else {
        buffer.dropped += 1;
    }
}

/// A request was put into a stream of the context with that handle. To be asked for only when [`is_on`].
#[cold]
pub(crate) fn posted<R: Request>(
    slot: u32,
    sequence: u64,
    context: u64,
    request: &R,
    data: &[&[u8]],
) {
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    let bytes = data.iter().map(|part| part.len() as u64).sum();
    if let Some(work) = recorder.work_of(request, bytes) {
        recorder.keep(slot, sequence, context, work);
    }
}

/// A request that was written down before, as nodes of graphs are, was put into a stream. To be asked for only when [`is_on`].
#[cold]
pub(crate) fn posted_written(slot: u32, sequence: u64, context: u64, written: &EncodedRequest) {
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    let bytes = written.data().len() as u64;
    fn read<R: Request>(
        recorder: &Recorder,
        written: &EncodedRequest,
        bytes: u64,
    ) -> Option<PostedWork> {
        recorder.work_of(&written.request::<R>()?, bytes)
    }
    let work = read::<Launch>(recorder, written, bytes)
        .or_else(|| read::<Copy>(recorder, written, bytes))
        .or_else(|| read::<ArrayCopy>(recorder, written, bytes))
        .or_else(|| read::<Write>(recorder, written, bytes))
        .or_else(|| read::<Fill>(recorder, written, bytes));
    recorder.keep(slot, sequence, context, work.unwrap_or(PostedWork::Graph));
}

/// What was just put into a stream there is that many launches of a graph, of which this is the first. To be asked for only when
/// [`is_on`].
#[cold]
pub(crate) fn posted_run(slot: u32, sequence: u64, context: u64, first: &Launch, launches: usize) {
    if let Ok(recorder) = RECORDER.get() {
        let work = PostedWork::Run {
            module: first.module,
            index: first.kernel,
            launches: u32::try_from(launches).unwrap_or(u32::MAX),
        };
        recorder.keep(slot, sequence, context, work);
    }
}

/// What a kernel is, for the launches of it that are recorded, now or later.
#[cold]
pub(crate) fn kernel(module: u64, index: u32, facts: impl FnOnce() -> (String, u32, u32)) {
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    let place = module.wrapping_mul(31).wrapping_add(index.into()) as usize % KNOWN_KERNELS;
    let kernel = Some((module, index));
    if KNOWN.with(|known| known[place].replace(kernel)) == kernel {
        return;
    }
    lock(&recorder.kernels)
        .entry((module, index))
        .or_insert_with(|| {
            let (name, shared_bytes, registers) = facts();
            KernelFacts {
                name,
                shared_bytes,
                registers,
            }
        });
}

fn volume(sizes: [u64; 3]) -> u64 {
    sizes.into_iter().fold(1, u64::saturating_mul)
}

impl Recorder {
    /// What a request is for a time line, if it is anything there.
    fn work_of<R: Request>(&self, request: &R, bytes: u64) -> Option<PostedWork> {
        let request: &dyn Any = request;
        let place = |space: u32, address: u64| self.place(space, address);
        Some(if let Some(launch) = request.downcast_ref::<Launch>() {
            PostedWork::Kernel {
                module: launch.module,
                index: launch.kernel,
                grid: launch.grid,
                block: launch.block,
                shared_bytes: launch.shared,
            }
        } else if let Some(copy) = request.downcast_ref::<Copy>() {
            PostedWork::Copy {
                from: place(copy.from_space, copy.from),
                to: place(copy.to_space, copy.to),
                bytes: volume([copy.width, copy.height, copy.depth]),
            }
        } else if let Some(copy) = request.downcast_ref::<ArrayCopy>() {
            PostedWork::Copy {
                from: place(copy.from_space, copy.from),
                to: place(copy.to_space, copy.to),
                bytes: volume([copy.width, copy.height, copy.depth]),
            }
        } else if let Some(write) = request.downcast_ref::<Write>() {
            PostedWork::Copy {
                from: Place::Pageable,
                to: place(Space::Unified as u32, write.to),
                bytes,
            }
        } else if let Some(fill) = request.downcast_ref::<Fill>() {
            PostedWork::Fill {
                bytes: volume([fill.width, fill.height, fill.element.into()]),
            }
        } else {
            // Launches of runs are told of by who knows what is in them.
            return None;
        })
    }

    fn place(&self, space: u32, address: u64) -> Place {
        match Space::from_number(space) {
            Some(Space::Staging) => Place::Pageable,
            Some(Space::Array) => Place::Array,
            _ if self.connection.is_in_host_window(address) => Place::Pinned,
            _ => Place::Device,
        }
    }

    fn keep(&self, slot: u32, sequence: u64, context: u64, work: PostedWork) {
        if CORRELATION.get() == 0 {
            // A number that JSON's readers hold exactly: 52 bits.
            CORRELATION.set(u64::from(slot) << 40 | sequence & ((1 << 40) - 1));
        }
        let posted = Posted {
            stream: slot,
            sequence,
            context: Key::of(context, HandleKind::Context).map_or(0, Key::index),
            correlation: CORRELATION.get(),
            work,
        };
        let mut buffer = lock(&self.buffer);
        if buffer.posted.len() < MOST {
            buffer.posted.push(posted);
        } else {
            buffer.dropped += 1;
        }
    }

    /// Passes on what there is.
    fn round(&self, sink: &mut Sink, last: bool) -> Result<(), JoinError> {
        // The other of two, which has its room from the round before last.
        let mut taken = std::mem::take(&mut sink.emptied);
        std::mem::swap(&mut taken, &mut *lock(&self.buffer));
        let came = sink.round(self, &taken, last);
        taken.empty();
        sink.emptied = taken;
        came
    }

    /// Begins a thread that passes on what is recorded.
    fn begin(&'static self, sink: Sink) {
        // What is left of another recording is none of this one's.
        drop(std::mem::take(&mut *lock(&self.buffer)));
        *lock(&self.sink) = Some(sink);
        let signals = signal_mask::Blocked::now();
        let made = std::thread::Builder::new()
            .name("openmps trace".into())
            .spawn(move || pass_on_rounds(self));
        drop(signals);
        if made.is_err() {
            log!("recording: no thread can be made: what is recorded is written at the end");
        }
        state::begin();
    }
}

/// Makes ready to record, and begins if OPENMPS_TRACE or the server asks for it. Called once, with the connection of the session
/// that was just made.
pub(crate) fn start(connection: &'static Connection) {
    let recorder: &'static Recorder = Box::leak(Box::new(Recorder {
        connection,
        buffer: Mutex::default(),
        kernels: Mutex::default(),
        sink: Mutex::default(),
    }));
    if RECORDER.publish(recorder).is_err() {
        return;
    }
    let Some(pattern) = daemon_interface::environment::variable("OPENMPS_TRACE") else {
        // From the first call on, where somebody waits for this client to come.
        if connection.link().recording() != 0 {
            state::request_start();
        }
        return;
    };
    match Sink::file(&pattern.to_string_lossy()) {
        Ok(sink) => {
            // From here on the server keeps the times, so that those of the first launch are there.
            drop(connection.call(&TraceTake { reserved: 0 }));
            recorder.begin(sink);
        }
        Err(why) => log!("OPENMPS_TRACE: nothing is recorded: {why}"),
    }
}

/// The server asks for it. No lock is held.
fn begin_for_server() {
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    match recorder.connection.link().recording() {
        0 => state::stop(),
        number => recorder.begin(Sink::server(number)),
    }
}

fn pass_on_rounds(recorder: &'static Recorder) {
    loop {
        std::thread::sleep(ROUND);
        let mut place = lock(&recorder.sink);
        let Some(sink) = place.as_mut() else {
            return;
        };
        if sink.is_over(recorder.connection) {
            *place = None;
            // Who asks next is noticed from here on.
            state::stop();
            return;
        }
        if let Err(error) = recorder.round(sink, false) {
            log!("the recording ends here: {error}");
            *place = None;
            state::stop();
            return;
        }
    }
}

/// The process ends: passes on the rest. It may end in the midst of a call of this very thread, so that no lock is waited
/// for for long.
pub(crate) fn finish() {
    let was_on = is_on();
    state::end();
    if !was_on {
        return;
    }
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    let until = Instant::now() + LAST_WORD;
    loop {
        match recorder.sink.try_lock() {
            Ok(mut place) => {
                if let Some(mut sink) = place.take()
                    && !matches!(recorder.buffer.try_lock(), Err(TryLockError::WouldBlock))
                    && let Err(error) = recorder.round(&mut sink, true)
                {
                    log!("the recording lacks its end: {error}");
                }
                return;
            }
            Err(_) if Instant::now() > until => return,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
