//! Both ends of a client's session: the four memfds that client and server share, put to use.
//!
//! [`ClientEnd`] is in the client, used by any number of its threads; [`ServerEnd`] is in the server,
//! taken apart into the [`Consumer`] that its one thread for this client has, and the [`Publisher`]
//! that everybody there may use who has something to tell. Owns where things lie in the memory
//! ([`layout`]); knows nothing of what the operations do.

mod client;
pub mod journal;
mod layout;
mod replies;
mod server;
mod staging;
mod takeover;

pub use client::{ClientEnd, Closed, EncodedRequest};
pub use layout::{RECORD_DATA, REPLY_DATA, REPLY_SLOTS, RING_BYTES, STAGING_BYTES, STATUS_BYTES};
pub use replies::{Answer, Reply};
pub use server::{Consumer, NotSent, Publisher, ServerEnd};
pub use staging::{Chunk, Staging};
pub use takeover::Former;

use crate::memory::{MemoryError, Sealed};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The memory of one session, as descriptors: what the daemon makes, and packets carry.
#[derive(Debug)]
pub struct SessionMemory {
    /// The posting ring and the client's waiter words. Written by the client.
    pub ring: Sealed,
    /// Cursors, completion words, times, replies. Written by the server; sealed against others.
    pub status: Sealed,
    /// What pageable copies, images and long replies pass through. Written by both.
    pub staging: Sealed,
    /// The client's page-locked host memory. Written by both.
    pub host: Sealed,
}

impl SessionMemory {
    /// Makes the memory of a new session. Nothing of it is resident before somebody touches it.
    ///
    /// # Errors
    /// When the process has no descriptor left, and the like.
    pub fn create(host_bytes: u64) -> Result<Self, MemoryError> {
        Ok(Self {
            ring: Sealed::create("openmps-ring", RING_BYTES as u64)?,
            // The server seals it against writing once it has its own mapping.
            status: Self::create_status()?,
            staging: Sealed::create("openmps-staging", STAGING_BYTES as u64)?,
            host: Sealed::create("openmps-host", host_bytes)?,
        })
    }

    /// Takes the four descriptors of a Welcome, or the last four of an Admit, in their order.
    ///
    /// # Errors
    /// When they are not four, or not sealed memfds of the right sizes.
    pub fn from_fds(fds: Vec<OwnedFd>, host_bytes: u64) -> Result<Self, MemoryError> {
        let Ok([ring, status, staging, host]) = <[OwnedFd; 4]>::try_from(fds) else {
            return Err(MemoryError::NotSealed);
        };
        Ok(Self {
            ring: Sealed::from_fd(ring, RING_BYTES as u64)?,
            status: Sealed::from_fd(status, STATUS_BYTES as u64)?,
            staging: Sealed::from_fd(staging, STAGING_BYTES as u64)?,
            host: Sealed::from_fd(host, host_bytes)?,
        })
    }

    /// Status memory for another server, which takes the session over: the former one's is its own for ever.
    ///
    /// # Errors
    /// As [`SessionMemory::create`].
    pub fn create_status() -> Result<Sealed, MemoryError> {
        Sealed::create_open("openmps-status", STATUS_BYTES as u64)
    }

    /// The descriptors in the order of the packets.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 4] {
        [
            self.ring.as_fd(),
            self.status.as_fd(),
            self.staging.as_fd(),
            self.host.as_fd(),
        ]
    }
}
