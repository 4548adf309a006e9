//! Events that were recorded in captures.

use std::sync::Arc;

use cuda_abi::CUresult;

use super::{CAPTURED, Capture};
use crate::graph::From;
use crate::stream::Target;

/// What an event that was recorded in a capture stands for.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    capture: Arc<Capture>,
    front: Vec<From>,
}

impl Mark {
    pub(super) fn new(capture: &Arc<Capture>, front: Vec<From>) -> Self {
        Self {
            capture: Arc::clone(capture),
            front,
        }
    }

    /// Whether it was recorded in this capture.
    pub(super) fn is_of(&self, capture: &Arc<Capture>) -> bool {
        Arc::ptr_eq(&self.capture, capture)
    }

    /// The nodes that it stands behind.
    pub(super) fn into_front(self) -> Vec<From> {
        self.front
    }

    /// Refuses a mark of a capture that is over.
    pub(super) fn check(&self) -> Result<(), CUresult> {
        match self.capture.state().over {
            true => Err(CUresult::ERROR_INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// Breaks its capture.
    pub(super) fn break_it(&self) {
        self.capture.state().broken = true;
    }

    /// The error for asking or waiting for the event as if it were recorded.
    pub(crate) fn asked(&self, breaks: bool) -> CUresult {
        let mut state = self.capture.state();
        if state.over {
            return CUresult::ERROR_INVALID_VALUE;
        }
        state.broken |= breaks;
        CUresult::ERROR_CAPTURED_EVENT
    }

    /// Has a stream that is not captured wait for the event: it joins the capture.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the capture is over, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for a
    /// legacy stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION for a stream of another context.
    pub(crate) fn take_in(self, target: &Target) -> Result<(), CUresult> {
        let capture = &self.capture;
        let mut own = target.stream.capture();
        let mut state = capture.state();
        if state.over {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if target.slot == target.current.slot() {
            state.broken = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        state.check()?;
        if own.is_some() {
            return Err(CUresult::ERROR_ILLEGAL_STATE);
        }
        if target.stream.context() != capture.context {
            state.broken = true;
            return Err(CUresult::ERROR_STREAM_CAPTURE_ISOLATION);
        }
        capture.join(target, &mut state, self.front);
        *own = Some(Arc::clone(capture));
        target.stream.set_special(CAPTURED, true);
        Ok(())
    }
}
