//! Waits for values in memory and writes of values, as cuStreamBatchMemOp does them: in a stream, and as a
//! node.
//!
//! `api::memory_ops` checks the operations and posts them by this, graphs lower their nodes to it. It knows
//! nothing of what the program may ask for.

use cuda_abi::CUresult;
use cuda_abi::types::CUstreamBatchMemOpParams;
use protocol::operations::{ValueWait, Write};
use transport::session::EncodedRequest;

use crate::stream::StreamTarget;

/// One operation, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Wait(ValueWait),
    Write {
        to: u64,
        value: u64,
        bytes: u32,
    },
    /// Nothing: what it asks for holds anyway.
    Nothing,
}

impl Operation {
    /// Its request, written down.
    pub(super) fn encoded_request(&self) -> Option<EncodedRequest> {
        match self {
            Self::Wait(wait) => Some(EncodedRequest::new(wait, &[])),
            Self::Write { to, value, bytes } => {
                let all = value.to_le_bytes();
                Some(EncodedRequest::new(
                    &Write { to: *to },
                    &[&all[..*bytes as usize]],
                ))
            }
            Self::Nothing => None,
        }
    }

    /// Puts it into a stream.
    pub(crate) fn enqueue(&self, target: &StreamTarget) -> Result<(), CUresult> {
        match self {
            Self::Wait(wait) => target.enqueue(wait, &[]).map(drop),
            Self::Write { to, value, bytes } => {
                let all = value.to_le_bytes();
                let data = &all[..*bytes as usize];
                target.enqueue(&Write { to: *to }, &[data]).map(drop)
            }
            Self::Nothing => Ok(()),
        }
    }
}

/// A node of such operations.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The handle of the context that it runs in.
    pub context: u64,
    pub flags: u32,
    /// The operations as the program described them, where it finds them as long as they are the node's.
    pub params: Box<[CUstreamBatchMemOpParams]>,
    pub operations: Box<[Operation]>,
}

impl Batch {
    /// Whether an executable graph that has one may be given the other: only addresses and values change.
    pub(super) fn has_form_of(&self, other: &Self) -> bool {
        let kinds =
            |batch: &Self| -> Vec<u32> { batch.params.iter().map(|it| it.0[0] as u32).collect() };
        self.context == other.context && kinds(self) == kinds(other)
    }
}
