//! What a client's streams have in common: who is told of them, and which have work.
//!
//! Called by the client, by its streams and by the poller. Must not know what the operations are.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use engine::Observer;

use crate::chain::MOST_NODES;
use crate::cleared::Cleared;
use crate::code::Code;
use crate::context::Context;
use crate::module::Module;
use crate::output::Output;
use crate::poller::Waker;
use crate::run::MOST_RUN_NODES;
use crate::stream::Stream;
use crate::sync::{Room, lock};

/// Kernels that are named when a device dies.
const MOST_NAMED: usize = 8;

/// Bytes that one client's waiting operations may take together.
const WAITING_BYTES: usize = 256 << 20;

/// What a client's streams have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// When the client came.
    pub(crate) came: Instant,
    pub(crate) observer: Arc<dyn Observer>,
    /// What its kernels have printed.
    pub(crate) output: Output,
    /// What its modules have of code.
    pub(crate) code: Arc<Code>,
    waker: Arc<Waker>,
    /// The client's own thread looks how far its work has come, until it leaves that to the poller.
    attended: AtomicBool,
    /// Everything that clears memory which the streams may touch.
    pub(crate) cleared: Vec<Arc<Cleared>>,
    /// The client is going: nothing is reported any more.
    closed: AtomicBool,
    /// Bytes of all operations that wait here.
    pub(crate) waiting: Room,
    /// Nodes of all chains.
    pub(crate) nodes: Room,
    /// Nodes of the chains of runs.
    pub(crate) run_nodes: Room,
    /// Streams with operations that were not signed when they came here. Streams keep this.
    unsigned: Mutex<Vec<Weak<Stream>>>,
    /// Streams that have work, other than those that somebody is looking at.
    busy: Mutex<Vec<Arc<Stream>>>,
    /// How many streams have work.
    busy_count: AtomicUsize,
    contexts: Mutex<Vec<Arc<Context>>>,
    /// Kernels that it has left behind.
    left: Mutex<Vec<String>>,
}

impl Common {
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        waker: Arc<Waker>,
        cleared: Vec<Arc<Cleared>>,
    ) -> Self {
        Self {
            came: Instant::now(),
            observer,
            output: Output::default(),
            // One for each device.
            code: Code::new(cleared.len()),
            waker,
            attended: AtomicBool::new(false),
            cleared,
            closed: AtomicBool::new(false),
            waiting: Room::of(WAITING_BYTES),
            nodes: Room::of(MOST_NODES),
            run_nodes: Room::of(MOST_RUN_NODES),
            unsigned: Mutex::default(),
            busy: Mutex::default(),
            busy_count: AtomicUsize::new(0),
            contexts: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Whether any stream has work.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy_count.load(Ordering::Acquire) != 0
    }

    /// Reports nothing from now on, and drops what waits.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Takes what a module's kernels have printed, and tells the client.
    pub(crate) fn drain(&self, module: &Module) {
        if let Some(ring) = module.ring()
            && self.output.drain(ring)
            && !self.closed.load(Ordering::Acquire)
        {
            self.observer.wrote();
        }
    }

    pub(crate) fn add_context(&self, context: Arc<Context>) {
        lock(&self.contexts).push(context);
    }

    pub(crate) fn remove_context(&self, context: &Arc<Context>) {
        lock(&self.contexts).retain(|other| !Arc::ptr_eq(other, context));
    }

    /// A stream has work from now on.
    pub(crate) fn add_busy(&self, stream: Arc<Stream>) {
        self.busy_count.fetch_add(1, Ordering::AcqRel);
        lock(&self.busy).push(stream);
    }

    /// Has the poller look, unless the client's own thread does.
    pub(crate) fn wake(&self) {
        if !self.is_attended() {
            self.waker.wake();
        }
    }

    /// Whether the client's own thread looks.
    pub(crate) fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Acquire)
    }

    /// The client's own thread looks from now on.
    pub(crate) fn attend(&self) {
        if !self.attended.load(Ordering::Relaxed) {
            self.attended.store(true, Ordering::Release);
        }
    }

    /// The client's own thread looks no more for now, and gives the driver no more work.
    pub(crate) fn leave(&self) {
        self.pause(true);
        if self.attended.swap(false, Ordering::AcqRel) && self.is_busy() {
            self.waker.wake();
        }
    }

    /// Whether reports are still wanted.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// A stream has an operation that is not signed.
    pub(crate) fn add_unsigned(&self, stream: &Arc<Stream>) {
        lock(&self.unsigned).push(Arc::downgrade(stream));
    }

    /// Nothing more comes for now, or `for_long`: see [`Stream::pause`].
    pub(crate) fn pause(&self, for_long: bool) {
        let mut unsigned = std::mem::take(&mut *lock(&self.unsigned));
        unsigned.retain(|stream| {
            let stream = stream.upgrade();
            stream.is_some_and(|stream| !stream.pause(for_long))
        });
        if !unsigned.is_empty() {
            lock(&self.unsigned).append(&mut unsigned);
        }
    }

    /// Notes the kernels that the GPU is at, which a client has left. Looks at streams, so it may wait for
    /// who gives the driver something.
    pub(crate) fn note_left(&self) {
        let busy = lock(&self.busy).clone();
        let running = busy.iter().filter_map(|stream| stream.running());
        *lock(&self.left) = running.take(MOST_NAMED).collect();
    }

    /// What was noted last.
    pub(crate) fn left(&self) -> Vec<String> {
        lock(&self.left).clone()
    }

    /// Tells the client of every device that has died. `streams` are those with work.
    pub(crate) fn tell_faults(&self, streams: &[Arc<Stream>]) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        // What a device died of may have left a message.
        for stream in streams {
            stream.drain();
        }
        for context in &*lock(&self.contexts) {
            let Err(code) = context.device().check() else {
                continue;
            };
            let running: Vec<String> = streams
                .iter()
                .filter(|stream| Arc::ptr_eq(stream.context(), context))
                .filter_map(|stream| stream.running())
                .take(MOST_NAMED)
                .collect();
            let running = match &running[..] {
                [] => "none".to_owned(),
                names => names.join(", "),
            };
            context.fault(code, &running);
        }
    }

    /// Looks how far the streams have come, reports it, and gives the driver what waits. `scratch` is
    /// empty, and stays so.
    pub(crate) fn poll(&self, scratch: &mut Vec<Arc<Stream>>) -> Polled {
        let mut all = Polled::default();
        if !self.is_busy() {
            return all;
        }
        std::mem::swap(&mut *lock(&self.busy), scratch);
        if scratch
            .iter()
            .any(|stream| stream.device().check().is_err())
        {
            self.tell_faults(scratch);
        }
        scratch.retain(|stream| {
            let polled = stream.poll();
            all.add(polled);
            if !polled.busy {
                self.busy_count.fetch_sub(1, Ordering::AcqRel);
            }
            polled.busy
        });
        lock(&self.busy).append(scratch);
        all
    }
}

/// What a look at streams found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polled {
    pub(crate) progress: bool,
    pub(crate) busy: bool,
    /// When the next work is expected to be over, if there is any telling.
    pub(crate) due: Option<Instant>,
    /// There is work of which there is no telling.
    pub(crate) untold: bool,
}

impl Polled {
    /// Adds what another look found.
    pub(crate) fn add(&mut self, other: Self) {
        self.progress |= other.progress;
        self.busy |= other.busy;
        self.untold |= other.untold;
        self.due = match (self.due, other.due) {
            (Some(due), Some(other)) => Some(due.min(other)),
            (due, other) => due.or(other),
        };
    }
}
