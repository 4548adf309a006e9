//! Streams: each one's operations in their order, and how far the GPU has come.
//!
//! After an operation is *signalled*, the GPU writes a fence value into the stream's completion word, which any
//! thread may read. A signal costs about as much of the context's lock as a launch, so launches that come
//! one after another are signalled together: when there are [`BATCH`](issue::BATCH) of them, when nothing more comes for
//! now and the GPU has reached what is signalled ([`ClientStreams::pause`]), when the client's thread turns to
//! something else, or after [`STALE`](completion::STALE).
//!
//! Once a stream has had some launches, it gathers those that come one after another, and gives them to
//! the driver, for the same reasons, as a [launch batch](LaunchBatches), which signals its fence by itself.
//!
//! Only so many commands of a stream are with the driver at a time, because a launch into a full
//! hardware queue waits, with the context's lock held; the others wait here, and follow when earlier ones
//! complete. An operation of many commands is given to the driver in parts. And nothing more goes there while
//! what is there is expected to take more than [`MOST_AHEAD`](state::MOST_AHEAD), or [`AHEAD_OF_LOADS`](state::AHEAD_OF_LOADS)
//! when another client is about to load code: who must wait until nothing runs, to load code, waits for as long and the longest. What a client below normal may
//! have there beside others' work, the device's [foreground](crate::device::foreground) says.
//!
//! Called by the client and the poller. Must not know what an operation computes, or who its client is.

mod begin_mark;
mod completion;
mod issue;
mod state;
mod timing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::types::CUstream;
use engine::{InFlight, clock};
use parking_lot::Mutex;
use protocol::operations::STREAM_DEPTH;

use crate::device::Device;
use crate::device::context::{Context, DriverStream};
use crate::device::fence::{Fence, has_reached};
use crate::submit::batch::LaunchBatches;
use crate::submit::client_streams::ClientStreams;
use crate::submit::command::{CommandKind, CompletionAction};
use crate::submit::completion_predictor::CompletionPredictor;
use crate::submit::launch::Launch;
use crate::submit::readback::WaitPredictor;
use crate::submit::stream::begin_mark::BeginMark;
use crate::submit::stream::state::{Contention, LastLook, StreamState};
use crate::sync::Handle;

/// How often it is tried to look at a stream that somebody else has in hand.
const TRIES: u32 = 1000;

