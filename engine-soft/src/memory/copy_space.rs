//! What copies may touch: all memory of a client by its unified addresses, and its staging memory.
//!
//! A space is a list of windows as it was when it was made; `ClientMemory` makes it anew when memory comes or goes.
//! Called by copies and by looks into memory. Must not know quotas or what is committed next.

use std::sync::Arc;

use engine::{CUresult, Owner, Window};
use parking_lot::{RwLock, RwLockReadGuard};

use super::mapped::Ticket;
use super::raw;

/// Keeps a region that somebody else mapped.
#[derive(Debug)]
pub(super) struct Borrowed {
    pub(super) _owner: Arc<dyn Owner>,
    pub(super) _ticket: Ticket,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct CopySpace {
    /// Unified addresses.
    pub(crate) unified: ptx_vm::AddressSpace,
    /// Staging, as mapped here.
    pub(crate) staging: Window,
    pub(super) _staging: Arc<Borrowed>,
    pub(super) moving: Arc<RwLock<()>>,
}

impl CopySpace {
    /// While this is held, no memory is taken back that was found to be committed in the meantime. To be held
    /// for the moment in which bytes move: the client's session waits for it, and this thread may not ask
    /// twice.
    pub(crate) fn moving(&self) -> RwLockReadGuard<'_, ()> {
        self.moving.read()
    }

    /// Writes bytes that lie in this process to a unified address.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if not all of the range is committed memory.
    pub(crate) fn write(&self, to: u64, data: &[u8]) -> Result<(), CUresult> {
        let bytes = data.len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        let _moving = self.moving();
        if !self.unified.allows(to, bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the target is committed, and no memory is taken back while `_moving` is held; the source is a slice.
        unsafe { raw::move_bytes(to, data.as_ptr() as u64, bytes) };
        Ok(())
    }

    /// The 4 or 8 bytes at an address, read in one load if they are aligned.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if they are not all in committed memory, or not as many.
    pub(crate) fn peek(&self, from: u64, bytes: u32) -> Result<u64, CUresult> {
        let count = u64::from(bytes);
        let _moving = self.moving();
        if !matches!(bytes, 4 | 8) || !self.unified.allows(from, count) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let mut value = [0_u64];
        // SAFETY: the source is committed, and no memory is taken back while `_moving` is held; `value` has 8 bytes.
        unsafe { raw::move_bytes(value.as_mut_ptr() as u64, from, count) };
        Ok(value[0])
    }

    /// Fills a range with zeroes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if not all of the range is committed memory.
    pub(crate) fn zero(&self, range: Window) -> Result<(), CUresult> {
        let _moving = self.moving();
        if range.bytes != 0 && !self.unified.allows(range.base, range.bytes) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the range is committed, and no memory is taken back while `_moving` is held.
        unsafe { raw::fill_bytes(range.base, 0, 1, range.bytes) };
        Ok(())
    }
}

/// The copy space as it is now.
pub(crate) fn read(copies: &RwLock<Arc<CopySpace>>) -> Arc<CopySpace> {
    Arc::clone(&copies.read())
}

#[cfg(test)]
impl CopySpace {
    /// A space without any memory.
    pub(crate) fn empty() -> Self {
        #[derive(Debug)]
        struct Nobody;
        impl Owner for Nobody {}
        Self {
            unified: ptx_vm::AddressSpace::default(),
            staging: Window { base: 0, bytes: 0 },
            _staging: Arc::new(Borrowed {
                _owner: Arc::new(Nobody),
                _ticket: Arc::new(super::mapped::Mapped::default()).ticket(),
            }),
            moving: Arc::default(),
        }
    }
}
