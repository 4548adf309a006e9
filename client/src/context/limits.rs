//! What contexts may use: CUDA's limits, and the memory of the device code's heap that one of them sets.
//!
//! Owns no state of its own: the values lie in the context. `api::context` sets and asks, launches have
//! the heap made. It knows nothing of which context is whose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

use cuda_abi::CUresult;
use cuda_abi::types::{CUdevice_attribute, CUlimit};
use protocol::operations::{HeapSet, LimitSet, MemAlloc, MemFree};

use super::{Current, HEAP_LIMIT, TOLD_LIMITS};

/// The first major compute capability whose devices have no CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: kernels
/// cannot wait for those that they launched.
const NO_DEVICE_SYNCHRONIZATION: i32 = 9;

impl Current {
    /// Tells the server of a limit.
    pub(super) fn send_limit(&self, limit: CUlimit, value: u64) -> Result<(), CUresult> {
        self.connection().post(&LimitSet {
            context: self.slot(),
            limit: limit.0,
            value,
        })
    }

    /// Where a limit is kept that programs may set.
    fn kept_limit(&self, limit: CUlimit) -> Result<&AtomicU64, CUresult> {
        let capability = CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR;
        match limit {
            CUlimit::DEV_RUNTIME_SYNC_DEPTH
                if self.device()?.attribute(capability) >= NO_DEVICE_SYNCHRONIZATION =>
            {
                Err(CUresult::ERROR_UNSUPPORTED_LIMIT)
            }
            CUlimit::CIG_SHMEM_FALLBACK_ENABLED => Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
            _ => {
                let kept = self.context.limits.get(limit.0 as usize);
                kept.ok_or(CUresult::ERROR_INVALID_VALUE)
            }
        }
    }

    /// A limit's value. Those of contexts shared with graphics are there to be read: cuBLAS asks for
    /// them before every product. Driver 580 answers as this does on an H200.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a number that is no limit, CUDA_ERROR_UNSUPPORTED_LIMIT for one that
    /// the device does not have.
    pub(crate) fn limit(&self, limit: CUlimit) -> Result<u64, CUresult> {
        let block = CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        match limit {
            CUlimit::SHMEM_SIZE => Ok(u64::try_from(self.device()?.attribute(block)).unwrap_or(0)),
            CUlimit::CIG_ENABLED => Ok(0),
            _ => Ok(self.kept_limit(limit)?.load(Ordering::Relaxed)),
        }
    }

    /// Sets a limit, and tells the server if that is what keeps to it.
    ///
    /// # Errors
    /// As [`limit`](Self::limit)'s, and CUDA_ERROR_NOT_PERMITTED for limits of contexts that are shared
    /// with graphics, which this one is not.
    pub(crate) fn set_limit(&self, limit: CUlimit, value: u64) -> Result<(), CUresult> {
        if matches!(limit, CUlimit::SHMEM_SIZE | CUlimit::CIG_ENABLED) {
            return Err(CUresult::ERROR_NOT_PERMITTED);
        }
        self.kept_limit(limit)?.store(value, Ordering::Relaxed);
        // Held so that the context does not begin or end meanwhile.
        let users = self.context.users();
        if !self.context.is_made() {
            return Ok(());
        }
        match limit {
            limit if TOLD_LIMITS.contains(&limit) => self.send_limit(limit, value),
            CUlimit::MALLOC_HEAP_SIZE => {
                drop(users);
                // A heap that was made meanwhile makes room for one of the new size while it is empty.
                match *self.heap_bytes() {
                    0 => Ok(()),
                    _ => self.make_heap(),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn heap_bytes(&self) -> MutexGuard<'_, u64> {
        self.context
            .heap
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the server memory for the heap of device code, as much as the limit says, unless it has it.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there is not as much.
    pub(crate) fn make_heap(&self) -> Result<(), CUresult> {
        let bytes = self.context.limits[HEAP_LIMIT].load(Ordering::Relaxed);
        let mut made = self.heap_bytes();
        if *made == bytes || bytes == 0 {
            return Ok(());
        }
        let reply = self.connection().call(&MemAlloc {
            context: self.slot(),
            bytes,
        })?;
        let address = reply.fields.address;
        if let Err(code) = self.connection().reserve_around(address) {
            self.connection().post(&MemFree { address })?;
            return Err(code);
        }
        self.connection().post(&HeapSet {
            context: self.slot(),
            address,
            bytes,
        })?;
        *made = bytes;
        Ok(())
    }
}
