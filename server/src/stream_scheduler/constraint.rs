//! What a record waits for: ordering constraints, dependencies, and what becomes of a record that is admitted.
//!
//! Called by the scheduler's other files. Must not know records' contents.

use cuda_abi::CUresult;
use protocol::operations::{At, STREAM_DEPTH};

use crate::stream_scheduler::completion::CompletionTracker;

/// A position of a stream that must be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dependency {
    /// The stream's slot, or its host barrier.
    pub stream: u32,
    pub until: u64,
}

impl Dependency {
    /// Whether it is.
    pub(super) fn met(self, progress: &CompletionTracker) -> bool {
        progress.completed(self.stream) >= self.until
    }
}

/// What a client may not do. It is disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Work for a stream that was never made.
    #[error("work for stream {0}, which does not exist")]
    NoStream(u32),
    /// The client's numbers have a gap, or go back.
    #[error("stream {stream} went from position {from} to {to}")]
    Sequence {
        /// The stream's slot.
        stream: u32,
        /// The last position taken.
        from: u64,
        /// What came next.
        to: u64,
    },
    /// More unfinished work in a stream than it may have.
    #[error("stream {0} has more than {STREAM_DEPTH} operations unfinished")]
    Depth(u32),
    /// A stream in a slot that is in use or cannot be used.
    #[error("stream {0} made in a slot that is not free")]
    Slot(u32),
    /// A context in a slot that is in use or does not exist.
    #[error("context {0} made in a slot that is not free")]
    Context(u32),
}

/// What stands in a stream's list.
#[derive(Debug)]
pub enum QueueEntry<T> {
    /// A record, to be handed to the engine now.
    Record(T),
    /// A position that the engine never saw and that is complete now, with its result.
    Mark(At, Result<(), CUresult>),
}

/// What happens to a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Hand it to the engine now.
    Submit,
    /// It was put into its stream's list.
    Blocked,
    /// The stream was destroyed before; nothing is before this position, which is to be completed
    /// with an error. A program whose threads race comes to this, so it is no violation.
    Closed,
}

/// What a record asks of the order, beside its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderingConstraint {
    /// Nothing.
    Work,
    /// Nothing; but it is a kernel, and stands in the stream's connection.
    Kernel,
    /// To wait for another stream.
    Wait {
        /// The other stream's slot.
        on: u32,
        /// The position there.
        until: u64,
    },
    /// To wait until the client has released the stream's host barrier up to this very place.
    HostBarrier,
    /// It is the stream's last.
    Last,
}

/// Drops the dependencies that are met, from the end, and asks to be told of the first that is not.
pub(super) fn all_met(dependencies: &mut Vec<Dependency>, progress: &CompletionTracker) -> bool {
    while let Some(&last) = dependencies.last() {
        if !last.met(progress) && !progress.wake_when(last.stream, last.until) {
            return false;
        }
        dependencies.pop();
    }
    true
}

/// Asks to be told when the need that is looked at first is met. If it is by now, that is said too.
pub(super) fn wake_when_met(dependencies: &[Dependency], progress: &CompletionTracker) {
    if dependencies
        .last()
        .is_none_or(|need| progress.wake_when(need.stream, need.until))
    {
        progress.set_ready();
    }
}
