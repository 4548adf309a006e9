//! The recording of this program's calls and work as a time line: when OPENMPS_TRACE names a file for it, or when the server asks for
//! it, since somebody wants time lines of the daemon's clients.
//!
//! Each thread that calls writes what it did into a ring of its own, without a lock and without a name; [`sink`] passes it on, into the
//! file or to the server. Off, an exported function and a record's posting cost one relaxed load each. That is done by
//! a thread of ours, the only one that this library keeps of its own accord, and at the end of the process.
//!
//! It knows streams by their slots alone; `exports` and `stream` call it.

mod ring;
mod sink;
pub(crate) mod state;
mod thread;
mod ticks;

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_abi::functions::Function;
use protocol::operations::{ArrayCopy, Copy, Fill, Launch, Request, Space, TraceTake, Write};
use trace::event::Place;
use trace::told::PostedWork;
use transport::session::EncodedRequest;

use self::ring::Ring;
use self::sink::Sink;
pub(crate) use self::state::is_on;
use crate::handle::{HandleKind, Key};
use crate::log::log;
use crate::os::signal_mask;
use crate::session::connection::Connection;
use crate::session::fork_local::ForkLocal;

static RECORDER: ForkLocal<Recorder> = ForkLocal::new();

/// For how long a process that ends waits for what its recording's thread is writing: that thread has the lowest priority, and the
/// processors may be busy.
const LAST_ROUND: Duration = Duration::from_secs(10);

/// Threads that are recorded at a time.
const MOST_THREADS: usize = 1 << 12;

/// How often what was recorded is passed on.
const ROUND: Duration = Duration::from_millis(20);

/// What is told of a kernel once, since every launch would tell the same.
#[derive(Clone, Debug)]
struct KernelFacts {
    name: String,
    shared_bytes: u32,
    registers: u32,
}

/// This process's recording.
#[derive(Debug)]
struct Recorder {
    connection: &'static Connection,
    /// Which of the process' recordings it is.
    number: AtomicU32,
    /// Of threads that were recorded, until they are gone.
    rings: Mutex<Vec<Arc<Ring>>>,
    /// Records of threads beyond [`MOST_THREADS`], which have no ring.
    dropped: AtomicU64,
    /// By module and number in its image.
    kernels: Mutex<HashMap<(u64, u32), KernelFacts>>,
    /// Held while something is passed on; nothing while nothing is recorded.
    sink: Mutex<Option<Sink>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call begins. Says whether it is recorded.
#[inline]
pub(crate) fn begin() -> bool {
    is_on() && begin_recorded()
}

#[inline(never)]
fn begin_recorded() -> bool {
    if state::begins() {
        begin_for_server();
    }
    let Ok(recorder) = RECORDER.get() else {
        return false;
    };
    thread::with(recorder, |log| log.call_began(ticks::now())).is_some()
}

/// A call is over that [`begin`] said is recorded.
#[inline(never)]
pub(crate) fn end(function: Function) {
    if let Ok(recorder) = RECORDER.get() {
        thread::with(recorder, |log| log.call_ended(function.number()));
    }
}

/// A request was put into a stream of the context with that handle. To be asked for only when [`is_on`].
#[inline(never)]
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
#[inline(never)]
pub(crate) fn kernel(module: u64, index: u32, facts: impl FnOnce() -> (String, u32, u32)) {
    let Ok(recorder) = RECORDER.get() else {
        return;
    };
    let kernel = (module, index);
    if is_on() && thread::with(recorder, |log| log.knows(kernel)) == Some(true) {
        return;
    }
    lock(&recorder.kernels).entry(kernel).or_insert_with(|| {
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
        let context = Key::of(context, HandleKind::Context).map_or(0, Key::index);
        thread::with(self, |log| log.posted(slot, sequence, context, work));
    }

    /// Which of the process' recordings it is.
    #[inline]
    fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Adds a thread's, if there is room.
    fn add_ring(&self, ring: &Arc<Ring>) -> bool {
        let mut rings = lock(&self.rings);
        let fits = rings.len() < MOST_THREADS;
        match fits {
            true => rings.push(Arc::clone(ring)),
            false => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
        }
        fits
    }

    /// Begins a thread that passes on what is recorded.
    fn begin(&'static self, sink: Sink) {
        let mut place = lock(&self.sink);
        // What is left of another recording is none of this one's.
        lock(&self.rings).iter().for_each(|ring| ring.discard());
        self.dropped.store(0, Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Relaxed);
        *place = Some(sink);
        drop(place);
        // Before the thread looks, which ends where nothing is recorded.
        state::begin();
        let signals = signal_mask::Blocked::now();
        let made = std::thread::Builder::new()
            .name("openmps trace".into())
            .spawn(move || pass_on(self));
        drop(signals);
        if made.is_err() {
            log!("recording: no thread can be made: what is recorded is written at the end");
        }
    }
}

/// Makes ready to record, and begins if OPENMPS_TRACE or the server asks for it. Called once, with the connection of the session
/// that was just made.
pub(crate) fn start(connection: &'static Connection) {
    let recorder: &'static Recorder = Box::leak(Box::new(Recorder {
        connection,
        number: AtomicU32::new(0),
        rings: Mutex::default(),
        dropped: AtomicU64::new(0),
        kernels: Mutex::default(),
        sink: Mutex::default(),
    }));
    ticks::choose();
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

/// Passes on what is recorded, until nobody wants it any more or the process ends.
fn pass_on(recorder: &'static Recorder) {
    let mut drained_at = Instant::now();
    let mut is_nice = false;
    while is_on() {
        let mut place = lock(&recorder.sink);
        let Some(sink) = place.as_mut() else {
            return;
        };
        if !std::mem::replace(&mut is_nice, true) && sink.takes_long() {
            // Whose processors are all busy is not to be slower for its file, which can be written when it waits.
            rustix::process::nice(19).ok();
        }
        let is_over = sink.is_over(recorder.connection);
        let passed = match drained_at.elapsed() >= ROUND {
            _ if is_over => Ok(false),
            true => {
                drained_at = Instant::now();
                sink.drain(recorder, false)
            }
            false => sink.write_some(),
        };
        let is_more = match passed {
            Ok(is_more) if !is_over => is_more,
            passed => {
                if let Err(error) = passed {
                    log!("the recording ends here: {error}");
                }
                *place = None;
                // Who asks next is noticed from here on.
                state::stop();
                return;
            }
        };
        drop(place);
        if !is_more {
            std::thread::sleep(ROUND.saturating_sub(drained_at.elapsed()));
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
    let until = Instant::now() + LAST_ROUND;
    loop {
        match recorder.sink.try_lock() {
            Ok(mut place) => {
                if let Some(mut sink) = place.take()
                    && let Err(error) = sink.finish(recorder)
                {
                    log!("the recording lacks its end: {error}");
                }
                return;
            }
            Err(_) if Instant::now() > until => {
                log!(
                    "the recording lacks its end: it was still being written after {LAST_ROUND:?}"
                );
                return;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
