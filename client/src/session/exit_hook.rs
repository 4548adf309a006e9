//! The end of the process: the server is told, so that it need not take it for a crash.
//!
//! The loader calls this after the program's own handlers, runtimes' among them. Other threads may
//! still run; whatever they call from here on answers that the driver is shut down.
//!
//! A program may end from a signal's handler, which perhaps came in the midst of a call of this very
//! thread. What that call holds is never let go, so nothing here waits for it for long.
//!
//! Must not know what the session holds: the server frees all of it.

use std::time::Instant;

use protocol::operations::Detach;

use super::connection::LAST_WORD;

extern "C" fn detach_at_exit() {
    crate::recorder::finish();
    // A process that is killed, or calls _exit, does not come here; its socket's end says enough.
    if let Some(session) = super::withdraw()
        && session.check_alive().is_ok()
    {
        // Nobody is left to be told that it failed.
        let until = Instant::now() + LAST_WORD;
        let _ = session
            .link()
            .post_until(0, 0, &Detach { status: 0 }, &[], until);
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the section holds functions that the loader calls once, and this is one.
#[unsafe(link_section = ".fini_array")]
static LEAVE: extern "C" fn() = detach_at_exit;
