//! Where heaps get their memory from: the engine's client commits it, and further windows are `further_windows`'.
//!
//! Sessions make one for each call into `client_memory`. Knows neither blocks nor quotas.

use cuda_abi::CUresult;
use engine::{Client, Window};

use crate::memory::further_windows::FurtherWindows;
use crate::memory::heap::Backing;

/// An engine's client as the memory's backing, and what gives it further windows.
pub struct ClientBacking<'a>(pub &'a mut dyn Client, pub &'a FurtherWindows);

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
        self.1.extend(self.0, device, bytes)
    }
    fn retract(&mut self, window: Window) {
        self.1.retract(self.0, window);
    }
}
