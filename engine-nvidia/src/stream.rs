//! Streams: each one's operations in their order, and how far the GPU has come.
//!
//! After each operation the GPU writes the operation's ticket into the stream's completion word, which
//! any thread may read. Only so many operations of a stream are with the driver at a time, because a
//! launch into a full hardware queue waits, with the context's lock held; the others wait here, and
//! follow when earlier ones complete.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_abi::CUresult;
use cuda_abi::operations::{At, STREAM_DEPTH};
use cuda_abi::types::CUstream;
use engine::{Observer, Share};

use crate::cleared::Cleared;
use crate::context::Context;
use crate::device::Device;
use crate::driver::Driver;
use crate::groups::Groups;
use crate::module::Module;
use crate::output::Output;
use crate::poller::Waker;
use crate::sync::{Handle, lock};
use crate::words::{Word, has_come_to};
use crate::work::{After, Work};

/// Operations of one stream that are with the driver at a time. Each takes two places of a hardware
/// queue of about a thousand, which several streams share.
const DEPTH: usize = 64;

/// Kernels that are named when a device dies.
const MOST_NAMED: usize = 8;

/// Bytes that one client's waiting operations may take together.
const WAITING_BYTES: usize = 256 << 20;

/// What a client's streams have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) observer: Arc<dyn Observer>,
    /// What its kernels have printed.
    pub(crate) output: Output,
    waker: Arc<Waker>,
    /// Everything that clears memory which the streams may touch.
    cleared: Vec<Arc<Cleared>>,
    /// The client is going: nothing is reported any more.
    closed: AtomicBool,
    /// Bytes of all operations that wait here.
    waiting: AtomicUsize,
    /// Streams that have work, other than those that somebody is looking at.
    busy: Mutex<Vec<Arc<Stream>>>,
    /// How many streams have work.
    busy_count: AtomicUsize,
    contexts: Mutex<Vec<Arc<Context>>>,
    group: Option<u32>,
    share: Mutex<Share>,
}

