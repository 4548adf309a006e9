//! Staging memory that is in use by work on its way: given back once the work is done.
//!
//! Owns the chunks that asynchronous copies still read, each with the place in its stream that ends it. Called by
//! copies, through the connection. Must not know what the bytes are.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cuda_abi::CUresult;
use transport::session::Chunk;

use super::connection::Connection;

/// Chunks of staging memory that posted work still reads.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    in_use: Mutex<VecDeque<InUse>>,
}

#[derive(Debug)]
struct InUse {
    /// Given back when this is dropped.
    _chunk: Chunk,
    slot: u32,
    sequence: u64,
}

/// Between looks whether there still is a server that could give staging memory back.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Connection {
    /// A chunk of staging memory; waits while all of it is in use.
    pub(crate) fn stage(&'static self, bytes: usize) -> Result<Chunk, CUresult> {
        let staging = self.link().staging();
        if bytes > staging.bytes() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        loop {
            self.reap();
            if let Some(chunk) = staging.allocate(bytes) {
                return Ok(chunk);
            }
            let oldest = self
                .staged
                .in_use
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .front()
                .map(|oldest| (oldest.slot, oldest.sequence));
            match oldest {
                Some((slot, sequence)) => self.wait(slot, sequence)?,
                // All of it is in the hands of other threads, which wait for the server.
                None => match staging.allocate_within(bytes, LOOK_AGAIN) {
                    Some(chunk) => return Ok(chunk),
                    None => self.check_alive()?,
                },
            }
        }
    }

    /// Keeps a chunk until a stream has reached `sequence`.
    pub(crate) fn reuse_after(&self, chunk: Chunk, slot: u32, sequence: u64) {
        self.staged
            .in_use
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(InUse {
                _chunk: chunk,
                slot,
                sequence,
            });
    }

    /// Gives back the chunks whose work is done.
    fn reap(&self) {
        let mut in_use = self
            .staged
            .in_use
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|used| !self.reached(used.slot, used.sequence));
    }
}
