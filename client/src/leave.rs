//! The end of the process: the server is told, so that it need not take it for a crash.
//!
//! The loader calls this after the program's own handlers, runtimes' among them. Other threads may
//! still run; whatever they call from here on answers that the driver is shut down.

use cuda_abi::operations::Detach;

extern "C" fn leave() {
    // A process that is killed, or calls _exit, does not come here; its socket's end says enough.
    if let Some(session) = crate::session::withdraw()
        && session.check_alive().is_ok()
    {
        // Nobody is left to be told that it failed.
        let _ = session.post(&Detach { status: 0 });
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the section holds functions that the loader calls once, and this is one.
#[unsafe(link_section = ".fini_array")]
static LEAVE: extern "C" fn() = leave;
