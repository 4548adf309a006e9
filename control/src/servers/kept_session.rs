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

use crate::servers::registry::{ServerId, WaitingClient};

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
    /// The windows that it has beside its first ones, by address, as its server has told.
    pub windows: BTreeMap<u64, KeptWindow>,
    /// How many of these windows and chunks a next server was told of, and which.
    pub told: (Option<ServerId>, usize),
    /// Of a session that goes on: its former status, and where its windows lay.
    pub former: Option<(Sealed, Vec<u64>)>,
    /// How often it was handed to a further server.
    pub takeover: u64,
    /// When it was last taken over, and how often in a row.
    takeovers: Option<(Instant, u32)>,
}

/// A chunk of device memory, which stays as long as it is kept here.
#[derive(Debug)]
pub struct KeptChunk {
    /// Its bytes.
    pub bytes: u64,
    descriptors: Descriptors,
}

/// A window that a session has beside its first ones.
#[derive(Debug)]
pub struct KeptWindow {
    /// The number of its device.
    pub device: u32,
    /// Its bytes.
    pub bytes: u64,
    descriptors: Descriptors,
}

/// What came with what a server said. Servers are trusted no more than their users: it can be anything.
#[derive(Debug)]
struct Descriptors(Vec<OwnedFd>);

impl Drop for Descriptors {
    fn drop(&mut self) {
        background_close::close(std::mem::take(&mut self.0));
    }
}

impl KeptChunk {
    /// What a server says to be one, with what came beside that.
    #[must_use]
    pub const fn new(bytes: u64, descriptors: Vec<OwnedFd>) -> Self {
        Self {
            bytes,
            descriptors: Descriptors(descriptors),
        }
    }

    /// What the device's driver exports it as, if just that came.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.descriptors.0[..] {
            [one] => Some(one.as_fd()),
            _ => None,
        }
    }
}

impl KeptWindow {
    /// What a server says to be one, with what came beside that.
    #[must_use]
    pub const fn new(device: u32, bytes: u64, descriptors: Vec<OwnedFd>) -> Self {
        Self {
            device,
            bytes,
            descriptors: Descriptors(descriptors),
        }
    }

    /// What its memory lies in, if that is a file.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors.0.first().map(AsFd::as_fd)
    }

    /// Whether not more came with it than can be.
    const fn is_sound(&self) -> bool {
        self.descriptors.0.len() <= 1
    }
}

/// Chunks of a session that are kept: one that has more is not taken over. 40 GiB in blocks of 20 MiB lie in 1,700.
const MOST_CHUNKS: usize = 4096;

/// Windows of a session, beside its first ones, that are kept: as many as a server gives to one.
const MOST_WINDOWS: usize = 256;

/// A session that another server can take over.
#[derive(Debug)]
pub struct KeptSession {
    /// Its client as it came, with its connection and its memory.
    pub client: WaitingClient,
    /// Where its windows lie, once its server has said so.
    pub bases: Vec<u64>,
}

