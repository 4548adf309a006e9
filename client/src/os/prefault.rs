//! Pages of memory that the server has made already: having them at hand before the program touches them.
//!
//! Owns nothing. Called where a large page-locked allocation or registration has just been made. Must not know
//! whose memory it is.

use std::ffi::{c_int, c_uchar, c_void};
use std::ops::Range;

use rustix::mm::Advice;

/// Bytes from which on it is worth a system call.
const WORTH: u64 = 256 << 10;

unsafe extern "C" {
    /// Linux.
    fn mincore(address: *mut c_void, bytes: usize, pages: *mut c_uchar) -> c_int;
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
    if range.end - range.start < WORTH {
        return;
    }
    let mut first = 0;
    // SAFETY: asks about one page, which has one byte of the answer.
    let asked = unsafe { mincore(pointer(range.start), 1, &raw mut first) };
    if asked == 0 && first & 1 != 0 {
        make_present(range);
    }
}
