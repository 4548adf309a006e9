//! Signals of semaphores of other interfaces and waits for them: in a stream, and as a node.
//!
//! `api::semaphore` checks them and posts them by this, graphs lower their nodes to it. Knows nothing of what the
//! program may ask for.

use cuda_abi::CUresult;
use cuda_abi::types::{
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS, CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS, CUgraphNodeType,
};
use protocol::operations::{SemaphoreSignal, SemaphoreWait};
use transport::session::EncodedRequest;

use crate::stream::StreamTarget;

/// What is done to semaphores, one after another, as the program described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Described {
    Signal(Box<[CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS]>),
    Wait(Box<[CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS]>),
}

/// A list of semaphores and what is done to each, checked.
#[derive(Debug)]
pub(crate) struct Semaphores {
    /// The handle of the context that it is done in.
    pub context: u64,
    /// The semaphores' handles, by their bits.
    pub handles: Box<[u64]>,
    /// As many as there are handles.
    pub params: Described,
}

impl Semaphores {
    /// The kind of a node of it.
    pub(super) fn kind(&self) -> CUgraphNodeType {
        match self.params {
            Described::Signal(_) => CUgraphNodeType::EXT_SEMAS_SIGNAL,
            Described::Wait(_) => CUgraphNodeType::EXT_SEMAS_WAIT,
        }
    }

    fn signals(&self) -> impl Iterator<Item = SemaphoreSignal> {
        let params: &[_] = match &self.params {
            Described::Signal(params) => params,
            Described::Wait(_) => &[],
        };
        self.handles
            .iter()
            .zip(params)
            .map(|(handle, it)| SemaphoreSignal {
                semaphore: *handle,
                value: it.value,
            })
    }

    fn waits(&self) -> impl Iterator<Item = SemaphoreWait> {
        let params: &[_] = match &self.params {
            Described::Wait(params) => params,
            Described::Signal(_) => &[],
        };
        self.handles
            .iter()
            .zip(params)
            .map(|(handle, it)| SemaphoreWait {
                semaphore: *handle,
                value: it.value,
            })
    }

    /// Its requests, written down.
    pub(super) fn encoded_requests(&self) -> impl Iterator<Item = EncodedRequest> {
        let signals = self.signals().map(|it| EncodedRequest::new(&it, &[]));
        signals.chain(self.waits().map(|it| EncodedRequest::new(&it, &[])))
    }

    /// Puts it into a stream.
    pub(crate) fn enqueue(&self, target: &StreamTarget) -> Result<(), CUresult> {
        self.signals()
            .try_for_each(|it| target.enqueue(&it, &[]).map(drop))?;
        self.waits()
            .try_for_each(|it| target.enqueue(&it, &[]).map(drop))
    }

    /// Whether an executable graph that has one may be given the other.
    pub(super) fn has_form_of(&self, other: &Self) -> bool {
        self.context == other.context && self.handles.len() == other.handles.len()
    }
}
