//! Operations on page-locked memory whose pages the client makes: reserving addresses for it, page-locking it, and ending
//! that.
//!
//! Called by `dispatch` and `freeing`. What the client was given is owned by `memory::client_pages`; here are the checks of
//! the request and the client's addresses. Must not know what is done with the memory.

use cuda_abi::CUresult;
use engine::Window;
use engine::arena::GRANULE;
use protocol::operations::{HostPin, HostReserve};

use super::Session;
use crate::memory::backing::ClientBacking;

impl Session {
    /// Gives addresses for pages of the client's.
    pub(super) fn reserve_host(&mut self, request: &HostReserve) -> Result<u64, CUresult> {
        self.device_of(request.context)?;
        if request.bytes == 0 || !request.phase.is_multiple_of(GRANULE) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if request.bytes > self.files.window_bytes() {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        self.return_free_addresses();
        let bytes = request.bytes.next_multiple_of(GRANULE);
        let mut backing = ClientBacking(&mut *self.client, &self.addresses);
        let base = self.memory.allocate_addresses_in_phase(
            request.context,
            bytes,
            request.phase,
            &mut backing,
        )?;
        let range = Window { base, bytes };
        // Before the client puts anything there.
        if let Err(code) = self.client.host_settle(range) {
            self.memory.return_addresses(range);
            if let Some(block) = self.memory.remove(base, false) {
                self.free_block(block);
            }
            return Err(code);
        }
        self.files.reserve_pages(range);
        Ok(base)
    }

    /// Has pages of the client's page-locked.
    pub(super) fn pin_host(&mut self, request: &HostPin) -> Result<(), CUresult> {
        let pages = self.files.unpinned_pages(request.address);
        let pages = pages.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        self.client.host_lend(pages.range(), pages)?;
        self.files.set_pinned(request.address);
        Ok(())
    }

    /// Ends what was given from an address on, if something was. Nothing uses it any more.
    pub(super) fn return_host(&mut self, address: u64) {
        if let Some(range) = self.files.remove_pages(address) {
            self.client.host_return(range);
        }
    }
}
