//! What a stream keeps under its lock: what the driver has of it, what is gathered, and what waits.
//!
//! Changed by who issues and by who sees completions. Must not know either.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use cuda_abi::CUresult;
use cuda_abi::types::{CUevent, CUstream};
use engine::{Activity, Span};
use protocol::operations::HoldReason;

use crate::device::foreground::ForegroundWork;
use crate::device::work_signature::WorkSignature;
use crate::submit::batch::LaunchBatches;
use crate::submit::command::{CommandKind, CompletionAction};
use crate::submit::completion_predictor::CompletionPredictor;
use crate::submit::launch::Launch;
use crate::submit::readback::{BounceBuffer, WaitPredictor};
use crate::submit::stream::Stream;
use crate::sync::Handle;

/// Microseconds that what the driver has of a stream may take for more to go there.
pub(super) const MOST_AHEAD: u64 = 16_000;

/// The same while another client is about to load code: enough for the stream to have work until an end is seen and more is given.
pub(super) const AHEAD_OF_LOADS: u64 = 2_000;

/// What the last look at a stream saw, for the next one: most see nothing new, and need no lock.
#[derive(Debug, Default)]
pub(super) struct LastLook {
    /// The completion word.
    pub(super) word: AtomicU32,
    /// There is nothing to do before the word changes.
    pub(super) calm: AtomicBool,
    /// When it is expected to change, in nanoseconds after the client came; 0 if there is no telling.
    pub(super) due: AtomicU64,
    /// When the client is to be told that this is near, likewise; 0 if it was.
    pub(super) near: AtomicU64,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) raw: Handle<CUstream>,
    /// Of the context, when `raw` was made.
    pub(super) epoch: u64,
    pub(super) batches: LaunchBatches,
    /// With the driver, in order.
    pub(super) issued: VecDeque<Issued>,
    /// Behind these, the launches that go to the driver together, with their sequence numbers and lengths. They
    /// have passed the gate.
    pub(super) gathered: (Vec<(u64, Length)>, Vec<Launch>),
    /// Commands of both.
    pub(super) commands: usize,
    /// Microseconds that both are expected to take.
    pub(super) expected: u64,
    /// What the device was told of that, if the client is below normal.
    pub(super) expected_told: u64,
    /// While there is work, if the client is not below normal.
    pub(super) foreground: Option<ForegroundWork>,
    /// When the last end was seen, or the first of them began.
    pub(super) looked_at: Instant,
    /// What is found to have ended in one look: empty.
    pub(super) ended_now: Vec<Length>,
    /// Of these, what the device did something for.
    pub(super) ran_now: Vec<RanOperation>,
    /// When each of these ran, and the lengths of those without events, where somebody wants to know: empty.
    pub(super) spans: Vec<Span>,
    pub(super) untimed: Vec<Length>,
    /// Up to when the observer was told what the device did, in nanoseconds of CLOCK_MONOTONIC; 0 if it does not ask for each
    /// operation.
    pub(super) told_until: u64,
    /// What others cost it.
    pub(super) contention: Contention,
    /// Since when the first of `pending` is held back, in nanoseconds of CLOCK_MONOTONIC, and why, where somebody wants to know.
    pub(super) hold_since: Option<(u64, HoldReason)>,
    /// Not yet with the driver, in order.
    pub(super) pending: VecDeque<(u64, CommandKind)>,
    /// The last operation that the observer was told of as done, without an error; 0 if there is none.
    pub(super) reported: u64,
    /// The last fence value that was signalled for.
    pub(super) fence_value: u32,
    /// Operations since then, which the next fence value is for.
    pub(super) unsignalled: u32,
    /// When the first of them was issued, or of `batched` came.
    pub(super) open_since: Instant,
    /// Up to where it waits for clearing, as in [`ClientStreams::cleared`](crate::submit::client_streams::ClientStreams::cleared).
    pub(super) cleared: Vec<u64>,
    pub(super) completion_predictor: CompletionPredictor,
    /// Where readbacks come to, unless one is under way.
    pub(super) bounce: Option<BounceBuffer>,
    pub(super) wait_predictor: WaitPredictor,
    /// It is among the busy ones, or somebody is looking at it.
    pub(super) listed: bool,
    /// It takes nothing more.
    pub(super) ending: bool,
    /// The driver's stream is gone.
    pub(super) ended: bool,
    /// Since it last had nothing to do, the stream was given a kernel, and the mark is before it.
    pub(super) is_marked: bool,
    /// The driver has had a part of what waits first.
    pub(super) is_amid: bool,
    /// The stream that had the slot before and must finish first.
    pub(super) before: Option<Arc<Stream>>,
}

