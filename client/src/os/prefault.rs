//! Pages of memory that the server has made already: having them at hand before the program touches them.
//!
//! Owns nothing. Called where a large page-locked allocation or registration has just been made. Must not know
//! whose memory it is.

use std::ffi::{c_int, c_uchar, c_void};
use std::ops::Range;

use protocol::operations::HUGE_PAGE;
use rustix::mm::Advice;

/// Bytes from which on it is worth a system call.
const WORTH: u64 = 256 << 10;

/// The kernel's MADV_COLLAPSE, since 6.1: makes huge pages of what is there, whatever `shmem_enabled` says.
const COLLAPSE: c_int = 25;

unsafe extern "C" {
    /// Linux.
    fn mincore(address: *mut c_void, bytes: usize, pages: *mut c_uchar) -> c_int;
    /// Linux; for advice that rustix does not name.
    fn madvise(address: *mut c_void, bytes: usize, advice: c_int) -> c_int;
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Makes pages present here that exist already: sixteen at a time, where the program would come upon them
/// one by one. Where the kernel does not know that, the program does.
pub(crate) fn make_present(range: &Range<u64>) {
    // SAFETY: reading memory that is mapped changes nothing.
    let _ = unsafe {
        let bytes = (range.end - range.start) as usize;
        rustix::mm::madvise(pointer(range.start), bytes, Advice::LinuxPopulateRead)
    };
}

/// As [`make_present`], if the server has made the pages: where it leaves that to whoever touches them first,
/// so does this. The range begins at a page.
pub(crate) fn make_present_if_there(range: &Range<u64>) {
    if range.end - range.start >= WORTH && is_there(range.start) == Some(true) {
        make_present(range);
    }
}

/// Has new pages be huge ones, if there are none in the range yet: one page fault in the place of 512. Where the
/// kernel cannot do that, they become small ones when they are touched.
pub(crate) fn make_huge_if_none(range: &Range<u64>) {
    let first = range.start.next_multiple_of(HUGE_PAGE);
    let end = range.end / HUGE_PAGE * HUGE_PAGE;
    if first >= end || is_there(first) != Some(false) {
        return;
    }
    // The kernel makes no huge page of nothing at all.
    let mut pages = (first..end).step_by(HUGE_PAGE as usize);
    let begin = |page: u64| {
        let (page, bytes) = (pointer(page), rustix::param::page_size());
        // SAFETY: makes a page that is missing, and changes none.
        unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxPopulateWrite) }.is_ok()
    };
    if pages.all(begin) {
        // SAFETY: changes no page's contents.
        let _ = unsafe { madvise(pointer(first), (end - first) as usize, COLLAPSE) };
    }
}

/// Whether a page has memory; `None` if the kernel does not say.
fn is_there(page: u64) -> Option<bool> {
    let mut there = 0;
    // SAFETY: asks about one page, which has one byte of the answer.
    let asked = unsafe { mincore(pointer(page), 1, &raw mut there) };
    (asked == 0).then_some(there & 1 != 0)
}
