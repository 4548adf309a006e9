//! What a client's streams have in common: who is told of them, and which have work.
//!
//! Called by the client, by its streams and by the poller. Must not know what the operations are.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engine::{InFlight, Observer, WorkInFlight};
use protocol::limits;

use crate::code::client_code::ClientCode;
use crate::device::Device;
use crate::device::context::Context;
use crate::device::waker::Waker;
use crate::memory::zero_fill::ZeroFillProgress;
use crate::submit::batch::MOST_NODES;
use crate::submit::batch_supply::BatchSupply;
use crate::submit::client_words::ClientWords;
use crate::submit::graph_run::MOST_RUN_NODES;
use crate::submit::stream::Stream;
use crate::sync::BoundedCount;

/// What devices may have had of a client's work when one of them died: nobody has looked, nothing, or something.
const NOT_LOOKED: u8 = 0;
const NOTHING_BEGUN: u8 = 1;
const SOMETHING_BEGUN: u8 = 2;

/// Kernels that are named when a device dies.
const MOST_NAMED: usize = 8;

/// How often it is tried to find streams that somebody else looks at.
const LOOKS: u32 = 1000;

/// Bytes that one client's waiting operations may take together.
const WAITING_BYTES: usize = 256 << 20;

/// What a client's streams have in common.
#[derive(Debug)]
pub(crate) struct ClientStreams {
    /// When the client came.
    pub(crate) attached_at: Instant,
    pub(crate) observer: Arc<dyn Observer>,
    /// What its modules share.
    pub(crate) code: Arc<ClientCode>,
    waker: Arc<Waker>,
    /// The client's own thread looks how far its work has come, until it leaves that to the poller.
    attended: AtomicBool,
    /// Everything that clears memory which the streams may touch.
    pub(crate) cleared: Vec<Arc<ZeroFillProgress>>,
    /// The client is going: nothing is reported any more.
    closed: AtomicBool,
    /// Bytes of all operations that wait here.
    pub(crate) waiting: BoundedCount,
    /// Nodes of all batches.
    pub(crate) nodes: Arc<BoundedCount>,
    /// Nodes of the batches of runs.
    pub(crate) run_nodes: Arc<BoundedCount>,
    /// Streams with operations that were not signalled when they came here. Streams keep this.
    unsignalled: Mutex<Vec<Weak<Stream>>>,
    /// Streams that have work, other than those that somebody is looking at.
    busy: Mutex<Vec<Arc<Stream>>>,
    /// How many streams have work.
    busy_count: Arc<AtomicUsize>,
    /// How many have given the driver a part of what waits first.
    amid: AtomicUsize,
    contexts: Mutex<Vec<Arc<Context>>>,
    /// Kernels that it has left behind.
    left: Mutex<Vec<String>>,
    /// Another server goes on with its work when this one's device has died.
    pub(crate) is_kept: bool,
    /// What of its work the devices may have had when one died: [`NOT_LOOKED`] and the like.
    begun: AtomicU8,
    /// The client was told of what has died.
    was_told: AtomicBool,
    /// Its work goes after that of others.
    below_normal: AtomicBool,
    /// Where it has streams.
    devices: Vec<Arc<Device>>,
    /// Where their batches come from, by device.
    supplies: Vec<Arc<BatchSupply>>,
    client_words: Option<ClientWords>,
}

