//! Memory that a client has: at addresses of the arena, and given back with the client.
//!
//! Called by the rig. Must not know what cases do there.

use std::sync::{Arc, Mutex, Weak};

use rustix::mm::{MapFlags, ProtFlags};

use super::lock;
use crate::arena::Arena;
use crate::{Owner, Window};

/// Bytes of a window: more than any case commits at its beginning.
const WINDOW: u64 = 32 << 30;

/// Extents are in one hand at a time in this process too.
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Anonymous shared memory, at an address of the arena.
#[derive(Debug)]
pub struct Memory {
    /// Its addresses.
    pub window: Window,
}

impl Memory {
    /// Maps memory there, which nothing may be yet.
    pub fn map(window: Window) -> Arc<Self> {
        let memory = Self::map_with(window, MapFlags::FIXED_NOREPLACE);
        assert_eq!(memory.window, window, "the arena's addresses are free");
        memory
    }

    /// Maps memory that an engine may keep for longer than the client has its addresses.
    pub fn anywhere(bytes: u64) -> Arc<Self> {
        Self::map_with(Window { base: 0, bytes }, MapFlags::empty())
    }

    fn map_with(window: Window, how: MapFlags) -> Arc<Self> {
        // SAFETY: nothing is replaced, and what is mapped is only reached through this object.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                window.base as *mut _,
                window.bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE | how,
            )
        };
        let base = at.expect("the addresses are free") as u64;
        Arc::new(Self {
            window: Window { base, ..window },
        })
    }

    /// Puts bytes into it.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.window.bytes);
        let to = (self.window.base + offset) as *mut u8;
        // SAFETY: the range is inside the mapping, and no reference into it exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Takes bytes out of it.
    pub fn read(&self, offset: u64, bytes: u64) -> Vec<u8> {
        assert!(offset + bytes <= self.window.bytes);
        let mut out = vec![0; bytes as usize];
        let from = (self.window.base + offset) as *const u8;
        // SAFETY: the range is inside the mapping, and no reference into it exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        out
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; engines keep an Arc of this object while they may touch it.
        let _ =
            unsafe { rustix::mm::munmap(self.window.base as *mut _, self.window.bytes as usize) };
    }
}

impl Owner for Memory {}

/// Extents, given back when dropped.
#[derive(Debug)]
pub struct Extents(pub Vec<Window>);

impl Extents {
    /// Takes so many windows.
    pub fn take(count: usize) -> Arc<Self> {
        Self::of(&vec![WINDOW; count])
    }

    fn of(sizes: &[u64]) -> Arc<Self> {
        let mut arena = lock(&ARENA);
        let extents = arena.get_or_insert_default().allocate(sizes);
        Arc::new(Self(extents.expect("the arena has room for the suite")))
    }
}

/// Addresses that no client has yet.
#[derive(Debug)]
pub struct More {
    extents: Arc<Extents>,
    given: Vec<Weak<ExtentsOwner>>,
}

/// A part of them in an engine's hands.
#[derive(Debug)]
struct ExtentsOwner(#[expect(dead_code, reason = "kept for its drop")] Arc<Extents>);

impl Owner for ExtentsOwner {}

/// Takes so many bytes of addresses, in one window.
#[must_use]
pub fn more_addresses(bytes: u64) -> More {
    More {
        extents: Extents::of(&[bytes]),
        given: Vec::new(),
    }
}

impl More {
    /// The window.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.extents.0
    }

    /// What an engine holds of a part.
    #[must_use]
    pub fn owner(&mut self) -> Arc<dyn Owner> {
        let part = Arc::new(ExtentsOwner(Arc::clone(&self.extents)));
        self.given.push(Arc::downgrade(&part));
        part
    }

    /// Whether no engine holds any.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.given.iter().all(|part| part.strong_count() == 0)
    }
}

impl Owner for Extents {}

impl Drop for Extents {
    fn drop(&mut self) {
        if let Some(arena) = lock(&ARENA).as_mut() {
            for window in &self.0 {
                arena.release(window);
            }
        }
    }
}
