//! Memory that the program imported as another interface's, what it has mapped of it, and semaphores.
//!
//! Owns the bookkeeping. The memory itself is physical memory as any other (`crate::memory::virtual_memory`).
//!
//! Called by `api::external` and `api::semaphore` alone. Must not ask the server.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What marks a handle, which is a number and no pointer.
const MARK: u64 = 0x45 << 56;

/// What marks a semaphore's.
const SEMAPHORE: u64 = 0x53 << 56;

/// Imported memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Imported {
    /// The handle of the physical memory.
    pub physical: u64,
    /// Bytes, as the program says.
    pub bytes: u64,
}

/// A part of it that is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    /// Where all of the memory is mapped.
    pub base: u64,
    /// Bytes of all of it.
    pub bytes: usize,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Externals {
    state: Mutex<ExternalTable>,
}

#[derive(Debug, Default)]
struct ExternalTable {
    last: u64,
    imported: HashMap<u64, Imported>,
    /// By the address that the program has.
    buffers: HashMap<u64, Buffer>,
    semaphores: HashSet<u64>,
}

impl Externals {
    fn state(&self) -> MutexGuard<'_, ExternalTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes imported memory. Gives its handle.
    pub(crate) fn add(&self, imported: Imported) -> u64 {
        let mut state = self.state();
        state.last += 1;
        let handle = MARK | state.last;
        state.imported.insert(handle, imported);
        handle
    }

    /// The memory of a handle.
    pub(crate) fn get(&self, handle: u64) -> Option<Imported> {
        self.state().imported.get(&handle).copied()
    }

    /// Forgets the memory of a handle.
    pub(crate) fn remove(&self, handle: u64) -> Option<Imported> {
        self.state().imported.remove(&handle)
    }

    /// Notes what is mapped for an address of the program's.
    pub(crate) fn map(&self, address: u64, buffer: Buffer) {
        self.state().buffers.insert(address, buffer);
    }

    /// Forgets what is mapped for an address of the program's.
    pub(crate) fn unmap(&self, address: u64) -> Option<Buffer> {
        self.state().buffers.remove(&address)
    }

    /// A handle for a semaphore.
    pub(crate) fn new_semaphore(&self) -> u64 {
        let mut state = self.state();
        state.last += 1;
        SEMAPHORE | state.last
    }

    /// Notes that a semaphore was imported under a handle.
    pub(crate) fn add_semaphore(&self, handle: u64) {
        self.state().semaphores.insert(handle);
    }

    /// Whether a handle is an imported semaphore's.
    pub(crate) fn is_semaphore(&self, handle: u64) -> bool {
        self.state().semaphores.contains(&handle)
    }

    /// Forgets a semaphore. Whether there was one.
    pub(crate) fn remove_semaphore(&self, handle: u64) -> bool {
        self.state().semaphores.remove(&handle)
    }
}