/// What is known of how long operations took beside others' since the last account of that.
#[derive(Debug)]
pub(super) struct Contention {
    /// Nobody else had work in the device.
    pub(super) is_alone: bool,
    /// What they took, and what they take alone.
    pub(super) took: Duration,
    pub(super) alone: Duration,
    /// By how much earlier ones were faster, in nanoseconds: ends that are seen late make one operation long and the next short.
    pub(super) credit: u64,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            is_alone: true,
            took: Duration::ZERO,
            alone: Duration::ZERO,
            credit: 0,
        }
    }
}

impl Contention {
    /// How often it is settled what others cost.
    const WINDOW: Duration = Duration::from_micros(200);

    /// The most that earlier operations make good.
    const MOST_CREDIT: u64 = 1_000_000;

    /// Operations took so long, and take so long alone. Gives the nanoseconds that others have cost, if it is time to say so;
    /// `others_run` says whether there are any.
    pub(super) fn add_period(
        &mut self,
        took: Duration,
        alone: Duration,
        others_run: impl FnOnce() -> bool,
    ) -> Option<u64> {
        self.took += took;
        self.alone += alone;
        if self.took < Self::WINDOW {
            return None;
        }
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let took = nanoseconds(std::mem::take(&mut self.took));
        let alone = nanoseconds(std::mem::take(&mut self.alone));
        self.is_alone = !others_run();
        if self.is_alone {
            self.credit = 0;
            return None;
        }
        let longer = took.saturating_sub(alone);
        let cost = longer.saturating_sub(self.credit);
        let credit = (self.credit + alone.saturating_sub(took)).saturating_sub(longer);
        self.credit = credit.min(Self::MOST_CREDIT);
        (cost > 0).then_some(cost)
    }
}

/// Of what sort an operation is, and the microseconds that it is expected to take.
pub(super) type Length = (WorkSignature, u32);

#[derive(Debug)]
pub(super) struct Issued {
    /// Which operation it is, or is a part of.
    pub(super) sequence: u64,
    /// Whether no more of that operation comes.
    pub(super) is_last_part: bool,
    /// What the device does for it, if anything.
    pub(super) activity: Option<Activity>,
    pub(super) commands: usize,
    pub(super) length: Length,
    pub(super) fence_value: u32,
    pub(super) result: Result<(), CUresult>,
    /// Where somebody wants to know exactly when it ran.
    pub(super) timing: Option<TimingEvents>,
    pub(super) after: CompletionAction,
}

/// Events around an operation.
#[derive(Debug)]
pub(super) struct TimingEvents {
    /// Before it, unless the operation before it has one behind it.
    pub(super) began: Option<Handle<CUevent>>,
    pub(super) ended: Handle<CUevent>,
}

impl TimingEvents {
    /// Commands that they are for the driver.
    pub(super) fn commands(&self) -> usize {
        1 + usize::from(self.began.is_some())
    }
}

/// An operation that the device did something for.
#[derive(Debug)]
pub(super) struct RanOperation {
    pub(super) sequence: u64,
    pub(super) activity: Activity,
    pub(super) length: Length,
    /// When it began, where that is not when the one before it ended; and when it ended. In nanoseconds of CLOCK_MONOTONIC.
    pub(super) times: Option<(Option<u64>, u64)>,
}

impl StreamState {
    /// Whether anything was taken that no fence value is on its way for.
    pub(super) fn is_open(&self) -> bool {
        self.unsignalled > 0 || !self.gathered.0.is_empty()
    }

    /// Whether the last operation is a readback, of which the data tells that it is over.
    pub(super) fn is_fetching(&self) -> bool {
        let last = self.issued.back();
        last.is_some_and(|last| matches!(last.after, CompletionAction::Deliver(_)))
    }

    /// The driver has something more.
    pub(super) fn push(&mut self, issued: Issued) {
        self.commands += issued.commands;
        self.expected += u64::from(issued.length.1);
        self.issued.push_back(issued);
    }

    /// Whether there is work that has passed the gate.
    pub(super) fn is_under_way(&self) -> bool {
        !self.issued.is_empty() || !self.gathered.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn what_others_cost_is_what_takes_longer_beside_them() {
        let mut company = Contention::default();
        assert_eq!(company.add_period(micros(900), micros(300), || false), None);
        let mut settle = |took, alone| company.add_period(micros(took), micros(alone), || true);
        assert_eq!(settle(900, 300), Some(600_000));
        // Too short to be settled by itself.
        assert_eq!(settle(100, 60), None);
        assert_eq!(settle(100, 60), Some(80_000));
        // One end was seen late, and the next soon.
        assert_eq!(settle(200, 300), None);
        assert_eq!(settle(400, 300), None);
        assert_eq!(settle(400, 300), Some(100_000));
        // What was saved up long ago makes no more good than so much.
        for _ in 0..100 {
            settle(500, 900);
        }
        assert_eq!(settle(3_300, 300), Some(2_000_000));
        assert!(!company.is_alone);
    }
}
