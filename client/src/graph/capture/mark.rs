//! Events that were recorded in captures.
//!
//! A mark is a copy of the frontier that the event's stream had; a stream that waits for the event joins the
//! capture with it. `stream::event` keeps it and knows nothing of what is in it.

use std::any::Any;
use std::sync::Arc;

use cuda_abi::CUresult;
use protocol::operations::CONTEXT_SLOTS;

use super::Capture;
use crate::graph::From;
use crate::stream::capture::{self, CAPTURED};

/// What an event that was recorded in a capture stands for.
#[derive(Clone, Debug)]
pub(crate) struct CapturePoint {
    capture: Arc<Capture>,
    frontier: Vec<From>,
}

impl CapturePoint {
    pub(super) fn new(capture: &Arc<Capture>, frontier: Vec<From>) -> Self {
        Self {
            capture: Arc::clone(capture),
            frontier,
        }
    }

    /// Whether it was recorded in this capture.
    pub(super) fn is_of(&self, capture: &Arc<Capture>) -> bool {
        Arc::ptr_eq(&self.capture, capture)
    }

    /// The nodes that it stands behind.
    pub(super) fn frontier(&self) -> &[From] {
        &self.frontier
    }

    /// Refuses a mark of a capture that is over.
    pub(super) fn check(&self) -> Result<(), CUresult> {
        match self.capture.state().over {
            true => Err(CUresult::ERROR_INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// Breaks its capture.
    pub(super) fn invalidate_capture(&self) {
        self.capture.state().broken = true;
    }
}

impl capture::CapturedEvent for CapturePoint {
    fn asked(&self, breaks: bool) -> CUresult {
        let mut state = self.capture.state();
        if state.over {
            return CUresult::ERROR_INVALID_VALUE;
        }
        state.broken |= breaks;
        CUresult::ERROR_CAPTURED_EVENT
    }

    fn take_in(&self, slot: u32) -> Result<(), CUresult> {
        let capture = &self.capture;
        let stream = capture.captures.graphs.streams.at(slot);
        let stream = stream.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        let mut own = stream.capture();
        let mut state = capture.state();
        if state.over {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // The first streams are the contexts' legacy ones.
        if slot < CONTEXT_SLOTS {
            state.broken = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        state.check()?;
        if own.is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        if stream.context() != capture.context {
            state.broken = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
        }
        capture.join(slot, stream, &mut state, self.frontier.clone());
        *own = Some(Arc::<Capture>::clone(capture));
        stream.set_mode_bit(CAPTURED, true);
        Ok(())
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}