impl KeptSession {
    /// Whether a server has said that it has it, be it one before the last.
    pub fn has_begun(&self) -> bool {
        let memory = self.client.memory.as_ref();
        !self.bases.is_empty() || memory.is_some_and(|memory| memory.former.is_some())
    }
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
            windows: BTreeMap::new(),
            told: (None, 0),
            former: None,
            takeover: 0,
            takeovers: None,
        })
    }

    /// Keeps a chunk, by device and address. Whether it came, and there is room for it.
    #[must_use]
    pub fn add_chunk(&mut self, place: (u32, u64), chunk: KeptChunk) -> bool {
        let is_kept = chunk.descriptor().is_some()
            && (self.chunks.len() < MOST_CHUNKS || self.chunks.contains_key(&place));
        if is_kept {
            self.chunks.insert(place, chunk);
        }
        is_kept
    }

    /// Keeps a window, by its address. Whether it can be one, and there is room for it.
    #[must_use]
    pub fn add_window(&mut self, base: u64, window: KeptWindow) -> bool {
        let is_kept = window.is_sound()
            && (self.windows.len() < MOST_WINDOWS || self.windows.contains_key(&base));
        if is_kept {
            self.windows.insert(base, window);
        }
        is_kept
    }

    /// The memory with which another server goes on. Its server has said where its windows lie; if it has not, the next one begins
    /// where that was to begin: it has done nothing yet. `None` if that was done too often, of which those times do not count at
    /// which it is known that another client was why.
    #[must_use]
    pub fn taken_over(mut self, bases: Vec<u64>, is_innocent: bool) -> Option<Self> {
        let now = Instant::now();
        self.takeovers = match self.takeovers {
            before if is_innocent => before,
            Some((last, count)) if now - last < IN_A_ROW => Some((now, count + 1)),
            _ => Some((now, 1)),
        };
        if self
            .takeovers
            .is_some_and(|(_, count)| count > MOST_TAKEOVERS)
        {
            return None;
        }
        // A new one in any case: whoever has ended may have welcomed the client with that one.
        let next = SessionMemory::create_status().ok()?;
        let status = std::mem::replace(&mut self.memory.status, next);
        if !bases.is_empty() {
            self.former = Some((status, bases));
        }
        self.told = (None, 0);
        self.takeover += 1;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        let file = || std::fs::File::open("/dev/null").expect("a file");
        (0..count).map(|_| file().into()).collect()
    }

    #[test]
    fn so_many_windows_are_kept_and_what_can_be_none_is_not() {
        let mut kept = KeptMemory::create(1).expect("memory");
        let window = |count| KeptWindow::new(0, EXTENT, descriptors(count));
        for number in 0..MOST_WINDOWS as u64 {
            assert!(kept.add_window(number * EXTENT, window(0)));
        }
        let next = MOST_WINDOWS as u64 * EXTENT;
        assert!(!kept.add_window(next, window(0)), "too many");
        assert!(kept.add_window(0, window(1)), "in the place of the same");
        assert!(!kept.add_window(0, window(2)), "what came is no file");
        assert_eq!(kept.windows.len(), MOST_WINDOWS);
        kept.windows.remove(&EXTENT);
        assert!(kept.add_window(next, window(1)));
        let next = kept.taken_over(vec![1], false).expect("once");
        assert_eq!(next.windows.len(), MOST_WINDOWS);
        assert!(next.windows[&0].file().is_some());
    }

    #[test]
    fn what_nobody_has_begun_with_is_handed_on_as_it_was() {
        let inode = |status: &Sealed| rustix::fs::fstat(status).expect("a file").st_ino;
        let first = KeptMemory::create(1).expect("memory");
        let begun = inode(&first.memory.status);
        let second = first.taken_over(vec![7], false).expect("once");
        let welcomed = inode(&second.memory.status);
        let third = second.taken_over(Vec::new(), false).expect("twice");
        assert_eq!(third.takeover, 2);
        let status = inode(&third.memory.status);
        assert!(status != welcomed && status != begun);
        let (former, bases) = third.former.as_ref().expect("what the first one left");
        assert_eq!((inode(former), &bases[..]), (begun, &[7][..]));
        // It may be what ends them.
        let fourth = third.taken_over(Vec::new(), false).expect("thrice");
        let fifth = fourth.taken_over(Vec::new(), false).expect("four times");
        assert!(fifth.taken_over(Vec::new(), false).is_none());
    }

    #[test]
    fn so_many_chunks_are_kept_and_those_that_did_not_come_are_not() {
        let mut kept = KeptMemory::create(1).expect("memory");
        let chunk = |count| KeptChunk::new(2 << 20, descriptors(count));
        for number in 0..MOST_CHUNKS as u64 {
            assert!(kept.add_chunk((0, number << 21), chunk(1)));
        }
        assert!(!kept.add_chunk((1, 0), chunk(1)), "too many");
        assert!(kept.add_chunk((0, 0), chunk(1)), "in the place of the same");
        assert!(!kept.add_chunk((0, 0), chunk(0)), "it did not come");
        assert!(!kept.add_chunk((0, 0), chunk(2)), "there are two");
    }
}
