//! What a context's beginning and end mean to all tables of the session.
//!
//! Owns the order in which what was made in a context goes. `context` calls it, which knows no table but its
//! own.

use cuda_abi::CUresult;
use cuda_abi::types::{CUcontext, CUdevice};

use super::Session;
use crate::context::{Current, Lifecycle, local_storage};

impl Lifecycle for Session {
    fn begins(&self, current: &Current) {
        self.streams.make_legacy(current.slot(), current.handle());
    }

    fn reached_by_pools(&self, current: &Current) -> Vec<CUdevice> {
        self.pools.reached_from(current.context.device())
    }

    fn drain(&self, current: &Current) -> Result<(), CUresult> {
        self.captures.refuse_in_captured(current.handle())?;
        self.streams.drain(current.handle())?;
        self.pools.trim_after_synchronization(self);
        self.contexts.outcome(current.slot())
    }

    fn ends(&self, current: &Current) {
        let handle = current.handle();
        self.captures.forget(handle);
        self.graphs.memories.forget(handle);
        self.registered.forget(handle);
        self.pools.forget_context(handle);
        self.code.modules.forget(&self.code.functions, handle);
        self.arrays.forget(handle);
        self.events.forget(handle);
        self.streams.end_of_context(handle);
        self.ranges.remove_all(|range| range.context == handle);
    }

    fn ended(&self, current: &Current) {
        local_storage::context_destroyed(CUcontext::from_bits(current.handle()));
    }
}
