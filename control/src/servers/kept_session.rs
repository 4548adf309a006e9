//! What the daemon keeps of a session that another server can take over: a copy of every descriptor that makes it up.
//!
//! These are the client's connection, which says who it is, the memory that client and server share, and the files of its
//! device windows. Kept by `registry` with each server. Must not know what is in that memory.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use engine::arena::{EXTENT, HOST_BYTES};
use transport::background_close;
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
    /// Device memory that its server has told of, by device and address.
    pub chunks: BTreeMap<(u32, u64), KeptChunk>,
    /// Of a session that goes on: its former status, and where its windows lay.
    pub former: Option<(Sealed, Vec<u64>)>,
    /// When it was last taken over, and how often in a row.
    takeovers: Option<(Instant, u32)>,
}

/// A chunk of device memory, which stays as long as it is kept here.
#[derive(Debug)]
pub struct KeptChunk {
    /// Its bytes.
    pub bytes: u64,
    /// What came with what the server said of it. Servers are trusted no more than their users: it can be anything.
    descriptors: Vec<OwnedFd>,
}

impl KeptChunk {
    /// What a server says to be one, with what came beside that.
    #[must_use]
    pub const fn new(bytes: u64, descriptors: Vec<OwnedFd>) -> Self {
        Self { bytes, descriptors }
    }

    /// What the device's driver exports it as, if just that came.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.descriptors[..] {
            [one] => Some(one.as_fd()),
            _ => None,
        }
    }
}

impl Drop for KeptChunk {
    fn drop(&mut self) {
        let descriptors = std::mem::take(&mut self.descriptors);
        if !descriptors.is_empty() {
            background_close::run(move || drop(descriptors));
        }
    }
}

/// Chunks of a session that are kept: one that has more is not taken over.
pub const MOST_CHUNKS: usize = 1024;

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
            chunks: BTreeMap::new(),
            former: None,
            takeovers: None,
        })
    }

    /// The memory with which another server goes on. `None` if that was done too often, of which those times do not count at
    /// which it is known that another client was why.
    #[must_use]
    pub fn taken_over(self, bases: Vec<u64>, is_innocent: bool) -> Option<Self> {
        let now = Instant::now();
        let before = self.takeovers;
        let takeovers = match before {
            _ if is_innocent => before,
            Some((last, count)) if now - last < IN_A_ROW => Some((now, count + 1)),
            _ => Some((now, 1)),
        };
        let in_a_row = takeovers.map_or(0, |(_, count)| count);
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
            chunks: self.chunks,
            former: Some((status, bases)),
            takeovers,
        })
    }
}