/// One stream of a client.
#[derive(Debug)]
pub(crate) struct Stream {
    slot: u32,
    context: Arc<Context>,
    common: Arc<ClientStreams>,
    /// As the program asked for it.
    priority: i32,
    word: Fence,
    /// Of a client whose memory is kept for another server.
    begin_mark: Option<BeginMark>,
    /// What a look without the lock compares the word with.
    last: LastLook,
    state: Mutex<StreamState>,
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
        common: Arc<ClientStreams>,
        before: Option<Arc<Self>>,
    ) -> Result<Arc<Self>, CUresult> {
        let device = context.device();
        let driver = device.enter()?;
        let word = Fence::new(device)?;
        let begin_mark = match common.is_kept {
            true => Some(BeginMark::new(device)?),
            false => None,
        };
        let DriverStream { raw, epoch, home } = device
            .confirm(context.make_stream(driver, common.driver_priority(device, priority)))?;
        device.count_stream(true);
        let state = Mutex::new(StreamState {
            raw,
            epoch,
            batches: LaunchBatches::new((device, common.supply(device)), &common.nodes, home),
            issued: VecDeque::new(),
            gathered: (Vec::new(), Vec::new()),
            commands: 0,
            expected: 0,
            expected_told: 0,
            foreground: None,
            looked_at: Instant::now(),
            ended_now: Vec::new(),
            ran_now: Vec::new(),
            spans: Vec::new(),
            untimed: Vec::new(),
            told_until: 0,
            contention: Contention::default(),
            hold_since: None,
            pending: VecDeque::new(),
            reported: 0,
            fence_value: word.load(),
            unsignalled: 0,
            open_since: Instant::now(),
            cleared: vec![0; common.cleared.len()],
            completion_predictor: CompletionPredictor::default(),
            bounce: None,
            wait_predictor: WaitPredictor::default(),
            listed: false,
            is_marked: false,
            is_amid: false,
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
            begin_mark,
            last: LastLook::default(),
            state,
        }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        self.context.device()
    }

    /// Whether it takes nothing more.
    pub(crate) fn is_ending(&self) -> bool {
        self.state.lock().ending
    }

    /// The kernel that the GPU is at, if it is at one.
    pub(crate) fn running(&self) -> Option<String> {
        let state = self.state.lock();
        self.has_begun().then(|| self.running_of(&state))?
    }

    /// Whether the GPU may have begun with a kernel that it has not completed.
    pub(crate) fn may_have_begun(&self) -> bool {
        let state = self.state.lock();
        let word = self.word.load();
        let mut issued = state.issued.iter();
        let is_issued = issued.any(|issued| {
            issued.after.is_of_kernels()
                && issued.result.is_ok()
                && !has_reached(word, issued.fence_value)
        });
        is_issued && self.has_begun()
    }

    /// Whether the GPU may have begun with a kernel of what the driver was given since it had nothing.
    fn has_begun(&self) -> bool {
        self.begin_mark.as_ref().is_none_or(BeginMark::is_reached)
    }

    fn running_of(&self, state: &StreamState) -> Option<String> {
        let word = self.word.load();
        let mut unfinished = state
            .issued
            .iter()
            .filter(|issued| !has_reached(word, issued.fence_value));
        unfinished.find_map(|issued| match &issued.after {
            CompletionAction::Keep(running) => running.kernel_name(),
            // One of these, and which cannot be seen.
            CompletionAction::KeepRun(run) => run.launches().first().and_then(Launch::kernel_name),
            _ => None,
        })
    }

    /// What the GPU is at, and since when. Waits for nobody: who gives the driver something may wait in it for ever.
    pub(crate) fn in_flight(&self) -> Option<InFlight> {
        let mut tries = 0..TRIES;
        let state = tries.find_map(|_| {
            let state = self.state.try_lock();
            if state.is_none() {
                std::thread::yield_now();
            }
            state
        });
        let (what, since) = match state {
            None => ("a call of the driver".to_owned(), None),
            Some(state) => {
                let value = state.issued.front()?.fence_value;
                if has_reached(self.word.load(), value) {
                    return None;
                }
                let what = match self.running_of(&state) {
                    Some(kernel) => format!("kernel {kernel}"),
                    None => "a copy, a fill or an event".to_owned(),
                };
                (what, Some(clock::at(state.looked_at)))
            }
        };
        Some(InFlight {
            stream: self.slot,
            device: self.device().ordinal().cast_unsigned(),
            what,
            since,
        })
    }

    /// How long the kernel that the GPU is at has run, if that is longer than `limit`. Counted from when it came to the head
    /// of the stream: that it waits for multiprocessors which others have does not show. Of several that are known to have
    /// ended together one has run for too long when all of them have for as many times the limit.
    pub(crate) fn overrun(&self, limit: Duration) -> Option<Duration> {
        // Else somebody is issuing, or looking, and there will be another look.
        let state = self.state.try_lock()?;
        let ran = state.looked_at.elapsed();
        let value = state.issued.front()?.fence_value;
        if ran <= limit || has_reached(self.word.load(), value) {
            return None;
        }
        let together = state.issued.iter();
        let together = together.take_while(|issued| issued.fence_value == value);
        let kernels = together.map(|issued| match &issued.after {
            CompletionAction::Keep(_) => 1,
            CompletionAction::KeepRun(run) => run.launches().len(),
            _ => 0,
        });
        let kernels = u32::try_from(kernels.sum::<usize>()).unwrap_or(u32::MAX);
        (kernels > 0 && ran > limit.saturating_mul(kernels)).then_some(ran)
    }

    /// Takes what its kernels have printed.
    pub(crate) fn drain(&self) {
        for issued in &self.state.lock().issued {
            issued.after.drain_output();
        }
    }

    /// Whether it has no work.
    pub(crate) fn is_idle(&self) -> bool {
        !self.state.lock().listed
    }

    /// Takes nothing more; what waits fails. Its context was destroyed.
    pub(crate) fn end(&self) {
        self.state.lock().ending = true;
    }

    /// Drops what waits. The client is going.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.pending);
        self.set_amid(&mut state, false);
        drop(state);
        drop(waiting);
    }

    /// Takes an operation, and gives it to the driver if there is room.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE after the stream's destruction was asked for, and
    /// CUDA_ERROR_INVALID_VALUE beyond [`STREAM_DEPTH`]; the operation is not taken.
    pub(crate) fn post(self: &Arc<Self>, sequence: u64, work: CommandKind) -> Result<(), CUresult> {
        let mut state = self.state.lock();
        if state.ending {
            return Err(CUresult::ERROR_INVALID_HANDLE);
        }
        state.ending = matches!(work, CommandKind::Destroy);
        // The client may have heard of an end from the GPU that nobody here has looked for.
        self.advance_if_reached(&mut state);
        let was_open = state.is_open();
        if state.pending.is_empty() && self.may_issue(&mut state) {
            self.accept(&mut state, sequence, work);
            self.advance_if_reached(&mut state);
        } else if state.pending.len() as u64 >= STREAM_DEPTH {
            return Err(CUresult::ERROR_INVALID_VALUE);
        } else {
            let work = if self.common.waiting.try_add(work.held_bytes()) {
                work
            } else {
                // It gives back what it takes when its turn comes, as all do.
                let refused = CommandKind::Refused(CUresult::ERROR_OUT_OF_MEMORY);
                self.common.waiting.add(refused.held_bytes());
                refused
            };
            state.pending.push_back((sequence, work));
            // Who posts faster than the GPU works issues what follows too, and does not leave it to the
            // poller, which has everybody's.
            self.advance(&mut state);
        }
        let to_sign = !was_open && state.is_open();
        let list = !std::mem::replace(&mut state.listed, true);
        self.note(&mut state);
        drop(state);
        if to_sign {
            self.common.add_unsigned(self);
        }
        if list {
            self.common.add_busy(Arc::clone(self));
        }
        self.common.wake();
        Ok(())
    }

    /// Reports what has completed, if anything has since the last look.
    fn advance_if_reached(&self, state: &mut StreamState) {
        let word = self.word.load();
        let first = state.issued.front();
        if first.is_some_and(|first| has_reached(word, first.fence_value)) {
            self.advance(state);
        }
    }

    pub(super) fn destroy(&self, raw: Handle<CUstream>) {
        if let Ok(driver) = self.device().enter() {
            // SAFETY: made by the context, destroyed once: `ended` says so; nothing is issued in it.
            let _ = unsafe { driver.cuStreamDestroy_v2(raw.0) };
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device().count_stream(false);
        let mut state = self.state.lock();
        self.set_amid(&mut state, false);
        let (raw, ended) = (state.raw, state.ended);
        self.device().foreground().expect(state.expected_told, 0);
        drop(state);
        if !ended {
            self.destroy(raw);
        }
    }
}
