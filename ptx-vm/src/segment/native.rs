//! Executable memory.
//!
//! Made by `emit`, kept in a `Program`, called by `segment::run`. Must not know what the code does; it is never
//! writable and executable at once.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Machine code, mapped to be run and not to be written.
#[derive(Debug)]
pub(crate) struct Native {
    start: NonNull<u8>,
    len: usize,
    /// Bytes of code.
    code: usize,
}

// SAFETY: it owns its pages, which any thread may unmap.
unsafe impl Send for Native {}
// SAFETY: the pages are not writable once `map` has returned them, so threads only read and run them.
unsafe impl Sync for Native {}

impl Native {
    /// Maps a copy of `code`. `None` if the system gives no such memory.
    pub(crate) fn map(code: &[u8]) -> Option<Self> {
        let len = code.len().max(1).next_multiple_of(4096);
        let (writable, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, wherever the system likes.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, writable, flags) }.ok()?;
        let native = Self {
            start: NonNull::new(start.cast())?,
            len,
            code: code.len(),
        };
        // SAFETY: the mapping is writable, new, and at least as long.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), native.start.as_ptr(), code.len()) };
        // SAFETY: our own mapping, of which there are no references.
        unsafe { mprotect(start, len, MprotectFlags::READ | MprotectFlags::EXEC) }.ok()?;
        Some(native)
    }

    /// The code.
    pub(crate) fn code(&self) -> &[u8] {
        // SAFETY: so many bytes were copied into our mapping, which is readable and not written any more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.code) }
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the program that runs it is gone with us.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
