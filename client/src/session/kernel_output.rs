//! What kernels print: taken from the server at the points where CUDA does that, and written to this
//! program's own streams of the C library, so that it stands where the program's own output does.
//!
//! Owns how far this process has shown it. Called where the program waits. Must not know which kernel printed.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use protocol::operations::{OUTPUT_STDERR, OUTPUT_STDOUT, OutputTake};

use super::connection::Connection;

/// How much was shown.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// The session's count of texts up to which all are shown.
    shown: AtomicU64,
    /// One thread shows at a time, so that text stays in its order.
    turn: Mutex<()>,
}

unsafe extern "C" {
    static mut stdout: *mut c_void;
    static mut stderr: *mut c_void;
    fn fwrite(from: *const c_void, size: usize, count: usize, stream: *mut c_void) -> usize;
    fn ferror(stream: *mut c_void) -> c_int;
}

impl Connection {
    /// Shows what kernels have printed, if there is anything. Costs one look at shared memory if not.
    #[inline]
    pub(crate) fn print_kernel_output(&self) {
        if self.link().output_count() != self.output.shown.load(Ordering::Acquire) {
            self.take_output();
        }
    }

    /// Takes all text there is. Nobody else's call returns before its text is out.
    #[cold]
    fn take_output(&self) {
        let _turn = self
            .output
            .turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Read before the text is taken: what comes later counts again.
        let told = self.link().output_count();
        if told == self.output.shown.load(Ordering::Relaxed) {
            return;
        }
        while let Ok(reply) = self.call(&OutputTake { reserved: 0 }) {
            match reply.fields.sink {
                OUTPUT_STDOUT => write(&reply.data, false),
                OUTPUT_STDERR => write(&reply.data, true),
                _ => break,
            }
        }
        self.output.shown.store(told, Ordering::Release);
        self.link().output_shown(told);
    }
}

/// Hands text to the C library's own stream, as the program's `printf` does.
fn write(text: &[u8], error: bool) {
    // SAFETY: the C library's variables, read once; the pointers stay valid streams unless the program
    // itself closes them, after which its own output is undefined too.
    let stream = unsafe { if error { stderr } else { stdout } };
    if stream.is_null() {
        return;
    }
    // SAFETY: as many bytes are there, and the stream is the C library's.
    let written = unsafe { fwrite(text.as_ptr().cast(), 1, text.len(), stream) };
    // SAFETY: the stream is the C library's.
    if written < text.len() && unsafe { ferror(stream) } != 0 {
        crate::log::log!("output of a kernel is lost: the program's stream could not be written");
    }
}
