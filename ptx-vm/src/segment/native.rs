//! Executable memory.
//!
//! Made by `emit`, kept in a `Program`, called by `segment::run`. Must not know what the code does; it is never
//! writable and executable at once.

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Bytes in pages of their own, zeroes at first. Code that is among them need not be copied to be run.
#[derive(Debug)]
pub struct CodeBytes {
    start: NonNull<u8>,
    /// Bytes of the pages.
    len: usize,
    /// Bytes that are used of them.
    bytes: usize,
}

// SAFETY: it owns its pages, which any thread may unmap.
unsafe impl Send for CodeBytes {}
// SAFETY: a shared reference only reads the pages, as of a slice.
unsafe impl Sync for CodeBytes {}

impl CodeBytes {
    /// So many bytes. `None` if the system gives no such memory.
    #[must_use]
    pub fn new(bytes: usize) -> Option<Self> {
        let len = bytes.max(1).checked_next_multiple_of(PAGE)?;
        if len < HUGE_PAGE {
            return Self::mapped(len, bytes);
        }
        // Of more than is wanted, what begins at a huge page.
        let mut whole = Self::mapped(len.checked_add(HUGE_PAGE)?, 0)?;
        let first = whole.start.as_ptr().align_offset(HUGE_PAGE);
        whole.trim(&(first..first.checked_add(len)?))?;
        whole.bytes = bytes;
        // All of them are about to be written: one call instead of a page fault for each page. What the system does not do
        // for us is done at the first access.
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
            // SAFETY: all of our own mapping, of which there are no references.
            let _ = unsafe { madvise(whole.start.as_ptr().cast(), len, advice) };
        }
        Some(whole)
    }

    fn mapped(len: usize, bytes: usize) -> Option<Self> {
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the system likes.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, writable, MapFlags::PRIVATE) };
        let start = NonNull::new(start.ok()?.cast())?;
        Some(Self { start, len, bytes })
    }

    /// A copy of bytes.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Option<Self> {
        let mut copy = Self::new(bytes.len())?;
        copy.copy_from_slice(bytes);
        Some(copy)
    }

    /// Gives the pages before and behind a part back.
    fn trim(&mut self, part: &Range<usize>) -> Option<()> {
        let end = part.end.checked_next_multiple_of(PAGE)?;
        if part.start > part.end || end > self.len {
            return None;
        }
        let first = part.start / PAGE * PAGE;
        let behind = self.start.as_ptr().wrapping_add(end);
        if end < self.len {
            // SAFETY: pages of our own mapping, of which there are no references; they are ours no more from here on.
            unsafe { munmap(behind.cast(), self.len - end) }.ok()?;
            self.len = end;
        }
        if first > 0 {
            // SAFETY: the pages of our own mapping that lie before the part, to which there are no references; they are ours no more.
            unsafe { munmap(self.start.as_ptr().cast(), first) }.ok()?;
            self.start = NonNull::new(self.start.as_ptr().wrapping_add(first))?;
            self.len -= first;
        }
        self.bytes = part.end - first;
        Some(())
    }
}

impl Deref for CodeBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes of our own mapping, which is readable as long as we are.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for CodeBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes of our own mapping, which is writable: `Native`, which has it made executable, gives none of it out to be
        // written.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for CodeBytes {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // SAFETY: our own mapping; the program that runs it is gone with us.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Machine code, mapped to be run and not to be written.
#[derive(Debug)]
pub(crate) struct Native {
    /// Its pages.
    pages: CodeBytes,
    /// Where the code begins in them.
    first: usize,
}

impl Native {
    /// Maps a copy of `code`. `None` if the system gives no such memory.
    pub(crate) fn map(code: &[u8]) -> Option<Self> {
        Self::part_of(CodeBytes::copy_of(code)?, 0..code.len())
    }

    /// Has a part of bytes run where it is; the other ones go. `None` for what is no part, and if the system does not let it run.
    pub(crate) fn part_of(mut bytes: CodeBytes, part: Range<usize>) -> Option<Self> {
        let first = part.start % PAGE;
        bytes.trim(&part)?;
        let executable = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: our own mapping, of which there are no references.
        unsafe { mprotect(bytes.start.as_ptr().cast(), bytes.len, executable) }.ok()?;
        let pages = bytes;
        Some(Self { pages, first })
    }

    /// The code.
    pub(crate) fn code(&self) -> &[u8] {
        &self.pages[self.first..]
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> u64 {
        self.code().as_ptr() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_bytes_is_run_where_it_is() {
        // mov eax, number; ret.
        let code = |number: u8| [0xb8, number, 0, 0, 0, 0xc3];
        for (first, behind) in [
            (0, 0),
            (64, 10),
            (5000, 9000),
            (3 * PAGE, 1),
            (PAGE - 2, 0),
            (5 << 20, 3 << 20),
        ] {
            let mut bytes = CodeBytes::new(first + 6 + behind).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes[first..first + 6].copy_from_slice(&code(first as u8 | 1));
            let native = Native::part_of(bytes, first..first + 6).unwrap();
            assert_eq!(native.code(), code(first as u8 | 1));
            assert_eq!(native.address() as usize % PAGE, first % PAGE);
            // SAFETY: those two instructions, mapped to be run, are such a function.
            let run = unsafe {
                std::mem::transmute::<usize, extern "C" fn() -> u32>(native.address() as usize)
            };
            if cfg!(target_arch = "x86_64") {
                assert_eq!(run(), u32::from(first as u8 | 1));
            }
        }
        let bytes = || CodeBytes::copy_of(&[1; 10]).unwrap();
        assert!(Native::part_of(bytes(), 0..PAGE + 1).is_none());
        assert!(Native::part_of(bytes(), 0..usize::MAX).is_none());
    }
}
