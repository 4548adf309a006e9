//! What a stream knows of being captured: that what is put into it goes to a capture instead, and that an event
//! recorded there is a place in that capture.
//!
//! `graph::capture` implements the traits. Streams, events, copies and launches ask them; none of these knows
//! what a capture makes of the operations.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use cuda_abi::CUresult;
use cuda_abi::types::CUevent;
use protocol::operations::Opcode;
use transport::session::EncodedRequest;

use crate::handle::Key;

/// Bit of [`Stream::mode_bits`](super::Stream::mode_bits): the stream is captured.
pub(crate) const CAPTURED: u32 = 1;
/// Bit of [`Stream::mode_bits`](super::Stream::mode_bits): it is a legacy stream, and a stream that it waits for
/// is captured.
pub(crate) const BESIDE: u32 = 2;
/// Bit of [`Stream::mode_bits`](super::Stream::mode_bits): launches wait for their kernels
/// (CUDA_LAUNCH_BLOCKING).
pub(crate) const LAUNCH_BLOCKING: u32 = 4;

/// An operation on its way into a capture.
#[derive(Debug)]
pub(crate) enum Operation {
    /// One that graphs describe: a launch, a copy, a host function.
    Described(Box<dyn Any + Send + Sync>),
    /// A request that no function of the graph interfaces describes.
    Encoded {
        opcode: Opcode,
        /// The handle of the context that it belongs to.
        context: u64,
        written: Arc<EncodedRequest>,
    },
}

/// What a stream that is captured is to wait for.
#[derive(Debug)]
pub(crate) enum WaitFor {
    /// An event that was never recorded.
    Nothing,
    /// An event that was recorded in a stream that is not captured.
    Outside,
    /// An event that was recorded in a capture.
    CapturedEvent(Arc<dyn CapturedEvent>),
    /// The event of this handle as it stands when the graph runs.
    External(CUevent),
}

/// A capture that a stream is in. Streams are named by their slots.
pub(crate) trait Capture: Any + Debug + Send + Sync {
    /// Adds an operation behind all that a stream did.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the capture is broken.
    fn add(&self, slot: u32, operation: Operation) -> Result<(), CUresult>;

    /// What an event stands for that is recorded in a stream now.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED if the capture is broken.
    fn mark(self: Arc<Self>, slot: u32) -> Result<Arc<dyn CapturedEvent>, CUresult>;

    /// Has one of its streams wait.
    ///
    /// # Errors
    /// Those of CUDA for what cannot be waited for in a capture, which breaks it.
    fn wait(self: Arc<Self>, slot: u32, what: WaitFor) -> Result<(), CUresult>;

    /// Breaks it, because of something that cannot be captured: it goes on, and gives no graph.
    fn invalidate(&self);

    /// It as whoever implements it knows it.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// What an event stands for that was recorded in a capture.
pub(crate) trait CapturedEvent: Any + Debug + Send + Sync {
    /// The error for asking or waiting for the event as if it were recorded. `breaks` is whether that breaks
    /// the capture.
    fn asked(&self, breaks: bool) -> CUresult;

    /// Has a stream that is not captured wait for the event: it joins the capture.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the capture is over, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for a
    /// legacy stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION for a stream of another context.
    fn take_in(&self, slot: u32) -> Result<(), CUresult>;

    /// It as whoever implements it knows it.
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// All captures of the process.
pub(crate) trait Captures: Debug + Send + Sync {
    /// Refuses a call that may be unsafe while captures are under way whose modes forbid it to this
    /// thread, and breaks them.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
    fn forbid_unsafe(&self) -> Result<(), CUresult>;

    /// Breaks the captures that a legacy stream, by its slot, would wait for.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT if there are any.
    fn break_beside(&self, legacy: u32) -> Result<(), CUresult>;

    /// A captured stream ends.
    fn stream_ends(&self, key: Key);
}
