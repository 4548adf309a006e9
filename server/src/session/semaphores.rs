//! Semaphores of other interfaces that a client imports.
//!
//! Such a semaphore is signalled when that interface likes, perhaps never, and until then the driver has a wait for it
//! on the device: code loads and whatever else waits for all work of a context would wait with it, of all clients. So
//! a client can have one only where the server has no other client and never gets one.
//!
//! Called by the session's operations. Must not know how an engine waits.

use cuda_abi::CUresult;
use protocol::operations::{FOREIGN_PACKET, SemaphoreImport};

use crate::session::Session;

impl Session {
    /// Gives the engine the semaphore whose descriptor came last.
    pub(crate) fn import_semaphore(&mut self, request: &SemaphoreImport) -> Result<(), CUresult> {
        // First, so that it is not taken for the next request's.
        let descriptor = self.receive_descriptor(FOREIGN_PACKET);
        if !self.is_alone {
            self.error_line(
                "a semaphore of another interface is refused, since whoever waits for one may hold up the server's \
                 other clients: a daemon that was started with --isolation=client gives each client a server",
            );
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        self.device_of(request.context)?;
        self.client.semaphore_import(request, descriptor?)
    }
}
