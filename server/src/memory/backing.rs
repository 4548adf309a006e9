//! Where heaps get their memory from: the engine's client commits it, and further windows are taken of the
//! client's account of addresses.
//!
//! Sessions make one for each call into `client_memory`. Knows neither blocks nor quotas.

use cuda_abi::CUresult;
use engine::{Client, Window};

use crate::memory::address_account::AddressAccount;
use crate::memory::heap::Backing;

/// An engine's client as the memory's backing, and what it has of the arena.
pub struct ClientBacking<'a>(pub &'a mut dyn Client, pub &'a AddressAccount);

impl Backing for ClientBacking<'_> {
    fn commit(&mut self, range: Window) -> Result<(), CUresult> {
        self.0.commit(range)
    }
    fn recommit(&mut self, range: Window) -> Result<bool, CUresult> {
        self.0.recommit(range)
    }
    fn decommit(&mut self, range: Window) {
        self.0.decommit(range);
    }
    fn extend(&mut self, device: u32, bytes: u64) -> Result<Window, CUresult> {
        let addresses = self
            .1
            .allocate(bytes)
            .ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
        let window = addresses.window();
        self.0.window_add(device, window, addresses)?;
        Ok(window)
    }
    fn retract(&mut self, window: Window) {
        self.0.window_remove(window);
    }
}
