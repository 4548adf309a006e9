//! Staging memory, as the client hands it out to its threads: an allocator of chunks, first fit.
//!
//! Pageable copies, images and long replies pass through it. The server is told offsets, and checks them itself.
//! Called by the client's end. Must not know what the bytes are.

#![allow(
    clippy::disallowed_types,
    reason = "models are of the ring, without sessions"
)]

use crate::memory::Mapping;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Chunks begin and end at multiples of this many bytes: no two share a cache line.
const GRAIN: usize = 128;

/// The staging memory of a client; clones are the same memory.
#[derive(Clone, Debug)]
pub struct Staging {
    memory: Arc<StagingMemory>,
}

#[derive(Debug)]
struct StagingMemory {
    mapping: Mapping,
    /// Free ranges: bytes by offset. Neighbours are always joined.
    free: Mutex<BTreeMap<usize, usize>>,
    freed: Condvar,
}

/// A piece of staging memory; free again when dropped. Drop it when the server is through with it.
#[derive(Debug)]
pub struct Chunk {
    memory: Arc<StagingMemory>,
    offset: usize,
    len: usize,
}

impl Staging {
    pub(super) fn new(mapping: Mapping) -> Self {
        let free = Mutex::new(BTreeMap::from([(0, mapping.len())]));
        Self {
            memory: Arc::new(StagingMemory {
                mapping,
                free,
                freed: Condvar::new(),
            }),
        }
    }

    /// All of it, in bytes; no chunk can be larger.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.mapping.len()
    }

    /// Takes a chunk of `bytes` bytes, or none if there is no such room. Takes the first place that
    /// fits, so that few pages are ever touched.
    #[must_use]
    pub fn allocate(&self, bytes: usize) -> Option<Chunk> {
        self.allocate_within(bytes, Duration::ZERO)
    }

    /// As [`Staging::allocate`], but waits for other chunks to be dropped, for at most `most`.
    #[must_use]
    pub fn allocate_within(&self, bytes: usize, most: Duration) -> Option<Chunk> {
        let size = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        if size > self.bytes() {
            return None;
        }
        let deadline = Instant::now() + most;
        let memory = &self.memory;
        // Nothing in the critical sections can panic.
        let mut free = memory.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let found = free
                .iter()
                .find(|(_, room)| **room >= size)
                .map(|(at, room)| (*at, *room));
            if let Some((offset, room)) = found {
                free.remove(&offset);
                if room > size {
                    free.insert(offset + size, room - size);
                }
                return Some(Chunk {
                    memory: memory.clone(),
                    offset,
                    len: bytes,
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            free = memory
                .freed
                .wait_timeout(free, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Chunk {
    /// Where it lies in staging memory, for requests.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Bytes, as asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none were asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn check(&self, at: usize, bytes: usize) {
        assert!(
            bytes <= self.len && at <= self.len - bytes,
            "{bytes} bytes at {at} are not in a chunk of {}",
            self.len
        );
    }

    /// Copies bytes into it, from its byte `at` on.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        self.memory.mapping.copy_in(self.offset + at, from);
    }

    /// Copies bytes out of it, from its byte `at` on.
    ///
    /// # Panics
    /// When they are not there.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        self.memory.mapping.copy_out(self.offset + at, into);
    }

    /// As [`Chunk::copy_in`], from memory that the program gave a pointer to.
    ///
    /// # Safety
    /// `from` must be readable for `bytes` bytes; the program keeps that.
    ///
    /// # Panics
    /// When they do not fit.
    pub unsafe fn copy_in_from(&self, at: usize, from: *const u8, bytes: usize) {
        self.check(at, bytes);
        // SAFETY: the caller's promise is the same.
        unsafe {
            self.memory
                .mapping
                .copy_in_from(self.offset + at, from, bytes);
        }
    }

    /// As [`Chunk::copy_out`], into memory that the program gave a pointer to.
    ///
    /// # Safety
    /// `into` must be writable for `bytes` bytes; the program keeps that.
    ///
    /// # Panics
    /// When they are not there.
    pub unsafe fn copy_out_to(&self, at: usize, into: *mut u8, bytes: usize) {
        self.check(at, bytes);
        // SAFETY: the caller's promise is the same.
        unsafe {
            self.memory
                .mapping
                .copy_out_to(self.offset + at, into, bytes);
        }
    }

    /// As [`Chunk::copy_out_to`], and leaves the processor's caches to others: for what is too large to
    /// stay in them. What this thread does later is not seen before the bytes are.
    ///
    /// # Safety
    /// As [`Chunk::copy_out_to`].
    ///
    /// # Panics
    /// When they are not there.
    pub unsafe fn copy_out_non_temporal(&self, at: usize, into: *mut u8, bytes: usize) {
        self.check(at, bytes);
        // SAFETY: the caller's promise is the same.
        unsafe {
            self.memory
                .mapping
                .copy_out_non_temporal(self.offset + at, into, bytes);
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut offset = self.offset;
        let mut size = self.len.max(1).next_multiple_of(GRAIN);
        let mut free = self
            .memory
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(after) = free.remove(&(offset + size)) {
            size += after;
        }
        let before = free
            .range(..offset)
            .next_back()
            .map(|(at, room)| (*at, *room));
        if let Some((at, room)) = before.filter(|(at, room)| at + room == offset) {
            offset = at;
            size += room;
        }
        free.insert(offset, size);
        drop(free);
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Sealed;

    #[test]
    #[cfg_attr(miri, ignore = "maps shared memory, which Miri does not know")]
    fn chunks_do_not_overlap_and_join_again_in_any_order() {
        let memory = Sealed::create("staging-test", 1 << 16).unwrap();
        let staging = Staging::new(Mapping::map(&memory).unwrap());
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut chunks: Vec<_> = [1000, 1 << 15, 200]
                .map(|bytes| staging.allocate(bytes))
                .into();
            for (one, chunk) in chunks.iter().enumerate() {
                let chunk = chunk.as_ref().unwrap();
                for other in chunks[one + 1..].iter().flatten() {
                    assert!(chunk.offset + chunk.len <= other.offset);
                }
            }
            assert!(staging.allocate(1 << 15).is_none());
            for index in order {
                chunks[index] = None;
            }
            assert!(staging.allocate(1 << 16).is_some());
        }
        assert!(staging.allocate((1 << 16) + 1).is_none());
        assert!(staging.allocate(usize::MAX).is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps shared memory, which Miri does not know")]
    fn a_thread_that_waits_gets_what_another_drops() {
        let memory = Sealed::create("staging-test", 1 << 12).unwrap();
        let staging = Staging::new(Mapping::map(&memory).unwrap());
        let all = staging.allocate(1 << 12).unwrap();
        all.copy_in(10, b"bytes");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| staging.allocate_within(128, Duration::from_secs(30)));
            std::thread::sleep(Duration::from_millis(20));
            drop(all);
            let chunk = waiter.join().unwrap().unwrap();
            let mut bytes = [0; 5];
            chunk.copy_out(10, &mut bytes);
            assert_eq!(&bytes, b"bytes");
        });
    }
}