impl Common {
    pub(crate) fn new(
        observer: Arc<dyn Observer>,
        waker: Arc<Waker>,
        cleared: Vec<Arc<Cleared>>,
        group: Option<u32>,
        share: Share,
    ) -> Self {
        Self {
            observer,
            output: Output::default(),
            waker,
            cleared,
            closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            busy: Mutex::default(),
            busy_count: AtomicUsize::new(0),
            contexts: Mutex::default(),
            group,
            share: Mutex::new(share),
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
    fn drain(&self, module: &Module) {
        if let Some(ring) = module.ring()
            && self.output.drain(ring)
            && !self.closed.load(Ordering::Acquire)
        {
            self.observer.wrote();
        }
    }

    /// Adds a context, and gives it its part of its device.
    ///
    /// # Errors
    /// See [`Groups::fit`]; then it was not added.
    pub(crate) fn add_context(
        &self,
        context: Arc<Context>,
        groups: &Groups,
    ) -> Result<(), CUresult> {
        let part = groups.fit(self.group, *lock(&self.share), &context)?;
        context.set_part(part);
        lock(&self.contexts).push(context);
        Ok(())
    }

    pub(crate) fn group(&self) -> Option<u32> {
        self.group
    }

    /// Changes the share.
    ///
    /// # Errors
    /// See [`Groups::fit`]; then it is as it was.
    pub(crate) fn set_share(&self, share: Share, groups: &Groups) -> Result<(), CUresult> {
        let mut now = lock(&self.share);
        let before = std::mem::replace(&mut *now, share);
        drop(now);
        self.refit(groups)
            .inspect_err(|_| *lock(&self.share) = before)
    }

    /// Gives all contexts the parts that are due to them now.
    ///
    /// # Errors
    /// See [`Groups::fit`]; then they have the parts that they had.
    pub(crate) fn refit(&self, groups: &Groups) -> Result<(), CUresult> {
        let share = *lock(&self.share);
        let contexts = lock(&self.contexts).clone();
        let parts = contexts
            .iter()
            .map(|context| groups.fit(self.group, share, context))
            .collect::<Result<Vec<_>, _>>()?;
        for (context, part) in contexts.iter().zip(parts) {
            context.set_part(part);
        }
        self.waker.wake();
        Ok(())
    }

    pub(crate) fn remove_context(&self, context: &Arc<Context>) {
        lock(&self.contexts).retain(|other| !Arc::ptr_eq(other, context));
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
                .filter(|stream| Arc::ptr_eq(&stream.context, context))
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

    /// Looks how far the streams have come, reports it, and gives the driver what waits. Whether there
    /// was any progress. `scratch` is empty, and stays so.
    pub(crate) fn poll(&self, scratch: &mut Vec<Arc<Stream>>) -> bool {
        if !self.is_busy() {
            return false;
        }
        std::mem::swap(&mut *lock(&self.busy), scratch);
        if scratch
            .iter()
            .any(|stream| stream.device().check().is_err())
        {
            self.tell_faults(scratch);
        }
        let mut progress = false;
        scratch.retain(|stream| {
            let polled = stream.poll();
            progress |= polled.progress;
            polled.busy
        });
        lock(&self.busy).append(scratch);
        progress
    }
}

/// What a look at a stream found.
struct Polled {
    progress: bool,
    busy: bool,
}

/// One stream of a client.
#[derive(Debug)]
pub(crate) struct Stream {
    slot: u32,
    context: Arc<Context>,
    common: Arc<Common>,
    priority: i32,
    word: Word,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    raw: Handle<CUstream>,
    /// Of the context, when `raw` was made.
    epoch: u64,
    /// With the driver, in order.
    issued: VecDeque<Issued>,
    /// Not yet with the driver, in order.
    pending: VecDeque<(u64, Work)>,
    /// The last ticket given out.
    ticket: u32,
    /// Up to where it waits for clearing, as in [`Common::cleared`].
    cleared: Vec<u64>,
    /// It is among the busy ones, or somebody is looking at it.
    listed: bool,
    /// It takes nothing more.
    ending: bool,
    /// The driver's stream is gone.
    ended: bool,
    /// The stream that had the slot before and must finish first.
    before: Option<Arc<Stream>>,
}

#[derive(Debug)]
struct Issued {
    sequence: u64,
    ticket: u32,
    result: Result<(), CUresult>,
    after: After,
}

impl Issued {
    /// Takes what its kernel has printed, if it is one.
    fn drain(&self, common: &Common) {
        if let After::Keep { module, .. } = &self.after {
            common.drain(module);
        }
    }
}

impl Stream {
    /// Makes a stream. `before` is the one that had the slot.
    ///
    /// # Errors
    /// The driver's status.
    pub(crate) fn new(
        slot: u32,
        priority: i32,
        context: Arc<Context>,
        common: Arc<Common>,
        before: Option<Arc<Self>>,
    ) -> Result<Arc<Self>, CUresult> {
        let device = context.device();
        let driver = device.enter()?;
        let word = Word::new(device)?;
        let (least, greatest) = device.priorities();
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let (raw, epoch) = device.confirm(context.make_stream(driver, priority))?;
        let state = Mutex::new(State {
            raw: Handle(raw),
            epoch,
            issued: VecDeque::new(),
            pending: VecDeque::new(),
            ticket: word.load(),
            cleared: vec![0; common.cleared.len()],
            listed: false,
            ending: false,
            ended: false,
            before: before.filter(|stream| !stream.is_idle()),
        });
        Ok(Arc::new(Self {
            slot,
            context,
            common,
            priority,
            word,
            state,
        }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn device(&self) -> &Arc<Device> {
        self.context.device()
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_ending(&self) -> bool {
        lock(&self.state).ending
    }

    /// The kernel that the GPU is at, if it is at one.
    fn running(&self) -> Option<String> {
        let word = self.word.load();
        let state = lock(&self.state);
        let mut unfinished = state
            .issued
            .iter()
            .filter(|issued| !has_come_to(word, issued.ticket));
        unfinished.find_map(|issued| match &issued.after {
            After::Keep { module, kernel } => module.kernel_name(*kernel).map(str::to_owned),
            _ => None,
        })
    }

    /// Takes what its kernels have printed.
    fn drain(&self) {
        for issued in &lock(&self.state).issued {
            issued.drain(&self.common);
        }
    }

    /// Whether it has no work.
    pub(crate) fn is_idle(&self) -> bool {
        !lock(&self.state).listed
    }

    /// Takes nothing more; what waits fails. Its context was destroyed.
    pub(crate) fn end(&self) {
        lock(&self.state).ending = true;
    }

    /// Drops what waits. The client is going.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut lock(&self.state).pending);
        drop(waiting);
    }

    /// Takes an operation, and gives it to the driver if there is room.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE after the stream's destruction was asked for, and
    /// CUDA_ERROR_INVALID_VALUE beyond [`STREAM_DEPTH`]; the operation is not taken.
    pub(crate) fn post(self: &Arc<Self>, sequence: u64, work: Work) -> Result<(), CUresult> {
        let mut state = lock(&self.state);
        if state.ending {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        state.ending = matches!(work, Work::Destroy);
        if state.pending.is_empty()
            && state.issued.len() < DEPTH
            && state.before.is_none()
            && self.is_current(&mut state)
            && self.context.pass_gate()
        {
            self.issue(&mut state, sequence, work);
        } else if state.pending.len() as u64 >= STREAM_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        } else {
            let bytes = work.kept();
            let before = self.common.waiting.fetch_add(bytes, Ordering::Relaxed);
            let kept = if before.saturating_add(bytes) > WAITING_BYTES {
                self.common.waiting.fetch_sub(bytes, Ordering::Relaxed);
                let refused = Work::Refused(CUresult::ERROR_OUT_OF_MEMORY);
                self.common
                    .waiting
                    .fetch_add(refused.kept(), Ordering::Relaxed);
                refused
            } else {
                work
            };
            state.pending.push_back((sequence, kept));
        }
        let list = !std::mem::replace(&mut state.listed, true);
        drop(state);
        if list {
            self.common.busy_count.fetch_add(1, Ordering::AcqRel);
            lock(&self.common.busy).push(Arc::clone(self));
        }
        self.common.waker.wake();
        Ok(())
    }

    /// Whether the driver's stream is in the part that the context has now. If it is not and has nothing
    /// to do, it is made again; if it has, what comes waits until then.
    fn is_current(&self, state: &mut State) -> bool {
        if state.epoch == self.context.epoch() {
            return true;
        }
        if !state.issued.is_empty() {
            return false;
        }
        let made = self
            .device()
            .enter()
            .and_then(|driver| Ok((driver, self.context.make_stream(driver, self.priority)?)));
        match self.device().confirm(made) {
            Ok((driver, (raw, epoch))) => {
                let old = std::mem::replace(&mut state.raw, Handle(raw));
                state.epoch = epoch;
                state.cleared.fill(0);
                // SAFETY: made here or in `new`, and nothing is issued in it.
                let _ = unsafe { driver.cuStreamDestroy_v2(old.0) };
                true
            }
            // What is issued on a device that has died fails. Otherwise it is tried again: nothing is
            // issued in a part that the client does not have any more.
            Err(_) => self.device().check().is_err(),
        }
    }

    /// Gives an operation that passed the gate to the driver; what comes of it is told in its turn.
    fn issue(&self, state: &mut State, sequence: u64, work: Work) {
        let last = matches!(work, Work::Destroy);
        let issued = self
            .context
            .check()
            .and_then(|()| self.device().enter())
            .and_then(|driver| {
                let result = self.issue_work(driver, state, work);
                self.sign(driver, state)?;
                Ok(result)
            })
            .flatten();
        let (result, after) = match self.device().confirm(issued) {
            Ok(after) => (Ok(()), after),
            // A stream whose context is gone still ends.
            Err(_) if last => (Ok(()), After::Destroy),
            Err(code) => (Err(code), After::Nothing),
        };
        state.issued.push_back(Issued {
            sequence,
            ticket: state.ticket,
            result,
            after,
        });
    }

    fn issue_work(
        &self,
        driver: &Driver,
        state: &mut State,
        work: Work,
    ) -> Result<After, CUresult> {
        for (cleared, seen) in self.common.cleared.iter().zip(&mut state.cleared) {
            cleared.wait(driver, state.raw.0, seen)?;
        }
        work.issue(self.device(), driver, state.raw.0)
    }

    /// Has the GPU write the next ticket once it has come this far, even where an operation was taken
    /// only in part.
    fn sign(&self, driver: &Driver, state: &mut State) -> Result<(), CUresult> {
        let ticket = state.ticket.wrapping_add(1);
        // SAFETY: the word outlives the stream's work: it is kept by `self`, which is kept as long as
        // anything is issued.
        unsafe { driver.cuStreamWriteValue32_v2(state.raw.0, self.word.address(), ticket, 0)? };
        state.ticket = ticket;
        Ok(())
    }

    /// Reports what has completed and issues what waits.
    fn poll(self: &Arc<Self>) -> Polled {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if let Some(before) = &state.before {
            if !before.is_idle() {
                return Polled {
                    progress: false,
                    busy: true,
                };
            }
            state.before = None;
        }
        let mut progress = false;
        // So that the ring of a kernel that runs long does not become full.
        if let Some(front) = state.issued.front() {
            front.drain(&self.common);
        }
        loop {
            // In this order: a device that died later does not undo what had completed.
            let dead = self.context.check_told();
            let word = self.word.load();
            while let Some(front) = state.issued.front() {
                let come = has_come_to(word, front.ticket);
                if !come && dead.is_ok() {
                    break;
                }
                let Some(issued) = state.issued.pop_front() else {
                    break;
                };
                let result = if come { issued.result } else { dead };
                self.context.leave();
                progress = true;
                if matches!(issued.after, After::Destroy) {
                    self.destroy(state.raw);
                    state.ended = true;
                }
                self.finish(issued.sequence, result, issued.after);
            }
            let room = DEPTH - state.issued.len().min(DEPTH);
            let room = room.min(state.pending.len());
            let mut gave = false;
            for _ in 0..room {
                if !self.is_current(state) || !self.context.pass_gate() {
                    break;
                }
                let Some((sequence, work)) = state.pending.pop_front() else {
                    self.context.leave();
                    break;
                };
                gave = true;
                self.common
                    .waiting
                    .fetch_sub(work.kept(), Ordering::Relaxed);
                self.issue(state, sequence, work);
            }
            // What failed at once is reported at once.
            if !gave {
                break;
            }
        }
        let busy = !state.issued.is_empty() || !state.pending.is_empty();
        if !busy {
            state.listed = false;
            self.common.busy_count.fetch_sub(1, Ordering::AcqRel);
        }
        Polled { progress, busy }
    }

    /// Does what is due after an operation and reports it.
    fn finish(&self, sequence: u64, result: Result<(), CUresult>, after: After) {
        let open = !self.common.closed.load(Ordering::Acquire);
        match after {
            After::Nothing | After::Destroy => {}
            After::Keep { module, .. } => {
                self.common.drain(&module);
                drop(module);
            }
            After::Time { event, raw } => {
                let time = self
                    .device()
                    .enter()
                    .and_then(|driver| self.device().clock().time(driver, raw));
                if let Ok(time) = time
                    && open
                {
                    self.common.observer.event_time(event, time);
                }
            }
        }
        if open {
            let at = At {
                stream: self.slot,
                sequence,
            };
            self.common.observer.completed(at, result);
        }
    }

    fn destroy(&self, raw: Handle<CUstream>) {
        if let Ok(driver) = self.device().enter() {
            // SAFETY: made by the context, destroyed once: `ended` says so; nothing is issued in it.
            let _ = unsafe { driver.cuStreamDestroy_v2(raw.0) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = lock(&self.state);
        let (raw, ended) = (state.raw, state.ended);
        drop(state);
        if !ended {
            self.destroy(raw);
        }
    }
}
