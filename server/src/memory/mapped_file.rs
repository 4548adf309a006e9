//! Files mapped over addresses of clients, and which of them lack pages.
//!
//! `registered_files` maps them; the engine's threads ask, by way of the observer, whether one was cut short.
//! Knows nothing of sessions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use engine::{Owner, Window};
use parking_lot::Mutex;
use transport::memory::{Overlay, torn_pages};

/// Addresses over which nothing is mapped any more.
pub type FreeAddresses = Arc<Mutex<Vec<Window>>>;

/// A file's part, mapped here. Dropped when neither the session nor the engine has anything to do with it any more.
#[derive(Debug)]
pub struct MappedFile {
    overlay: Mutex<Overlay>,
    range: Window,
    free: FreeAddresses,
}

impl MappedFile {
    /// A file's part that `overlay` has mapped over `range`, which goes to `free` in the end.
    #[must_use]
    pub const fn new(overlay: Overlay, range: Window, free: FreeAddresses) -> Self {
        Self {
            overlay: Mutex::new(overlay),
            range,
            free,
        }
    }

    /// The addresses over which the file is mapped.
    #[must_use]
    pub const fn range(&self) -> Window {
        self.range
    }
}

impl Owner for MappedFile {}

impl Drop for MappedFile {
    fn drop(&mut self) {
        let overlay = self.overlay.get_mut();
        // Addresses that stay the file's are given to nobody.
        if overlay.restore().is_ok() {
            let mut free = self.free.lock();
            free.push(self.range);
        }
    }
}

/// What the engine's threads look at, when work completes that may have found a page missing.
#[derive(Debug)]
pub struct WatchedFiles {
    /// Missing pages of anybody's that were looked into.
    seen: AtomicU64,
    /// With their contexts.
    files: Mutex<Vec<(Weak<MappedFile>, u32)>>,
}

impl Default for WatchedFiles {
    fn default() -> Self {
        Self {
            seen: AtomicU64::new(torn_pages()),
            files: Mutex::default(),
        }
    }
}

impl WatchedFiles {
    /// Has a file watched whose loss of pages is the end of a context.
    pub fn add(&self, file: &Arc<MappedFile>, context: u32) {
        let mut files = self.files.lock();
        files.retain(|(file, _)| file.strong_count() > 0);
        files.push((Arc::downgrade(file), context));
    }

    /// Whether a page was missing since the last time that [`WatchedFiles::torn`] looked.
    #[inline]
    pub fn may_be_torn(&self) -> bool {
        torn_pages() != self.seen.load(Ordering::Relaxed)
    }

    /// The contexts of the files that lack pages.
    #[cold]
    pub fn torn(&self) -> Vec<u32> {
        // Before the files, so that one that is torn now is noticed the next time.
        self.seen.store(torn_pages(), Ordering::Relaxed);
        let is_torn = |file: &MappedFile| {
            let overlay = file.overlay.lock();
            overlay.is_torn()
        };
        let files = self.files.lock();
        let files = files
            .iter()
            .filter_map(|(file, context)| Some((file.upgrade()?, *context)));
        files
            .filter(|(file, _)| is_torn(file))
            .map(|(_, context)| context)
            .collect()
    }
}
