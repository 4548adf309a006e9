//! Reads memory of the program's that may not be there: what a program passes may be damaged and lead anywhere, and what was there
//! a moment ago another thread may have given back. Through the kernel, which says so, where a plain read would be the program's
//! end.
//!
//! Owns nothing. Called by whoever follows what a program's data says of itself. Must not know what the data is.

use std::ffi::{c_int, c_ulong, c_void};

use rustix::io::Errno;
use rustix::process::getpid;

/// C's `struct iovec`.
#[repr(C)]
struct Piece {
    start: *mut c_void,
    bytes: usize,
}

unsafe extern "C" {
    /// Linux 3.2.
    fn process_vm_readv(
        process: c_int,
        into: *const Piece,
        into_count: c_ulong,
        from: *const Piece,
        from_count: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

/// Copies as many bytes of the program's memory as `into` has.
///
/// # Errors
/// When some of them cannot be read. What `into` then holds says nothing.
///
/// # Safety
/// Where the kernel has no such call, or a sandbox forbids it, this is a plain read: the program promises that the memory is there.
pub(crate) unsafe fn read(from: *const u8, into: &mut [u8]) -> Result<(), Errno> {
    let (mut at, mut left) = (from, into);
    while !left.is_empty() {
        let here = Piece {
            start: left.as_mut_ptr().cast(),
            bytes: left.len(),
        };
        let there = Piece {
            start: at.cast_mut().cast(),
            bytes: left.len(),
        };
        let own = getpid().as_raw_nonzero().get();
        // SAFETY: writes the bytes of `left` alone, whatever `there` names.
        let read = unsafe { process_vm_readv(own, &raw const here, 1, &raw const there, 1, 0) };
        match usize::try_from(read) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(read) => (at, left) = (at.wrapping_add(read), &mut left[read..]),
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                Some(code) if is_missing(code) => {
                    // SAFETY: the caller vouches for the memory where the kernel does not tell.
                    unsafe { at.copy_to_nonoverlapping(left.as_mut_ptr(), left.len()) };
                    return Ok(());
                }
                code => return Err(code.map_or(Errno::FAULT, Errno::from_raw_os_error)),
            },
        }
    }
    Ok(())
}

/// Whether an error means that there is no such call for this process.
fn is_missing(code: i32) -> bool {
    [Errno::NOSYS, Errno::PERM].contains(&Errno::from_raw_os_error(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_copied_and_what_is_not_is_an_error() {
        let page = rustix::param::page_size();
        let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let flags = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: new memory of this test's own, of which nothing uses the third page.
        let start = unsafe {
            let null = std::ptr::null_mut();
            let base = rustix::mm::mmap_anonymous(null, 3 * page, protection, flags).unwrap();
            let nobody = rustix::mm::MprotectFlags::empty();
            rustix::mm::mprotect(base.byte_add(2 * page), page, nobody).unwrap();
            base.cast::<u8>()
        };
        // SAFETY: the first two pages are there.
        unsafe { start.write_bytes(7, 2 * page) };
        let read = |at: usize, bytes: usize| {
            let mut into = vec![0; bytes];
            // SAFETY: the kernel says what is not there.
            unsafe { read(start.wrapping_add(at), &mut into) }.map(|()| into)
        };
        assert_eq!(read(1, 2 * page - 1), Ok(vec![7; 2 * page - 1]));
        assert_eq!(read(1, 2 * page), Err(Errno::FAULT));
        assert_eq!(read(2 * page, 1), Err(Errno::FAULT));
        assert_eq!(read(2 * page, 0), Ok(vec![]));
    }
}
