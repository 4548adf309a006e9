//! Page-locked memory whose pages the client makes: it is given addresses of the host window, puts pages and contents
//! there, and then has them page-locked. So what a client registers is made once, by the client's own threads and at its
//! own cgroup's cost, and no page of it is cleared first.
//!
//! Called by `session::page_operations`. Must not know contexts, quotas or what the bytes are.

use std::sync::Arc;

use engine::{Owner, Window};
use rustix::fs::FallocateFlags;
use transport::memory::{Mapping, Sealed};

use crate::memory::mapped_file::FreeAddresses;
use crate::memory::registered_files::RegisteredFiles;

/// Addresses that a client was given, with the pages that it puts there. Dropped when neither the session nor the engine has
/// anything to do with them any more.
#[derive(Debug)]
pub struct ClientPages {
    memory: Arc<Sealed>,
    /// Keeps them mapped.
    window: Arc<Mapping>,
    range: Window,
    free: FreeAddresses,
}

impl ClientPages {
    /// Where they are.
    pub(crate) const fn range(&self) -> Window {
        self.range
    }
}

impl Owner for ClientPages {}

impl Drop for ClientPages {
    fn drop(&mut self) {
        let offset = self.range.base - self.window.base();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Pages that stay are the same client's, and found again by whoever gets the addresses next, who writes over them.
        let _ = rustix::fs::fallocate(&*self.memory, hole, offset, self.range.bytes);
        self.free.lock().push(self.range);
    }
}

/// What a client was given, and whether it is page-locked.
#[derive(Debug)]
pub(super) struct Reserved {
    pages: Arc<ClientPages>,
    is_pinned: bool,
}

impl RegisteredFiles {
    /// Gives the client a range of the window, to make pages there.
    pub(crate) fn reserve_pages(&mut self, range: Window) {
        let pages = Arc::new(ClientPages {
            memory: self.memory.clone(),
            window: self.window.clone(),
            range,
            free: self.free.clone(),
        });
        let reserved = Reserved {
            pages,
            is_pinned: false,
        };
        self.reserved.insert(range.base, reserved);
    }

    /// What the client was given at an address, if it is not page-locked yet.
    pub(crate) fn unpinned_pages(&self, base: u64) -> Option<Arc<ClientPages>> {
        let reserved = self.reserved.get(&base)?;
        (!reserved.is_pinned).then(|| reserved.pages.clone())
    }

    /// Notes that it is page-locked.
    pub(crate) fn set_pinned(&mut self, base: u64) {
        if let Some(reserved) = self.reserved.get_mut(&base) {
            reserved.is_pinned = true;
        }
    }

    /// Forgets what the client was given at an address. Gives its range if it was page-locked.
    pub(crate) fn remove_pages(&mut self, base: u64) -> Option<Window> {
        let reserved = self.reserved.remove(&base)?;
        reserved.is_pinned.then_some(reserved.pages.range)
    }
}
