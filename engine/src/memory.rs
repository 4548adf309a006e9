//! How memory is named between a server and its engine: windows of addresses, mapped regions and handles.
//!
//! Passed through [`Client`](crate::Client)'s methods. Must not know what the memory is for.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Window {
    /// Whether `bytes` bytes from `address` lie in this window.
    #[must_use]
    pub const fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }
}

/// Memory that somebody else mapped, readable and writable, and keeps mapped as long as this lives.
#[derive(Clone, Debug)]
pub struct Region {
    /// Where it is in this process.
    pub window: Window,
    /// Keeps it mapped.
    pub owner: Arc<dyn Owner>,
}

/// Whatever keeps a [`Region`] mapped.
pub trait Owner: Send + Sync + Debug {}

/// Memory of an engine that its server keeps and hands back: what several clients use lives until the last
/// handle is dropped.
#[derive(Clone)]
pub struct MemoryHandle(Arc<dyn Any + Send + Sync>);

impl MemoryHandle {
    /// A handle of the engine's own object.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(thing: Arc<T>) -> Self {
        Self(thing)
    }

    /// The object, if it is of this type: one that another engine made is not.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.clone().downcast().ok()
    }
}

impl Debug for MemoryHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryHandle")
    }
}

/// A piece of a device's memory, as a whole, that another process can have by its descriptor too.
#[derive(Debug)]
pub struct MemoryPiece {
    /// Its bytes.
    pub bytes: u64,
    /// What the device's driver exports it as. The memory stays as long as somebody has it.
    pub descriptor: OwnedFd,
}

/// Memory of this process as another one can have it.
#[derive(Debug)]
pub struct ExportedMemory {
    /// What it lies in, in order.
    pub pieces: Vec<MemoryPiece>,
    /// How many bytes behind the beginning of the first it begins.
    pub offset: u64,
}
