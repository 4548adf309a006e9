//! Page-locked memory of the library's own: words of conditional handles, and buffers of copies that wait for a
//! graph to run.
//!
//! Graphs make it; the server frees it after all that uses it. Knows nothing of nodes.

use cuda_abi::CUresult;
use protocol::operations::{HostAlloc, HostFree};

use crate::context::Current;
use crate::session::connection::Connection;

/// Page-locked memory of ours.
#[derive(Debug)]
pub(super) struct Pinned {
    connection: &'static Connection,
    address: u64,
}

impl Pinned {
    pub(super) fn new(current: &Current, bytes: u64) -> Result<Self, CUresult> {
        let connection = current.connection();
        let reply = connection.call(&HostAlloc {
            context: current.slot(),
            bytes,
            flags: 0,
        })?;
        let pinned = Self {
            connection,
            address: reply.fields.address,
        };
        connection.check_in_host_window(pinned.address, bytes)?;
        Ok(pinned)
    }

    /// Where it is, for devices and for this process.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Where it is.
    pub(super) fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The server frees it once all that was posted before is done, our own calls among it.
        let address = self.address;
        let _ = self.connection.post(&HostFree { address });
    }
}
