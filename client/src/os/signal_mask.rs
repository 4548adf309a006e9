//! Which signals our threads take: none of the program's, except those that a thread gets for what
//! it does itself.
//!
//! Called by whoever starts a thread inside the program. Must not know what the thread is for.

use std::ffi::c_int;

/// C's sigset_t of Linux.
#[repr(C)]
struct SignalSet([u64; 16]);

const BLOCK: c_int = 0;
const SET: c_int = 2;

/// SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, by their numbers less one.
const OWN: u64 = 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const SignalSet, before: *mut SignalSet) -> c_int;
}

/// While this lives the calling thread takes no signals, nor do threads that it makes ever.
pub(crate) struct Blocked(SignalSet);

impl Blocked {
    pub(crate) fn now() -> Self {
        let mut before = SignalSet([0; 16]);
        let all = SignalSet([!OWN; 16]);
        // SAFETY: both sets are whole and ours.
        unsafe { pthread_sigmask(BLOCK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the thread had.
        unsafe { pthread_sigmask(SET, &raw const self.0, std::ptr::null_mut()) };
    }
}
