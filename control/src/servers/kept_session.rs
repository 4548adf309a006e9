//! What the daemon keeps of a session that another server can take over: a copy of every descriptor that makes it up.
//!
//! These are the client's connection, which says who it is, the memory that client and server share, and the files of its
//! device windows. Kept by `registry` with each server. Must not know what is in that memory.

use std::time::{Duration, Instant};

use engine::arena::{EXTENT, HOST_BYTES};
use transport::memory::{MemoryError, Sealed};
use transport::session::SessionMemory;

use crate::servers::registry::WaitingClient;

/// Takeovers in a row, each within [`IN_A_ROW`] of the one before, after which a session is not taken over again: it may be
/// what ends its servers.
const MOST_TAKEOVERS: u32 = 4;
const IN_A_ROW: Duration = Duration::from_secs(60);

/// The memory that a client's session is given.
#[derive(Debug)]
pub struct KeptMemory {
    /// What client and server share.
    pub memory: SessionMemory,
    /// What its device windows lie in: none if no other server can take the session over.
    pub files: Vec<Sealed>,
    /// Of a session that goes on: its former status, and where its windows lay.
    pub former: Option<(Sealed, Vec<u64>)>,
    /// When it was last taken over, and how often in a row.
    takeovers: Option<(Instant, u32)>,
}

/// A session that another server can take over.
#[derive(Debug)]
pub struct KeptSession {
    /// Its client as it came, with its connection and its memory.
    pub client: WaitingClient,
    /// Where its windows lie, once its server has said so.
    pub bases: Vec<u64>,
}

impl KeptMemory {
    /// Makes the memory of a new session.
    ///
    /// # Errors
    /// When the process has no descriptor left, and the like.
    pub fn create(devices: usize) -> Result<Self, MemoryError> {
        let file = |_| Sealed::create("openmps-device", EXTENT);
        Ok(Self {
            memory: SessionMemory::create(HOST_BYTES)?,
            files: (0..devices).map(file).collect::<Result<_, _>>()?,
            former: None,
            takeovers: None,
        })
    }

    /// The memory with which another server goes on. `None` if that was done too often.
    #[must_use]
    pub fn taken_over(self, bases: Vec<u64>) -> Option<Self> {
        let now = Instant::now();
        let in_a_row = match self.takeovers {
            Some((last, count)) if now - last < IN_A_ROW => count + 1,
            _ => 1,
        };
        let SessionMemory {
            ring,
            status,
            staging,
            host,
        } = self.memory;
        let next = SessionMemory::create_status().ok()?;
        (in_a_row <= MOST_TAKEOVERS).then_some(Self {
            memory: SessionMemory {
                ring,
                status: next,
                staging,
                host,
            },
            files: self.files,
            former: Some((status, bases)),
            takeovers: Some((now, in_a_row)),
        })
    }
}