impl ClientStreams {
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        waker: Arc<Waker>,
        cleared: Vec<Arc<ZeroFillProgress>>,
        devices: Vec<Arc<Device>>,
        supplies: Vec<Arc<BatchSupply>>,
        client_words: Option<ClientWords>,
        is_kept: bool,
    ) -> Self {
        Self {
            attached_at: Instant::now(),
            // One zero fill for each device.
            code: Arc::new(ClientCode::new(Arc::clone(&observer), cleared.len())),
            observer,
            waker,
            attended: AtomicBool::new(false),
            cleared,
            closed: AtomicBool::new(false),
            waiting: BoundedCount::of(WAITING_BYTES),
            nodes: Arc::new(BoundedCount::of(MOST_NODES)),
            run_nodes: Arc::new(BoundedCount::of(MOST_RUN_NODES)),
            unsignalled: Mutex::default(),
            busy: Mutex::default(),
            busy_count: Arc::default(),
            amid: AtomicUsize::new(0),
            contexts: Mutex::default(),
            left: Mutex::default(),
            is_kept,
            begun: AtomicU8::new(NOT_LOOKED),
            was_told: AtomicBool::new(false),
            below_normal: AtomicBool::new(false),
            devices,
            supplies,
            client_words,
        }
    }

    /// The words in which the GPU tells the client of its streams, if there are any.
    pub(crate) fn client_words(&self) -> Option<&ClientWords> {
        self.client_words.as_ref()
    }

    /// Whether its work goes after that of others from now on. Whether that is new.
    pub(crate) fn set_below_normal(&self, below: bool) -> bool {
        let changes = self.below_normal.swap(below, Ordering::Relaxed) != below;
        if changes {
            for device in &self.devices {
                device.foreground().count_below_normal(below);
            }
        }
        changes
    }

    /// Where batches of streams on a device come from.
    pub(crate) fn supply(&self, device: &Device) -> &Arc<BatchSupply> {
        &self.supplies[device.number()]
    }

    pub(crate) fn is_below_normal(&self) -> bool {
        self.below_normal.load(Ordering::Relaxed)
    }

    /// The priority that one of the driver's streams has for which the program asked for this, 0 where it asked for none: the
    /// least urgent, which CUDA gives to all others, is for clients below normal, and all others are one step above.
    pub(crate) fn driver_priority(&self, device: &Device, asked: i32) -> i32 {
        let (least, most) = device.priorities();
        if self.is_below_normal() {
            return least;
        }
        asked.saturating_sub(1).clamp(most.min(least), least)
    }

    /// How many streams have work, for who must not take away what they may use.
    pub(crate) fn busy_count(&self) -> &Arc<AtomicUsize> {
        &self.busy_count
    }

    /// Whether any stream has work.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy_count.load(Ordering::Acquire) != 0
    }

    /// One more of its streams, or one less, has given the driver a part of an operation.
    pub(crate) fn count_amid(&self, is_amid: bool) {
        match is_amid {
            true => self.amid.fetch_add(1, Ordering::SeqCst),
            false => self.amid.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// Whether the driver has had a part of an operation whose rest waits.
    pub(crate) fn is_amid(&self) -> bool {
        self.amid.load(Ordering::SeqCst) != 0
    }

    /// Reports nothing from now on, and drops what waits.
    pub(crate) fn close(&self) {
        self.code.close();
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn add_context(&self, context: Arc<Context>) {
        self.contexts.lock().push(context);
    }

    pub(crate) fn remove_context(&self, context: &Arc<Context>) {
        self.contexts
            .lock()
            .retain(|other| !Arc::ptr_eq(other, context));
    }

    /// A stream has work from now on.
    pub(crate) fn add_busy(&self, stream: Arc<Stream>) {
        self.busy_count.fetch_add(1, Ordering::AcqRel);
        self.busy.lock().push(stream);
    }

    /// Has the poller look, unless the client's own thread does.
    pub(crate) fn wake(&self) {
        if !self.is_polled_by_client() {
            self.waker.wake();
        }
    }

    /// Whether the client's own thread looks.
    pub(crate) fn is_polled_by_client(&self) -> bool {
        self.attended.load(Ordering::Acquire)
    }

    /// The client's own thread looks from now on.
    pub(crate) fn start_polling(&self) {
        if !self.attended.load(Ordering::Relaxed) {
            self.attended.store(true, Ordering::Release);
        }
    }

    /// The client's own thread looks no more for now, and gives the driver no more work.
    pub(crate) fn stop_polling(&self) {
        self.pause(true);
        if self.attended.swap(false, Ordering::AcqRel) && self.is_busy() {
            self.waker.wake();
        }
    }

    /// Whether reports are still wanted.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Acquire)
    }

    /// A stream has an operation that is not signalled.
    pub(crate) fn add_unsigned(&self, stream: &Arc<Stream>) {
        self.unsignalled.lock().push(Arc::downgrade(stream));
    }

    /// Nothing more comes for now, or `for_long`: see [`Stream::pause`].
    pub(crate) fn pause(&self, for_long: bool) {
        let mut unsignalled = std::mem::take(&mut *self.unsignalled.lock());
        unsignalled.retain(|stream| {
            let stream = stream.upgrade();
            stream.is_some_and(|stream| !stream.pause(for_long))
        });
        if !unsignalled.is_empty() {
            self.unsignalled.lock().append(&mut unsignalled);
        }
    }

    /// Notes the kernels that the GPU is at, which a client has left. Looks at streams, so it may wait for
    /// who gives the driver something.
    pub(crate) fn note_abandoned_kernels(&self) {
        let busy = self.busy.lock().clone();
        let running = busy.iter().filter_map(|stream| stream.running());
        *self.left.lock() = running.take(MOST_NAMED).collect();
    }

    /// What was noted last.
    pub(crate) fn abandoned_kernels(&self) -> Vec<String> {
        self.left.lock().clone()
    }

    /// Tells the client of every device that has died. `streams` are those with work.
    pub(crate) fn report_faults(&self, streams: &[Arc<Stream>]) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        // What a device died of may have left a message.
        for stream in streams {
            stream.drain();
        }
        let begun = match streams.iter().any(|stream| stream.may_have_begun()) {
            true => SOMETHING_BEGUN,
            false => NOTHING_BEGUN,
        };
        // What the first look has found stays: after it work fails and is no more to be seen.
        let _ = self
            .begun
            .compare_exchange(NOT_LOOKED, begun, Ordering::AcqRel, Ordering::Acquire);
        for context in &*self.contexts.lock() {
            let Err(code) = context.device().check() else {
                continue;
            };
            let running: Vec<String> = streams
                .iter()
                .filter(|stream| Arc::ptr_eq(stream.context(), context))
                .filter_map(|stream| stream.running())
                .take(MOST_NAMED)
                .collect();
            context.fault(code, &running);
        }
        self.was_told.store(true, Ordering::Release);
    }

    /// Whether it has a context on a device that is well.
    fn has_well_device(&self) -> bool {
        let contexts = self.contexts.lock();
        contexts
            .iter()
            .any(|context| context.device().check().is_ok())
    }

    /// Says if a kernel of the client has run for longer than this.
    fn report_overrun(&self, streams: &[Arc<Stream>], limit: Duration) {
        if !self.is_open() {
            return;
        }
        let mut overrun = streams
            .iter()
            .filter_map(|stream| Some((stream, stream.overrun(limit)?)));
        let Some((stream, ran)) = overrun.next() else {
            return;
        };
        self.observer.overran(&format!(
            "kernel {} on device {} ({}) has run for {:.3} s, and its client's may run for {}. The driver cannot end it: \
             the client is ended, and the kernel goes on until it ends by itself or the server does. No other client is \
             affected but by what it takes of the device",
            stream.running().unwrap_or_default(),
            stream.device().ordinal(),
            stream.device().facts().name,
            ran.as_secs_f64(),
            limits::kernel_time_text(limit),
        ));
    }

    /// Looks how far the streams have come, reports it, and gives the driver what waits. `scratch` is
    /// empty, and stays so.
    pub(crate) fn poll(&self, scratch: &mut Vec<Arc<Stream>>) -> Polled {
        let mut all = Polled::default();
        if !self.is_busy() {
            return all;
        }
        std::mem::swap(&mut *self.busy.lock(), scratch);
        if scratch
            .iter()
            .any(|stream| stream.device().check().is_err())
        {
            self.report_faults(scratch);
        }
        if let Some(limit) = self.observer.kernel_time_limit() {
            self.report_overrun(scratch, limit);
        }
        scratch.retain(|stream| {
            let polled = stream.poll();
            all.add(polled);
            if !polled.busy {
                self.busy_count.fetch_sub(1, Ordering::AcqRel);
            }
            polled.busy
        });
        self.busy.lock().append(scratch);
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

/// A client's streams for whoever may keep this for longer than the client is there.
#[derive(Debug)]
pub(crate) struct WatchedStreams(pub(crate) Weak<ClientStreams>);

impl WorkInFlight for WatchedStreams {
    fn was_told(&self) -> bool {
        let streams = self.0.upgrade();
        streams.is_none_or(|streams| streams.was_told.load(Ordering::Acquire) || !streams.is_busy())
    }

    fn may_have_begun(&self) -> bool {
        // On a device that is well kernels begin until this process has ended.
        let streams = self.0.upgrade();
        streams.is_none_or(|streams| {
            streams.begun.load(Ordering::Acquire) != NOTHING_BEGUN || streams.has_well_device()
        })
    }

    fn in_flight(&self) -> Vec<InFlight> {
        self.0
            .upgrade()
            .map(|streams| streams.in_flight())
            .unwrap_or_default()
    }
}

impl ClientStreams {
    fn in_flight(&self) -> Vec<InFlight> {
        // Who looks at the streams has them for a moment.
        for _ in 0..LOOKS {
            let busy = self.busy.lock().clone();
            if !busy.is_empty() {
                return busy
                    .iter()
                    .filter_map(|stream| stream.in_flight())
                    .collect();
            }
            if !self.is_busy() {
                break;
            }
            std::thread::yield_now();
        }
        Vec::new()
    }
}

impl Drop for ClientStreams {
    fn drop(&mut self) {
        self.set_below_normal(false);
    }
}
